//! Whether the origin answers this core. While it does not, names are answered as last known, what others may bring is
//! asked of them, and the origin is tried by one probe at a time, not by everyone who asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::metadata::{LookupKey, Question};
use super::timers::Due;
use super::{Core, retry};
use crate::errors::OriginErrorKind;
use crate::identity::Bucket;
use crate::limits::STAND_IN_PATIENCE;
use crate::ports::{Platform, Time};

/// An origin that has answered nothing for so long, though it was asked all the while, does not answer; sooner where
/// requests have little time.
const OUTAGE_AFTER: Duration = Duration::from_secs(2);
/// Failures farther apart have nothing to do with each other.
const FAILURES_APART: Duration = Duration::from_secs(10);
/// It is asked again whether it answers after so long.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Buckets of which it is known. Peers may name any.
const BUCKETS_MAX: usize = 64;

/// What a failed attempt says of the origin.
pub(super) enum Sign {
    /// It answers.
    Answers,
    /// It could not be reached, or said nothing.
    Silent,
    /// Neither.
    Unclear,
}

impl Sign {
    pub fn of(kind: OriginErrorKind) -> Self {
        use OriginErrorKind::*;
        match kind {
            NotFound | NoSuchBucket | Denied | WrongRegion | VersionChanged | Throttled => {
                Self::Answers
            }
            Unavailable | Timeout => Self::Silent,
            // Who cancels because nothing came says so where it cancels.
            ShortBody | BadAnswer | Cancelled => Self::Unclear,
        }
    }
}

#[derive(Debug, Default)]
struct Health {
    answered_at: Time,
    failing: Option<Failing>,
    /// The last probe.
    probe: Option<LookupKey>,
}

/// Nothing was answered since.
#[derive(Debug)]
struct Failing {
    since: Time,
    last: Time,
    /// For so long that it counts as an outage.
    is_known: bool,
    /// What the origin is tried with.
    probe: Question,
}

/// Which origins answer.
#[derive(Debug, Default)]
pub(super) struct Outages {
    origins: BTreeMap<Arc<Bucket>, Health>,
    /// A timer for probes is set.
    is_probing: bool,
    /// How an attempt failed last.
    pub last_error: Option<Box<str>>,
}

impl Outages {
    fn health(&mut self, bucket: &Arc<Bucket>) -> &mut Health {
        if !self.origins.contains_key(bucket) {
            let all = self.origins.iter();
            let least = all.min_by_key(|(_, health)| health.rank());
            if self.origins.len() >= BUCKETS_MAX
                && let Some(least) = least.map(|(bucket, _)| bucket.clone())
            {
                self.origins.remove(&least);
            }
            self.origins.insert(bucket.clone(), Health::default());
        }
        self.origins.entry(bucket.clone()).or_default()
    }

    /// The origin answered. Returns how long it had not, if that was known.
    fn answered(&mut self, now: Time, bucket: &Arc<Bucket>) -> Option<Duration> {
        let health = match self.origins.get_mut(bucket) {
            Some(health) => health,
            None => self.health(bucket),
        };
        health.answered_at = now;
        let failing = health.failing.take()?;
        failing.is_known.then(|| now.since(failing.since))
    }

    /// An attempt that began at `began` was not answered. Returns whether an outage is known from now on: when there has
    /// been no answer for `after`.
    fn failed(&mut self, now: Time, began: Time, after: Duration, question: &Question) -> bool {
        let health = self.health(question.bucket());
        if health.answered_at > began {
            return false;
        }
        let failing = health.failing.get_or_insert_with(|| Failing {
            since: began,
            last: began,
            is_known: false,
            probe: question.probe(),
        });
        if failing.is_known {
            return false;
        }
        if began.since(failing.last) > FAILURES_APART {
            failing.since = began;
        }
        failing.since = failing.since.min(began);
        failing.last = failing.last.max(now);
        failing.is_known = now.since(failing.since) >= after;
        failing.is_known
    }

    /// Whether an origin is known not to answer.
    pub fn is_known(&self, bucket: &Arc<Bucket>) -> bool {
        let health = self.origins.get(bucket);
        health.is_some_and(|health| health.known().is_some())
    }

    /// How long the origin that has not answered for the longest time has not.
    pub fn longest(&self, now: Time) -> Duration {
        let known = self.origins.values().filter_map(Health::known);
        known
            .map(|failing| now.since(failing.since))
            .max()
            .unwrap_or_default()
    }

    /// The last probe of an origin.
    pub fn probe(&self, bucket: &Arc<Bucket>) -> Option<LookupKey> {
        self.origins.get(bucket)?.probe
    }

    /// An origin is tried with a question.
    pub fn probes_with(&mut self, bucket: &Arc<Bucket>, key: LookupKey) {
        self.health(bucket).probe = Some(key);
    }

    /// Whether an origin has answered since.
    fn has_answered(&self, bucket: &Arc<Bucket>, since: Time) -> bool {
        let health = self.origins.get(bucket);
        health.is_some_and(|health| health.answered_at > since)
    }

    fn probes(&self) -> Vec<Question> {
        let known = self.origins.values().filter_map(Health::known);
        known.map(|failing| failing.probe.clone()).collect()
    }
}

impl Health {
    /// Who is the least is forgotten first: what is known not to answer last, else what was heard of the longest ago.
    fn rank(&self) -> (bool, Time) {
        let last = self
            .failing
            .as_ref()
            .map_or(Time(0), |failing| failing.last);
        (self.known().is_some(), self.answered_at.max(last))
    }

    fn known(&self) -> Option<&Failing> {
        self.failing.as_ref().filter(|failing| failing.is_known)
    }
}

