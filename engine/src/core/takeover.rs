//! The new owner's part when a member leaves: fetching what that one has and this one is to keep.
//!
//! ```text
//! offered -> mine? room? -> lacking sub-blocks: read from the leaver alone, into memory and to disk -> what is kept
//! ```
//!
//! The reads are reads like others: what is on its way is joined, what arrives is checked and kept. Only the origin is
//! never asked, nor anybody else: the leaver offers bytes whose name it may not know
//! (`docs/decisions/0023-leaving.md`). Nothing is evicted for them on disk.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::group::Reach;
use super::index::{BlockKey, Mask, mask};
use super::read::Read;
use super::reader::Reader;
use super::timers::Due;
use crate::errors::ReadError;
use crate::identity::{BlockId, ObjectVersion, Slot};
use crate::limits::{
    SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK, SUB_BLOCKS_PER_CHUNK, TAKES_PER_CORE_MAX,
};
use crate::ports::{Class, FetchStatus, PeerFailure, PeerId, Platform, RequestHandle, Time};
use crate::stats::Reason;
use crate::wire::call::CallAnswer;

/// Names a block that is being taken over; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TakeKey {
    slot: usize,
    id: u64,
}

#[derive(Debug)]
struct Take {
    id: u64,
    from: PeerId,
    /// Known by its id alone.
    object: Arc<ObjectVersion>,
    block: BlockId,
    subs: Mask,
    /// Of those, what was not kept here when it was offered.
    lacked: Mask,
    /// Bytes of what is neither here yet nor on its way to disk.
    pending_bytes: u64,
    deadline: Time,
    pause_until: Option<Time>,
    /// Where the answer goes, and how long it may be.
    asker: (RequestHandle, u32),
}

impl Take {
    fn block_bytes(&self) -> usize {
        self.object.block_len_bytes(self.block.index)
    }
}

/// Blocks that are being taken over.
#[derive(Debug, Default)]
pub(super) struct Takes {
    all: slab::Slab<Take>,
    /// Bytes that they still need room for. What is on its way to disk has it already.
    pending_bytes: u64,
}

impl Takes {
    fn get(&mut self, key: TakeKey) -> Option<&mut Take> {
        self.all.get_mut(key.slot).filter(|take| take.id == key.id)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a block is being taken over.
    pub fn has(&self, key: TakeKey) -> bool {
        self.all.get(key.slot).is_some_and(|take| take.id == key.id)
    }

    /// What a member that leaves asked.
    fn asked_by(&self, handle: RequestHandle) -> Option<TakeKey> {
        let mut all = self.all.iter();
        let found = all.find(|(_, take)| take.asker.0 == handle);
        found.map(|(slot, take)| TakeKey { slot, id: take.id })
    }

    fn set_pending(&mut self, key: TakeKey, bytes: u64) {
        let Some(take) = self.get(key) else {
            return;
        };
        let before = std::mem::replace(&mut take.pending_bytes, bytes);
        self.pending_bytes = self.pending_bytes - before + bytes;
    }
}

/// It looks again so long after it found no memory, or while the disk writes.
const PAUSE: Duration = Duration::from_millis(10);
/// Without disks, so much of the memory may be filled: beyond it something would have to go.
const MEMORY_PARTS: usize = 4;
const MEMORY_PARTS_FILLED: usize = 3;

/// Bytes of these sub-blocks of a block of `block_bytes`.
pub(super) fn bytes_of(subs: Mask, block_bytes: usize) -> u64 {
    let count = block_bytes.div_ceil(SUB_BLOCK_BYTES);
    let short = count * SUB_BLOCK_BYTES - block_bytes;
    let whole = subs.count_ones() as usize * SUB_BLOCK_BYTES;
    let has_last = (1..=SUB_BLOCKS_PER_BLOCK).contains(&count) && subs & mask(count - 1, 1) != 0;
    (whole - if has_last { short } else { 0 }) as u64
}

impl<P: Platform> Core<P> {
    /// A member that leaves offers a block: which, the length of its object as far as it knows, and the sub-blocks.
    pub(super) fn accept_take(
        &mut self,
        now: Time,
        from: PeerId,
        asker: (RequestHandle, u32),
        offer: (BlockId, u64, Mask),
        deadline: Time,
    ) {
        let (block, size_bytes, subs) = offer;
        let deadline = self.peer_deadline(now, deadline);
        let slot = Slot::of_stripe(block.object, block.offset());
        let refusal = match self.group.owner(slot) {
            _ if self.shutting_down => Some(FetchStatus::Failed(PeerFailure::Shutdown)),
            Some(owner) if owner != self.config.me => Some(FetchStatus::NotOwner { owner }),
            Some(_) if self.can_take(now, from, slot) => None,
            _ => Some(FetchStatus::Busy),
        };
        if let Some(status) = refusal {
            return self.answer_peer(asker.0, status, None);
        }
        let object = Arc::new(ObjectVersion::nameless(block.object, size_bytes));
        let block_bytes = object.block_len_bytes(block.index);
        let lacked = subs & !self.kept(block, block_bytes);
        let bytes = bytes_of(lacked & !self.saving_of(block), block_bytes);
        if bytes > 0 && !self.has_room_for(block, bytes) {
            self.stats.takeover.refused_blocks += 1;
            return self.tell_taken(asker, subs & !lacked, 0, false);
        }
        let id = self.next_id();
        let take = Take {
            id,
            from,
            object,
            block,
            subs,
            lacked,
            pending_bytes: bytes,
            deadline,
            pause_until: None,
            asker,
        };
        self.takes.pending_bytes += bytes;
        let slot = self.takes.all.insert(take);
        let key = TakeKey { slot, id };
        self.timers.set(deadline, Due::Take(key));
        self.take(now, key);
    }

