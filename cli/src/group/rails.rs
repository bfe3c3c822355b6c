//! The addresses that a member publishes, and what of RDMA lies below them.

use std::net::IpAddr;

use forebay_membership::local::{LocalError, Network, addresses, published};
use forebay_transport_rdma::inventory::GroupAddress;

use crate::doctor::machine::Files;

/// The addresses that a member with a secret would publish; none on a machine that has but loopback ones.
///
/// # Errors
/// When `--group-ip` names no address of this machine.
pub fn group_addresses(
    files: &Files,
    networks: &[Network],
) -> Result<Vec<GroupAddress>, LocalError> {
    match published(networks, true) {
        Ok(ips) => with_interfaces(files, &ips),
        Err(LocalError::OnlyLoopback { .. }) if networks.is_empty() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Addresses of this machine, each with the InfiniBand port that carries it, if one does.
///
/// # Errors
/// When the machine's addresses cannot be listed.
pub fn with_interfaces(files: &Files, ips: &[IpAddr]) -> Result<Vec<GroupAddress>, LocalError> {
    let local = addresses()?;
    let with_interface = |ip: &IpAddr| {
        let interface = local.iter().find(|local| local.address == *ip);
        GroupAddress {
            ip: *ip,
            infiniband: interface.and_then(|local| infiniband_port(files, &local.interface)),
        }
    };
    Ok(ips.iter().map(with_interface).collect())
}

/// The InfiniBand device and port below an interface.
pub(crate) fn infiniband_port(files: &Files, interface: &str) -> Option<(String, u8)> {
    let directory = format!("/sys/class/net/{interface}");
    // ARPHRD_INFINIBAND: of RoCE the GID says more.
    (files.number(&format!("{directory}/type"))? == 32).then_some(())?;
    let device = files
        .names(&format!("{directory}/device/infiniband"))
        .into_iter()
        .next()?;
    let port = files.number(&format!("{directory}/dev_port")).unwrap_or(0);
    Some((device, u8::try_from(port + 1).ok()?))
}
