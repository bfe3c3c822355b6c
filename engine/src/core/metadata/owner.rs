//! Asking the member that owns a name, and after it those that stand in for it.

use std::time::Duration;

use super::super::group::{How, Route, Step};
use super::super::{Core, Tagged, retry};
use super::question::before;
use super::{Finding, Lookup, LookupKey, State};
use crate::arena::{Lease, Share};
use crate::client::Told;
use crate::errors::{OriginError, OriginErrorKind};
use crate::identity::Slot;
use crate::limits::{CHUNK_BYTES, STAND_IN_PATIENCE, SUB_BLOCK_BYTES};
use crate::ports::{
    Class, FetchStatus, FetchTag, PeerFailure, PeerId, Platform, Time, Transport, TransportError,
    TransportOp,
};
use crate::wire::call::CallAnswer;

/// How long a question waits for memory, or for room on its connection, before it looks again.
const ROOM_PAUSE: Duration = Duration::from_millis(5);

/// What became of a question for another member.
pub(super) enum Turned {
    /// It is on its way.
    Asked,
    /// There is no room for it now.
    Waits,
    /// Nobody but the origin is left.
    ToOrigin,
}

/// Whom to ask now: earlier owners know nothing of names.
fn step(route: &Route) -> Option<Step> {
    route.step().filter(|step| step.how != How::CachedOnly)
}

/// How many are left to ask.
fn len(mut route: Route) -> u32 {
    let mut len = 0;
    while step(&route).is_some() {
        len += 1;
        route.next();
    }
    len
}

impl Lookup {
    /// The next one is asked.
    fn pass_over(&mut self) {
        if let Some(route) = &mut self.route {
            route.next();
        }
        self.step_until = None;
    }

    /// How long one source may take: less once the one that should know has been asked.
    pub(super) fn patience(&self, io_timeout: Duration) -> Duration {
        match self.is_offered {
            true => io_timeout / STAND_IN_PATIENCE,
            false => retry::stall_limit(io_timeout),
        }
    }

    /// The one whose turn it is does not reach the origin. What it knows from before has been noted.
    fn offered(&mut self) {
        self.is_offered = true;
        self.pass_over();
    }

    fn ask_nobody(&mut self) {
        self.route = Some(Route::default());
        self.step_until = None;
    }

    /// Whom to ask now. Each gets its part of the time that is left, the origin the last.
    fn step(&mut self, now: Time, io_timeout: Duration) -> Option<(Step, Time)> {
        let patience = self.patience(io_timeout);
        loop {
            let route = self.route?;
            let step = step(&route)?;
            let last = self.last_deadline();
            let part = (last.since(now) / (len(route) + 1)).min(patience);
            let until = *self.step_until.get_or_insert(now + part);
            if until > now {
                return Some((step, until.min(last)));
            }
            self.pass_over();
        }
    }
}

impl<P: Platform> Core<P> {
    /// Asks the member whose turn it is, if that is another one.
    pub(super) fn ask_owner(&mut self, now: Time, key: LookupKey) -> Turned {
        let io_timeout = self.config.io_timeout;
        let Some(lookup) = self.lookups.get(key) else {
            return Turned::ToOrigin;
        };
        let slot = Slot::of_name(lookup.question.name());
        if lookup.route.is_none() {
            // A peer's question ends here, whoever owns the name by now.
            let ends_here = lookup.ends_here();
            let is_silent = self.outages.is_known(lookup.question.bucket());
            let route = match () {
                () if ends_here => Route::default(),
                () if is_silent => self.group.around(now, slot),
                () => self.group.route(now, slot, false),
            };
            if let Some(lookup) = self.lookups.get(key) {
                lookup.route = Some(route);
            }
        }
        loop {
            let Some(lookup) = self.lookups.get(key) else {
                return Turned::ToOrigin;
            };
            let Some((step, until)) = lookup.step(now, io_timeout) else {
                return Turned::ToOrigin;
            };
            let max_age = now.since(lookup.need());
            let Some(body) = lookup.question.encode(max_age) else {
                lookup.ask_nobody();
                return Turned::ToOrigin;
            };
            let is_rest = lookup.question.is_rest();
            let to = self.group.core_of(step.peer, slot);
            let Some(to) = to.filter(|to| self.group.answers(now, to.peer)) else {
                // It has left, or turned out silent, since.
                if let Some(lookup) = self.lookups.get(key) {
                    lookup.pass_over();
                }
                continue;
            };
            let Some(lease) = self.question_lease(is_rest) else {
                return Turned::Waits;
            };
            let tag = FetchTag(self.next_id());
            let op = TransportOp::Call {
                tag,
                to,
                class: Class::Demand,
                body,
                lease,
                deadline: until,
            };
            if self.parts.transport.submit(op).is_err() {
                return Turned::Waits;
            }
            self.tags.insert(tag.0, Tagged::Question(key, to.peer));
            self.group.asks(now, to.peer, until);
            if let Some(lookup) = self.lookups.get(key) {
                lookup.state = State::AtPeer(tag);
                lookup.began = now;
            }
            self.set_lookup_timer(key);
            return Turned::Asked;
        }
    }

