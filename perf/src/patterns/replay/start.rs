//! When a replay begins, and how its readers wait for their moments.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::set_current_timer_slack;

use super::{LOOK, lock};
use crate::pace::SPIN;

/// Time counts only when all are there.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// How many are there; when it begins.
    state: Mutex<(usize, Option<Instant>)>,
    moved: Condvar,
}

impl Gate {
    /// One more is there.
    pub(super) fn ready(&self) {
        lock(&self.state).0 += 1;
        self.moved.notify_all();
    }

    /// When so many are there: it begins `lead` later.
    ///
    /// # Errors
    /// What `look`, which is asked now and then, says.
    pub(super) fn open(
        &self,
        count: usize,
        lead: Duration,
        look: impl Fn() -> Result<()>,
    ) -> Result<Instant> {
        let mut state = lock(&self.state);
        while state.0 < count {
            look()?;
            let waited = self.moved.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        let start = Instant::now() + lead;
        state.1 = Some(start);
        self.moved.notify_all();
        Ok(start)
    }

    /// When it begins, once that is known.
    ///
    /// # Errors
    /// As [`Gate::open`].
    pub(super) fn wait(&self, look: impl Fn() -> Result<()>) -> Result<Instant> {
        let mut state = lock(&self.state);
        loop {
            if let Some(start) = state.1 {
                return Ok(start);
            }
            look()?;
            let waited = self.moved.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

/// Who waits for a moment looks at the clock for the last bit: sleeping is not that exact. So many at a time that others have
/// processors left.
#[derive(Debug)]
pub(super) struct Spinners {
    most: usize,
    now: AtomicUsize,
}

impl Default for Spinners {
    fn default() -> Spinners {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Spinners {
            most: (processors / 2).max(1),
            now: AtomicUsize::new(0),
        }
    }
}

impl Spinners {
    /// Sleeps for `left`, for `most` at once.
    pub(super) fn sleep(&self, left: Duration, most: Duration) {
        let moment = Instant::now() + left;
        // Who may not spin is woken by the kernel's timer alone: as exactly as it can.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        thread::sleep(left.saturating_sub(SPIN).min(most));
        if left > most {
            return;
        }
        if self.now.fetch_add(1, Relaxed) < self.most {
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
        } else {
            thread::sleep(moment.saturating_duration_since(Instant::now()));
        }
        self.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_from_when_the_last_one_is_there() -> Result<()> {
        let gate = Gate::default();
        let lead = Duration::from_millis(1);
        thread::scope(|scope| {
            let running: Vec<_> = (0..4u64)
                .map(|n| {
                    let gate = &gate;
                    scope.spawn(move || {
                        thread::sleep(Duration::from_millis(5 * n));
                        let there = Instant::now();
                        gate.ready();
                        (there, gate.wait(|| Ok(())))
                    })
                })
                .collect();
            let start = gate.open(4, lead, || Ok(()))?;
            for one in running {
                let (there, begins) = one.join().expect("no panic");
                assert_eq!(begins?, start);
                assert!(there + lead <= start);
            }
            Ok(())
        })
    }

    #[test]
    fn who_waits_ends_when_another_fails() {
        let gate = Gate::default();
        let failed = || anyhow::bail!("failed");
        assert!(gate.open(1, Duration::ZERO, failed).is_err());
        assert!(gate.wait(failed).is_err());
    }

    /// The best tenth: the machine may be busy, and then wakes who sleeps late.
    #[test]
    fn a_moment_is_met_more_exactly_than_by_sleeping() {
        let spinners = Spinners::default();
        let mut late: Vec<Duration> = (0..100)
            .map(|_| {
                let moment = Instant::now() + Duration::from_millis(1);
                spinners.sleep(Duration::from_millis(1), LOOK);
                moment.elapsed()
            })
            .collect();
        late.sort_unstable();
        assert!(late[10] < Duration::from_micros(20), "{late:?}");
        assert_eq!(spinners.now.load(Relaxed), 0);
    }
}
