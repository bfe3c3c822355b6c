//! What will happen when: events in the order of their time, and of their making within one time.

use std::collections::BTreeMap;

use forebay_engine::ports::Time;

/// Names a scheduled event, to take it back.
pub type EventKey = (Time, u64);

/// A queue of future events.
#[derive(Debug)]
pub struct Schedule<T> {
    events: BTreeMap<EventKey, T>,
    made: u64,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            events: BTreeMap::new(),
            made: 0,
        }
    }
}

impl<T> Schedule<T> {
    /// Plans `event` for `at`.
    pub fn push(&mut self, at: Time, event: T) -> EventKey {
        let key = (at, self.made);
        self.made += 1;
        self.events.insert(key, event);
        key
    }

    /// Takes a planned event back.
    pub fn remove(&mut self, key: EventKey) -> Option<T> {
        self.events.remove(&key)
    }

    /// The first event that is due at `now`, with the time it was planned for.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, T)> {
        let entry = self.events.first_entry()?;
        let at = entry.key().0;
        (at <= now).then(|| (at, entry.remove()))
    }

    /// When the first event is due.
    pub fn next_at(&self) -> Option<Time> {
        self.events.keys().next().map(|key| key.0)
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.events.clear();
    }
}
