//! From the kernel's driver to `vfio-pci`, and back.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_nvme_spdk::PciAddress;

use super::controller::{Controller, KERNEL, Sysfs, VFIO};
use super::usage::{HeldBlocks, driven_by, hold};

/// How long the kernel may take to take a controller from its driver: it waits until nobody has it, which was looked at before.
const UNBIND_WAIT: Duration = Duration::from_secs(30);
const UNBIND_PAUSE: Duration = Duration::from_millis(10);

/// Has controllers driven by `vfio-pci`: all, or none. They may share an IOMMU group. Of each whether it was not before.
///
/// # Errors
/// Why they are left as they are, and what to do; what became of those that were moved already.
pub fn bind(sysfs: &Sysfs, controllers: &[Controller]) -> Result<Vec<bool>> {
    let together: Vec<PciAddress> = controllers.iter().map(|one| one.address).collect();
    // Held until all have moved.
    let mut ready = Vec::new();
    for controller in controllers {
        ready.push(check(sysfs, controller, &together)?);
    }
    let mut moved: Vec<(Before, &Controller)> = Vec::new();
    for (controller, held) in controllers.iter().zip(&mut ready) {
        let Some(held) = held.take() else { continue };
        let before = Before::of(controller);
        let outcome = to_driver(sysfs, controller, VFIO);
        drop(held);
        if let Err(error) = outcome {
            let address = controller.address;
            let mut said = before.restore(sysfs, controller);
            for (before, earlier) in moved.iter().rev() {
                let restored = before.restore(sysfs, earlier);
                said = format!(
                    "{said}. {}, which was moved before: {restored}",
                    earlier.address
                );
            }
            return Err(error)
                .with_context(|| format!("{address} cannot be bound to {VFIO}; {said}"));
        }
        moved.push((before, controller));
    }
    let is_moved = |one: &Controller| moved.iter().any(|(_, other)| other.address == one.address);
    Ok(controllers.iter().map(is_moved).collect())
}

/// Whether a controller may be moved to `vfio-pci`; what is held of it until it is. None when it was moved before. `together` are all that are to be.
fn check(
    sysfs: &Sysfs,
    controller: &Controller,
    together: &[PciAddress],
) -> Result<Option<HeldBlocks>> {
    let address = controller.address;
    if controller.driver.as_deref() == Some(VFIO) {
        return Ok(None);
    }
    leave_to_others(controller, KERNEL)?;
    let held = hold(sysfs, controller).map_err(|uses| {
        anyhow::anyhow!(
            "{address} is in use, and left as it is: {}. End that first; what is on it stays on it",
            uses.join("; ")
        )
    })?;
    if !sysfs.driver(VFIO).exists() {
        bail!("the kernel has no driver {VFIO}: load it with `modprobe {VFIO}`, then try again");
    }
    check_iommu(sysfs, controller, together)?;
    Ok(Some(held))
}

/// How a controller was, to be put back when it cannot be moved.
struct Before {
    driver: Option<String>,
    /// `driver_override`; `(null)` is none.
    only: String,
}

impl Before {
    fn of(controller: &Controller) -> Self {
        let only = fs::read_to_string(controller.dir.join("driver_override")).unwrap_or_default();
        Self {
            driver: controller.driver.clone(),
            only,
        }
    }

    /// What became of it, for people.
    fn restore(&self, sysfs: &Sysfs, controller: &Controller) -> String {
        let dir = &controller.dir;
        if let Some(driver) = &self.driver
            && self.driver != driver_of(controller)
        {
            let _ = to_driver(sysfs, controller, driver);
        }
        let only = match self.only.trim() {
            "" | "(null)" => "\n",
            only => only,
        };
        let path = dir.join("driver_override");
        let kept = fs::read_to_string(&path).unwrap_or_default();
        let restored = kept == self.only || fs::write(&path, only).is_ok();
        let left = match restored {
            true => String::new(),
            false => format!(", and {} stays set: write a line end to it", path.display()),
        };
        match driver_of(controller) {
            now if now == self.driver => format!("it is as it was{left}"),
            Some(now) => format!("`{now}` drives it now{left}"),
            None => format!("it has no driver now{left}"),
        }
    }
}

