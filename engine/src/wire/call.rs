//! Questions to a peer other than for bytes, and their answers.

use crate::errors::OriginErrorKind;
use crate::identity::Bucket;
use crate::identity::ObjectVersion;
use crate::ports::{ListPage, ListRequest, ObjectMeta};
use std::sync::Arc;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// No question: what the name of a version is. The answer is empty.
    Describe(Arc<ObjectVersion>),
    /// Attributes of a key.
    Head {
        /// Where.
        bucket: Arc<Bucket>,
        /// The whole key.
        key: Arc<str>,
    },
    /// One page of a listing.
    List(ListRequest),
    /// Bring these bytes to where they belong and keep them there. Answered, with nothing, when they are there.
    Warm {
        /// Which version.
        object: Arc<ObjectVersion>,
        /// First byte.
        offset: u64,
        /// How many, within one stripe.
        len_bytes: u32,
    },
    /// How much of a range is cached. Answered by `CallAnswer::Cached`.
    Check {
        /// Which version.
        object: Arc<ObjectVersion>,
        /// First byte.
        offset: u64,
        /// How many, within one stripe.
        len_bytes: u32,
    },
    /// Drop what is cached of a range.
    Evict {
        /// Which version.
        object: Arc<ObjectVersion>,
        /// First byte.
        offset: u64,
        /// How many, within one stripe.
        len_bytes: u32,
    },
}

/// The answer to a call that succeeded; a failure is a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAnswer {
    /// Done.
    Done,
    /// Attributes, or why there are none.
    Head(Result<ObjectMeta, (OriginErrorKind, Box<str>)>),
    /// A listing page, or why there is none.
    List(Result<ListPage, (OriginErrorKind, Box<str>)>),
    /// Bytes of the range that are cached.
    Cached {
        /// In memory or on disk.
        bytes: u64,
    },
}
