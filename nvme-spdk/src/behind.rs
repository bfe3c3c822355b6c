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

/// A controller's registers and first doorbells.
const REGISTERS_BYTES_MIN: usize = 8192;

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

/// Bytes of a device's first range of addresses, where its registers are; the least that a controller has where that is not told.
pub(crate) fn registers_bytes(sysfs: &Path, address: &PciAddress) -> usize {
    let device = sysfs.join("bus/pci/devices").join(address.to_string());
    let text = fs::read_to_string(device.join("resource")).unwrap_or_default();
    let number = |word: &str| usize::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let mut words = text.split_whitespace().map_while(number);
    let bytes = match (words.next(), words.next()) {
        (Some(first), Some(last)) if last > first => last - first + 1,
        _ => 0,
    };
    bytes.max(REGISTERS_BYTES_MIN)
}

/// Why SPDK may not drive a device that has the right driver, and what to do. `all` are this process's.
pub(crate) fn why_not_attached(sysfs: &Path, address: &PciAddress, all: &[PciAddress]) -> String {
    let group = sysfs.join(format!("bus/pci/devices/{address}/iommu_group"));
    let kind = fs::read_to_string(group.join("type")).unwrap_or_default();
    let mine = look(sysfs, address);
    // It would be given physical addresses, which the IOMMU does not know.
    if mine == Ok(Behind::Nothing) && kind.trim().starts_with("DMA") {
        return format!(
            "an IOMMU stands before it, and its driver does not tell that one what it may reach: `forebay device unbind`, then `forebay device bind {address}`"
        );
    }
    let other = |one: &&PciAddress| look(sysfs, one).is_ok_and(|behind| mine != Ok(behind));
    if let (Ok(mine), Some(other)) = (&mine, all.iter().find(other)) {
        let (mine, theirs) = match mine {
            Behind::Iommu => ("an IOMMU", "none"),
            Behind::Nothing => ("no IOMMU", "one"),
        };
        return format!(
            "{mine} stands before it, and {theirs} before {other}: SPDK drives only one of both kinds in a process. Give the kernel's device for one, such as /dev/nvme0n1"
        );
    }
    "see that no other process drives it, and what SPDK said above".into()
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

    #[test]
    fn the_length_of_the_registers_is_the_kernels() {
        let machine = Machine(std::env::temp_dir().join(format!("bar-{}", std::process::id())));
        let address = "0000:01:00.0".parse().unwrap();
        let device = machine.0.join("bus/pci/devices/0000:01:00.0");
        fs::create_dir_all(&device).unwrap();
        let with = |text: &str| {
            fs::write(device.join("resource"), text).unwrap();
            registers_bytes(&machine.0, &address)
        };
        let line = "0x0000004000000000 0x0000004000003fff 0x0000000000140204\n";
        assert_eq!(with(line), 16 << 10);
        for text in ["", "0x0 0x0 0x0\n", "0x5 0x1 0x0\n", "x y z\n"] {
            assert_eq!(with(text), 8192, "{text}");
        }
        assert_eq!(
            registers_bytes(&machine.0, &"02:00.0".parse().unwrap()),
            8192
        );
    }

    #[test]
    fn what_one_process_cannot_drive_is_told() {
        let machine = Machine(std::env::temp_dir().join(format!("mixed-{}", std::process::id())));
        let put = |address: &str, driver: &str, kind: Option<&str>| {
            let device = machine.0.join("bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
            if let Some(kind) = kind {
                let group = machine.0.join(format!("kernel/iommu_groups/{address}"));
                fs::create_dir_all(&group).unwrap();
                fs::write(group.join("type"), format!("{kind}\n")).unwrap();
                symlink(&group, device.join("iommu_group")).unwrap();
            }
            address.parse::<PciAddress>().unwrap()
        };
        let behind = put("0000:01:00.0", VFIO, Some("DMA"));
        let also = put("0000:02:00.0", VFIO, Some("DMA-FQ"));
        let bare = put("0000:03:00.0", UIO[0], None);
        let through = put("0000:04:00.0", UIO[0], Some("identity"));
        let stopped = put("0000:05:00.0", UIO[0], Some("DMA-FQ"));
        let why = |one: &PciAddress, all: &[PciAddress]| why_not_attached(&machine.0, one, all);
        assert!(why(&behind, &[behind, also]).contains("no other process"));
        assert!(why(&bare, &[bare, through]).contains("no other process"));
        let said = why(&behind, &[behind, bare]);
        assert!(said.contains("none before 0000:03:00.0"), "{said}");
        let said = why(&through, &[behind, through]);
        assert!(said.contains("one before 0000:01:00.0"), "{said}");
        assert!(why(&stopped, &[stopped]).contains("device bind 0000:05:00.0"));
    }
}
