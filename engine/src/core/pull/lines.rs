//! Pulls, and the lines in which they wait for a peer.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::super::group::{How, Route};
use super::super::index::{BlockKey, Mask, mask};
use crate::arena::Share;
use crate::identity::{BlockId, ObjectVersion, Slot};
use crate::limits::{CHUNK_BYTES, PREFETCH_PULLS_PER_CORE_MAX, STAND_IN_PATIENCE, SUB_BLOCK_BYTES};
use crate::ports::{Class, FetchTag, PeerCore, PeerFetch, Time};
use crate::stats::Reason;

/// Names a pull; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct PullKey {
    pub slot: usize,
    pub id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Queued(PeerCore),
    /// A fetch, or the description that it needs, is at this peer.
    Running(FetchTag),
    BackingOff(Time),
}

#[derive(Debug)]
pub(super) struct Pull {
    pub id: u64,
    pub object: Arc<ObjectVersion>,
    pub block: BlockKey,
    pub at: BlockId,
    pub first_sub: usize,
    pub subs: usize,
    pub len_bytes: usize,
    /// Where the bytes end that will be needed soon.
    pub want_end: u64,
    pub class: Class,
    pub deadline: Time,
    pub for_peer: bool,
    pub lost: Option<Reason>,
    pub route: Route,
    /// The view that the route was made from, and whether for a peer that was passed on.
    pub view: u64,
    pub forwarded: bool,
    /// From a member that leaves: it alone is asked, and the name may be unknown.
    pub is_take: bool,
    pub redirected: bool,
    pub named: u8,
    /// A member that should have had the bytes did not answer.
    pub missed_owner: bool,
    pub attempt: u32,
    pub state: State,
    pub begun_as_prefetch: bool,
}

impl Pull {
    pub fn mask(&self) -> Mask {
        mask(self.first_sub, self.subs)
    }

    pub fn bytes(&self) -> Range<u64> {
        let start = self.at.offset() + (self.first_sub * SUB_BLOCK_BYTES) as u64;
        start..start + self.len_bytes as u64
    }

    /// Whether it is for a chunk as a whole, as far as the object goes: what comes is one piece then.
    pub fn is_whole_chunk(&self) -> bool {
        let start = self.first_sub * SUB_BLOCK_BYTES;
        let end = self
            .object
            .block_len_bytes(self.at.index)
            .min(start + CHUNK_BYTES);
        self.subs > 1 && start.is_multiple_of(CHUNK_BYTES) && start + self.len_bytes == end
    }

    pub fn placement_slot(&self) -> Slot {
        Slot::of_stripe(self.at.object, self.at.offset())
    }

    /// On whose behalf its buffer is in flight.
    pub fn share(&self) -> Share {
        match self.class {
            Class::Demand if self.for_peer => Share::Serve,
            Class::Demand => Share::Demand,
            Class::Prefetch | Class::WarmUp => Share::Prefetch,
        }
    }

    /// What a peer is asked.
    pub fn request(&self, how: How, view: u64) -> PeerFetch {
        let bytes = self.bytes();
        let want_end = self.want_end.min(self.object.size_bytes).max(bytes.end);
        PeerFetch {
            object: self.at.object,
            size_bytes: self.object.size_bytes,
            offset: bytes.start,
            len_bytes: self.len_bytes as u32,
            want_bytes: (want_end - bytes.start) as u32,
            class: self.class,
            view,
            cached_only: how == How::CachedOnly,
            forwarded: how == How::Forwarded,
            verify: false,
        }
    }

    /// How long the present step may take: what is left is shared by the members that may still be asked, and the
    /// origin after them. A stand-in does not wait long for the owner, nor for whom it names: with views that differ
    /// that may be who asked, and waits here.
    pub fn step_deadline(&self, now: Time, how: How, io_timeout: Duration) -> Time {
        let shares = self.route.left() as u32 + 1;
        let deadline = now + self.deadline.since(now) / shares;
        match self.forwarded && how != How::CachedOnly {
            true => deadline.min(now + io_timeout / STAND_IN_PATIENCE),
            false => deadline,
        }
    }

    /// A pull of its own for a part of these sub-blocks, counted from the first; as far along the route.
    pub fn part(&self, id: u64, subs: Range<usize>) -> Self {
        let start = subs.start * SUB_BLOCK_BYTES;
        Self {
            id,
            object: self.object.clone(),
            first_sub: self.first_sub + subs.start,
            subs: subs.len(),
            len_bytes: (subs.len() * SUB_BLOCK_BYTES).min(self.len_bytes - start),
            ..*self
        }
    }
}

/// What waits for one core of one peer.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub demand: VecDeque<PullKey>,
    pub prefetch: VecDeque<PullKey>,
}

/// Pulls, queued and under way.
#[derive(Debug, Default)]
pub(in crate::core) struct Pulls {
    pub(super) all: slab::Slab<Pull>,
    /// Only those in which something waits.
    pub(super) lines: BTreeMap<PeerCore, Line>,
    pub prefetches_running: usize,
    /// Set when a line may move: nothing is tried while every peer is full.
    pub may_start: bool,
    /// What waits for room at peers looks again then: room may come without news.
    pub retry_at: Time,
}

impl Pulls {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// When what is queued looks again.
    pub fn wake_at(&self) -> Time {
        match self.are_queued() {
            true => self.retry_at,
            false => Time::NEVER,
        }
    }

    /// Whether something waits to be started.
    pub fn are_queued(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(super) fn get(&mut self, key: PullKey) -> Option<&mut Pull> {
        self.all.get_mut(key.slot).filter(|pull| pull.id == key.id)
    }

    pub fn enqueue(&mut self, key: PullKey, to: PeerCore, class: Class, first: bool) {
        let line = self.lines.entry(to).or_default();
        let queue = match class {
            Class::Demand => &mut line.demand,
            Class::Prefetch | Class::WarmUp => &mut line.prefetch,
        };
        match first {
            true => queue.push_front(key),
            false => queue.push_back(key),
        }
        self.may_start = true;
    }

    /// The next that is queued for `to`, of one urgency, and still what its queue says.
    pub fn next(&mut self, to: PeerCore, urgent: bool) -> Option<PullKey> {
        let line = self.lines.get_mut(&to)?;
        loop {
            let key = match urgent {
                true => line.demand.pop_front(),
                false if self.prefetches_running >= PREFETCH_PULLS_PER_CORE_MAX => None,
                false => line.prefetch.pop_front(),
            };
            let key = key?;
            let pull = self.all.get(key.slot).filter(|pull| pull.id == key.id);
            if let Some(pull) = pull
                && pull.state == State::Queued(to)
                && (pull.class == Class::Demand) == urgent
            {
                return Some(key);
            }
        }
    }
}
