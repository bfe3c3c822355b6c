//! The process's clock.

use std::time::Instant;

use forebay_engine::ports::{Clock, Time};

/// What a clock says when it starts, in nanoseconds: a hundred years. Answers of other members may be older than this
/// process, and a moment before its start must be told from its start.
const START_NS: u64 = 100 * 365 * 24 * 3_600 * 1_000_000_000;

/// CLOCK_MONOTONIC, counted from a start that all copies of one clock share.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Time {
        // 2^64 ns are 584 years.
        Time(START_NS + self.start.elapsed().as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_their_start_and_never_go_back() {
        let clock = MonotonicClock::start();
        let copy = clock;
        let first = clock.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let second = copy.now();
        assert!(second.since(first) >= std::time::Duration::from_millis(2));
        assert!(clock.now() >= second);
        let day = std::time::Duration::from_secs(24 * 3_600);
        assert!(clock.now().since(Time(0)) > 1_000 * day, "there is a past");
    }
}
