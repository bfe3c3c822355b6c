//! Where the control sockets lie, and which of them are alive.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cache::place::Owner;
use crate::mounts::file_name_of;

/// Where the sockets of this user's mounts lie: `FOREBAY_RUNTIME_DIR` if it is set; for root
/// `/run/forebay`; else `$XDG_RUNTIME_DIR/forebay` or, without that, `/tmp/forebay-UID`.
pub fn runtime_dir() -> PathBuf {
    let named = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(dir) = named("FOREBAY_RUNTIME_DIR") {
        return dir;
    }
    let uid = rustix::process::getuid();
    if uid.is_root() {
        return "/run/forebay".into();
    }
    match named("XDG_RUNTIME_DIR") {
        Some(dir) => dir.join("forebay"),
        None => format!("/tmp/forebay-{}", uid.as_raw()).into(),
    }
}

/// [`runtime_dir`], if what lies there can be trusted: whoever may write there may show us sockets
/// of their own. It need not exist.
///
/// # Errors
/// When it belongs to someone else, or others may write there.
pub fn checked_runtime_dir() -> Result<PathBuf> {
    let dir = runtime_dir();
    match fs::symlink_metadata(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => check_runtime_dir(&dir)?,
    }
    Ok(dir)
}

fn check_runtime_dir(dir: &Path) -> Result<()> {
    let meta =
        fs::symlink_metadata(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    if !meta.is_dir() {
        bail!(
            "{} is no directory: set FOREBAY_RUNTIME_DIR to one of this user's",
            dir.display()
        );
    }
    let (owner, user) = (meta.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        bail!(
            "{} is user {owner}'s: ask that user's daemons as that user (`setpriv --reuid {owner} --clear-groups`, or \
             sudo), or set FOREBAY_RUNTIME_DIR to a directory of user {user}",
            dir.display()
        );
    }
    if meta.mode() & 0o022 != 0 {
        bail!(
            "other users may write to {}: `chmod 700` it, or set FOREBAY_RUNTIME_DIR",
            dir.display()
        );
    }
    Ok(())
}

/// Directories of other users' sockets, where they are without `FOREBAY_RUNTIME_DIR`, as far as this user may look.
pub fn dirs_of_others() -> Vec<PathBuf> {
    let below = |dir: &str| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let in_tmp = below("/tmp").into_iter().filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("forebay-"))
    });
    let of_sessions = below("/run/user")
        .into_iter()
        .map(|dir| dir.join("forebay"));
    let of_services = below("/run").into_iter().filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("forebay"))
    });
    let own = rustix::process::geteuid().as_raw();
    let all = in_tmp.chain(of_sessions).chain(of_services);
    all.filter(|dir| {
        let meta = fs::symlink_metadata(dir);
        meta.is_ok_and(|meta| meta.is_dir() && meta.uid() != own) && !sockets(dir).is_empty()
    })
    .collect()
}

/// Makes the directory, for this user alone, or checks that it is so.
///
/// # Errors
/// When it cannot be made, belongs to someone else, or others may write there.
pub fn make_runtime_dir(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| {
            format!(
                "cannot make {} for the control socket: set FOREBAY_RUNTIME_DIR",
                dir.display()
            )
        })?;
    check_runtime_dir(dir)
}

/// The socket of the mount at `mount_point` (as `mounts::spelled`), or of a member by its [`serve_name`].
pub fn socket_path(dir: &Path, mount_point: &Path) -> PathBuf {
    dir.join(format!("{}.sock", file_name_of(mount_point)))
}

/// How a member without a mount is named in commands: `serve:GROUP/NODE`.
pub fn serve_name(owner: &Owner) -> String {
    format!("{SERVE_PREFIX}{owner}")
}

/// What the names of members without a mount begin with.
pub const SERVE_PREFIX: &str = "serve:";

/// All sockets in `dir`, dead ones included, by name.
pub fn sockets(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .map(|entries| entries.flatten().collect())
        .unwrap_or_else(|_| Vec::new());
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "sock")
    });
    paths.sort();
    paths
}

/// Whether someone listens at `socket`.
pub fn is_alive(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Removes `socket` if no one listens. True when it was removed.
///
/// # Errors
/// When it cannot be removed.
pub fn remove_stale(socket: &Path) -> io::Result<bool> {
    match UnixStream::connect(socket) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(socket)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn stale_sockets_are_told_from_living_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = socket_path(dir.path(), Path::new("/data"));
        assert!(!remove_stale(&path).unwrap(), "nothing there");
        let listener = UnixListener::bind(&path).unwrap();
        assert!(is_alive(&path) && !remove_stale(&path).unwrap());
        drop(listener);
        assert_eq!(sockets(dir.path()), std::slice::from_ref(&path));
        assert!(!is_alive(&path) && remove_stale(&path).unwrap());
        assert!(sockets(dir.path()).is_empty());
    }

    #[test]
    fn the_directory_is_private() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        make_runtime_dir(&dir).unwrap();
        make_runtime_dir(&dir).unwrap();
        assert_eq!(
            fs::metadata(&dir).unwrap().permissions().mode() & 0o777,
            0o700
        );
        fs::write(parent.path().join("file"), "").unwrap();
        assert!(make_runtime_dir(&parent.path().join("file")).is_err());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        let error = make_runtime_dir(&dir).unwrap_err().to_string();
        assert!(error.contains("may write"), "{error}");
    }
}
