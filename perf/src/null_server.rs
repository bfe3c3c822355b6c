//! The yardstick: a FUSE server on the same `fuser` with the settings of Forebay's front end, that
//! answers each read at once with zeros. What it reaches is what FUSE itself allows.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use forebay_fuse::MountOptions;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request,
};

/// The only file.
pub const FILE: &str = "null.bin";
const FILE_INODE: INodeNo = INodeNo(2);
/// Long, so that metadata is no part of what is measured.
const TTL: Duration = Duration::from_secs(3600);
/// The longest read that the kernel sends.
const READ_BYTES_MAX: usize = 1 << 20;

struct NullServer {
    size_bytes: u64,
    zeros: Vec<u8>,
    max_background: u16,
}

impl NullServer {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let file = ino == FILE_INODE;
        let size = if file { self.size_bytes } else { 0 };
        FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if file { 0o444 } else { 0o555 },
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for NullServer {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        kernel_settings(config, self.max_background);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE {
            reply.entry(&TTL, &self.attributes(FILE_INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.size_bytes.saturating_sub(offset);
        let len = u64::from(size).min(left).min(READ_BYTES_MAX as u64) as usize;
        reply.data(&self.zeros[..len]);
    }
}

/// What Forebay's front end asks of the kernel (`fuse-frontend`, `session/filesystem.rs`).
fn kernel_settings(config: &mut KernelConfig, max_background: u16) {
    for wish in [
        InitFlags::FUSE_ASYNC_READ,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
    ] {
        let _ = config.add_capabilities(wish);
    }
    let _ = config.set_max_write(READ_BYTES_MAX as u32);
    if let Err(most) = config.set_max_readahead(READ_BYTES_MAX as u32) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_background(max_background);
    let _ = config.set_congestion_threshold(max_background);
}

/// Serves a file of `size_bytes` at `point` until it is unmounted.
///
/// # Errors
/// When it cannot mount.
pub fn serve(point: &Path, size_bytes: u64) -> Result<()> {
    let defaults = MountOptions::default();
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::CUSTOM(format!("max_read={READ_BYTES_MAX}")),
        MountOption::FSName("forebay-perf-null".to_owned()),
        MountOption::DefaultPermissions,
    ];
    config.n_threads = Some(defaults.threads);
    config.clone_fd = true;
    let server = NullServer {
        size_bytes,
        zeros: vec![0; READ_BYTES_MAX],
        max_background: defaults.max_background,
    };
    fuser::mount(server, point, &config)
        .with_context(|| format!("cannot mount at {}", point.display()))
}

/// The null server as a child process. It is unmounted and ended when dropped.
#[derive(Debug)]
pub struct NullMount {
    child: Child,
    point: std::path::PathBuf,
}

impl NullMount {
    /// Mounts a file of `size_bytes` at the empty directory `point`.
    ///
    /// # Errors
    /// When it is not there within ten seconds.
    pub fn start(point: &Path, size_bytes: u64) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg("null-server")
            .arg(point)
            .arg(size_bytes.to_string())
            .stdin(Stdio::null())
            .spawn()?;
        let mut started = Self {
            child,
            point: point.to_owned(),
        };
        let start = Instant::now();
        while !started.file().exists() {
            if let Some(status) = started.child.try_wait()? {
                bail!("the null server ended: {status}");
            }
            if start.elapsed() > Duration::from_secs(10) {
                bail!("the null server does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(started)
    }

    /// The file to read.
    pub fn file(&self) -> std::path::PathBuf {
        self.point.join(FILE)
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3")
            .args(["-u", "-q"])
            .arg(&self.point)
            .status();
        std::thread::sleep(Duration::from_millis(200));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