/// Who drives it now.
fn driver_of(controller: &Controller) -> Option<String> {
    let now = fs::read_link(controller.dir.join("driver")).ok()?;
    Some(now.file_name()?.to_string_lossy().into_owned())
}

/// Gives a controller back to the kernel's driver. False when that had it already.
///
/// # Errors
/// Why it is left as it is, and what to do.
pub fn unbind(sysfs: &Sysfs, controller: &Controller) -> Result<bool> {
    let address = controller.address;
    if controller.driver.as_deref() == Some(KERNEL) {
        return Ok(false);
    }
    leave_to_others(controller, VFIO)?;
    // The kernel would wait for it without end.
    if let Some(user) = driven_by(controller) {
        bail!("{address} is driven by {user}: end that first");
    }
    to_driver(sysfs, controller, KERNEL).with_context(|| {
        format!("{address} cannot be given to the kernel's driver `{KERNEL}` (is it loaded? `modprobe {KERNEL}`)")
    })?;
    Ok(true)
}

/// Refuses a controller that has another driver than `expected`: whoever gave it there (another SPDK, a hypervisor) may be using it.
fn leave_to_others(controller: &Controller, expected: &str) -> Result<()> {
    match controller.driver.as_deref() {
        Some(driver) if driver != expected => bail!(
            "{} is driven by `{driver}`, and left as it is: it is moved between `{KERNEL}` and {VFIO} only. Whoever gave it there can take it back",
            controller.address
        ),
        _ => Ok(()),
    }
}

/// Whether programs may drive it: only behind an IOMMU does a device reach no other memory than it was given.
fn check_iommu(sysfs: &Sysfs, controller: &Controller, together: &[PciAddress]) -> Result<()> {
    let address = controller.address;
    if controller.group.is_none() {
        let unsafe_mode = sysfs
            .0
            .join("module/vfio/parameters/enable_unsafe_noiommu_mode");
        let allowed = fs::read_to_string(&unsafe_mode).unwrap_or_default();
        if !["Y", "1"].contains(&allowed.trim()) {
            bail!(
                "{address} is behind no IOMMU, so {VFIO} does not take it: switch the IOMMU on (VT-d or AMD-Vi in the firmware, and `intel_iommu=on` \
                 or `amd_iommu=on` for the kernel) and start the machine again. Where that cannot be, give the kernel's device as --cache-dir, such as /dev/nvme0n1"
            );
        }
        return Ok(());
    }
    let together: Vec<String> = together.iter().map(PciAddress::to_string).collect();
    let others: Vec<String> = sysfs
        .neighbours(controller)
        .into_iter()
        .filter(|(name, _)| !together.contains(name))
        .filter_map(|(name, driver)| {
            let driver = driver.filter(|driver| !may_share(driver))?;
            Some(format!("{name} ({driver})"))
        })
        .collect();
    if !others.is_empty() {
        bail!(
            "{address} shares its IOMMU group with {}: {VFIO} gives a program the whole group or nothing. Put it into another slot, or give those to {VFIO} too (NVMe controllers by naming all of them in this command)",
            others.join(", ")
        );
    }
    Ok(())
}

/// Drivers beside which a program gets a group.
fn may_share(driver: &str) -> bool {
    ["vfio-pci", "pci-stub", "pcieport"].contains(&driver)
}

