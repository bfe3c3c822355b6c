//! The process's clock.

use std::time::Instant;

use forebay_engine::ports::{Clock, Time};

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
        // 2^64 ns are 584 years of uptime.
        Time(self.start.elapsed().as_nanos() as u64)
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
    }
}
