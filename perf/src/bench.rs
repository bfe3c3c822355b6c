//! A bucket with large objects, the embedded S3 server, and the real `forebay mount` of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay_tests::harness::{Credentials, Mount, MountOptions, Stats};
use forebay_tests::s3::{EmbeddedS3, Options};
use tempfile::TempDir;

const BUCKET: &str = "perf";

/// A mounted bucket. Everything is gone when it is dropped.
#[derive(Debug)]
pub struct Bench {
    // In the order of dropping: the mount goes before what it needs.
    mount: Mount,
    server: EmbeddedS3,
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
        let server = EmbeddedS3::start(Options::default())?;
        server.create_bucket(BUCKET);
        for (seed, (key, size_bytes)) in objects.iter().enumerate() {
            server.put_synthetic(BUCKET, key, *size_bytes, seed as u64);
        }
        std::fs::create_dir(dir.path().join("mnt"))?;
        // Training mounts set minutes; metadata is no part of these figures.
        let mut flags: Vec<OsString> = ["--attr-ttl", "1h", "--entry-ttl", "1h"]
            .map(Into::into)
            .into();
        flags.extend_from_slice(more_flags);
        Ok(Self {
            mount: mount(&dir, &server, memory, &flags)?,
            server,
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
        Ok(Self {
            mount: mount(&self.dir, &self.server, &self.memory, &self.flags)?,
            ..self
        })
    }

    /// The object's file in the mount.
    pub fn file(&self, key: &str) -> PathBuf {
        self.mount.dir().join(key)
    }

    /// A directory that lives as long as this.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The S3 server.
    pub fn server(&self) -> &EmbeddedS3 {
        &self.server
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

fn mount(dir: &TempDir, server: &EmbeddedS3, memory: &str, flags: &[OsString]) -> Result<Mount> {
    let credentials = Credentials {
        access_key: server.options().access_key.clone(),
        secret_key: server.options().secret_key.clone(),
        region: "us-east-1".to_owned(),
    };
    Mount::new(
        &dir.path().join("mnt"),
        &MountOptions {
            binary: None,
            source: format!("s3://{BUCKET}"),
            endpoint: &server.endpoint(),
            credentials: Some(&credentials),
            memory,
            flags: flags.to_vec(),
        },
    )
}
