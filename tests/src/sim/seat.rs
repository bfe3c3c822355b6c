//! A core in the simulator: its ports, and when it has a reason to turn.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use forebay_engine::arena::Arena;
use forebay_engine::core::{Budget, Core, CoreConfig, Parts};
use forebay_engine::disk::Disk;
use forebay_engine::ports::{NoDevice, NoTransport, Platform, Solo, Time};
use forebay_engine::ring::{CoreRing, Doorbell};

use super::board::Ticket;
use super::clock::SimClock;
use super::origin::SimOrigin;
use super::rng::SimRng;
use super::scenario::Scenario;
use super::store::OriginStore;
use super::trace::Trace;

/// The ports of a simulated core. There are no disks and no peers in this version of the engine.
#[derive(Debug)]
pub struct SimPlatform;

impl Platform for SimPlatform {
    type Device = NoDevice;
    type Transport = NoTransport;
    type Origin = SimOrigin;
    type Membership = Solo;
    type Clock = SimClock;
    type Rng = SimRng;
    type Reply = Ticket;
}

#[derive(Debug, Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A core with what decides when it turns. It turns only for a reason that a thread in production
/// would wake for, so a wrong `wake_at` shows as a late answer.
pub(super) struct Seat {
    core: Core<SimPlatform>,
    pub(super) origin: SimOrigin,
    doorbell: Arc<Doorbell>,
    bell: Arc<Bell>,
    progressed: bool,
    wake_at: Time,
}

impl Seat {
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.progressed
            || self.bell.0.load(Ordering::Relaxed)
            || self.wake_at <= now
            || self.origin.next_at().is_some_and(|at| at <= now)
    }

    pub(super) fn next_at(&self) -> Option<Time> {
        let wake_at = Some(self.wake_at).filter(|at| *at != Time::NEVER);
        [wake_at, self.origin.next_at()].into_iter().flatten().min()
    }

    /// One turn, as a thread in production would take it.
    pub(super) fn turn(&mut self, budget: Budget) {
        self.bell.0.store(false, Ordering::Relaxed);
        self.doorbell.announce_awake();
        let turn = self.core.turn(budget);
        self.progressed = turn.progressed;
        self.wake_at = turn.wake_at;
        if !turn.progressed {
            self.doorbell.announce_sleep();
        }
    }
}

/// Core number `core` of `scenario`, and its ring.
pub(super) fn seat(
    core: usize,
    scenario: &Scenario,
    clock: &SimClock,
    trace: &Trace,
    store: &Rc<RefCell<OriginStore>>,
) -> io::Result<(Seat, Arc<CoreRing<Ticket>>)> {
    let seed = scenario.seed;
    let bell: Arc<Bell> = Arc::default();
    let doorbell = Doorbell::new(Waker::from(bell.clone()));
    doorbell.announce_sleep();
    let ring = CoreRing::new(doorbell.clone());
    let profile = scenario.origin.clone();
    let origin = SimOrigin::new(
        core,
        seed,
        clock.clone(),
        profile,
        store.clone(),
        trace.clone(),
    );
    let parts = Parts::<SimPlatform> {
        disk: Disk::absent(),
        transport: NoTransport::default(),
        origin: origin.clone(),
        membership: Solo,
        clock: clock.clone(),
        rng: SimRng::component(seed, "core", core as u64),
        arena: Arena::new(scenario.arena_bytes)?,
        ring: ring.clone(),
    };
    let config = CoreConfig {
        core,
        cores: scenario.cores,
        io_timeout: scenario.io_timeout,
    };
    let core = Core::new(parts, config);
    Ok((
        Seat {
            core,
            origin,
            doorbell,
            bell,
            progressed: false,
            wake_at: Time::NEVER,
        },
        ring,
    ))
}