impl<P: Platform> Core<P> {
    /// The origin answered something.
    pub(super) fn origin_answered(&mut self, now: Time, bucket: &Arc<Bucket>) {
        if let Some(span) = self.outages.answered(now, bucket) {
            let stale_answers = self.stats.stale_answers;
            tracing::warn!(%bucket, silent_s = span.as_secs(), stale_answers,
                "the origin answers again");
        }
    }

    /// The origin did not answer an attempt that began at `began` and was to find out what `question` asks.
    pub(super) fn origin_failed(&mut self, now: Time, began: Time, question: &Question) {
        let after = self.outage_after();
        if self.shutting_down || !self.outages.failed(now, began, after, question) {
            return;
        }
        let bucket = question.bucket();
        self.stats.outages += 1;
        let error = self
            .outages
            .last_error
            .as_deref()
            .unwrap_or("it says nothing");
        tracing::warn!(%bucket, error,
            "the origin does not answer: until it does, what is cached is served, and names are answered as last known");
        if !std::mem::replace(&mut self.outages.is_probing, true) {
            self.timers.set(now + PROBE_EVERY, Due::Probe);
        }
        self.look_around(now, bucket);
        self.fill_around(now, bucket);
    }

    /// A question that the origin was asked at `began` was given up because nobody waits for it any more. It may have
    /// been slow only: where nothing else is known, something small finds out.
    pub(super) fn origin_was_left(&mut self, now: Time, began: Time, question: &Question) {
        let bucket = question.bucket();
        if now.since(began) >= retry::stall_limit(self.config.io_timeout) {
            return self.origin_failed(now, began, question);
        }
        let is_long = now.since(began) >= self.outage_after() / 2;
        let is_new = !self.outages.has_answered(bucket, began) && !self.outages.is_known(bucket);
        if is_long && is_new {
            self.probe(now, question.probe());
        }
    }

    /// After how long without any answer an outage is known.
    pub(super) fn outage_after(&self) -> Duration {
        OUTAGE_AFTER.min(self.config.io_timeout / STAND_IN_PATIENCE)
    }

    /// Asks origins that do not answer whether they do now.
    pub(super) fn probe_due(&mut self, now: Time) {
        let probes = self.outages.probes();
        self.outages.is_probing = !probes.is_empty() && !self.shutting_down;
        if !self.outages.is_probing {
            return;
        }
        self.timers.set(now + PROBE_EVERY, Due::Probe);
        for probe in probes {
            self.probe(now, probe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(bucket: &str) -> Question {
        let bucket = Bucket {
            endpoint: "e".into(),
            name: bucket.into(),
        };
        Question::Head(Arc::new(bucket), "key".into())
    }

    fn ms(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn an_outage_is_known_when_nothing_was_answered_for_two_seconds() {
        let (mut outages, asked) = (Outages::default(), question("b"));
        let bucket = asked.bucket().clone();
        assert!(!outages.failed(ms(1), ms(0), OUTAGE_AFTER, &asked));
        assert!(!outages.failed(ms(1_999), ms(1_990), OUTAGE_AFTER, &asked));
        assert!(!outages.is_known(&bucket));
        assert!(outages.failed(ms(2_000), ms(1_999), OUTAGE_AFTER, &asked));
        assert!(outages.is_known(&bucket) && !outages.is_known(question("c").bucket()));
        // It is told once.
        assert!(!outages.failed(ms(2_001), ms(2_000), OUTAGE_AFTER, &asked));
        assert_eq!(outages.longest(ms(3_000)), Duration::from_secs(3));
        let ended = outages.answered(ms(9_000), &bucket);
        assert_eq!(ended, Some(Duration::from_secs(9)));
        assert!(!outages.is_known(&bucket) && outages.probes().is_empty());
        assert_eq!(outages.answered(ms(9_001), &bucket), None);
    }

    #[test]
    fn one_that_is_silent_for_long_is_an_outage_unless_others_are_answered_meanwhile() {
        let (mut outages, asked) = (Outages::default(), question("b"));
        outages.answered(ms(5_000), asked.bucket());
        assert!(!outages.failed(ms(10_000), ms(0), OUTAGE_AFTER, &asked));
        assert!(outages.failed(ms(15_000), ms(5_000), OUTAGE_AFTER, &asked));
    }

    #[test]
    fn failures_far_apart_are_none() {
        let (mut outages, asked) = (Outages::default(), question("b"));
        for n in 0..9 {
            let at = 11_000 * n;
            assert!(!outages.failed(ms(at + 1), ms(at), OUTAGE_AFTER, &asked));
        }
    }

    #[test]
    fn any_number_of_buckets_take_bounded_room() {
        let mut outages = Outages::default();
        for n in 0..3 * BUCKETS_MAX {
            outages.answered(ms(1), question(&n.to_string()).bucket());
        }
        assert_eq!(outages.origins.len(), BUCKETS_MAX);
    }

    #[test]
    fn an_outage_is_not_forgotten_for_origins_that_answer_nor_the_beginning_of_one() {
        let (mut outages, asked, begun) = (Outages::default(), question("a"), question("b"));
        assert!(outages.failed(ms(2_000), ms(0), OUTAGE_AFTER, &asked));
        for n in 0..3 * BUCKETS_MAX as u64 {
            let other = question(&format!("c{n}"));
            outages.answered(ms(2_000 + n), other.bucket());
            let is_found = outages.failed(ms(2_001 + n * 20), ms(2_000), OUTAGE_AFTER, &begun);
            assert_eq!(is_found, n == 100, "{n}");
        }
        assert!(outages.is_known(asked.bucket()) && outages.is_known(begun.bucket()));
        assert_eq!(outages.origins.len(), BUCKETS_MAX);
    }
}
