//! What RDMA this machine has, and which of its ports are a member's rails. Asks devices through `verbs`; the
//! choice itself needs none.

use std::fmt;
use std::net::IpAddr;

use crate::numa;
use crate::{Gid, GidEntry, GidKind, LinkLayer, PortInfo, Verbs, VerbsError};

/// Entries of a port's table of GIDs that are looked at: an index is one byte.
const GIDS_MAX: u32 = 256;

/// The RDMA devices of a machine.
#[derive(Debug, Default)]
pub struct Inventory {
    /// In the library's order.
    pub devices: Vec<DeviceSeen>,
}

/// A device, as far as it can be opened.
#[derive(Debug)]
pub struct DeviceSeen {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its ports, or why it tells nothing.
    pub ports: Result<Vec<PortSeen>, VerbsError>,
}

/// A port and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSeen {
    /// What the device tells of it.
    pub info: PortInfo,
    /// The entries of its table of GIDs that are in use.
    pub gids: Vec<GidEntry>,
}

impl Inventory {
    /// Asks every device. One that cannot be opened is there with the reason.
    ///
    /// # Errors
    /// When the devices cannot be listed.
    pub fn take(verbs: &Verbs) -> Result<Self, VerbsError> {
        let devices = verbs.devices()?.into_iter().map(|device| DeviceSeen {
            ports: ports(verbs, &device.name),
            name: device.name,
        });
        Ok(Self {
            devices: devices.collect(),
        })
    }
}

fn ports(verbs: &Verbs, name: &str) -> Result<Vec<PortSeen>, VerbsError> {
    let device = verbs.open(name)?;
    let port = |port| {
        let info = device.port(port)?;
        let mut gids = Vec::new();
        for index in 0..info.gids.min(GIDS_MAX) {
            gids.extend(device.gid(port, index as u8)?);
        }
        Ok(PortSeen { info, gids })
    };
    (1..=device.ports()).map(port).collect()
}

/// An address that a member publishes, and the InfiniBand port below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAddress {
    /// The address.
    pub ip: IpAddr,
    /// Of IP over InfiniBand: the device and port that carry it. RoCE needs nothing: the port's GID is the address.
    pub infiniband: Option<(String, u8)>,
}

/// What the flags ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `--rdma-device`: only these; empty: any.
    pub devices: Vec<String>,
    /// `--rdma-port`: only this port of a device; the first is 1.
    pub port: Option<u8>,
    /// `--rdma-gid-index`: of the entries that are the address, this one.
    pub gid_index: Option<u8>,
    /// `--rdma-traffic-class`, `--rdma-service-level`.
    pub marking: Marking,
}

/// How a network is told which of its classes packets belong to. What is not given here is as the connection manager has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marking {
    /// The traffic class of packets with a global route, so of all of RoCE: its upper six bits are the DSCP of RoCE v2.
    pub traffic_class: Option<u8>,
    /// The service level, 0 to 15, which InfiniBand maps to a virtual lane; with RoCE the priority of a VLAN's tag.
    pub service_level: Option<u8>,
}

/// One way to peers: a port, by one of its GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// The device.
    pub device: String,
    /// The port; the first is 1.
    pub port: u8,
    /// Entry of the port's table of GIDs.
    pub gid_index: u8,
    /// What is in that entry, where it is known: the index may be another one later.
    pub gid: Option<Gid>,
    /// Packets are to have just that entry's GID, whatever the kernel's connection manager would choose.
    pub forces_gid: bool,
    /// The member's address that this rail serves.
    pub ip: IpAddr,
    /// The NUMA node that the device is near to, where the machine says.
    pub node: Option<u32>,
    /// How this node's packets are marked.
    pub marking: Marking,
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            port,
            gid_index,
            ip,
            ..
        } = self;
        write!(f, "{device} port {port} GID {gid_index} for {ip}")
    }
}

