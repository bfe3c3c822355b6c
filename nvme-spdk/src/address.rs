//! Where a namespace is, as people write it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What a transport id begins with that SPDK shall parse.
const TRANSPORT: &str = "trtype:";
/// What a PCI address begins with.
const PCI: &str = "pci:";
/// The longest name of a subsystem.
const NQN_BYTES_MAX: usize = 223;
/// What names the namespace.
const NAMESPACE: &str = "ns:";

/// A controller, and which of its namespaces: `pci:0000:5e:00.0`, or SPDK's transport id, which is words such as
/// `trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.2026-11.example:disk`. A word `ns:2` chooses a
/// namespace; without one the first is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    transport_id: String,
    pci: Option<PciAddress>,
    namespace: Option<u32>,
}

/// Where a PCI function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain, which few machines have several of.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 8.
    pub function: u8,
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It begins with neither form.
    #[error(
        "`{0}` is no NVMe address: give pci:DDDD:BB:DD.F, or a transport id such as `trtype:TCP adrfam:IPv4 traddr:192.0.2.1 trsvcid:4420 subnqn:NQN`"
    )]
    Form(String),
    /// A PCI address that is none.
    #[error("`{0}` is no PCI address: `lspci -D` shows them, as 0000:5e:00.0")]
    Pci(String),
    /// A namespace that is none.
    #[error("`ns:{0}` is no namespace: they are numbered from 1")]
    Namespace(String),
    /// A transport that is not driven.
    #[error(
        "transport `{0}` is not supported: give trtype:TCP, or a PCI address as pci:DDDD:BB:DD.F"
    )]
    Transport(String),
    /// A word that is none of a transport id's.
    #[error(
        "`{0}` is no part of a transport id, which is trtype:TCP traddr:IP trsvcid:PORT subnqn:NQN, and ns:N if need be"
    )]
    Word(String),
    /// One that is there twice.
    #[error("`{0}:` is there twice")]
    Twice(String),
    /// One that is not there.
    #[error("`{0}` is missing: a transport id is trtype:TCP traddr:IP trsvcid:PORT subnqn:NQN")]
    Missing(&'static str),
    /// An address that is none.
    #[error("traddr `{0}` is no IP address of its family: names are not looked up")]
    Ip(String),
    /// A port that is none.
    #[error("trsvcid `{0}` is no port")]
    Port(String),
    /// A name that is none.
    #[error("subnqn `{0}` is too long for the name of a subsystem")]
    Nqn(String),
}

impl Address {
    /// What SPDK parses.
    pub fn transport_id(&self) -> &str {
        &self.transport_id
    }

    /// Where the controller is on this machine's PCI buses; none when it is reached through a network.
    pub fn pci(&self) -> Option<PciAddress> {
        self.pci
    }

    /// The namespace's number; none for the first that there is.
    pub fn namespace(&self) -> Option<u32> {
        self.namespace
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let mut namespace = None;
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            match word.strip_prefix(NAMESPACE) {
                Some(number) => {
                    let parsed = number
                        .parse()
                        .ok()
                        .filter(|number| (1..u32::MAX).contains(number));
                    let parsed = parsed.ok_or_else(|| AddressError::Namespace(number.into()))?;
                    if namespace.replace(parsed).is_some() {
                        return Err(AddressError::Twice("ns".into()));
                    }
                }
                None => words.push(word),
            }
        }
        let pci = match words.as_slice() {
            [word] if word.starts_with(PCI) => Some(word[PCI.len()..].parse()?),
            [first, ..] if first.to_ascii_lowercase().starts_with(TRANSPORT) => None,
            _ => return Err(AddressError::Form(text.trim().into())),
        };
        let (transport_id, pci) = match pci {
            Some(pci) => (format!("trtype:PCIe traddr:{pci}"), Some(pci)),
            None => Words::read(&words)?.transport_id()?,
        };
        Ok(Self {
            transport_id,
            pci,
            namespace,
        })
    }
}

