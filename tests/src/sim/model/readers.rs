//! Who reads: one read under way each, the next when the one before was answered and handed over.

use std::sync::Arc;

use forebay_engine::identity::ObjectVersion;
use forebay_engine::ports::Time;
use forebay_fuse::read_ahead::{self, ReadAhead};

use super::super::rng::SimRng;

/// Bytes that one node's handles may have announced: a quarter of the memory that a mount has by itself.
const ANNOUNCED_BYTES_MAX: u64 = 256 << 20;

/// What is left to read.
#[derive(Debug)]
pub(super) enum Way {
    /// An object from here to its end, with the front end's read-ahead.
    Sequential {
        object: usize,
        at: u64,
        ahead: Box<ReadAhead>,
    },
    /// So many blocks of any object.
    Random { left: u64 },
}

#[derive(Debug)]
pub(super) struct Reader {
    pub node: usize,
    pub way: Way,
    pub rng: SimRng,
    /// For which there was no room.
    pub pending: Option<Wanted>,
    /// It is done, or its node is gone.
    pub is_over: bool,
}

/// One read.
#[derive(Debug)]
pub(super) struct Wanted {
    pub object: usize,
    pub offset: u64,
    pub len_bytes: u32,
    pub want_bytes: u32,
    pub prefetch: Option<std::ops::Range<u64>>,
}

impl Reader {
    pub fn sequential(node: usize, object: usize, size_bytes: u64, memory_bytes: u64) -> Self {
        let budget = read_ahead::Budget::new(ANNOUNCED_BYTES_MAX.min(memory_bytes / 4));
        Self {
            node,
            way: Way::Sequential {
                object,
                at: 0,
                ahead: Box::new(ReadAhead::new(size_bytes, budget)),
            },
            rng: SimRng::new(0),
            pending: None,
            is_over: false,
        }
    }

    pub fn random(node: usize, left: u64, seed: u64) -> Self {
        Self {
            node,
            way: Way::Random { left },
            rng: SimRng::component(seed, "reader", node as u64),
            pending: None,
            is_over: false,
        }
    }

    /// The next; none when it has read all.
    pub fn next(
        &mut self,
        objects: &[Arc<ObjectVersion>],
        block_bytes: u32,
        now: Time,
    ) -> Option<Wanted> {
        match &mut self.way {
            Way::Sequential { object, at, ahead } => {
                let size = objects[*object].size_bytes;
                let offset = *at;
                let len_bytes = (size - offset).min(u64::from(block_bytes)) as u32;
                *at += u64::from(len_bytes);
                let plan = ahead.on_read(offset, len_bytes, now);
                (len_bytes > 0).then_some(Wanted {
                    object: *object,
                    offset,
                    len_bytes,
                    want_bytes: plan.want_bytes,
                    prefetch: plan.prefetch,
                })
            }
            Way::Random { left } => {
                *left = left.checked_sub(1)?;
                let object = self.rng.below(objects.len() as u64) as usize;
                let blocks = (objects[object].size_bytes / u64::from(block_bytes)).max(1);
                Some(Wanted {
                    object,
                    offset: self.rng.below(blocks) * u64::from(block_bytes),
                    len_bytes: block_bytes,
                    want_bytes: 0,
                    prefetch: None,
                })
            }
        }
    }
}
