//! The file system without a kernel: inodes, lookups, attributes, directories, handles.
//!
//! No operation waits. What needs the origin goes to the engine with a callback; the callback
//! runs on a core's thread and answers from there, so it is short and never waits either
//! (listing pages go on to a helper thread).
//!
//! | what the kernel relies on | how it is kept |
//! |---|---|
//! | an inode's bytes never change | a new object version is a new inode; pages may stay cached across opens |
//! | close-to-open | an open asks again once the attributes are older than `attr_ttl`, and believes nothing older than that, whoever in a group remembers it; a changed object answers ESTALE, upon which the kernel looks the name up again |
//! | an open handle stays what it is | it keeps its version; its attributes are not asked for again |
//! | names that do not exist | remembered for `negative_ttl`, here and in the kernel |
//! | while the origin does not answer | everything goes by what was last known (`past`); a version that is known to be gone does not come back |
//!
//! Directories are not asked for again by `getattr`: a lookup finds out when they are gone.

mod asking;
mod attributes;
mod directories;
mod directory;
mod emitter;
mod files;
mod helper;
mod in_listing;
mod inodes;
mod known;
mod listing;
mod lookup;
mod names;
mod past;
mod record;
mod renewal;
mod revalidate;
mod siblings;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_engine::client::{Accept, Callback, Client, Told};
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::identity::Bucket;
use forebay_engine::limits::{KEY_BYTES_MAX, NAME_BYTES_MAX};
use forebay_engine::ports::{Full, ListPage, ListRequest, ObjectMeta, Time};
use fuser::{Errno, FileAttr};
use parking_lot::{Mutex, RwLock};
use slab::Slab;

pub use attributes::BLKSIZE_BYTES;
pub use directories::{KernelListing, OpenedDirectory};
pub use directory::DirSink;
pub(crate) use inodes::file_number;
pub use inodes::{FileVersion, ROOT};
pub use listing::{Kind, Listed};
pub use names::{LeftOut, LeftOutCounters, check as check_name};
pub use renewal::{Owners, Renewed};

use crate::options::MountOptions;
use crate::read_ahead::Budget;
use crate::reply::ReadReply;
use attributes::Attributes;
use directory::Directory;
use files::OpenFile;
use helper::Helper;
use inodes::{FileNode, InodeTable, Node};
use known::{Known, KnownNames};
use renewal::Renewals;
use siblings::Siblings;

/// A name's inode, and how long to believe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Attributes, the inode number among them.
    pub attr: FileAttr,
    /// Time to live of the attributes: what is left of it.
    pub attr_ttl: Duration,
    /// Time to live of the name: what is left of it.
    pub entry_ttl: Duration,
}

/// Why a name leads to no inode, and how long to believe that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupError {
    /// The error.
    pub errno: Errno,
    /// How long an absence may be remembered; zero for any other error.
    pub ttl: Duration,
}

impl From<Errno> for LookupError {
    fn from(errno: Errno) -> Self {
        Self {
            errno,
            ttl: Duration::ZERO,
        }
    }
}

/// What a namespace holds and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceStats {
    /// Inodes that the kernel or a handle knows, the root included.
    pub inodes: u64,
    /// Names remembered from listings and lookups.
    pub known_names: u64,
    /// Open file handles.
    pub open_files: u64,
    /// Open directory handles.
    pub open_directories: u64,
    /// Lookups, however answered.
    pub lookups: u64,
    /// Of those, answered without the origin.
    pub lookups_remembered: u64,
    /// Opens and stats that asked the origin whether the version is still there.
    pub revalidations: u64,
    /// Of those, that found the object changed or gone.
    pub superseded: u64,
    /// Lookups, opens and stats answered with what was known from before, because the origin did not answer.
    pub stale_answers: u64,
    /// Listing pages asked for by directory handles.
    pub pages_listed: u64,
    /// Listing pages that were asked for because of lookups, and have not come yet.
    pub sibling_pages_awaited: u64,
    /// Reads refused because the core's ring stayed full.
    pub reads_refused: u64,
    /// Bytes announced by read-ahead and not read yet.
    pub read_ahead_bytes: u64,
    /// Keys that are not shown, by kind, counted each time a listing met them.
    pub left_out: Vec<(LeftOut, u64)>,
}

