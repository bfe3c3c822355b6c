//! Small reads straight from disk: answered from the device's pages, without bringing a sub-block of
//! sixteen pages to memory for the sake of one.
//!
//! ```text
//! miss, small, on disk in one extent, nothing of it in memory or on its way
//!   -> cold: read its pages -> answer            (device full: wait in line, look again)
//!   |                        | missed: a miss as any other, from the origin
//!   -> hot: a miss as any other, which loads its sub-blocks
//! ```
//!
//! The path of each such read costs one small allocation in the disk tier, for the checksums of its
//! pages (more only when a page of a checksum table has to be read first), and no timer: one moment,
//! `due_at`, stands for the deadlines of all.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use super::Core;
use super::disk_events::{Ticket, reason};
use super::index::{IdHasher, mask_of_bytes};
use super::read::{Read, ReadKey, Route, Tier};
use crate::arena::{Lease, Share};
use crate::disk::{DiskMiss, DiskRead};
use crate::identity::BlockId;
use crate::limits::{
    BLOCK_BYTES, DIRECT_COUNTER_BYTES, DIRECT_READ_BYTES_MAX, DIRECT_READS_MAX, PAGE_BYTES,
    SUB_BLOCK_BYTES,
};
use crate::ports::{Platform, Time};

/// A direct read is named by the read that it answers.
pub(super) type DirectKey = ReadKey;

/// Direct reads, under way and in line.
#[derive(Debug)]
pub(super) struct Directs {
    count: usize,
    /// Those that found the device or the arena full.
    line: VecDeque<ReadKey>,
    is_full: bool,
    /// No deadline of theirs is earlier.
    due_at: Time,
    heat: Heat,
}

impl Default for Directs {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Directs {
    /// For an arena of `arena_bytes`.
    pub fn new(arena_bytes: usize) -> Self {
        Self {
            count: 0,
            line: VecDeque::new(),
            is_full: false,
            due_at: Time::NEVER,
            heat: Heat::new(arena_bytes),
        }
    }

    /// When a deadline must be looked at.
    pub fn due_at(&self) -> Time {
        self.due_at
    }

    fn began(&mut self, deadline: Time) {
        self.count += 1;
        self.due_at = self.due_at.min(deadline);
    }

    pub fn ended(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.due_at = Time::NEVER;
        }
    }
}

/// Tells sub-blocks that are read again and again from the rest.
///
/// One counter for each few sub-blocks that memory could hold, each with the tag of the sub-block that
/// it counts for; another's read counts it down. So a sub-block gets hot when it has most of the reads
/// that share its counter: reads spread evenly over more than memory holds heat nothing, a set that
/// fits gets hot as a whole.
#[derive(Debug)]
struct Heat(Box<[u32]>);

impl Heat {
    fn new(arena_bytes: usize) -> Self {
        let counters = (arena_bytes / DIRECT_COUNTER_BYTES).next_power_of_two();
        Self(vec![0; counters.max(64)].into())
    }

    /// Counts a read; true when the sub-block has become hot by it.
    fn count(&mut self, block: BlockId, sub: usize) -> bool {
        let mut hasher = IdHasher::default();
        block.hash(&mut hasher);
        hasher.write_u32(sub as u32);
        let hash = hasher.finish();
        let counter = &mut self.0[(hash >> 40) as usize & (self.0.len() - 1)];
        let tag = hash as u32 & !0xff;
        let reads = *counter & 0xff;
        if reads == 0 {
            *counter = tag | 1;
        } else if *counter & !0xff != tag {
            *counter -= 1;
        } else if reads >= DIRECT_READS_MAX {
            *counter = 0;
            return true;
        } else {
            *counter += 1;
        }
        false
    }
}

impl<P: Platform> Core<P> {
    /// Answers a read that missed straight from disk, if it is of that kind; else gives it back.
    pub(super) fn try_direct(
        &mut self,
        now: Time,
        mut read: Read<P::Reply>,
    ) -> Option<Read<P::Reply>> {
        if read.route == Route::Memory
            || !read.reader.is_front()
            || !self.parts.disk.is_present()
            || read.deadline <= now
        {
            return Some(read);
        }
        let Some((block, pages)) = self.direct_pages(&read) else {
            return Some(read);
        };
        if read.route == Route::Undecided {
            let sub = read.offset_in_block() / SUB_BLOCK_BYTES;
            if self.directs.heat.count(block, sub) {
                read.route = Route::Memory;
                return Some(read);
            }
            read.route = Route::Direct;
        }
        let key = ReadKey {
            slot: self.reads.vacant_key(),
            id: read.id,
        };
        if self.directs.is_full || !self.begin_direct(now, key, &read, block, pages) {
            self.directs.is_full = true;
            self.directs.line.push_back(key);
        }
        self.directs.began(read.deadline);
        read.tier = read.tier.max(Tier::Disk);
        read.is_direct = true;
        self.reads.insert(read);
        None
    }

