//! Who uses a controller.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::controller::{Controller, Sysfs};
use crate::mounts;

/// Users that are named.
const NAMED_MAX: usize = 4;

/// Block devices that are held, so that nobody begins to use them.
#[derive(Debug, Default)]
pub struct HeldBlocks(#[expect(dead_code, reason = "held")] Vec<File>);

/// Why the kernel's driver must keep a controller: what is mounted, swapped to, built or laid out on its namespaces. Nothing
/// of that can begin as long as what is given back is held.
///
/// # Errors
/// A sentence for each use.
pub fn hold(sysfs: &Sysfs, controller: &Controller) -> Result<HeldBlocks, Vec<String>> {
    let mut uses = Vec::new();
    let mut held = Vec::new();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for block in &controller.blocks {
        let before = uses.len();
        let partitions = sysfs.partitions(block);
        if !partitions.is_empty() {
            uses.push(format!(
                "/dev/{block} has partitions ({})",
                partitions.join(", ")
            ));
        }
        for name in std::iter::once(block).chain(&partitions) {
            let path = PathBuf::from(format!("/dev/{name}"));
            uses.extend(mount_of(&path));
            if is_swap(&swaps, &path) {
                uses.push(format!("{} is swap", path.display()));
            }
            let holders = sysfs.holders(name);
            if !holders.is_empty() {
                uses.push(format!(
                    "{} is part of {}",
                    path.display(),
                    holders.join(", ")
                ));
            }
        }
        // What else has it, such as a member of a cache group. Whether it can be had tells best, and keeps others away.
        match open_alone(&Path::new("/dev").join(block)) {
            Ok(file) => held.push(file),
            Err(error) if uses.len() == before => uses.push(match error.raw_os_error() {
                Some(busy) if busy == rustix::io::Errno::BUSY.raw_os_error() => {
                    let user = crate::cache::lock::user_of_device(&Path::new("/dev").join(block));
                    format!("/dev/{block} is in use by {user}")
                }
                _ => format!("/dev/{block} cannot be looked at ({error}): root may"),
            }),
            Err(_) => {}
        }
    }
    match uses.is_empty() {
        true => Ok(HeldBlocks(held)),
        false => Err(uses),
    }
}

fn open_alone(path: &Path) -> std::io::Result<File> {
    let exclusively = rustix::fs::OFlags::EXCL.bits();
    File::options()
        .read(true)
        .custom_flags(exclusively as i32)
        .open(path)
}

fn mount_of(device: &Path) -> Option<String> {
    let table = mounts::mount_table().unwrap_or_default();
    let device = fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
    let at = table
        .iter()
        .find(|entry| fs::canonicalize(&entry.source).is_ok_and(|source| source == device))?;
    Some(format!(
        "{} is mounted at {}",
        device.display(),
        at.mount_point.display()
    ))
}

/// Whether `/proc/swaps` names a device.
fn is_swap(swaps: &str, device: &Path) -> bool {
    let names = swaps.lines().skip(1);
    names
        .filter_map(|line| line.split_whitespace().next())
        .any(|name| Path::new(name) == device)
}

/// The process that drives a controller itself, when one does.
pub fn driven_by(controller: &Controller) -> Option<String> {
    let group = controller.group.as_ref()?;
    let nodes = [
        format!("/dev/vfio/{group}"),
        format!("/dev/vfio/noiommu-{group}"),
    ];
    let users = nodes
        .iter()
        .flat_map(|node| mounts::users_of(Path::new(node), NAMED_MAX));
    let named: Vec<String> = users
        .map(|user| format!("process {} ({})", user.pid, user.name))
        .collect();
    (!named.is_empty()).then(|| named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_told_by_its_whole_name() {
        let swaps = "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2\n/swap file 1 0 -3\n";
        assert!(is_swap(swaps, Path::new("/dev/nvme0n1p1")));
        assert!(!is_swap(swaps, Path::new("/dev/nvme0n1")));
        assert!(!is_swap("", Path::new("/dev/nvme0n1")));
    }

    #[test]
    fn what_is_laid_out_on_a_namespace_is_a_use() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = super::super::controller::tests::machine(root.path());
        let controller = sysfs.controller("5e:00.0".parse().unwrap()).unwrap();
        let uses = hold(&sysfs, &controller).unwrap_err().join("; ");
        assert!(
            uses.contains("/dev/nvme0n1 has partitions (nvme0n1p1)"),
            "{uses}"
        );
        assert!(uses.contains("/dev/nvme0n2 is part of dm-0"), "{uses}");
    }
}
