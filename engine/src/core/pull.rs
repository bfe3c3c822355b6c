//! A pull's life: sub-blocks on their way from another member into the memory index. To peers what a fill
//! is to the origin and a load to the disk.
//!
//! ```text
//! planned -> queued -> running -> installed
//!              ^         | no answer, not cached, not the owner: the next member of the route
//!              |         |   route at its end -> planned again, from the origin
//!              |         | needs the name: described, asked again
//!              +- back-off | busy
//! ```
//!
//! One pull is one request: a whole chunk, or one sub-block. Which members it asks is its route
//! (`core::group`), made when it is planned.

mod lines;

use std::ops::Range;
use std::time::Duration;

use super::group::{How, Reach, Route, Step};
use super::index::{Piece, Promise};
use super::plan::{Ask, next_piece, place};
use super::read::Tier;
use super::timers::Due;
use super::{Core, Tagged, retry};
use crate::arena::{Denied, Lease, Share};
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::limits::{
    ATTEMPTS_PER_DEADLINE, CALL_BYTES_MAX, NEED_NAME_MAX, PAGE_BYTES, PULL_RETRY_MS,
    PULLS_PER_CORE_MAX, STAND_IN_PATIENCE, SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK,
};
use crate::ports::{
    Class, FetchStatus, FetchTag, Full, PeerCore, PeerFailure, PeerFetch, PeerId, Platform, Time,
    Transport, TransportError, TransportOp,
};
use crate::stats::Reason;
use crate::wire::call::Call;

pub(super) use lines::PullKey;
pub(super) use lines::Pulls;
use lines::{Pull, State};

/// How an attempt to start a pull went.
enum Start {
    Started,
    /// There is nothing to start any more, or something else in its place.
    Stale,
    NoMemory,
    PeerFull,
}

impl<P: Platform> Core<P> {
    /// Makes pulls of the missing sub-blocks `run`, along `route`.
    pub(super) fn add_pulls(&mut self, ask: &Ask<'_>, run: Range<u64>, route: Route) {
        let (mut sub, view) = (run.start, self.group.digest());
        let forwarded = ask.reach == Reach::Group { forwarded: true };
        while sub < run.end {
            let asked = sub * (SUB_BLOCK_BYTES as u64) < ask.demand.end;
            let class = if asked { ask.class } else { Class::Prefetch };
            if class != Class::Demand && self.pulls.len() >= PULLS_PER_CORE_MAX {
                self.stats.prefetch_dropped += 1;
                return;
            }
            let (at, _) = place(ask.object, sub);
            let (subs, len_bytes) = next_piece(ask.object, &(sub..run.end));
            let pull = Pull {
                id: self.next_id(),
                object: ask.object.clone(),
                block: self.index.find_or_insert(at),
                at,
                first_sub: (sub % SUB_BLOCKS_PER_BLOCK as u64) as usize,
                subs,
                len_bytes,
                want_end: run.end * SUB_BLOCK_BYTES as u64,
                class,
                deadline: ask.deadline,
                for_peer: ask.for_peer,
                lost: ask.lost,
                route,
                view,
                forwarded,
                redirected: false,
                named: 0,
                missed_owner: false,
                attempt: 0,
                state: State::BackingOff(Time::NEVER),
                begun_as_prefetch: false,
            };
            let key = self.promise_pull(pull);
            self.queue_pull(key);
            sub += subs as u64;
        }
    }

    fn promise_pull(&mut self, pull: Pull) -> PullKey {
        let (block, brings, id) = (pull.block, pull.mask(), pull.id);
        let slot = self.pulls.all.insert(pull);
        let key = PullKey { slot, id };
        self.index.promise(block, Promise::Pull(key), brings);
        key
    }

    /// Queues a pull for the member that its route names now; past the end of the route it becomes a fill.
    fn queue_pull(&mut self, key: PullKey) {
        loop {
            let Some(pull) = self.pulls.get(key) else {
                return;
            };
            let Some(step) = pull.route.step() else {
                return self.pull_from_origin(key);
            };
            let (slot, class) = (pull.placement_slot(), pull.class);
            let Some(to) = self.group.core_of(step.peer, slot) else {
                pull.route.next();
                continue;
            };
            pull.state = State::Queued(to);
            return self.pulls.enqueue(key, to, class, false);
        }
    }

