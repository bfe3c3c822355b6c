//! What a core that owns names remembers of the origin's answers, for the group: each is fetched once in its
//! lifetime, whoever asks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::metadata::{Finding, Question};
use crate::errors::{OriginError, OriginErrorKind};
use crate::limits::FINDINGS_BYTES_MAX;
use crate::ports::Time;
use crate::wire::call;

type Outcome = Result<Finding, OriginError>;

#[derive(Debug)]
struct Found {
    outcome: Outcome,
    until: Time,
    len_bytes: usize,
}

/// Answers that are still good. The oldest are forgotten when there are too many.
#[derive(Debug, Default)]
pub(super) struct Findings {
    known: BTreeMap<Question, Found>,
    /// In the order of their coming, which is that of their ends.
    order: VecDeque<(Time, Question)>,
    len_bytes: usize,
}

impl Findings {
    /// What the origin said not long ago.
    pub fn get(&self, now: Time, question: &Question) -> Option<Outcome> {
        let found = self.known.get(question)?;
        (found.until > now).then(|| found.outcome.clone())
    }

    /// Remembers an answer for `lifetime`: attributes, a page, or that there is no such key.
    pub fn learn(&mut self, now: Time, lifetime: Duration, question: Question, outcome: &Outcome) {
        let lasting = match outcome {
            Ok(_) => true,
            Err(error) => error.kind == OriginErrorKind::NotFound,
        };
        self.forget(now);
        if !lasting || lifetime.is_zero() {
            return;
        }
        let len_bytes = question.len_bytes() + outcome.as_ref().map_or(64, len_bytes);
        let until = now + lifetime;
        let found = Found {
            outcome: outcome.clone(),
            until,
            len_bytes,
        };
        if let Some(old) = self.known.insert(question.clone(), found) {
            self.len_bytes -= old.len_bytes;
        }
        self.order.push_back((until, question));
        self.len_bytes += len_bytes;
        while self.len_bytes > FINDINGS_BYTES_MAX && self.drop_oldest() {}
    }

    /// Forgets what is no longer good.
    fn forget(&mut self, now: Time) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some((until, question)) = self.order.pop_front() else {
            return false;
        };
        // Learned again since: it stands farther back, too.
        if self
            .known
            .get(&question)
            .is_some_and(|found| found.until == until)
            && let Some(found) = self.known.remove(&question)
        {
            self.len_bytes -= found.len_bytes;
        }
        true
    }
}

fn len_bytes(finding: &Finding) -> usize {
    match finding {
        Finding::Head(meta) => meta.key.len() + 160,
        Finding::List(page) => call::page_len_bytes(page) + page.entries.len() * 120,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::identity::{Bucket, Validator};
    use crate::ports::ObjectMeta;

    const SECOND: Duration = Duration::from_secs(1);

    fn question(n: u64) -> Question {
        let bucket = Bucket {
            endpoint: "e".into(),
            name: "b".into(),
        };
        Question::Head(Arc::new(bucket), n.to_string().into())
    }

    fn outcome(n: u64) -> Outcome {
        Ok(Finding::Head(ObjectMeta {
            key: "k".repeat(1_000).into(),
            size_bytes: n,
            validator: Validator::Modified(0),
            modified_ns: 0,
        }))
    }

    fn size(outcome: Option<Outcome>) -> Option<u64> {
        match outcome?.ok()? {
            Finding::Head(meta) => Some(meta.size_bytes),
            Finding::List(_) => None,
        }
    }

    #[test]
    fn an_answer_is_good_for_its_lifetime_and_a_newer_one_replaces_it() {
        let mut findings = Findings::default();
        findings.learn(Time(0), SECOND, question(1), &outcome(10));
        let half = Time(500_000_000);
        assert_eq!(size(findings.get(half, &question(1))), Some(10));
        findings.learn(half, SECOND, question(1), &outcome(11));
        let over = Time(1_200_000_000);
        findings.learn(over, SECOND, question(2), &outcome(12));
        assert_eq!(size(findings.get(over, &question(1))), Some(11));
        assert!(findings.get(Time(1_500_000_000), &question(1)).is_none());
        findings.learn(Time(9_000_000_000), SECOND, question(3), &outcome(13));
        assert_eq!(findings.known.len(), 1);
    }

    #[test]
    fn an_absent_key_is_remembered_and_a_failure_is_not() {
        let mut findings = Findings::default();
        for (n, kind) in [(1, OriginErrorKind::NotFound), (2, OriginErrorKind::Denied)] {
            let failed = Err(OriginError::new(kind, "scripted"));
            findings.learn(Time(0), SECOND, question(n), &failed);
        }
        assert!(matches!(findings.get(Time(1), &question(1)), Some(Err(_))));
        assert!(findings.get(Time(1), &question(2)).is_none());
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stay() {
        let mut findings = Findings::default();
        let last = 2 * FINDINGS_BYTES_MAX as u64 / 1_000;
        for n in 0..=last {
            findings.learn(Time(n), SECOND, question(n), &outcome(n));
        }
        assert!(findings.len_bytes <= FINDINGS_BYTES_MAX);
        assert_eq!(findings.order.len(), findings.known.len());
        assert_eq!(size(findings.get(Time(last), &question(last))), Some(last));
        assert!(findings.get(Time(last), &question(0)).is_none());
    }
}