    fn can_take(&self, now: Time, from: PeerId, slot: Slot) -> bool {
        slot.core(self.config.cores) == self.config.core
            && !self.holds_reads(now)
            && self.group.knows(from)
            && self.takes.len() < TAKES_PER_CORE_MAX
    }

    /// Sub-blocks of a block that are where this node keeps what it owns: on disk, or without disks in memory.
    fn kept(&self, block: BlockId, block_bytes: usize) -> Mask {
        match self.parts.disk.is_present() {
            true => self.on_disk(block, block_bytes),
            false => self.present_of(block),
        }
    }

    fn present_of(&self, block: BlockId) -> Mask {
        let found = self.index.find(block);
        found.map_or(0, |key| self.index.block(key).present)
    }

    /// Sub-blocks that are on their way to disk.
    fn saving_of(&self, block: BlockId) -> Mask {
        let found = self.index.find(block);
        found.map_or(0, |key| self.index.block(key).saving)
    }

    /// Whether nothing must go for so many more bytes of a block.
    fn has_room_for(&self, block: BlockId, bytes: u64) -> bool {
        let wanted = bytes + self.takes.pending_bytes;
        match self.parts.disk.is_present() {
            true => wanted <= self.parts.disk.room_bytes(block),
            false => {
                let filled = self.index.cached_bytes() as u64;
                let most = self.parts.arena.capacity_bytes() / MEMORY_PARTS * MEMORY_PARTS_FILLED;
                filled + wanted <= most as u64
            }
        }
    }

    /// Goes on with a block, as far as it goes now.
    fn take(&mut self, now: Time, key: TakeKey) {
        let Some(take) = self.takes.get(key) else {
            return;
        };
        let (block, block_bytes, subs) = (take.block, take.block_bytes(), take.subs);
        let lacking = subs & !self.kept(block, block_bytes);
        if lacking == 0 {
            return self.end_take(key);
        }
        let missing = lacking & !self.present_of(block);
        if missing == 0 {
            // On its way to disk, or the disk had no room for it: it is offered again.
            self.keep_again(now, block, lacking, false);
        }
        let pending = lacking & !self.saving_of(block);
        let pending_bytes = bytes_of(pending, block_bytes);
        self.takes.set_pending(key, pending_bytes);
        if missing == 0 {
            return self.pause_take(key, now + PAUSE);
        }
        let first = missing.trailing_zeros() as usize;
        let end = first + (missing >> first).trailing_ones() as usize;
        let chunk_end = (first / SUB_BLOCKS_PER_CHUNK + 1) * SUB_BLOCKS_PER_CHUNK;
        self.read_for_take(now, key, first..end, end.min(chunk_end));
    }

    /// Reads sub-blocks up to `end`, at most a chunk; those behind it in `run` come along.
    fn read_for_take(&mut self, now: Time, key: TakeKey, run: Range<usize>, end: usize) {
        let id = self.next_id();
        let Some(take) = self.takes.get(key) else {
            return;
        };
        let (object, from, deadline) = (take.object.clone(), take.from, take.deadline);
        let at = |sub: usize| {
            (take.block.offset() + (sub * SUB_BLOCK_BYTES) as u64).min(object.size_bytes)
        };
        let (bytes, want_end) = (at(run.start)..at(end), at(run.end));
        let want_bytes = (want_end - bytes.start) as u32;
        let mut read = Read::bare(id, object, bytes, deadline, Reader::Take(key));
        read.want_bytes = want_bytes;
        read.class = Class::WarmUp;
        read.reach = Reach::From(from);
        self.advance(now, read);
    }

