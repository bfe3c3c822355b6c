//! Whether a controller and its namespaces are still what was opened, for all threads; and whom to wake when they are not.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use crate::error::{Change, Loss};

/// Poison means that a thread panicked between two plain steps, after which the data is whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a closed gate is tried before the operation waits for the core's next look: some microseconds, which is what
/// a poll of an admin queue takes.
const GATE_TRIES: u32 = 400;

/// What a queue pair passes with each operation, and what is closed while an admin queue is polled: then SPDK may exchange
/// what it knows of a namespace, and would compute the length of a transfer with sectors of another size.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<()>);

impl Gate {
    /// None while it is closed.
    pub(crate) fn pass(&self) -> Option<MutexGuard<'_, ()>> {
        for _ in 0..GATE_TRIES {
            match self.0.try_lock() {
                Ok(passed) => return Some(passed),
                Err(TryLockError::Poisoned(passed)) => return Some(passed.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }
}

/// Why something is lost, once it is.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    loss: OnceLock<Loss>,
    wakers: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Lost {
    /// The first is kept.
    pub(crate) fn lose(&self, loss: Loss) {
        // The list is held, so that who comes to it sees the loss, or is woken.
        let wakers = lock(&self.wakers);
        if self.loss.set(loss).is_err() {
            return;
        }
        let there = wakers.iter().filter_map(Weak::upgrade);
        there.for_each(|eventfd| signal(&eventfd));
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Signals there when it is lost, as long as somebody has it; at once when it is already.
    pub(crate) fn wake(&self, eventfd: &Arc<OwnedFd>) {
        let mut wakers = lock(&self.wakers);
        if self.loss().is_some() {
            signal(eventfd);
        }
        wakers.retain(|one| one.strong_count() > 0);
        wakers.push(Arc::downgrade(eventfd));
    }
}

fn signal(eventfd: &OwnedFd) {
    // It fails only where the counter is full, and then the sleeper is awake.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// What is watched of a controller.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) lost: Lost,
    timeout: Duration,
    gates: Mutex<Vec<Weak<Gate>>>,
    /// The controller's last word on its health.
    health: Mutex<Option<[u8; 512]>>,
    namespaces: Mutex<Vec<Weak<dyn Observed>>>,
    /// Somebody waits for the device to reach memory no more.
    disarm: AtomicBool,
    /// It does not.
    disarmed: AtomicBool,
}

/// Shows that nobody polls the controller's admin queue or submits: SPDK has no lock of its own around what it knows of namespaces,
/// and exchanges that within such a poll. Only [`Watch::around`] makes one.
#[derive(Debug)]
pub(crate) struct Still(());

/// A namespace that is open.
pub(crate) trait Observed: std::fmt::Debug + Send + Sync {
    /// What it has become; none while it is what was opened.
    fn change(&self, still: &Still) -> Option<Change>;
    /// Where its loss is told.
    fn lost(&self) -> &Lost;
}

impl Watch {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            lost: Lost::default(),
            timeout,
            gates: Mutex::default(),
            health: Mutex::default(),
            namespaces: Mutex::default(),
            disarm: AtomicBool::new(false),
            disarmed: AtomicBool::new(false),
        }
    }

    /// Has the controller's thread see to it that the device reaches memory no more.
    pub(crate) fn want_disarmed(&self) {
        self.disarm.store(true, Ordering::Release);
    }

    /// Whether that is wanted, and not so yet: of itself for a device that hangs or has failed, since what was given to it would never
    /// come back otherwise.
    pub(crate) fn wants_disarmed(&self) -> bool {
        let hangs = matches!(self.lost.loss(), Some(Loss::TimedOut(_) | Loss::Failed));
        (hangs || self.disarm.load(Ordering::Acquire)) && !self.is_disarmed()
    }

    /// It reaches memory no more.
    pub(crate) fn set_disarmed(&self) {
        self.disarmed.store(true, Ordering::Release);
    }

    pub(crate) fn is_disarmed(&self) -> bool {
        self.disarmed.load(Ordering::Acquire)
    }

    /// A command that takes longer means that the controller hangs.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The log page that the controller gave last.
    pub(crate) fn health(&self) -> Option<[u8; 512]> {
        *lock(&self.health)
    }

    pub(crate) fn set_health(&self, page: [u8; 512]) {
        *lock(&self.health) = Some(page);
    }

    /// A gate for a queue pair on this controller. Waits while they are closed.
    pub(crate) fn gate(&self) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        let mut gates = lock(&self.gates);
        gates.retain(|one| one.strong_count() > 0);
        gates.push(Arc::downgrade(&gate));
        gate
    }

