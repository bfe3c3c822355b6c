//! One user of a namespace by what it is called in the world: two addresses of a target may lead to one namespace.
//!
//! A lock on a file in `/run/lock`: it holds among the processes that see that directory. Containers each have their own unless the
//! machine's is given to them, and other machines have others: only a target could tell those apart.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_nvme_spdk::Address;

use super::lock::{Held, PATIENCE, holder};

/// Where lock files are; the first that is there.
const DIRS: [&str; 3] = ["/run/lock", "/run", "/tmp"];

/// What this process has: a lock of its own would look like another process's.
static TAKEN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The right to use what has a name.
#[derive(Debug)]
pub(super) struct WorldLock {
    world: String,
    _file: File,
}

impl WorldLock {
    /// Takes it for `address`; none, with a warning, where this user may not make lock files.
    ///
    /// # Errors
    /// [`Held`], or that this process has it by another address.
    pub(super) fn take(world: &str, address: &Address, purpose: &str) -> Result<Option<Self>> {
        Self::take_in(&dir(), world, address, purpose)
    }

    fn take_in(dir: &Path, world: &str, address: &Address, purpose: &str) -> Result<Option<Self>> {
        let mut taken = TAKEN.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(other) = taken.get(world) {
            bail!("{other} and {address} are the same namespace ({world}): name it once");
        }
        let path = dir.join(file_name(world));
        let mut file = match open(&path) {
            Err(error) if is_denied(&error) => {
                tracing::warn!(
                    "{address}: cannot make the lock {} ({error}): that it has another user by another address would not be seen",
                    path.display()
                );
                return Ok(None);
            }
            file => file.with_context(|| format!("cannot open {}", path.display()))?,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => bail!(Held {
                    what: address.to_string().into(),
                    holder: format!(
                        "{}, maybe by another address (its name in the world is {world}; the lock is {})",
                        holder(&mut file),
                        path.display()
                    ),
                    advice: "give another namespace",
                }),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
        let text = format!("pid {}\npurpose {purpose}\n", std::process::id());
        // Only for people: the lock holds without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()));
        taken.insert(world.to_owned(), address.to_string());
        Ok(Some(Self {
            world: world.to_owned(),
            _file: file,
        }))
    }
}

impl Drop for WorldLock {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(|poison| poison.into_inner());
        taken.remove(&self.world);
    }
}

/// Who has what is called so, when somebody has.
pub(super) fn holder_of(world: &str) -> Option<String> {
    let mut file = File::open(dir().join(file_name(world))).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(holder(&mut file)),
        _ => None,
    }
}

fn dir() -> PathBuf {
    let there = DIRS.iter().find(|dir| Path::new(dir).is_dir());
    there.unwrap_or(&"/").into()
}

fn file_name(world: &str) -> String {
    let hash = blake3::hash(world.as_bytes()).to_hex();
    format!("forebay-nvme-{}.lock", &hash[..32])
}

fn is_denied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Opens a lock file, never through a link; another user's can be locked as well, and not written to.
fn open(path: &Path) -> io::Result<File> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let made = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o644)
        .custom_flags(no_link)
        .open(path);
    match made {
        Err(error) if is_denied(&error) => File::options()
            .read(true)
            .custom_flags(no_link)
            .open(path)
            .map_err(|_| error),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_second_is_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        let address: Address = "trtype:TCP traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.z"
            .parse()
            .unwrap();
        let world = format!("nguid.{} ns:1", std::process::id());
        // Another process has it.
        let mut other = open(&dir.path().join(file_name(&world))).unwrap();
        other.write_all(b"pid 7\npurpose mount /m\n").unwrap();
        other.lock().unwrap();
        let take = || WorldLock::take_in(dir.path(), &world, &address, "test");
        let error = take().unwrap_err();
        assert!(super::super::lock::is_held(&error));
        let said = format!("{error:#}");
        assert!(
            said.contains("process 7 (forebay mount /m)") && said.contains(&world),
            "{said}"
        );
        drop(other);
        let lock = take().unwrap();
        assert!(lock.is_some());
        drop(lock);
        assert!(take().unwrap().is_some(), "it ends with its holder");
        let nowhere = WorldLock::take_in(&dir.path().join("no"), &world, &address, "test");
        assert!(nowhere.is_err(), "what is wrong is told");
    }
}
