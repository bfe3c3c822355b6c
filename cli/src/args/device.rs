//! `forebay device`.

use clap::{Args, Subcommand};
use forebay_nvme_spdk::PciAddress;

/// `forebay device`.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Shows the NVMe controllers of this machine: their driver, their namespaces, and who uses them.
    List(DeviceListArgs),
    /// Takes controllers from the kernel and gives them to vfio-pci, so that a mount or member may drive them (--cache-dir
    /// pci:ADDRESS). Refuses what is mounted, swap, partitioned or otherwise in use. What is on them stays. Needs root.
    Bind(DeviceBindArgs),
    /// Gives controllers back to the kernel's driver. Refuses what a process drives. Needs root.
    Unbind(DeviceBindArgs),
}

/// `forebay device list`.
#[derive(Clone, Debug, Args)]
pub struct DeviceListArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `forebay device bind` and `unbind`.
#[derive(Clone, Debug, Args)]
pub struct DeviceBindArgs {
    /// PCI addresses of NVMe controllers, such as 0000:5e:00.0 or pci:0000:5e:00.0.
    #[arg(value_name = "ADDRESS", required = true, value_parser = parse_address)]
    pub addresses: Vec<PciAddress>,
}

fn parse_address(text: &str) -> Result<PciAddress, String> {
    let text = text.trim();
    let digits = text.strip_prefix("pci:").unwrap_or(text);
    digits
        .parse()
        .map_err(|error| format!("{error}; `forebay device list` shows those of NVMe controllers"))
}
