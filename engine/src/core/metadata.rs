//! A metadata request's life: one HEAD or one listing page, shared by all who ask meanwhile.
//!
//! ```text
//! asked -> ready -> at the member that owns the name -> answered
//!            |         | no answer: at the origin
//!            +-> at the origin -> answered
//!            ^        | failed, transient, someone's deadline ahead
//!            +- back-off      | failed for good: everyone gets the error
//! ```
//! In a group the owner of a name remembers the answer for its lifetime ([`super::findings`]).
//! Each asker has a deadline of its own and is answered by it, whatever the origin does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::group::How;
use super::timers::Due;
use super::{Core, Tagged, retry};
use crate::arena::Share;
use crate::client::{Callback, HeadRequest, ListPageRequest};
use crate::errors::{OriginError, OriginErrorKind};
use crate::identity::{Bucket, Slot};
use crate::limits::{CHUNK_BYTES, SUB_BLOCK_BYTES};
use crate::ports::{
    Class, FetchTag, Full, HeadOp, ListOp, ListPage, ListRequest, ObjectMeta, Origin, OriginOp,
    OriginTag, PeerId, Platform, RequestHandle, Time, Transport, TransportError, TransportOp,
};
use crate::wire::call::{Call, CallAnswer};
use crate::wire::listing;

/// Names a metadata request; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LookupKey {
    slot: usize,
    id: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Question {
    Head(Arc<Bucket>, Arc<str>),
    List(ListRequest),
}

impl Question {
    /// What it takes in memory, about.
    pub fn len_bytes(&self) -> usize {
        96 + match self {
            Question::Head(_, key) => key.len(),
            Question::List(request) => {
                request.prefix.len() + request.continuation.as_ref().map_or(0, |next| next.len())
            }
        }
    }

    /// The name that decides who owns it.
    fn name(&self) -> &str {
        match self {
            Question::Head(_, key) => key,
            Question::List(request) => &request.prefix,
        }
    }

    /// As the origin understands it.
    fn source(&self) -> Question {
        match self {
            // A garbled continuation was refused when it was asked.
            Question::List(request) => {
                Question::List(listing::source(request).unwrap_or_else(|_| request.clone()))
            }
            head => head.clone(),
        }
    }

    fn as_call(&self) -> Call {
        match self {
            Question::Head(bucket, key) => Call::Head {
                bucket: bucket.clone(),
                key: key.clone(),
            },
            Question::List(request) => Call::List(request.clone()),
        }
    }

    /// What is asked for, for people.
    fn subject(&self) -> String {
        match self {
            Question::Head(bucket, key) => format!("attributes of {bucket}/{key:?}"),
            Question::List(request) => {
                format!("listing of {}/{:?}", request.bucket, request.prefix)
            }
        }
    }
}

/// What the origin said.
#[derive(Clone, Debug)]
pub(super) enum Finding {
    Head(ObjectMeta),
    List(Arc<ListPage>),
}

/// Who wants to know.
enum Asker {
    Head(Callback<Result<ObjectMeta, OriginError>>),
    List(Callback<Result<Arc<ListPage>, OriginError>>),
    /// A peer.
    Peer(RequestHandle, u32),
}

fn mismatch() -> OriginError {
    let kind = OriginErrorKind::BadAnswer;
    OriginError::new(kind, "the origin answered something else")
}

impl Asker {
    /// Answers an asker of this node; a peer is given back.
    fn tell(self, finding: Result<Finding, OriginError>) -> Option<(RequestHandle, u32)> {
        match (self, finding) {
            (Asker::Peer(handle, room_bytes), _) => return Some((handle, room_bytes)),
            (Asker::Head(reply), Ok(Finding::Head(meta))) => reply(Ok(meta)),
            (Asker::Head(reply), Ok(_)) => reply(Err(mismatch())),
            (Asker::Head(reply), Err(error)) => reply(Err(error)),
            (Asker::List(reply), Ok(Finding::List(page))) => reply(Ok(page)),
            (Asker::List(reply), Ok(_)) => reply(Err(mismatch())),
            (Asker::List(reply), Err(error)) => reply(Err(error)),
        }
        None
    }
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
    askers: VecDeque<(Time, Asker)>,
    attempt: u32,
    state: State,
    /// The owner did not help: the origin is asked.
    passed_over: bool,
    /// When the state machine must move by itself: attempt stalled, back-off over.
    step_at: Time,
    timer_at: Time,
}

impl Lookup {
    fn last_deadline(&self) -> Time {
        let deadlines = self.askers.iter().map(|(deadline, _)| *deadline);
        deadlines.max().unwrap_or_default()
    }
}

