//! One daemon at a time for each part of a cache directory.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_nvme_uring::block_device_of;

/// The lock's file. It stays when the lock is gone: the kernel's lock on it counts, which ends with the
/// process that holds it, however that ended.
pub const LOCK_FILE: &str = "lock";
/// How long a lock or a busy device is asked for again: a process that ended just now may not be gone
/// yet, and `inspect` looks at a lock by taking it for a moment.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// What is read of a lock's file at most.
const HOLDER_BYTES_MAX: u64 = 4096;

/// Somebody else has the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct Held {
    /// Which directory or device.
    pub what: PathBuf,
    /// By whom, for people.
    pub holder: String,
    /// What helps beside ending the other one.
    pub advice: &'static str,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the cache at {} is in use by {}: end that first, or {}",
            self.what.display(),
            self.holder,
            self.advice
        )
    }
}

impl std::error::Error for Held {}

/// The right to use a node's part of a cache directory; ends when dropped.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the lock of `dir`. `purpose` says what for, to whoever finds it taken: `mount /data`.
    ///
    /// # Errors
    /// [`Held`] when another process (or another part of this one) has it; or why there can be no lock.
    pub fn take(dir: &Path, purpose: &str) -> Result<Self> {
        let path = dir.join(LOCK_FILE);
        let mut file = open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => bail!(Held {
                    what: dir.to_owned(),
                    holder: holder(&mut file),
                    advice: "give this one a --cache-dir or --node-id of its own",
                }),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| cannot_lock(&path));
                }
            }
        }
        let text = format!("pid {}\npurpose {purpose}\n", std::process::id());
        // Only for people: the lock holds without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()));
        Ok(Self { _file: file })
    }
}

/// Opens a lock file, never through a link: it is written to. Where the file system takes no writes any more the
/// lock itself still works.
fn open(path: &Path) -> io::Result<File> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let written = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(no_link)
        .open(path);
    match written {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            File::options().read(true).custom_flags(no_link).open(path)
        }
        outcome => outcome,
    }
}

/// Who has the lock of `dir`, when somebody has. Does not wait and does not keep it.
pub fn holder_of(dir: &Path) -> Option<String> {
    let mut file = File::open(dir.join(LOCK_FILE)).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(holder(&mut file)),
        _ => None,
    }
}

pub(super) fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(HOLDER_BYTES_MAX).read_to_string(&mut text));
    let line = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    match (line("pid "), line("purpose ")) {
        (Some(pid), Some(purpose)) => format!("process {pid} (forebay {purpose})"),
        (Some(pid), None) => format!("process {pid}"),
        _ => "another process, maybe on another node".into(),
    }
}

fn cannot_lock(path: &Path) -> String {
    format!(
        "cannot lock {}: the file system must support flock(2) (Lustre: mount it with `-o flock`), or give another --cache-dir",
        path.display()
    )
}

/// Whether an error says that somebody else has the cache.
pub fn is_held(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Held>())
}

/// Keeps others from using a block device until the file is closed; reads only.
///
/// # Errors
/// [`Held`], or why it cannot be opened.
pub fn hold_device(path: &Path) -> Result<File> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match open_alone(path) {
            Ok(file) => return Ok(file),
            Err(error) if !is_busy(&error) => {
                return Err(error).with_context(|| format!("cannot open {}", path.display()));
            }
            Err(_) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(_) => bail!(Held {
                what: path.to_owned(),
                holder: user_of_device(path),
                advice: "give another device",
            }),
        }
    }
}

/// Who has a block device, when somebody has. Does not wait and does not keep it.
pub fn holder_of_device(path: &Path) -> Option<String> {
    let busy = open_alone(path).is_err_and(|error| is_busy(&error));
    busy.then(|| user_of_device(path))
}

fn open_alone(path: &Path) -> std::io::Result<File> {
    let block = block_device_of(path);
    let path = block.as_deref().unwrap_or(path);
    let exclusively = rustix::fs::OFlags::EXCL.bits();
    File::options()
        .read(true)
        .custom_flags(exclusively as i32)
        .open(path)
}

fn is_busy(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
}

/// Who uses a block device, as far as can be seen.
pub fn user_of_device(path: &Path) -> String {
    let path = block_device_of(path).unwrap_or_else(|| path.to_owned());
    let device = std::fs::canonicalize(&path).unwrap_or(path);
    let mounted = crate::mounts::mount_table().unwrap_or_default();
    let at = mounted
        .iter()
        .find(|entry| std::fs::canonicalize(&entry.source).is_ok_and(|source| source == device));
    if let Some(entry) = at {
        return format!("a mount at {}", entry.mount_point.display());
    }
    match crate::mounts::users_of(&device, 1).first() {
        Some(user) => format!("process {} ({})", user.pid, user.name),
        None => "another process or the kernel (a mounted partition, swap, RAID or LVM)".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_the_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(holder_of(dir.path()), None, "no lock at all");
        let first = DirLock::take(dir.path(), "mount /data").unwrap();
        let error = DirLock::take(dir.path(), "mount /other").unwrap_err();
        assert!(is_held(&error));
        let text = error.to_string();
        let me = format!("process {} (forebay mount /data)", std::process::id());
        assert!(text.contains(&me) && text.contains("--node-id"), "{text}");
        assert_eq!(holder_of(dir.path()), Some(me));
        drop(first);
        assert_eq!(
            holder_of(dir.path()),
            None,
            "its file is left, the lock is not"
        );
        DirLock::take(dir.path(), "mount /other").unwrap();
    }

    #[test]
    fn a_lock_is_private_and_waits_for_a_short_look() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        drop(DirLock::take(dir.path(), "x").unwrap());
        let path = dir.path().join(LOCK_FILE);
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let look = File::open(&path).unwrap();
        look.lock_shared().unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(look);
        });
        DirLock::take(dir.path(), "x").unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn a_lock_without_a_text_is_somebodys() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join(LOCK_FILE)).unwrap();
        file.lock().unwrap();
        assert!(holder_of(dir.path()).unwrap().contains("another process"));
    }
}
