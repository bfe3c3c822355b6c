//! The short way of a read whose bytes lie in memory in one piece: most reads of a warm cache.
//!
//! It does what `read` does for such a read (`look`, `verify`, `reply`), with one look-up instead of three and without
//! making a `Read`. Whatever is not as simple goes the long way, from its beginning.
//!
//! Requests that wait in the ring are taken a few ahead of the one that is answered, and the bytes of those that hit
//! are asked for then: memory fetches them while the core works on others.

use std::collections::VecDeque;

use super::Core;
use super::index::mask_of_bytes;
use super::read::Tier;
use crate::arena::Near;
use crate::client::{ReadRequest, Request};
use crate::identity::BlockId;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES, RING_AHEAD};
use crate::ports::{Clock, Platform, Time};

/// Requests taken from the ring that nothing was done for yet, in their order, and what of their bytes was not asked for.
pub(super) type Coming<R> = VecDeque<(Request<R>, Near)>;

/// Cache lines that are asked for at a time: twice for each request that is answered.
const PART_LINES: usize = PAGE_BYTES / 64 / RING_AHEAD / 2;

/// Hits that one look at the clock counts for,
const HITS_PER_LOOK: u8 = 4;
/// where they are no longer than this.
const SMALL_BYTES: usize = 8 << 10;

/// The last look at the clock, and for how many more hits of the turn it counts.
#[derive(Debug, Default)]
pub(super) struct HitClock {
    at: Time,
    left: u8,
}

/// The block that a read begins in, and where in it.
fn place<R>(request: &ReadRequest<R>) -> (BlockId, std::ops::Range<usize>) {
    let start = (request.offset % BLOCK_BYTES as u64) as usize;
    let block = BlockId {
        object: request.object.id,
        index: (request.offset / BLOCK_BYTES as u64) as u32,
    };
    (block, start..start + request.len_bytes as usize)
}

impl<P: Platform> Core<P> {
    /// The oldest request that nothing was done for yet.
    pub(super) fn next_request(&mut self) -> Option<Request<P::Reply>> {
        let next = self.coming.pop_front().map(|(request, _)| request);
        let next = next.or_else(|| self.parts.ring.pop())?;
        self.bring_nearer();
        while self.coming.len() < RING_AHEAD
            && let Some(request) = self.parts.ring.pop()
        {
            let mut near = match &request {
                Request::Read(read) => self.near(read),
                _ => Near::NOTHING,
            };
            near.fetch(PART_LINES);
            self.coming.push_back((request, near));
        }
        Some(next)
    }

    /// Has the processor fetch some more of what waits. In parts, since it has a few places for what is on its way from
    /// memory, and waits when they are full: all of a page at once costs a third more of the whole read.
    fn bring_nearer(&mut self) {
        for (_, near) in &mut self.coming {
            near.fetch(PART_LINES);
        }
    }

    /// Where the first page is that a read will be answered with, if that is in memory.
    fn near(&self, request: &ReadRequest<P::Reply>) -> Near {
        let (id, bytes) = place(request);
        let found = self.index.find(id).and_then(|key| {
            let block = self.index.block(key);
            block.slices(bytes.start, bytes.end.min(BLOCK_BYTES)).next()
        });
        found.map_or(Near::NOTHING, |(piece, start, end)| piece.near(start, end))
    }

    /// Answers a read whose bytes lie in one piece, and are right; gives back any other.
    pub(super) fn answer_hit(
        &mut self,
        now: Time,
        request: ReadRequest<P::Reply>,
    ) -> Option<ReadRequest<P::Reply>> {
        let (id, bytes) = place(&request);
        let len = request.len_bytes as usize;
        if len == 0 || bytes.end > BLOCK_BYTES {
            return Some(request);
        }
        let Some(key) = self.index.find(id) else {
            return Some(request);
        };
        let needs = mask_of_bytes(bytes.start, bytes.end);
        let block = self.index.block(key);
        let piece = block.slices(bytes.start, bytes.end).next();
        let Some((piece, start, end)) = piece.filter(|(_, start, end)| end - start == len) else {
            return Some(request);
        };
        let changes = self.index.changes;
        let right = block.present & needs == needs
            && (self.ahead.take_check(id, &bytes, now, changes)
                || piece.is_checked(self.turns)
                || piece.verify(block.seed, start, end));
        if !right {
            // The long way finds out again, counts it and mends it.
            return Some(request);
        }
        self.ahead
            .note(id.object, request.offset, u64::from(request.len_bytes));
        request.answer.data(&piece.bytes[start..end]);
        self.bring_nearer();
        if self.index.touch(key, bytes) {
            self.parts.disk.touch(id);
        }
        let answered = self.hit_answered(len);
        self.count_answered(len as u64, Tier::Memory, request.submitted, answered);
        None
    }

    /// When a hit of this length was answered. The clock costs as much as the index does: of small hits of one turn it
    /// is looked at for every fourth, which makes latencies wrong by a microsecond or two at most.
    fn hit_answered(&mut self, len_bytes: usize) -> Time {
        if self.hit_clock.left == 0 || len_bytes > SMALL_BYTES {
            self.hit_clock = HitClock {
                at: self.parts.clock.now(),
                left: HITS_PER_LOOK,
            };
        }
        self.hit_clock.left -= 1;
        self.hit_clock.at
    }
}