    /// Someone else needs what a pull brings.
    pub(super) fn join_pull(&mut self, key: PullKey, ask: &Ask<'_>) {
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        pull.deadline = pull.deadline.max(ask.deadline);
        pull.for_peer |= ask.for_peer;
        if ask.class == Class::Demand && pull.class != Class::Demand {
            pull.class = Class::Demand;
            if let State::Queued(to) = pull.state {
                self.pulls.enqueue(key, to, Class::Demand, false);
            }
        }
    }

    /// Starts what is queued, as far as peers and the arena have room.
    /// Returns whether the transport got something.
    pub(super) fn start_pulls(&mut self, now: Time) -> bool {
        let retries = self.pulls.are_queued() && self.pulls.retry_at <= now;
        if !std::mem::take(&mut self.pulls.may_start) && !retries {
            return false;
        }
        let before = self.stats.pulls;
        self.pulls.retry_at = now + Duration::from_millis(PULL_RETRY_MS);
        let mut peers: Vec<PeerCore> = self.pulls.lines.keys().copied().collect();
        if !peers.is_empty() {
            // Where there is not room for all, everyone begins at some time.
            let first = self.turns as usize % peers.len();
            peers.rotate_left(first);
        }
        // What someone waits for, at all peers, before what nobody does.
        for urgent in [true, false] {
            for to in &peers {
                self.start_line(now, *to, urgent);
            }
        }
        self.stats.pulls != before
    }

    /// Starts what waits for one core of one peer, of one urgency.
    fn start_line(&mut self, now: Time, to: PeerCore, urgent: bool) {
        while self.pull_ceiling.is_free(now)
            && let Some(key) = self.pulls.next(to, urgent)
        {
            match self.start_pull(now, key, to) {
                Start::Started | Start::Stale => {}
                Start::NoMemory if !urgent => {
                    self.stats.prefetch_dropped += 1;
                    self.abandon_pull(key, &ReadError::Deadline);
                }
                Start::PeerFull | Start::NoMemory => {
                    self.requeue_first(key, to);
                    break;
                }
            }
        }
        let line = self.pulls.lines.get(&to);
        if line.is_some_and(|line| line.demand.is_empty() && line.prefetch.is_empty()) {
            self.pulls.lines.remove(&to);
        }
    }

    /// Back to the head of its line, for when something has changed.
    fn requeue_first(&mut self, key: PullKey, to: PeerCore) {
        if let Some(class) = self.pulls.get(key).map(|pull| pull.class) {
            let may_start = self.pulls.may_start;
            self.pulls.enqueue(key, to, class, true);
            self.pulls.may_start = may_start;
        }
    }

    /// Buffers or room at a peer may have come free.
    pub(super) fn wake_pulls(&mut self) {
        self.pulls.may_start |= self.pulls.are_queued();
    }

