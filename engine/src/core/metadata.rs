//! A metadata request's life: HEADs or listing pages, shared by all who ask meanwhile.
//!
//! ```text
//! asked -> ready -> at the member that owns the name, then at its stand-ins -> answered
//!            |         | nobody answers: at the origin
//!            +-> at the origin -> answered; too old for some: ready again for those
//!            ^        | failed, transient, someone's deadline ahead
//!            +- back-off      | failed for good: everyone gets the error
//!                             | it is known not to answer: the last that is known
//! ```
//! In a group the owner of a name remembers the answer for its lifetime ([`super::findings`]). Each asker says how
//! old an answer may be, and is told when the origin was asked. Each has a deadline of its own and is answered by
//! it, whatever the origin does.
//!
//! | file | role |
//! |---|---|
//! | `question` | what is asked, by whom, and what the origin said |
//! | `owner` | asking other members |
//! | `stale` | while the origin does not answer |

mod owner;
mod question;
mod stale;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use owner::Turned;
use question::{Asker, Who};
pub(super) use question::{Finding, Question};

use super::findings::Lifetimes;
use super::group::Route;
use super::outage::Sign;
use super::timers::Due;
use super::{Core, Tagged, retry};
use crate::client::{HeadRequest, ListPageRequest, Told};
use crate::errors::{OriginError, OriginErrorKind};
use crate::limits::PEER_QUESTIONS_PER_CORE_MAX;
use crate::ports::{
    FetchStatus, FetchTag, Full, HeadOp, ListOp, Origin, OriginOp, OriginTag, Platform,
    RequestHandle, Time, Transport,
};
use crate::wire::listing;

/// Names a metadata request; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LookupKey {
    slot: usize,
    id: u64,
}

#[derive(Debug)]
enum State {
    Ready,
    Running {
        tag: OriginTag,
        cancelled: bool,
    },
    /// At the member that owns the name.
    AtPeer(FetchTag),
    BackingOff,
}

pub(super) struct Lookup {
    id: u64,
    question: Question,
    /// In no order: deadlines are stamped before requests race into the ring.
    askers: VecDeque<Asker>,
    attempt: u32,
    state: State,
    /// When what is under way began.
    began: Time,
    /// A member that should know was asked, and does not reach the origin: nobody is waited for long after it.
    is_offered: bool,
    /// Whom to ask before the origin; none: not decided yet.
    route: Option<Route>,
    /// How long the one whose turn it is may take.
    step_until: Option<Time>,
    /// When the state machine must move by itself: attempt stalled, back-off over.
    step_at: Time,
    timer_at: Time,
}

impl Lookup {
    fn last_deadline(&self) -> Time {
        let deadlines = self.askers.iter().map(|asker| asker.deadline);
        deadlines.max().unwrap_or_default()
    }

    /// Since when the origin is to have been asked, for all.
    fn need(&self) -> Time {
        let needs = self.askers.iter().map(|asker| asker.need);
        needs.max().unwrap_or_default()
    }
}

/// Metadata requests under way.
#[derive(Default)]
pub(super) struct Lookups {
    all: slab::Slab<Lookup>,
    by_question: BTreeMap<Question, LookupKey>,
    ready: VecDeque<LookupKey>,
    /// Peers that wait for an answer.
    peers_asking: usize,
}

impl Lookups {
    fn get(&mut self, key: LookupKey) -> Option<&mut Lookup> {
        self.all
            .get_mut(key.slot)
            .filter(|lookup| lookup.id == key.id)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }
}

fn shutdown_error() -> OriginError {
    OriginError::new(OriginErrorKind::Cancelled, "the mount is shutting down")
}

impl<P: Platform> Core<P> {
    pub(super) fn accept_head(&mut self, now: Time, request: HeadRequest) {
        let question = Question::Head(request.bucket, request.key);
        let who = Who::Head(request.reply);
        let asker = Asker::new(now, request.accept, request.deadline, who);
        self.ask(now, question, asker);
    }

    pub(super) fn accept_list(&mut self, now: Time, request: ListPageRequest) {
        let question = Question::List(request.request);
        let who = Who::List(request.reply);
        let asker = Asker::new(now, request.accept, request.deadline, who);
        self.ask(now, question, asker);
    }

