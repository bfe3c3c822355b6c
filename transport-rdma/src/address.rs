//! What the two ends of a queue pair must know of each other.

use std::fmt;
use std::net::Ipv6Addr;

/// A port's address: 128 bits, for RoCE an IPv6 address or an IPv4 one mapped into it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// True for an entry of the device's table that is not in use.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it is the GID of the port that had `before`. On InfiniBand the upper half is the prefix of the subnet, which the
    /// subnet manager gives a port when it comes up.
    pub fn is_of_port(&self, before: Gid, link_layer: LinkLayer) -> bool {
        match link_layer {
            LinkLayer::InfiniBand => self.0[8..] == before.0[8..],
            _ => *self == before,
        }
    }

    /// The address that it stands for; `::ffff:a.b.c.d` for IPv4.
    pub fn ip(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// How packets from a GID look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet frames of a type of their own; not routed.
    RoceV1,
    /// UDP over IP.
    RoceV2,
    /// A number that this crate does not know.
    Unknown(u32),
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// Its packets.
    pub kind: GidKind,
    /// The network interface behind it; 0 where there is none.
    pub interface_index: u32,
}

/// What a port is joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers are found by LID.
    InfiniBand,
    /// Ethernet (RoCE): peers are found by GID.
    Ethernet,
    /// Not told, or a number that this crate does not know.
    Unknown(u8),
}

/// Payload of one packet, as verbs number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u32);

impl Mtu {
    /// From the number that verbs use: 1 (256 bytes) to 5 (4,096 bytes).
    pub fn from_code(code: u32) -> Option<Mtu> {
        (1..=5).contains(&code).then_some(Mtu(code))
    }

    /// The number that verbs use.
    pub fn code(self) -> u32 {
        self.0
    }

    /// Payload in bytes.
    pub fn bytes(self) -> u32 {
        128 << self.0
    }
}

/// A port of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number; the first is 1.
    pub port: u8,
    /// True when it carries traffic.
    pub active: bool,
    /// What it uses now; `None` for a number that this crate does not know.
    pub active_mtu: Option<Mtu>,
    /// Its address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// What it is joined to.
    pub link_layer: LinkLayer,
    /// Entries of its table of GIDs.
    pub gids: u32,
}

/// The end of a connection on this side: which port, by which of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// The port; the first is 1.
    pub port: u8,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// Which entry of its table of GIDs.
    pub gid_index: u8,
    /// That entry.
    pub gid: Gid,
    /// Largest packet that it takes.
    pub mtu: Mtu,
}

/// What a queue pair's peer must know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The queue pair's number, unique on its device while it lives.
    pub queue_pair: u32,
    /// Number of its first packet, 24 bits. Random ones keep packets of an earlier queue pair out.
    pub first_packet: u32,
    /// Its port's LID.
    pub lid: u16,
    /// Its port's GID.
    pub gid: Gid,
    /// Largest packet that it takes.
    pub mtu: Mtu,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_managers_prefix_makes_no_other_port_of_it() {
        let gid = |prefix: u8, guid: u8| {
            let mut bytes = [0; 16];
            (bytes[0], bytes[15]) = (prefix, guid);
            Gid(bytes)
        };
        let ib = LinkLayer::InfiniBand;
        assert!(gid(7, 1).is_of_port(gid(0xfe, 1), ib));
        assert!(!gid(0xfe, 2).is_of_port(gid(0xfe, 1), ib));
        // Where the GID is the address, all of it counts.
        assert!(!gid(7, 1).is_of_port(gid(0xfe, 1), LinkLayer::Ethernet));
        assert!(gid(7, 1).is_of_port(gid(7, 1), LinkLayer::Ethernet));
    }

    #[test]
    fn mtus_are_powers_of_two_and_unknown_ones_are_none() {
        let bytes: Vec<_> = (0..8)
            .map(|code| Mtu::from_code(code).map(Mtu::bytes))
            .collect();
        let wanted = [
            None,
            Some(256),
            Some(512),
            Some(1024),
            Some(2048),
            Some(4096),
            None,
            None,
        ];
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn an_ipv4_address_is_told_as_such() {
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);
        assert_eq!(gid.to_string(), "::ffff:10.9.0.1");
        assert!(!gid.is_empty());
        assert!(Gid([0; 16]).is_empty());
    }
}