/// The words of a transport id. Each address has one form, whatever was written: SPDK takes two forms for two controllers.
#[derive(Default)]
struct Words<'a>([Option<&'a str>; KEYS.len()]);

/// What a transport id is made of.
const KEYS: [&str; 5] = ["trtype", "adrfam", "traddr", "trsvcid", "subnqn"];

impl<'a> Words<'a> {
    fn read(words: &[&'a str]) -> Result<Self, AddressError> {
        let mut read = Self::default();
        for word in words {
            let Some((key, value)) = word.split_once(':').filter(|(_, value)| !value.is_empty())
            else {
                return Err(AddressError::Word((*word).into()));
            };
            let known = KEYS
                .iter()
                .position(|known| key.eq_ignore_ascii_case(known));
            let Some(place) = known else {
                return Err(AddressError::Word((*word).into()));
            };
            if read.0[place].replace(value).is_some() {
                return Err(AddressError::Twice(key.into()));
            }
        }
        Ok(read)
    }

    fn transport_id(&self) -> Result<(String, Option<PciAddress>), AddressError> {
        let [trtype, adrfam, traddr, trsvcid, subnqn] = self.0;
        let trtype = trtype.unwrap_or_default();
        if trtype.eq_ignore_ascii_case("pcie") {
            let pci: PciAddress = traddr.unwrap_or_default().parse()?;
            return Ok((format!("trtype:PCIe traddr:{pci}"), Some(pci)));
        }
        if !trtype.eq_ignore_ascii_case("tcp") {
            return Err(AddressError::Transport(trtype.into()));
        }
        let needed = |word: Option<&'a str>, key| word.ok_or(AddressError::Missing(key));
        let traddr = needed(traddr, "traddr:")?;
        let ip = traddr
            .parse::<IpAddr>()
            .ok()
            .filter(|ip| adrfam.is_none_or(|family| family.eq_ignore_ascii_case(family_of(ip))));
        let ip = ip.ok_or_else(|| AddressError::Ip(traddr.into()))?;
        let trsvcid = needed(trsvcid, "trsvcid:")?;
        let port = trsvcid.parse::<u16>().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| AddressError::Port(trsvcid.into()))?;
        let subnqn = needed(subnqn, "subnqn:")?;
        if subnqn.len() > NQN_BYTES_MAX {
            return Err(AddressError::Nqn(subnqn.into()));
        }
        let family = family_of(&ip);
        let id = format!("trtype:TCP adrfam:{family} traddr:{ip} trsvcid:{port} subnqn:{subnqn}");
        Ok((id, None))
    }
}

/// As transport ids call it.
fn family_of(ip: &IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pci {
            Some(pci) => write!(f, "{PCI}{pci}")?,
            None => f.write_str(&self.transport_id)?,
        }
        match self.namespace {
            Some(number) => write!(f, " {NAMESPACE}{number}"),
            None => Ok(()),
        }
    }
}

