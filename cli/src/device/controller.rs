//! NVMe controllers, by what the kernel shows of its PCI devices.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use forebay_nvme_spdk::PciAddress;

/// What a PCI device's class begins with that is an NVMe controller: mass storage, non-volatile memory.
const CLASS: &str = "0x0108";
/// The driver by which programs drive a device themselves.
pub const VFIO: &str = "vfio-pci";
/// The kernel's own.
pub const KERNEL: &str = "nvme";

/// A controller.
#[derive(Clone, Debug)]
pub struct Controller {
    /// Where it is.
    pub address: PciAddress,
    /// Its directory below `/sys`.
    pub dir: PathBuf,
    /// Its driver's name, when it has one.
    pub driver: Option<String>,
    /// As its vendor calls it; only the kernel's driver tells. Its numbers otherwise.
    pub model: String,
    /// Its serial number; empty where the kernel's driver does not tell.
    pub serial: String,
    /// The kernel's block devices of it, by name: `nvme0n1`.
    pub blocks: Vec<String>,
    /// The number of its IOMMU group, which is what a program gets hold of; none without an IOMMU.
    pub group: Option<String>,
}

/// What the kernel shows: `/sys`, or in tests something like it.
#[derive(Clone, Debug)]
pub struct Sysfs(pub PathBuf);

impl Sysfs {
    /// This machine's.
    pub fn here() -> Self {
        Self("/sys".into())
    }

    fn devices(&self) -> PathBuf {
        self.0.join("bus/pci/devices")
    }

    /// A driver's directory.
    pub fn driver(&self, name: &str) -> PathBuf {
        self.0.join("bus/pci/drivers").join(name)
    }

    /// All NVMe controllers, by address.
    ///
    /// # Errors
    /// When the kernel shows no PCI devices.
    pub fn controllers(&self) -> Result<Vec<Controller>> {
        let dir = self.devices();
        let entries = fs::read_dir(&dir)
            .with_context(|| format!("cannot list PCI devices in {}", dir.display()))?;
        let mut found: Vec<Controller> = entries
            .flatten()
            .filter(|entry| text(&entry.path().join("class")).starts_with(CLASS))
            .filter_map(|entry| self.look(&entry.path()))
            .collect();
        found.sort_by_key(|controller| controller.address);
        Ok(found)
    }

    /// The controller at an address.
    ///
    /// # Errors
    /// When there is no device, or another kind of one.
    pub fn controller(&self, address: PciAddress) -> Result<Controller> {
        let dir = self.devices().join(address.to_string());
        if !dir.exists() {
            bail!(
                "there is no PCI device {address}: `forebay device list` shows the NVMe controllers of this machine"
            );
        }
        let class = text(&dir.join("class"));
        if !class.starts_with(CLASS) {
            bail!("{address} is no NVMe controller (its class is {class}): it is left as it is");
        }
        self.look(&dir)
            .with_context(|| format!("cannot look at {}", dir.display()))
    }

    fn look(&self, dir: &Path) -> Option<Controller> {
        let address = dir.file_name()?.to_str()?.parse().ok()?;
        let kernel = first(&dir.join("nvme"));
        let said = |name: &str| {
            kernel
                .as_ref()
                .map_or(String::new(), |at| text(&at.join(name)))
        };
        let numbers = || {
            format!(
                "{}:{}",
                text(&dir.join("vendor")),
                text(&dir.join("device"))
            )
        };
        Some(Controller {
            address,
            driver: link(&dir.join("driver")),
            model: match said("model") {
                model if model.is_empty() => numbers(),
                model => model,
            },
            serial: said("serial"),
            blocks: kernel.as_ref().map_or_else(Vec::new, |at| self.blocks(at)),
            group: link(&dir.join("iommu_group")),
            dir: dir.to_owned(),
        })
    }

    /// The block devices of a controller of the kernel's. With several paths to a namespace its block device is not below
    /// the controller, but named after the subsystem, and the controller has one whose name has a `c` in it.
    fn blocks(&self, controller: &Path) -> Vec<String> {
        let mut found: Vec<String> = names(controller)
            .into_iter()
            .filter(|name| name.starts_with("nvme") && name.contains('n'))
            .filter_map(|name| match shared(&name) {
                None => Some(name),
                Some(shared) => self
                    .0
                    .join("class/block")
                    .join(&shared)
                    .exists()
                    .then_some(shared),
            })
            .filter(|name| self.0.join("class/block").join(name).exists())
            .collect();
        found.sort();
        found
    }

    /// A block device's size.
    pub fn block_bytes(&self, block: &str) -> u64 {
        let sectors = text(&self.0.join("class/block").join(block).join("size"));
        sectors.parse::<u64>().unwrap_or(0).saturating_mul(512)
    }

    /// The partitions of a block device.
    pub fn partitions(&self, block: &str) -> Vec<String> {
        let dir = self.0.join("class/block").join(block);
        let mut found = names(&dir);
        found.retain(|name| dir.join(name).join("partition").exists());
        found.sort();
        found
    }

