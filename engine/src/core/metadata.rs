//! A metadata request's life: one HEAD or one listing page, shared by all who ask meanwhile.
//!
//! ```text
//! asked -> ready -> running -> answered
//!            ^        | failed, transient, someone's deadline ahead
//!            +- back-off      | failed for good: everyone gets the error
//! ```
//! Each asker has a deadline of its own and is answered by it, whatever the origin does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::timers::Due;
use super::{Core, Tagged, retry};
use crate::client::{Callback, HeadRequest, ListPageRequest};
use crate::errors::{OriginError, OriginErrorKind};
use crate::identity::Bucket;
use crate::ports::{
    Full, HeadOp, ListOp, ListPage, ListRequest, ObjectMeta, Origin, OriginOp, OriginTag, Platform,
    Time,
};

/// Names a metadata request; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LookupKey {
    slot: usize,
    id: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Head(Arc<Bucket>, Arc<str>),
    List(ListRequest),
}

impl Question {
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
}

impl Asker {
    fn tell(self, finding: Result<Finding, OriginError>) {
        let mismatch = || {
            OriginError::new(
                OriginErrorKind::BadAnswer,
                "the origin answered something else",
            )
        };
        match (self, finding) {
            (Asker::Head(reply), Ok(Finding::Head(meta))) => reply(Ok(meta)),
            (Asker::Head(reply), Ok(_)) => reply(Err(mismatch())),
            (Asker::Head(reply), Err(error)) => reply(Err(error)),
            (Asker::List(reply), Ok(Finding::List(page))) => reply(Ok(page)),
            (Asker::List(reply), Ok(_)) => reply(Err(mismatch())),
            (Asker::List(reply), Err(error)) => reply(Err(error)),
        }
    }
}

#[derive(Debug)]
enum State {
    Ready,
    Running { tag: OriginTag, cancelled: bool },
    BackingOff,
}

pub(super) struct Lookup {
    id: u64,
    question: Question,
    /// In no order: deadlines are stamped before requests race into the ring.
    askers: VecDeque<(Time, Asker)>,
    attempt: u32,
    state: State,
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

    fn ask(&mut self, now: Time, question: Question, deadline: Time, asker: Asker) {
        if self.shutting_down {
            return asker.tell(Err(shutdown_error()));
        }
        if deadline <= now {
            return asker.tell(Err(timeout_error(&question)));
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
            let (op, is_head) = match lookup.question.clone() {
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
        let error = match result {
            Ok(_) => return self.end_lookup(key, result),
            Err(error) => error,
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
            asker.tell(result.clone());
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
            .partition(|(deadline, _)| *deadline <= now);
        lookup.askers = rest;
        let error = timeout_error(&lookup.question);
        let mut cancel = None;
        let forsaken = lookup.askers.is_empty();
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
        for (_, asker) in late {
            asker.tell(Err(error.clone()));
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
