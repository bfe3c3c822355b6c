//! The group's secret.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest accepted secret.
pub const SECRET_BYTES_MAX: usize = 4096;

/// What the members of a group have in common and nobody else knows. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Nothing but white space.
    #[error(
        "{0} is empty: put the group's secret there, the same for every member (for example `openssl rand -hex 32`)"
    )]
    Empty(String),
    /// Longer than [`SECRET_BYTES_MAX`].
    #[error("{0} is longer than {SECRET_BYTES_MAX} bytes: it should hold the group's secret alone")]
    Long(String),
    /// Other users may read it.
    #[error(
        "other users may read the group's secret in {path} (mode {mode:04o}): `chmod o-rwx {path}`"
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It cannot be read.
    #[error("cannot read the group's secret from {path}: {error}; check --group-secret-file")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl Secret {
    /// A secret from text, without the white space around it. `from` names where it came from.
    ///
    /// # Errors
    /// When it is empty or too long.
    pub fn new(text: &[u8], from: &str) -> Result<Self, SecretError> {
        match text.trim_ascii() {
            [] => Err(SecretError::Empty(from.to_owned())),
            text if text.len() > SECRET_BYTES_MAX => Err(SecretError::Long(from.to_owned())),
            text => Ok(Self(text.into())),
        }
    }

    /// A secret from a file that other users may not read. Its group may: that is how Kubernetes hands
    /// secrets to a process that is not root.
    ///
    /// # Errors
    /// When it cannot be read, others may read it, or it is empty or too long.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let io = |error| SecretError::Io {
            path: path.to_owned(),
            error,
        };
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if meta.is_file() && meta.mode() & 0o007 != 0 {
            return Err(SecretError::Readable {
                path: path.to_owned(),
                mode: meta.mode() & 0o7777,
            });
        }
        let mut text = Vec::new();
        file.take(SECRET_BYTES_MAX as u64 * 2)
            .read_to_end(&mut text)
            .map_err(io)?;
        Self::new(&text, &path.display().to_string())
    }

    /// The secret itself, for what proves it elsewhere.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn text_is_trimmed_and_not_shown() {
        let secret = Secret::new(b" s3cret\n", "FOREBAY_GROUP_SECRET").unwrap();
        assert_eq!(secret.bytes(), b"s3cret");
        assert_eq!(format!("{secret:?}"), "Secret");
        let error = Secret::new(b" \n", "here").unwrap_err().to_string();
        assert!(error.starts_with("here is empty"), "{error}");
        assert!(Secret::new(&vec![b'x'; SECRET_BYTES_MAX + 1], "here").is_err());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, "s3cret\n").unwrap();
        for (mode, good) in [(0o600, true), (0o640, true), (0o644, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Secret::read(&path).is_ok(), good, "{mode:o}");
        }
        let error = Secret::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod"), "{error}");
        let error = Secret::read(&dir.path().join("none")).unwrap_err();
        assert!(error.to_string().contains("--group-secret-file"));
    }
}