    fn start_pull(&mut self, now: Time, key: PullKey, to: PeerCore) -> Start {
        let (view, io_timeout) = (self.group.digest(), self.config.io_timeout);
        let Some(pull) = self.pulls.get(key) else {
            return Start::Stale;
        };
        if pull.deadline <= now {
            self.abandon_pull(key, &ReadError::Deadline);
            return Start::Stale;
        }
        let (step, slot) = (pull.route.step(), pull.placement_slot());
        // Another view may name another core.
        let still = step.filter(|step| self.group.core_of(step.peer, slot) == Some(to));
        let Some(step) = still else {
            self.queue_pull(key);
            return Start::Stale;
        };
        if !self.group.answers(now, to.peer) {
            self.next_step(key, true);
            return Start::Stale;
        }
        let Some(pull) = self.pulls.get(key) else {
            return Start::Stale;
        };
        let (bytes, brings) = (pull.bytes(), pull.mask());
        let (block, subs, len_bytes) = (pull.block, pull.subs, pull.len_bytes);
        let share = match pull.class {
            Class::Demand if pull.for_peer => Share::Serve,
            Class::Demand => Share::Demand,
            Class::Prefetch | Class::WarmUp => Share::Prefetch,
        };
        let want_end = pull.want_end.min(pull.object.size_bytes).max(bytes.end);
        let request = PeerFetch {
            object: pull.at.object,
            size_bytes: pull.object.size_bytes,
            offset: bytes.start,
            len_bytes: len_bytes as u32,
            want_bytes: (want_end - bytes.start) as u32,
            class: pull.class,
            view,
            cached_only: step.how == How::CachedOnly,
            forwarded: step.how == How::Forwarded,
            verify: self.index.block(block).spoiled & brings != 0,
        };
        // What is left is shared by the members that may still be asked, and the origin after them.
        let shares = pull.route.left() as u32 + 1;
        let mut deadline = now + pull.deadline.since(now) / shares;
        if pull.forwarded && step.how == How::AsOwner {
            deadline = deadline.min(now + io_timeout / STAND_IN_PATIENCE);
        }
        let is_prefetch = pull.class != Class::Demand;
        let lease = match self.lease(len_bytes, share) {
            Ok(lease) => lease,
            Err(Denied::Memory) if subs > 1 => {
                self.split_pull(key);
                return Start::Stale;
            }
            Err(_) => return Start::NoMemory,
        };
        let tag = FetchTag(self.next_id());
        let op = TransportOp::Fetch {
            tag,
            to,
            request,
            lease,
            deadline,
        };
        if let Err(Full(_)) = self.parts.transport.submit(op) {
            return Start::PeerFull;
        }
        self.tags.insert(tag.0, Tagged::Pull(key));
        self.group.asks(now, to.peer, deadline);
        self.pull_ceiling.spend(now, len_bytes as u64);
        self.stats.pulls += 1;
        if let Some(pull) = self.pulls.get(key) {
            pull.state = State::Running(tag);
            pull.begun_as_prefetch = is_prefetch;
            self.pulls.prefetches_running += usize::from(is_prefetch);
        }
        Start::Started
    }

    /// Turns the pull of a chunk into pulls of its sub-blocks, when there is no contiguous chunk to be had.
    fn split_pull(&mut self, key: PullKey) {
        let Some(whole) = self.take_pull(key) else {
            return;
        };
        for n in 0..whole.subs {
            let part = Pull {
                id: self.next_id(),
                object: whole.object.clone(),
                first_sub: whole.first_sub + n,
                subs: 1,
                len_bytes: SUB_BLOCK_BYTES.min(whole.len_bytes - n * SUB_BLOCK_BYTES),
                ..whole
            };
            let key = self.promise_pull(part);
            self.queue_pull(key);
        }
    }

    /// Takes a pull out, and its promise back.
    fn take_pull(&mut self, key: PullKey) -> Option<Pull> {
        self.pulls.get(key)?;
        let pull = self.pulls.all.remove(key.slot);
        if let State::BackingOff(until) = pull.state {
            self.timers.clear(until, Due::Pull(key));
        }
        self.index
            .unpromise(pull.block, Promise::Pull(key), pull.mask());
        Some(pull)
    }

    /// A peer answered a pull, or did not.
    pub(super) fn pull_ended(
        &mut self,
        now: Time,
        key: PullKey,
        lease: Lease,
        result: Result<FetchStatus, TransportError>,
        checksums: Vec<u32>,
    ) {
        self.pulls.may_start = true;
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        if std::mem::take(&mut pull.begun_as_prefetch) {
            self.pulls.prefetches_running -= 1;
        }
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        let Some(step) = pull.route.step() else {
            return self.pull_from_origin(key);
        };
        if self.shutting_down {
            return self.abandon_pull(key, &ReadError::Shutdown);
        }
        match result {
            Ok(status) => {
                self.group.answered(step.peer);
                match status {
                    FetchStatus::Bytes => self.pulled(now, key, lease, checksums),
                    other => self.pull_refused(now, key, step, other),
                }
            }
            // Its member has left: whoever owns the bytes now is asked.
            Err(TransportError::Cancelled) if self.renew_route(key) => {
                if let Some(pull) = self.pulls.get(key) {
                    pull.missed_owner = true;
                }
                self.queue_pull(key);
            }
            Err(error) => {
                if !matches!(error, TransportError::Cancelled) {
                    self.stats.peer_failures += 1;
                    self.pass_over(now, step.peer, error != TransportError::Timeout);
                    if let Some(left_out) = self.peer_log.open(now) {
                        tracing::warn!(peer = step.peer.0, %error, left_out,
                            "a member did not answer; the next in line is asked");
                    }
                }
                self.next_step(key, true);
            }
        }
    }

