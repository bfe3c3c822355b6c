//! fuser's `Filesystem` over the namespace: each request becomes one call.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::limits::READ_BYTES_MAX;
use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, PollEvents, PollFlags,
    PollNotifier, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyXattr, Request,
};

use crate::access::{AccessLog, Deed};
use crate::namespace::{BLKSIZE_BYTES, DirSink, Entry, KernelListing, LookupError, Namespace};
use crate::options::{MAX_BACKGROUND_MIN, MountOptions};
use crate::reply::{FuseReply, ReadReply};

/// Inode numbers are never reused for something else, so all are of one generation.
const GENERATION: Generation = Generation(0);

pub(super) struct Shim<R> {
    namespace: Arc<Namespace<R>>,
    accesses: Arc<AccessLog>,
    max_background: u16,
}

impl<R> Shim<R> {
    pub(super) fn new(
        namespace: Arc<Namespace<R>>,
        accesses: Arc<AccessLog>,
        options: &MountOptions,
    ) -> Self {
        Self {
            namespace,
            accesses,
            max_background: options.max_background.max(MAX_BACKGROUND_MIN),
        }
    }
}

struct PlainSink(ReplyDirectory);

impl DirSink for PlainSink {
    fn with_attributes(&self) -> bool {
        false
    }

    fn add(&mut self, next: u64, name: &str, attr: &FileAttr, _ttl: Duration) -> bool {
        self.0.add(attr.ino, next, attr.kind, name)
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.0.ok(),
            Err(errno) => self.0.error(errno),
        }
    }
}

struct PlusSink(ReplyDirectoryPlus);

impl DirSink for PlusSink {
    fn with_attributes(&self) -> bool {
        true
    }

    fn add(&mut self, next: u64, name: &str, attr: &FileAttr, ttl: Duration) -> bool {
        self.0.add(attr.ino, next, name, &ttl, attr, GENERATION)
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.0.ok(),
            Err(errno) => self.0.error(errno),
        }
    }
}

/// Answers a lookup; a name that does not exist is an entry without an inode, which the kernel
/// remembers for its time to live.
fn answer_lookup(reply: ReplyEntry, found: Result<Entry, LookupError>) {
    match found {
        Ok(entry) => {
            reply.entry_with_ttls(&entry.attr_ttl, &entry.entry_ttl, &entry.attr, GENERATION);
        }
        Err(LookupError { ttl, .. }) if !ttl.is_zero() => {
            reply.entry_with_ttls(&Duration::ZERO, &ttl, &no_attributes(), GENERATION);
        }
        Err(error) => reply.error(error.errno),
    }
}

fn no_attributes() -> FileAttr {
    let zero = std::time::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        crtime: zero,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

impl<R: ReadReply + From<FuseReply>> Filesystem for Shim<R> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What a kernel lacks it does without.
        for wish in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
        ] {
            let _ = config.add_capabilities(wish);
        }
        let read_bytes = READ_BYTES_MAX as u32;
        // The kernel sizes its requests by the larger of the two: reads must fit the engine's.
        let _ = config.set_max_write(read_bytes);
        if let Err(most) = config.set_max_readahead(read_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(self.max_background);
        let _ = config.set_congestion_threshold(self.max_background);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.namespace
            .lookup(parent.0, name, |found| answer_lookup(reply, found));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.namespace.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.namespace.getattr(ino.0, move |result| match result {
            Ok((attr, ttl)) => reply.attr(&ttl, &attr),
            Err(errno) => reply.error(errno),
        });
    }

    fn readlink(&self, _req: &Request, _ino: INodeNo, reply: ReplyData) {
        reply.error(Errno::EINVAL);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let watch = self.accesses.watch(req.pid(), 0);
        let watch = watch.map(|watch| (watch, self.namespace.clone()));
        self.namespace.open(ino.0, move |result| match result {
            Ok(handle) => {
                // Before the answer: afterwards the handle may be closed by now.
                let opened = watch.and_then(|(watch, namespace)| {
                    let mut watch = watch.of(handle);
                    watch.answering();
                    Some((watch, namespace.version_of(handle)?))
                });
                // An inode's bytes never change, so its cached pages stay good.
                reply.opened(
                    FileHandle(handle),
                    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
                );
                if let Some((watch, file)) = opened {
                    watch.done(file, Deed::Open);
                }
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let watch = self.accesses.watch(req.pid(), fh.0);
        let watch = watch.map(|watch| watch.range(offset, size));
        let reply = FuseReply::from(reply).watched(watch);
        self.namespace.read(fh.0, offset, size, R::from(reply));
    }

    fn release(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(watch) = self.accesses.watch(req.pid(), fh.0)
            && let Some(file) = self.namespace.version_of(fh.0)
        {
            watch.done(file, Deed::Close);
        }
        self.namespace.release(fh.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.namespace.opendir(ino.0) {
            Ok(opened) => {
                let flags = match opened.listing {
                    KernelListing::Never => FopenFlags::empty(),
                    KernelListing::Anew => FopenFlags::FOPEN_CACHE_DIR,
                    KernelListing::Kept => {
                        FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
                    }
                };
                reply.opened(FileHandle(opened.handle), flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.namespace
            .readdir(fh.0, offset, Box::new(PlainSink(reply)));
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.namespace
            .readdir(fh.0, offset, Box::new(PlusSink(reply)));
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.namespace.releasedir(fh.0);
        reply.ok();
    }

    /// Size and free space of a bucket are not known: zeros, which `df` leaves out.
    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let name_max = forebay_engine::limits::NAME_BYTES_MAX as u32;
        reply.statfs(0, 0, 0, 0, 0, BLKSIZE_BYTES, name_max, BLKSIZE_BYTES);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permission bits itself (`default_permissions`).
        reply.ok();
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
