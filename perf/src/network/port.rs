//! The RDMA port that is measured.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use forebay_transport_rdma::Verbs;
use forebay_transport_rdma::inventory::{Inventory, Rail};

/// The variable that names the device; the tests' as well.
pub(super) const DEVICE: &str = "FOREBAY_RDMA_DEVICE";

/// Which port, by which of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// The port; the first is 1.
    pub number: u8,
    /// Entry of the port's table of GIDs.
    pub gid_index: u8,
    /// The IP address that rdma_cm finds it by.
    pub ip: IpAddr,
}

/// Where a port is named on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct PortArgs {
    /// RDMA figures: measure on this device of this machine. Default: on SoftRoCE, in a guest that is booted for it.
    #[arg(long, global = true, env = DEVICE)]
    device: Option<String>,
    /// Its port.
    #[arg(long, global = true, env = "FOREBAY_RDMA_PORT", default_value_t = 1)]
    port: u8,
    /// The port's GID.
    #[arg(
        long,
        global = true,
        env = "FOREBAY_RDMA_GID_INDEX",
        default_value_t = 1
    )]
    gid_index: u8,
    /// The port's IP address, where its GID is none (InfiniBand).
    #[arg(long, global = true, env = "FOREBAY_RDMA_ADDRESS")]
    address: Option<IpAddr>,
}

impl PortArgs {
    /// The port; none when no device is named.
    ///
    /// # Errors
    /// When there is none such, or nothing says its address.
    pub fn port(&self) -> Result<Option<Port>> {
        let Some(device) = self.device.clone() else {
            return Ok(None);
        };
        let (number, gid_index) = (self.port, self.gid_index);
        let ip = match self.address {
            Some(ip) => ip,
            None => address(&device, number, gid_index)?,
        };
        Ok(Some(Port {
            device,
            number,
            gid_index,
            ip,
        }))
    }
}

fn address(device: &str, number: u8, gid_index: u8) -> Result<IpAddr> {
    let inventory = Inventory::take(&Verbs::load()?)?;
    let found = inventory.devices.iter().find(|seen| seen.name == device);
    let found = found.with_context(|| format!("this machine has no RDMA device {device}"))?;
    let mut ports = found.ports.iter().flatten();
    let port = ports.find(|seen| seen.info.port == number);
    let port = port.with_context(|| format!("{device} has no port {number}"))?;
    let mut gids = port.gids.iter();
    let gid = gids.find(|gid| gid.index == gid_index);
    let ip = gid.and_then(|gid| gid.address());
    let ip = ip.with_context(|| {
        format!("GID {gid_index} of {device} port {number} is no IP address: give --address")
    })?;
    ensure!(
        port.info.active,
        "{device} port {number} is down: set its link up"
    );
    Ok(ip)
}

impl Port {
    /// As a member's.
    pub(super) fn rail(&self) -> Rail {
        Rail {
            device: self.device.clone(),
            port: self.number,
            gid_index: self.gid_index,
            gid: None,
            forces_gid: false,
            ip: self.ip,
            // Processors are chosen before.
            node: None,
            marking: Default::default(),
        }
    }

    /// That name it to another process of this program.
    pub(super) fn arguments(&self) -> [String; 8] {
        [
            "--device".into(),
            self.device.clone(),
            "--port".into(),
            self.number.to_string(),
            "--gid-index".into(),
            self.gid_index.to_string(),
            "--address".into(),
            self.ip.to_string(),
        ]
    }
}