    /// A peer answered without bytes.
    fn pull_refused(&mut self, now: Time, key: PullKey, step: Step, status: FetchStatus) {
        let me = self.config.me;
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        let (urgent, patient) = (pull.class == Class::Demand, pull.attempt < VIEW_WAITS_MAX);
        match status {
            FetchStatus::NeedName if pull.named < NEED_NAME_MAX => {
                pull.named += 1;
                self.describe(now, key);
            }
            // Views differ: the one that is on its way here tells more.
            FetchStatus::NotOwner { owner }
                if patient && (owner == me || !self.group.knows(owner)) =>
            {
                return self.back_off_pull(now, key);
            }
            FetchStatus::NotOwner { owner } if owner == me => pull.route.end(),
            FetchStatus::NotOwner { owner } if !std::mem::replace(&mut pull.redirected, true) => {
                pull.route.redirect(owner);
            }
            // What nobody waits for is not worth another member's trouble, nor the origin's.
            FetchStatus::Busy | FetchStatus::Failed(PeerFailure::Deadline) if !urgent => {
                self.stats.prefetch_dropped += 1;
                return self.abandon_pull(key, &ReadError::Deadline);
            }
            // It waits for the origin itself, or has no room: no other member would do better.
            FetchStatus::Busy | FetchStatus::Failed(PeerFailure::Deadline) => {
                return self.back_off_pull(now, key);
            }
            FetchStatus::Failed(PeerFailure::Origin(kind)) if !kind.is_transient() => {
                let error = match kind {
                    OriginErrorKind::VersionChanged => ReadError::VersionChanged,
                    kind => ReadError::Origin(OriginError::new(
                        kind,
                        format!(
                            "{}/{:?}: so the member that owns it was told by the origin",
                            pull.object.bucket, pull.object.key
                        ),
                    )),
                };
                return self.abandon_pull(key, &error);
            }
            FetchStatus::Failed(PeerFailure::Shutdown) => {
                self.pass_over(now, step.peer, true);
                return self.next_step(key, true);
            }
            _ => return self.next_step(key, false),
        }
        if !matches!(status, FetchStatus::NeedName) {
            self.queue_pull(key);
        }
    }

    fn next_step(&mut self, key: PullKey, missed: bool) {
        if let Some(pull) = self.pulls.get(key) {
            pull.missed_owner |= missed;
            pull.attempt = 0;
            pull.route.next();
            self.queue_pull(key);
        }
    }

    fn back_off_pull(&mut self, now: Time, key: PullKey) {
        let Some(pull) = self.pulls.all.get_mut(key.slot).filter(|p| p.id == key.id) else {
            return;
        };
        pull.attempt += 1;
        let until = now + retry::backoff(pull.attempt, &mut self.parts.rng);
        // The origin gets the last part of the time.
        let patience = pull.deadline.since(now) > self.config.io_timeout / ATTEMPTS_PER_DEADLINE;
        if until >= pull.deadline || (!patience && pull.attempt > BUSY_MAX) {
            return self.next_step(key, false);
        }
        pull.state = State::BackingOff(until);
        self.timers.set(until, Due::Pull(key));
    }

    /// A pull's back-off is over.
    pub(super) fn pull_due(&mut self, key: PullKey) {
        let pull = self.pulls.get(key);
        if pull.is_some_and(|pull| matches!(pull.state, State::BackingOff(_))) {
            self.renew_route(key);
            self.queue_pull(key);
        }
    }

