//! The kernel's mount table, and what a mount point is like.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;

/// How long a mount may take to answer when it is only looked at.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Where.
    pub mount_point: PathBuf,
    /// File system type, such as `fuse.forebay`.
    pub kind: String,
    /// What is mounted, as its file system names it.
    pub source: String,
}

impl MountEntry {
    /// Whether a FUSE daemon serves it.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }

    /// Whether it is one of ours.
    pub fn is_forebay(&self) -> bool {
        self.kind == "fuse.forebay" || (self.is_fuse() && self.source.starts_with("s3://"))
    }
}

/// All mounts that this process sees, in mount order.
///
/// # Errors
/// When /proc cannot be read.
pub fn mount_table() -> Result<Vec<MountEntry>> {
    let text = fs::read("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    Ok(text
        .split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .collect())
}

/// The topmost mount at exactly `path`.
///
/// # Errors
/// When /proc cannot be read.
pub fn mount_at(path: &Path) -> Result<Option<MountEntry>> {
    Ok(mount_table()?
        .into_iter()
        .rev()
        .find(|entry| entry.mount_point == path))
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mount_point = unescape(fields.nth(4)?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    Some(MountEntry {
        mount_point: std::ffi::OsString::from_vec(mount_point).into(),
        kind,
        source,
    })
}

/// The kernel writes blank, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    bytes
}

/// `path` as the mount table spells it, without touching the mount itself (a dead one answers
/// nothing): its parent is resolved, its last part kept.
///
/// # Errors
/// When the parent does not exist.
pub fn spelled(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)
        .with_context(|| format!("cannot make {} absolute", path.display()))?;
    // `..` at the end, or the root itself.
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return fs::canonicalize(&absolute).with_context(|| missing(&absolute));
    };
    let parent = fs::canonicalize(parent).with_context(|| missing(parent))?;
    let joined = parent.join(name);
    match fs::read_link(&joined) {
        Ok(_) => fs::canonicalize(&joined).with_context(|| missing(&joined)),
        Err(_) => Ok(joined),
    }
}

fn missing(path: &Path) -> String {
    format!("{} does not exist or cannot be reached", path.display())
}

/// What is at a place where a mount shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceState {
    /// A directory with nothing mounted on it.
    Free,
    /// A FUSE mount whose daemon is gone.
    Dead(MountEntry),
    /// A mount that does not answer: its daemon is stopped or hangs.
    Hangs(MountEntry),
    /// Something is mounted there.
    Busy(MountEntry),
}

/// Looks at the place of a mount (as [`spelled`]).
///
/// # Errors
/// When there is no directory, with what to do about it.
pub fn place_state(path: &Path) -> Result<PlaceState> {
    let mounted = mount_at(path)?;
    let (place, is_fuse) = (
        path.to_owned(),
        mounted.as_ref().is_some_and(MountEntry::is_fuse),
    );
    let looked = within(LOOK_TIMEOUT, move || {
        let meta = fs::metadata(&place);
        // The kernel may remember a dead mount's attributes; statfs it always asks for.
        let dead = meta.is_ok() && is_fuse && statfs_is_dead(&place);
        (meta, dead)
    });
    let (meta, dead) = match (looked, mounted.clone()) {
        (Some(looked), _) => looked,
        (None, Some(entry)) => return Ok(PlaceState::Hangs(entry)),
        (None, None) => bail!("{} does not answer", path.display()),
    };
    match meta {
        Err(error) if is_dead(&error) => match mounted {
            Some(entry) => Ok(PlaceState::Dead(entry)),
            None => Err(error).with_context(|| format!("{} cannot be used", path.display())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "mount point {} does not exist: create it with `mkdir -p`",
                path.display()
            )
        }
        Err(error) => {
            Err(error).with_context(|| format!("mount point {} cannot be used", path.display()))
        }
        Ok(meta) if !meta.is_dir() => {
            bail!(
                "mount point {} is not a directory: give an empty directory",
                path.display()
            )
        }
        Ok(_) => Ok(match mounted {
            None => PlaceState::Free,
            Some(entry) if dead => PlaceState::Dead(entry),
            Some(entry) => PlaceState::Busy(entry),
        }),
    }
}

