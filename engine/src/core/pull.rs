//! A pull's life: sub-blocks on their way from another member into the memory index. To peers what a fill
//! is to the origin and a load to the disk.
//!
//! ```text
//! planned -> queued -> running -> installed
//!              ^         | no answer, not cached, not the owner: the next member of the route
//!              |         | a part of it is cached: that from there, the rest from the next
//!              |         |   route at its end -> planned again, from the origin
//!              |         | needs the name: described, asked again
//!              +- back-off | busy
//! ```
//!
//! One pull is one request: a whole chunk, or one sub-block; or, once a member was found to hold a part of a chunk,
//! a run of sub-blocks. Which members it asks is its route (`core::group`), made when it is planned.
//!
//! | file | role |
//! |---|---|
//! | `lines` | pulls, and the lines in which they wait for a peer |
//! | `start` | starting them, as far as peers and the arena have room |
//! | `answers` | what a peer answers, and what comes of it |

mod answers;
mod lines;
mod start;

use std::ops::Range;

use super::group::{Reach, Route};
use super::index::Promise;
use super::plan::{Ask, next_piece, place};
use super::read::Tier;
use super::timers::Due;
use super::{Core, retry};
use crate::errors::ReadError;
use crate::limits::{
    ATTEMPTS_PER_DEADLINE, PULLS_PER_CORE_MAX, SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK,
};
use crate::ports::{Class, PeerCore, PeerId, Platform, Time, Transport};
use crate::stats::Reason;

pub(super) use lines::PullKey;
pub(super) use lines::Pulls;
use lines::{Pull, State};

/// A member that is busy so often is passed over, when time is short.
const BUSY_MAX: u32 = 8;

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
                is_take: matches!(ask.reach, Reach::From(_)),
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
        let stale = |pull: &&mut Pull| pull.view != view && !pull.is_take;
        let Some(pull) = self.pulls.get(key).filter(stale) else {
            return false;
        };
        let (slot, forwarded) = (pull.placement_slot(), pull.forwarded);
        let object = pull.object.clone();
        let route = self.bytes_route(&object, slot, forwarded);
        if let Some(pull) = self.pulls.get(key) {
            (pull.route, pull.view, pull.redirected) = (route, view, false);
        }
        true
    }

    /// A peer did not answer: what waits for it goes on to the next, or is dropped when nobody waits for it.
    pub(super) fn pass_over(&mut self, now: Time, peer: PeerId, in_time: bool) {
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

    /// Nobody in the group has the bytes: the origin is next, for whoever waits.
    fn pull_from_origin(&mut self, key: PullKey) {
        if self.shutting_down {
            return self.abandon_pull(key, &ReadError::Shutdown);
        }
        let Some(pull) = self.take_pull(key) else {
            return;
        };
        if pull.is_take {
            return self.not_handed_over(pull.block, pull.mask());
        }
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
