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
