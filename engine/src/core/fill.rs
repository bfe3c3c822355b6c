//! A fill's life: sub-blocks that are missing, on their way from the origin into the index.
//!
//! ```text
//! planned -> queued -> running -> filled part by part -> done
//!              ^         | failed, transient, deadline ahead
//!              +- back-off        | failed for good: waiting reads get the error
//! ```
//!
//! Fills are the single flight: a sub-block is promised (`Block::in_flight`) by one fill at most,
//! whoever needs it meanwhile waits at the block. A fill outlives the read that began it, and
//! lives until the last deadline of those that joined. While the origin does not answer, other members are asked
//! first for what someone waits for ([`around`]).

mod around;
mod parts;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::index::{BlockKey, Mask, Piece, Promise, mask};
use super::metadata::Question;
use super::outage::Sign;
use super::timers::Due;
use super::{Core, Tagged, memory, retry};
use crate::arena::{Denied, Lease, Share};
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::identity::{ObjectVersion, Slot};
use crate::limits::{
    BLOCK_BYTES, CHUNK_BYTES, GET_ARENA_SHARE, GET_BYTES_MAX, GETS_PER_CORE_MAX,
    PREFETCH_GETS_PER_CORE_MAX, SUB_BLOCK_BYTES,
};
use crate::ports::{Class, Full, GetOp, Origin, OriginOp, OriginTag, Platform, Time};
use crate::stats::Reason;

/// Names a fill; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FillKey {
    slot: usize,
    id: u64,
}

/// What one lease of a fill brings: a whole chunk or one sub-block.
#[derive(Debug)]
struct Part {
    block: BlockKey,
    first_sub: usize,
    subs: usize,
    offset: u64,
    len_bytes: usize,
    reason: Reason,
}

impl Part {
    fn mask(&self) -> Mask {
        mask(self.first_sub, self.subs)
    }
}

#[derive(Debug)]
enum State {
    Queued,
    Running {
        tag: OriginTag,
        began: Time,
        stalls_at: Time,
        cancelled: bool,
        progressed: bool,
    },
    BackingOff {
        until: Time,
    },
}

#[derive(Debug)]
pub(super) struct Fill {
    id: u64,
    object: Arc<ObjectVersion>,
    /// What has not arrived yet, in the order of the object.
    parts: VecDeque<Part>,
    class: Class,
    deadline: Time,
    for_peer: bool,
    /// Others that may reach the origin were asked, or there are none.
    is_last_resort: bool,
    /// Failed attempts since bytes last arrived.
    attempt: u32,
    state: State,
}

/// Fills and what the origin is asked for.
#[derive(Debug, Default)]
pub(super) struct Fills {
    all: slab::Slab<Fill>,
    demand: VecDeque<FillKey>,
    prefetch: VecDeque<FillKey>,
    running: usize,
    /// Parts of GETs that ever came.
    pub parts_came: u64,
}

impl Fills {
    fn get(&mut self, key: FillKey) -> Option<&mut Fill> {
        self.all.get_mut(key.slot).filter(|fill| fill.id == key.id)
    }

    fn enqueue(&mut self, key: FillKey, class: Class) {
        match class {
            Class::Demand => self.demand.push_back(key),
            Class::Prefetch | Class::WarmUp => self.prefetch.push_back(key),
        }
    }

    /// Takes off the prefetch queue's head what was promoted (it is in the other queue as well) or
    /// has ended, so that the queue does not outgrow the fills while nothing can start.
    fn drop_promoted(&mut self) {
        while let Some(key) = self.prefetch.front().copied()
            && self.get(key).is_none_or(|fill| fill.class == Class::Demand)
        {
            self.prefetch.pop_front();
        }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether something waits to be started.
    pub fn are_queued(&self) -> bool {
        !self.demand.is_empty() || !self.prefetch.is_empty()
    }
}

/// How an attempt to start a fill went.
enum Start {
    Started,
    Stale,
    NoMemory,
    OriginFull,
}

impl<P: Platform> Core<P> {
    /// Starts what is queued, as far as the origin and the arena have room.
    pub(super) fn start_fills(&mut self, now: Time) {
        self.fills.drop_promoted();
        while self.fills.running < GETS_PER_CORE_MAX && self.origin_ceiling.is_free(now) {
            let Some(key) = self.fills.demand.pop_front() else {
                break;
            };
            if let Start::NoMemory | Start::OriginFull = self.start(now, key) {
                self.fills.demand.push_front(key);
                return;
            }
        }
        while self.fills.running < PREFETCH_GETS_PER_CORE_MAX && self.origin_ceiling.is_free(now) {
            let Some(key) = self.fills.prefetch.pop_front() else {
                break;
            };
            self.fills.drop_promoted();
            match self.start(now, key) {
                Start::Started | Start::Stale => {}
                Start::OriginFull => {
                    self.fills.prefetch.push_front(key);
                    return;
                }
                Start::NoMemory => {
                    self.stats.prefetch_dropped += 1;
                    self.abandon(key, &ReadError::Deadline);
                }
            }
        }
    }

