//! RDMA: the library, devices, ports, GIDs and MTU, and which ports `--group-ip` comes to.

use std::collections::BTreeSet;

use anyhow::Result;
use forebay_membership::local::Network;
use forebay_transport_rdma::inventory::{
    DeviceSeen, GroupAddress, Inventory, NoRail, PortSeen, Wanted, rail,
};
use forebay_transport_rdma::{Cm, GidKind, LinkLayer, Verbs};

use super::finding::Finding;
use super::machine::Files;
use crate::group::rails::group_addresses;

const AREA: &str = "rdma";
/// Bytes of an interface's MTU that packets of 4,096 bytes payload need over RoCE v2, headers and all.
const ROCE_MTU_BYTES: u64 = 4200;

/// What was found.
#[derive(Debug)]
pub struct Rdma {
    /// One for each thing.
    pub findings: Vec<Finding>,
    /// Whether there is anything to speak RDMA with.
    pub has_devices: bool,
    /// Devices that the addresses of `--group-ip` come to.
    pub rails: usize,
}

/// Asks the library for its devices.
pub fn look(files: &Files, wanted: &Wanted, networks: &[Network]) -> Rdma {
    // What --group-ip means does not depend on RDMA: a wrong one is told always.
    let (group, wrong) = match group_addresses(files, networks) {
        Ok(group) => (group, None),
        Err(error) => {
            let advice = "give --group-ip an address of this machine, or a network that it is in";
            let finding = Finding::problem("network", "--group-ip", error.to_string(), advice);
            (Vec::new(), Some(finding))
        }
    };
    let (library, inventory) = match Verbs::load() {
        Ok(verbs) => (Ok(()), Inventory::take(&verbs)),
        Err(error) => (Err(error.to_string()), Ok(Inventory::default())),
    };
    let inventory = match inventory {
        Ok(inventory) => inventory,
        Err(error) => {
            let advice = "look at the kernel's log for ib_uverbs";
            let devices = Finding::problem(AREA, "devices", error.to_string(), advice);
            return Rdma {
                findings: wrong.into_iter().chain([devices]).collect(),
                has_devices: false,
                rails: 0,
            };
        }
    };
    // Seen by the kernel even where the library is missing.
    let by_kernel = files.names("/sys/class/infiniband");
    let has_devices = !inventory.devices.is_empty() || !by_kernel.is_empty();
    let mut findings: Vec<Finding> = wrong.into_iter().collect();
    let connections = Cm::load().map_err(|error| error.to_string());
    findings.push(libraries(library, connections, &inventory, &by_kernel));
    if has_devices {
        findings.push(connection_manager(files));
    }
    for device in &inventory.devices {
        findings.extend(of_device(files, device));
    }
    let found = group
        .iter()
        .filter_map(|address| rail(&inventory, wanted, address).ok());
    let devices: BTreeSet<String> = found.map(|rail| rail.device).collect();
    if !inventory.devices.is_empty() {
        findings.extend(
            group
                .iter()
                .map(|address| rails(&inventory, wanted, address)),
        );
    } else if !wanted.devices.is_empty() {
        findings.push(Finding::problem(
            AREA,
            "--rdma-device",
            "this machine has no RDMA device that can be used",
            "leave it out, or see above",
        ));
    }
    Rdma {
        findings,
        has_devices,
        rails: devices.len(),
    }
}

fn libraries(
    library: Result<(), String>,
    connections: Result<(), String>,
    inventory: &Inventory,
    by_kernel: &[String],
) -> Finding {
    const OBJECT: &str = "library and devices";
    let advice = "install rdma-core's libraries (Debian: libibverbs1, librdmacm1, ibverbs-providers; others: libibverbs, librdmacm, rdma-core)";
    match (library, inventory.devices.len(), by_kernel.len()) {
        (Err(_), _, 0) => Finding::absent(
            AREA,
            OBJECT,
            "neither a device nor libibverbs: members speak TCP",
        ),
        (Err(_), _, _) => Finding::problem(
            AREA,
            OBJECT,
            format!("{}, but libibverbs is not there", by_kernel.join(", ")),
            advice,
        ),
        (Ok(()), 0, 0) => Finding::absent(AREA, OBJECT, "no device: members speak TCP"),
        (Ok(()), 0, _) => Finding::problem(
            AREA,
            OBJECT,
            format!(
                "the kernel has {}, the library finds none",
                by_kernel.join(", ")
            ),
            "install the device's provider (ibverbs-providers), `modprobe ib_uverbs`, and give this user or container \
             /dev/infiniband",
        ),
        (Ok(()), count, _) => match connections {
            Ok(()) => Finding::ok(
                AREA,
                OBJECT,
                format!("libibverbs, librdmacm, {count} devices"),
            ),
            Err(why) => Finding::problem(
                AREA,
                OBJECT,
                format!("{count} devices, but connections cannot be made: {why}"),
                advice,
            ),
        },
    }
}

