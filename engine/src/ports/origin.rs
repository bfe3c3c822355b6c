//! Object storage as the engine sees it.

use std::sync::Arc;

use super::{Full, Time};
use crate::arena::Lease;
use crate::errors::OriginError;
use crate::identity::{Bucket, ObjectVersion, Validator};

/// Names one operation of one core at the origin; the core never reuses a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginTag(pub u64);

/// What the engine asks of the origin. One attempt each: retries are the engine's.
#[derive(Debug)]
pub enum OriginOp {
    /// A ranged GET of one object version.
    Get(GetOp),
    /// Attributes of one key.
    Head(HeadOp),
    /// One page of a listing.
    List(ListOp),
}

/// A ranged GET into leases.
#[derive(Debug)]
pub struct GetOp {
    /// Names the operation.
    pub tag: OriginTag,
    /// Which version: the answer must be 206 with this validator and total length.
    pub object: Arc<ObjectVersion>,
    /// First byte asked for.
    pub offset: u64,
    /// Filled in order; each lease's length (`Lease::len`) says how many bytes it takes. Together they
    /// are the range: at least one byte, within the object.
    pub leases: Vec<Lease>,
    /// After this the answer is of no use.
    pub deadline: Time,
}

impl GetOp {
    /// Bytes asked for.
    pub fn len_bytes(&self) -> u64 {
        self.leases.iter().map(|lease| lease.len() as u64).sum()
    }
}

/// A HEAD.
#[derive(Clone, Debug)]
pub struct HeadOp {
    /// Names the operation.
    pub tag: OriginTag,
    /// Where.
    pub bucket: Arc<Bucket>,
    /// The whole key.
    pub key: Arc<str>,
    /// After this the answer is of no use.
    pub deadline: Time,
}

/// One page of ListObjectsV2.
#[derive(Clone, Debug)]
pub struct ListOp {
    /// Names the operation.
    pub tag: OriginTag,
    /// What to list.
    pub request: ListRequest,
    /// After this the answer is of no use.
    pub deadline: Time,
}

/// What to list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListRequest {
    /// Where.
    pub bucket: Arc<Bucket>,
    /// Keys begin with this; empty or ending in `/` for a directory.
    pub prefix: Arc<str>,
    /// Roll keys up at the next `/` (a directory's listing) or not (a whole tree's).
    pub delimited: bool,
    /// `next` of the page before; none for the first page.
    pub continuation: Option<Arc<str>>,
    /// At most this many entries; 1 to 1,000.
    pub entries_max: u32,
}

impl ListRequest {
    /// Whether there is anything below the directory `key` (no slash at its end): one key is enough.
    pub fn below(bucket: &Arc<Bucket>, key: &str) -> Self {
        Self {
            bucket: bucket.clone(),
            prefix: format!("{key}/").into(),
            delimited: false,
            continuation: None,
            entries_max: 1,
        }
    }
}

/// Attributes of one object as the origin tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The whole key.
    pub key: Arc<str>,
    /// Length in bytes.
    pub size_bytes: u64,
    /// ETag, or the time of the last change where there is no usable one.
    pub validator: Validator,
    /// Time of the last change, nanoseconds since 1970.
    pub modified_ns: i128,
}

impl ObjectMeta {
    /// The version that these attributes describe.
    pub fn version(&self, bucket: &Arc<Bucket>) -> ObjectVersion {
        ObjectVersion::new(
            bucket.clone(),
            self.key.clone(),
            self.validator.clone(),
            self.size_bytes,
        )
    }
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEntry {
    /// A key.
    Object(ObjectMeta),
    /// A common prefix, ending in `/`.
    Prefix(Arc<str>),
}

/// One page of a listing, in the key order of the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects and prefixes, merged in byte order.
    pub entries: Vec<ListEntry>,
    /// Where the next page begins; none after the last.
    pub next: Option<Arc<str>>,
    /// Keys that are no UTF-8 and were left out.
    pub left_out: u32,
}

/// What the origin answers.
#[derive(Debug)]
pub enum OriginEvent {
    /// The next lease of a GET is full. Leases come back in the order of the GET.
    Filled {
        /// Which GET.
        tag: OriginTag,
        /// The lease, all its bytes written.
        lease: Lease,
    },
    /// A GET that takes long to fill a lease is not stalled: bytes came, or it waits its turn at the
    /// adapter. At most one a second for each GET is needed.
    Progress {
        /// Which GET.
        tag: OriginTag,
    },
    /// A GET ended. `Ok` only after every lease came back as `Filled`.
    GetDone {
        /// Which GET; no more events bear this tag.
        tag: OriginTag,
        /// How it ended.
        result: Result<(), OriginError>,
        /// Every lease that was not filled, in order.
        unfilled: Vec<Lease>,
        /// Bytes that came from the origin and were in no `Filled` lease: they are booked too.
        wasted_bytes: u64,
    },
    /// A HEAD ended.
    Head {
        /// Which.
        tag: OriginTag,
        /// `NotFound` when there is no such key.
        result: Result<ObjectMeta, OriginError>,
    },
    /// A listing page ended.
    List {
        /// Which.
        tag: OriginTag,
        /// The page. A prefix without keys is an empty page, not an error.
        result: Result<ListPage, OriginError>,
    },
}

/// Object storage. Each core has an instance of its own.
///
/// Rules that the conformance suite checks: every submitted operation ends in exactly one final
/// event (`GetDone`, `Head`, `List`), also when it is cancelled or the origin hangs past the
/// deadline; every lease comes back exactly once; bytes are of the version asked for, or the
/// GET fails with `VersionChanged`.
pub trait Origin {
    /// Starts an operation, or gives it back when too many are under way. Only then: the end of one
    /// of those wakes the core, which is when it tries again.
    ///
    /// # Errors
    /// [`Full`] with the operation, untouched.
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>>;

    /// The next event, if there is one.
    fn poll(&mut self) -> Option<OriginEvent>;

    /// Asks for an early end (`Cancelled`, or whatever already happened). The final event still
    /// comes. Unknown tags are ignored.
    fn cancel(&mut self, tag: OriginTag);
}
