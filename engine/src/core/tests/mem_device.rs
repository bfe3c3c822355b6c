//! A device in memory, with faults that a test switches on and off.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::limits::PAGE_BYTES;
use crate::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full};

/// What outlives a core.
#[derive(Debug)]
pub(super) struct Media {
    pub bytes: Vec<u8>,
    /// Every read fails with this.
    pub read_error: Option<DeviceError>,
    /// Every operation fails: the device has vanished.
    pub gone: bool,
    /// Reads end only when this is off again.
    pub hold_reads: bool,
    /// Writes end only when this is off again.
    pub hold_writes: bool,
    /// Operations under way at most.
    pub queue_max: usize,
    /// Length of each read, oldest first.
    pub reads: Vec<usize>,
}

impl Media {
    pub fn new(len_bytes: u64) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            bytes: vec![0; len_bytes as usize],
            read_error: None,
            gone: false,
            hold_reads: false,
            hold_writes: false,
            queue_max: 64,
            reads: Vec::new(),
        }))
    }

    /// Changes every page that holds the bytes of a page of `contents`.
    pub fn flip_pages(&mut self, contents: &[u8]) -> usize {
        let mut flipped = 0;
        for page in self.bytes.chunks_mut(PAGE_BYTES) {
            if contents.chunks(PAGE_BYTES).any(|is| page.starts_with(is)) {
                page[1_234] ^= 0x40;
                flipped += 1;
            }
        }
        flipped
    }
}

/// One core's queue pair on it.
#[derive(Debug)]
pub(super) struct MemDevice {
    pub media: Rc<RefCell<Media>>,
    under_way: VecDeque<DeviceOp>,
}

impl MemDevice {
    pub fn new(media: &Rc<RefCell<Media>>) -> Self {
        Self {
            media: media.clone(),
            under_way: VecDeque::new(),
        }
    }
}

impl BlockDevice for MemDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            sector_bytes: 4096,
            capacity_bytes: self.media.borrow().bytes.len() as u64,
        }
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let mut media = self.media.borrow_mut();
        if self.under_way.len() >= media.queue_max {
            return Err(Full(op));
        }
        if let DeviceOp::Read { lease, .. } = &op {
            media.reads.push(lease.len());
        }
        self.under_way.push_back(op);
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        let mut media = self.media.borrow_mut();
        let held = |op: &DeviceOp| match op {
            DeviceOp::Read { .. } => media.hold_reads,
            DeviceOp::Write { .. } => media.hold_writes,
            DeviceOp::Flush { .. } | DeviceOp::Discard { .. } => false,
        };
        let next = self.under_way.iter().position(|op| !held(op))?;
        let gone = match media.gone {
            true => Err(DeviceError::Gone),
            false => Ok(()),
        };
        Some(match self.under_way.remove(next)? {
            DeviceOp::Read {
                tag,
                offset_bytes,
                mut lease,
            } => {
                let at = offset_bytes as usize;
                let result = gone.and(media.read_error.map_or(Ok(()), Err));
                let len = lease.len();
                match result {
                    Ok(()) => lease
                        .bytes_mut()
                        .copy_from_slice(&media.bytes[at..at + len]),
                    Err(_) => lease.bytes_mut().fill(0xee),
                }
                DeviceEvent::Read { tag, lease, result }
            }
            DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            } => {
                let at = offset_bytes as usize;
                if gone.is_ok() {
                    media.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                DeviceEvent::Write {
                    tag,
                    bytes,
                    result: gone,
                }
            }
            DeviceOp::Flush { tag } => DeviceEvent::Flush { tag, result: gone },
            DeviceOp::Discard { tag, .. } => DeviceEvent::Discard { tag, result: gone },
        })
    }
}
