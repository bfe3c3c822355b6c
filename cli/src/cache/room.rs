//! How much room a file system has, and how large a cache on it is.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::StatVfs;

use crate::units::Share;

/// Without `--cache-size` a directory gets at most this.
pub const DIRECTORY_BYTES_MAX: u64 = 8 << 40;

/// The file system of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its size; 0 when it does not tell.
    pub total_bytes: u64,
    /// What this user may still write.
    pub free_bytes: u64,
    /// Which file system it is.
    pub device: u64,
}

impl Room {
    /// Asks the file system of `dir`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(dir)?;
        let device = rustix::fs::stat(dir)?.st_dev;
        Ok(Self::new(&stat, device))
    }

    /// Asks the file system of an open file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn around(file: impl AsFd) -> io::Result<Self> {
        let stat = rustix::fs::fstatvfs(&file)?;
        let device = rustix::fs::fstat(&file)?.st_dev;
        Ok(Self::new(&stat, device))
    }

    fn new(stat: &StatVfs, device: u64) -> Self {
        Self {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            device,
        }
    }

    /// What is free beyond `ratio` of the whole; less than zero when it is less.
    pub fn slack_bytes(&self, ratio: Share) -> i64 {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(self.free_bytes) - signed(ratio.of(self.total_bytes))
    }

    /// The size of a cache when none is asked for: what it holds already (`held_bytes`) and its part,
    /// among `sharers` on this file system, of what is free.
    pub fn default_bytes(&self, held_bytes: u64, ratio: Share, sharers: usize) -> u64 {
        let part = self.slack_bytes(ratio) / sharers.max(1) as i64;
        held_bytes
            .saturating_add_signed(part)
            .min(DIRECTORY_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(total: u64, free: u64) -> Room {
        Room {
            total_bytes: total * GIB,
            free_bytes: free * GIB,
            device: 1,
        }
    }

    #[test]
    fn the_default_is_what_is_free_beyond_the_ratio() {
        let ratio: Share = "0.1".parse().unwrap();
        let gib = |room: Room, held, sharers| room.default_bytes(held * GIB, ratio, sharers) / GIB;
        assert_eq!(gib(room(1000, 500), 0, 1), 400);
        assert_eq!(
            gib(room(1000, 300), 200, 1),
            400,
            "what it holds is its own"
        );
        assert_eq!(gib(room(1000, 500), 0, 2), 200);
        assert_eq!(gib(room(1000, 50), 0, 1), 0);
        assert_eq!(gib(room(1000, 50), 80, 1), 30);
        assert_eq!(gib(room(1 << 20, 1 << 20), 0, 1), 8 << 10, "8 TiB at most");
        assert_eq!(room(1000, 50).slack_bytes(ratio), -50 * GIB as i64);
    }

    #[test]
    fn this_machine_has_room() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::of(dir.path()).unwrap();
        assert!(room.total_bytes >= room.free_bytes && room.device != 0);
        assert!(Room::of(&dir.path().join("none")).is_err());
    }
}