    /// What lies upon a block device or partition: RAID, LVM, encryption.
    pub fn holders(&self, block: &str) -> Vec<String> {
        let mut found = names(&self.0.join("class/block").join(block).join("holders"));
        found.sort();
        found
    }

    /// Other devices of an IOMMU group: a program gets a group as a whole.
    pub fn neighbours(&self, controller: &Controller) -> Vec<(String, Option<String>)> {
        let Some(group) = &controller.group else {
            return Vec::new();
        };
        let dir = self
            .0
            .join("kernel/iommu_groups")
            .join(group)
            .join("devices");
        let mut found: Vec<_> = names(&dir)
            .into_iter()
            .filter(|name| *name != controller.address.to_string())
            .map(|name| {
                let driver = link(&self.devices().join(&name).join("driver"));
                (name, driver)
            })
            .collect();
        found.sort();
        found
    }
}

/// `nvme0n1` for `nvme0c2n1`, a path to it.
fn shared(name: &str) -> Option<String> {
    let (subsystem, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (_, namespace) = rest.split_once('n')?;
    Some(format!("nvme{subsystem}n{namespace}"))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn first(dir: &Path) -> Option<PathBuf> {
    names(dir).into_iter().min().map(|name| dir.join(name))
}

/// The last part of what a link leads to.
fn link(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    target
        .file_name()
        .and_then(OsStr::to_str)
        .map(str::to_owned)
}

fn text(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine with two NVMe controllers, one for programs, and a network card in the group of the first.
    pub fn machine(root: &Path) -> Sysfs {
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let lead = |path: &str, to: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(to, path).unwrap();
        };
        let first = "bus/pci/devices/0000:5e:00.0";
        put(&format!("{first}/class"), "0x010802\n");
        put(&format!("{first}/vendor"), "0x8086\n");
        put(&format!("{first}/device"), "0x0a54\n");
        put(&format!("{first}/nvme/nvme0/model"), "FAST 3000   \n");
        put(&format!("{first}/nvme/nvme0/serial"), "S1\n");
        put(&format!("{first}/nvme/nvme0/nvme0n1/size"), "2048\n");
        put(&format!("{first}/nvme/nvme0/nvme0c0n2/size"), "4096\n");
        put("class/block/nvme0n1/size", "2048\n");
        put("class/block/nvme0n1/nvme0n1p1/partition", "1\n");
        put("class/block/nvme0n1p1/size", "1024\n");
        put("class/block/nvme0n2/size", "4096\n");
        put("class/block/nvme0n2/holders/dm-0/x", "");
        lead(&format!("{first}/driver"), "../../drivers/nvme");
        lead(
            &format!("{first}/iommu_group"),
            "../../kernel/iommu_groups/7",
        );
        let second = "bus/pci/devices/0000:5f:00.0";
        put(&format!("{second}/class"), "0x010802\n");
        put(&format!("{second}/vendor"), "0x144d\n");
        put(&format!("{second}/device"), "0xa808\n");
        lead(&format!("{second}/driver"), "../../drivers/vfio-pci");
        put("bus/pci/devices/0000:60:00.0/class", "0x020000\n");
        lead(
            "bus/pci/devices/0000:60:00.0/driver",
            "../../drivers/mlx5_core",
        );
        for member in ["0000:5e:00.0", "0000:60:00.0"] {
            put(&format!("kernel/iommu_groups/7/devices/{member}/x"), "");
        }
        Sysfs(root.to_owned())
    }

    #[test]
    fn controllers_are_found_with_what_the_kernel_has_of_them() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        let all = sysfs.controllers().unwrap();
        let [first, second] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!(first.address.to_string(), "0000:5e:00.0");
        assert_eq!(
            (first.model.as_str(), first.serial.as_str()),
            ("FAST 3000", "S1")
        );
        assert_eq!(first.driver.as_deref(), Some(KERNEL));
        assert_eq!(first.blocks, ["nvme0n1", "nvme0n2"]);
        assert_eq!(sysfs.block_bytes("nvme0n1"), 1 << 20);
        assert_eq!(sysfs.partitions("nvme0n1"), ["nvme0n1p1"]);
        assert_eq!(sysfs.holders("nvme0n2"), ["dm-0"]);
        let neighbours = sysfs.neighbours(first);
        assert_eq!(
            neighbours,
            [("0000:60:00.0".to_owned(), Some("mlx5_core".to_owned()))]
        );
        assert_eq!(second.driver.as_deref(), Some(VFIO));
        assert_eq!(second.model, "0x144d:0xa808");
        assert!(second.blocks.is_empty() && second.group.is_none());
    }

    #[test]
    fn what_is_no_controller_is_told() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        let error = |text: &str| {
            let address = text.parse().unwrap();
            sysfs.controller(address).unwrap_err().to_string()
        };
        assert!(error("0000:60:00.0").contains("no NVMe controller"));
        assert!(error("0000:61:00.0").contains("device list"));
        sysfs.controller("5e:00.0".parse().unwrap()).unwrap();
    }
}