/// What `look` finds, or none when that takes longer: what touches a mount may hang for ever.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || done.send(look()));
    outcome.recv_timeout(timeout).ok()
}

/// What a mount is like whose daemon does not answer at its control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// Its daemon is gone.
    Killed,
    /// Its daemon is stopped or hangs.
    Hangs,
    /// It works: only its socket is missing.
    Alive,
    /// This user may not look at it.
    Unknown,
}

/// Looks at the FUSE mount at `path` (as [`spelled`]).
pub fn life(path: &Path) -> Life {
    match place_state(path) {
        Ok(PlaceState::Dead(_)) => Life::Killed,
        Ok(PlaceState::Hangs(_)) => Life::Hangs,
        Ok(PlaceState::Busy(_)) => Life::Alive,
        Ok(PlaceState::Free) | Err(_) => Life::Unknown,
    }
}

/// ENOTCONN: the daemon is gone; ECONNABORTED: it was aborted and is about to be.
fn is_dead(error: &io::Error) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn statfs_is_dead(path: &Path) -> bool {
    matches!(
        rustix::fs::statfs(path),
        Err(Errno::NOTCONN | Errno::CONNABORTED)
    )
}

/// A process that uses a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// Processes with a working directory, root, open file or mapping below `path`, as far as this
/// user may see; at most `max`.
pub fn users_of(path: &Path, max: usize) -> Vec<User> {
    let uses = |process: &Path| {
        let below =
            |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(path));
        below(process.join("cwd"))
            || below(process.join("root"))
            || ["fd", "map_files"].iter().any(|dir| {
                fs::read_dir(process.join(dir))
                    .is_ok_and(|links| links.flatten().any(|link| below(link.path())))
            })
    };
    users(uses, max)
}

/// Processes of which something is so, by their directory below `/proc`.
fn users(is_so: impl Fn(&Path) -> bool, max: usize) -> Vec<User> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let name = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    pids.filter(|pid| is_so(Path::new(&format!("/proc/{pid}"))))
        .take(max)
        .map(|pid| User {
            pid,
            name: name(pid),
        })
        .collect()
}

/// Processes that have a device open, by whatever name, as far as this user may see; at most `max`.
pub fn openers_of(node: &Path, max: usize) -> Vec<User> {
    let Some(wanted) = which(node) else {
        return Vec::new();
    };
    let opens = |process: &Path| {
        let links = fs::read_dir(process.join("fd")).into_iter().flatten();
        links
            .flatten()
            .any(|link| which(&link.path()) == Some(wanted))
    };
    users(opens, max)
}

/// A device's kind and number; for other files which file it is. Asks no server of a network file system, which may not answer.
fn which(path: &Path) -> Option<(u32, u64, u64)> {
    use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
    let wanted = StatxFlags::TYPE | StatxFlags::INO;
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    Some(match kind {
        FileType::BlockDevice | FileType::CharacterDevice => (
            kind.as_raw_mode(),
            makedev(found.stx_rdev_major, found.stx_rdev_minor),
            0,
        ),
        _ => (
            kind.as_raw_mode(),
            makedev(found.stx_dev_major, found.stx_dev_minor),
            found.stx_ino,
        ),
    })
}

/// How a mount is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Only when nobody uses it.
    WhenUnused,
    /// From the namespace at once; its users keep it until they are done.
    Lazily,
}

/// Takes the mount at `path` away: as root by umount2(2), else by `fusermount3`.
///
/// # Errors
/// The kernel's, or what `fusermount3` said.
pub fn unmount(path: &Path, detach: Detach) -> io::Result<()> {
    use rustix::mount::UnmountFlags;
    let lazily = detach == Detach::Lazily;
    let flags = UnmountFlags::NOFOLLOW
        | if lazily {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => fusermount(path, lazily),
        other => Ok(other?),
    }
}

