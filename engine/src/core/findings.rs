//! What a core remembers of the origin's answers to questions for names.
//!
//! A core that owns a name gives an answer again within its lifetime, to whoever asks in the group: an asker says how
//! old an answer may be for it, and is told how old it is. Past their lifetime, and on all other cores from the
//! beginning, answers are kept for when the origin does not answer (`metadata::stale`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::metadata::{Finding, Question};
use crate::client::Told;
use crate::errors::OriginErrorKind;
use crate::limits::{FINDINGS_BYTES_MAX, LIST_PAGE_ENTRIES};
use crate::ports::{ListPage, Time};
use crate::wire::call;

/// How long a page is good at least, for the rest of it: it goes to peers in parts.
const REST_OF_PAGE: Duration = Duration::from_secs(5);
/// What pages take that only jobs ask for: they go by, a million keys in one walk, and are not to push out what mounts
/// will ask for.
const PASSING_BYTES_MAX: usize = FINDINGS_BYTES_MAX / 4;

#[derive(Debug)]
struct Found {
    told: Told<Finding>,
    until: Time,
    /// As the origin said it. From a member a page may come in parts: none of them is the page.
    is_whole: bool,
    /// Where it stands in the order of use.
    used: u64,
    /// Where it stands in the order of what goes by.
    passing: Option<u64>,
    len_bytes: usize,
}

/// How long what was found is good.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetimes {
    /// What there is.
    pub present: Duration,
    /// That there is nothing: no such key, nothing below a prefix.
    pub absent: Duration,
}

impl Lifetimes {
    /// It is kept for when the origin does not answer, and no more.
    pub const NONE: Self = Self {
        present: Duration::ZERO,
        absent: Duration::ZERO,
    };

    fn of(self, told: &Told<Finding>) -> Option<Duration> {
        match &told.result {
            Ok(Finding::List(page)) if is_empty(page) => Some(self.absent.min(self.present)),
            Ok(_) => Some(self.present),
            Err(error) => (error.kind == OriginErrorKind::NotFound).then_some(self.absent),
        }
    }
}

fn is_empty(page: &ListPage) -> bool {
    page.entries.is_empty() && page.left_out == 0 && page.next.is_none()
}

/// The last answers. Those that nobody has asked for the longest are forgotten when there are too many.
#[derive(Debug, Default)]
pub(super) struct Findings {
    known: BTreeMap<Question, Found>,
    /// The one that was used the longest ago first.
    order: BTreeMap<u64, Question>,
    /// Pages that go by, the oldest first.
    passing: BTreeMap<u64, Question>,
    uses: u64,
    len_bytes: usize,
    passing_bytes: usize,
}

impl Findings {
    /// What the origin was asked at `need` or later. For the rest of a page that was cut, the page is good longer.
    pub fn get(
        &mut self,
        now: Time,
        question: &Question,
        need: Time,
        is_rest: bool,
    ) -> Option<Told<Finding>> {
        let found = self.known.get(question)?;
        let fresh = match is_rest {
            true => {
                found.is_whole && (now.since(found.told.at) < REST_OF_PAGE || found.until > now)
            }
            false => found.until > now && found.told.at >= need,
        };
        fresh.then(|| self.used(question)).flatten()
    }

    /// The last that was heard, however long ago: to the question itself, or the page that it is for the rest of.
    pub fn last(&mut self, question: &Question) -> Option<Told<Finding>> {
        if let Some(told) = self.used(question) {
            return Some(told);
        }
        let page = question.source();
        let is_whole = self.known.get(&page).is_some_and(|found| found.is_whole);
        is_whole.then(|| self.used(&page)).flatten()
    }

    fn used(&mut self, question: &Question) -> Option<Told<Finding>> {
        let found = self.known.get_mut(question)?;
        self.uses += 1;
        if let Some(question) = self.order.remove(&found.used) {
            self.order.insert(self.uses, question);
        }
        found.used = self.uses;
        Some(found.told.clone())
    }

    /// Remembers what a member said, for when nobody else tells.
    pub fn hear(&mut self, question: Question, told: &Told<Finding>) {
        if is_passing(&question) {
            return;
        }
        self.note(Lifetimes::NONE, question, told, false);
    }

    /// Remembers what the origin said: attributes, a page, or that there is no such key.
    pub fn learn(&mut self, lifetimes: Lifetimes, question: Question, told: &Told<Finding>) {
        self.note(lifetimes, question, told, true);
    }