/// Takes a controller from its driver and has it looked for by this one alone.
fn to_driver(sysfs: &Sysfs, controller: &Controller, driver: &str) -> Result<()> {
    let (dir, address) = (&controller.dir, controller.address.to_string());
    // Any driver that knows it, for the kernel's own.
    let only = if driver == KERNEL { "\n" } else { driver };
    write(&dir.join("driver_override"), only)?;
    if let Some(before) = driver_of(controller) {
        let path = dir.join("driver/unbind");
        if !write_within(&path, &address, UNBIND_WAIT)? {
            let user = driven_by(controller).unwrap_or_else(|| "another process".into());
            bail!(
                "the kernel has not taken it from `{before}` in {} s: {user} has it. It is taken as soon as that ends, and has no driver then: give it one by this command again",
                UNBIND_WAIT.as_secs()
            );
        }
    }
    write(&sysfs.0.join("bus/pci/drivers_probe"), &address)?;
    match driver_of(controller) {
        Some(now) if now == driver => Ok(()),
        Some(now) => bail!("driver {now} took it"),
        None => bail!("no driver took it: the kernel's log (`dmesg`) may say why"),
    }
}

/// Writes what the kernel may answer late, or never: whoever waits for that cannot be ended, so another process does. False when it still waits.
fn write_within(path: &Path, text: &str, wait: Duration) -> Result<bool> {
    let file = File::options().write(true).open(path);
    let file = file.map_err(|error| not_written(path, &error))?;
    let mut writer = Command::new("printf");
    writer.args(["%s", text]).stdout(file);
    let spawned = writer.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = match spawned {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return write(path, text).map(|()| true);
        }
        child => child.context("cannot start `printf`")?,
    };
    let last = Instant::now() + wait;
    while Instant::now() < last {
        if let Some(status) = child.try_wait()? {
            let mut said = String::new();
            let stderr = child.stderr.take();
            stderr.map(|mut stderr| stderr.read_to_string(&mut said));
            if !status.success() {
                bail!("cannot write to {}: {}", path.display(), said.trim());
            }
            return Ok(true);
        }
        std::thread::sleep(UNBIND_PAUSE);
    }
    Ok(false)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| not_written(path, &error))
}