fn fusermount(path: &Path, lazily: bool) -> io::Result<()> {
    let mut command = std::process::Command::new("fusermount3");
    command
        .arg("-u")
        .args(lazily.then_some("-z"))
        .arg("--")
        .arg(path)
        .env("LC_ALL", "C");
    let output = command.stdin(std::process::Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other(
            "fusermount3 is missing, which users other than root need to unmount: install the package fuse3",
        ),
        _ => error,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = text.to_ascii_lowercase().contains("busy");
    Err(if busy {
        Errno::BUSY.into()
    } else {
        io::Error::other(text)
    })
}

/// A name for files that belong to the mount at `path`: readable, and different for each path.
pub fn file_name_of(path: &Path) -> String {
    // FNV-1a: the name must be the same in every process of every build.
    let hash = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let last = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let readable: String = last
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        .take(24)
        .collect();
    format!(
        "{}-{hash:016x}",
        if readable.is_empty() {
            "mount"
        } else {
            &readable
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table() {
        let line = br"36 35 98:0 / /mnt/with\040blank\134x rw,noatime shared:1 - fuse.forebay s3://b/p\040q rw";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.mount_point, Path::new(r"/mnt/with blank\x"));
        assert_eq!(
            (entry.kind.as_str(), entry.source.as_str()),
            ("fuse.forebay", "s3://b/p q")
        );
        assert!(entry.is_fuse() && entry.is_forebay());
        for line in [
            &b""[..],
            b"36 35",
            b"36 35 98:0 / /mnt rw -",
            b"36 35 98:0 / /mnt rw x y",
        ] {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn this_process_sees_its_root() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
    }

    #[test]
    fn places() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(place_state(&dir).unwrap(), PlaceState::Free);
        let missing = place_state(&dir.join("x")).unwrap_err().to_string();
        assert!(
            missing.contains("does not exist") && missing.contains("mkdir"),
            "{missing}"
        );
        fs::write(dir.join("file"), "").unwrap();
        assert!(
            place_state(&dir.join("file"))
                .unwrap_err()
                .to_string()
                .contains("not a directory")
        );
        assert!(matches!(
            place_state(Path::new("/proc")).unwrap(),
            PlaceState::Busy(_)
        ));
    }

    #[test]
    fn spelling_follows_links_and_dots() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(dir.join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        assert_eq!(spelled(&dir.join("link")).unwrap(), dir.join("real"));
        assert_eq!(spelled(&dir.join("real/")).unwrap(), dir.join("real"));
        assert_eq!(spelled(&dir.join("absent")).unwrap(), dir.join("absent"));
        assert_eq!(spelled(&dir.join("real/..")).unwrap(), dir);
        assert_eq!(spelled(Path::new("/")).unwrap(), Path::new("/"));
        assert!(spelled(&dir.join("no/where")).is_err());
    }

    #[test]
    fn users_are_found_by_open_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(users_of(&dir, 10), []);
        let file = fs::File::create(dir.join("open")).unwrap();
        assert_eq!(users_of(&dir, 10)[0].pid, std::process::id());
        drop(file);
    }

    #[test]
    fn file_names_are_short_and_differ() {
        let names: Vec<String> = ["/data", "/other/data", "/", "/x/ä ö", "/data/"]
            .iter()
            .map(|path| file_name_of(Path::new(path)))
            .collect();
        assert!(
            names[0].starts_with("data-") && names[0].len() == 21,
            "{names:?}"
        );
        assert!(names[2].starts_with("mount-") && names[3].starts_with("mount-"));
        assert_ne!(names[0], names[1]);
        let long = file_name_of(Path::new(&format!("/{}", "x".repeat(255))));
        assert!(long.len() <= 41, "fits a socket's path");
    }
}
