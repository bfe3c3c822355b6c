//! How often a device is looked at that signals nothing.

use std::time::{Duration, Instant};

/// The longest sleep with operations under way: what a device that hangs costs.
const NAP_MAX: Duration = Duration::from_millis(1);
/// A sleep is so many times shorter than what was waited already: a completion is late by a quarter of its time at most, and
/// looks get rare as waiting gets long.
const NAP_SHARE: u32 = 4;

/// Since when nothing has happened on a queue pair that has operations under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// No sleep before so long.
    spin: Duration,
    since: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(spin: Duration) -> Self {
        Self { spin, since: None }
    }

    /// Something was handed to the device, or came back from it.
    pub(crate) fn moved(&mut self) {
        self.since = None;
    }

    /// How long the owner may sleep now.
    pub(crate) fn nap(&mut self, now: Instant) -> Duration {
        let since = *self.since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        match waited < self.spin {
            true => Duration::ZERO,
            false => (waited / NAP_SHARE).min(NAP_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_answers_is_looked_at_all_the_time_and_one_that_hangs_rarely() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut pace = Pace::new(Duration::from_micros(100));
        let naps = [0, 99, 100, 400, 4_000, 1_000_000].map(|us| pace.nap(at(us)).as_micros());
        assert_eq!(naps, [0, 0, 25, 100, 1_000, 1_000]);
        pace.moved();
        assert_eq!(pace.nap(at(2_000_000)), Duration::ZERO);
        // Looks in a second without any answer: some for the spin, then one more each time a quarter has passed, then
        // one a millisecond.
        let mut pace = Pace::new(Duration::from_micros(100));
        let (mut now, mut looks) = (0, 0);
        while now < 1_000_000 {
            looks += 1;
            now += pace.nap(at(now)).as_micros().max(1) as u64;
        }
        assert!(looks < 100 + 40 + 1_000, "{looks}");
    }

    #[test]
    fn who_may_not_spin_never_does_for_long() {
        let start = Instant::now();
        let mut pace = Pace::new(Duration::ZERO);
        pace.nap(start);
        assert!(pace.nap(start + Duration::from_micros(40)) >= Duration::from_micros(10));
    }
}
