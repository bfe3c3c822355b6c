//! Held from looking at a mount point until it is mounted, so that two commands do not race for it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::control::sockets::make_runtime_dir;
use crate::mounts::file_name_of;

/// A file that is locked; it goes with the lock.
#[derive(Debug)]
pub struct PlaceLock {
    path: PathBuf,
    _file: File,
}

impl Drop for PlaceLock {
    fn drop(&mut self) {
        // While it is still locked: whoever has opened it meanwhile sees that it is not there any more.
        let _ = fs::remove_file(&self.path);
    }
}

impl PlaceLock {
    /// Locks `place`; the file is in the runtime directory `dir`, which is made. One that a killed command left is
    /// taken over.
    ///
    /// # Errors
    /// Another command has it, or the directory or file cannot be used.
    pub fn take(dir: &Path, place: &Path) -> Result<Self> {
        make_runtime_dir(dir)?;
        let path = dir.join(format!("{}.lock", file_name_of(place)));
        loop {
            let file = File::options()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&path);
            let file = file.with_context(|| format!("cannot open {}", path.display()))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => bail!(
                    "another `forebay mount` is under way at {}: wait for it",
                    place.display()
                ),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
            if is_at(&file, &path).with_context(|| format!("cannot look at {}", path.display()))? {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

/// Whether `path` is still this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (open, there) = (file.metadata()?, fs::symlink_metadata(path));
    match there {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_stays_behind() {
        let dir = tempfile::tempdir().unwrap();
        let place = Path::new("/data");
        let files = || fs::read_dir(dir.path()).unwrap().count();
        for _ in 0..2 {
            let held = PlaceLock::take(dir.path(), place).unwrap();
            assert_eq!(files(), 1);
            let error = PlaceLock::take(dir.path(), place).unwrap_err().to_string();
            assert!(error.contains("another `forebay mount`"), "{error}");
            drop(held);
            assert_eq!(files(), 0);
            // As a killed command leaves it.
            let left = dir.path().join(format!("{}.lock", file_name_of(place)));
            fs::write(left, "").unwrap();
        }
        drop(PlaceLock::take(dir.path(), place).unwrap());
        assert_eq!(files(), 0);
    }

    #[test]
    fn a_lock_on_a_file_that_is_gone_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&file, &path).unwrap());
        fs::write(&path, "").unwrap();
        assert!(!is_at(&file, &path).unwrap(), "another one");
    }
}