/// Why an address has no rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRail {
    /// There is nothing to choose from.
    #[error("this machine has no RDMA device")]
    NoDevice,
    /// A flag names what is not there.
    #[error("{flag} {value}: there is none; there are {present}")]
    NotThere {
        /// The flag.
        flag: &'static str,
        /// What it says.
        value: String,
        /// What it could say.
        present: String,
    },
    /// The port is there, but carries nothing.
    #[error("{} port {}, which would carry {}, is down: set its link up", .0.device, .0.port, .0.ip)]
    Down(
        /// What it will be when the port is up.
        Box<Rail>,
    ),
    /// The entry that a flag names is another address's.
    #[error(
        "--rdma-gid-index {index}: that entry of {device} port {port} is {has}, and packets must come from {ip}, which has {fitting}: give that, or leave the flag out"
    )]
    OtherGid {
        /// What the flag says.
        index: u8,
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What is there.
        has: Gid,
        /// The address.
        ip: IpAddr,
        /// Entries that are the address.
        fitting: String,
    },
    /// A port has the address, but a flag leaves it out.
    #[error(
        "{ip} is that of {device} port {port}, which {flag} leaves out: name it there, or give another --group-ip"
    )]
    LeftOut {
        /// The address.
        ip: IpAddr,
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The flag.
        flag: &'static str,
    },
    /// The port speaks only the frames that no router passes.
    #[error(
        "{device} port {port} has {ip} for RoCE v1 only: switch it to RoCE v2 (mlx5: `cma_roce_mode -d {device} -p {port} -m 2`)"
    )]
    OnlyV1 {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The address.
        ip: IpAddr,
    },
    /// No port has the address.
    #[error(
        "no RDMA port has {ip}, the ports' addresses are {present}: give one of these as --group-ip"
    )]
    NoPort {
        /// The address.
        ip: IpAddr,
        /// Addresses that ports have.
        present: String,
    },
}

/// The rail of one of the member's addresses.
///
/// A RoCE port is found by its GID, which is the address; version 2 is wanted. An InfiniBand port is found by the
/// interface of the address.
///
/// # Errors
/// [`NoRail`]: why members reach this address by TCP only.
pub fn rail(
    inventory: &Inventory,
    wanted: &Wanted,
    address: &GroupAddress,
) -> Result<Rail, NoRail> {
    if inventory.devices.is_empty() {
        return Err(NoRail::NoDevice);
    }
    let named = |name: &String| inventory.devices.iter().any(|device| device.name == *name);
    if let Some(missing) = wanted.devices.iter().find(|name| !named(name)) {
        let names = inventory.devices.iter().map(|device| device.name.clone());
        return Err(not_there("--rdma-device", missing.clone(), names));
    }
    let allowed =
        |device: &&DeviceSeen| wanted.devices.is_empty() || wanted.devices.contains(&device.name);
    let mut ports: Vec<(&str, &PortSeen)> = Vec::new();
    for device in inventory.devices.iter().filter(allowed) {
        let seen = device.ports.iter().flatten();
        ports.extend(seen.map(|port| (device.name.as_str(), port)));
    }
    if let Some(port) = wanted.port
        && !ports.iter().any(|(_, seen)| seen.info.port == port)
    {
        let present = ports
            .iter()
            .map(|(name, seen)| format!("{name} port {}", seen.info.port));
        return Err(not_there("--rdma-port", port.to_string(), present));
    }
    ports.retain(|(_, seen)| wanted.port.is_none_or(|port| port == seen.info.port));
    let found = Search {
        ip: address.ip,
        address,
        wanted,
        ports,
    }
    .run();
    match found {
        Err(no @ NoRail::NoPort { .. }) => Err(left_out(inventory, wanted, address).unwrap_or(no)),
        found => found,
    }
}

