//! The mount point: mount(2) or `fusermount3`, unmount, and the mount's own read-ahead.
//!
//! fuser could mount too, but it unmounts by path when its session ends, and would take down
//! whatever was mounted there meanwhile. Here the mount is told from others by its device number.

use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_engine::limits::READ_BYTES_MAX;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// The file system type in `/proc/self/mountinfo`.
pub(crate) const FS_TYPE: &str = "fuse.forebay";

const FUSE_DEVICE: &str = "/dev/fuse";
const FUSE_CONF: &str = "/etc/fuse.conf";
const FUSERMOUNT: &str = "fusermount3";

/// A device number as `/sys/class/bdi` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNumber {
    major: u32,
    minor: u32,
}

/// A mounted, not yet served file system.
#[derive(Debug)]
pub(crate) struct Mounted {
    /// What requests come through.
    pub(crate) device: OwnedFd,
    /// Where, without symbolic links.
    pub(crate) path: PathBuf,
}

fn fail(kind: io::ErrorKind, text: String) -> io::Error {
    io::Error::new(kind, text)
}

/// Mounts at `path`. The kernel's first request waits in `device` from then on.
pub(crate) fn mount(path: &Path, source: &str, allow_other: bool) -> io::Result<Mounted> {
    let path = check_mount_point(path)?;
    if allow_other {
        check_allow_other()?;
    }
    let device = match mount_directly(&path, source, allow_other) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            mount_by_helper(&path, source, allow_other)?
        }
        other => other?,
    };
    Ok(Mounted { device, path })
}

fn check_mount_point(path: &Path) -> io::Result<PathBuf> {
    let shown = path.display();
    let real = path
        .canonicalize()
        .map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::NOTCONN.raw_os_error() => fail(
                io::ErrorKind::ResourceBusy,
                format!(
                    "mount point {shown}: a dead mount is in the way; run `forebay umount {shown}`"
                ),
            ),
            _ => fail(
                error.kind(),
                format!("mount point {shown}: {error}; it must be a directory"),
            ),
        })?;
    if find(&real)?.is_some() {
        return Err(fail(
            io::ErrorKind::ResourceBusy,
            format!("mount point {shown} is busy: Forebay is mounted there already"),
        ));
    }
    if !fs::metadata(&real)?.is_dir() {
        return Err(fail(
            io::ErrorKind::NotADirectory,
            format!("mount point {shown} is not a directory"),
        ));
    }
    Ok(real)
}

fn check_allow_other() -> io::Result<()> {
    let allowed = |conf: &str| conf.lines().any(|line| line.trim() == "user_allow_other");
    if rustix::process::geteuid().is_root()
        || fs::read_to_string(FUSE_CONF).is_ok_and(|conf| allowed(&conf))
    {
        return Ok(());
    }
    Err(fail(
        io::ErrorKind::PermissionDenied,
        format!("--allow-other needs the line `user_allow_other` in {FUSE_CONF}, or root"),
    ))
}

fn kernel_options(allow_other: bool) -> String {
    let allow_other = if allow_other { ",allow_other" } else { "" };
    format!("default_permissions,max_read={READ_BYTES_MAX}{allow_other}")
}

fn mount_directly(path: &Path, source: &str, allow_other: bool) -> io::Result<OwnedFd> {
    let device = fs::File::options()
        .read(true)
        .write(true)
        .open(FUSE_DEVICE)
        .map_err(|error| {
            fail(
                error.kind(),
                format!("{FUSE_DEVICE}: {error}; is the module fuse loaded?"),
            )
        })?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},{}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        kernel_options(allow_other)
    );
    let data = CString::new(data).map_err(io::Error::other)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    match rustix::mount::mount(source, path, FS_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(device.into()),
        Err(Errno::PERM) => Err(io::ErrorKind::PermissionDenied.into()),
        Err(error) => Err(fail(
            error.kind(),
            format!("mounting at {}: {error}", path.display()),
        )),
    }
}

