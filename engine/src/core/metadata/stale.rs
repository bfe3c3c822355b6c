//! While the origin does not answer: names are answered as last known, and the origin is tried by probes.
//!
//! An answer from the past goes to whoever takes a remembered one at all. Who asks with an age of 0 has met a version
//! that is gone, or is a job for what the origin has now: it is told the truth, an error. So is a member that asks, at
//! once: it asks the next one, and has what it knows itself.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::retry;
use super::question::Asker;
use super::{Core, Finding, Lookup, LookupKey, Question, State};
use crate::client::Told;
use crate::errors::{OriginError, OriginErrorKind};
use crate::identity::Bucket;
use crate::ports::{Platform, Time};

impl<P: Platform> Core<P> {
    /// The last that is known of what is asked, if it may be told.
    pub(super) fn last_known(&mut self, now: Time, question: &Question) -> Option<Told<Finding>> {
        let last = self.findings.last(question);
        last.filter(|told| now.since(told.at) <= self.config.stale_max)
    }

    /// Answers those who can be answered though the origin says nothing: with the last that is known, or with the
    /// error where the asker knows what to do then. Nobody is left: the lookup ends.
    pub(super) fn resort(&mut self, now: Time, key: LookupKey) {
        self.resort_for(now, key, |_| true);
    }

    /// The same for some of those who ask.
    pub(super) fn resort_for(&mut self, now: Time, key: LookupKey, who: impl Fn(&Asker) -> bool) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let question = lookup.question.clone();
        let last = self.last_known(now, &question);
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let is_told = |asker: &Asker| {
            let can_be = (asker.takes_old && last.is_some()) || asker.knows_better();
            can_be && who(asker)
        };
        let (answered, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut lookup.askers)
            .into_iter()
            .partition(is_told);
        lookup.askers = rest;
        let is_forsaken = lookup.askers.is_empty();
        for asker in answered {
            self.tell_last(now, asker, &question, last.clone());
        }
        match is_forsaken {
            true => self.forsake(now, key),
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
    pub(super) fn forsake(&mut self, now: Time, key: LookupKey) {
        self.cancel_lookup(key);
        let Some(lookup) = self.take_lookup(key) else {
            return;
        };
        if let State::Running {
            cancelled: false, ..
        } = lookup.state
        {
            self.origin_was_left(now, lookup.began, &lookup.question);
        }
    }

    /// It is known from now on that an origin does not answer: what waits for it is asked of others that may reach it,
    /// and of the origin after them; members that ask are told.
    pub(in crate::core) fn look_around(&mut self, now: Time, bucket: &Arc<Bucket>) {
        let waits = |lookup: &Lookup| lookup.others.is_none() && lookup.question.bucket() == bucket;
        for key in self.lookups.keys(waits) {
            let Some(lookup) = self.lookups.get(key) else {
                continue;
            };
            let question = lookup.question.clone();
            let others = self.name_route(now, &question);
            let mut here = VecDeque::new();
            if let Some(lookup) = self.lookups.get(key)
                && !others.are_over()
            {
                let askers = std::mem::take(&mut lookup.askers).into_iter();
                (here, lookup.askers) = askers.partition(Asker::is_here);
            }
            self.resort(now, key);
            if !here.is_empty() {
                self.ask_others(now, question, here, others);
            }
        }
    }

    /// Asks the origin something, to see whether it answers: one question at a time.
    pub(in crate::core) fn probe(&mut self, now: Time, question: Question) {
        let bucket = question.bucket().clone();
        let last = self.outages.probe(&bucket);
        let last = last.and_then(|key| self.lookups.get(key));
        if self.shutting_down || last.is_some_and(|lookup| lookup.is_probe()) {
            return;
        }
        let deadline = now + retry::stall_limit(self.config.io_timeout);
        let nobody = VecDeque::from([Asker::nobody(now, deadline)]);
        let key = self.ask_origin(now, question, nobody);
        self.outages.probes_with(&bucket, key);
    }
}

impl Lookup {
    /// Whether the origin is tried with it.
    pub(super) fn is_probe(&self) -> bool {
        self.askers.iter().any(Asker::is_nobody)
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
