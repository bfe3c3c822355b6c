//! How a core's thread waits: one wait for everything that may wake it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};

/// Where a core's thread sleeps.
///
/// The seam for adapters that signal through a file descriptor of their own (an io_uring ring, a
/// verbs completion channel): whatever can wake a core is part of the same one wait.
pub trait Park {
    /// Ends the present `park`, or the next one if none is under way. Usable from any thread.
    fn waker(&self) -> Waker;

    /// Sleeps until the waker is used, a watched descriptor is readable or `timeout` has passed;
    /// without a timeout for as long as it takes. May return early.
    fn park(&mut self, timeout: Option<Duration>);
}

/// Waits on an eventfd and on any further descriptors by one `ppoll`.
#[derive(Debug)]
pub struct EventParker {
    event: Arc<Event>,
    watched: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Event(OwnedFd);

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The counter is drained by every park, so it never comes near its limit.
        while write(&self.0, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

impl EventParker {
    /// A parker that nothing but its waker wakes.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            event: Arc::new(Event(event)),
            watched: Vec::new(),
        })
    }

    /// What the waker signals at. Adapters whose completions the kernel signals at an eventfd use the same
    /// one: a park drains it, and waits for one descriptor.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.0.as_fd()
    }

    /// Also wakes when `fd` is readable. Its owner must drain it before the next park.
    pub fn watch(&mut self, fd: OwnedFd) {
        self.watched.push(fd);
    }
}

impl Park for EventParker {
    fn waker(&self) -> Waker {
        Waker::from(self.event.clone())
    }

    fn park(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.map(|span| Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        });
        let event = PollFd::new(&self.event.0, PollFlags::IN);
        // The common cases allocate nothing: no other descriptor, that of the way to peers by TCP, and one by RDMA too.
        let woken = match self.watched.as_slice() {
            [] => wait(&mut [event], timeout.as_ref()),
            [one] => wait(
                &mut [event, PollFd::new(one, PollFlags::IN)],
                timeout.as_ref(),
            ),
            [one, two] => wait(
                &mut [
                    event,
                    PollFd::new(one, PollFlags::IN),
                    PollFd::new(two, PollFlags::IN),
                ],
                timeout.as_ref(),
            ),
            watched => {
                let watched = watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN));
                let mut fds: Vec<PollFd<'_>> = std::iter::once(event).chain(watched).collect();
                wait(&mut fds, timeout.as_ref())
            }
        };
        if woken {
            let mut count = [0u8; 8];
            let _ = read(&self.event.0, &mut count);
        }
    }
}

/// Waits for any; true when the first is ready.
fn wait(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> bool {
    poll(fds, timeout).is_ok() && !fds[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use forebay_engine::ring::Doorbell;

    use super::*;

    #[test]
    fn a_timeout_ends_the_wait_and_a_wake_before_it_is_kept() {
        let mut parker = EventParker::new().unwrap();
        let start = Instant::now();
        parker.park(Some(Duration::from_millis(20)));
        assert!(start.elapsed() >= Duration::from_millis(20));

        parker.waker().wake();
        parker.waker().wake();
        let start = Instant::now();
        parker.park(Some(Duration::from_secs(10)));
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "the early wake was lost"
        );
        let start = Instant::now();
        parker.park(Some(Duration::from_millis(20)));
        assert!(
            start.elapsed() >= Duration::from_millis(20),
            "both wakes were drained at once"
        );
    }

    #[test]
    fn a_watched_descriptor_wakes_too() {
        let mut parker = EventParker::new().unwrap();
        for initial in [1, 0, 0] {
            parker.watch(eventfd(initial, EventfdFlags::CLOEXEC).unwrap());
            let start = Instant::now();
            parker.park(Some(Duration::from_secs(10)));
            assert!(start.elapsed() < Duration::from_secs(5));
        }
    }

    /// The sleeper's protocol against a producer that makes work visible and rings: a lost
    /// wake-up shows as a park that runs into its long timeout.
    #[test]
    fn no_wake_up_is_lost_under_stress() {
        const ITEMS: u64 = 100_000;
        let mut parker = EventParker::new().unwrap();
        let doorbell = Doorbell::new(parker.waker());
        let produced = Arc::new(AtomicU64::new(0));
        let consumed = Arc::new(AtomicU64::new(0));
        let producer = {
            let (doorbell, produced, consumed) =
                (doorbell.clone(), produced.clone(), consumed.clone());
            std::thread::spawn(move || {
                for n in 1..=ITEMS {
                    produced.store(n, Ordering::Release);
                    doorbell.ring();
                    // Often wait for the consumer, so that it really goes to sleep in between.
                    while n % 3 == 0 && consumed.load(Ordering::Acquire) < n {
                        std::thread::yield_now();
                    }
                }
            })
        };
        let mut longest = Duration::ZERO;
        while consumed.load(Ordering::Relaxed) < ITEMS {
            doorbell.announce_sleep();
            let seen = produced.load(Ordering::Acquire);
            if seen == consumed.load(Ordering::Relaxed) {
                let start = Instant::now();
                parker.park(Some(Duration::from_secs(5)));
                longest = longest.max(start.elapsed());
            }
            doorbell.announce_awake();
            consumed.store(produced.load(Ordering::Acquire), Ordering::Release);
        }
        producer.join().unwrap();
        assert!(
            longest < Duration::from_secs(4),
            "a wake-up was lost: slept {longest:?}"
        );
    }
}