    /// The pages to read for a read that may go straight to disk.
    fn direct_pages(&self, read: &Read<P::Reply>) -> Option<(BlockId, Range<u32>)> {
        let len = read.len_bytes as usize;
        let start = read.offset_in_block();
        // One that belongs to a stream is better served by whole sub-blocks.
        let alone = read.want_bytes <= read.len_bytes;
        if !alone || len == 0 || len > DIRECT_READ_BYTES_MAX || start + len > BLOCK_BYTES {
            return None;
        }
        let block = read.object.block(read.offset);
        if let Some(key) = self.index.find(block) {
            let block = self.index.block(key);
            if (block.present | block.in_flight) & mask_of_bytes(start, start + len) != 0 {
                return None;
            }
        }
        let first = (start / PAGE_BYTES) as u32;
        let end = (start + len).div_ceil(PAGE_BYTES) as u32;
        let extent = self.parts.disk.extent(block, first)?;
        (extent.start <= first && end <= extent.end).then_some((block, first..end))
    }

    fn begin_direct(
        &mut self,
        now: Time,
        key: DirectKey,
        read: &Read<P::Reply>,
        block: BlockId,
        pages: Range<u32>,
    ) -> bool {
        let Ok(lease) = self.lease(pages.len() * PAGE_BYTES, Share::Demand) else {
            return false;
        };
        let disk_read = DiskRead {
            ticket: Ticket::Direct(key).encode(),
            block,
            block_bytes: read.object.block_len_bytes(block.index) as u32,
            first_page: pages.start,
            lease,
        };
        self.parts.disk.read(now, disk_read).is_ok()
    }

    /// Tries again those that found the device full, in the order of their coming.
    pub(super) fn start_directs(&mut self, now: Time) {
        self.directs.is_full = false;
        for _ in 0..self.directs.line.len() {
            let Some(key) = self.directs.line.pop_front() else {
                return;
            };
            if let Some(read) = self.unpark(key, None) {
                self.advance(now, read);
            }
            if self.directs.is_full {
                // It went to the end of the line: back to the front with it.
                if let Some(key) = self.directs.line.pop_back() {
                    self.directs.line.push_front(key);
                }
                return;
            }
        }
    }

    /// The pages of a direct read are here, and right.
    pub(super) fn direct_done(&mut self, key: DirectKey, lease: Lease) {
        // Nobody waits any more after a deadline or a shutdown.
        let Some(read) = self.unpark(key, None) else {
            return;
        };
        let start = read.offset_in_block() % PAGE_BYTES;
        let len = read.len_bytes as usize;
        let (tier, submitted) = (read.tier, read.submitted);
        match lease.bytes().get(start..start + len) {
            Some(bytes) => read.reader.data(bytes),
            None => return self.refuse_unplaced(read),
        }
        self.count_answer(len as u64, tier, submitted);
    }

    /// The disk tier could not give the bytes: the origin is next.
    pub(super) fn direct_missed(&mut self, now: Time, key: DirectKey, why: DiskMiss) {
        if let Some(mut read) = self.unpark(key, None) {
            read.route = Route::Memory;
            read.lost = Some(reason(why));
            self.advance(now, read);
        }
    }

    /// Answers direct reads whose deadline is here. Returns whether there were any.
    pub(super) fn time_out_directs(&mut self, now: Time) -> bool {
        if self.directs.due_at > now {
            return false;
        }
        let mut next = Time::NEVER;
        let mut late = Vec::new();
        for (slot, read) in self.reads.iter().filter(|(_, read)| read.is_direct) {
            match read.deadline <= now {
                true => late.push(ReadKey { slot, id: read.id }),
                false => next = next.min(read.deadline),
            }
        }
        for key in &late {
            self.time_out_read(*key);
        }
        self.directs.due_at = next;
        !late.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ObjectId;

    const ARENA_BYTES: usize = 64 << 20;
    const SUBS_IN_MEMORY: usize = ARENA_BYTES / SUB_BLOCK_BYTES;

    fn block(index: usize) -> BlockId {
        BlockId {
            object: ObjectId(77),
            index: (index / 64) as u32,
        }
    }

    /// Reads `count` times, evenly spread at random over `subs` sub-blocks; how often one got hot.
    fn hot_of(subs: usize, count: usize) -> usize {
        let mut heat = Heat::new(ARENA_BYTES);
        let mut state = 1u64;
        (0..count)
            .filter(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let sub = (state >> 33) as usize % subs;
                heat.count(block(sub), sub % 64)
            })
            .count()
    }

    #[test]
    fn what_is_read_again_and_again_gets_hot() {
        let mut heat = Heat::new(ARENA_BYTES);
        let reads: Vec<bool> = (0..3).map(|_| heat.count(block(3), 3)).collect();
        assert_eq!(reads, [false, false, true]);
    }

    #[test]
    fn reads_spread_over_four_times_the_memory_heat_next_to_nothing() {
        let reads = 64 * SUBS_IN_MEMORY;
        let hot = hot_of(4 * SUBS_IN_MEMORY, reads);
        assert!(hot * 200 < reads, "{hot} of {reads}");
    }

    #[test]
    fn a_set_that_fits_memory_gets_hot() {
        let subs = SUBS_IN_MEMORY / 4;
        let hot = hot_of(subs, 64 * subs);
        assert!(hot > subs, "{hot} times for {subs} sub-blocks");
    }
}
