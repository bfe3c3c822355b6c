//! A device in memory: ends every operation at once. For figures that count and do not time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_engine::ports::{
    BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full,
};

/// Operations that have ended and were not asked for yet.
const READY_MAX: usize = 1_024;

/// Bytes in memory.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: Vec<u8>,
    ready: VecDeque<DeviceEvent>,
    /// Bytes that were written to it.
    pub written_bytes: u64,
    /// Reads of it; who holds the other end sees them while the device is a core's.
    pub reads: Arc<AtomicU64>,
}

impl MemoryDevice {
    /// `capacity_bytes` of zeros.
    pub fn new(capacity_bytes: usize) -> Self {
        Self {
            bytes: vec![0; capacity_bytes],
            ready: VecDeque::new(),
            written_bytes: 0,
            reads: Arc::default(),
        }
    }

    /// So many bytes that are not zeros, which would all be one page of the kernel's until they are written.
    pub fn filled(capacity_bytes: usize) -> Self {
        Self {
            bytes: vec![0x5a; capacity_bytes],
            ..Self::new(0)
        }
    }

    fn range(&mut self, offset_bytes: u64, len_bytes: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(offset_bytes).ok()?;
        self.bytes.get_mut(start..start.checked_add(len_bytes)?)
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            sector_bytes: 4096,
            capacity_bytes: self.bytes.len() as u64,
        }
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        if self.ready.len() >= READY_MAX {
            return Err(Full(op));
        }
        let event = match op {
            DeviceOp::Read {
                tag,
                offset_bytes,
                mut lease,
            } => {
                self.reads.fetch_add(1, Relaxed);
                let found = self.range(offset_bytes, lease.len());
                let result = found
                    .map(|from| lease.bytes_mut().copy_from_slice(from))
                    .ok_or(DeviceError::Range);
                DeviceEvent::Read { tag, lease, result }
            }
            DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            } => {
                let found = self.range(offset_bytes, bytes.len());
                let result = found
                    .map(|to| to.copy_from_slice(&bytes))
                    .ok_or(DeviceError::Range);
                self.written_bytes += bytes.len() as u64;
                DeviceEvent::Write { tag, bytes, result }
            }
            DeviceOp::Flush { tag } => DeviceEvent::Flush {
                tag,
                result: Ok(()),
            },
            DeviceOp::Discard { tag, .. } => DeviceEvent::Discard {
                tag,
                result: Ok(()),
            },
        };
        self.ready.push_back(event);
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        self.ready.pop_front()
    }
}