    /// A peer asks, through a call with room for so many bytes of answer.
    pub(super) fn accept_question(
        &mut self,
        now: Time,
        question: Question,
        max_age_ms: u32,
        deadline: Time,
        peer: (RequestHandle, u32),
    ) {
        if self.lookups.peers_asking >= PEER_QUESTIONS_PER_CORE_MAX {
            return self.answer_peer(peer.0, FetchStatus::Busy, None);
        }
        self.lookups.peers_asking += 1;
        let deadline = self.peer_deadline(now, deadline);
        let max_age = Duration::from_millis(max_age_ms.into());
        let who = Who::Peer(peer.0, peer.1);
        self.ask(
            now,
            question,
            Asker::new(now, max_age.into(), deadline, who),
        );
    }

    fn ask(&mut self, now: Time, question: Question, asker: Asker) {
        let refusal = if self.shutting_down {
            Some(shutdown_error())
        } else if question.is_garbled() {
            let kind = OriginErrorKind::BadAnswer;
            Some(OriginError::new(
                kind,
                "the listing's continuation is garbled",
            ))
        } else if asker.deadline <= now {
            Some(question.timeout())
        } else {
            None
        };
        if let Some(error) = refusal {
            let result = Err(error);
            return self.tell(asker, &question, Told { result, at: now });
        }
        let (source, is_rest) = (question.source(), question.is_rest());
        if let Some(known) = self.findings.get(now, &source, asker.need, is_rest) {
            return self.tell(asker, &question, known);
        }
        if let Some(key) = self.lookups.by_question.get(&question).copied() {
            return self.join_lookup(now, key, asker);
        }
        let key = LookupKey {
            slot: self.lookups.all.vacant_key(),
            id: self.next_id(),
        };
        self.lookups.by_question.insert(question.clone(), key);
        self.lookups.all.insert(Lookup {
            id: key.id,
            question,
            askers: VecDeque::from([asker]),
            attempt: 0,
            state: State::Ready,
            began: now,
            is_offered: false,
            route: None,
            step_until: None,
            step_at: Time::NEVER,
            timer_at: Time::NEVER,
        });
        self.lookups.ready.push_back(key);
        self.set_lookup_timer(key);
    }

    /// Someone asks what is being asked already.
    fn join_lookup(&mut self, now: Time, key: LookupKey, asker: Asker) {
        let is_peer = asker.is_peer();
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        lookup.askers.push_back(asker);
        let waits = matches!(lookup.state, State::Running { .. } | State::BackingOff);
        let is_silent = self.outages.is_known(lookup.question.bucket());
        if is_peer {
            self.end_here(key);
        }
        match waits && is_silent {
            true => self.resort(now, key),
            false => self.set_lookup_timer(key),
        }
    }

    /// The next moment at which a lookup needs attention: its own step or its first asker's deadline.
    fn set_lookup_timer(&mut self, key: LookupKey) {
        let Some(lookup) = self
            .lookups
            .all
            .get_mut(key.slot)
            .filter(|lookup| lookup.id == key.id)
        else {
            return;
        };
        let first = lookup
            .askers
            .iter()
            .map(|asker| asker.deadline)
            .min()
            .unwrap_or(Time::NEVER);
        let at = lookup.step_at.min(first);
        if at != lookup.timer_at {
            self.timers.clear(lookup.timer_at, Due::Lookup(key));
            if at != Time::NEVER {
                self.timers.set(at, Due::Lookup(key));
            }
            lookup.timer_at = at;
        }
    }