    fn start(&mut self, now: Time, key: FillKey) -> Start {
        let Some(fill) = self.fills.get(key) else {
            return Start::Stale;
        };
        if !matches!(fill.state, State::Queued) {
            return Start::Stale;
        }
        if fill.deadline <= now {
            self.abandon(key, &ReadError::Deadline);
            return Start::Stale;
        }
        let leases = self.lease_parts(key);
        if leases.is_empty() {
            return Start::NoMemory;
        }
        let tag = OriginTag(self.next_id());
        let stall = retry::stall_limit(self.config.io_timeout);
        let Some(fill) = self.fills.get(key) else {
            return Start::Stale;
        };
        let Some(first) = fill.parts.front() else {
            return Start::Stale;
        };
        let len_bytes: usize = leases.iter().map(Lease::len).sum();
        let op = GetOp {
            tag,
            object: fill.object.clone(),
            offset: first.offset,
            leases,
            deadline: fill.deadline,
        };
        if let Err(Full(_)) = self.parts.origin.submit(OriginOp::Get(op)) {
            return Start::OriginFull;
        }
        let stalls_at = (now + stall).min(fill.deadline);
        fill.state = State::Running {
            tag,
            began: now,
            stalls_at,
            cancelled: false,
            progressed: false,
        };
        if fill.attempt > 0 {
            self.stats.retries += 1;
        }
        self.stats.gets += 1;
        self.origin_ceiling.spend(now, len_bytes as u64);
        self.timers.set(stalls_at, Due::Fill(key));
        self.tags.insert(tag.0, Tagged::Fill(key));
        self.fills.running += 1;
        Start::Started
    }

    /// Leases for the first parts of a fill, as many as there is room for.
    fn lease_parts(&mut self, key: FillKey) -> Vec<Lease> {
        let mut leases: Vec<Lease> = Vec::new();
        loop {
            let Some(fill) = self.fills.get(key) else {
                return leases;
            };
            let share = match fill.class {
                Class::Demand if fill.for_peer => Share::Serve,
                Class::Demand => Share::Demand,
                Class::Prefetch | Class::WarmUp => Share::Prefetch,
            };
            let Some(part) = fill.parts.get(leases.len()) else {
                return leases;
            };
            let leased_bytes: usize = leases.iter().map(Lease::len).sum();
            if fill.class != Class::Demand
                && leased_bytes > 0
                && leased_bytes + part.len_bytes > self.origin_ceiling.patient_bytes()
            {
                return leases;
            }
            let (len_bytes, subs) = (part.len_bytes, part.subs);
            match self.lease(len_bytes, share) {
                Ok(lease) => leases.push(lease),
                Err(Denied::Memory) if subs > 1 => self.split_part(key, leases.len()),
                Err(_) => return leases,
            }
        }
    }

    /// A lease, for which blocks are evicted as needed.
    pub(super) fn lease(&mut self, len_bytes: usize, share: Share) -> Result<Lease, Denied> {
        memory::lease(&mut self.parts.arena, &mut self.index, len_bytes, share)
    }

    /// Turns a chunk-sized part into sub-blocks, when there is no contiguous chunk to be had.
    fn split_part(&mut self, key: FillKey, at: usize) {
        let Some(fill) = self.fills.get(key) else {
            return;
        };
        let Some(whole) = fill.parts.remove(at) else {
            return;
        };
        for n in (0..whole.subs).rev() {
            let start = n * SUB_BLOCK_BYTES;
            fill.parts.insert(
                at,
                Part {
                    block: whole.block,
                    first_sub: whole.first_sub + n,
                    subs: 1,
                    offset: whole.offset + start as u64,
                    len_bytes: SUB_BLOCK_BYTES.min(whole.len_bytes - start),
                    reason: whole.reason,
                },
            );
        }
    }

