//! Starting pulls, as far as peers and the arena have room.

use std::ops::Range;
use std::time::Duration;

use super::super::group::Step;
use super::super::{Core, Tagged};
use super::lines::{PullKey, State};
use crate::arena::Denied;
use crate::errors::ReadError;
use crate::limits::PULL_RETRY_MS;
use crate::ports::{Class, FetchTag, Full, PeerCore, Platform, Time, Transport, TransportOp};

/// How an attempt to start a pull went.
enum Start {
    Started,
    /// There is nothing to start any more, or something else in its place.
    Stale,
    NoMemory,
    PeerFull,
}

impl<P: Platform> Core<P> {
    /// Starts what is queued, as far as peers and the arena have room.
    /// Returns whether the transport got something.
    pub(in crate::core) fn start_pulls(&mut self, now: Time) -> bool {
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
    pub(in crate::core) fn wake_pulls(&mut self) {
        self.pulls.may_start |= self.pulls.are_queued();
    }

    fn start_pull(&mut self, now: Time, key: PullKey, to: PeerCore) -> Start {
        let Some(step) = self.step_to_start(now, key, to) else {
            return Start::Stale;
        };
        let (view, io_timeout) = (self.group.digest(), self.config.io_timeout);
        let Some(pull) = self.pulls.get(key) else {
            return Start::Stale;
        };
        let (block, brings) = (pull.block, pull.mask());
        let (subs, len_bytes, share) = (pull.subs, pull.len_bytes, pull.share());
        let deadline = pull.step_deadline(now, step.how, io_timeout);
        let mut request = pull.request(step.how, view);
        request.verify = self.index.block(block).spoiled & brings != 0;
        let is_prefetch = request.class != Class::Demand;
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

    /// How the peer is asked now that a pull in the line for its core `to` is about. None when it is too late, or
    /// someone else is to be asked: the pull is there then, or has ended.
    fn step_to_start(&mut self, now: Time, key: PullKey, to: PeerCore) -> Option<Step> {
        let pull = self.pulls.get(key)?;
        if pull.deadline <= now {
            self.abandon_pull(key, &ReadError::Deadline);
            return None;
        }
        let (step, slot) = (pull.route.step(), pull.placement_slot());
        // Another view may name another core.
        let still = step.filter(|step| self.group.core_of(step.peer, slot) == Some(to));
        if still.is_none() {
            self.queue_pull(key);
            return None;
        }
        if !self.group.answers(now, to.peer) {
            self.next_step(key, true);
            return None;
        }
        still
    }

    /// Turns a pull of several sub-blocks into one of each, when there is no contiguous buffer to be had.
    fn split_pull(&mut self, key: PullKey) {
        let subs = self.pulls.get(key).map_or(0, |pull| pull.subs);
        let singles: Vec<_> = (0..subs).map(|n| (n..n + 1, true)).collect();
        self.divide_pull(key, &singles);
    }

    /// Puts pulls of runs of its sub-blocks in a pull's place. Those that do not `stay` where it is go on to the
    /// next of the route.
    pub(super) fn divide_pull(&mut self, key: PullKey, runs: &[(Range<usize>, bool)]) {
        let Some(whole) = self.take_pull(key) else {
            return;
        };
        // All are promised before any goes on: one that ends at once would take the block's entry with it.
        let mut keys = Vec::with_capacity(runs.len());
        for (run, stays) in runs {
            let mut part = whole.part(self.next_id(), run.clone());
            part.attempt = 0;
            if !stays {
                part.route.next();
            }
            keys.push(self.promise_pull(part));
        }
        for key in keys {
            self.queue_pull(key);
        }
    }
}