    /// Sends what is ready, as far as the origin takes it.
    pub(super) fn start_lookups(&mut self, now: Time) {
        while let Some(key) = self.lookups.ready.pop_front() {
            let tag = OriginTag(self.next_id());
            let Some(lookup) = self.lookups.get(key) else {
                continue;
            };
            if !matches!(lookup.state, State::Ready) {
                continue;
            }
            let is_silent = self.outages.is_known(lookup.question.bucket());
            match self.ask_owner(now, key) {
                Turned::Asked => continue,
                Turned::Waits => {
                    self.wait_for_room(now, key);
                    continue;
                }
                Turned::ToOrigin if is_silent => self.resort(now, key),
                Turned::ToOrigin => {}
            }
            let Some(lookup) = self.lookups.get(key) else {
                continue;
            };
            let deadline = lookup.last_deadline();
            let (op, is_head) = match lookup.question.source() {
                Question::Head(bucket, key) => (
                    OriginOp::Head(HeadOp {
                        tag,
                        bucket,
                        key,
                        deadline,
                    }),
                    true,
                ),
                Question::List(request) => (
                    OriginOp::List(ListOp {
                        tag,
                        request,
                        deadline,
                    }),
                    false,
                ),
            };
            let is_retry = lookup.attempt > 0;
            if let Err(Full(_)) = self.parts.origin.submit(op) {
                self.lookups.ready.push_front(key);
                return;
            }
            let io_timeout = self.config.io_timeout;
            if let Some(lookup) = self.lookups.get(key) {
                lookup.state = State::Running {
                    tag,
                    cancelled: false,
                };
                lookup.step_at = now + lookup.patience(io_timeout);
                lookup.began = now;
            }
            self.tags.insert(tag.0, Tagged::Lookup(key));
            self.stats.heads += u64::from(is_head);
            self.stats.lists += u64::from(!is_head);
            self.stats.retries += u64::from(is_retry);
            self.set_lookup_timer(key);
        }
    }