/// `fusermount3` mounts for users and sends the device through the socket that is its standard
/// input here.
fn mount_by_helper(path: &Path, source: &str, allow_other: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let options = format!(
        "ro,nodev,nosuid,fsname={source},subtype=forebay,{}",
        kernel_options(allow_other)
    );
    let output = Command::new(FUSERMOUNT)
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .output()
        .map_err(|error| {
            fail(
                error.kind(),
                format!("{FUSERMOUNT}: {error}; install the package fuse3"),
            )
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(fail(
            io::ErrorKind::PermissionDenied,
            format!("mounting at {}: {}", path.display(), said.trim()),
        ));
    }
    receive_device(&ours)
}

fn receive_device(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        flags,
    )?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other(format!("{FUSERMOUNT} sent no device")))
}

/// Unmounts what is mounted at `path` if it is `device`; nothing when it is gone already.
/// `lazy` detaches it at once and lets open files finish.
pub(crate) fn unmount(path: &Path, device: DeviceNumber, lazy: bool) -> io::Result<()> {
    if find(path)? != Some(device) {
        return Ok(());
    }
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    match rustix::mount::unmount(path, flags) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::PERM) => unmount_by_helper(path, lazy),
        Err(Errno::BUSY) => Err(busy(path)),
        Err(error) => Err(fail(
            error.kind(),
            format!("unmounting {}: {error}", path.display()),
        )),
    }
}

fn busy(path: &Path) -> io::Error {
    let text = format!(
        "unmounting {}: busy (files are open or a shell is there)",
        path.display()
    );
    fail(io::ErrorKind::ResourceBusy, text)
}

fn unmount_by_helper(path: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { "-uz" } else { "-u" };
    let output = Command::new(FUSERMOUNT)
        .arg(flags)
        .arg("--")
        .arg(path)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(busy(path));
    }
    Err(io::Error::other(format!(
        "unmounting {}: {}",
        path.display(),
        said.trim()
    )))
}

/// The device number of the Forebay mount at `path`, if one is there. Does not touch the mount.
pub(crate) fn find(path: &Path) -> io::Result<Option<DeviceNumber>> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    Ok(find_in(&mounts, path))
}

fn find_in(mountinfo: &[u8], path: &Path) -> Option<DeviceNumber> {
    // The last line for a path is the mount on top.
    mountinfo
        .split(|byte| *byte == b'\n')
        .rev()
        .find_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let number = fields.nth(2)?;
            let at = fields.nth(1)?;
            if unescape(at) != path.as_os_str().as_bytes() {
                return None;
            }
            let fs_type = fields.skip_while(|field| *field != b"-").nth(1)?;
            let (major, minor) = std::str::from_utf8(number).ok()?.split_once(':')?;
            let number = DeviceNumber {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            };
            Some((fs_type == FS_TYPE.as_bytes()).then_some(number))
        })?
}

/// `/proc/self/mountinfo` writes space, tab, newline and backslash as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if byte == b'\\' => {
                out.push(code);
                rest = &after[3..];
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

/// Sets how far the kernel itself reads ahead. Without the permission the mount works, slower.
pub(crate) fn set_read_ahead(device: DeviceNumber, kib: u32) {
    let DeviceNumber { major, minor } = device;
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(&path, kib.to_string()) {
        tracing::warn!(
            %error, path, kib,
            "the kernel's read-ahead of this mount stays at its default; sequential reads are \
             slower; root can write the value"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_path_type_and_number() {
        let mounts = b"22 1 0:5 / / rw - ext4 /dev/a rw\n\
            30 22 0:44 / /mnt/my\\040data ro,nosuid shared:7 - fuse.forebay s3://b rw,user_id=0\n\
            31 22 0:45 / /mnt/other ro - fuse.other x rw\n\
            32 22 0:46 / /mnt/a ro - fuse.forebay x rw\n\
            33 32 0:47 / /mnt/a rw - tmpfs x rw\n";
        let at = |path: &str| find_in(mounts, Path::new(path));
        assert_eq!(
            at("/mnt/my data"),
            Some(DeviceNumber {
                major: 0,
                minor: 44
            })
        );
        assert_eq!(at("/mnt/other"), None);
        assert_eq!(at("/mnt/a"), None, "another mount is on top");
        assert_eq!(at("/mnt"), None);
    }
}
