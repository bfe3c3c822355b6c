//! This machine's addresses, and which of them a group uses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::str::FromStr;

/// `--group-ip`: an address, or a network such as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether an address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                (base.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                (base.to_bits() ^ address.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HINT: &str = "give an address (`10.1.2.3`) or a network (`10.1.0.0/16`)";
        let (base, prefix) = text
            .split_once('/')
            .map_or((text, None), |(base, prefix)| (base, Some(prefix)));
        let base: IpAddr = base
            .parse()
            .map_err(|_| format!("`{base}` is not an address: {HINT}"))?;
        let base = base.to_canonical();
        let longest = if base.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(prefix) => match prefix.parse() {
                Ok(prefix) if prefix <= longest => prefix,
                _ => return Err(format!("`/{prefix}` is not 0 to {longest} bits: {HINT}")),
            },
        };
        Ok(Self { base, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = if self.base.is_ipv4() { 32 } else { 128 };
        match self.prefix == longest {
            true => write!(f, "{}", self.base),
            false => write!(f, "{}/{}", self.base, self.prefix),
        }
    }
}

/// An address of this machine, and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface's name.
    pub interface: String,
}

/// Why no address was chosen.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The kernel did not tell.
    #[error("cannot list this machine's addresses: {0}")]
    List(#[from] io::Error),
    /// `--group-ip` names none of them.
    #[error("--group-ip {network} names no address of this machine, which has {addresses}")]
    NotHere {
        /// What was given.
        network: Network,
        /// What there is.
        addresses: String,
    },
    /// There is only loopback.
    #[error(
        "this machine has no address that others can reach (it has {addresses}): connect it, or give --group-ip"
    )]
    OnlyLoopback {
        /// What there is.
        addresses: String,
    },
}

