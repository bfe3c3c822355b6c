//! The loop of one core's thread: turn while there is work, spin briefly, then sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_engine::core::{Budget, Core, Turn};
use forebay_engine::limits::DEVICES_MAX;
use forebay_engine::ports::{Clock, Platform, Time};
use forebay_engine::ring::Doorbell;
use forebay_nvme_uring::{DROP_WAIT, DROP_WAIT_MIN};

use super::cores::Spin;
use super::parker::Park;

/// How long a core that was told to stop may go on in all, while its disks write what was fetched.
pub const STOP_SPAN: Duration = Duration::from_secs(10);
/// How long it may go on without any progress: a disk that hangs keeps it no longer.
pub const STOP_STALL: Duration = Duration::from_secs(3);
/// How long a core's thread may take to end, even if all of its disks hang.
pub const STOP_TIMEOUT: Duration = STOP_SPAN
    .saturating_add(DROP_WAIT)
    .saturating_add(DROP_WAIT_MIN.saturating_mul(DEVICES_MAX as u32))
    .saturating_add(Duration::from_secs(1));
/// The longest sleep of a core that was told to stop.
const STOP_SLEEP: Duration = Duration::from_millis(10);

/// What the loop turns: a [`Core`], or in tests something simpler.
pub trait Turns {
    /// See [`Core::turn`].
    fn turn(&mut self) -> Turn;

    /// See [`Core::is_quiet`].
    fn is_quiet(&self) -> bool;
}

impl<P: Platform> Turns for Core<P> {
    fn turn(&mut self) -> Turn {
        Core::turn(self, Budget::default())
    }

    fn is_quiet(&self) -> bool {
        Core::is_quiet(self)
    }
}

/// What the loop runs on.
#[allow(missing_debug_implementations)]
pub struct Seat<'a> {
    /// Wakes the thread; rung by front ends and adapters.
    pub doorbell: &'a Doorbell,
    /// The core's clock.
    pub clock: &'a dyn Clock,
    /// How long to spin.
    pub spin: Spin,
    /// Set (and the doorbell rung) when the loop shall end. Whatever the core must still answer
    /// has to be told to it before.
    pub stop: &'a AtomicBool,
}

/// Turns `core` until it is told to stop and has nothing left to do: not even on its disks, within
/// [`STOP_SPAN`] and [`STOP_STALL`]. False when something was left.
pub fn run(core: &mut impl Turns, seat: &Seat<'_>, parker: &mut impl Park) -> bool {
    let mut last_progress = seat.clock.now();
    let mut stop_since = None;
    loop {
        // Looked at before the turn: a turn without progress after it has seen all that came
        // before the stop.
        let stopping = seat.stop.load(Ordering::Acquire);
        let turn = core.turn();
        if stopping {
            let now = seat.clock.now();
            let since = *stop_since.get_or_insert_with(|| {
                last_progress = now;
                now
            });
            if turn.progressed {
                last_progress = now;
            } else if core.is_quiet() {
                return true;
            }
            if now.since(since) > STOP_SPAN || now.since(last_progress) > STOP_STALL {
                return false;
            }
            if !turn.progressed {
                parker.park(Some(STOP_SLEEP));
            }
            continue;
        }
        if turn.progressed {
            last_progress = seat.clock.now();
            continue;
        }
        match seat.spin {
            Spin::Forever => std::hint::spin_loop(),
            Spin::For(span) if seat.clock.now().since(last_progress) < span => {
                std::hint::spin_loop()
            }
            Spin::For(_) => {
                if sleep(core, seat, parker) {
                    last_progress = seat.clock.now();
                }
            }
        }
    }
}

/// Announces the sleep, looks once more, and parks if there is still nothing. True when the last
/// look found work.
fn sleep(core: &mut impl Turns, seat: &Seat<'_>, parker: &mut impl Park) -> bool {
    seat.doorbell.announce_sleep();
    let turn = core.turn();
    if !turn.progressed && !seat.stop.load(Ordering::Acquire) {
        parker.park(until(turn.wake_at, seat.clock.now()));
    }
    seat.doorbell.announce_awake();
    turn.progressed
}

