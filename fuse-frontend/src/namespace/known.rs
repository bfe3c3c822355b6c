//! What listings and lookups have told lately about names, bounded. It answers a lookup that
//! follows a listing, and remembers names that do not exist.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::ports::Time;

use super::listing::Kind;

/// Names remembered: the older half is dropped at once when the younger half is full.
pub(super) const KNOWN_NAMES_MAX: usize = 65_536;

/// What is known about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// There is nothing.
    Absent,
    /// There is this.
    Present(Kind),
}

#[derive(Debug)]
pub(super) struct KnownNames {
    young: HashMap<Arc<str>, (Time, Known)>,
    old: HashMap<Arc<str>, (Time, Known)>,
    attr_ttl: Duration,
    negative_ttl: Duration,
}

impl KnownNames {
    pub(super) fn new(attr_ttl: Duration, negative_ttl: Duration) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            attr_ttl,
            negative_ttl,
        }
    }

    /// What was learned about `key` (no slash at its end) within its time to live, and when.
    pub(super) fn get(&self, key: &str, now: Time) -> Option<(Time, Known)> {
        let (at, known) = self.held(key)?;
        let ttl = self.ttl(known);
        (!ttl.is_zero() && now.since(*at) < ttl).then(|| (*at, known.clone()))
    }

    /// The last that was learned about `key`, however long ago.
    pub(super) fn last(&self, key: &str) -> Option<(Time, Known)> {
        self.held(key).cloned()
    }

    /// Notes what was learned at `at`, unless something newer is known: a slow answer, or a
    /// page that a directory handle held for long.
    pub(super) fn insert(&mut self, key: Arc<str>, at: Time, known: Known) {
        if self.held(&key).is_some_and(|(held, _)| *held > at) {
            return;
        }
        if self.ttl(&known).is_zero() {
            self.remove(&key);
            return;
        }
        if self.young.len() >= KNOWN_NAMES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, (at, known));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// Forgets the names of which `is_over` says so, who is told when they were learned.
    pub(super) fn forget(&mut self, is_over: impl Fn(&str, Time) -> bool) {
        for half in [&mut self.young, &mut self.old] {
            half.retain(|key, (at, _)| !is_over(key, *at));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn held(&self, key: &str) -> Option<&(Time, Known)> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn ttl(&self, known: &Known) -> Duration {
        match known {
            Known::Absent => self.negative_ttl,
            Known::Present(_) => self.attr_ttl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_expire_each_by_its_own_time_to_live() {
        let mut known = KnownNames::new(Duration::from_secs(2), Duration::from_secs(1));
        known.insert("gone".into(), Time(0), Known::Absent);
        known.insert("dir".into(), Time(0), Known::Present(Kind::Directory));
        let after = |secs: u64| Time(secs * 1_000_000_000 - 1);
        assert_eq!(known.get("gone", after(1)), Some((Time(0), Known::Absent)));
        assert_eq!(known.get("gone", after(2)), None);
        assert!(known.get("dir", after(2)).is_some());
        assert_eq!(known.get("dir", after(3)), None);
    }

    #[test]
    fn the_number_of_names_is_bounded_and_the_youngest_stay() {
        let mut known = KnownNames::new(Duration::from_secs(2), Duration::from_secs(1));
        for n in 0..3 * KNOWN_NAMES_MAX {
            known.insert(n.to_string().into(), Time(0), Known::Absent);
        }
        assert!(known.len() <= KNOWN_NAMES_MAX);
        let youngest = (3 * KNOWN_NAMES_MAX - 1).to_string();
        assert!(known.get(&youngest, Time(1)).is_some());
        assert!(known.get("0", Time(1)).is_none());
    }

    #[test]
    fn older_knowledge_does_not_replace_newer() {
        let mut known = KnownNames::new(Duration::from_secs(2), Duration::from_secs(1));
        known.insert("a".into(), Time(7), Known::Absent);
        known.insert("a".into(), Time(5), Known::Present(Kind::Directory));
        assert_eq!(known.get("a", Time(8)), Some((Time(7), Known::Absent)));
        known.insert("a".into(), Time(9), Known::Present(Kind::Directory));
        assert_eq!(known.get("a", Time(10)).map(|(at, _)| at), Some(Time(9)));
    }

    #[test]
    fn a_time_to_live_of_zero_remembers_nothing() {
        let mut known = KnownNames::new(Duration::ZERO, Duration::ZERO);
        known.insert("a".into(), Time(5), Known::Absent);
        assert_eq!(known.len(), 0);
    }
}
