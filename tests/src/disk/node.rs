//! One process with a disk tier and nothing else: a `Disk` for each core on queue pairs over simulated
//! media, buffers, and the loop that moves time when nothing else can.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_engine::arena::{Arena, Denied, Frozen, Lease, Share};
use forebay_engine::disk::{
    Buffers, DeviceSeat, DeviceShared, Disk, DiskConfig, DiskEvent, DiskRead, DiskStats, Fill,
};
use forebay_engine::identity::{BlockId, Slot};
use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::{Clock, Time};

use super::universe::Universe;
use crate::sim::bay::Bay;
use crate::sim::clock::SimClock;
use crate::sim::device::{DeviceFaults, SimDevice};
use crate::sim::rng::SimRng;

/// Turns that the cores may take together before time must move.
const TURNS_AT_ONE_TIME_MAX: u64 = 20_000;

/// What a process is started with.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Engine cores.
    pub cores: usize,
    /// Memory of each core.
    pub arena_bytes: usize,
    /// Entries that each core's index may hold.
    pub entries_max: usize,
    /// Memory of each core for checksum tables.
    pub tables_bytes_max: usize,
    /// Bytes that writes may hold, for each core.
    pub write_bytes_max: usize,
    /// A read that takes longer is given up.
    pub read_timeout: Duration,
    /// Time for one operation of a device: from, to.
    pub latency: (Duration, Duration),
    /// Operations that a queue pair takes.
    pub queue_depth: usize,
    /// What goes wrong with devices.
    pub faults: DeviceFaults,
    /// How often there is no buffer, per mille.
    pub denied: u32,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            cores: 1,
            arena_bytes: 32 << 20,
            entries_max: 20_000,
            tables_bytes_max: 64 << 10,
            write_bytes_max: 8 << 20,
            read_timeout: Duration::from_secs(1),
            latency: (Duration::from_micros(20), Duration::from_micros(900)),
            queue_depth: 64,
            faults: DeviceFaults::default(),
            denied: 0,
        }
    }
}

/// A core's buffers for its disk tier; sometimes there is none.
#[derive(Debug)]
struct Pool {
    arena: Arena,
    rng: SimRng,
    denied: u32,
    was_denied: bool,
}

impl Buffers for Pool {
    fn lease(&mut self, len_bytes: usize) -> Result<Lease, Denied> {
        if self.rng.chance(self.denied) {
            self.was_denied = true;
            return Err(Denied::Memory);
        }
        let lease = self.arena.lease(len_bytes, Share::Disk);
        self.was_denied |= lease.is_err();
        lease
    }

    fn freeze(&mut self, lease: Lease) -> Frozen {
        self.arena.freeze(lease)
    }
}

#[derive(Debug)]
struct Seat {
    // Before the devices and the arena: what it holds goes home first.
    disk: Disk<SimDevice>,
    devices: Vec<SimDevice>,
    pool: Pool,
    poked: bool,
    wake_at: Time,
}

impl Seat {
    fn is_due(&self, now: Time) -> bool {
        self.poked || self.next_at().is_some_and(|at| at <= now)
    }

    fn next_at(&self) -> Option<Time> {
        let wake_at = Some(self.wake_at).filter(|at| *at != Time::NEVER);
        let devices = self.devices.iter().filter_map(SimDevice::next_at);
        devices.chain(wake_at).min()
    }
}

/// One process.
#[derive(Debug)]
pub struct Node {
    clock: SimClock,
    config: NodeConfig,
    seats: Vec<Seat>,
    shared: Vec<Arc<DeviceShared>>,
    bays: Vec<Bay>,
    rng: SimRng,
}

/// Readers leave the disk tier room for its own work, as a core sees to it.
fn arena(bytes: usize) -> Arena {
    let mut arena = Arena::new(bytes).expect("there is memory");
    arena.reserve(Share::Disk, bytes / 4);
    arena
}

