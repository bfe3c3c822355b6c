//! Asking the member that owns a name, and after it those that stand in for it.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::group::{How, Route, Step};
use super::super::{Core, Tagged, retry};
use super::question::{Asker, before};
use super::{Finding, Lookup, LookupKey, Question, State};
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

/// Whom a question is asked of, one after the other.
pub(super) struct Others {
    route: Route,
    /// How long the one whose turn it is may take.
    step_until: Option<Time>,
    /// A member that should know was asked, and does not reach the origin: nobody is waited for long after it.
    is_offered: bool,
    /// The origin was known to be silent when the route was made.
    is_around: bool,
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

impl Others {
    /// Nobody is left.
    pub fn are_over(&self) -> bool {
        step(&self.route).is_none()
    }

    /// The next one is asked.
    fn pass_over(&mut self) {
        self.route.next();
        self.step_until = None;
    }

    /// The one whose turn it is does not reach the origin. What it knows from before has been noted.
    fn offered(&mut self) {
        self.is_offered = true;
        self.pass_over();
    }

    /// Whom to ask now, and until when. Each gets its part of the time that is left, the origin the last; less once
    /// the one that should know has been asked.
    fn step(&mut self, now: Time, last: Time, io_timeout: Duration) -> Option<(Step, Time)> {
        let patience = match self.is_offered {
            true => io_timeout / STAND_IN_PATIENCE,
            false => retry::stall_limit(io_timeout),
        };
        loop {
            let step = step(&self.route)?;
            let part = (last.since(now) / (len(self.route) + 1)).min(patience);
            let until = *self.step_until.get_or_insert(now + part);
            if until > now {
                return Some((step, until.min(last)));
            }
            self.pass_over();
        }
    }
}

impl<P: Platform> Core<P> {
    /// Who else in the group may tell.
    pub(super) fn name_route(&self, now: Time, question: &Question) -> Others {
        let slot = Slot::of_name(question.name());
        let is_around = self.outages.is_known(question.bucket());
        let route = match is_around {
            true => self.group.around(now, slot),
            false => self.group.route(now, slot, false),
        };
        Others {
            route,
            step_until: None,
            is_offered: false,
            is_around,
        }
    }

    /// Asks the members of a route, and the origin after them.
    pub(super) fn ask_others(
        &mut self,
        now: Time,
        question: Question,
        askers: VecDeque<Asker>,
        others: Others,
    ) {
        if others.are_over() {
            self.ask_origin(now, question, askers);
            return;
        }
        let key = self.add_askers(now, question, askers, Some(others));
        self.set_lookup_timer(key);
    }

    /// Asks the member whose turn it is, if there is room; the origin when nobody is left.
    pub(super) fn ask_member(&mut self, now: Time, key: LookupKey) {
        let io_timeout = self.config.io_timeout;
        loop {
            let Some(lookup) = self.lookups.get(key) else {
                return;
            };
            let last = lookup.last_deadline();
            let max_age = now.since(lookup.need());
            let others = lookup.others.as_mut();
            let step = others.and_then(|others| others.step(now, last, io_timeout));
            if step.is_none() && self.widen_route(now, key) {
                continue;
            }
            let Some(lookup) = self.lookups.get(key) else {
                return;
            };
            let body = lookup.question.encode(max_age);
            let (Some((step, until)), Some(body)) = (step, body) else {
                return self.leave_to_origin(now, key);
            };
            let is_rest = lookup.question.is_rest();
            let slot = Slot::of_name(lookup.question.name());
            let to = self.group.core_of(step.peer, slot);
            let Some(to) = to.filter(|to| self.group.answers(now, to.peer)) else {
                // It has left, or turned out silent, since.
                if let Some(others) = &mut lookup.others {
                    others.pass_over();
                }
                continue;
            };
            let Some(lease) = self.question_lease(is_rest) else {
                return self.wait_for_room(now, key);
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
                return self.wait_for_room(now, key);
            }
            self.tags.insert(tag.0, Tagged::Question(key, to.peer));
            self.group.asks(now, to.peer, until);
            if let Some(lookup) = self.lookups.get(key) {
                lookup.state = State::AtPeer(tag);
                lookup.began = now;
            }
            return self.set_lookup_timer(key);
        }
    }

    /// The origin was found silent since the route was made: whoever would be asked then is next. False when that is
    /// nobody else.
    fn widen_route(&mut self, now: Time, key: LookupKey) -> bool {
        let lookup = self.lookups.get(key);
        let Some(question) = lookup.map(|lookup| lookup.question.clone()) else {
            return false;
        };
        let more = self.name_route(now, &question);
        let lookup = self.lookups.get(key);
        let Some(others) = lookup.and_then(|lookup| lookup.others.as_mut()) else {
            return false;
        };
        if others.is_around || !more.is_around {
            return false;
        }
        others.route = more.route.without(&others.route);
        (others.is_around, others.step_until) = (true, None);
        !others.are_over()
    }

