//! One user of a namespace by what it is called in the world: two addresses of a target may lead to one namespace.
//!
//! A lock on a file in `/run/forebay-locks` for root, else in `forebay-locks` below `$XDG_RUNTIME_DIR` or `$FOREBAY_RUNTIME_DIR`: it holds among the processes that see that
//! directory. Nobody else may write there, nor open its files: whoever can open a file can lock it. Containers each have their own unless
//! the machine's is given to them, and other machines have others: only a target could tell those apart.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_nvme_spdk::Address;

use super::lock::{Held, PATIENCE, holder};

/// Where root's lock files are, and those of a user to whom an administrator has given it.
const SHARED: &str = "/run/forebay-locks";

/// What this process has: a lock of its own would look like another process's.
static TAKEN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The right to use what has a name.
#[derive(Debug)]
pub(super) struct WorldLock {
    world: String,
    _file: File,
}

impl WorldLock {
    /// Takes it for `address`; none, with a warning, where this user has no place for lock files.
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
        let deadline = Instant::now() + PATIENCE;
        let mut file = loop {
            let mut file = match own(dir).and_then(|()| open(&path)) {
                Err(error) if is_denied(&error) => {
                    tracing::warn!(
                        "{address}: cannot make the lock {} ({error}): that it has another user by another address would not be seen",
                        path.display()
                    );
                    return Ok(None);
                }
                file => file.with_context(|| format!("cannot open {}", path.display()))?,
            };
            match file.try_lock() {
                // Not one that was removed or put in another's place meanwhile.
                Ok(()) if is_at(&file, &path) => break file,
                Ok(()) | Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(()) => bail!(
                    "{} is exchanged again and again: who does that?",
                    path.display()
                ),
                Err(TryLockError::WouldBlock) => bail!(Held {
                    what: address.to_string().into(),
                    holder: format!(
                        "{}, maybe by another address (its name in the world is {world}; the lock is {})",
                        who(&mut file),
                        path.display()
                    ),
                    advice: "give another namespace",
                }),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        };
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
    let dir = dir();
    own(&dir).ok()?;
    let mut file = plain(File::options().read(true), &dir.join(file_name(world))).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(who(&mut file)),
        _ => None,
    }
}

fn dir() -> PathBuf {
    let user = rustix::process::geteuid();
    let shared = Path::new(SHARED);
    if user.is_root() || own(shared).is_ok() {
        return shared.into();
    }
    users_dir(|name| std::env::var_os(name)).unwrap_or_else(|| shared.into())
}

/// Below a user's directory for what runs: services have none but their unit's.
fn users_dir(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let dirs = ["XDG_RUNTIME_DIR", "FOREBAY_RUNTIME_DIR"].map(variable);
    let dirs = dirs.into_iter().flatten().map(PathBuf::from);
    let dir = { dirs }.find(|dir| dir.is_absolute())?;
    Some(dir.join("forebay-locks"))
}

/// Makes a directory for locks, where there is none; this user's own it must be.
fn own(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = dir.symlink_metadata()?;
    check(found.is_dir(), &found, "directory")
}

/// Whether what was found is this user's alone.
fn check(right: bool, found: &Metadata, kind: &str) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if right && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "there is no {kind} that user {user} alone may write: it is user {}'s, mode {:o}",
            found.uid(),
            found.mode()
        ),
    ))
}

fn is_at(file: &File, path: &Path) -> bool {
    let place = |found: Metadata| (found.dev(), found.ino());
    let there = path.symlink_metadata().map(place).ok();
    there.is_some() && there == file.metadata().map(place).ok()
}

/// Who has the lock on a file, as far as that is known: what is written in it may be of one who had it before.
fn who(file: &mut File) -> String {
    let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let said = holder(file);
    let has = |found: Metadata| {
        let pids = pids_with_lock(&table, found.dev(), found.ino());
        pids.iter()
            .any(|pid| said.starts_with(&format!("process {pid} ")))
    };
    match file.metadata().is_ok_and(has) {
        true => said,
        false => "another process".into(),
    }
}

/// Those who have a lock on a file, in the kernel's table of locks: `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5718066 0 EOF`.
fn pids_with_lock(table: &str, dev: u64, inode: u64) -> Vec<u32> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    let of = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        // One that waits has an arrow first.
        if words.next() != Some("FLOCK") {
            return None;
        }
        let pid = words.nth(2)?;
        (words.next()? == place).then(|| pid.parse().ok())?
    };
    table.lines().filter_map(of).collect()
}