    /// The origin answered.
    pub(super) fn lookup_done(
        &mut self,
        now: Time,
        key: LookupKey,
        result: Result<Finding, OriginError>,
    ) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let (question, at) = (lookup.question.source(), lookup.began);
        let sign = match &result {
            Ok(_) => Sign::Answers,
            Err(error) => Sign::of(error.kind),
        };
        if matches!(sign, Sign::Answers) {
            self.origin_answered(now, question.bucket());
        }
        let told = Told { result, at };
        let lifetimes = match self.group.view() {
            Some(_) => Lifetimes {
                present: self.config.attr_ttl,
                absent: self.config.negative_ttl,
            },
            None => Lifetimes::NONE,
        };
        self.findings.learn(lifetimes, question.clone(), &told);
        match told.result {
            Ok(_) => self.settle(key, told),
            Err(error) => self.lookup_failed(now, key, error),
        }
        if matches!(sign, Sign::Silent) {
            self.origin_failed(now, at, &question);
        }
    }

    /// The origin did not tell.
    fn lookup_failed(&mut self, now: Time, key: LookupKey, error: OriginError) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        lookup.attempt += 1;
        let (attempt, at, last) = (lookup.attempt, lookup.began, lookup.last_deadline());
        let (subject, is_offered) = (lookup.question.subject(), lookup.is_offered);
        self.count_origin_error(error.kind);
        let until = now + retry::backoff(attempt, &mut self.parts.rng);
        if error.kind.is_transient() && !self.shutting_down {
            tracing::debug!(%subject, attempt, %error, "asking the origin failed; trying again");
            if let Some(lookup) = self.lookups.get(key) {
                lookup.state = State::BackingOff;
                lookup.step_at = until;
            }
            self.set_lookup_timer(key);
            if is_offered || until >= last {
                self.resort(now, key);
            }
            if until < last || self.lookups.get(key).is_none() {
                return;
            }
        }
        if error.kind != OriginErrorKind::NotFound
            && !self.shutting_down
            && let Some(left_out) = self.lookup_log.open(now)
        {
            tracing::warn!(%subject, %error, left_out, "asking the origin failed");
        }
        let result = Err(error);
        self.settle(key, Told { result, at });
    }

    /// Tells those whom an answer is new enough for; for the others the question is asked once more.
    fn settle(&mut self, key: LookupKey, told: Told<Finding>) {
        let is_fact = match &told.result {
            Ok(_) => true,
            Err(error) => error.kind == OriginErrorKind::NotFound,
        };
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        if !is_fact || lookup.need() <= told.at {
            return self.end_lookup(key, told);
        }
        let (served, rest) = std::mem::take(&mut lookup.askers)
            .into_iter()
            .partition::<VecDeque<_>, _>(|asker| asker.need <= told.at);
        lookup.askers = rest;
        lookup.attempt = 0;
        lookup.state = State::Ready;
        lookup.step_at = Time::NEVER;
        let question = lookup.question.clone();
        self.lookups.ready.push_back(key);
        self.set_lookup_timer(key);
        for asker in served {
            self.tell(asker, &question, told.clone());
        }
    }

    fn end_lookup(&mut self, key: LookupKey, told: Told<Finding>) {
        if self.lookups.get(key).is_none() {
            return;
        }
        let lookup = self.lookups.all.remove(key.slot);
        self.lookups.by_question.remove(&lookup.question);
        self.timers.clear(lookup.timer_at, Due::Lookup(key));
        for asker in lookup.askers {
            self.tell(asker, &lookup.question, told.clone());
        }
    }

    fn tell(&mut self, asker: Asker, question: &Question, told: Told<Finding>) {
        let Told { result, at } = told;
        let room_bytes = asker.room_bytes();
        self.lookups.peers_asking -= usize::from(asker.is_peer());
        // Of a page that was cut on its way, the part that was asked for.
        let result = match (question, result) {
            (Question::List(request), Ok(Finding::List(page)))
                if request.continuation.is_some() || room_bytes != usize::MAX =>
            {
                listing::part(&page, request, room_bytes)
                    .map(|part| Finding::List(Arc::new(part)))
                    .map_err(|error| {
                        OriginError::new(OriginErrorKind::BadAnswer, error.to_string())
                    })
            }
            (_, result) => result,
        };
        if let Some((handle, room_bytes, answer)) = asker.tell(question, Told { result, at }) {
            self.answer_call(handle, &answer, room_bytes);
        }
    }

    /// A lookup's timer is due.
    pub(super) fn lookup_due(&mut self, now: Time, key: LookupKey) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        lookup.timer_at = Time::NEVER;
        let (late, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut lookup.askers)
            .into_iter()
            .partition(|asker| asker.deadline <= now);
        lookup.askers = rest;
        let (question, began) = (lookup.question.clone(), lookup.began);
        let (mut cancel, mut cancel_peer) = (None, None);
        let forsaken = lookup.askers.is_empty();
        if let State::AtPeer(tag) = lookup.state
            && forsaken
        {
            cancel_peer = Some(tag);
        }
        if let State::Running { tag, cancelled } = &mut lookup.state
            && (forsaken || lookup.step_at <= now)
            && !std::mem::replace(cancelled, true)
        {
            cancel = Some(*tag);
        }
        if lookup.step_at <= now {
            lookup.step_at = Time::NEVER;
            if matches!(lookup.state, State::BackingOff) {
                lookup.state = State::Ready;
                self.lookups.ready.push_back(key);
            }
        }
        if let Some(tag) = cancel {
            self.parts.origin.cancel(tag);
        }
        if let Some(tag) = cancel_peer {
            self.parts.transport.cancel(tag);
        }
        let last = match late.is_empty() {
            true => None,
            false => self.last_known(now, &question),
        };
        for asker in late {
            self.tell_last(now, asker, &question, last.clone());
        }
        if forsaken {
            let result = Err(question.timeout());
            self.end_lookup(key, Told { result, at: now });
        } else {
            self.set_lookup_timer(key);
        }
        if cancel.is_some() {
            self.origin_failed(now, began, &question);
        }
    }

    /// Answers everyone who waits for metadata.
    pub(super) fn refuse_all_lookups(&mut self) {
        let at = self.now;
        let keys: Vec<LookupKey> = self
            .lookups
            .all
            .iter()
            .map(|(slot, lookup)| LookupKey {
                slot,
                id: lookup.id,
            })
            .collect();
        for key in keys {
            if let Some(Lookup {
                state: State::Running { tag, .. },
                ..
            }) = self.lookups.get(key)
            {
                let tag = *tag;
                self.parts.origin.cancel(tag);
            }
            if let Some(Lookup {
                state: State::AtPeer(tag),
                ..
            }) = self.lookups.get(key)
            {
                let tag = *tag;
                self.parts.transport.cancel(tag);
            }
            let result = Err(shutdown_error());
            self.end_lookup(key, Told { result, at });
        }
    }
}