    /// The view has changed: those who are no longer members are not waited for.
    pub(in crate::core) fn reroute_lookups(&mut self) {
        let has_left = |lookup: &Lookup| {
            let step = lookup
                .others
                .as_ref()
                .and_then(|others| step(&others.route));
            step.is_some_and(|step| !self.group.knows(step.peer))
        };
        for key in self.lookups.keys(has_left) {
            self.cancel_lookup(key);
        }
    }

    /// No member is left to ask.
    fn leave_to_origin(&mut self, now: Time, key: LookupKey) {
        let Some(Lookup {
            question,
            mut askers,
            others,
            ..
        }) = self.take_lookup(key)
        else {
            return;
        };
        let is_offered = others.is_some_and(|others| others.is_offered);
        for asker in &mut askers {
            asker.is_offered |= is_offered;
        }
        self.ask_origin(now, question, askers);
    }

    /// The origin told others what is asked of members here: who may take that is told too.
    pub(super) fn told_meanwhile(&mut self, question: &Question, told: &Told<Finding>) {
        let key = self.lookups.at_others.by_question.get(question).copied();
        let Some((key, lookup)) = key.and_then(|key| Some((key, self.lookups.get(key)?))) else {
            return;
        };
        let (served, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut lookup.askers)
            .into_iter()
            .partition(|asker| asker.need <= told.at);
        lookup.askers = rest;
        if lookup.askers.is_empty() {
            self.cancel_lookup(key);
            self.take_lookup(key);
        } else {
            self.set_lookup_timer(key);
        }
        for asker in served {
            self.tell(asker, question, told.clone());
        }
    }

    /// Room for an answer: most are short. Who gets a page cut asks for the rest with more room.
    fn question_lease(&mut self, is_rest: bool) -> Option<Lease> {
        let long = is_rest.then(|| self.lease(CHUNK_BYTES, Share::Demand).ok());
        let long = long.flatten();
        long.or_else(|| self.lease(SUB_BLOCK_BYTES, Share::Demand).ok())
    }

    /// There is no room to ask a peer: the same one is asked a moment later.
    fn wait_for_room(&mut self, now: Time, key: LookupKey) {
        if let Some(lookup) = self.lookups.get(key) {
            lookup.state = State::BackingOff;
            lookup.step_at = now + ROOM_PAUSE;
        }
        self.set_lookup_timer(key);
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
            Err(TransportError::Cancelled) => self.group.given_up(now, peer),
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
                None => return self.leave_to_origin(now, key),
            },
            Ok((FetchStatus::Failed(PeerFailure::Invalid), _)) => {
                return self.leave_to_origin(now, key);
            }
            Ok((FetchStatus::Busy, _)) => {
                let kind = OriginErrorKind::Timeout;
                return self.owner_failed(now, key, OriginError::new(kind, "the owner is busy"));
            }
            _ => return self.ask_again(key, Others::pass_over),
        };
        let question = lookup.question.clone();
        let is_too_old = lookup.askers.iter().all(|asker| asker.need > told.at);
        // It is not given again to others: they ask the owner.
        self.findings.hear(question, &told);
        match &told.result {
            Err(error) => match error.kind {
                // It does not reach the origin. Another one may.
                OriginErrorKind::Unavailable | OriginErrorKind::Timeout => {
                    self.ask_again(key, Others::offered);
                }
                // What it is refused another may be given.
                kind if kind.is_of_asker() => self.ask_again(key, Others::pass_over),
                kind if kind.is_transient() => self.owner_failed(now, key, error.clone()),
                OriginErrorKind::NotFound if is_too_old => self.ask_again(key, Others::offered),
                _ => self.settle(key, told),
            },
            Ok(_) if is_too_old => self.ask_again(key, Others::offered),
            Ok(_) => self.settle(key, told),
        }
    }

    fn ask_again(&mut self, key: LookupKey, change: impl FnOnce(&mut Others)) {
        let lookup = self.lookups.get(key);
        if let Some(others) = lookup.and_then(|lookup| lookup.others.as_mut()) {
            change(others);
        }
        self.lookups.make_ready(key);
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
            return self.ask_again(key, Others::pass_over);
        }
        lookup.attempt += 1;
        let last = lookup.last_deadline();
        if error.kind == OriginErrorKind::Throttled
            && let Some(others) = &mut lookup.others
        {
            others.step_until = Some(last);
        }
        let until = now + retry::backoff(lookup.attempt, &mut self.parts.rng);
        if until >= last {
            self.resort(now, key);
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