#[derive(Debug, Default)]
struct Counters {
    lookups: AtomicU64,
    lookups_remembered: AtomicU64,
    revalidations: AtomicU64,
    superseded: AtomicU64,
    stale_answers: AtomicU64,
    pages_listed: AtomicU64,
    sibling_pages_awaited: AtomicU64,
    reads_refused: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

type EntryReply = Box<dyn FnOnce(Result<Entry, LookupError>) + Send>;

/// One bucket's prefix as a tree of files.
#[allow(missing_debug_implementations)]
pub struct Namespace<R> {
    client: Client<R>,
    bucket: Arc<Bucket>,
    attributes: Attributes,
    attr_ttl: Duration,
    entry_ttl: Duration,
    negative_ttl: Duration,
    stale_max: Duration,
    inodes: Mutex<InodeTable>,
    known: Mutex<KnownNames>,
    files: RwLock<Slab<Arc<OpenFile>>>,
    opens: AtomicU64,
    directories: Mutex<HashMap<u64, Arc<Directory>>>,
    next_directory: AtomicU64,
    root: Arc<str>,
    budget: Arc<Budget>,
    helper: Helper,
    renewals: Mutex<Renewals>,
    siblings: Mutex<Siblings>,
    siblings_go_on: AtomicBool,
    left_out: LeftOutCounters,
    counters: Counters,
}

impl<R: ReadReply> Namespace<R> {
    /// The tree below `prefix` (with or without a slash at its end; empty: the whole bucket).
    pub fn new(
        client: Client<R>,
        bucket: Arc<Bucket>,
        prefix: &str,
        options: &MountOptions,
    ) -> Arc<Self> {
        let slash = if prefix.is_empty() || prefix.ends_with('/') {
            ""
        } else {
            "/"
        };
        let root: Arc<str> = format!("{prefix}{slash}").into();
        Arc::new(Self {
            client,
            bucket,
            attributes: Attributes::new(options),
            attr_ttl: options.attr_ttl,
            entry_ttl: options.entry_ttl,
            negative_ttl: options.negative_ttl,
            stale_max: options.stale_max,
            inodes: Mutex::new(InodeTable::new(root.clone())),
            root,
            known: Mutex::new(KnownNames::new(options.attr_ttl, options.negative_ttl)),
            files: RwLock::new(Slab::new()),
            opens: AtomicU64::new(0),
            directories: Mutex::new(HashMap::new()),
            next_directory: AtomicU64::new(0),
            budget: Budget::new(options.read_ahead_budget_bytes),
            helper: Helper::start(),
            renewals: Mutex::default(),
            siblings: Mutex::default(),
            siblings_go_on: AtomicBool::new(false),
            left_out: LeftOutCounters::default(),
            counters: Counters::default(),
        })
    }

    /// What the namespace holds and did.
    pub fn stats(&self) -> NamespaceStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // One lock at a time: guards made within the expression would all live to its end.
        let inodes = self.inodes.lock().len() as u64;
        let known_names = self.known.lock().len() as u64;
        let open_files = self.files.read().len() as u64;
        let open_directories = self.directories.lock().len() as u64;
        NamespaceStats {
            inodes,
            known_names,
            open_files,
            open_directories,
            lookups: get(&self.counters.lookups),
            lookups_remembered: get(&self.counters.lookups_remembered),
            revalidations: get(&self.counters.revalidations),
            superseded: get(&self.counters.superseded),
            stale_answers: get(&self.counters.stale_answers),
            pages_listed: get(&self.counters.pages_listed),
            sibling_pages_awaited: get(&self.counters.sibling_pages_awaited),
            reads_refused: get(&self.counters.reads_refused),
            read_ahead_bytes: self.budget.used_bytes(),
            left_out: LeftOut::ALL
                .map(|kind| (kind, self.left_out.get(kind)))
                .to_vec(),
        }
    }

