//! How long dropped rings wait for what is under way: a thread that drops several, one after the other, waits for all
//! of them together no longer than for one.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long dropped rings wait for what is under way, before they leak the buffers: all that one thread drops together.
pub const DROP_WAIT: Duration = Duration::from_secs(5);
/// A ring that is dropped when that time is up waits for so long: most operations end when they are cancelled.
pub const DROP_WAIT_MIN: Duration = Duration::from_millis(20);
/// Rings that are dropped within so long of each other are dropped together.
const TOGETHER: Duration = Duration::from_secs(1);

thread_local! {
    static LAST: Cell<Option<Wait>> = const { Cell::new(None) };
}

/// A wait of this thread.
#[derive(Clone, Copy, Debug)]
struct Wait {
    until: Instant,
    ended: Instant,
}

/// Has `wait` wait until when it is told; what it gives.
pub(crate) fn wait_with(wait: impl FnOnce(Instant) -> bool) -> bool {
    let until = until(LAST.get(), Instant::now());
    let all = wait(until);
    let ended = Instant::now();
    LAST.set(Some(Wait { until, ended }));
    all
}

fn until(last: Option<Wait>, now: Instant) -> Instant {
    match last {
        Some(last) if now.saturating_duration_since(last.ended) <= TOGETHER => {
            last.until.max(now + DROP_WAIT_MIN)
        }
        _ => now + DROP_WAIT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_together_waits_together_and_the_next_time_anew() {
        let start = Instant::now();
        let first = until(None, start);
        assert_eq!(first, start + DROP_WAIT);
        // It hung to the end; so do sixty more.
        let (mut now, mut last) = (first, first);
        for _ in 0..60 {
            let wait = Wait {
                until: last,
                ended: now,
            };
            last = until(Some(wait), now);
            assert_eq!(last, now + DROP_WAIT_MIN);
            now = last;
        }
        assert!(now < start + DROP_WAIT + Duration::from_secs(2));
        // One that gave everything back at once leaves the next all the time.
        let wait = Wait {
            until: first,
            ended: start,
        };
        assert_eq!(until(Some(wait), start), first);
        let later = now + Duration::from_secs(60);
        assert_eq!(until(Some(wait), later), later + DROP_WAIT);
    }
}