/// This machine's addresses, without those of one link alone (`fe80::`).
///
/// # Errors
/// When the kernel does not tell.
pub fn addresses() -> io::Result<Vec<LocalAddress>> {
    let interfaces = if_addrs::get_if_addrs()?;
    let local = interfaces.into_iter().map(|interface| LocalAddress {
        address: interface.ip(),
        interface: interface.name,
    });
    Ok(local
        .filter(|local| !is_link_local(local.address))
        .collect())
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The addresses that a member publishes, one for each rail, in the order of `--group-ip`; at least one.
///
/// Without `--group-ip`: loopback when the group has no secret (nothing else would be accepted); else the address that
/// the kernel would send from.
///
/// # Errors
/// When none fits; the error lists what there is.
pub fn published(networks: &[Network], has_secret: bool) -> Result<Vec<IpAddr>, LocalError> {
    choose(networks, has_secret, &addresses()?, default_source())
}

fn choose(
    networks: &[Network],
    has_secret: bool,
    local: &[LocalAddress],
    source: Option<IpAddr>,
) -> Result<Vec<IpAddr>, LocalError> {
    if networks.is_empty() {
        if !has_secret {
            return Ok(vec![IpAddr::from([127, 0, 0, 1])]);
        }
        let reachable = local
            .iter()
            .map(|local| local.address)
            .find(|address| !address.is_loopback());
        let address = source.filter(|source| !source.is_loopback()).or(reachable);
        return address
            .map(|address| vec![address])
            .ok_or_else(|| LocalError::OnlyLoopback {
                addresses: listing(local),
            });
    }
    let mut chosen = Vec::new();
    for network in networks {
        let before = chosen.len();
        let fitting = local
            .iter()
            .map(|local| local.address)
            .filter(|address| network.contains(*address));
        // 127.0.0.0/8 is this machine's as a whole, though only one address is listed.
        let implied = (network.prefix == 32 && network.base.is_loopback()).then_some(network.base);
        for address in fitting.chain(implied) {
            if !chosen.contains(&address) {
                chosen.push(address);
            }
        }
        let again = chosen.iter().any(|address| network.contains(*address));
        if chosen.len() == before && !again {
            return Err(LocalError::NotHere {
                network: *network,
                addresses: listing(local),
            });
        }
    }
    Ok(chosen)
}

fn listing(local: &[LocalAddress]) -> String {
    let one = |local: &LocalAddress| format!("{} ({})", local.address, local.interface);
    match local.is_empty() {
        true => "none".to_owned(),
        false => local.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

/// The source address of the default route. Nothing is sent: connecting a UDP socket only asks the routing table.
fn default_source() -> Option<IpAddr> {
    let any: SocketAddr = ([0, 0, 0, 0], 0).into();
    // An address for documentation (RFC 5737): it follows the default route.
    let somewhere: SocketAddr = ([192, 0, 2, 1], 9).into();
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(somewhere).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn machine() -> Vec<LocalAddress> {
        [
            ("lo", "127.0.0.1"),
            ("eth0", "10.1.2.3"),
            ("ib0", "172.16.0.3"),
            ("ib1", "172.16.1.3"),
            ("eth0", "fd00::3"),
        ]
        .map(|(interface, address)| LocalAddress {
            address: ip(address),
            interface: interface.to_owned(),
        })
        .into()
    }

    #[test]
    fn networks_contain_what_they_should() {
        for (network, address, inside) in [
            ("10.1.0.0/16", "10.1.255.255", true),
            ("10.1.0.0/16", "10.2.0.0", false),
            ("10.1.77.1/16", "10.1.2.3", true),
            ("0.0.0.0/0", "255.1.2.3", true),
            ("0.0.0.0/0", "::1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("10.1.2.3", "::ffff:10.1.2.3", true),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fc00::1", false),
            ("::/0", "fe80::1", true),
            ("fd00::1", "fd00::2", false),
        ] {
            assert_eq!(
                network.parse::<Network>().unwrap().contains(ip(address)),
                inside,
                "{network} {address}"
            );
        }
        for text in [
            "",
            "10.1",
            "10.1.2.3/33",
            "10.1.2.3/",
            "10.1.2.3/-1",
            "fd00::/129",
            "host",
            "10.1.2.3/8/8",
        ] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains("10.1.0.0/16"), "{error}");
        }
        for text in ["10.1.0.0/16", "10.1.2.3", "fd00::/8"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn rails_come_in_the_order_given_each_once() {
        let choose = |texts: &[&str]| choose(&networks(texts), true, &machine(), None);
        assert_eq!(
            choose(&["172.16.0.0/12"]).unwrap(),
            [ip("172.16.0.3"), ip("172.16.1.3")]
        );
        assert_eq!(
            choose(&["172.16.1.0/24", "172.16.0.0/12"]).unwrap(),
            [ip("172.16.1.3"), ip("172.16.0.3")]
        );
        assert_eq!(
            choose(&["10.1.2.3", "10.0.0.0/8"]).unwrap(),
            [ip("10.1.2.3")]
        );
        assert_eq!(choose(&["127.0.0.7"]).unwrap(), [ip("127.0.0.7")]);
        let error = choose(&["10.1.2.3", "192.168.0.0/16"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("192.168.0.0/16") && error.contains("172.16.0.3 (ib0)"),
            "{error}"
        );
    }

    #[test]
    fn without_group_ip_the_kernel_chooses_and_without_a_secret_loopback_does() {
        let source = Some(ip("10.1.2.3"));
        assert_eq!(
            choose(&[], false, &machine(), source).unwrap(),
            [ip("127.0.0.1")]
        );
        assert_eq!(
            choose(&[], true, &machine(), source).unwrap(),
            [ip("10.1.2.3")]
        );
        assert_eq!(
            choose(&[], true, &machine(), None).unwrap(),
            [ip("10.1.2.3")]
        );
        assert!(choose(&[], true, &machine()[..1], None).is_err());
    }

    #[test]
    fn this_machine_has_loopback() {
        assert!(
            addresses()
                .unwrap()
                .iter()
                .any(|local| local.address.is_loopback())
        );
        assert_eq!(
            published(&networks(&["127.0.0.1"]), true).unwrap(),
            [ip("127.0.0.1")]
        );
    }
}