/// The port that has an address, where a flag is why it was not looked at.
fn left_out(inventory: &Inventory, wanted: &Wanted, address: &GroupAddress) -> Option<NoRail> {
    let flag = match wanted.devices.is_empty() {
        false => "--rdma-device",
        true => wanted.port.map(|_| "--rdma-port")?,
    };
    let (device, port) = match rail(inventory, &Wanted::default(), address) {
        Ok(rail) => (rail.device, rail.port),
        Err(NoRail::Down(rail)) => (rail.device, rail.port),
        Err(NoRail::OnlyV1 { device, port, .. }) => (device, port),
        Err(_) => return None,
    };
    let flag = match wanted.devices.contains(&device) {
        true => "--rdma-port",
        false => flag,
    };
    let ip = address.ip;
    Some(NoRail::LeftOut {
        ip,
        device,
        port,
        flag,
    })
}

fn not_there(flag: &'static str, value: String, present: impl Iterator<Item = String>) -> NoRail {
    NoRail::NotThere {
        flag,
        value,
        present: listed(present),
    }
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

/// One address, looked for on the ports that the flags leave.
struct Search<'a> {
    ip: IpAddr,
    address: &'a GroupAddress,
    wanted: &'a Wanted,
    ports: Vec<(&'a str, &'a PortSeen)>,
}

impl Search<'_> {
    fn run(&self) -> Result<Rail, NoRail> {
        let mut why = None;
        for (device, seen) in &self.ports {
            match self.on_port(device, seen) {
                Some(Ok(rail)) => return Ok(rail),
                Some(Err(no)) => why = why.or(Some(no)),
                None => {}
            }
        }
        Err(why.unwrap_or_else(|| {
            let gids = self.ports.iter().flat_map(|(_, seen)| &seen.gids);
            NoRail::NoPort {
                ip: self.ip,
                present: listed(gids.filter_map(GidEntry::address).map(|ip| ip.to_string())),
            }
        }))
    }

    /// The rail by this port; none when the address has nothing to do with it.
    fn on_port(&self, device: &str, seen: &PortSeen) -> Option<Result<Rail, NoRail>> {
        let port = seen.info.port;
        let is_below = |(name, number): &(String, u8)| name == device && *number == port;
        let of_interface = self.address.infiniband.as_ref().is_some_and(is_below);
        let gids = match seen.info.link_layer {
            LinkLayer::InfiniBand if of_interface => seen.gids.iter().collect(),
            LinkLayer::InfiniBand => Vec::new(),
            _ => {
                let is_it = |entry: &&GidEntry| entry.address() == Some(self.ip);
                seen.gids.iter().filter(is_it).collect::<Vec<_>>()
            }
        };
        let chosen = match self.wanted.gid_index {
            Some(index) if !gids.is_empty() => match named(self.ip, device, seen, &gids, index) {
                Ok(entry) => entry,
                Err(no) => return Some(Err(no)),
            },
            _ => *gids
                .iter()
                .min_by_key(|entry| (entry.kind.rank(), entry.index))?,
        };
        let is_forced = self.wanted.gid_index.is_some();
        let (device, ip) = (device.to_owned(), self.ip);
        if chosen.kind == GidKind::RoceV1 && !is_forced {
            return Some(Err(NoRail::OnlyV1 { device, port, ip }));
        }
        let rail = Rail {
            node: numa::of_device(&device),
            device,
            port,
            gid_index: chosen.index,
            gid: Some(chosen.gid),
            // InfiniBand's way, and whether it has a GID at all, is the subnet manager's affair.
            forces_gid: is_forced && seen.info.link_layer == LinkLayer::Ethernet,
            ip,
            marking: self.wanted.marking,
        };
        Some(match seen.info.active {
            true => Ok(rail),
            false => Err(NoRail::Down(Box::new(rail))),
        })
    }
}