    /// Compares a namespace from now on.
    pub(crate) fn observe(&self, namespace: Weak<dyn Observed>) {
        let mut namespaces = lock(&self.namespaces);
        namespaces.retain(|one| one.strong_count() > 0);
        namespaces.push(namespace);
    }

    /// Runs `poll`, in which SPDK may exchange what it knows of namespaces, while no queue pair submits and nobody else is in
    /// here, and compares them before any may again.
    pub(crate) fn around<T>(&self, poll: impl FnOnce(&Still) -> T) -> T {
        let gates = lock(&self.gates);
        let closed: Vec<Arc<Gate>> = gates.iter().filter_map(Weak::upgrade).collect();
        let _closed: Vec<_> = closed.iter().map(|gate| lock(&gate.0)).collect();
        let still = Still(());
        let outcome = poll(&still);
        self.compare(&still);
        outcome
    }

    fn compare(&self, still: &Still) {
        let namespaces: Vec<_> = {
            let known = lock(&self.namespaces);
            known.iter().filter_map(Weak::upgrade).collect()
        };
        for namespace in &namespaces {
            if namespace.lost().loss().is_none()
                && let Some(change) = namespace.change(still)
            {
                namespace.lost().lose(Loss::Changed(change));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Fake {
        changed: AtomicBool,
        lost: Lost,
    }

    impl Observed for Fake {
        fn change(&self, _: &Still) -> Option<Change> {
            self.changed
                .load(Ordering::Relaxed)
                .then_some(Change::Sectors)
        }

        fn lost(&self) -> &Lost {
            &self.lost
        }
    }

    #[test]
    fn nobody_submits_between_a_change_and_its_being_seen() {
        let watch = Watch::new(Duration::from_secs(1));
        let namespace = Arc::new(Fake::default());
        let as_observed: Arc<dyn Observed> = namespace.clone();
        watch.observe(Arc::downgrade(&as_observed));
        let gate = watch.gate();
        assert!(gate.pass().is_some());
        watch.around(|_| {
            assert!(gate.pass().is_none(), "submitted while it may change");
            namespace.changed.store(true, Ordering::Relaxed);
        });
        let passed = gate.pass();
        assert!(passed.is_some());
        assert_eq!(namespace.lost.loss(), Some(Loss::Changed(Change::Sectors)));
        assert_eq!(watch.lost.loss(), None, "the controller is not lost");
    }

    #[test]
    fn who_is_told_of_a_loss_too_late_is_woken_at_once() {
        let lost = Lost::default();
        let event = || {
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            Arc::new(rustix::event::eventfd(0, flags).unwrap())
        };
        let woken = |event: &OwnedFd| rustix::io::read(event, &mut [0; 8]).is_ok();
        let (before, after) = (event(), event());
        lost.wake(&before);
        assert!(!woken(&before));
        lost.lose(Loss::Removed);
        lost.lose(Loss::Failed);
        lost.wake(&after);
        assert!(woken(&before) && woken(&after));
        assert_eq!(lost.loss(), Some(Loss::Removed));
    }

    #[test]
    fn descriptors_of_queue_pairs_that_are_gone_are_let_go() {
        let lost = Lost::default();
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        for _ in 0..100 {
            lost.wake(&Arc::new(rustix::event::eventfd(0, flags).unwrap()));
        }
        assert!(lock(&lost.wakers).len() <= 1);
    }

    #[test]
    fn two_never_look_at_namespaces_at_once() {
        let watch = Watch::new(Duration::from_secs(1));
        let within = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        watch.around(|_| {
                            assert!(!within.swap(true, Ordering::AcqRel));
                            std::thread::yield_now();
                            within.store(false, Ordering::Release);
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn a_device_that_hangs_is_disarmed_and_one_that_is_pulled_only_when_asked() {
        let watch = || Watch::new(Duration::from_secs(1));
        let (hangs, pulled) = (watch(), watch());
        assert!(!hangs.wants_disarmed());
        hangs.lost.lose(Loss::TimedOut(Duration::from_secs(1)));
        assert!(hangs.wants_disarmed());
        hangs.set_disarmed();
        assert!(hangs.is_disarmed() && !hangs.wants_disarmed());
        pulled.lost.lose(Loss::Removed);
        assert!(!pulled.wants_disarmed());
        pulled.want_disarmed();
        assert!(pulled.wants_disarmed());
    }
}
