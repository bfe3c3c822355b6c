//! Where a namespace is, as people write it.

use std::fmt;
use std::str::FromStr;

/// What a transport id begins with that SPDK shall parse.
const TRANSPORT: &str = "trtype:";
/// What a PCI address begins with.
const PCI: &str = "pci:";
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
                    namespace = Some(parsed.ok_or_else(|| AddressError::Namespace(number.into()))?);
                }
                None => words.push(word),
            }
        }
        let pci = match words.as_slice() {
            [word] if word.starts_with(PCI) => Some(word[PCI.len()..].parse()?),
            [first, ..] if first.to_ascii_lowercase().starts_with(TRANSPORT) => pci_of(&words)?,
            _ => return Err(AddressError::Form(text.trim().into())),
        };
        let transport_id = match pci {
            Some(pci) => format!("trtype:PCIe traddr:{pci}"),
            None => words.join(" "),
        };
        Ok(Self {
            transport_id,
            pci,
            namespace,
        })
    }
}

/// The PCI address of a transport id that names one.
fn pci_of(words: &[&str]) -> Result<Option<PciAddress>, AddressError> {
    let value = |key: &str| {
        let lower = |word: &str| word.to_ascii_lowercase();
        words
            .iter()
            .find(|word| lower(word).starts_with(key))
            .map(|word| &word[key.len()..])
    };
    match value(TRANSPORT) {
        Some(kind) if kind.eq_ignore_ascii_case("pcie") => {
            value("traddr:").unwrap_or("").parse().map(Some)
        }
        _ => Ok(None),
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
    fn transport_ids_are_left_to_spdk_but_for_their_namespace() {
        let text =
            "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.2026-11.example:a";
        let address = parsed(&format!("{text}   ns:3")).unwrap();
        assert_eq!((address.transport_id(), address.pci()), (text, None));
        assert_eq!(address.namespace(), Some(3));
        assert_eq!(address.to_string().parse(), Ok(address));
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
