//! What can go wrong before work is under way.

use std::io;

/// Setting something up failed.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library is not there, or too old.
    #[error(
        "RDMA is not to be had here: {library}: {reason}; install rdma-core's libraries (Debian: libibverbs1, librdmacm1, ibverbs-providers)"
    )]
    Load {
        /// The library's file name.
        library: String,
        /// What the loader said.
        reason: String,
    },
    /// There is no such device.
    #[error("no RDMA device {name}; this machine has {present}")]
    NoDevice {
        /// The name that was asked for.
        name: String,
        /// The names of those that are there.
        present: String,
    },
    /// A call of the library failed.
    #[error("{call} on {object}: {source}{advice}")]
    Call {
        /// The function.
        call: &'static str,
        /// The device, and which of its parts.
        object: String,
        /// The system's error.
        source: io::Error,
        /// What to do about it, where that is known; begins with `; `.
        advice: &'static str,
    },
    /// The device told something that cannot be used.
    #[error("{object}: {what}")]
    Unusable {
        /// The device, and which of its parts.
        object: String,
        /// What is wrong, and what to do.
        what: String,
    },
}

impl VerbsError {
    /// Whether the system answered `EIO`.
    pub(crate) fn is_io(&self) -> bool {
        match self {
            VerbsError::Call { source, .. } => source.raw_os_error() == Some(libc::EIO),
            _ => false,
        }
    }
}

/// Work was not posted; nothing of it is under way.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The queue has no room until completions were taken.
    #[error("the queue pair's queue is full: take completions first")]
    Full,
    /// The bytes lie outside of the region.
    #[error("{len_bytes} bytes at {offset_bytes} lie outside of a region of {region_bytes}")]
    OutsideRegion {
        /// Where they begin.
        offset_bytes: usize,
        /// How many.
        len_bytes: usize,
        /// The region's length.
        region_bytes: usize,
    },
    /// More than a message, or an inline one, may have.
    #[error("a message of {len_bytes} bytes: at most {max_bytes}")]
    TooLong {
        /// The message's length.
        len_bytes: usize,
        /// The bound.
        max_bytes: usize,
    },
    /// The device refused it for another reason.
    #[error("the device refused the work: {0}")]
    Refused(io::Error),
}
