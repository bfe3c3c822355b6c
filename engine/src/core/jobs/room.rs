//! How much warm-ups may have in memory: what they read waits there for the disk. Were it more than memory can hold
//! while the disk is slow, it would be evicted before it is written, and read from the origin twice.
//!
//! ```text
//! a block's bytes are to be read -> there is room   -> held -> on disk, or the job ends: the next in the line
//!                                -> there is none   -> the line
//! ```
//!
//! What is held is evicted only when nothing else is left to evict.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::Core;
use super::{JobKey, Jobs, Waits};
use crate::identity::BlockId;
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES, SUB_BLOCK_BYTES, WARM_ARENA_SHARE};
use crate::ports::{Platform, Time};

/// What all warm-ups of a core hold.
#[derive(Debug, Default)]
pub(super) struct Room {
    held_bytes: usize,
    /// Those that wait for room, and some that have ended meanwhile.
    line: VecDeque<JobKey>,
}

/// What one warm-up holds: room for bytes of its object, within a block.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// None when it is empty.
    pub bytes: Range<u64>,
    block: Option<BlockId>,
    footprint_bytes: usize,
}

impl Jobs {
    /// Whether a warm-up in the line may have so much now.
    fn has_room(&self, footprint_bytes: usize, arena_bytes: usize) -> bool {
        let held_bytes = self.room.held_bytes;
        held_bytes == 0 || held_bytes + footprint_bytes <= arena_bytes / WARM_ARENA_SHARE
    }
}

impl<P: Platform> Core<P> {
    /// Whether a warm-up may read at `at`, and what follows in the block. If not, it waits in the line.
    pub(super) fn has_warm_room(&mut self, now: Time, key: JobKey, at: u64) -> bool {
        let Some(job) = self.jobs.get(key) else {
            return false;
        };
        if job.held.bytes.contains(&at) {
            return true;
        }
        self.let_go(key);
        self.jobs.room.line.push_back(key);
        self.jobs.set_waits(key, Waits::Room);
        self.give_room(now, Some(key));
        self.jobs
            .get(key)
            .is_some_and(|job| job.held.bytes.contains(&at))
    }

    /// A warm-up holds nothing any more: the next ones go on.
    pub(super) fn let_go(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        let held = std::mem::take(&mut job.held);
        self.jobs.room.held_bytes -= held.footprint_bytes;
        if let Some(block) = held.block {
            self.index.unhold(block);
            self.give_room(self.now, None);
        }
    }

    /// Lets warm-ups out of the line, in its order, as far as there is room. All but `but` are told.
    fn give_room(&mut self, now: Time, but: Option<JobKey>) {
        let arena_bytes = self.parts.arena.capacity_bytes();
        while let Some(key) = self.jobs.room.line.front().copied() {
            let waiting = self.jobs.get(key).filter(|job| job.waits == Waits::Room);
            let Some(job) = waiting else {
                self.jobs.room.line.pop_front();
                continue;
            };
            let block = job.object.block(job.at);
            let end = (block.offset() + BLOCK_BYTES as u64).min(job.bytes.end);
            let bytes = job.at..end;
            let footprint_bytes = footprint_of(&bytes);
            if !self.jobs.has_room(footprint_bytes, arena_bytes) {
                return;
            }
            self.jobs.room.line.pop_front();
            self.jobs.room.held_bytes += footprint_bytes;
            self.index.hold(block);
            if let Some(job) = self.jobs.get(key) {
                job.held = Held {
                    bytes,
                    block: Some(block),
                    footprint_bytes,
                };
            }
            self.jobs.set_waits(key, Waits::Nothing);
            if but != Some(key) {
                self.look_again(now, key);
            }
        }
    }
}

/// What bytes within a block take of the arena at most: sub-blocks, and a chunk where it is well filled.
fn footprint_of(bytes: &Range<u64>) -> usize {
    let sub_bytes = SUB_BLOCK_BYTES as u64;
    let subs = bytes.end.div_ceil(sub_bytes) - bytes.start / sub_bytes;
    let footprint_bytes = subs as usize * SUB_BLOCK_BYTES;
    let rest_bytes = footprint_bytes % CHUNK_BYTES;
    match rest_bytes >= CHUNK_BYTES / 4 * 3 {
        true => footprint_bytes - rest_bytes + CHUNK_BYTES,
        false => footprint_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_nearly_full_counts_as_one() {
        const MIB: u64 = 1 << 20;
        for (bytes, footprint_bytes) in [
            (0..1, 64 << 10),
            (5..64 << 10, 64 << 10),
            (0..(64 << 10) + 1, 128 << 10),
            (0..800 << 10, 1 << 20),
            (MIB..4 * MIB, 3 << 20),
            (0..3 * MIB + 1, (3 << 20) + (64 << 10)),
        ] {
            assert_eq!(footprint_of(&bytes), footprint_bytes, "{bytes:?}");
        }
    }
}