    /// Room for an answer: most are short. Who gets a page cut asks for the rest with more room.
    fn question_lease(&mut self, is_rest: bool) -> Option<Lease> {
        let long = is_rest.then(|| self.lease(CHUNK_BYTES, Share::Demand).ok());
        let long = long.flatten();
        long.or_else(|| self.lease(SUB_BLOCK_BYTES, Share::Demand).ok())
    }

    /// There is no room to ask a peer: the same one is asked a moment later.
    pub(super) fn wait_for_room(&mut self, now: Time, key: LookupKey) {
        if let Some(lookup) = self.lookups.get(key) {
            lookup.state = State::BackingOff;
            lookup.step_at = now + ROOM_PAUSE;
        }
        self.set_lookup_timer(key);
    }

    /// A peer's question has joined: what would be asked of another member is asked of the origin. Else two
    /// members whose views differ could wait for each other.
    pub(super) fn end_here(&mut self, key: LookupKey) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        lookup.ask_nobody();
        if let State::AtPeer(tag) = lookup.state {
            lookup.state = State::Ready;
            self.lookups.ready.push_back(key);
            self.parts.transport.cancel(tag);
        }
    }

    /// The owner of a name answered, or did not.
    pub(in crate::core) fn owner_told(
        &mut self,
        now: Time,
        key: LookupKey,
        asked: (PeerId, FetchTag),
        outcome: Result<(FetchStatus, &[u8]), TransportError>,
    ) {
        let (peer, tag) = asked;
        match outcome {
            Ok(_) => self.group.answered(peer),
            Err(TransportError::Cancelled) => {}
            Err(error) => {
                self.stats.peer_failures += 1;
                let in_time = error != TransportError::Timeout;
                self.group.failed(now, peer, in_time, &mut self.parts.rng);
            }
        }
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        if !matches!(lookup.state, State::AtPeer(at) if at == tag) {
            return;
        }
        let told = match outcome {
            Ok((FetchStatus::Bytes, bytes)) => match told(bytes, lookup.began) {
                Some(told) => told,
                None => return self.ask_again(key, Lookup::ask_nobody),
            },
            Ok((FetchStatus::Failed(PeerFailure::Invalid), _)) => {
                return self.ask_again(key, Lookup::ask_nobody);
            }
            Ok((FetchStatus::Busy, _)) => {
                let kind = OriginErrorKind::Timeout;
                return self.owner_failed(now, key, OriginError::new(kind, "the owner is busy"));
            }
            _ => return self.ask_again(key, Lookup::pass_over),
        };
        let question = lookup.question.clone();
        let is_too_old = lookup.askers.iter().all(|asker| asker.need > told.at);
        // It is not given again to others: they ask the owner.
        self.findings.hear(question, &told);
        match &told.result {
            Err(error) => match error.kind {
                // It does not reach the origin. Another one may.
                OriginErrorKind::Unavailable | OriginErrorKind::Timeout => {
                    self.ask_again(key, Lookup::offered);
                }
                kind if kind.is_transient() => self.owner_failed(now, key, error.clone()),
                OriginErrorKind::NotFound if is_too_old => self.ask_again(key, Lookup::offered),
                _ => self.settle(key, told),
            },
            Ok(_) if is_too_old => self.ask_again(key, Lookup::offered),
            Ok(_) => self.settle(key, told),
        }
    }

    fn ask_again(&mut self, key: LookupKey, change: impl FnOnce(&mut Lookup)) {
        if let Some(lookup) = self.lookups.get(key) {
            change(lookup);
            lookup.state = State::Ready;
            self.lookups.ready.push_back(key);
        }
        self.set_lookup_timer(key);
    }

    /// The owner cannot tell now. All who ask it would make it worse by asking the origin: they come again, those
    /// that the origin slows down to the end, others while it is this member's turn.
    fn owner_failed(&mut self, now: Time, key: LookupKey, error: OriginError) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        if error.kind == OriginErrorKind::Cancelled {
            // It is stopping.
            return self.ask_again(key, Lookup::pass_over);
        }
        lookup.attempt += 1;
        let last = lookup.last_deadline();
        if error.kind == OriginErrorKind::Throttled {
            lookup.step_until = Some(last);
        }
        let until = now + retry::backoff(lookup.attempt, &mut self.parts.rng);
        if until >= last {
            let result = Err(error);
            return self.settle(key, Told { result, at: now });
        }
        lookup.state = State::BackingOff;
        lookup.step_at = until;
        self.set_lookup_timer(key);
    }
}

/// What a peer told that was asked at `asked`.
fn told(bytes: &[u8], asked: Time) -> Option<Told<Finding>> {
    let (result, age_ms) = match CallAnswer::decode(bytes).ok()? {
        CallAnswer::Head { result, age_ms } => (result.map(Finding::Head), age_ms),
        CallAnswer::List { result, age_ms } => {
            (result.map(|page| Finding::List(page.into())), age_ms)
        }
        CallAnswer::Done | CallAnswer::Cached { .. } | CallAnswer::Taken { .. } => return None,
    };
    let age = Duration::from_millis(age_ms.into());
    Some(Told {
        result: result.map_err(|(kind, text)| OriginError::new(kind, text)),
        at: before(asked, age),
    })
}
