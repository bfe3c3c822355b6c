//! A bucket with large objects and the real `forebay mount` of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay_tests::harness::{Mount, MountOptions, Stats};
use forebay_tests::s3::EmbeddedS3;
use tempfile::TempDir;

use crate::bucket::Bucket;
use crate::interrupt;

/// Training mounts set minutes; metadata is no part of these figures.
pub const LONG_LIVED_NAMES: [&str; 4] = ["--attr-ttl", "1h", "--entry-ttl", "1h"];

/// A mounted bucket. Everything is gone when it is dropped.
#[derive(Debug)]
pub struct Bench {
    // In the order of dropping: the mount goes before what it needs.
    mount: Mount,
    bucket: Bucket,
    dir: TempDir,
    memory: String,
    flags: Vec<OsString>,
}

impl Bench {
    /// Mounts a bucket with `objects` (key, bytes) with `--memory memory`.
    ///
    /// # Errors
    /// What the server or `forebay mount` said.
    pub fn start(objects: &[(String, u64)], memory: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("forebay-perf-").tempdir()?;
        Self::start_in(dir, objects, memory, &[])
    }

    /// The same with more flags, and with its files in `dir`.
    ///
    /// # Errors
    /// What the server or `forebay mount` said.
    pub fn start_in(
        dir: TempDir,
        objects: &[(String, u64)],
        memory: &str,
        more_flags: &[OsString],
    ) -> Result<Self> {
        let bucket = Bucket::start(objects)?;
        let mut flags: Vec<OsString> = LONG_LIVED_NAMES.map(Into::into).into();
        flags.extend_from_slice(more_flags);
        Ok(Self {
            mount: mount(dir.path(), "mnt", &bucket, memory, flags.clone())?,
            bucket,
            dir,
            memory: memory.to_owned(),
            flags,
        })
    }

    /// Unmounts in order and mounts again: what was in memory is gone.
    ///
    /// # Errors
    /// What `forebay umount` or `forebay mount` said.
    pub fn remount(self) -> Result<Self> {
        self.mount.unmount()?;
        let flags = self.flags.clone();
        Ok(Self {
            mount: mount(self.dir.path(), "mnt", &self.bucket, &self.memory, flags)?,
            ..self
        })
    }

    /// Brings the whole bucket into the cache, by `forebay warmup`.
    ///
    /// # Errors
    /// When not all of it is cached afterwards.
    pub fn warm_up(&self) -> Result<()> {
        self.mount.show("warmup")
    }

    /// The mount point.
    pub fn point(&self) -> &Path {
        self.mount.dir()
    }

    /// The object's file in the mount.
    pub fn file(&self, key: &str) -> PathBuf {
        self.mount.dir().join(key)
    }

    /// A directory that lives as long as this.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The bucket.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// The S3 server.
    pub fn server(&self) -> &EmbeddedS3 {
        self.bucket.server()
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.mount.pid()
    }

    /// What the daemon counted.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn stats(&self) -> Result<Stats> {
        self.mount.stats()
    }

    /// Unmounts in order.
    ///
    /// # Errors
    /// What `forebay umount` said.
    pub fn end(self) -> Result<()> {
        self.mount.unmount()
    }
}

/// Mounts a bucket at directory `name` of `dir`, which is made if it is not there.
///
/// # Errors
/// What `forebay mount` said, or that a signal came.
pub fn mount(
    dir: &Path,
    name: &str,
    bucket: &Bucket,
    memory: &str,
    flags: Vec<OsString>,
) -> Result<Mount> {
    let point = dir.join(name);
    std::fs::create_dir_all(&point)?;
    let mount = Mount::new(
        &point,
        &MountOptions {
            binary: None,
            source: bucket.source(),
            endpoint: &bucket.server().endpoint(),
            credentials: Some(bucket.credentials()),
            memory,
            flags,
        },
    )?;
    interrupt::check()?;
    Ok(mount)
}
