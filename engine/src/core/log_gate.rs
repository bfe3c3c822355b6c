//! At most one line per kind and span in the log, with the number of those left out: a job that
//! repeats a failing read must not fill a disk.

use std::time::Duration;

use crate::limits::LOG_EVERY_S;
use crate::ports::Time;

#[derive(Debug, Default)]
pub(super) struct LogGate {
    opens_at: Time,
    left_out: u64,
}

impl LogGate {
    /// `Some(n)` when a line may be written now, `n` lines having been left out before it.
    pub fn open(&mut self, now: Time) -> Option<u64> {
        if now < self.opens_at {
            self.left_out += 1;
            return None;
        }
        self.opens_at = now + Duration::from_secs(LOG_EVERY_S);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_span_and_the_rest_counted() {
        let mut gate = LogGate::default();
        let second = |n| Time(n * 1_000_000_000);
        assert_eq!(gate.open(second(0)), Some(0));
        assert_eq!([gate.open(second(1)), gate.open(second(9))], [None, None]);
        assert_eq!(gate.open(second(LOG_EVERY_S)), Some(2));
        assert_eq!(gate.open(second(LOG_EVERY_S + 1)), None);
    }
}
