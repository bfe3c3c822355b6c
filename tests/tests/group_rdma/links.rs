//! A device to test on, and what members say of their links.

use std::net::IpAddr;

use forebay_cli::group::report::LinkReport;
use forebay_transport_rdma::Verbs;

use super::cluster::Cluster;
use super::support::have_fuse;

/// The address of the device that `FOREBAY_RDMA_DEVICE` names, and flags that make members use it. Without that name,
/// or without FUSE, the test is left out.
pub fn device() -> Option<(IpAddr, Vec<String>)> {
    let Ok(name) = std::env::var("FOREBAY_RDMA_DEVICE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_DEVICE names no RDMA device: no group spoke RDMA here (ci/softroce does, in a guest)"
        );
        return None;
    };
    if !have_fuse() {
        println!("SKIPPED: no FUSE");
        return None;
    }
    let number = |variable: &str| match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number up to 255")),
        Err(_) => 1,
    };
    let (port, gid_index) = (
        number("FOREBAY_RDMA_PORT"),
        number("FOREBAY_RDMA_GID_INDEX"),
    );
    let device = Verbs::load().expect("libibverbs").open(&name);
    let at = device.expect("the device").port_address(port, gid_index);
    let ip = at.expect("an address").gid.ip();
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    let flags = [
        "--group-ip".to_owned(),
        ip.to_string(),
        "--rdma-device".to_owned(),
        name,
    ];
    Some((ip, flags.into()))
}

/// The links that a daemon asks on by a transport.
pub fn asked_by(cluster: &Cluster, name: &str, transport: &str) -> Vec<LinkReport> {
    let text = cluster.place.run(&["status", name, "--json"]).ok().text();
    let status: forebay_cli::control::report::StatusReport =
        serde_json::from_str(&text).expect("a report");
    let links = status.group.expect("a group").links;
    let wanted = |link: &LinkReport| link.asks && link.transport == transport;
    links.into_iter().filter(wanted).collect()
}

/// Bytes that came over such links.
pub fn received_bytes(cluster: &Cluster, name: &str, transport: &str) -> u64 {
    let links = asked_by(cluster, name, transport);
    links.iter().map(|link| link.received_bytes).sum()
}