    /// What all keys of the tree begin with: empty, or ending in a slash.
    pub fn root(&self) -> Arc<str> {
        self.root.clone()
    }

    /// Counts of the keys that are not shown.
    pub fn left_out(&self) -> &LeftOutCounters {
        &self.left_out
    }

    /// What `name` in directory `parent` is. The answer counts as one lookup until
    /// [`Namespace::forget`].
    ///
    /// # Errors
    /// To `reply`: ENOENT (and only then may the absence be remembered), ESTALE for an unknown
    /// parent, ENOTDIR, ENAMETOOLONG, EACCES when the origin refuses, EIO when it fails.
    pub fn lookup(
        self: &Arc<Self>,
        parent: u64,
        name: &OsStr,
        reply: impl FnOnce(Result<Entry, LookupError>) + Send + 'static,
    ) {
        count(&self.counters.lookups);
        let now = self.client.now();
        let key = match self.key_of(parent, name) {
            Ok(key) => key,
            Err(Errno::ENOENT) => return reply(Err(self.absent(now))),
            Err(errno) => return reply(Err(errno.into())),
        };
        let known = self.known.lock().get(&key, now);
        let mut max_age = self.max_age(&key);
        if let Some((at, known)) = known {
            if let Some(answer) = self.entry_of_known(&key, known, at) {
                count(&self.counters.lookups_remembered);
                self.sibling_known(parent);
                return reply(answer);
            }
            // The group may remember that version as well.
            max_age = Duration::ZERO;
        }
        self.sibling_asked(parent, &key);
        self.ask_name(key, max_age, Box::new(reply));
    }

