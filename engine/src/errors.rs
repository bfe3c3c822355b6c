//! The typed errors that leave the engine.

use thiserror::Error;

/// Why the origin did not do what was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{kind}: {detail}")]
pub struct OriginError {
    /// What kind of failure: decides retry and errno.
    pub kind: OriginErrorKind,
    /// What failed, on which object, and what to do next; for people.
    pub detail: Box<str>,
}

impl OriginError {
    /// An error of `kind` with a text for people.
    pub fn new(kind: OriginErrorKind, detail: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }
}

/// Kinds of origin failures.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OriginErrorKind {
    /// The object (or the listing's bucket) does not exist.
    #[error("not found")]
    NotFound,
    /// The bucket does not exist.
    #[error("no such bucket")]
    NoSuchBucket,
    /// The credentials are missing, wrong or not allowed to do this.
    #[error("access denied")]
    Denied,
    /// The bucket is served from another region.
    #[error("wrong region")]
    WrongRegion,
    /// The object is no longer the version that was asked for.
    #[error("version changed")]
    VersionChanged,
    /// The origin asks for slower going (503 SlowDown, 429).
    #[error("throttled")]
    Throttled,
    /// Connection refused, reset, 5xx, name not resolved.
    #[error("unavailable")]
    Unavailable,
    /// No answer, or no progress, in time.
    #[error("timed out")]
    Timeout,
    /// The body ended before its length.
    #[error("short body")]
    ShortBody,
    /// The answer breaks the protocol: 200 for a range, wrong length, unreadable listing.
    #[error("bad answer")]
    BadAnswer,
    /// The request was cancelled by the engine.
    #[error("cancelled")]
    Cancelled,
}

impl OriginErrorKind {
    /// Whether it says something of who asked, of its credentials or settings: another node may be answered otherwise.
    pub fn is_of_asker(self) -> bool {
        matches!(self, Self::Denied | Self::WrongRegion)
    }

    /// Whether another attempt may succeed.
    pub fn is_transient(self) -> bool {
        use OriginErrorKind::*;
        matches!(
            self,
            Throttled | Unavailable | Timeout | ShortBody | BadAnswer | Cancelled
        )
    }
}

/// Why a read was not answered with bytes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// The deadline passed. EIO; SIGBUS in a mapping.
    #[error("deadline passed")]
    Deadline,
    /// The origin no longer has this version and no one caches it. ESTALE.
    #[error("the object has changed at the origin and this version is no longer cached")]
    VersionChanged,
    /// The origin failed for good, or until the deadline.
    #[error("origin: {0}")]
    Origin(OriginError),
    /// The bytes failed their checksum again after they were fetched anew.
    #[error("checksum mismatch that a re-fetch did not mend")]
    Checksum,
    /// The request itself is malformed (longer than `READ_BYTES_MAX`).
    #[error("invalid request")]
    Invalid,
    /// The engine is shutting down.
    #[error("shutting down")]
    Shutdown,
}