    /// What was waited for is in memory, or is not to be had now.
    pub(super) fn take_read(&mut self, now: Time, key: TakeKey, result: Result<(), ReadError>) {
        match result {
            // Not within the answer of its read: that is in the midst of waking others.
            Ok(()) => self.pause_take(key, now),
            // There was no memory for it, or the leaver is busy.
            Err(ReadError::Deadline) => self.pause_take(key, now + PAUSE),
            Err(_) => self.end_take(key),
        }
    }

    fn pause_take(&mut self, key: TakeKey, until: Time) {
        if let Some(take) = self.takes.get(key)
            && take.pause_until.is_none()
            && until < take.deadline
        {
            take.pause_until = Some(until);
            self.timers.set(until, Due::Take(key));
        }
    }

    /// Its timer is due: its deadline, or the end of a pause.
    pub(super) fn take_due(&mut self, now: Time, key: TakeKey) {
        let Some(take) = self.takes.get(key) else {
            return;
        };
        take.pause_until = None;
        match take.deadline <= now {
            true => self.end_take(key),
            false => self.take(now, key),
        }
    }

    /// Tells the leaver what is here now.
    fn end_take(&mut self, key: TakeKey) {
        let Some(take) = self.remove_take(key) else {
            return;
        };
        let kept = self.kept(take.block, take.block_bytes());
        let took_bytes = bytes_of(kept & take.lacked, take.block_bytes());
        self.stats.takeover.taken_blocks += u64::from(took_bytes > 0);
        self.stats.takeover.taken_bytes += took_bytes;
        self.tell_taken(take.asker, kept & take.subs, took_bytes, true);
    }

    /// The leaver waits no more: it stays after all, or is gone.
    pub(super) fn take_given_up(&mut self, handle: RequestHandle) {
        if let Some(key) = self.takes.asked_by(handle) {
            self.end_take(key);
        }
    }

    fn remove_take(&mut self, key: TakeKey) -> Option<Take> {
        self.takes.get(key)?;
        let take = self.takes.all.remove(key.slot);
        self.takes.pending_bytes -= take.pending_bytes;
        self.timers.clear(take.deadline, Due::Take(key));
        if let Some(until) = take.pause_until {
            self.timers.clear(until, Due::Take(key));
        }
        Some(take)
    }

    fn tell_taken(&mut self, asker: (RequestHandle, u32), subs: Mask, took_bytes: u64, room: bool) {
        let answer = CallAnswer::Taken {
            subs,
            took_bytes,
            room,
        };
        self.answer_call(asker.0, &answer, asker.1);
    }

    /// The leaver has none of these sub-blocks: what was to be taken over ends, everyone else looks again.
    pub(super) fn not_handed_over(&mut self, block: BlockKey, of: Mask) {
        for waiter in &self.index.block(block).waiters {
            let read = self.reads.get_mut(waiter.read.slot);
            if let Some(read) = read.filter(|read| read.id == waiter.read.id)
                && waiter.needs & of != 0
                && matches!(read.reach, Reach::From(_))
            {
                read.lost = Some(Reason::RingMoved);
            }
        }
        self.wake_readers(self.now, block, of);
        self.index.forget_if_idle(block);
    }

    /// Ends all of it: this node is stopping.
    pub(super) fn end_all_takes(&mut self) {
        let all = self.takes.all.iter();
        let keys: Vec<TakeKey> = all
            .map(|(slot, take)| TakeKey { slot, id: take.id })
            .collect();
        for key in keys {
            if let Some(take) = self.remove_take(key) {
                let status = FetchStatus::Failed(PeerFailure::Shutdown);
                self.answer_peer(take.asker.0, status, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_last_sub_block_counts_as_it_is() {
        const SUB: usize = SUB_BLOCK_BYTES;
        for (subs, block_bytes, bytes) in [
            (0b1, 1, 1),
            (0b1, SUB, SUB),
            (0b11, SUB + 5, SUB + 5),
            (0b01, SUB + 5, SUB),
            (0b10, SUB + 5, 5),
            (0, SUB, 0),
            (Mask::MAX, 64 * SUB, 64 * SUB),
            (Mask::MAX, 64 * SUB - 3, 64 * SUB - 3),
        ] {
            assert_eq!(
                bytes_of(subs, block_bytes),
                bytes as u64,
                "{subs:b} {block_bytes}"
            );
        }
    }
}