    fn note(
        &mut self,
        lifetimes: Lifetimes,
        question: Question,
        told: &Told<Finding>,
        is_whole: bool,
    ) {
        let Some(lifetime) = lifetimes.of(told) else {
            return;
        };
        let known = self.known.get(&question);
        if known.is_some_and(|known| known.told.at > told.at) {
            return;
        }
        self.drop(&question);
        self.uses += 1;
        let found = Found {
            told: told.clone(),
            until: told.at + lifetime,
            is_whole,
            used: self.uses,
            passing: is_passing(&question).then_some(self.uses),
            len_bytes: question.len_bytes() + told.result.as_ref().map_or(64, len_bytes),
        };
        self.len_bytes += found.len_bytes;
        self.order.insert(self.uses, question.clone());
        if found.passing.is_some() {
            self.passing_bytes += found.len_bytes;
            self.passing.insert(self.uses, question.clone());
        }
        self.known.insert(question, found);
        // The last one stays, whatever it takes: the rest of it will be asked for.
        while self.passing_bytes > PASSING_BYTES_MAX
            && self.passing.len() > 1
            && let Some((_, first)) = self.passing.pop_first()
        {
            self.drop(&first);
        }
        while self.len_bytes > FINDINGS_BYTES_MAX
            && let Some((_, first)) = self.order.pop_first()
        {
            self.drop(&first);
        }
    }

    fn drop(&mut self, question: &Question) {
        if let Some(found) = self.known.remove(question) {
            self.order.remove(&found.used);
            self.len_bytes -= found.len_bytes;
            if let Some(passing) = found.passing {
                self.passing.remove(&passing);
                self.passing_bytes -= found.len_bytes;
            }
        }
    }
}

