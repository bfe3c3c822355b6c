//! Two objects are overwritten while they are open: one whose old bytes are cached, one whose
//! old bytes are nowhere any more. No handle may ever see bytes of both versions.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;

use super::Stop;
use crate::harness::BucketClient;
use crate::s3::synthetic_bytes;

const SIZE_BYTES: usize = 4 << 20;
const CACHED: &str = "overwrite/cached.bin";
const UNREAD: &str = "overwrite/unread.bin";
const OLD_SEED: u64 = 1_001;
const NEW_SEED: u64 = 1_002;
/// The mount's `--attr-ttl` is a second: after this a new open must see the new version.
const TTL_AND_MORE: Duration = Duration::from_millis(1_500);

/// What all this has to read from S3: one old version and both new ones.
pub(super) const ORIGIN_BYTES: u64 = 3 * SIZE_BYTES as u64;

fn version(seed: u64) -> Bytes {
    let mut bytes = vec![0; SIZE_BYTES];
    synthetic_bytes(seed, 0, &mut bytes);
    bytes.into()
}

fn put(client: &BucketClient, seed: u64) -> Result<()> {
    client.put_all([CACHED, UNREAD].map(|key| (key.to_owned(), version(seed))))
}

/// Puts two objects, opens them, overwrites them, and shows what old handles and new opens read.
pub(super) fn show(point: &Path, client: &BucketClient, stop: &Stop) -> Result<()> {
    let (old, new) = (version(OLD_SEED), version(NEW_SEED));
    put(client, OLD_SEED)?;
    let cached = Open::new(point, CACHED)?;
    let unread = Open::new(point, UNREAD)?;
    ensure!(cached.read()? == old, "{CACHED} differs from its source");

    put(client, NEW_SEED)?;
    thread::sleep(TTL_AND_MORE);
    stop.check()?;

    println!("  overwritten while open   old handle                          new open");
    for (handle, key) in [(&cached, CACHED), (&unread, UNREAD)] {
        // The page cache must not answer for the mount.
        rustix::fs::fadvise(&handle.file, 0, None, rustix::fs::Advice::DontNeed)?;
        let seen_by_old = match handle.read() {
            Ok(bytes) if bytes == old => "old bytes".to_owned(),
            Ok(bytes) if bytes == new => bail!("{key}: the old handle reads the new version"),
            Ok(_) => bail!("{key}: the old handle reads bytes of neither version"),
            Err(error) if is_gone(&error) => format!("error: {}", short(&error)),
            Err(error) => return Err(error).context(format!("{key}: old handle")),
        };
        let opened = Open::new(point, key)?;
        ensure!(
            opened.read()? == new,
            "{key}: a new open does not read the new version"
        );
        ensure!(
            opened.meta.ino() != handle.meta.ino(),
            "{key}: both versions are one inode"
        );
        let old_side = format!("inode {}, {seen_by_old}", handle.meta.ino());
        println!(
            "  {key:24} {old_side:35} inode {}, new bytes",
            opened.meta.ino()
        );
    }
    Ok(())
}

struct Open {
    file: File,
    meta: Metadata,
}

impl Open {
    fn new(point: &Path, key: &str) -> Result<Self> {
        let file = File::open(point.join(key)).with_context(|| format!("open {key}"))?;
        let meta = file.metadata()?;
        Ok(Self { file, meta })
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; SIZE_BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// What the mount may say of a version that is nowhere any more.
fn is_gone(error: &io::Error) -> bool {
    let known = [rustix::io::Errno::STALE, rustix::io::Errno::IO];
    error
        .raw_os_error()
        .is_some_and(|code| known.iter().any(|errno| errno.raw_os_error() == code))
}

fn short(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()) {
        "ESTALE"
    } else {
        "EIO"
    }
}
