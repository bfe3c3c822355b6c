//! What `stat` shows.
//!
//! | attribute | value | why |
//! |---|---|---|
//! | `nlink` | 1, for directories too | 1 says "not counted": with 2 or more, `find` and `fts` may conclude how many subdirectories there are |
//! | `blksize` | 64 KiB | C's stdio and Python's `open` take it as their buffer: at 1 MiB a small read after a seek would read 1 MiB; `cp` and `cat` use at least 128 KiB anyway |
//! | `blocks` | size / 512, rounded up | no file looks sparse to `tar` and `du` |
//! | `mtime` | the object's; a directory's is the time of the mount | S3 has none for directories |

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};

use crate::options::MountOptions;

/// `st_blksize`.
pub const BLKSIZE_BYTES: u32 = 64 << 10;

/// Makes attributes.
#[derive(Debug)]
pub(super) struct Attributes {
    uid: u32,
    gid: u32,
    file_mode: u16,
    dir_mode: u16,
    mounted: SystemTime,
}

impl Attributes {
    pub(super) fn new(options: &MountOptions) -> Self {
        Self {
            uid: options.uid,
            gid: options.gid,
            file_mode: options.file_mode & 0o7777,
            dir_mode: options.dir_mode & 0o7777,
            mounted: SystemTime::now(),
        }
    }

    pub(super) fn directory(&self, number: u64) -> FileAttr {
        self.make(number, FileType::Directory, 0, self.mounted)
    }

    pub(super) fn file(&self, number: u64, size_bytes: u64, modified_ns: i128) -> FileAttr {
        self.make(
            number,
            FileType::RegularFile,
            size_bytes,
            system_time(modified_ns),
        )
    }

    fn make(&self, number: u64, kind: FileType, size: u64, mtime: SystemTime) -> FileAttr {
        let perm = if kind == FileType::Directory {
            self.dir_mode
        } else {
            self.file_mode
        };
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: mtime,
            mtime,
            ctime: mtime,
            crtime: mtime,
            kind,
            perm,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: BLKSIZE_BYTES,
            flags: 0,
        }
    }
}

/// Nanoseconds since 1970 as a time; what the platform cannot express becomes 1970.
fn system_time(ns: i128) -> SystemTime {
    let span = |ns: u128| {
        let secs = u64::try_from(ns / 1_000_000_000).unwrap_or(u64::MAX);
        Duration::new(secs, (ns % 1_000_000_000) as u32)
    };
    let time = if ns >= 0 {
        UNIX_EPOCH.checked_add(span(ns.unsigned_abs()))
    } else {
        UNIX_EPOCH.checked_sub(span(ns.unsigned_abs()))
    };
    time.unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_beyond_all_calendars_are_no_panic() {
        assert_eq!(
            system_time(-1_500_000_000),
            UNIX_EPOCH - Duration::from_millis(1500)
        );
        assert_eq!(
            system_time(1_500_000_000),
            UNIX_EPOCH + Duration::from_millis(1500)
        );
        assert_eq!(system_time(i128::MAX), UNIX_EPOCH);
        assert_eq!(system_time(i128::MIN), UNIX_EPOCH);
    }

    #[test]
    fn blocks_are_rounded_up() {
        let attributes = Attributes::new(&MountOptions::default());
        assert_eq!(attributes.file(5, 0, 0).blocks, 0);
        assert_eq!(attributes.file(5, 1, 0).blocks, 1);
        assert_eq!(attributes.file(5, 513, 0).blocks, 2);
        assert_eq!(attributes.directory(5).nlink, 1);
    }
}