    /// The next lease of a GET is full.
    pub(super) fn part_filled(&mut self, now: Time, key: FillKey, lease: Lease) {
        let Some(fill) = self.fills.get(key) else {
            return;
        };
        let Some(part) = fill.parts.pop_front() else {
            return;
        };
        debug_assert_eq!(lease.len(), part.len_bytes, "leases come back in order");
        fill.attempt = 0;
        let class = fill.class;
        let block_bytes = fill
            .object
            .block_len_bytes((part.offset / BLOCK_BYTES as u64) as u32);
        if let State::Running { progressed, .. } = &mut fill.state {
            *progressed = true;
        }
        self.get_progressed(now, key);
        self.fills.parts_came += 1;
        self.note_answer(now, Ok(()));
        self.stats.ledger.book(part.reason, part.len_bytes as u64);
        let frozen = self.parts.arena.freeze(lease);
        let (id, seed) = (
            self.index.block(part.block).id,
            self.index.block(part.block).seed,
        );
        let piece = Piece::new(seed, part.first_sub, frozen, self.turns);
        let kept = match self.keeps_from_origin(Slot::of_stripe(id.object, id.offset())) {
            true => self.to_keep(id, &piece, class),
            false => None,
        };
        self.index
            .install(part.block, part.first_sub, part.subs, piece);
        self.index.trust(part.block, part.mask());
        self.index
            .unpromise(part.block, Promise::Fill(key), part.mask());
        self.wake_readers(now, part.block, part.mask());
        // The block's key may be void by now: readers that were woken may have evicted it.
        if let Some(kept) = kept {
            self.keep(now, block_bytes, kept);
        }
    }

    /// Bytes of a GET are coming, though no lease is full yet: it has not stalled.
    pub(super) fn get_progressed(&mut self, now: Time, key: FillKey) {
        let stall = retry::stall_limit(self.config.io_timeout);
        let Some(fill) = self.fills.get(key) else {
            return;
        };
        let bucket = fill.object.bucket.clone();
        if let State::Running { stalls_at, .. } = &mut fill.state {
            let old = std::mem::replace(stalls_at, (now + stall).min(fill.deadline.max(now)));
            let new = *stalls_at;
            self.timers.clear(old, Due::Fill(key));
            self.timers.set(new, Due::Fill(key));
        }
        self.origin_answered(now, &bucket);
    }

    /// A GET ended.
    pub(super) fn get_done(
        &mut self,
        now: Time,
        key: FillKey,
        result: Result<(), OriginError>,
        wasted_bytes: u64,
    ) {
        self.fills.running -= 1;
        let reason = match &result {
            Err(error) if error.kind == OriginErrorKind::VersionChanged => Reason::VersionChanged,
            _ => Reason::Retry,
        };
        self.stats.ledger.book(reason, wasted_bytes);
        let shutting_down = self.shutting_down;
        let Some(fill) = self.fills.get(key) else {
            return;
        };
        let (mut progressed, mut stalled, mut began) = (false, false, now);
        if let State::Running {
            stalls_at,
            progressed: some,
            cancelled,
            began: at,
            ..
        } = fill.state
        {
            self.timers.clear(stalls_at, Due::Fill(key));
            (progressed, stalled, began) = (some, cancelled, at);
        }
        let question = Question::Head(fill.object.bucket.clone(), fill.object.key.clone());
        if fill.parts.is_empty() {
            self.fills.all.remove(key.slot);
            return;
        }
        let error = match result {
            // There was room for some of the leases only: on with the rest.
            Ok(()) if progressed && !shutting_down => {
                fill.state = State::Queued;
                let class = fill.class;
                return self.fills.enqueue(key, class);
            }
            Ok(()) => OriginError::new(
                OriginErrorKind::BadAnswer,
                "the origin ended a GET before its bytes had all come",
            ),
            Err(error) if error.kind == OriginErrorKind::Cancelled && stalled && !shutting_down => {
                stall_error(&fill.object, self.config.io_timeout)
            }
            Err(error) => error,
        };
        self.count_origin_error(error.kind);
        self.note_answer(now, Err(&error));
        let sign = Sign::of(error.kind);
        if matches!(sign, Sign::Silent) {
            self.outages.last_error = Some(error.to_string().into());
        }
        self.retry_or_fail(now, key, error);
        match sign {
            Sign::Answers => self.origin_answered(now, question.bucket()),
            Sign::Silent => self.origin_failed(now, began, &question),
            Sign::Unclear => {}
        }
    }