fn file_name(world: &str) -> String {
    let hash = blake3::hash(world.as_bytes()).to_hex();
    format!("forebay-nvme-{}.lock", &hash[..32])
}

fn is_denied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            // Without `/run`.
            | io::ErrorKind::NotFound
    )
}

/// Opens a lock file, or makes it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600);
    plain(&mut options, path)
}

/// Opens a file that is this user's alone: no link, and nothing that blocks who opens it.
fn plain(options: &mut std::fs::OpenOptions, path: &Path) -> io::Result<File> {
    use rustix::fs::OFlags;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        // A link.
        Some(errno) if errno == rustix::io::Errno::LOOP.raw_os_error() => {
            io::Error::new(io::ErrorKind::PermissionDenied, "it is a link")
        }
        _ => error,
    })?;
    let found = file.metadata()?;
    check(found.is_file() && found.nlink() <= 1, &found, "plain file")?;
    Ok(file)
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
            said.contains("by another process, maybe by") && said.contains(&world),
            "not by who had it once: {said}"
        );
        let me = std::process::id();
        other.set_len(0).unwrap();
        std::os::unix::fs::FileExt::write_all_at(
            &other,
            format!("pid {me}\npurpose mount /m\n").as_bytes(),
            0,
        )
        .unwrap();
        let said = format!("{:#}", take().unwrap_err());
        assert!(
            said.contains(&format!("process {me} (forebay mount /m)")),
            "{said}"
        );
        drop(other);
        let lock = take().unwrap();
        assert!(lock.is_some());
        drop(lock);
        assert!(take().unwrap().is_some(), "it ends with its holder");
        let nowhere = dir.path().join("no/where");
        let nowhere = WorldLock::take_in(&nowhere, &world, &address, "test").unwrap();
        assert!(nowhere.is_none(), "no place for one");
        let path = dir.path().join(file_name(&world));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let error = take().unwrap_err().to_string();
        assert!(
            error.contains("cannot open"),
            "what is wrong is told: {error}"
        );
    }

    #[test]
    fn what_others_put_there_is_no_lock_and_blocks_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let address: Address = "trtype:TCP traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.w"
            .parse()
            .unwrap();
        let world = format!("nguid.w{} ns:1", std::process::id());
        let path = dir.path().join(file_name(&world));
        let none = |what: &str| {
            let taken = WorldLock::take_in(dir.path(), &world, &address, "test").unwrap();
            assert!(taken.is_none(), "{what}");
        };
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        none("a pipe");
        std::fs::remove_file(&path).unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        none("a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&other, &path).unwrap();
        none("a second name");
        assert_eq!(std::fs::read(&other).unwrap(), b"kept");
        std::fs::remove_file(&path).unwrap();
        use std::os::unix::fs::PermissionsExt;
        let permit = |mode| {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        permit(0o1777);
        none("a directory for all");
        permit(0o755);
        let taken = WorldLock::take_in(dir.path(), &world, &address, "test").unwrap();
        assert!(taken.is_some());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_users_locks_are_below_what_the_user_has() {
        let of = |all: &[(&str, &str)]| {
            users_dir(|name| {
                let found = all.iter().find(|(one, _)| *one == name);
                found.map(|(_, value)| value.into())
            })
        };
        let (xdg, own) = (("XDG_RUNTIME_DIR", "/x"), ("FOREBAY_RUNTIME_DIR", "/f"));
        assert_eq!(of(&[own, xdg]), Some("/x/forebay-locks".into()));
        assert_eq!(of(&[own]), Some("/f/forebay-locks".into()));
        let relative = ("XDG_RUNTIME_DIR", "x");
        assert_eq!(of(&[relative, own]), Some("/f/forebay-locks".into()));
        assert_eq!(of(&[relative]), None);
    }

    #[test]
    fn who_has_a_lock_is_in_the_kernels_table() {
        let table = "1: FLOCK  ADVISORY  WRITE 77 fe:00:5718066 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 78 fe:00:5718066 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 79 fe:00:5718066 0 EOF\n3: FLOCK  ADVISORY  READ 80 fe:01:5718066 0 EOF\n4: FLOCK\n";
        let dev = rustix::fs::makedev(0xfe, 0);
        assert_eq!(pids_with_lock(table, dev, 5718066), [77]);
        assert_eq!(pids_with_lock(table, dev, 1), [0; 0]);
    }
}
