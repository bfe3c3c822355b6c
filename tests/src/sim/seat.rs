//! A core in the simulator: its ports, and when it has a reason to turn.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use forebay_engine::arena::Arena;
use forebay_engine::core::{Budget, Core, CoreConfig, Parts};
use forebay_engine::disk::{DeviceSeat, DeviceShared, Disk, DiskConfig};
use forebay_engine::limits::DEVICE_READ_MS_MAX;
use forebay_engine::ports::{PeerCore, PeerId, Platform, Time};
use forebay_engine::ring::{CoreRing, Doorbell};
use forebay_engine::stats::CoreStats;

use super::audit::ATTR_TTL;
use super::bay::Bay;
use super::board::Ticket;
use super::clock::SimClock;
use super::device::SimDevice;
use super::network::{SimNetwork, SimTransport};
use super::origin::SimOrigin;
use super::rng::SimRng;
use super::roster::{SimMembership, peer_of};
use super::scenario::{NodePlan, Scenario};
use super::store::OriginStore;
use super::trace::Trace;

/// The ports of a simulated core.
#[derive(Debug)]
pub struct SimPlatform;

impl Platform for SimPlatform {
    type Device = SimDevice;
    type Transport = SimTransport;
    type Origin = SimOrigin;
    type Membership = SimMembership;
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
    pub(super) transport: SimTransport,
    pub(super) membership: SimMembership,
    devices: Vec<SimDevice>,
    doorbell: Arc<Doorbell>,
    bell: Arc<Bell>,
    progressed: bool,
    wake_at: Time,
}

impl Seat {
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.progressed
            || self.bell.0.load(Ordering::Relaxed)
            || self.transport.is_ready()
            || self.membership.is_ready()
            || self.next_at().is_some_and(|at| at <= now)
    }

    pub(super) fn next_at(&self) -> Option<Time> {
        let wake_at = Some(self.wake_at).filter(|at| *at != Time::NEVER);
        let devices = self.devices.iter().map(SimDevice::next_at);
        let all = devices.chain([wake_at, self.origin.next_at()]);
        all.flatten().min()
    }

    /// Whether the core may be dropped.
    pub(super) fn is_quiet(&self) -> bool {
        // A retired device still has to give buffers back.
        let lent: usize = self.devices.iter().map(SimDevice::under_way).sum();
        self.core.is_quiet() && self.origin.under_way() + lent + self.transport.under_way() == 0
    }

    /// The core's counters.
    pub(super) fn stats(&self) -> CoreStats {
        self.core.stats()
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

/// What all cores of one process have in common.
pub(super) struct Process<'a> {
    pub scenario: &'a Scenario,
    pub plan: &'a NodePlan,
    pub clock: &'a SimClock,
    pub trace: &'a Trace,
    pub store: &'a Rc<RefCell<OriginStore>>,
    pub network: &'a SimNetwork,
    pub bays: &'a [Bay],
    pub shared: &'a [Arc<DeviceShared>],
    pub cores: usize,
    pub node: usize,
    /// Number of the process on this node, from 0.
    pub life: u64,
}

/// So many numbers of cores are one node's, see [`Process::number`].
pub(super) const CORE_NUMBERS_PER_NODE: usize = 1_000_000;

impl Process<'_> {
    /// Numbers the components of one core, different in each life.
    fn number(&self, core: usize) -> u64 {
        (self.node * CORE_NUMBERS_PER_NODE) as u64 + self.life * 1_000 + core as u64
    }

    fn devices(&self, core: usize) -> Vec<SimDevice> {
        let profile = &self.plan.disks;
        let device = |(number, bay): (u64, &Bay)| {
            let number = self.number(core) * 10 + number;
            let seed = SimRng::component(self.scenario.seed, "queue pair", number).bits();
            let profile = bay.profile(profile.latency, profile.queue_depth, &profile.faults);
            SimDevice::new(bay.media.clone(), profile, self.clock.clone(), seed)
        };
        (0..).zip(self.bays).map(device).collect()
    }

    fn disk(&self, core: usize, devices: &[SimDevice]) -> Disk<SimDevice> {
        let seats = devices
            .iter()
            .zip(self.shared)
            .map(|(device, shared)| DeviceSeat {
                device: device.clone(),
                shared: shared.clone(),
            });
        let config = DiskConfig {
            core,
            cores: self.cores,
            entries_max: self.plan.disks.entries_max,
            tables_bytes_max: 128 << 10,
            write_bytes_max: self.plan.arena_bytes / 4,
            // As far apart as processes are by the clock.
            incarnation: (self.life + 1) << 32,
            read_timeout: Duration::from_millis(DEVICE_READ_MS_MAX),
            verify: true,
        };
        Disk::new(seats.collect(), config)
    }
}

/// Core number `core` of a process, and its ring.
pub(super) fn seat(
    core: usize,
    process: &Process<'_>,
) -> io::Result<(Seat, Arc<CoreRing<Ticket>>)> {
    let Process {
        scenario,
        clock,
        trace,
        store,
        ..
    } = process;
    let seed = scenario.seed;
    let bell: Arc<Bell> = Arc::default();
    let doorbell = Doorbell::new(Waker::from(bell.clone()));
    doorbell.announce_sleep();
    let ring = CoreRing::new(doorbell.clone());
    let origin = SimOrigin::new(
        process.number(core) as usize,
        seed,
        (*clock).clone(),
        scenario.origin.clone(),
        (*store).clone(),
        (*trace).clone(),
    );
    let devices = process.devices(core);
    let me = match scenario.group {
        Some(_) => peer_of(process.node),
        None => PeerId(0),
    };
    let transport = process.network.join(PeerCore {
        peer: me,
        core: core as u16,
    });
    let membership = SimMembership::default();
    let parts = Parts::<SimPlatform> {
        disk: process.disk(core, &devices),
        transport: transport.clone(),
        origin: origin.clone(),
        membership: membership.clone(),
        clock: (*clock).clone(),
        rng: SimRng::component(seed, "core", process.number(core)),
        arena: Arena::new(process.plan.arena_bytes)?,
        ring: ring.clone(),
    };
    let config = CoreConfig {
        core,
        cores: process.cores,
        io_timeout: scenario.io_timeout,
        me,
        keep_copies: scenario
            .group
            .as_ref()
            .is_some_and(|group| group.keep_copies),
        attr_ttl: ATTR_TTL,
        stale_max: Duration::MAX,
        negative_ttl: ATTR_TTL,
        endpoint: None,
        origin_limit: None,
        peer_limit: None,
    };
    let core = Core::new(parts, config);
    Ok((
        Seat {
            core,
            origin,
            transport,
            membership,
            devices,
            doorbell,
            bell,
            // A disk tier begins to recover with the first turn.
            progressed: !process.bays.is_empty(),
            wake_at: Time::NEVER,
        },
        ring,
    ))
}
