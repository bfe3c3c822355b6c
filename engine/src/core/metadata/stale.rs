//! While the origin does not answer: names are answered as last known, and the origin is tried by probes.
//!
//! An answer from the past goes to whoever takes a remembered one at all. Who asks with an age of 0 has met a version
//! that is gone, or is a job for what the origin has now: it is told the truth, an error. So is a member that asks, at
//! once: it asks the next one, and has what it knows itself.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::retry;
use super::question::{Asker, Who};
use super::{Core, Finding, Lookup, LookupKey, Question, State};
use crate::client::Told;
use crate::errors::{OriginError, OriginErrorKind};
use crate::identity::Bucket;
use crate::ports::{Origin, Platform, Time, Transport};

impl<P: Platform> Core<P> {
    /// The last that is known of what is asked, if it may be told.
    pub(super) fn last_known(&mut self, now: Time, question: &Question) -> Option<Told<Finding>> {
        let last = self.findings.last(question);
        last.filter(|told| now.since(told.at) <= self.config.stale_max)
    }

    /// Answers those who can be answered though the origin says nothing: with the last that is known, or with the
    /// error where the asker knows what to do then. Nobody is left: the lookup ends.
    pub(super) fn resort(&mut self, now: Time, key: LookupKey) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let question = lookup.question.clone();
        let last = self.last_known(now, &question);
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let told = |asker: &Asker| (asker.takes_old && last.is_some()) || asker.knows_better();
        let (answered, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut lookup.askers)
            .into_iter()
            .partition(told);
        lookup.askers = rest;
        let is_forsaken = lookup.askers.is_empty();
        for asker in answered {
            self.tell_last(now, asker, &question, last.clone());
        }
        match is_forsaken {
            true => self.forsake(key),
            false => self.set_lookup_timer(key),
        }
    }

    /// Tells the last that is known, where that may be told; else that nothing came.
    pub(super) fn tell_last(
        &mut self,
        now: Time,
        asker: Asker,
        question: &Question,
        last: Option<Told<Finding>>,
    ) {
        let late = asker.deadline <= now;
        match last.filter(|_| asker.takes_old) {
            Some(told) => {
                self.stats.stale_answers += 1;
                self.tell(asker, question, told);
            }
            None => {
                let error = match late {
                    true => question.timeout(),
                    false => silence(question),
                };
                let result = Err(error);
                self.tell(asker, question, Told { result, at: now });
            }
        }
    }

    /// Nobody waits for it any more.
    fn forsake(&mut self, key: LookupKey) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let question = lookup.question.clone();
        match lookup.state {
            State::Running { tag, .. } => self.parts.origin.cancel(tag),
            State::AtPeer(tag) => self.parts.transport.cancel(tag),
            State::Ready | State::BackingOff => {}
        }
        let result = Err(silence(&question));
        self.end_lookup(
            key,
            Told {
                result,
                at: self.now,
            },
        );
    }

    /// It is known from now on that an origin does not answer: what waits for it is asked of others that may reach it,
    /// and of the origin after them; what members ask ends.
    pub(in crate::core) fn look_around(&mut self, now: Time, bucket: &Arc<Bucket>) {
        let waits = |lookup: &Lookup| {
            let at_origin = matches!(lookup.state, State::Running { .. } | State::BackingOff);
            at_origin && lookup.question.bucket() == bucket
        };
        let all = self.lookups.all.iter();
        let keys: Vec<LookupKey> = all
            .filter(|(_, lookup)| waits(lookup))
            .map(|(slot, lookup)| LookupKey {
                slot,
                id: lookup.id,
            })
            .collect();
        for key in keys {
            let Some(lookup) = self.lookups.get(key) else {
                continue;
            };
            if lookup.ends_here() {
                self.resort(now, key);
                continue;
            }
            lookup.route = None;
            lookup.step_until = None;
            match &mut lookup.state {
                State::Running { tag, cancelled } => {
                    if !std::mem::replace(cancelled, true) {
                        let tag = *tag;
                        self.parts.origin.cancel(tag);
                    }
                }
                state => {
                    *state = State::Ready;
                    lookup.step_at = Time::NEVER;
                    self.lookups.ready.push_back(key);
                }
            }
            self.set_lookup_timer(key);
        }
    }

    /// Asks the origin something, to see whether it answers.
    pub(in crate::core) fn probe(&mut self, now: Time, question: Question) {
        if self.lookups.by_question.contains_key(&question) {
            return;
        }
        let deadline = now + retry::stall_limit(self.config.io_timeout);
        self.ask(now, question, Asker::nobody(now, deadline));
    }
}

impl Lookup {
    /// Whether it is asked of the origin and of nobody else: a peer's question, and a probe.
    pub(super) fn ends_here(&self) -> bool {
        let ends = |asker: &Asker| matches!(asker.who, Who::Peer(..) | Who::Nobody);
        self.askers.iter().any(ends)
    }
}

fn silence(question: &Question) -> OriginError {
    let kind = OriginErrorKind::Unavailable;
    let subject = question.subject();
    OriginError::new(
        kind,
        format!("no {subject}: the origin does not answer, see the daemon's log"),
    )
}
