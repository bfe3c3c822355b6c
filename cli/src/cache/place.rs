//! Where a log lies: in a node's part of a cache directory, on a block device, or on an NVMe namespace.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use forebay_nvme_spdk::Address;
use forebay_nvme_uring::block_device_of;

use super::dirs::CacheDir;
use super::names::Name;

/// The log's file in a node's part of a cache directory.
pub const LOG_FILE: &str = "blocks";
/// The same while it is being made.
pub const NEW_LOG_FILE: &str = "blocks.new";

/// Whose cache: `group/node`, as a superblock tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The group.
    pub group: Name,
    /// The node.
    pub node: Name,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.node)
    }
}

/// Where one log lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this directory, of one node alone, below a cache directory.
    Directory(PathBuf),
    /// On this block device.
    Device(PathBuf),
    /// On this NVMe namespace, without the kernel.
    Nvme(Address),
}

/// The same for each name of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A directory, by its file system and number.
    Directory(u64, u64),
    /// A block device by its number: one device may have several nodes.
    Device(u64),
    /// An address, of which there is one form.
    Nvme(Address),
}

impl Place {
    /// The place that `dir` means to `owner`; the node's directory need not be there.
    ///
    /// # Errors
    /// When there is neither a directory nor a block device.
    pub fn of(dir: &CacheDir, owner: &Owner) -> Result<Self> {
        let path = match dir {
            CacheDir::Path(path) => path,
            CacheDir::Nvme(address) => return Ok(Place::Nvme(address.clone())),
        };
        let meta = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "cache directory {} does not exist: mount its disk, create it with `mkdir -p`, or correct --cache-dir \
                 (`:` and `,` separate directories and cannot be part of a name)",
                path.display()
            ),
            meta => meta.with_context(|| format!("cannot look at {}", path.display()))?,
        };
        if meta.is_dir() {
            let below = path.join(owner.group.as_str()).join(owner.node.as_str());
            return Ok(Place::Directory(below));
        }
        if meta.file_type().is_block_device() || block_device_of(path).is_some() {
            return Ok(Place::Device(path.clone()));
        }
        bail!(
            "{} is neither a directory nor a block device (or the /dev/ngXnY of an NVMe namespace): give --cache-dir one of those",
            path.display()
        )
    }

    /// The file or device that holds the log; for people what has no path.
    pub fn log_path(&self) -> PathBuf {
        match self {
            Place::Directory(dir) => dir.join(LOG_FILE),
            Place::Device(path) => path.clone(),
            Place::Nvme(address) => address.to_string().into(),
        }
    }

    /// The same for each path that leads to this place, which is [prepared](Place::prepare).
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn identity(&self) -> Result<Identity> {
        let path = match self {
            Place::Directory(path) => path.clone(),
            // A namespace has two names.
            Place::Device(path) => block_device_of(path).unwrap_or_else(|| path.clone()),
            Place::Nvme(address) => return Ok(Identity::Nvme(address.clone())),
        };
        let meta =
            fs::metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?;
        Ok(match self {
            Place::Directory(_) => Identity::Directory(meta.dev(), meta.ino()),
            _ => Identity::Device(meta.rdev()),
        })
    }

    /// Makes a node's directory and its group's, for this user alone; or checks that nobody else may
    /// write there: what lies there is served to readers.
    ///
    /// # Errors
    /// When they cannot be made, are another user's, or others may write there.
    pub fn prepare(&self) -> Result<()> {
        let Place::Directory(node) = self else {
            return Ok(());
        };
        let Some(group) = node.parent() else {
            return Ok(());
        };
        for dir in [group, node] {
            match DirBuilder::new().mode(0o700).create(dir) {
                Ok(()) => {
                    if let Some(parent) = dir.parent() {
                        sync_dir(parent)?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_private(dir)?,
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!(
                            "cannot make {}: check its permissions and its disk, or give another --cache-dir",
                            dir.display()
                        )
                    });
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory(path) | Place::Device(path) => write!(f, "{}", path.display()),
            Place::Nvme(address) => write!(f, "{address}"),
        }
    }
}

fn check_private(dir: &Path) -> Result<()> {
    let meta =
        fs::symlink_metadata(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || (meta.uid() != me && meta.uid() != 0) {
        bail!(
            "{} is not a directory of this user: give a --cache-group or --cache-dir of your own",
            dir.display()
        );
    }
    if meta.mode() & 0o022 != 0 {
        bail!(
            "other users may write to {}, and what lies there is served to readers: `chmod 700` it",
            dir.display()
        );
    }
    Ok(())
}

/// Makes names in `dir` outlive a power cut.
///
/// # Errors
/// When the directory cannot be opened or synced.
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .with_context(|| format!("cannot sync {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn owner() -> Owner {
        Owner {
            group: "train".parse().unwrap(),
            node: "n1".parse().unwrap(),
        }
    }

    fn of(path: &Path) -> Result<Place> {
        Place::of(&CacheDir::Path(path.to_owned()), &owner())
    }

    #[test]
    fn a_directory_has_a_private_part_for_each_node() {
        let dir = tempfile::tempdir().unwrap();
        let place = of(dir.path()).unwrap();
        assert_eq!(place, Place::Directory(dir.path().join("train/n1")));
        assert_eq!(place.log_path(), dir.path().join("train/n1/blocks"));
        place.prepare().unwrap();
        place.prepare().unwrap();
        for below in ["train", "train/n1"] {
            let mode = fs::metadata(dir.path().join(below)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o700, "{below}");
        }
        let group = dir.path().join("train");
        fs::set_permissions(&group, fs::Permissions::from_mode(0o777)).unwrap();
        let error = place.prepare().unwrap_err().to_string();
        assert!(error.contains("chmod 700"), "{error}");
    }

    #[test]
    fn what_is_no_place_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let error = of(&dir.path().join("typo")).unwrap_err().to_string();
        assert!(
            error.contains("does not exist") && error.contains("typo"),
            "{error}"
        );
        fs::write(dir.path().join("file"), "").unwrap();
        let error = of(&dir.path().join("file")).unwrap_err().to_string();
        assert!(error.contains("neither"), "{error}");
        assert!(of(Path::new("/dev/null")).is_err());
    }
}
