//! A ceiling on bytes per second.

use std::time::Duration;

use crate::ports::Time;

/// Spends bytes at no more than a rate: what was spent must have passed before the next may begin. So the mean never
/// exceeds the rate, and nothing bursts but one operation.
#[derive(Debug, Default)]
pub(super) struct Ceiling {
    /// None: no ceiling.
    bytes_per_s: Option<u64>,
    free_at: Time,
}

impl Ceiling {
    /// A ceiling; none at all without a rate.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self {
            bytes_per_s: bytes_per_s.map(|rate| rate.max(1)),
            free_at: Time::default(),
        }
    }

    /// Whether the next operation may begin.
    pub fn is_free(&self, now: Time) -> bool {
        self.free_at <= now
    }

    /// When the next operation may begin.
    pub fn free_at(&self) -> Time {
        self.free_at
    }

    /// The longest operation that keeps others from beginning for no more than a tenth of a second.
    pub fn patient_bytes(&self) -> usize {
        let tenth = self.bytes_per_s.map_or(u64::MAX, |rate| rate / 10);
        usize::try_from(tenth).unwrap_or(usize::MAX)
    }

    /// An operation of so many bytes ended without them.
    pub fn give_back(&mut self, bytes: u64) {
        self.free_at = Time(
            self.free_at
                .0
                .saturating_sub(self.span(bytes).as_nanos() as u64),
        );
    }

    /// How long an operation of so many bytes takes at this rate.
    fn span(&self, bytes: u64) -> Duration {
        let rate = self.bytes_per_s.map_or(u128::MAX, u128::from);
        let nanos = u128::from(bytes) * 1_000_000_000 / rate;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4))
    }

    /// An operation of so many bytes begins.
    pub fn spend(&mut self, now: Time, bytes: u64) {
        if self.bytes_per_s.is_some() {
            self.free_at = self.free_at.max(now) + self.span(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_never_exceeds_the_rate() {
        let mut ceiling = Ceiling::new(Some(1_000_000));
        let (mut now, mut spent) = (Time(0), 0u64);
        for step in 0..2_000 {
            if ceiling.is_free(now) {
                ceiling.spend(now, 50_000);
                spent += 50_000;
            }
            // Late turns earn nothing.
            now = now + Duration::from_millis(1 + step % 7);
            assert!(spent <= 50_000 + now.0 / 1_000, "{spent} by {now:?}");
        }
        // A turn comes up to 7 ms after 50.
        assert!(spent > now.0 / 1_250, "{spent} by {now:?}");
    }

    #[test]
    fn what_did_not_come_costs_nothing_and_earns_nothing() {
        let mut ceiling = Ceiling::new(Some(1_000));
        ceiling.spend(Time(0), 1_000);
        ceiling.give_back(1_000);
        assert!(ceiling.is_free(Time(0)));
        ceiling.give_back(1_000);
        ceiling.spend(Time(5), 1_000);
        assert_eq!(ceiling.free_at(), Time(1_000_000_005));
    }

    #[test]
    fn without_a_rate_all_is_free_and_extremes_do_not_overflow() {
        let mut ceiling = Ceiling::new(None);
        ceiling.spend(Time(5), u64::MAX);
        assert!(ceiling.is_free(Time(5)));
        let mut ceiling = Ceiling::new(Some(0));
        ceiling.spend(Time(5), u64::MAX);
        assert!(!ceiling.is_free(Time(u64::MAX / 8)));
    }
}