    /// A new route, if another view has come since the pull's was made.
    fn renew_route(&mut self, key: PullKey) -> bool {
        let view = self.group.digest();
        let Some(pull) = self.pulls.get(key).filter(|pull| pull.view != view) else {
            return false;
        };
        let (slot, forwarded) = (pull.placement_slot(), pull.forwarded);
        let route = self.group.route(self.now, slot, forwarded);
        if let Some(pull) = self.pulls.get(key) {
            (pull.route, pull.view, pull.redirected) = (route, view, false);
        }
        true
    }

    /// A peer did not answer: what waits for it goes on to the next, or is dropped when nobody waits for it.
    fn pass_over(&mut self, now: Time, peer: PeerId, in_time: bool) {
        self.group.failed(now, peer, in_time, &mut self.parts.rng);
        let (first, last) = (
            PeerCore { peer, core: 0 },
            PeerCore {
                peer,
                core: u16::MAX,
            },
        );
        let lines = self.pulls.lines.range(first..=last);
        let keys: Vec<PullKey> = lines
            .flat_map(|(_, line)| line.demand.iter().chain(&line.prefetch).copied())
            .collect();
        for key in keys {
            let Some(pull) = self.pulls.get(key) else {
                continue;
            };
            match (pull.state, pull.class) {
                (State::Queued(to), Class::Demand) if to.peer == peer => self.next_step(key, true),
                (State::Queued(to), _) if to.peer == peer => {
                    self.stats.prefetch_dropped += 1;
                    self.abandon_pull(key, &ReadError::Deadline);
                }
                _ => {}
            }
        }
    }

    /// The view has changed: what is asked of those who are no longer members is asked of others.
    pub(super) fn reroute_pulls(&mut self) {
        let all = self.pulls.all.iter();
        let keys: Vec<PullKey> = all
            .map(|(slot, pull)| PullKey { slot, id: pull.id })
            .collect();
        for key in keys {
            let Some(pull) = self.pulls.get(key) else {
                continue;
            };
            let gone = pull
                .route
                .step()
                .filter(|step| !self.group.knows(step.peer));
            match (gone, pull.state) {
                (Some(_), State::Running(tag)) => self.parts.transport.cancel(tag),
                (Some(_), State::Queued(_)) => {
                    self.renew_route(key);
                    self.queue_pull(key);
                }
                _ => {}
            }
        }
    }

    /// Tells the member that a pull is at what its object is called.
    fn describe(&mut self, now: Time, key: PullKey) {
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        let limit = now + pull.deadline.since(now) / (pull.route.left() as u32 + 1);
        let to = pull
            .route
            .step()
            .map(|step| (step.peer, pull.placement_slot()));
        let (class, deadline) = (pull.class, pull.deadline.min(limit));
        let body = Call::Describe(pull.object.clone()).encode();
        let to = to.and_then(|(peer, slot)| self.group.core_of(peer, slot));
        let lease = self.lease(PAGE_BYTES, Share::Demand);
        let (Some(to), Ok(lease)) = (to, lease) else {
            return self.back_off_pull(now, key);
        };
        debug_assert!(body.len() <= CALL_BYTES_MAX);
        let tag = FetchTag(self.next_id());
        let op = TransportOp::Call {
            tag,
            to,
            class,
            body,
            lease,
            deadline,
        };
        if self.parts.transport.submit(op).is_err() {
            return self.back_off_pull(now, key);
        }
        self.tags.insert(tag.0, Tagged::Describe(key));
        if let Some(pull) = self.pulls.get(key) {
            pull.state = State::Running(tag);
        }
    }

    /// A description arrived, or did not.
    pub(super) fn described(
        &mut self,
        now: Time,
        key: PullKey,
        result: Result<FetchStatus, TransportError>,
    ) {
        self.pulls.may_start = true;
        if self.shutting_down {
            return self.abandon_pull(key, &ReadError::Shutdown);
        }
        match result {
            Ok(FetchStatus::Bytes) => self.queue_pull(key),
            Ok(FetchStatus::Busy) => self.back_off_pull(now, key),
            Ok(_) => self.next_step(key, false),
            Err(error) => {
                if let Some(step) = self.pulls.get(key).and_then(|pull| pull.route.step())
                    && error != TransportError::Cancelled
                {
                    self.stats.peer_failures += 1;
                    self.pass_over(now, step.peer, error != TransportError::Timeout);
                }
                self.next_step(key, true);
            }
        }
    }