/// Whether a mount never asks for it: a whole page of a tree's listing.
fn is_passing(question: &Question) -> bool {
    match question {
        Question::List(request) => !request.delimited && request.entries_max >= LIST_PAGE_ENTRIES,
        Question::Head(..) => false,
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
    use crate::errors::OriginError;
    use crate::identity::{Bucket, Validator};
    use crate::ports::{ListEntry, ListRequest, ObjectMeta};

    const SECOND: Duration = Duration::from_secs(1);
    const LIFETIMES: Lifetimes = Lifetimes {
        present: SECOND,
        absent: SECOND,
    };

    fn bucket() -> Arc<Bucket> {
        Arc::new(Bucket {
            endpoint: "e".into(),
            name: "b".into(),
        })
    }

    fn question(n: u64) -> Question {
        Question::Head(bucket(), n.to_string().into())
    }

    fn listing(n: u64) -> Question {
        Question::List(ListRequest {
            bucket: bucket(),
            prefix: format!("{n}/").into(),
            delimited: true,
            continuation: None,
            entries_max: 1_000,
        })
    }

    fn told(at: Time, n: u64) -> Told<Finding> {
        let meta = ObjectMeta {
            key: "k".repeat(1_000).into(),
            size_bytes: n,
            validator: Validator::Modified(0),
            modified_ns: 0,
        };
        Told {
            result: Ok(Finding::Head(meta)),
            at,
        }
    }

    fn failed(at: Time, kind: OriginErrorKind) -> Told<Finding> {
        Told {
            result: Err(OriginError::new(kind, "scripted")),
            at,
        }
    }

    fn any(findings: &mut Findings, now: Time, question: &Question) -> Option<Told<Finding>> {
        findings.get(now, question, Time(0), false)
    }

    fn size(told: Option<Told<Finding>>) -> Option<u64> {
        match told?.result.ok()? {
            Finding::Head(meta) => Some(meta.size_bytes),
            Finding::List(_) => None,
        }
    }

    #[test]
    fn an_answer_is_good_for_its_lifetime_and_a_newer_one_replaces_it() {
        let mut findings = Findings::default();
        let mut learn = |at, n, size_bytes| {
            findings.learn(LIFETIMES, question(n), &told(at, size_bytes));
        };
        learn(Time(0), 1, 10);
        let half = Time(500_000_000);
        learn(half, 1, 11);
        let over = Time(1_200_000_000);
        learn(over, 2, 12);
        assert_eq!(size(any(&mut findings, over, &question(1))), Some(11));
        // An answer to a HEAD that was sent before comes later.
        findings.learn(LIFETIMES, question(1), &told(Time(300_000_000), 9));
        assert_eq!(size(any(&mut findings, over, &question(1))), Some(11));
        let ended = Time(1_500_000_000);
        assert!(any(&mut findings, ended, &question(1)).is_none());
        // It is still the last that is known.
        assert_eq!(size(findings.last(&question(1))), Some(11));
        assert!(findings.last(&question(3)).is_none());
    }

    #[test]
    fn what_is_only_kept_for_outages_is_good_for_nothing_else() {
        let mut findings = Findings::default();
        findings.learn(Lifetimes::NONE, question(1), &told(Time(7), 10));
        assert!(any(&mut findings, Time(7), &question(1)).is_none());
        assert_eq!(size(findings.last(&question(1))), Some(10));
    }

    #[test]
    fn an_asker_gets_nothing_older_than_it_takes() {
        let mut findings = Findings::default();
        findings.learn(LIFETIMES, question(1), &told(Time(7), 10));
        let mut get = |need| findings.get(Time(9), &question(1), need, false);
        assert_eq!(get(Time(7)).map(|told| told.at), Some(Time(7)));
        assert!(get(Time(8)).is_none());
    }

    #[test]
    fn what_is_absent_ends_by_its_own_time() {
        let lifetimes = Lifetimes {
            present: 600 * SECOND,
            absent: SECOND,
        };
        let mut findings = Findings::default();
        findings.learn(lifetimes, question(1), &told(Time(0), 10));
        let gone = failed(Time(1), OriginErrorKind::NotFound);
        findings.learn(lifetimes, question(2), &gone);
        let denied = failed(Time(1), OriginErrorKind::Denied);
        findings.learn(lifetimes, question(3), &denied);
        let empty = Told {
            result: Ok(Finding::List(Arc::default())),
            at: Time(1),
        };
        findings.learn(lifetimes, listing(4), &empty);
        let known = |findings: &mut Findings, now| {
            let all = [question(1), question(2), question(3), listing(4)];
            all.map(|question| any(findings, now, &question).is_some())
        };
        assert_eq!(known(&mut findings, Time(2)), [true, true, false, true]);
        let later = Time(1_000_000_001);
        assert_eq!(known(&mut findings, later), [true, false, false, false]);
        let last = findings.last(&question(2)).map(|told| told.result.is_err());
        assert_eq!(last, Some(true));
    }

    #[test]
    fn a_page_is_kept_for_the_rest_of_it() {
        let lifetimes = Lifetimes {
            present: Duration::ZERO,
            absent: Duration::ZERO,
        };
        let page = ListPage {
            next: Some("more".into()),
            ..ListPage::default()
        };
        let told = Told {
            result: Ok(Finding::List(Arc::new(page))),
            at: Time(0),
        };
        let mut findings = Findings::default();
        findings.learn(lifetimes, listing(1), &told);
        let mut get = |now: Time, is_rest| findings.get(now, &listing(1), now, is_rest).is_some();
        assert_eq!([get(Time(2), false), get(Time(2), true)], [false, true]);
        assert!(!get(Time(5_000_000_000), true));
    }

    #[test]
    fn a_walk_over_a_tree_does_not_push_out_what_mounts_ask_for() {
        let mut findings = Findings::default();
        findings.learn(LIFETIMES, question(1), &told(Time(0), 1));
        let entry = |n: usize| {
            ListEntry::Object(ObjectMeta {
                key: format!("{n:0100}").into(),
                size_bytes: 1,
                validator: Validator::Modified(0),
                modified_ns: 0,
            })
        };
        let page = Arc::new(ListPage {
            entries: (0..1_000).map(entry).collect(),
            ..ListPage::default()
        });
        let told = Told {
            result: Ok(Finding::List(page)),
            at: Time(1),
        };
        let flat = |n: usize| {
            Question::List(ListRequest {
                bucket: bucket(),
                prefix: "".into(),
                delimited: false,
                continuation: Some(n.to_string().into()),
                entries_max: 1_000,
            })
        };
        let pages = 4 * FINDINGS_BYTES_MAX / 100_000;
        for n in 0..pages {
            findings.learn(LIFETIMES, flat(n), &told);
            findings.hear(flat(pages + n), &told);
            // The rest of it can be asked for.
            assert!(findings.get(Time(2), &flat(n), Time(2), true).is_some());
        }
        assert!(findings.last(&question(1)).is_some());
        assert!(findings.last(&flat(pages)).is_none());
        assert!(findings.passing_bytes <= PASSING_BYTES_MAX);
        assert_eq!(findings.known.len(), 1 + findings.passing.len());
    }

    #[test]
    fn memory_is_bounded_and_what_was_asked_for_last_stays() {
        let mut findings = Findings::default();
        let last = 2 * FINDINGS_BYTES_MAX as u64 / 1_000;
        for n in 0..=last {
            findings.learn(LIFETIMES, question(n), &told(Time(n), n));
            assert_eq!(size(findings.last(&question(7.min(n)))), Some(7.min(n)));
        }
        assert!(findings.len_bytes <= FINDINGS_BYTES_MAX);
        assert_eq!(findings.order.len(), findings.known.len());
        assert_eq!(size(findings.last(&question(last))), Some(last));
        assert!(findings.last(&question(8)).is_none());
    }
}