fn until(wake_at: Time, now: Time) -> Option<Duration> {
    (wake_at != Time::NEVER).then(|| wake_at.since(now))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use super::super::clock::MonotonicClock;
    use super::super::parker::EventParker;
    use super::*;

    /// Work that arrives by a counter, and a record of what the loop did with it.
    struct Counted {
        /// Turns after the stop until it is quiet.
        restless: u64,
        stop: Arc<AtomicBool>,
        work: Arc<AtomicU64>,
        done: u64,
        turns: u64,
        wake_after: Option<Duration>,
        clock: MonotonicClock,
    }

    impl Turns for Counted {
        fn turn(&mut self) -> Turn {
            self.turns += 1;
            if self.stop.load(Ordering::Acquire) {
                self.restless = self.restless.saturating_sub(1);
            }
            let work = self.work.load(Ordering::Acquire);
            let progressed = work > self.done;
            self.done = work;
            let wake_at = self
                .wake_after
                .map_or(Time::NEVER, |span| self.clock.now() + span);
            Turn {
                progressed,
                wake_at,
            }
        }

        fn is_quiet(&self) -> bool {
            self.restless == 0
        }
    }

    /// Runs the loop while `during` works from outside; returns how it ended.
    fn run_while(
        spin: Spin,
        wake_after: Option<Duration>,
        during: impl FnOnce(&Doorbell, &AtomicU64),
    ) -> Counted {
        let clock = MonotonicClock::start();
        let work = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let mut parker = EventParker::new().unwrap();
        let doorbell = Doorbell::new(parker.waker());
        let thread = {
            let (work, stop, doorbell) = (work.clone(), stop.clone(), doorbell.clone());
            std::thread::spawn(move || {
                let mut core = Counted {
                    restless: 3,
                    stop: stop.clone(),
                    work,
                    done: 0,
                    turns: 0,
                    wake_after,
                    clock,
                };
                let seat = Seat {
                    doorbell: &doorbell,
                    clock: &clock,
                    spin,
                    stop: &stop,
                };
                run(&mut core, &seat, &mut parker);
                core
            })
        };
        during(&doorbell, &work);
        stop.store(true, Ordering::Release);
        doorbell.ring();
        thread.join().unwrap()
    }

    #[test]
    fn an_idle_core_sleeps() {
        let core = run_while(Spin::For(Duration::from_micros(50)), None, |_, _| {
            std::thread::sleep(Duration::from_millis(100));
        });
        // 50 us of spinning at no less than 5 ns a turn, and a few turns around the sleep.
        assert!(core.turns < 20_000, "{} turns in 100 idle ms", core.turns);
    }

    #[test]
    fn a_core_that_may_not_spin_turns_twice_a_wake_up() {
        let started = Instant::now();
        let core = run_while(
            Spin::For(Duration::ZERO),
            Some(Duration::from_millis(10)),
            |_, _| {
                std::thread::sleep(Duration::from_millis(100));
            },
        );
        // A busy machine wakes it late, and stretches the 100 ms: bounds follow what passed.
        let timers = started.elapsed().as_millis() as u64 / 10 + 1;
        assert!(
            (2..6 * timers).contains(&core.turns),
            "{} turns with {timers} timers of 10 ms",
            core.turns
        );
    }

    /// A clock that stands still but for sleeps.
    #[derive(Default)]
    struct Slept(AtomicU64);

    impl Clock for Slept {
        fn now(&self) -> Time {
            Time(self.0.load(Ordering::Relaxed))
        }
    }

    impl Park for &Slept {
        fn waker(&self) -> std::task::Waker {
            std::task::Waker::noop().clone()
        }

        fn park(&mut self, timeout: Option<Duration>) {
            let span = timeout.map_or(0, |span| span.as_nanos() as u64);
            self.0.fetch_add(span, Ordering::Relaxed);
        }
    }

    /// Disks of which something ends so often, so many times.
    struct Writing<'a> {
        clock: &'a Slept,
        every: Duration,
        left: u32,
        next: Time,
    }

    impl Turns for Writing<'_> {
        fn turn(&mut self) -> Turn {
            let progressed = self.left > 0 && self.next <= self.clock.now();
            if progressed {
                self.left -= 1;
                self.next = self.next + self.every;
            }
            Turn {
                progressed,
                wake_at: Time::NEVER,
            }
        }

        fn is_quiet(&self) -> bool {
            self.left == 0
        }
    }

    #[test]
    fn a_stop_waits_for_disks_that_go_on_and_not_for_those_that_hang() {
        let stopped = |every: Duration, left: u32| {
            let clock = Slept::default();
            let mut core = Writing {
                clock: &clock,
                every,
                left,
                next: clock.now() + every,
            };
            let doorbell = Doorbell::new(std::task::Waker::noop().clone());
            let seat = Seat {
                doorbell: &doorbell,
                clock: &clock,
                spin: Spin::Forever,
                stop: &AtomicBool::new(true),
            };
            let quiet = run(&mut core, &seat, &mut &clock);
            (quiet, clock.now().since(Time(0)))
        };
        let second = Duration::from_secs(1);
        // Slow, and done in time: nothing is lost.
        let (quiet, took) = stopped(2 * second, 4);
        assert!(quiet && took >= 8 * second && took < 9 * second, "{took:?}");
        // Hangs.
        let (quiet, took) = stopped(100 * second, 1);
        assert!(
            !quiet && took >= STOP_STALL && took < STOP_STALL + second,
            "{took:?}"
        );
        // Never done.
        let (quiet, took) = stopped(second, 1_000);
        assert!(
            !quiet && took >= STOP_SPAN && took < STOP_SPAN + second,
            "{took:?}"
        );
    }

    #[test]
    fn every_ring_is_answered_and_the_last_work_is_seen_before_the_stop() {
        for spin in [
            Spin::For(Duration::ZERO),
            Spin::For(Duration::from_micros(50)),
            Spin::Forever,
        ] {
            let core = run_while(spin, None, |doorbell, work| {
                for n in 1..=2_000 {
                    work.store(n, Ordering::Release);
                    doorbell.ring();
                    if n % 100 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            assert_eq!(core.done, 2_000);
            assert_eq!(core.restless, 0, "it ended before its disks had settled");
        }
    }
}