/// Metadata requests under way.
#[derive(Default)]
pub(super) struct Lookups {
    all: slab::Slab<Lookup>,
    by_question: BTreeMap<Question, LookupKey>,
    ready: VecDeque<LookupKey>,
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
        self.ask(now, question, request.deadline, Asker::Head(request.reply));
    }

    pub(super) fn accept_list(&mut self, now: Time, request: ListPageRequest) {
        let question = Question::List(request.request);
        self.ask(now, question, request.deadline, Asker::List(request.reply));
    }

    /// A peer asks, through a call with room for so many bytes of answer.
    pub(super) fn accept_question(
        &mut self,
        now: Time,
        question: Question,
        deadline: Time,
        peer: (RequestHandle, u32),
    ) {
        self.ask(now, question, deadline, Asker::Peer(peer.0, peer.1));
    }

    fn ask(&mut self, now: Time, question: Question, deadline: Time, asker: Asker) {
        let garbled = match &question {
            Question::List(request) => listing::source(request).is_err(),
            Question::Head(..) => false,
        };
        let refusal = if self.shutting_down {
            Some(shutdown_error())
        } else if garbled {
            let kind = OriginErrorKind::BadAnswer;
            Some(OriginError::new(
                kind,
                "the listing's continuation is garbled",
            ))
        } else if deadline <= now {
            Some(timeout_error(&question))
        } else {
            None
        };
        if let Some(error) = refusal {
            return self.tell(asker, &question, Err(error));
        }
        if let Some(known) = self.findings.get(now, &question.source()) {
            return self.tell(asker, &question, known);
        }
        if let Some(key) = self.lookups.by_question.get(&question).copied() {
            if let Some(lookup) = self.lookups.get(key) {
                lookup.askers.push_back((deadline, asker));
            }
            return self.set_lookup_timer(key);
        }
        let key = LookupKey {
            slot: self.lookups.all.vacant_key(),
            id: self.next_id(),
        };
        self.lookups.by_question.insert(question.clone(), key);
        self.lookups.all.insert(Lookup {
            id: key.id,
            question,
            askers: VecDeque::from([(deadline, asker)]),
            attempt: 0,
            state: State::Ready,
            passed_over: false,
            step_at: Time::NEVER,
            timer_at: Time::NEVER,
        });
        self.lookups.ready.push_back(key);
        self.set_lookup_timer(key);
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
            .map(|(deadline, _)| *deadline)
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
            let deadline = lookup.last_deadline();
            if !lookup.passed_over && self.ask_owner(now, key) {
                continue;
            }
            let Some(lookup) = self.lookups.get(key) else {
                continue;
            };
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
            let stall = retry::stall_limit(self.config.io_timeout);
            if let Some(lookup) = self.lookups.get(key) {
                lookup.state = State::Running {
                    tag,
                    cancelled: false,
                };
                lookup.step_at = now + stall;
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
        let question = lookup.question.source();
        if self.group.view().is_some() {
            let lifetime = self.config.attr_ttl;
            self.findings.learn(now, lifetime, question, &result);
        }
        let error = match result {
            Ok(_) => return self.end_lookup(key, result),
            Err(error) => error,
        };
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        lookup.attempt += 1;
        let (attempt, last) = (lookup.attempt, lookup.last_deadline());
        let subject = lookup.question.subject();
        self.count_origin_error(error.kind);
        let until = now + retry::backoff(attempt, &mut self.parts.rng);
        if error.kind.is_transient() && until < last && !self.shutting_down {
            tracing::debug!(%subject, attempt, %error, "asking the origin failed; trying again");
            if let Some(lookup) = self.lookups.get(key) {
                lookup.state = State::BackingOff;
                lookup.step_at = until;
            }
            return self.set_lookup_timer(key);
        }
        if error.kind != OriginErrorKind::NotFound
            && !self.shutting_down
            && let Some(left_out) = self.lookup_log.open(now)
        {
            tracing::warn!(%subject, %error, left_out, "asking the origin failed");
        }
        self.end_lookup(key, Err(error));
    }

    fn end_lookup(&mut self, key: LookupKey, result: Result<Finding, OriginError>) {
        if self.lookups.get(key).is_none() {
            return;
        }
        let lookup = self.lookups.all.remove(key.slot);
        self.lookups.by_question.remove(&lookup.question);
        self.timers.clear(lookup.timer_at, Due::Lookup(key));
        for (_, asker) in lookup.askers {
            self.tell(asker, &lookup.question, result.clone());
        }
    }

    fn tell(&mut self, asker: Asker, question: &Question, result: Result<Finding, OriginError>) {
        // Of a page that was cut on its way, the part that was asked for.
        let result = match (question, result) {
            (Question::List(request), Ok(Finding::List(page))) => {
                let room_bytes = match asker {
                    Asker::Peer(_, room_bytes) => room_bytes as usize,
                    _ => usize::MAX,
                };
                match request.continuation.is_none() && room_bytes == usize::MAX {
                    true => Ok(Finding::List(page)),
                    false => listing::part(&page, request, room_bytes)
                        .map(|part| Finding::List(Arc::new(part)))
                        .map_err(|error| {
                            OriginError::new(OriginErrorKind::BadAnswer, error.to_string())
                        }),
                }
            }
            (_, result) => result,
        };
        if let Some((handle, room_bytes)) = asker.tell(result.clone()) {
            let failure = |error: OriginError| (error.kind, error.detail);
            let answer = match (question, result) {
                (Question::Head(..), Ok(Finding::Head(meta))) => CallAnswer::Head(Ok(meta)),
                (Question::List(_), Ok(Finding::List(page))) => {
                    CallAnswer::List(Ok(Arc::unwrap_or_clone(page)))
                }
                (Question::Head(..), result) => {
                    CallAnswer::Head(Err(failure(result.err().unwrap_or_else(mismatch))))
                }
                (Question::List(_), result) => {
                    CallAnswer::List(Err(failure(result.err().unwrap_or_else(mismatch))))
                }
            };
            self.answer_call(handle, &answer, room_bytes);
        }
    }

    /// Asks the member that owns the name, if that is another one; false: the origin is to be asked.
    fn ask_owner(&mut self, now: Time, key: LookupKey) -> bool {
        let stall = retry::stall_limit(self.config.io_timeout);
        let Some(lookup) = self.lookups.get(key) else {
            return false;
        };
        let slot = Slot::of_name(lookup.question.name());
        let room_bytes = match lookup.question {
            Question::Head(..) => SUB_BLOCK_BYTES,
            Question::List(_) => CHUNK_BYTES,
        };
        // A peer's question ends here, whoever owns the name by now.
        let of_peer = |(_, asker): &(Time, Asker)| matches!(asker, Asker::Peer(..));
        let for_peer = lookup.askers.iter().any(of_peer);
        let (deadline, body) = (lookup.last_deadline(), lookup.question.as_call().encode());
        let owner = self.group.route(now, slot, false).step();
        let owner = owner.filter(|step| step.how == How::AsOwner && !for_peer);
        let Some(to) = owner.and_then(|step| self.group.core_of(step.peer, slot)) else {
            return false;
        };
        let Ok(lease) = self.lease(room_bytes, Share::Demand) else {
            return false;
        };
        let tag = FetchTag(self.next_id());
        let op = TransportOp::Call {
            tag,
            to,
            class: Class::Demand,
            body,
            lease,
            deadline: deadline.min(now + stall),
        };
        if self.parts.transport.submit(op).is_err() {
            return false;
        }
        self.tags.insert(tag.0, Tagged::Question(key, to.peer));
        if let Some(lookup) = self.lookups.get(key) {
            lookup.state = State::AtPeer(tag);
        }
        self.set_lookup_timer(key);
        true
    }

    /// The owner of a name answered, or did not.
    pub(super) fn owner_told(
        &mut self,
        now: Time,
        key: LookupKey,
        peer: PeerId,
        outcome: Result<&[u8], Option<TransportError>>,
    ) {
        let told = match outcome {
            Ok(bytes) => {
                self.group.answered(peer);
                match CallAnswer::decode(bytes) {
                    Ok(CallAnswer::Head(result)) => Some(result.map(Finding::Head)),
                    Ok(CallAnswer::List(result)) => {
                        Some(result.map(|page| Finding::List(Arc::new(page))))
                    }
                    Ok(_) | Err(_) => None,
                }
            }
            Err(error) => {
                if error.is_some_and(|error| error != TransportError::Cancelled) {
                    self.stats.peer_failures += 1;
                    let in_time = error != Some(TransportError::Timeout);
                    self.group.failed(now, peer, in_time, &mut self.parts.rng);
                }
                None
            }
        };
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let told = told.map(|told| told.map_err(|(kind, text)| OriginError::new(kind, text)));
        match told {
            Some(Err(error)) if error.kind.is_transient() => {}
            Some(result) => return self.end_lookup(key, result),
            None => {}
        }
        lookup.passed_over = true;
        lookup.state = State::Ready;
        self.lookups.ready.push_back(key);
        self.set_lookup_timer(key);
    }

    /// A lookup's timer is due.
    pub(super) fn lookup_due(&mut self, now: Time, key: LookupKey) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        lookup.timer_at = Time::NEVER;
        let (late, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut lookup.askers)
            .into_iter()
            .partition(|(deadline, _)| *deadline <= now);
        lookup.askers = rest;
        let lookup_question = lookup.question.clone();
        let error = timeout_error(&lookup_question);
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
        let question = lookup_question;
        for (_, asker) in late {
            self.tell(asker, &question, Err(error.clone()));
        }
        if forsaken {
            self.end_lookup(key, Err(error));
        } else {
            self.set_lookup_timer(key);
        }
    }

    /// Answers everyone who waits for metadata.
    pub(super) fn refuse_all_lookups(&mut self) {
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
            self.end_lookup(key, Err(shutdown_error()));
        }
    }
}

fn timeout_error(question: &Question) -> OriginError {
    OriginError::new(
        OriginErrorKind::Timeout,
        format!(
            "no {} in time; see whether the endpoint answers, or raise --io-timeout",
            question.subject()
        ),
    )
}
