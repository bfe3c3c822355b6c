//! Blocks at rest. Shaped after queue pairs, so that SPDK, io_uring and memory all fit: nothing
//! here names a file descriptor.

use std::time::Duration;

use super::Full;
use crate::arena::{Frozen, Lease};

/// Names one operation of one core on a device; the core never reuses a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceTag(pub u64);

/// Size and granularity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Offsets and lengths are multiples of this: 512 or 4,096.
    pub sector_bytes: u32,
    /// Bytes in all.
    pub capacity_bytes: u64,
}

/// What the engine asks of a device. Offsets and lengths are whole sectors.
#[derive(Debug)]
pub enum DeviceOp {
    /// Fills `lease` (all of its length) from `offset_bytes`.
    Read {
        /// Names the operation.
        tag: DeviceTag,
        /// Where.
        offset_bytes: u64,
        /// Destination.
        lease: Lease,
    },
    /// Writes `bytes` at `offset_bytes`.
    Write {
        /// Names the operation.
        tag: DeviceTag,
        /// Where.
        offset_bytes: u64,
        /// Source; stays shared with readers while it is written.
        bytes: Frozen,
    },
    /// Everything whose write completed before is on stable media when this completes.
    Flush {
        /// Names the operation.
        tag: DeviceTag,
    },
    /// The range's contents are no longer needed; reading it afterwards gives anything.
    Discard {
        /// Names the operation.
        tag: DeviceTag,
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u64,
    },
}

/// Why a device operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The media could not give these bytes back.
    #[error("media error")]
    Media,
    /// The write was not done, or not wholly.
    #[error("write failed")]
    Write,
    /// No room (disk full, quota).
    #[error("no space")]
    NoSpace,
    /// The media takes no writes (any more): reads may go on.
    #[error("read-only")]
    ReadOnly,
    /// Offset or length is not in whole sectors, or beyond the end.
    #[error("out of range or unaligned")]
    Range,
    /// The device is gone.
    #[error("device gone")]
    Gone,
}

/// How a device operation ended, with its buffers.
#[derive(Debug)]
pub enum DeviceEvent {
    /// A read ended. On an error the lease's contents are undefined.
    Read {
        /// Which.
        tag: DeviceTag,
        /// The destination, back.
        lease: Lease,
        /// How.
        result: Result<(), DeviceError>,
    },
    /// A write ended.
    Write {
        /// Which.
        tag: DeviceTag,
        /// The source, back.
        bytes: Frozen,
        /// How. After an error the range holds anything.
        result: Result<(), DeviceError>,
    },
    /// A flush ended.
    Flush {
        /// Which.
        tag: DeviceTag,
        /// How.
        result: Result<(), DeviceError>,
    },
    /// A discard ended.
    Discard {
        /// Which.
        tag: DeviceTag,
        /// How.
        result: Result<(), DeviceError>,
    },
}

/// One queue pair on one device, owned by one core.
///
/// Rules that the conformance suite checks: every accepted operation ends in exactly one event;
/// buffers always come back; operations under way at the same time may end in any order;
/// malformed ranges end in `DeviceError::Range` and touch nothing.
pub trait BlockDevice {
    /// Size and granularity. Does not change while the queue pair lives.
    fn geometry(&self) -> DeviceGeometry;

    /// Takes an operation, or gives it back when the queue is full. It may begin at once, and
    /// begins at the latest with the next [`BlockDevice::commit`].
    ///
    /// # Errors
    /// [`Full`] with the operation, untouched.
    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>>;

    /// Hands all that was submitted to the device: the submission queue's doorbell, rung once a
    /// turn.
    fn commit(&mut self) {}

    /// The next completion, if there is one.
    fn poll(&mut self) -> Option<DeviceEvent>;

    /// How long its core may sleep now at most, because nothing will wake it for this device. None where the device signals
    /// its completions, or has nothing under way.
    fn nap(&mut self) -> Option<Duration> {
        None
    }

    /// Why operations end in [`DeviceError::Gone`], in words, where the device knows more. What is lost stays so: its core
    /// retires it as soon as it looks.
    fn loss(&self) -> Option<String> {
        None
    }
}

/// No disk on this node.
#[derive(Debug, Default)]
pub struct NoDevice {
    gone: std::collections::VecDeque<DeviceEvent>,
}

impl BlockDevice for NoDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            sector_bytes: 4096,
            capacity_bytes: 0,
        }
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let result = Err(DeviceError::Gone);
        self.gone.push_back(match op {
            DeviceOp::Read { tag, lease, .. } => DeviceEvent::Read { tag, lease, result },
            DeviceOp::Write { tag, bytes, .. } => DeviceEvent::Write { tag, bytes, result },
            DeviceOp::Flush { tag } => DeviceEvent::Flush { tag, result },
            DeviceOp::Discard { tag, .. } => DeviceEvent::Discard { tag, result },
        });
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        self.gone.pop_front()
    }
}