/// Connections are made by the connection manager.
fn connection_manager(files: &Files) -> Finding {
    const DEVICE: &str = "/dev/infiniband/rdma_cm";
    let opened = std::fs::File::options()
        .read(true)
        .write(true)
        .open(files.path(DEVICE));
    match opened {
        Ok(_) => Finding::ok(AREA, DEVICE, "can be opened"),
        Err(error) => Finding::problem(
            AREA,
            DEVICE,
            error.to_string(),
            "`modprobe rdma_ucm`, and give this user or container /dev/infiniband",
        ),
    }
}

fn of_device(files: &Files, device: &DeviceSeen) -> Vec<Finding> {
    match &device.ports {
        Ok(ports) => ports
            .iter()
            .map(|port| of_port(files, &device.name, port))
            .collect(),
        Err(error) => vec![Finding::problem(
            AREA,
            &device.name,
            error.to_string(),
            "give this user or container /dev/infiniband",
        )],
    }
}

fn of_port(files: &Files, device: &str, seen: &PortSeen) -> Finding {
    let number = seen.info.port;
    let object = format!("{device} port {number}");
    let directory = format!("/sys/class/infiniband/{device}/ports/{number}");
    let rate = files.text(&format!("{directory}/rate"));
    let mut found = vec![match seen.info.link_layer {
        LinkLayer::InfiniBand => format!("InfiniBand, LID {}", seen.info.lid),
        LinkLayer::Ethernet => String::from("RoCE"),
        LinkLayer::Unknown(number) => format!("link layer {number}, unknown"),
    }];
    // Such as `100 Gb/sec (4X EDR)`.
    found.extend(rate);
    if let Some(mtu) = seen.info.active_mtu {
        found.push(format!("MTU {}", mtu.bytes()));
    }
    if let Some(node) = files.text(&format!("/sys/class/infiniband/{device}/device/numa_node")) {
        found.extend((node != "-1").then(|| format!("NUMA node {node}")));
    }
    found.push(gids(seen));
    let found = found.join(", ");
    let is_roce = seen.info.link_layer == LinkLayer::Ethernet;
    if !seen.info.active {
        let advice = match is_roce {
            true => {
                "set its interface up (`ip link set IF up`), or look at the cable and the switch"
            }
            false => "start a subnet manager (opensm, or the switch's), or look at the cable",
        };
        return Finding::warning(AREA, &object, format!("down: {found}"), advice);
    }
    if is_roce && !seen.gids.iter().any(|gid| gid.kind == GidKind::RoceV2) {
        let advice = format!(
            "give its interface an IP address, and the port RoCE v2 (mlx5: `cma_roce_mode -d {device} -p {number} -m 2`)"
        );
        return Finding::warning(AREA, &object, found, advice);
    }
    if is_roce && mode(files, device, number).is_some_and(|mode| mode == "IB/RoCE v1") {
        let advice = format!(
            "connections take RoCE v1, which no router passes: `cma_roce_mode -d {device} -p {number} -m 2` on every node"
        );
        return Finding::warning(AREA, &object, found, advice);
    }
    match seen.info.active_mtu {
        Some(mtu) if mtu.bytes() >= 4096 => Finding::ok(AREA, &object, found),
        _ => Finding::warning(AREA, &object, found, mtu_advice(files, seen, is_roce)),
    }
}

/// What the connection manager takes for connections by a port, where somebody has asked for that already (`cma_roce_mode` does).
fn mode(files: &Files, device: &str, port: u8) -> Option<String> {
    let directory = format!("/sys/kernel/config/rdma_cm/{device}/ports/{port}");
    files.text(&format!("{directory}/default_roce_mode"))
}

fn gids(seen: &PortSeen) -> String {
    let addresses = seen.gids.iter().filter(|gid| gid.kind == GidKind::RoceV2);
    let listed: Vec<String> = addresses
        .filter_map(|gid| Some(format!("GID {} = {}", gid.index, gid.address()?)))
        .collect();
    match (listed.is_empty(), seen.gids.len()) {
        (false, _) => listed.join(", "),
        (true, 0) => "no GID".into(),
        (true, count) => format!("{count} GIDs"),
    }
}

