//! How work reaches a core: one bounded ring, and a doorbell that wakes the core when it sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use crossbeam_queue::ArrayQueue;

use crate::client::Request;
use crate::limits::RING_ENTRIES;
use crate::ports::Full;

/// Wakes a core that sleeps; costs a fence and a load when it does not.
///
/// The sleeper calls [`Doorbell::announce_sleep`], looks for work once more, and only then waits.
/// Whoever brings work makes it visible first and rings afterwards. Both sides have a full fence
/// between their two steps, so one of them sees the other's: no wake-up is lost.
#[derive(Debug)]
pub struct Doorbell {
    sleeping: AtomicBool,
    waker: Waker,
}

impl Doorbell {
    /// A doorbell that wakes by `waker` (in production: a thread's unpark or an eventfd).
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            sleeping: AtomicBool::new(false),
            waker,
        })
    }

    /// Tells the core that work is there. Call it after the work is visible.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.waker.wake_by_ref();
        }
    }

    /// The core is about to sleep. It must look for work once more after this call.
    pub fn announce_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether the core is about to sleep, or sleeps. For adapters on the core's own thread: what they look at now is
    /// looked at for the last time, and something must wake the core for what comes later.
    pub fn is_asleep(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    /// The core is awake again, or found work instead of sleeping.
    pub fn announce_awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

/// The request ring of one core. Any front-end thread pushes, the core pops.
#[derive(Debug)]
pub struct CoreRing<R> {
    queue: ArrayQueue<Request<R>>,
    doorbell: Arc<Doorbell>,
}

impl<R> CoreRing<R> {
    /// An empty ring of [`RING_ENTRIES`].
    pub fn new(doorbell: Arc<Doorbell>) -> Arc<Self> {
        Arc::new(Self {
            queue: ArrayQueue::new(RING_ENTRIES),
            doorbell,
        })
    }

    /// Hands a request over and wakes the core.
    ///
    /// # Errors
    /// [`Full`] with the request, untouched.
    pub fn push(&self, request: Request<R>) -> Result<(), Full<Request<R>>> {
        self.queue.push(request).map_err(Full)?;
        self.doorbell.ring();
        Ok(())
    }

    /// The oldest request.
    pub fn pop(&self) -> Option<Request<R>> {
        self.queue.pop()
    }

    /// Whether a pop would find nothing.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What wakes the core; adapters that complete on other threads ring it too.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, mpsc};
    use std::task::{Wake, Waker};
    use std::thread;
    use std::time::Duration;

    use super::Doorbell;

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// A sleeper that follows the protocol sees every piece of work; a lost wake-up would let it
    /// sleep through the time limit.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u64 = 20_000;
        let work = Arc::new(AtomicU64::new(0));
        let (done, seen) = mpsc::channel();
        let (hand_over, doorbell) = mpsc::channel();
        let counter = work.clone();
        thread::spawn(move || {
            let bell = Doorbell::new(Waker::from(Arc::new(Unpark(thread::current()))));
            hand_over.send(bell.clone()).unwrap();
            let mut taken = 0;
            while taken < ROUNDS {
                bell.announce_sleep();
                while counter.load(Ordering::Relaxed) == taken {
                    thread::park();
                    bell.announce_sleep();
                }
                bell.announce_awake();
                taken += 1;
                done.send(taken).unwrap();
            }
        });
        let bell: Arc<Doorbell> = doorbell.recv().unwrap();
        for round in 1..=ROUNDS {
            work.store(round, Ordering::Relaxed);
            bell.ring();
            assert_eq!(
                seen.recv_timeout(Duration::from_secs(20)),
                Ok(round),
                "the sleeper woke"
            );
        }
    }
}
