//! The order of eviction: S3-FIFO (Yang et al., SOSP 2023), by bytes.
//!
//! New blocks enter a small queue that holds a tenth of the memory tier. What is read again while
//! there moves to the main queue, the rest leaves and is remembered as a ghost. A block that comes
//! back while its ghost is remembered enters the main queue at once. The main queue is a FIFO whose
//! hit blocks get another round. The hit counters live in the index; here are only the queues.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use super::index::{BlockKey, IdHasher, StableMap};
use crate::identity::BlockId;
use crate::limits::{GHOSTS_PER_SUB_BLOCK, SMALL_QUEUE_SHARE, SUB_BLOCK_BYTES};

/// In which queue a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Nowhere,
    Small,
    Main,
}

impl Where {
    /// The other queue.
    pub fn other(self) -> Where {
        match self {
            Where::Nowhere => Where::Nowhere,
            Where::Small => Where::Main,
            Where::Main => Where::Small,
        }
    }
}

#[derive(Debug, Default)]
struct Fifo {
    keys: VecDeque<BlockKey>,
    bytes: usize,
}

/// The two queues and the ghosts.
#[derive(Debug)]
pub(super) struct Queues {
    small: Fifo,
    main: Fifo,
    small_bytes_max: usize,
    // Oldest first; the map counts how often a fingerprint is in the queue.
    ghosts: VecDeque<u64>,
    ghost_counts: StableMap<u64, u32>,
    ghosts_max: usize,
}

fn fingerprint(id: BlockId) -> u64 {
    let mut hasher = IdHasher::default();
    id.hash(&mut hasher);
    hasher.finish()
}

impl Queues {
    pub fn new(arena_bytes: usize) -> Self {
        Self {
            small: Fifo::default(),
            main: Fifo::default(),
            small_bytes_max: arena_bytes / SMALL_QUEUE_SHARE,
            ghosts: VecDeque::new(),
            ghost_counts: StableMap::default(),
            ghosts_max: arena_bytes / SUB_BLOCK_BYTES * GHOSTS_PER_SUB_BLOCK,
        }
    }

    pub fn len(&self) -> usize {
        self.small.keys.len() + self.main.keys.len()
    }

    fn fifo(&mut self, place: Where) -> Option<&mut Fifo> {
        match place {
            Where::Nowhere => None,
            Where::Small => Some(&mut self.small),
            Where::Main => Some(&mut self.main),
        }
    }

    /// Lets a block in; tells where.
    pub fn admit(&mut self, id: BlockId, key: BlockKey) -> Where {
        let place = if self.has_ghost(id) {
            Where::Main
        } else {
            Where::Small
        };
        self.push(place, key);
        place
    }

    pub fn push(&mut self, place: Where, key: BlockKey) {
        if let Some(fifo) = self.fifo(place) {
            fifo.keys.push_back(key);
        }
    }

    /// Bytes of all blocks in the queues: all that is cached.
    pub fn bytes(&self) -> usize {
        self.small.bytes + self.main.bytes
    }

    /// The block to look at next, taken out of its queue. `spent` names a queue in which nothing
    /// was found to evict: the other one is asked first.
    pub fn pop(&mut self, spent: Where) -> Option<(BlockKey, Where)> {
        let first = match spent {
            Where::Nowhere => self.next(),
            spent => spent.other(),
        };
        [first, first.other()]
            .into_iter()
            .find_map(|place| Some((self.fifo(place)?.keys.pop_front()?, place)))
    }

    /// The queue whose turn it is to give a block up.
    pub fn next(&self) -> Where {
        match self.small.bytes > self.small_bytes_max || self.main.keys.is_empty() {
            true => Where::Small,
            false => Where::Main,
        }
    }

    /// Blocks in one queue.
    pub fn len_of(&self, place: Where) -> usize {
        match place {
            Where::Nowhere => 0,
            Where::Small => self.small.keys.len(),
            Where::Main => self.main.keys.len(),
        }
    }

    pub fn grow(&mut self, place: Where, bytes: usize) {
        if let Some(fifo) = self.fifo(place) {
            fifo.bytes += bytes;
        }
    }

    pub fn shrink(&mut self, place: Where, bytes: usize) {
        if let Some(fifo) = self.fifo(place) {
            fifo.bytes -= bytes;
        }
    }

    pub fn has_ghost(&self, id: BlockId) -> bool {
        self.ghost_counts.contains_key(&fingerprint(id))
    }

    /// Remembers an evicted block.
    pub fn remember(&mut self, id: BlockId) {
        let print = fingerprint(id);
        self.ghosts.push_back(print);
        *self.ghost_counts.entry(print).or_default() += 1;
        while self.ghosts.len() > self.ghosts_max {
            let Some(old) = self.ghosts.pop_front() else {
                return;
            };
            if let Some(count) = self.ghost_counts.get_mut(&old) {
                *count -= 1;
                if *count == 0 {
                    self.ghost_counts.remove(&old);
                }
            }
        }
    }
}