impl Node {
    /// Starts a process on `bays`. `incarnation` must grow from start to start.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn start(
        config: NodeConfig,
        bays: &[Bay],
        clock: &SimClock,
        seed: u64,
        incarnation: u64,
    ) -> Self {
        let shared: Vec<Arc<DeviceShared>> = bays
            .iter()
            .enumerate()
            .map(|(number, bay)| bay.shared(number))
            .collect();
        let seats = (0..config.cores).map(|core| {
            let number = incarnation * 1_000 + core as u64;
            let devices: Vec<SimDevice> = (0..)
                .zip(bays)
                .map(|(bay_number, bay)| {
                    let seed = SimRng::component(seed, "queue pair", number * 10 + bay_number);
                    let profile = bay.profile(config.latency, config.queue_depth, &config.faults);
                    SimDevice::new(
                        bay.media.clone(),
                        profile,
                        clock.clone(),
                        seed.clone().bits(),
                    )
                })
                .collect();
            let seats = devices
                .iter()
                .zip(&shared)
                .map(|(device, shared)| DeviceSeat {
                    device: device.clone(),
                    shared: shared.clone(),
                })
                .collect();
            let disk_config = DiskConfig {
                core,
                cores: config.cores,
                entries_max: config.entries_max,
                tables_bytes_max: config.tables_bytes_max,
                write_bytes_max: config.write_bytes_max,
                // As far apart as processes are by the clock.
                incarnation: incarnation << 32,
                read_timeout: config.read_timeout,
                verify: true,
            };
            Seat {
                disk: Disk::new(seats, disk_config),
                devices,
                pool: Pool {
                    arena: arena(config.arena_bytes),
                    rng: SimRng::component(seed, "pool", number),
                    denied: config.denied,
                    was_denied: false,
                },
                poked: true,
                wake_at: Time::NEVER,
            }
        });
        Self {
            clock: clock.clone(),
            seats: seats.collect(),
            config,
            shared,
            bays: bays.to_vec(),
            rng: SimRng::component(seed, "node", incarnation),
        }
    }

    /// What it was started with.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The present.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether a device's power has failed: nothing happens any more.
    pub fn is_off(&self) -> bool {
        self.bays.iter().any(|bay| bay.media.borrow().is_off())
    }

    /// The core whose slice a block is in.
    pub fn core_of(&self, block: BlockId) -> usize {
        Slot::of_stripe(block.object, block.offset()).core(self.seats.len())
    }

    fn seat_of(&mut self, block: BlockId) -> &mut Seat {
        let core = self.core_of(block);
        let seat = &mut self.seats[core];
        seat.poked = true;
        seat
    }

    /// Whether every core has found what earlier runs left.
    pub fn has_recovered(&self) -> bool {
        self.seats.iter().all(|seat| !seat.disk.is_recovering())
    }

    /// Whether nothing is under way anywhere.
    pub fn is_quiet(&self) -> bool {
        // A retired device still has to give buffers back.
        self.seats.iter().all(|seat| {
            let idle = |device: &SimDevice| device.under_way() == 0;
            seat.disk.is_quiet() && seat.devices.iter().all(idle)
        })
    }

    /// Hands bytes of a block to its core, to be kept: pages up to 1 MiB. `None` when there is no
    /// buffer to put them in.
    pub fn keep(
        &mut self,
        universe: &Universe,
        block: BlockId,
        pages: std::ops::Range<u32>,
    ) -> Option<bool> {
        let now = self.clock.now();
        let len_bytes = universe.bytes_of(block, pages.clone());
        let seat = self.seat_of(block);
        let mut lease = seat.pool.arena.lease(len_bytes, Share::Demand).ok()?;
        universe.fill(block, pages.start, lease.bytes_mut());
        let fill = Fill {
            block,
            first_page: pages.start,
            bytes: seat.pool.arena.freeze(lease),
            checksums: universe.checksums(block, pages),
            wanted: block.object.0.is_multiple_of(4),
        };
        Some(seat.disk.keep(now, fill))
    }

    /// Begins a read of pages that lie in one extent; false when there is no buffer or the device is full.
    pub fn read(
        &mut self,
        ticket: u64,
        block: BlockId,
        block_bytes: u32,
        pages: std::ops::Range<u32>,
    ) -> bool {
        let now = self.clock.now();
        let seat = self.seat_of(block);
        let len_bytes = (pages.end - pages.start) as usize * PAGE_BYTES;
        let Ok(lease) = seat.pool.arena.lease(len_bytes, Share::Demand) else {
            return false;
        };
        let read = DiskRead {
            ticket,
            block,
            block_bytes,
            first_page: pages.start,
            lease,
        };
        seat.disk.read(now, read).is_ok()
    }

    /// The disk tier of a block's core, for questions.
    pub fn disk(&self, block: BlockId) -> &Disk<SimDevice> {
        &self.seats[self.core_of(block)].disk
    }

    /// The disk tier of a block's core, for orders.
    pub fn disk_mut(&mut self, block: BlockId) -> &mut Disk<SimDevice> {
        &mut self.seat_of(block).disk
    }

    /// Closes what is staged, on every core.
    pub fn settle_disks(&mut self) {
        for seat in &mut self.seats {
            seat.poked = true;
            seat.disk.settle();
        }
    }

    /// What the log on device `bay` may occupy from now on.
    pub fn allow(&mut self, bay: usize, bytes: u64) {
        self.shared[bay]
            .allowed_bytes
            .store(bytes, Ordering::Relaxed);
    }

    /// All cores' counters together.
    pub fn stats(&self) -> DiskStats {
        let mut all = DiskStats::default();
        for seat in &self.seats {
            all.add(&seat.disk.stats());
        }
        all
    }

    /// Bytes of buffers that are not free, over all cores.
    pub fn lent_bytes(&mut self) -> usize {
        self.seats
            .iter_mut()
            .map(|seat| {
                seat.pool.arena.reclaim();
                seat.pool.arena.capacity_bytes() - seat.pool.arena.free_bytes()
            })
            .sum()
    }

    /// Turns every core that has a reason to, until none has. Gives what they told.
    ///
    /// # Errors
    /// When a core never rests.
    pub fn settle(&mut self) -> Result<Vec<DiskEvent>, String> {
        let now = self.clock.now();
        let mut events = Vec::new();
        let mut turns = 0;
        loop {
            let mut due: Vec<usize> = (0..self.seats.len())
                .filter(|seat| self.seats[*seat].is_due(now))
                .collect();
            if due.is_empty() || self.is_off() {
                return Ok(events);
            }
            self.rng.shuffle(&mut due);
            for number in due {
                turns += 1;
                if turns > TURNS_AT_ONE_TIME_MAX {
                    return Err(format!("core {number} turns without end at {now:?}"));
                }
                let seat = &mut self.seats[number];
                seat.pool.was_denied = false;
                let turn = seat.disk.turn(now, &mut seat.pool);
                seat.poked = turn.progressed;
                seat.wake_at = turn.wake_at;
                if seat.pool.was_denied {
                    // A core that has no buffer turns again when one comes back; here, soon.
                    seat.wake_at = seat.wake_at.min(now + Duration::from_millis(1));
                }
                while let Some(event) = seat.disk.next_event() {
                    events.push(event);
                }
            }
        }
    }

    /// When something will happen next by itself.
    pub fn next_at(&self) -> Option<Time> {
        self.seats.iter().filter_map(Seat::next_at).min()
    }

    /// Moves time to `at`.
    pub fn advance_to(&self, at: Time) {
        self.clock.advance_to(at);
    }

    /// The process ends, whatever is under way.
    ///
    /// # Errors
    /// When buffers do not come back.
    pub fn end(mut self) -> Result<(), String> {
        for seat in self.seats.drain(..) {
            let Seat {
                disk,
                devices,
                mut pool,
                ..
            } = seat;
            drop(disk);
            drop(devices);
            pool.arena.reclaim();
            let lost = pool.arena.capacity_bytes() - pool.arena.free_bytes();
            if lost > 0 {
                return Err(format!("{lost} bytes of buffers did not come back"));
            }
        }
        Ok(())
    }
}
