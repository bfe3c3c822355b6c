//! A device that takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use forebay_engine::ports::{
    BlockDevice, Clock, DeviceEvent, DeviceGeometry, DeviceOp, Full, Time,
};
use parking_lot::Mutex;

use crate::sim::rng::SimRng;
use crate::sim::schedule::Schedule;

/// Operations whose events are held back at most; more do not fit into the queue.
const HELD_MAX: usize = 256;
/// How often a sleeping core looks at a device that holds events back.
const TICK: Duration = Duration::from_millis(1);

/// How long events are held back after the device below gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// At least so long,
    pub shortest: Duration,
    /// and at most so long,
    pub longest: Duration,
    /// but for so many of 1,000 operations
    pub slow_per_mille: u32,
    /// so many times as long.
    pub slow_factor: u32,
}

impl Delay {
    /// None.
    pub const NONE: Delay = Delay {
        shortest: Duration::ZERO,
        longest: Duration::ZERO,
        slow_per_mille: 0,
        slow_factor: 1,
    };

    /// `usual` for 98 of 100, and a hundred times that for the rest.
    pub fn long_tail(usual: Duration) -> Delay {
        Delay {
            shortest: usual,
            longest: usual,
            slow_per_mille: 20,
            slow_factor: 100,
        }
    }
}

#[derive(Debug)]
struct State {
    delay: Delay,
    hung: bool,
    rng: SimRng,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Events held back now, over all queue pairs.
    held: AtomicUsize,
    slow: AtomicUsize,
}

/// The switches of a [`DelayedDevice`]: of all queue pairs that were made with a clone of them, on any
/// thread.
#[derive(Clone, Debug)]
pub struct Delays(Arc<Shared>);

impl Delays {
    /// None yet; `seed` decides how long each will be.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                delay: Delay::NONE,
                hung: false,
                rng: SimRng::component(seed, "delayed device", 0),
            }),
            held: AtomicUsize::new(0),
            slow: AtomicUsize::new(0),
        }))
    }

    /// The delay of what ends from now on.
    pub fn set(&self, delay: Delay) {
        self.0.state.lock().delay = delay;
    }

    /// Nothing ends any more until [`Delays::release`].
    pub fn hang(&self) {
        self.0.state.lock().hung = true;
    }

    /// Everything that hung may end.
    pub fn release(&self) {
        self.0.state.lock().hung = false;
    }

    /// Events that are held back now.
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Operations so far that took the slow factor's time.
    pub fn slow(&self) -> u64 {
        self.0.slow.load(Ordering::Relaxed) as u64
    }

    /// For real cores, which know nothing of held events and would sleep on: uses `waker` every
    /// millisecond while there are any. Ends when the last clone of these switches is gone.
    pub fn keep_awake(&self, waker: Waker) {
        let shared = Arc::downgrade(&self.0);
        std::thread::spawn(move || {
            while let Some(shared) = shared.upgrade() {
                if shared.held.load(Ordering::Relaxed) > 0 {
                    waker.wake_by_ref();
                }
                drop(shared);
                std::thread::sleep(TICK);
            }
        });
    }

    fn draw(&self) -> Duration {
        let mut state = self.0.state.lock();
        let Delay {
            shortest,
            longest,
            slow_per_mille,
            slow_factor,
        } = state.delay;
        if longest.is_zero() {
            return Duration::ZERO;
        }
        let nanos = |span: Duration| span.as_nanos() as u64;
        let drawn = state
            .rng
            .between(nanos(shortest.min(longest)), nanos(longest));
        let slow = state.rng.chance(slow_per_mille);
        if slow {
            self.0.slow.fetch_add(1, Ordering::Relaxed);
        }
        Duration::from_nanos(drawn) * if slow { slow_factor } else { 1 }
    }
}

/// A queue pair with [`Delays`] over another one.
#[derive(Debug)]
pub struct DelayedDevice<D, C> {
    inner: D,
    clock: C,
    delays: Delays,
    held: Schedule<DeviceEvent>,
    held_count: usize,
}

impl<D: BlockDevice, C: Clock> DelayedDevice<D, C> {
    /// Over `inner`. Without a delay it does what `inner` does.
    pub fn new(inner: D, clock: C, delays: Delays) -> Self {
        Self {
            inner,
            clock,
            delays,
            held: Schedule::default(),
            held_count: 0,
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// When a held event may end; none while there is none, or the device hangs.
    pub fn next_at(&self) -> Option<Time> {
        let hung = self.delays.0.state.lock().hung;
        self.held.next_at().filter(|_| !hung)
    }
}

impl<D: BlockDevice, C: Clock> BlockDevice for DelayedDevice<D, C> {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        if self.held_count >= HELD_MAX {
            return Err(Full(op));
        }
        self.inner.submit(op)
    }

    fn commit(&mut self) {
        self.inner.commit();
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        let now = self.clock.now();
        while let Some(event) = self.inner.poll() {
            self.held.push(now + self.delays.draw(), event);
            self.held_count += 1;
            self.delays.0.held.fetch_add(1, Ordering::Relaxed);
        }
        if self.delays.0.state.lock().hung {
            return None;
        }
        let (_, event) = self.held.pop_due(now)?;
        self.held_count -= 1;
        self.delays.0.held.fetch_sub(1, Ordering::Relaxed);
        Some(event)
    }

    fn nap(&mut self) -> Option<Duration> {
        self.inner.nap()
    }

    fn loss(&self) -> Option<String> {
        self.inner.loss()
    }
}

impl<D, C> Drop for DelayedDevice<D, C> {
    fn drop(&mut self) {
        self.delays
            .0
            .held
            .fetch_sub(self.held_count, Ordering::Relaxed);
    }
}
