//! What the inode table keeps of a file. There may be millions of them, so it is two allocations;
//! the [`FileVersion`] that reads name is made for the first handle and goes with the last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use forebay_engine::identity::{Bucket, ObjectId, ObjectVersion, Validator};
use forebay_engine::ports::Time;

/// One version of one object, as long as a handle is open on it.
#[derive(Debug)]
pub struct FileVersion {
    /// The version.
    pub object: Arc<ObjectVersion>,
    superseded: AtomicBool,
}

impl FileVersion {
    /// A version that the origin has.
    pub fn new(object: ObjectVersion) -> Arc<Self> {
        Arc::new(Self {
            object: Arc::new(object),
            superseded: AtomicBool::new(false),
        })
    }

    /// The origin no longer has this version: the next open answers ESTALE. Handles keep it.
    pub fn supersede(&self) {
        self.superseded.store(true, Ordering::Release);
    }

    /// Whether the origin is known to have another version, or none.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }
}

/// A file's inode, as the table knew it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileNode {
    pub(super) id: ObjectId,
    pub(super) size_bytes: u64,
    pub(super) modified_ns: i128,
    /// When the origin last said that this is the version.
    pub(super) validated: Time,
    /// Whether the origin is known to have another version, or none.
    pub(super) superseded: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FileRecord {
    node: FileNode,
    /// The key, then the ETag, or the time that stands for it in decimal digits.
    text: Box<str>,
    key_bytes: u32,
    has_etag: bool,
    /// What handles share.
    live: Weak<FileVersion>,
}

impl FileRecord {
    pub(super) fn new(object: &ObjectVersion, modified_ns: i128, validated: Time) -> Box<Self> {
        let (validator, has_etag): (&str, bool) = match &object.validator {
            Validator::ETag(etag) => (etag, true),
            Validator::Modified(ns) => (&ns.to_string(), false),
        };
        Box::new(Self {
            node: FileNode {
                id: object.id,
                size_bytes: object.size_bytes,
                modified_ns,
                validated,
                superseded: false,
            },
            text: [&*object.key, validator].concat().into(),
            key_bytes: object.key.len() as u32,
            has_etag,
            live: Weak::new(),
        })
    }

    pub(super) fn id(&self) -> ObjectId {
        self.node.id
    }

    pub(super) fn key(&self) -> &str {
        &self.text[..self.key_bytes as usize]
    }

    pub(super) fn node(&self) -> FileNode {
        let live = self.live.upgrade();
        FileNode {
            superseded: self.node.superseded || live.is_some_and(|live| live.is_superseded()),
            ..self.node
        }
    }

    /// The origin said, at `at`, that this is the version.
    pub(super) fn validated(&mut self, at: Time) {
        self.node.validated = self.node.validated.max(at);
    }

    pub(super) fn modified(&mut self, modified_ns: i128) {
        self.node.modified_ns = modified_ns;
    }

    /// The origin has this version no more (true), or again.
    pub(super) fn supersede(&mut self, superseded: bool) {
        self.node.superseded = superseded;
        if let Some(live) = self.live.upgrade() {
            live.superseded.store(superseded, Ordering::Release);
        }
    }

    /// What a handle reads: the same for all handles.
    pub(super) fn version(&mut self, bucket: &Arc<Bucket>) -> Arc<FileVersion> {
        if let Some(live) = self.live.upgrade() {
            return live;
        }
        let rest = &self.text[self.key_bytes as usize..];
        let validator = if self.has_etag {
            Validator::ETag(rest.into())
        } else {
            Validator::Modified(rest.parse().unwrap_or_default())
        };
        let version = FileVersion::new(ObjectVersion {
            id: self.node.id,
            bucket: bucket.clone(),
            key: self.key().into(),
            validator,
            size_bytes: self.node.size_bytes,
        });
        self.live = Arc::downgrade(&version);
        version
    }

    /// The last handle is closed: only what it learned stays.
    pub(super) fn rest(&mut self, superseded: bool) {
        self.node.superseded |= superseded;
        self.live = Weak::new();
    }
}
