//! What the demo needs of the machine, all that is missing told at once.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use anyhow::{Result, bail};

use crate::harness::forebay_binary;

/// The bucket, the daemons' memory and the programs.
const MEMORY_BYTES: u64 = 2 << 30;
/// What three members come to have on disk, with room to spare.
const DISK_BYTES: u64 = 1 << 30;
/// Both for a small demo.
const MEMORY_BYTES_SMALL: u64 = 3 << 28;
const DISK_BYTES_SMALL: u64 = 1 << 28;

/// Looks at everything before anything is made.
///
/// # Errors
/// Whatever is missing, with what to do about it.
pub(super) fn check(is_small: bool) -> Result<()> {
    let temporary = std::env::temp_dir();
    let (memory_bytes, disk_bytes) = match is_small {
        true => (MEMORY_BYTES_SMALL, DISK_BYTES_SMALL),
        false => (MEMORY_BYTES, DISK_BYTES),
    };
    let missing: Vec<String> = [
        forebay_binary().err().map(|error| format!("{error:#}")),
        fuse(OpenOptions::new().read(true).write(true).open("/dev/fuse")),
        fusermount(),
        memory(
            &fs::read_to_string("/proc/meminfo").unwrap_or_default(),
            memory_bytes,
        ),
        room(&temporary, disk_bytes),
    ]
    .into_iter()
    .flatten()
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "this machine lacks what the demo needs:\n  - {}",
        missing.join("\n  - ")
    )
}

fn fuse(opened: io::Result<fs::File>) -> Option<String> {
    let error = opened.err()?;
    let (what, remedy) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            "not ours to open",
            "run as root; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        ),
        _ => (
            "missing",
            "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        ),
    };
    Some(format!("/dev/fuse is {what} ({error}): {remedy}"))
}

/// Who is not root mounts with its help.
fn fusermount() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file());
    let root = rustix::process::geteuid().is_root();
    (!root && !found)
        .then(|| "fusermount3 is missing: apt-get install fuse3, or run as root".to_owned())
}

fn memory(meminfo: &str, wanted_bytes: u64) -> Option<String> {
    let available = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = available.split_whitespace().next()?.parse().ok()?;
    (kib << 10 < wanted_bytes).then(|| {
        format!(
            "{} MiB of memory are free, the demo takes {} MiB: end something else",
            kib >> 10,
            wanted_bytes >> 20
        )
    })
}

fn room(dir: &Path, wanted_bytes: u64) -> Option<String> {
    let remedy = "set TMPDIR to a directory with more";
    match rustix::fs::statvfs(dir) {
        Err(error) => Some(format!("{}: {error}: {remedy}", dir.display())),
        Ok(told) => {
            let free = told.f_bavail * told.f_frsize;
            (free < wanted_bytes).then(|| {
                format!(
                    "{} has {} MiB free, the members' caches take up to {} MiB: {remedy}",
                    dir.display(),
                    free >> 20,
                    wanted_bytes >> 20
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let none = fuse(Err(io::ErrorKind::NotFound.into())).unwrap_or_default();
        assert!(
            none.contains("missing") && none.contains("modprobe"),
            "{none}"
        );
        let denied = fuse(Err(io::ErrorKind::PermissionDenied.into())).unwrap_or_default();
        assert!(denied.contains("run as root"), "{denied}");
        assert_eq!(
            memory("MemTotal: 1 kB\nMemAvailable:  9999999 kB\n", MEMORY_BYTES),
            None
        );
        let little = memory("MemAvailable:  1048576 kB\n", MEMORY_BYTES).unwrap_or_default();
        assert!(little.contains("1024 MiB of memory"), "{little}");
        assert!(
            room(Path::new("/no/such/dir"), DISK_BYTES).is_some_and(|told| told.contains("TMPDIR"))
        );
    }
}
