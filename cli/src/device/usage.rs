//! Who uses a controller.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_engine::disk::layout::{NotOurs, Superblock};

use super::controller::{Controller, Sysfs};
use crate::cache::opening::{LOOK_BYTES, LOOK_END_BYTES};
use crate::mounts;

/// Users that are named.
const NAMED_MAX: usize = 4;

/// Block devices that are held, so that nobody begins to use them.
#[derive(Debug, Default)]
pub struct HeldBlocks(#[expect(dead_code, reason = "held")] Vec<File>);

/// Why the kernel's driver must keep a controller: what is mounted, swapped to, built or laid out on its namespaces, or what they hold
/// that could be used again. Nothing of that can begin as long as what is given back is held.
///
/// # Errors
/// A sentence for each use.
pub fn hold(sysfs: &Sysfs, controller: &Controller) -> Result<HeldBlocks, Vec<String>> {
    let mut uses = Vec::new();
    let mut held = Vec::new();
    for block in &controller.blocks {
        let shown = shown(sysfs, block);
        let path = Path::new("/dev").join(block);
        // What else has it, such as a member of a cache group. Whether it can be had tells best, and keeps others away.
        match open_alone(&path) {
            Ok(file) => held.push(file),
            Err(error) if shown.is_empty() => uses.push(match error.raw_os_error() {
                Some(busy) if busy == rustix::io::Errno::BUSY.raw_os_error() => {
                    let user = crate::cache::lock::user_of_device(&path);
                    format!("{} is in use by {user}", path.display())
                }
                _ => format!("{} cannot be looked at ({error}): root may", path.display()),
            }),
            Err(_) => {}
        }
        uses.extend(shown);
    }
    if uses.is_empty() {
        uses.extend(opened_or_exported(sysfs, controller));
    }
    if uses.is_empty() {
        let files = controller.blocks.iter().zip(&held);
        uses.extend(files.filter_map(|(block, file)| laid_out(block, file)));
    }
    match uses.is_empty() {
        true => Ok(HeldBlocks(held)),
        false => Err(uses),
    }
}

/// The same by looking alone, for a list: nobody who wants a device at that moment finds it taken. What lies on it is not read.
pub fn uses(sysfs: &Sysfs, controller: &Controller) -> Vec<String> {
    let blocks = controller.blocks.iter();
    let mut uses: Vec<String> = blocks.flat_map(|block| shown(sysfs, block)).collect();
    if uses.is_empty() {
        uses.extend(opened_or_exported(sysfs, controller));
    }
    uses
}

/// Whoever has it open without claiming it alone, as virtual machines and databases do, and the kernel's own target.
fn opened_or_exported(sysfs: &Sysfs, controller: &Controller) -> Vec<String> {
    let nodes = nodes(controller);
    let mut uses: Vec<String> = nodes.iter().filter_map(|node| opened(node)).collect();
    uses.extend(exported(sysfs, controller));
    uses
}

/// What is known to lie on a device, that is not active just now: RAID, LVM, encryption, a file system.
fn laid_out(block: &str, file: &File) -> Option<String> {
    match read_ends(file) {
        Ok(Err(found)) => found.known().map(|what| {
            format!(
                "/dev/{block} holds {what}, though it is not active (if nobody needs that any more: `wipefs -a /dev/{block}`, or \
                 `blkdiscard -f /dev/{block}` where that knows it not)"
            )
        }),
        Ok(Ok(_)) => None,
        Err(error) => Some(format!("/dev/{block} cannot be read ({error})")),
    }
}

fn read_ends(file: &File) -> std::io::Result<Result<Superblock, NotOurs>> {
    let capacity_bytes = (&*file).seek(SeekFrom::End(0))?;
    let mut beginning = vec![0; capacity_bytes.min(LOOK_BYTES) as usize];
    let mut end = vec![0; capacity_bytes.min(LOOK_END_BYTES) as usize];
    file.read_exact_at(&mut beginning, 0)?;
    let at = capacity_bytes - end.len() as u64;
    file.read_exact_at(&mut end, at)?;
    Ok(Superblock::decode_device(&beginning, &end))
}

/// What the kernel shows to be laid out on a block device.
fn shown(sysfs: &Sysfs, block: &str) -> Vec<String> {
    let mut uses = Vec::new();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let partitions = sysfs.partitions(block);
    if !partitions.is_empty() {
        uses.push(format!(
            "/dev/{block} has partitions ({})",
            partitions.join(", ")
        ));
    }
    for name in std::iter::once(block).chain(partitions.iter().map(String::as_str)) {
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
    uses
}

/// The names below `/dev` by which a controller and its namespaces can be opened.
fn nodes(controller: &Controller) -> Vec<PathBuf> {
    let own = fs::read_dir(controller.dir.join("nvme")).into_iter();
    let own = own.flatten().flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = own.filter_map(|name| name.into_string().ok()).collect();
    for block in &controller.blocks {
        names.push(block.clone());
        // Its commands can be sent without the block device.
        names.extend(block.strip_prefix("nvme").map(|rest| format!("ng{rest}")));
    }
    names
        .iter()
        .map(|name| Path::new("/dev").join(name))
        .collect()
}

/// Other processes that have a device's node open; those of other process namespaces are not seen.
fn opened(node: &Path) -> Option<String> {
    let mut users = mounts::openers_of(node, NAMED_MAX + 1);
    users.retain(|user| user.pid != std::process::id());
    let named: Vec<String> = users
        .iter()
        .take(NAMED_MAX)
        .map(|user| format!("process {} ({})", user.pid, user.name))
        .collect();
    (!named.is_empty()).then(|| format!("{} is open in {}", node.display(), named.join(", ")))
}

/// What the kernel's NVMe target gives to others: there is no process behind it.
fn exported(sysfs: &Sysfs, controller: &Controller) -> Vec<String> {
    let nodes = nodes(controller);
    let subsystems = fs::read_dir(sysfs.0.join("kernel/config/nvmet/subsystems"));
    let mut found = Vec::new();
    for subsystem in subsystems.into_iter().flatten().flatten() {
        let namespaces = fs::read_dir(subsystem.path().join("namespaces"));
        let namespaces = namespaces.into_iter().flatten().flatten();
        let dirs = namespaces.map(|namespace| namespace.path());
        for dir in dirs.chain([subsystem.path().join("passthru")]) {
            let said = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
            let device = PathBuf::from(said("device_path").trim());
            let device = fs::canonicalize(&device).unwrap_or(device);
            if said("enable").trim() == "1" && nodes.contains(&device) {
                let name = subsystem.file_name();
                found.push(format!(
                    "{} is exported by the kernel's NVMe target as {}",
                    device.display(),
                    name.display()
                ));
            }
        }
    }
    found
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
    // The device's own node, which newer hypervisors open, and its group's.
    let own = fs::read_dir(controller.dir.join("vfio-dev")).into_iter();
    let own = own.flatten().flatten().map(|entry| entry.file_name());
    let mut nodes: Vec<PathBuf> = own
        .map(|name| Path::new("/dev/vfio/devices").join(name))
        .collect();
    if let Some(group) = &controller.group {
        nodes.push(format!("/dev/vfio/{group}").into());
        nodes.push(format!("/dev/vfio/noiommu-{group}").into());
    }
    let users = nodes
        .iter()
        .flat_map(|node| mounts::openers_of(node, NAMED_MAX));
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
    fn whoever_has_it_open_is_named_but_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("node");
        fs::write(&node, "").unwrap();
        let _own = File::open(&node).unwrap();
        assert_eq!(opened(&node), None);
        // By another name, as in a container that has made its own.
        let elsewhere = dir.path().join("elsewhere");
        fs::hard_link(&node, &elsewhere).unwrap();
        let mut other = std::process::Command::new("sleep")
            .arg("600")
            .stdin(File::open(&elsewhere).unwrap())
            .spawn()
            .unwrap();
        let said = opened(&node).unwrap_or_default();
        other.kill().unwrap();
        other.wait().unwrap();
        let pid = other.id();
        assert!(
            said.contains(&format!("is open in process {pid} (")),
            "{said}"
        );
    }

    #[test]
    fn what_the_kernels_target_exports_is_a_use() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = super::super::controller::tests::machine(root.path());
        let controller = sysfs.controller("5e:00.0".parse().unwrap()).unwrap();
        assert_eq!(exported(&sysfs, &controller), Vec::<String>::new());
        let nodes = nodes(&controller);
        for name in ["nvme0", "nvme0n1", "ng0n1", "nvme0n2", "ng0n2"] {
            assert!(nodes.contains(&Path::new("/dev").join(name)), "{nodes:?}");
        }
        let subsystem = root.path().join("kernel/config/nvmet/subsystems/nqn.x");
        let namespace = subsystem.join("namespaces/1");
        fs::create_dir_all(&namespace).unwrap();
        fs::write(namespace.join("device_path"), "/dev/nvme0n2\n").unwrap();
        fs::write(namespace.join("enable"), "0\n").unwrap();
        assert_eq!(exported(&sysfs, &controller), Vec::<String>::new());
        fs::write(namespace.join("enable"), "1\n").unwrap();
        let said = exported(&sysfs, &controller).join("; ");
        assert!(
            said.contains("/dev/nvme0n2 is exported") && said.contains("nqn.x"),
            "{said}"
        );
    }

    #[test]
    fn what_is_not_active_is_a_use_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        let with = |at: u64, bytes: &[u8]| {
            let file = File::options()
                .create(true)
                .truncate(true)
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            file.set_len(4 << 20).unwrap();
            file.write_all_at(bytes, at).unwrap();
            laid_out("nvme9n1", &file)
        };
        assert_eq!(with(0, &[]), None, "blank");
        assert_eq!(with(100, b"x"), None, "nothing that is known");
        let ours = Superblock {
            log: forebay_engine::disk::layout::LogId(1),
            region_bytes: 1 << 20,
            sector_bytes: 512,
            created_ns: 1,
            owner: "g/n".into(),
        };
        assert_eq!(with(0, &ours.encode()), None, "ours");
        let end = 4 << 20;
        for (at, bytes, what) in [
            (512, b"LABELONE".as_slice(), "an LVM physical volume"),
            (0, b"LUKS\xba\xbe", "a LUKS volume"),
            (4096, b"\xfc\x4e\x2b\xa9", "a member of an MD RAID array"),
            (
                end - 8192,
                b"\xfc\x4e\x2b\xa9",
                "a member of an MD RAID array",
            ),
            (
                end - 1024,
                b"Intel Raid ISM Cfg Sig. ",
                "a member of an Intel",
            ),
        ] {
            let said = with(at, bytes).unwrap_or_default();
            assert!(
                said.contains(what) && said.contains("wipefs -a /dev/nvme9n1"),
                "{said}"
            );
        }
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
        let listed = super::uses(&sysfs, &controller).join("; ");
        assert!(
            listed.contains("partitions") && listed.contains("dm-0"),
            "{listed}"
        );
    }
}
