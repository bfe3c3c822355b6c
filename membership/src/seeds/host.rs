//! A host and, maybe, a port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Longest host name.
const NAME_BYTES_MAX: usize = 253;

/// `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// The port, if it was said.
    pub port: Option<u16>,
}

impl Host {
    /// A host whose port was not said.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            port: None,
        }
    }

    /// Its addresses as of now.
    pub(crate) async fn resolve(&self, port_default: u16) -> Result<Vec<SocketAddr>, String> {
        let port = self.port.unwrap_or(port_default);
        if let Ok(address) = self.name.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let found = tokio::net::lookup_host((self.name.as_str(), port)).await;
        found
            .map(Iterator::collect)
            .map_err(|error| format!("cannot resolve {}: {error}", self.name))
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a host: give HOST, HOST:PORT or [IPV6]:PORT");
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self::named(text));
        }
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']').ok_or_else(bad)?;
                name.parse::<Ipv6Addr>().map_err(|_| bad())?;
                match port {
                    "" => (name, None),
                    port => (name, Some(port.strip_prefix(':').ok_or_else(bad)?)),
                }
            }
            None => text
                .split_once(':')
                .map_or((text, None), |(name, port)| (name, Some(port))),
        };
        let port = match port.map(str::parse::<u16>) {
            None => None,
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return Err(format!("`{text}`: the port is not 1 to 65535")),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
            return Err(bad());
        }
        Ok(Self {
            name: name.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]", self.name)?,
            false => f.write_str(&self.name)?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}
