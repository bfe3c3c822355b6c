//! What a PCI device is behind: whether programs may drive it, and whether an IOMMU stands between it and memory.

use std::fs;
use std::path::Path;

use crate::address::PciAddress;

/// The only driver by which a program gets a device with an IOMMU before it.
const VFIO: &str = "vfio-pci";
/// Those by which it gets one without.
const UIO: [&str; 2] = ["uio_pci_generic", "igb_uio"];
/// What VFIO names a group that it made up for a device without one.
const NO_IOMMU: &str = "vfio-noiommu";

/// What stands between a device and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// It reaches what it was given.
    Iommu,
    /// It reaches all memory, by physical addresses.
    Nothing,
}

/// Looks at one below `/sys`, or in tests something like it.
///
/// # Errors
/// What drives it instead of `vfio-pci`, for people.
pub(crate) fn look(sysfs: &Path, address: &PciAddress) -> Result<Behind, String> {
    let device = sysfs.join("bus/pci/devices").join(address.to_string());
    let link = |name: &str| {
        let target = fs::read_link(device.join(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    match link("driver") {
        Some(driver) if driver == VFIO => {}
        // It may be in a group: nobody fills that group's tables for it.
        Some(driver) if UIO.contains(&driver.as_str()) => return Ok(Behind::Nothing),
        Some(driver) => return Err(format!("is driven by `{driver}`")),
        None if device.exists() => return Err("has no driver".into()),
        None => return Err("is not there".into()),
    }
    let name = fs::read_to_string(device.join("iommu_group/name")).unwrap_or_default();
    Ok(match link("iommu_group") {
        Some(_) if name.trim() != NO_IOMMU => Behind::Iommu,
        _ => Behind::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A directory that is removed at its end.
    struct Machine(PathBuf);

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_vfio_with_a_real_group_is_behind_an_iommu() {
        let machine = Machine(std::env::temp_dir().join(format!("behind-{}", std::process::id())));
        let put = |address: &str, driver: Option<&str>, group: Option<&str>| {
            let device = machine.0.join("bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            if let Some(driver) = driver {
                symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
            }
            if let Some(name) = group {
                let at = machine.0.join(format!("kernel/iommu_groups/{address}"));
                fs::create_dir_all(&at).unwrap();
                fs::write(at.join("name"), format!("{name}\n")).unwrap();
                symlink(&at, device.join("iommu_group")).unwrap();
            }
        };
        put("0000:01:00.0", Some(VFIO), Some(""));
        put("0000:02:00.0", Some(VFIO), Some(NO_IOMMU));
        put("0000:03:00.0", Some(VFIO), None);
        put("0000:04:00.0", Some("uio_pci_generic"), Some(""));
        put("0000:05:00.0", Some("nvme"), Some(""));
        put("0000:06:00.0", None, Some(""));
        let at = |text: &str| look(&machine.0, &text.parse().unwrap());
        assert_eq!(at("01:00.0"), Ok(Behind::Iommu));
        assert_eq!(at("02:00.0"), Ok(Behind::Nothing));
        assert_eq!(at("03:00.0"), Ok(Behind::Nothing));
        assert_eq!(at("04:00.0"), Ok(Behind::Nothing));
        for (address, part) in [
            ("05:00.0", "`nvme`"),
            ("06:00.0", "no driver"),
            ("07:00.0", "not there"),
        ] {
            let why = at(address).unwrap_err();
            assert!(why.contains(part), "{address}: {why}");
        }
    }
}
