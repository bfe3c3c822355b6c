//! `forebay doctor` on a machine with a device.

use forebay_cli::doctor::finding::Verdict;
use forebay_cli::doctor::{Question, examine};
use forebay_transport_rdma::inventory::{GroupAddress, Inventory, Wanted, rail};

use super::pair::device;

#[test]
fn the_doctor_sees_the_device_and_finds_the_rail_of_its_address() {
    let Some((verbs, config)) = device() else {
        return;
    };
    let wanted = Wanted {
        devices: vec![config.device.clone()],
        port: Some(config.port),
        ..Wanted::default()
    };
    let question = Question {
        memory_bytes: 1 << 30,
        networks: Vec::new(),
        rdma: wanted.clone(),
    };
    let findings = examine(&question);
    let named = format!("{} port {}", config.device, config.port);
    let port = findings.iter().find(|finding| finding.object == named);
    let port = port.unwrap_or_else(|| panic!("nothing of {named}: {findings:?}"));
    assert!(
        matches!(port.verdict, Verdict::Ok | Verdict::Warning),
        "{port:?}"
    );
    assert!(port.found.contains("MTU"), "{port:?}");
    // The port's own address leads back to it, if it has one (InfiniBand: by its interface).
    let inventory = Inventory::take(&verbs).expect("the devices");
    let seen = inventory
        .devices
        .iter()
        .find(|seen| seen.name == config.device);
    let ports = seen.expect("the device").ports.as_ref().expect("its ports");
    let seen = ports.iter().find(|seen| seen.info.port == config.port);
    let gids = &seen.expect("the port").gids;
    let Some(ip) = gids
        .iter()
        .filter(|gid| gid.index == config.gid_index)
        .find_map(|gid| gid.address())
    else {
        return;
    };
    let address = GroupAddress {
        ip,
        infiniband: None,
    };
    let found = rail(&inventory, &wanted, &address).expect("a rail");
    assert_eq!((found.device, found.port), (config.device, config.port));
}