fn mtu_advice(files: &Files, seen: &PortSeen, is_roce: bool) -> String {
    if !is_roce {
        return "raise the partition's MTU in the subnet manager to 4096 (opensm: mtu=5)".into();
    }
    let indices: Vec<u64> = seen
        .gids
        .iter()
        .map(|gid| u64::from(gid.interface_index))
        .collect();
    let is_below = |name: &String| {
        let index = files.number(&format!("/sys/class/net/{name}/ifindex"));
        index.is_some_and(|index| indices.contains(&index))
    };
    let interface = files.names("/sys/class/net").into_iter().find(is_below);
    let now = interface
        .as_ref()
        .and_then(|name| files.number(&format!("/sys/class/net/{name}/mtu")));
    match (interface, now) {
        (Some(name), Some(now)) if now < ROCE_MTU_BYTES => format!(
            "`ip link set {name} mtu 9000` (it is {now}; {ROCE_MTU_BYTES} is enough), on every node and switch of the way"
        ),
        _ => format!(
            "an MTU of {ROCE_MTU_BYTES} or more on the interface, on every node and switch of the way"
        ),
    }
}

fn rails(inventory: &Inventory, wanted: &Wanted, address: &GroupAddress) -> Finding {
    let object = format!("group address {}", address.ip);
    match rail(inventory, wanted, address) {
        Ok(rail) => Finding::ok(
            AREA,
            &object,
            format!("{} port {} GID {}", rail.device, rail.port, rail.gid_index),
        ),
        Err(no @ (NoRail::NotThere { .. } | NoRail::OtherGid { .. })) => Finding::problem(
            AREA,
            &object,
            no.to_string(),
            "name one that is there, or leave the flag out",
        ),
        Err(no @ NoRail::Down(_)) => Finding::warning(
            AREA,
            &object,
            format!("TCP until its port is up: {no}"),
            "members take it when it comes up; with --transport rdma a member does not start while no port is up",
        ),
        Err(no) => Finding::warning(
            AREA,
            &object,
            format!("TCP only: {no}"),
            "members use RDMA between addresses that a port has: name them by --group-ip",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use forebay_transport_rdma::{Gid, GidEntry, Mtu, PortInfo, VerbsError};

    use super::super::finding::Verdict;
    use super::*;
    use crate::group::rails::infiniband_port;

    fn port(active: bool, mtu_code: u32, kind: GidKind) -> PortSeen {
        PortSeen {
            info: PortInfo {
                port: 1,
                active,
                active_mtu: Mtu::from_code(mtu_code),
                lid: 0,
                link_layer: LinkLayer::Ethernet,
                gids: 8,
            },
            gids: vec![GidEntry {
                index: 3,
                gid: Gid(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets()),
                kind,
                interface_index: 2,
            }],
        }
    }

    fn machine() -> (tempfile::TempDir, Files) {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::below(dir.path());
        for (path, text) in [
            (
                "/sys/class/infiniband/mlx5_0/ports/1/rate",
                "100 Gb/sec (4X EDR)\n",
            ),
            ("/sys/class/infiniband/mlx5_0/device/numa_node", "1\n"),
            ("/sys/class/net/eth1/ifindex", "2\n"),
            ("/sys/class/net/eth1/mtu", "1500\n"),
            ("/sys/class/net/eth1/type", "1\n"),
            ("/sys/class/net/ib0/ifindex", "5\n"),
            ("/sys/class/net/ib0/type", "32\n"),
            ("/sys/class/net/ib0/dev_port", "1\n"),
            (
                "/sys/class/net/ib0/device/infiniband/mlx5_2/node_type",
                "1\n",
            ),
        ] {
            let path = files.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (dir, files)
    }

    #[test]
    fn a_port_is_told_with_its_rate_and_addresses() {
        let (_dir, files) = machine();
        let good = of_port(&files, "mlx5_0", &port(true, 5, GidKind::RoceV2));
        assert_eq!(
            (good.verdict, good.found.as_str()),
            (
                Verdict::Ok,
                "RoCE, 100 Gb/sec (4X EDR), MTU 4096, NUMA node 1, GID 3 = 10.0.0.1"
            )
        );
        let small = of_port(&files, "mlx5_0", &port(true, 3, GidKind::RoceV2));
        assert!(
            small
                .advice
                .unwrap()
                .starts_with("`ip link set eth1 mtu 9000` (it is 1500")
        );
        let down = of_port(&files, "mlx5_0", &port(false, 5, GidKind::RoceV2));
        assert!(down.found.starts_with("down: ") && down.verdict == Verdict::Warning);
        let modes = files.path("/sys/kernel/config/rdma_cm/mlx5_0/ports/1");
        std::fs::create_dir_all(&modes).unwrap();
        for (mode, verdict) in [
            ("RoCE v2\n", Verdict::Ok),
            ("IB/RoCE v1\n", Verdict::Warning),
        ] {
            std::fs::write(modes.join("default_roce_mode"), mode).unwrap();
            let told = of_port(&files, "mlx5_0", &port(true, 5, GidKind::RoceV2));
            assert_eq!(told.verdict, verdict, "{told:?}");
        }
        let old = of_port(&files, "mlx5_0", &port(true, 5, GidKind::RoceV1));
        assert!(old.advice.unwrap().contains("cma_roce_mode -d mlx5_0"));
    }

    #[test]
    fn an_infiniband_port_is_found_below_its_interface() {
        let (_dir, files) = machine();
        assert_eq!(infiniband_port(&files, "ib0"), Some(("mlx5_2".into(), 2)));
        assert_eq!(infiniband_port(&files, "eth1"), None);
        assert_eq!(infiniband_port(&files, "eth9"), None);
    }

    #[test]
    fn a_device_without_its_library_is_a_problem_and_no_device_is_none() {
        let none = Inventory::default();
        let missing = || Err(String::from("not there"));
        assert_eq!(
            libraries(missing(), missing(), &none, &[]).verdict,
            Verdict::Absent
        );
        assert_eq!(
            libraries(Ok(()), Ok(()), &none, &[]).verdict,
            Verdict::Absent
        );
        let device = Inventory {
            devices: vec![DeviceSeen {
                name: "mlx5_0".into(),
                ports: Ok(Vec::new()),
            }],
        };
        let told = libraries(Ok(()), missing(), &device, &[]);
        assert_eq!(told.verdict, Verdict::Problem);
        assert!(told.advice.unwrap().contains("librdmacm1"));
        let told = libraries(Ok(()), Ok(()), &device, &[]);
        assert_eq!(told.verdict, Verdict::Ok);
        let seen = ["mlx5_0".to_owned()];
        for library in [missing(), Ok(())] {
            let told = libraries(library, Ok(()), &none, &seen);
            assert_eq!(told.verdict, Verdict::Problem);
            assert!(told.advice.unwrap().contains("ibverbs-providers"));
        }
    }

    #[test]
    fn a_rail_or_why_there_is_none() {
        let address = |last| GroupAddress {
            ip: IpAddr::from([10, 0, 0, last]),
            infiniband: None,
        };
        let inventory = Inventory {
            devices: vec![
                DeviceSeen {
                    name: "mlx5_0".into(),
                    ports: Ok(vec![port(true, 5, GidKind::RoceV2)]),
                },
                DeviceSeen {
                    name: "mlx5_1".into(),
                    ports: Err(VerbsError::NoDevice {
                        name: "mlx5_1".into(),
                        present: "none".into(),
                    }),
                },
            ],
        };
        let told = |wanted: &Wanted, last| rails(&inventory, wanted, &address(last));
        assert_eq!(told(&Wanted::default(), 1).found, "mlx5_0 port 1 GID 3");
        let other = told(&Wanted::default(), 2);
        assert_eq!(other.verdict, Verdict::Warning);
        assert!(
            other
                .found
                .starts_with("TCP only: no RDMA port has 10.0.0.2"),
            "{other:?}"
        );
        // It has a port, but one that a flag leaves out.
        let wanted = Wanted {
            devices: vec!["mlx5_1".into()],
            ..Wanted::default()
        };
        let left_out = told(&wanted, 1);
        assert!(
            left_out
                .found
                .contains("10.0.0.1 is that of mlx5_0 port 1, which --rdma-device leaves out"),
            "{left_out:?}"
        );
        let wanted = Wanted {
            devices: vec!["mlx5_7".into()],
            ..Wanted::default()
        };
        assert_eq!(told(&wanted, 1).verdict, Verdict::Problem);
        let closed = of_device(&machine().1, &inventory.devices[1]);
        assert_eq!(closed[0].verdict, Verdict::Problem);
    }
}
