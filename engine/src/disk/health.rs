//! A device's fault account.

use std::time::Duration;

use crate::ports::Time;

/// Counts faults and forgives one each time a span has passed: a leaky bucket. A device that fails now
/// and then over months stays; one that fails often in a short time is retired.
#[derive(Debug)]
pub(super) struct Faults {
    max: u32,
    forgive_every: Duration,
    count: u32,
    /// Since when the oldest fault that is not forgiven is held against the device.
    since: Time,
}

impl Faults {
    /// No faults yet; `max` of them are too many. One is forgiven every `forgive_every`, none when that
    /// is zero.
    pub fn new(max: u32, forgive_every: Duration) -> Self {
        Self {
            max,
            forgive_every,
            count: 0,
            since: Time(0),
        }
    }

    /// Books one. True when the device must be retired.
    pub fn fault(&mut self, now: Time) -> bool {
        self.forgive(now);
        if self.count == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(1);
        self.count >= self.max
    }

    /// Faults that are not forgiven yet.
    #[cfg(test)]
    pub fn count(&mut self, now: Time) -> u32 {
        self.forgive(now);
        self.count
    }

    fn forgive(&mut self, now: Time) {
        let each = self.forgive_every.as_nanos();
        let Some(spans) = now.since(self.since).as_nanos().checked_div(each) else {
            return;
        };
        let forgiven = u32::try_from(spans).unwrap_or(u32::MAX).min(self.count);
        self.count -= forgiven;
        self.since = self.since + self.forgive_every.saturating_mul(forgiven);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(0) + Duration::from_secs(seconds)
    }

    #[test]
    fn a_burst_retires_and_single_faults_do_not() {
        let mut faults = Faults::new(4, Duration::from_secs(10));
        let burst: Vec<bool> = (0..4).map(|n| faults.fault(at(100 + n))).collect();
        assert_eq!(burst, [false, false, false, true]);
        let mut faults = Faults::new(4, Duration::from_secs(10));
        assert!((0..1000).all(|n| !faults.fault(at(n * 10))));
        assert_eq!(faults.count(at(9_990)), 1);
    }

    #[test]
    fn one_is_forgiven_each_span_from_the_first_fault_on() {
        let mut faults = Faults::new(64, Duration::from_secs(10));
        for _ in 0..3 {
            faults.fault(at(1000));
        }
        let counts = [1009, 1010, 1019, 1020, 1029, 1030, 5000].map(|now| faults.count(at(now)));
        assert_eq!(counts, [3, 2, 2, 1, 1, 0, 0]);
        faults.fault(at(5001));
        assert_eq!(
            faults.count(at(5010)),
            1,
            "a quiet time is not saved up for later"
        );
    }

    #[test]
    fn faults_faster_than_forgiveness_retire_in_the_end() {
        let mut faults = Faults::new(64, Duration::from_secs(10));
        let retired = (0..1000).find(|n| faults.fault(at(n * 5)));
        assert_eq!(retired, Some(125), "net one in ten seconds");
    }

    #[test]
    fn nothing_is_forgiven_without_a_span_and_time_never_goes_back() {
        let mut faults = Faults::new(2, Duration::ZERO);
        assert!(!faults.fault(at(0)));
        assert!(faults.fault(Time::NEVER));
        let mut faults = Faults::new(3, Duration::from_nanos(1));
        faults.fault(at(7));
        assert_eq!(faults.count(at(6)), 1);
        assert_eq!(faults.count(Time::NEVER), 0);
    }
}