    /// The whole key of `name` in `parent`, without a slash at its end.
    fn key_of(&self, parent: u64, name: &OsStr) -> Result<Arc<str>, Errno> {
        let prefix = match self.inodes.lock().get(parent) {
            Some(Node::Directory(prefix)) => prefix,
            Some(Node::File(_)) => return Err(Errno::ENOTDIR),
            None => return Err(Errno::ESTALE),
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        // A key that S3 does not allow has no object.
        if names::check(name).is_err() || prefix.len() + name.len() > KEY_BYTES_MAX {
            return Err(Errno::ENOENT);
        }
        Ok(format!("{prefix}{name}").into())
    }

    /// Answers from memory, unless what is remembered is a version known to be gone.
    fn entry_of_known(
        &self,
        key: &str,
        known: Known,
        at: Time,
    ) -> Option<Result<Entry, LookupError>> {
        let kind = match known {
            Known::Absent => return Some(Err(self.absent(at))),
            Known::Present(kind) => kind,
        };
        if let Kind::File(meta) = &kind {
            let id = meta.version(&self.bucket).id;
            if self.inodes.lock().is_superseded(id) {
                self.known.lock().remove(key);
                return None;
            }
        }
        Some(Ok(self.entry(key, &kind, at)))
    }

    /// The origin has told what `key` is, when asked at `asked`.
    fn looked_up(
        &self,
        key: &Arc<str>,
        found: Option<Kind>,
        asked: Time,
    ) -> Result<Entry, LookupError> {
        let known = found.map_or(Known::Absent, Known::Present);
        self.known.lock().insert(key.clone(), asked, known.clone());
        match known {
            Known::Absent => Err(self.absent(asked)),
            Known::Present(kind) => {
                let entry = self.entry(key, &kind, asked);
                self.inodes.lock().supersede(entry.attr.ino.0, false);
                Ok(entry)
            }
        }
    }

    /// The origin said at `at` that a name does not exist.
    fn absent(&self, at: Time) -> LookupError {
        LookupError {
            errno: Errno::ENOENT,
            ttl: self.left(self.negative_ttl, at),
        }
    }

    /// What is left of a time to live for what the origin said at `at`.
    fn left(&self, ttl: Duration, at: Time) -> Duration {
        ttl.saturating_sub(self.client.now().since(at))
    }

    /// Counts a lookup of `key`, learned at `at`, and makes its entry.
    fn entry(&self, key: &str, kind: &Kind, at: Time) -> Entry {
        let (attr, validated) = match kind {
            Kind::Directory => {
                let prefix = format!("{key}/").into();
                let number = self.inodes.lock().remember_directory(&prefix);
                (self.attributes.directory(number), at)
            }
            Kind::File(meta) => {
                let object = meta.version(&self.bucket);
                let mut inodes = self.inodes.lock();
                let (number, file) = inodes.remember_file(&object, meta.modified_ns, at);
                (self.file_attr(number, &file), file.validated)
            }
        };
        // Names are remembered here for `attr_ttl`: where that is longer, the kernel may go on
        // asking every `entry_ttl` and be answered from memory until it is over.
        let name_ttl = self.attr_ttl.max(self.entry_ttl);
        Entry {
            attr,
            attr_ttl: self.left(self.attr_ttl, validated),
            entry_ttl: self.left(name_ttl, at).min(self.entry_ttl),
        }
    }

    fn file_attr(&self, number: u64, file: &FileNode) -> FileAttr {
        self.attributes
            .file(number, file.size_bytes, file.modified_ns)
    }

    /// The kernel has forgotten `lookups` lookups of an inode.
    pub fn forget(&self, number: u64, lookups: u64) {
        self.inodes.lock().forget(number, lookups);
    }

    /// Attributes of an inode, and their time to live. A file that no handle is open on is asked
    /// for again after `attr_ttl`.
    ///
    /// # Errors
    /// To `reply`: ESTALE when the inode is unknown, or the object changed or is gone (the
    /// kernel then looks the name up again); EACCES, EIO.
    pub fn getattr(
        self: &Arc<Self>,
        number: u64,
        reply: impl FnOnce(Result<(FileAttr, Duration), Errno>) + Send + 'static,
    ) {
        let (node, is_open) = {
            let inodes = self.inodes.lock();
            (inodes.get(number), inodes.is_open(number))
        };
        match node {
            None => reply(Err(Errno::ESTALE)),
            Some(Node::File(file)) if !is_open => {
                let attr = self.file_attr(number, &file);
                let this = self.clone();
                self.revalidate(number, file, move |result| {
                    reply(result.map(|at| (attr, this.left(this.attr_ttl, at))));
                });
            }
            Some(Node::File(file)) => {
                reply(Ok((self.file_attr(number, &file), self.attr_ttl)));
            }
            Some(Node::Directory(_)) => {
                reply(Ok((self.attributes.directory(number), self.attr_ttl)));
            }
        }
    }

    fn head(&self, key: Arc<str>, accept: Accept, reply: Callback<Told<ObjectMeta>>) {
        if let Err(Full(reply)) = self.client.head(&self.bucket, key, accept, reply) {
            reply(self.busy());
        }
    }

    fn list(&self, request: ListRequest, accept: Accept, reply: Callback<Told<Arc<ListPage>>>) {
        if let Err(Full(reply)) = self.client.list(request, accept, reply) {
            reply(self.busy());
        }
    }

    /// A metadata request found its core's ring full. It is not tried again: callbacks run on the
    /// core's own thread, which would wait for itself.
    fn busy<T>(&self) -> Told<T> {
        Told {
            result: Err(OriginError::new(
                OriginErrorKind::Throttled,
                "the engine's request ring is full; try again",
            )),
            at: self.client.now(),
        }
    }
}