    /// The bytes of a pull are here, with the checksums that the peer says they have.
    fn pulled(&mut self, now: Time, key: PullKey, lease: Lease, checksums: Vec<u32>) {
        if checksums.len() != lease.len().div_ceil(PAGE_BYTES) {
            debug_assert!(false, "a checksum for each page");
            return self.next_step(key, false);
        }
        let Some(pull) = self.take_pull(key) else {
            return;
        };
        self.stats.pulled_bytes += pull.len_bytes as u64;
        let bytes = self.parts.arena.freeze(lease);
        let seed = self.index.block(pull.block).seed;
        let piece = Piece::unchecked(pull.first_sub, bytes, checksums.into(), self.turns);
        let block_bytes = pull.object.block_len_bytes(pull.at.index);
        // What goes to disk is checked here: its readers check what they read themselves.
        let kept = match self.keeps(pull.placement_slot()) {
            true => self.to_keep(pull.at, &piece),
            false => None,
        };
        let kept = kept.filter(|_| piece.verify(seed, 0, piece.bytes.len()));
        self.index
            .install(pull.block, pull.first_sub, pull.subs, piece);
        self.wake_readers(now, pull.block, pull.mask());
        if let Some(kept) = kept {
            self.keep(now, block_bytes, kept);
        }
    }

    /// Nobody in the group has the bytes: the origin is next, for whoever waits.
    fn pull_from_origin(&mut self, key: PullKey) {
        if self.shutting_down {
            return self.abandon_pull(key, &ReadError::Shutdown);
        }
        let Some(pull) = self.take_pull(key) else {
            return;
        };
        let bytes = pull.bytes();
        let first = bytes.start / SUB_BLOCK_BYTES as u64;
        let ask = Ask {
            object: &pull.object,
            demand: bytes.clone(),
            want_end: bytes.end,
            class: pull.class,
            deadline: pull.deadline,
            lost: pull.lost.or(pull.missed_owner.then_some(Reason::RingMoved)),
            reach: Reach::READER,
            for_peer: pull.for_peer,
        };
        self.add_fills(&ask, first..first + pull.subs as u64);
        let block = self.index.block(pull.block);
        if block.in_flight & pull.mask() != pull.mask() {
            // There are too many fills for one that nobody is in a hurry for.
            let missing = std::iter::once((pull.block, pull.mask() & !block.in_flight));
            self.fail_readers(missing, &ReadError::Deadline);
            return self.index.forget_if_idle(pull.block);
        }
        for waiter in &block.waiters {
            if waiter.needs & pull.mask() != 0 {
                Self::note_tier(&mut self.reads, waiter.read, Tier::Origin);
            }
        }
    }

    /// Ends a pull that is not running; whoever waits for it gets `error`.
    fn abandon_pull(&mut self, key: PullKey, error: &ReadError) {
        let Some(pull) = self.take_pull(key) else {
            return;
        };
        self.fail_readers(std::iter::once((pull.block, pull.mask())), error);
        self.index.forget_if_idle(pull.block);
    }

    /// Asks for an early end of what is at peers, and gives up what has not begun.
    pub(super) fn cancel_pulls(&mut self) {
        let all = self.pulls.all.iter();
        let keys: Vec<(PullKey, State)> = all
            .map(|(slot, pull)| (PullKey { slot, id: pull.id }, pull.state))
            .collect();
        for (key, state) in keys {
            match state {
                State::Running(tag) => self.parts.transport.cancel(tag),
                _ => self.abandon_pull(key, &ReadError::Shutdown),
            }
        }
    }
}

/// A member that is busy so often is passed over, when time is short.
const BUSY_MAX: u32 = 8;
/// How often a member that names an owner unknown here is asked again, for the view that is on its way.
const VIEW_WAITS_MAX: u32 = 4;
