//! `forebay device`: NVMe controllers, and who drives them.

use anyhow::{Result, bail};
use serde::Serialize;

use crate::args::{DeviceBindArgs, DeviceCommand, DeviceListArgs};
use crate::device::binding;
use crate::device::controller::{Controller, KERNEL, Sysfs, VFIO};
use crate::device::usage::{driven_by, uses};
use crate::output::{json, print, table};
use crate::units::Bytes;

/// Runs one of the commands.
///
/// # Errors
/// What is left as it is, why, and what to do.
pub fn run(command: &DeviceCommand) -> Result<()> {
    let sysfs = Sysfs::here();
    match command {
        DeviceCommand::List(args) => list(&sysfs, args),
        DeviceCommand::Bind(args) => bind(&sysfs, args),
        DeviceCommand::Unbind(args) => each(&sysfs, args, |controller| {
            Ok(match binding::unbind(&sysfs, controller)? {
                true => format!("given back to the kernel's driver `{KERNEL}`"),
                false => format!("is driven by the kernel's `{KERNEL}` already"),
            })
        }),
    }
}

/// All of them, or none.
fn bind(sysfs: &Sysfs, args: &DeviceBindArgs) -> Result<()> {
    let mut controllers: Vec<Controller> = Vec::new();
    for address in &args.addresses {
        if controllers.iter().all(|one| one.address != *address) {
            controllers.push(sysfs.controller(*address)?);
        }
    }
    for (controller, moved) in controllers.iter().zip(binding::bind(sysfs, &controllers)?) {
        let address = controller.address;
        let done = match moved {
            true => format!(
                "bound to {VFIO}: give it as --cache-dir pci:{address}; `forebay device unbind` gives it back"
            ),
            false => format!("is bound to {VFIO} already"),
        };
        print(&format!("{address} {done}\n"))?;
    }
    Ok(())
}

/// All of them, also after one that fails.
fn each(
    sysfs: &Sysfs,
    args: &DeviceBindArgs,
    change: impl Fn(&Controller) -> Result<String>,
) -> Result<()> {
    let mut failed = 0;
    for address in &args.addresses {
        match sysfs.controller(*address).and_then(|one| change(&one)) {
            Ok(done) => drop(print(&format!("{address} {done}\n"))?),
            Err(error) if args.addresses.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                eprintln!("forebay: {error:#}");
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => bail!(
            "{failed} of {} devices are as they were",
            args.addresses.len()
        ),
    }
}

/// A row.
#[derive(Debug, Serialize)]
struct Row {
    address: String,
    driver: Option<String>,
    model: String,
    serial: String,
    iommu_group: Option<String>,
    namespaces: Vec<Namespace>,
    /// Why it cannot be bound to vfio-pci, or given back, now.
    uses: Vec<String>,
}

/// A namespace as the kernel has it.
#[derive(Debug, Serialize)]
struct Namespace {
    name: String,
    size_bytes: u64,
}

impl Row {
    fn of(sysfs: &Sysfs, controller: &Controller) -> Self {
        let namespaces = controller.blocks.iter().map(|name| Namespace {
            name: name.clone(),
            size_bytes: sysfs.block_bytes(name),
        });
        let driven = driven_by(controller).map(|user| format!("driven by {user}"));
        Self {
            address: controller.address.to_string(),
            driver: controller.driver.clone(),
            model: controller.model.clone(),
            serial: controller.serial.clone(),
            iommu_group: controller.group.clone(),
            namespaces: namespaces.collect(),
            uses: uses(sysfs, controller).into_iter().chain(driven).collect(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let or_none = |text: &str| match text {
            "" => "-".to_owned(),
            text => text.to_owned(),
        };
        let namespaces = self
            .namespaces
            .iter()
            .map(|one| format!("{} {}", one.name, Bytes(one.size_bytes)));
        vec![
            self.address.clone(),
            or_none(self.driver.as_deref().unwrap_or_default()),
            or_none(&self.model),
            or_none(&self.serial),
            or_none(self.iommu_group.as_deref().unwrap_or_default()),
            or_none(&namespaces.collect::<Vec<_>>().join(", ")),
            match self.uses.as_slice() {
                [] => "free".into(),
                uses => uses.join("; "),
            },
        ]
    }
}

fn list(sysfs: &Sysfs, args: &DeviceListArgs) -> Result<()> {
    let controllers = sysfs.controllers()?;
    let rows: Vec<Row> = controllers.iter().map(|one| Row::of(sysfs, one)).collect();
    if args.json {
        return print(&json(&rows, true)?).map(drop);
    }
    if rows.is_empty() {
        return print("this machine has no NVMe controller\n").map(drop);
    }
    let head = [
        "ADDRESS",
        "DRIVER",
        "MODEL",
        "SERIAL",
        "IOMMU",
        "NAMESPACES",
        "USE",
    ];
    let head = vec![head.map(str::to_owned).to_vec()];
    let lines: Vec<Vec<String>> = head
        .into_iter()
        .chain(rows.iter().map(Row::cells))
        .collect();
    print(&table(&lines, &[])).map(drop)
}
