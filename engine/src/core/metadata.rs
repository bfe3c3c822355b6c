//! A metadata request's life: HEADs or listing pages, shared by all who ask meanwhile.
//!
//! ```text
//! asked -> ready -> at the member that owns the name, then at its stand-ins -> answered
//!   |                 | nobody is left to ask
//!   |                 v
//!   +-> ready -> at the origin -> answered; too old for some: ready again for those
//!         ^        | failed, transient, someone's deadline ahead
//!         +- back-off      | failed for good: everyone gets the error
//!                          | it is found not to answer: those who may ask others do so, members are told
//! ```
//! In a group the owner of a name remembers the answer for its lifetime ([`super::findings`]). Each asker says how
//! old an answer may be, and is told when the origin was asked. Each has a deadline of its own and is answered by
//! it, whatever the origin does.
//!
//! What is asked of others and what is asked of the origin are two lookups, also for one question. A member's question
//! and a probe go to the origin only: they neither wait for other members, nor end what others are asked, nor keep those
//! who may ask others from it.
//!
//! | file | role |
//! |---|---|
//! | `question` | what is asked, by whom, and what the origin said |
//! | `owner` | asking other members |
//! | `source` | asking the origin |
//! | `stale` | while the origin does not answer |

mod owner;
mod question;
mod source;
mod stale;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use owner::Others;
use question::{Asker, Who};
pub(super) use question::{Finding, Question};

