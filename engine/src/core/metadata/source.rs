//! Asking the origin.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::findings::Lifetimes;
use super::super::outage::Sign;
use super::super::{Core, Tagged, retry};
use super::question::Asker;
use super::{Finding, LookupKey, Question, State, is_fact};
use crate::client::Told;
use crate::errors::{OriginError, OriginErrorKind};
use crate::limits::STAND_IN_PATIENCE;
use crate::ports::{Full, HeadOp, ListOp, Origin, OriginOp, OriginTag, Platform, Time};

impl<P: Platform> Core<P> {
    /// The origin is asked, for whoever waits.
    pub(super) fn ask_origin(
        &mut self,
        now: Time,
        question: Question,
        askers: VecDeque<Asker>,
    ) -> LookupKey {
        let is_silent = self.outages.is_known(question.bucket());
        let look_at = now + first_look(&askers, self.config.io_timeout, self.outage_after());
        let key = self.add_askers(now, question, askers, None);
        let mut is_waiting = false;
        if let Some(lookup) = self.lookups.get(key) {
            is_waiting = !matches!(lookup.state, State::Ready);
            if matches!(lookup.state, State::Running { .. }) {
                lookup.step_at = lookup.step_at.min(look_at);
            }
        }
        match is_waiting && is_silent {
            true => self.resort(now, key),
            false => self.set_lookup_timer(key),
        }
        key
    }

    /// Sends what is ready. False when the origin takes nothing more now.
    pub(super) fn submit_question(&mut self, now: Time, key: LookupKey) -> bool {
        let tag = OriginTag(self.next_id());
        let bucket = self.lookups.get(key).map(|lookup| lookup.question.bucket());
        if bucket.is_some_and(|bucket| self.outages.is_known(bucket)) {
            self.resort(now, key);
        }
        let (io_timeout, after) = (self.config.io_timeout, self.outage_after());
        let Some(lookup) = self.lookups.get(key) else {
            return true;
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
        if let Err(Full(_)) = self.parts.origin.submit(op) {
            return false;
        }
        lookup.state = State::Running {
            tag,
            cancelled: false,
        };
        lookup.step_at = now + first_look(&lookup.askers, io_timeout, after);
        lookup.began = now;
        let is_retry = lookup.attempt > 0;
        self.tags.insert(tag.0, Tagged::Lookup(key));
        self.stats.heads += u64::from(is_head);
        self.stats.lists += u64::from(!is_head);
        self.stats.retries += u64::from(is_retry);
        self.set_lookup_timer(key);
        true
    }

    /// An attempt has taken so long that some are told what is known, or that it is given up.
    pub(super) fn attempt_due(&mut self, now: Time, key: LookupKey) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let stalled_at = lookup.began + retry::stall_limit(self.config.io_timeout);
        let is_stalled = stalled_at <= now;
        lookup.step_at = if is_stalled { Time::NEVER } else { stalled_at };
        let (question, began) = (lookup.question.clone(), lookup.began);
        let mut is_sign = lookup.is_probe();
        if let State::Running { tag, cancelled } = &mut lookup.state
            && is_stalled
            && !std::mem::replace(cancelled, true)
        {
            is_sign = true;
            self.parts.origin.cancel(*tag);
        }
        if is_sign {
            self.origin_failed(now, began, &question);
        }
        self.resort_for(now, key, |asker| asker.is_offered);
    }

    /// The origin answered.
    pub(in crate::core) fn lookup_done(
        &mut self,
        now: Time,
        key: LookupKey,
        result: Result<Finding, OriginError>,
    ) {
        let Some(lookup) = self.lookups.get(key) else {
            return;
        };
        let (asked, at) = (lookup.question.clone(), lookup.began);
        let question = asked.source();
        let sign = match &result {
            Ok(_) => Sign::Answers,
            Err(error) => Sign::of(error.kind),
        };
        if matches!(sign, Sign::Answers) {
            self.origin_answered(now, question.bucket());
        }
        self.note_answer(now, result.as_ref().map(drop));
        if let (Sign::Silent, Err(error)) = (&sign, &result) {
            self.outages.last_error = Some(error.to_string().into());
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
        if is_fact(&told) {
            self.told_meanwhile(&asked, &told);
        }
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
        let subject = lookup.question.subject();
        self.count_origin_error(error.kind);
        let until = now + retry::backoff(attempt, &mut self.parts.rng);
        if error.kind.is_transient() && !self.shutting_down {
            tracing::debug!(%subject, attempt, %error, "asking the origin failed; trying again");
            if let Some(lookup) = self.lookups.get(key) {
                lookup.state = State::BackingOff;
                lookup.step_at = until;
            }
            self.resort_for(now, key, |asker| asker.is_offered || until >= last);
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
}

/// How long an attempt takes before it is looked at: not long where someone does not wait for its end.
fn first_look(askers: &VecDeque<Asker>, io_timeout: Duration, outage_after: Duration) -> Duration {
    let is_probe = askers.iter().any(Asker::is_nobody);
    let is_offered = askers.iter().any(|asker| asker.is_offered);
    match () {
        () if is_probe => outage_after,
        () if is_offered => io_timeout / STAND_IN_PATIENCE,
        () => retry::stall_limit(io_timeout),
    }
}
