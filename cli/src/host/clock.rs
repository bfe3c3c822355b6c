//! The process's clock.

use std::time::{Duration, Instant};

use forebay_engine::ports::{Clock, Time};

/// What the clock shows when it starts. An hour before now is a time even in the process's first hour: a node that has
/// just started says of what others remember how old it may be, and how old it was.
const AT_START: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// CLOCK_MONOTONIC, counted from a start that all copies of one clock share, which is ten years.
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
        // 2^64 ns are 584 years of uptime.
        Time((AT_START + self.start.elapsed()).as_nanos() as u64)
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
        assert!(
            first.since(Time(0)) >= AT_START,
            "there is a time before the start"
        );
    }
}