impl FromStr for PciAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut parts = rest.rsplit(':');
            let hex = |digits: &str, most: u32| {
                let plain =
                    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                u32::from_str_radix(digits, 16)
                    .ok()
                    .filter(|number| plain && *number <= most)
            };
            let device = hex(parts.next()?, 31)?;
            let bus = hex(parts.next()?, 255)?;
            let domain = parts.next().map_or(Some(0), |digits| hex(digits, 0xffff))?;
            let function = hex(function, 7)?;
            parts.next().is_none().then_some(Self {
                domain: domain as u16,
                bus: bus as u8,
                device: device as u8,
                function: function as u8,
            })
        };
        parse().ok_or_else(|| AddressError::Pci(text.into()))
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Address, AddressError> {
        text.parse()
    }

    #[test]
    fn pci_addresses_are_read_and_written_in_one_form() {
        for text in [
            "pci:0000:5e:00.0",
            "pci:5E:0.0",
            " pci:0:5e:00.0 ",
            "trtype:PCIe traddr:0000:5e:00.0",
        ] {
            let address = parsed(text).unwrap();
            assert_eq!(address.to_string(), "pci:0000:5e:00.0", "{text}");
            assert_eq!(address.transport_id(), "trtype:PCIe traddr:0000:5e:00.0");
            assert_eq!(address.namespace(), None);
        }
        let second = parsed("pci:0001:5e:1f.7 ns:2").unwrap();
        assert_eq!(
            (second.namespace(), second.to_string()),
            (Some(2), "pci:0001:5e:1f.7 ns:2".into())
        );
        assert_eq!(second.to_string().parse(), Ok(second));
    }

    #[test]
    fn transport_ids_have_one_form_however_they_are_written() {
        let one =
            "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.2026-11.example:a";
        for text in [
            one,
            "trtype:tcp  traddr:127.0.0.1 trsvcid:04420 subnqn:nqn.2026-11.example:a",
            "TRTYPE:Tcp subnqn:nqn.2026-11.example:a trsvcid:4420 ADRFAM:ipv4 traddr:127.0.0.1",
        ] {
            let address = parsed(&format!("{text}   ns:3")).unwrap();
            assert_eq!((address.transport_id(), address.pci()), (one, None));
            assert_eq!(address.namespace(), Some(3));
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        let v6 = |traddr: &str| {
            parsed(&format!("trtype:TCP traddr:{traddr} trsvcid:1 subnqn:n")).unwrap()
        };
        assert_eq!(v6("::1"), v6("0:0:0:0:0:0:0:1"));
    }

    #[test]
    fn what_is_no_transport_id_is_refused_with_a_reason() {
        let whole = "trtype:TCP traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.2026-11.example:a";
        parsed(whole).unwrap();
        let long = format!("subnqn:{}", "n".repeat(224));
        for (from, to, reason) in [
            ("TCP", "RDMA", "transport `RDMA`"),
            ("TCP", "FC", "transport `FC`"),
            ("traddr:192.0.2.1 ", "", "`traddr:` is missing"),
            ("trsvcid:4420 ", "", "`trsvcid:` is missing"),
            ("subnqn:nqn.2026-11.example:a", "", "`subnqn:` is missing"),
            ("192.0.2.1", "target.example", "`target.example`"),
            ("192.0.2.1", "192.0.2.1 adrfam:IPv6", "of its family"),
            ("4420", "0", "no port"),
            ("4420", "70000", "no port"),
            ("trsvcid", "port", "`port:4420` is no part"),
            ("4420", "4420 trsvcid:4421", "twice"),
            ("4420", "4420 ns:1 ns:2", "twice"),
            ("subnqn:nqn.2026-11.example:a", &long, "too long"),
            ("traddr:192.0.2.1", "traddr", "`traddr` is no part"),
        ] {
            let error = parsed(&whole.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(reason), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for text in [
            "",
            "/dev/nvme0n1",
            "traddr:1.2.3.4",
            "pci:0:1:2.0 more:words",
            "ns:1",
        ] {
            assert!(matches!(parsed(text), Err(AddressError::Form(_))), "{text}");
        }
        for text in [
            "pci:",
            "pci:5e:00",
            "pci:5e:20.0",
            "pci:5e:00.8",
            "pci:1:0:5e:00.0",
            "pci:+1:00.0",
            "pci:100:00.0",
            "trtype:pcie",
        ] {
            assert!(matches!(parsed(text), Err(AddressError::Pci(_))), "{text}");
        }
        for text in [
            "pci:5e:00.0 ns:0",
            "pci:5e:00.0 ns:x",
            "pci:5e:00.0 ns:4294967295",
        ] {
            assert!(
                matches!(parsed(text), Err(AddressError::Namespace(_))),
                "{text}"
            );
        }
    }
}
