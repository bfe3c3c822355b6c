//! Making room: which block goes, or which of its pieces.
//!
//! Pieces that are on their way to disk never go: the disk tier holds their buffers until they are
//! written, so evicting them would lose bytes and free none.

use super::{BlockKey, Index, Mask};
use crate::core::s3fifo::Where;
use crate::limits::{HITS_MAX, SUB_BLOCKS_PER_BLOCK};

/// Busy blocks passed over in one queue before the other one is asked. The oldest come first: where so
/// many are busy, what comes after them is as a rule.
const BUSY_MAX: usize = 64;

impl Index {
    /// Evicts the block that S3-FIFO would miss least, and returns the bytes that came free; none
    /// when nothing can go. Blocks that a fill is still completing go late, pieces that a parked
    /// read will read go last.
    pub fn evict(&mut self) -> Option<usize> {
        self.evict_settled()
            .or_else(|| self.evict_unawaited(true))
            .or_else(|| self.evict_unawaited(false))
            .or_else(|| self.evict_any())
    }

    fn evict_settled(&mut self) -> Option<usize> {
        // Each round drops a hit, moves a block to the main queue, passes over a busy one or
        // evicts: bounded.
        let rounds = self.queues.len() * (usize::from(HITS_MAX) + 2) + 1;
        let mut busy = 0;
        let mut spent = Where::Nowhere;
        for _ in 0..rounds {
            let (key, from) = self.queues.pop(spent)?;
            let is_held = self.is_held(key);
            let block = &mut self.blocks[key];
            self.queues.shrink(from, block.footprint_bytes);
            let awaited = block.in_flight | block.saving != 0 || !block.waiters.is_empty();
            let awaited = awaited || is_held;
            let keep = match (awaited, block.hits, from) {
                (true, _, _) => {
                    busy += 1;
                    Some(from)
                }
                // Read ahead and not read yet: the small queue alone is shorter than what readers may
                // have ahead of them, and evicting it would fetch it twice.
                (false, 0, Where::Small) if block.touched == 0 => Some(Where::Main),
                (false, 0, _) => None,
                (false, _, Where::Small) => {
                    block.hits = 0;
                    Some(Where::Main)
                }
                (false, _, _) => {
                    block.hits -= 1;
                    Some(Where::Main)
                }
            };
            let Some(place) = keep else {
                match self.remove_contents(key) {
                    0 => continue,
                    freed => return Some(freed),
                }
            };
            block.place = place;
            self.queues.push(place, key);
            self.queues.grow(place, block.footprint_bytes);
            if busy > self.queues.len_of(from).min(BUSY_MAX) {
                (busy, spent) = (0, from);
            }
        }
        None
    }

    /// Every cached block is being completed by a fill or waited for, and those fills may be waiting
    /// for just this memory: the oldest gives up what no reader waits for, and, when it `spares` them, no warm-up.
    fn evict_unawaited(&mut self, spares: bool) -> Option<usize> {
        if !spares && self.held.is_empty() {
            return None;
        }
        self.evict_all_but(|index, key| {
            if spares && index.is_held(key) {
                return Mask::MAX;
            }
            let block = &index.blocks[key];
            let wants = block.waiters.iter().map(|waiter| waiter.wants);
            wants.fold(block.saving, |all, wants| all | wants)
        })
    }

    /// All that is cached is waited for: someone has to give way, or nobody gets on.
    fn evict_any(&mut self) -> Option<usize> {
        self.evict_all_but(|index, key| index.blocks[key].saving)
    }

    /// Drops, of the first block that has any, the pieces that touch none of the sub-blocks that
    /// `keeps` names.
    fn evict_all_but(&mut self, keeps: impl Fn(&Self, BlockKey) -> Mask) -> Option<usize> {
        let first = self.queues.next();
        let in_first = self.queues.len_of(first);
        for round in 0..self.queues.len() {
            // Every block of one queue, then every block of the other.
            let spent = match round < in_first {
                true => first.other(),
                false => first,
            };
            let (key, from) = self.queues.pop(spent)?;
            self.queues.shrink(from, self.blocks[key].footprint_bytes);
            let freed = self.remove_all_but(key, keeps(self, key));
            let block = &self.blocks[key];
            if block.present != 0 {
                self.queues.push(from, key);
                self.queues.grow(from, block.footprint_bytes);
            } else {
                self.queues.remember(block.id);
                self.remove_contents(key);
            }
            if freed > 0 {
                return Some(freed);
            }
        }
        None
    }

    /// Drops the pieces of a block that touch none of `keep`; returns the bytes that came free.
    fn remove_all_but(&mut self, key: BlockKey, keep: Mask) -> usize {
        if self.blocks[key].present & !keep == 0 {
            return 0;
        }
        let before = self.blocks[key].footprint_bytes;
        for sub in 0..SUB_BLOCKS_PER_BLOCK {
            let Some(piece) = self.blocks[key].piece_at(sub) else {
                continue;
            };
            if piece.mask() & keep == 0 {
                self.take_piece(key, sub);
            }
        }
        let freed = before - self.blocks[key].footprint_bytes;
        if freed > 0 {
            self.changes += 1;
            self.evictions += 1;
            self.blocks[key].was_evicted = true;
        }
        freed
    }

    /// Empties a block that was taken out of its queue; returns the bytes that came free.
    fn remove_contents(&mut self, key: BlockKey) -> usize {
        self.changes += 1;
        self.clear_saving(key, Mask::MAX);
        let block = &mut self.blocks[key];
        let freed = std::mem::take(&mut block.footprint_bytes);
        block.place = Where::Nowhere;
        block.chunks = Default::default();
        block.touched = 0;
        block.hits = 0;
        if std::mem::take(&mut block.present) != 0 {
            block.was_evicted = true;
            self.evictions += 1;
            self.queues.remember(block.id);
        }
        self.forget_if_idle(key);
        freed
    }
}