fn not_written(path: &Path, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            anyhow::anyhow!(
                "cannot write to {} ({error}): drivers are changed by root",
                path.display()
            )
        }
        _ => anyhow::anyhow!("cannot write to {}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::controller::tests::machine;
    use super::*;

    fn controller(sysfs: &Sysfs, address: &str) -> Controller {
        sysfs.controller(address.parse().unwrap()).unwrap()
    }

    fn bound(sysfs: &Sysfs, controller: &Controller) -> Result<bool> {
        bind(sysfs, std::slice::from_ref(controller)).map(|bound| bound[0])
    }

    #[test]
    fn what_is_in_use_or_not_alone_is_left_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        let mut first = controller(&sysfs, "5e:00.0");
        let error = bound(&sysfs, &first).unwrap_err().to_string();
        assert!(
            error.contains("left as it is") && error.contains("partitions"),
            "{error}"
        );
        first.blocks.clear();
        let error = bound(&sysfs, &first).unwrap_err().to_string();
        assert!(error.contains("modprobe vfio-pci"), "{error}");
        fs::create_dir_all(sysfs.driver(VFIO)).unwrap();
        let error = bound(&sysfs, &first).unwrap_err().to_string();
        assert!(error.contains("0000:60:00.0 (mlx5_core)"), "{error}");
        first.group = None;
        let error = bound(&sysfs, &first).unwrap_err().to_string();
        assert!(
            error.contains("no IOMMU") && error.contains("intel_iommu=on"),
            "{error}"
        );
        assert!(
            !root.path().join("bus/pci/drivers_probe").exists(),
            "nothing was written"
        );
    }

    #[test]
    fn what_another_driver_has_stays_there() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        fs::create_dir_all(sysfs.driver(VFIO)).unwrap();
        for driver in ["uio_pci_generic", "pci-stub", "xen-pciback"] {
            let mut second = controller(&sysfs, "5f:00.0");
            second.driver = Some(driver.to_owned());
            for moved in [bound(&sysfs, &second), unbind(&sysfs, &second)] {
                let error = moved.unwrap_err().to_string();
                assert!(
                    error.contains(driver) && error.contains("left as it is"),
                    "{error}"
                );
            }
        }
        assert!(
            !root.path().join("bus/pci/drivers_probe").exists(),
            "nothing was written"
        );
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unbind");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut options = File::options();
        let full = std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
        let mut full = full.read(true).write(true).open(&path).unwrap();
        while io::Write::write(&mut full, &[0; 4096]).is_ok() {}
        assert!(!write_within(&path, "x", Duration::from_millis(50)).unwrap());
        while full.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 1) {}
        assert!(write_within(&path, "x", Duration::from_secs(60)).unwrap());
        let nowhere = write_within(&dir.path().join("no"), "x", Duration::ZERO);
        assert!(nowhere.unwrap_err().to_string().contains("cannot write to"));
        let full = write_within(Path::new("/dev/full"), "x", Duration::from_secs(60));
        assert!(full.unwrap_err().to_string().contains("No space"));
    }

    #[test]
    fn nothing_is_done_twice() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        assert!(!bound(&sysfs, &controller(&sysfs, "5f:00.0")).unwrap());
        assert!(!unbind(&sysfs, &controller(&sysfs, "5e:00.0")).unwrap());
    }

    #[test]
    fn those_of_one_group_are_bound_together() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        fs::create_dir_all(sysfs.driver(VFIO)).unwrap();
        let mut first = controller(&sysfs, "5e:00.0");
        first.blocks.clear();
        let alone = format!("{:#}", bound(&sysfs, &first).unwrap_err());
        assert!(alone.contains("shares its IOMMU group"), "{alone}");
        let mut neighbour = controller(&sysfs, "5f:00.0");
        neighbour.address = "60:00.0".parse().unwrap();
        // There is no kernel behind these files that would move it: but nothing holds it back.
        let both = [first, neighbour];
        let together = format!("{:#}", bind(&sysfs, &both).unwrap_err());
        assert!(
            together.contains("0000:5e:00.0 cannot be bound to vfio-pci"),
            "{together}"
        );
    }

    #[test]
    fn nothing_is_moved_when_one_of_them_cannot_be() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        fs::create_dir_all(sysfs.driver(VFIO)).unwrap();
        let mut first = controller(&sysfs, "5e:00.0");
        first.blocks.clear();
        first.group = Some("9".into());
        let mut foreign = controller(&sysfs, "5f:00.0");
        foreign.driver = Some("xen-pciback".into());
        let used = controller(&sysfs, "5e:00.0");
        for (second, why) in [(foreign, "xen-pciback"), (used, "partitions")] {
            let error = bind(&sysfs, &[first.clone(), second]).unwrap_err();
            let said = format!("{error:#}");
            assert!(
                said.contains(why) && !said.contains("cannot be bound"),
                "{said}"
            );
            assert!(
                !root.path().join("bus/pci/drivers_probe").exists(),
                "nothing was written"
            );
        }
    }

    #[test]
    fn what_cannot_be_bound_is_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = machine(root.path());
        fs::create_dir_all(sysfs.driver(VFIO)).unwrap();
        for (driver, only, kept) in [
            (None, "(null)\n", "\n"),
            (None, "pci-stub\n", "pci-stub"),
            (Some(KERNEL), "(null)\n", "\n"),
        ] {
            let mut second = controller(&sysfs, "5f:00.0");
            second.group = Some("9".into());
            second.driver = driver.map(str::to_owned);
            let link = second.dir.join("driver");
            let _ = fs::remove_file(&link);
            if let Some(driver) = driver {
                std::os::unix::fs::symlink(format!("../../drivers/{driver}"), &link).unwrap();
            }
            // Nobody here takes what is written: the driver stays what it is.
            fs::create_dir_all(root.path().join("bus/pci/drivers").join(KERNEL)).unwrap();
            let path = second.dir.join("driver_override");
            fs::write(&path, only).unwrap();
            let error = format!("{:#}", bound(&sysfs, &second).unwrap_err());
            assert!(error.contains("it is as it was"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), kept);
        }
    }
}