/// The entry that `--rdma-gid-index` names. Peers answer to the address, so it must be one of the `fitting`.
fn named<'a>(
    ip: IpAddr,
    device: &str,
    seen: &'a PortSeen,
    fitting: &[&GidEntry],
    index: u8,
) -> Result<&'a GidEntry, NoRail> {
    let Some(entry) = seen.gids.iter().find(|entry| entry.index == index) else {
        let present = seen.gids.iter().map(|entry| entry.index.to_string());
        let value = index.to_string();
        return Err(not_there("--rdma-gid-index", value, present));
    };
    match fitting.iter().any(|fits| fits.index == index) {
        true => Ok(entry),
        false => Err(NoRail::OtherGid {
            index,
            device: device.to_owned(),
            port: seen.info.port,
            has: entry.gid,
            ip,
            fitting: listed(fitting.iter().map(|entry| entry.index.to_string())),
        }),
    }
}

impl GidEntry {
    /// The IP address that it stands for; none of InfiniBand.
    pub fn address(&self) -> Option<IpAddr> {
        match self.kind {
            GidKind::InfiniBand => None,
            _ => Some(self.gid.ip().to_canonical()),
        }
    }
}

impl GidKind {
    /// Lower is better.
    fn rank(self) -> u8 {
        match self {
            GidKind::InfiniBand | GidKind::RoceV2 => 0,
            GidKind::Unknown(_) => 1,
            GidKind::RoceV1 => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Gid, Mtu};

    fn gid(index: u8, kind: GidKind, ip: [u8; 4]) -> GidEntry {
        GidEntry {
            index,
            gid: Gid(Ipv4Addr::from(ip).to_ipv6_mapped().octets()),
            kind,
            interface_index: 2,
        }
    }

    fn port(number: u8, link_layer: LinkLayer, active: bool, gids: Vec<GidEntry>) -> PortSeen {
        PortSeen {
            info: PortInfo {
                port: number,
                active,
                active_mtu: Mtu::from_code(5),
                lid: 0,
                link_layer,
                gids: 16,
            },
            gids,
        }
    }

    fn device(name: &str, ports: Vec<PortSeen>) -> DeviceSeen {
        DeviceSeen {
            name: name.into(),
            ports: Ok(ports),
        }
    }

    /// Two RoCE ports with both versions, the second of which is down; one InfiniBand port.
    fn machine() -> Inventory {
        let both = |ip| vec![gid(2, GidKind::RoceV1, ip), gid(3, GidKind::RoceV2, ip)];
        let fabric = GidEntry {
            index: 0,
            gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
            kind: GidKind::InfiniBand,
            interface_index: 0,
        };
        let ethernet = LinkLayer::Ethernet;
        Inventory {
            devices: vec![
                device("mlx5_0", vec![port(1, ethernet, true, both([10, 0, 0, 1]))]),
                device(
                    "mlx5_1",
                    vec![port(1, ethernet, false, both([10, 1, 0, 1]))],
                ),
                device(
                    "mlx5_2",
                    vec![port(1, LinkLayer::InfiniBand, true, vec![fabric])],
                ),
                device(
                    "old_0",
                    vec![port(
                        1,
                        ethernet,
                        true,
                        vec![gid(0, GidKind::RoceV1, [10, 3, 0, 1])],
                    )],
                ),
            ],
        }
    }

    fn by(ip: [u8; 4]) -> GroupAddress {
        GroupAddress {
            ip: ip.into(),
            infiniband: None,
        }
    }

    fn found(wanted: &Wanted, address: &GroupAddress) -> Result<String, String> {
        rail(&machine(), wanted, address)
            .map(|rail| rail.to_string())
            .map_err(|no| no.to_string())
    }

    #[test]
    fn a_roce_port_is_found_by_its_address_and_version_two_is_taken() {
        let any = Wanted::default();
        assert_eq!(
            found(&any, &by([10, 0, 0, 1])).unwrap(),
            "mlx5_0 port 1 GID 3 for 10.0.0.1"
        );
    }

    #[test]
    fn an_infiniband_port_is_found_by_the_interface_of_the_address() {
        let any = Wanted::default();
        let address = GroupAddress {
            infiniband: Some(("mlx5_2".into(), 1)),
            ..by([10, 2, 0, 1])
        };
        assert_eq!(
            found(&any, &address).unwrap(),
            "mlx5_2 port 1 GID 0 for 10.2.0.1"
        );
        assert!(found(&any, &by([10, 2, 0, 1])).is_err());
    }

    #[test]
    fn what_stands_in_the_way_is_told_with_what_to_do() {
        let any = Wanted::default();
        for (ip, what) in [
            (
                [10, 1, 0, 1],
                "mlx5_1 port 1, which would carry 10.1.0.1, is down",
            ),
            ([10, 3, 0, 1], "cma_roce_mode -d old_0 -p 1 -m 2"),
            ([10, 9, 0, 1], "10.0.0.1, 10.1.0.1, 10.3.0.1"),
        ] {
            let error = found(&any, &by(ip)).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let nothing = rail(&Inventory::default(), &any, &by([10, 0, 0, 1]));
        assert_eq!(nothing, Err(NoRail::NoDevice));
    }

    #[test]
    fn flags_narrow_the_choice_and_name_what_there_is() {
        let wanted = |devices: &[&str], port, gid_index| Wanted {
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            port,
            gid_index,
            marking: Marking::default(),
        };
        let address = by([10, 0, 0, 1]);
        assert!(found(&wanted(&["mlx5_0"], Some(1), None), &address).is_ok());
        // Who asks for version 1 by its number gets it.
        assert_eq!(
            found(&wanted(&[], None, Some(2)), &address).unwrap(),
            "mlx5_0 port 1 GID 2 for 10.0.0.1"
        );
        for (wanted, what) in [
            (
                wanted(&["mlx5_9"], None, None),
                "--rdma-device mlx5_9: there is none; there are mlx5_0, ",
            ),
            (
                wanted(&["mlx5_0"], Some(2), None),
                "--rdma-port 2: there is none; there are mlx5_0 port 1",
            ),
            (
                wanted(&[], None, Some(9)),
                "--rdma-gid-index 9: there is none; there are 2, 3",
            ),
            (
                wanted(&["mlx5_1"], None, None),
                "10.0.0.1 is that of mlx5_0 port 1, which --rdma-device leaves out",
            ),
        ] {
            let error = found(&wanted, &address).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }

    /// Packets come from the address of the connection, whatever a flag says.
    #[test]
    fn an_entry_of_another_address_is_refused() {
        let mut machine = machine();
        let ports = machine.devices[0].ports.as_mut().unwrap();
        ports[0].gids.push(gid(4, GidKind::RoceV2, [10, 7, 0, 1]));
        let wanted = |gid_index| Wanted {
            gid_index: Some(gid_index),
            ..Wanted::default()
        };
        let no = rail(&machine, &wanted(4), &by([10, 0, 0, 1])).unwrap_err();
        let no = no.to_string();
        assert!(
            no.contains("is ::ffff:10.7.0.1") && no.contains("which has 2, 3"),
            "{no}"
        );
        for index in [2, 3] {
            let rail = rail(&machine, &wanted(index), &by([10, 0, 0, 1])).unwrap();
            assert!(rail.forces_gid && rail.gid_index == index);
        }
        let free = rail(&machine, &Wanted::default(), &by([10, 0, 0, 1])).unwrap();
        assert!(!free.forces_gid);
    }

    #[test]
    fn a_port_that_is_down_tells_what_it_will_be() {
        let no = rail(&machine(), &Wanted::default(), &by([10, 1, 0, 1])).unwrap_err();
        let NoRail::Down(rail) = no else {
            panic!("{no}")
        };
        assert_eq!(rail.to_string(), "mlx5_1 port 1 GID 3 for 10.1.0.1");
        assert!(rail.gid.is_some());
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_passed_over() {
        let mut machine = machine();
        machine.devices[0].ports = Err(VerbsError::NoDevice {
            name: "mlx5_0".into(),
            present: "none".into(),
        });
        let no = rail(&machine, &Wanted::default(), &by([10, 0, 0, 1]));
        assert!(matches!(no, Err(NoRail::NoPort { .. })), "{no:?}");
    }
}