use super::Core;
use super::timers::Due;
use crate::client::{HeadRequest, ListPageRequest, Told};
use crate::errors::{OriginError, OriginErrorKind};
use crate::limits::PEER_QUESTIONS_PER_CORE_MAX;
use crate::ports::{
    FetchStatus, FetchTag, Origin, OriginTag, Platform, RequestHandle, Time, Transport,
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
    /// At the member whose turn it is.
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
    /// Who is asked; none: the origin.
    others: Option<Others>,
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

/// Those of one kind.
#[derive(Default)]
struct Table {
    by_question: BTreeMap<Question, LookupKey>,
    ready: VecDeque<LookupKey>,
}

/// Metadata requests under way.
#[derive(Default)]
pub(super) struct Lookups {
    all: slab::Slab<Lookup>,
    /// What is asked of other members, for askers of this node.
    at_others: Table,
    /// What is asked of the origin.
    at_origin: Table,
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

    fn keys(&self, of: impl Fn(&Lookup) -> bool) -> Vec<LookupKey> {
        let of = self.all.iter().filter(|(_, lookup)| of(lookup));
        let key = |(slot, lookup): (usize, &Lookup)| LookupKey {
            slot,
            id: lookup.id,
        };
        of.map(key).collect()
    }

    /// It goes on in this turn.
    fn make_ready(&mut self, key: LookupKey) {
        let Some(lookup) = self.get(key) else {
            return;
        };
        lookup.state = State::Ready;
        lookup.step_at = Time::NEVER;
        match lookup.others {
            Some(_) => self.at_others.ready.push_back(key),
            None => self.at_origin.ready.push_back(key),
        }
    }

    fn insert(&mut self, lookup: Lookup) -> LookupKey {
        let (question, is_at_others) = (lookup.question.clone(), lookup.others.is_some());
        let id = lookup.id;
        let slot = self.all.insert(lookup);
        let key = LookupKey { slot, id };
        let table = match is_at_others {
            true => &mut self.at_others,
            false => &mut self.at_origin,
        };
        table.by_question.insert(question, key);
        table.ready.push_back(key);
        key
    }

    fn remove(&mut self, key: LookupKey) -> Option<Lookup> {
        self.get(key)?;
        let lookup = self.all.remove(key.slot);
        let table = match lookup.others {
            Some(_) => &mut self.at_others,
            None => &mut self.at_origin,
        };
        table.by_question.remove(&lookup.question);
        Some(lookup)
    }
}

/// Whether the origin said what there is, or that there is nothing.
fn is_fact(told: &Told<Finding>) -> bool {
    match &told.result {
        Ok(_) => true,
        Err(error) => error.kind == OriginErrorKind::NotFound,
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
        let is_silent = self.outages.is_known(question.bucket());
        match asker.is_peer() {
            // It asks the next one at once, and has what it knows itself.
            true if is_silent => {
                let last = self.last_known(now, &question);
                self.tell_last(now, asker, &question, last);
            }
            true => {
                self.ask_origin(now, question, VecDeque::from([asker]));
            }
            false => {
                let route = self.name_route(now, &question);
                self.ask_others(now, question, VecDeque::from([asker]), route);
            }
        }
    }

    /// Asks someone, or joins those who have asked it of the same already.
    fn add_askers(
        &mut self,
        now: Time,
        question: Question,
        askers: VecDeque<Asker>,
        others: Option<Others>,
    ) -> LookupKey {
        let table = match others {
            Some(_) => &self.lookups.at_others,
            None => &self.lookups.at_origin,
        };
        let joined = table.by_question.get(&question).copied();
        if let Some((key, lookup)) = joined.and_then(|key| Some((key, self.lookups.get(key)?))) {
            lookup.askers.extend(askers);
            return key;
        }
        let id = self.next_id();
        self.lookups.insert(Lookup {
            id,
            question,
            askers,
            attempt: 0,
            state: State::Ready,
            began: now,
            others,
            step_at: Time::NEVER,
            timer_at: Time::NEVER,
        })
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

    /// Sends what is ready, as far as there is room.
    pub(super) fn start_lookups(&mut self, now: Time) {
        while let Some(key) = self.lookups.at_others.ready.pop_front() {
            if self.is_ready(key) {
                self.ask_member(now, key);
            }
        }
        while let Some(key) = self.lookups.at_origin.ready.pop_front() {
            if self.is_ready(key) && !self.submit_question(now, key) {
                return self.lookups.at_origin.ready.push_front(key);
            }
        }
    }

    fn is_ready(&mut self, key: LookupKey) -> bool {
        let lookup = self.lookups.get(key);
        lookup.is_some_and(|lookup| matches!(lookup.state, State::Ready))
    }

    /// Tells those whom an answer is new enough for; for the others the question is asked once more.
    fn settle(&mut self, key: LookupKey, told: Told<Finding>) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        if !is_fact(&told) || lookup.need() <= told.at {
            return self.end_lookup(key, told);
        }
        let (served, rest) = std::mem::take(&mut lookup.askers)
            .into_iter()
            .partition::<VecDeque<_>, _>(|asker| asker.need <= told.at);
        lookup.askers = rest;
        lookup.attempt = 0;
        let question = lookup.question.clone();
        self.lookups.make_ready(key);
        self.set_lookup_timer(key);
        for asker in served {
            self.tell(asker, &question, told.clone());
        }
    }

    fn end_lookup(&mut self, key: LookupKey, told: Told<Finding>) {
        let Some(lookup) = self.take_lookup(key) else {
            return;
        };
        for asker in lookup.askers {
            self.tell(asker, &lookup.question, told.clone());
        }
    }

    fn take_lookup(&mut self, key: LookupKey) -> Option<Lookup> {
        let lookup = self.lookups.remove(key)?;
        self.timers.clear(lookup.timer_at, Due::Lookup(key));
        Some(lookup)
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
        let (question, is_forsaken) = (lookup.question.clone(), lookup.askers.is_empty());
        let is_due = lookup.step_at <= now;
        let last = match late.is_empty() {
            true => None,
            false => self.last_known(now, &question),
        };
        for asker in late {
            self.tell_last(now, asker, &question, last.clone());
        }
        match () {
            () if is_forsaken => self.forsake(now, key),
            () if is_due => self.step_lookup(now, key),
            () => self.set_lookup_timer(key),
        }
    }

    /// Its back-off is over, or its attempt has taken long.
    fn step_lookup(&mut self, now: Time, key: LookupKey) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        match lookup.state {
            State::BackingOff => self.lookups.make_ready(key),
            State::Running { .. } => return self.attempt_due(now, key),
            State::Ready | State::AtPeer(_) => lookup.step_at = Time::NEVER,
        }
        self.set_lookup_timer(key);
    }

    /// Answers everyone who waits for metadata.
    pub(super) fn refuse_all_lookups(&mut self) {
        let at = self.now;
        for key in self.lookups.keys(|_| true) {
            self.cancel_lookup(key);
            let result = Err(shutdown_error());
            self.end_lookup(key, Told { result, at });
        }
    }

    /// What is under way for it is of no use any more.
    fn cancel_lookup(&mut self, key: LookupKey) {
        match self.lookups.get(key).map(|lookup| &lookup.state) {
            Some(State::Running { tag, .. }) => self.parts.origin.cancel(*tag),
            Some(State::AtPeer(tag)) => self.parts.transport.cancel(*tag),
            _ => {}
        }
    }
}