    /// Counts a failed attempt, unless it is an answer of a kind or our own doing.
    pub(super) fn count_origin_error(&mut self, kind: OriginErrorKind) {
        if !matches!(kind, OriginErrorKind::NotFound | OriginErrorKind::Cancelled) {
            self.stats.origin_errors += 1;
        }
    }

    fn retry_or_fail(&mut self, now: Time, key: FillKey, error: OriginError) {
        let Some(fill) = self
            .fills
            .all
            .get_mut(key.slot)
            .filter(|fill| fill.id == key.id)
        else {
            return;
        };
        fill.attempt += 1;
        let until = now + retry::backoff(fill.attempt, &mut self.parts.rng);
        // Nobody waits for a prefetch: what a reader needs later is asked for again.
        let worthwhile =
            fill.class == Class::Demand && until < fill.deadline && !self.shutting_down;
        if error.kind.is_transient() && worthwhile {
            tracing::debug!(object = ?fill.object.key, attempt = fill.attempt, %error, "origin GET failed; trying again");
            fill.state = State::BackingOff { until };
            self.timers.set(until, Due::Fill(key));
            let is_silent = self.outages.is_known(&fill.object.bucket);
            if is_silent && !fill.is_last_resort {
                self.ask_around(now, key);
            }
            return;
        }
        if fill.class == Class::Demand
            && !self.shutting_down
            && let Some(left_out) = self.fill_log.open(now)
        {
            tracing::warn!(object = ?fill.object.key, %error, left_out, "origin GET failed");
        }
        let error = match error.kind {
            OriginErrorKind::VersionChanged => ReadError::VersionChanged,
            _ if self.shutting_down => ReadError::Shutdown,
            _ => ReadError::Origin(error),
        };
        self.abandon(key, &error);
    }

    /// Ends a fill that is not running; whoever waits for it gets `error`.
    fn abandon(&mut self, key: FillKey, error: &ReadError) {
        if self.fills.get(key).is_none() {
            return;
        }
        let fill = self.fills.all.remove(key.slot);
        for part in &fill.parts {
            self.index
                .unpromise(part.block, Promise::Fill(key), part.mask());
        }
        let missing = fill.parts.iter().map(|part| (part.block, part.mask()));
        self.fail_readers(missing, error);
        // Parts of one block follow each other; a forgotten key may be taken anew only by an
        // insertion, and none happens here.
        for part in &fill.parts {
            self.index.forget_if_idle(part.block);
        }
    }

    /// A fill's timer is due.
    pub(super) fn fill_due(&mut self, key: FillKey) {
        let Some(fill) = self.fills.get(key) else {
            return;
        };
        match &mut fill.state {
            State::Queued => {}
            State::BackingOff { .. } => {
                fill.state = State::Queued;
                let class = fill.class;
                self.fills.enqueue(key, class);
            }
            State::Running { tag, cancelled, .. } => {
                if !std::mem::replace(cancelled, true) {
                    let tag = *tag;
                    self.parts.origin.cancel(tag);
                }
            }
        }
    }

    /// Asks the origin to end every GET, and gives up what has not begun.
    pub(super) fn cancel_fills(&mut self) {
        let keys: Vec<FillKey> = self
            .fills
            .all
            .iter()
            .map(|(slot, fill)| FillKey { slot, id: fill.id })
            .collect();
        for key in keys {
            match self.fills.get(key).map(|fill| &fill.state) {
                Some(State::Running { .. }) => self.fill_due(key),
                Some(State::BackingOff { until }) => {
                    let until = *until;
                    self.timers.clear(until, Due::Fill(key));
                    self.abandon(key, &ReadError::Shutdown);
                }
                Some(State::Queued) => self.abandon(key, &ReadError::Shutdown),
                None => {}
            }
        }
    }
}

fn stall_error(object: &ObjectVersion, io_timeout: Duration) -> OriginError {
    let span_s = retry::stall_limit(io_timeout).as_secs_f32();
    let (bucket, key) = (&object.bucket, &object.key);
    OriginError::new(
        OriginErrorKind::Timeout,
        format!(
            "GET {bucket}/{key:?}: no byte came for {span_s:.1} s; see whether the endpoint \
             answers, or raise --io-timeout"
        ),
    )
}

/// The longest GET that an arena of this size should see: long enough for throughput, short
/// enough that a few fit at a time.
pub(super) fn get_bytes_max(arena_bytes: usize) -> usize {
    (arena_bytes / GET_ARENA_SHARE).clamp(CHUNK_BYTES, GET_BYTES_MAX)
}
