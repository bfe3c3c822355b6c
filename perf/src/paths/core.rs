//! Reads by a whole core, from memory and from its disk tier.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use forebay_cli::host::rng::SplitMix;
use forebay_engine::arena::Arena;
use forebay_engine::client::Client;
use forebay_engine::core::{Budget, Core, CoreConfig, Parts};
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::LogId;
use forebay_engine::disk::{DeviceSeat, DeviceShared, Disk, DiskConfig};
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::identity::{Bucket, ObjectVersion, Validator};
use forebay_engine::ports::{
    BlockDevice, Clock, Full, GetOp, ListPage, NoTransport, ObjectMeta, Origin, OriginEvent,
    OriginOp, OriginTag, PeerId, Platform, Solo, Time,
};
use forebay_engine::ring::{CoreRing, Doorbell};
use forebay_nvme_uring::{OpenOptions, UringDevice, UringFile};

use super::Work;
use crate::disk::memory::MemoryDevice;
use crate::layers::engine::{Mailbox, SlotReply};
use crate::load::Rng;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// Reads under way at a time.
const DEPTH: usize = 32;
/// As much passes with each turn.
const TURN: Duration = Duration::from_micros(1);
/// Turns that a round of reads may take.
const TURNS_MAX: u64 = 1_000_000;
/// What a core has in memory that reads only memory, and the data of one that reads its disk.
const DATA_BYTES: u64 = 96 * MIB;
const HIT_BYTES: u64 = 32 * MIB;
/// Of an object of which nothing is ever read twice: its bytes are made as they are asked for.
const FILL_BYTES: u64 = 1 << 40;
/// Memory of a core that reads its disk: a fraction of the data.
const DISK_ARENA_BYTES: usize = 32 << 20;
pub(super) const CAPACITY_BYTES: u64 = 512 * MIB;
/// Operations that a queue pair has under way.
const QUEUE: usize = 1_024;
/// Passes over the data until the disk has all of it.
const PASSES_MAX: usize = 20;
/// The only key.
pub(super) const KEY: &str = "data";

/// A clock that is moved by hand.
#[derive(Clone, Debug, Default)]
pub(super) struct StepClock(Arc<AtomicU64>);

impl StepClock {
    fn pass(&self, span: Duration) {
        self.0.fetch_add(span.as_nanos() as u64, Relaxed);
    }
}

impl Clock for StepClock {
    fn now(&self) -> Time {
        // Not 0: nothing that was never set may look like now.
        Time(1_000_000_000 + self.0.load(Relaxed))
    }
}

/// One object, its bytes and its name: an origin that has everything at once, and counts how often it is asked for bytes.
#[derive(Debug)]
pub(super) struct OneObject {
    events: VecDeque<OriginEvent>,
    asked: Arc<AtomicU64>,
    size_bytes: u64,
}

impl OneObject {
    fn get(&mut self, get: GetOp) {
        self.asked.fetch_add(1, Relaxed);
        let tag = get.tag;
        for mut lease in get.leases {
            // As cheap as bytes can be had: what is counted is who takes them.
            lease.bytes_mut().fill(get.offset as u8 | 1);
            self.events.push_back(OriginEvent::Filled { tag, lease });
        }
        self.events.push_back(OriginEvent::GetDone {
            tag,
            result: Ok(()),
            unfilled: Vec::new(),
            wasted_bytes: 0,
        });
    }
}

impl Origin for OneObject {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        match op {
            OriginOp::Get(get) => self.get(get),
            OriginOp::Head(head) => {
                let result = match &*head.key == KEY {
                    true => Ok(ObjectMeta {
                        key: head.key,
                        size_bytes: self.size_bytes,
                        validator: validator(),
                        modified_ns: 0,
                    }),
                    false => Err(OriginError::new(OriginErrorKind::NotFound, "no such key")),
                };
                self.events.push_back(OriginEvent::Head {
                    tag: head.tag,
                    result,
                });
            }
            OriginOp::List(list) => self.events.push_back(OriginEvent::List {
                tag: list.tag,
                result: Ok(ListPage::default()),
            }),
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<OriginEvent> {
        self.events.pop_front()
    }

    fn cancel(&mut self, _: OriginTag) {}
}

struct Pinned<D>(PhantomData<D>);

impl<D: BlockDevice + 'static> Platform for Pinned<D> {
    type Device = D;
    type Transport = NoTransport;
    type Origin = OneObject;
    type Membership = Solo;
    type Clock = StepClock;
    type Rng = SplitMix;
    type Reply = SlotReply;
}

fn validator() -> Validator {
    Validator::ETag("\"1\"".into())
}

pub(super) fn bucket() -> Arc<Bucket> {
    Arc::new(Bucket {
        endpoint: "http://memory".into(),
        name: "perf".into(),
    })
}

/// A core that the caller turns, and its front door.
pub(super) struct Turned<D: BlockDevice + 'static> {
    // Before what its device reads into.
    core: Core<Pinned<D>>,
    pub client: Client<SlotReply>,
    pub mailbox: Arc<Mailbox>,
    clock: StepClock,
    pub asked: Arc<AtomicU64>,
    ended: u64,
}

impl<D: BlockDevice + 'static> Turned<D> {
    fn new(
        arena_bytes: usize,
        size_bytes: u64,
        disk: impl FnOnce(&Arena) -> Result<Disk<D>>,
    ) -> Result<Self> {
        let clock = StepClock::default();
        // Nobody sleeps who would have to be woken.
        let ring = CoreRing::new(Doorbell::new(std::task::Waker::noop().clone()));
        let arena = Arena::new(arena_bytes).context("no memory for the data")?;
        let asked = Arc::new(AtomicU64::new(0));
        let parts: Parts<Pinned<D>> = Parts {
            disk: disk(&arena)?,
            transport: NoTransport::default(),
            origin: OneObject {
                events: VecDeque::new(),
                asked: asked.clone(),
                size_bytes,
            },
            membership: Solo,
            clock: clock.clone(),
            rng: SplitMix::new(1),
            arena,
            ring: ring.clone(),
        };
        let config = CoreConfig {
            core: 0,
            cores: 1,
            io_timeout: IO_TIMEOUT,
            me: PeerId(1),
            keep_copies: false,
            attr_ttl: Duration::from_secs(3600),
            negative_ttl: Duration::from_secs(3600),
            stale_max: Duration::MAX,
            endpoint: None,
            origin_limit: None,
            peer_limit: None,
        };
        Ok(Self {
            core: Core::new(parts, config),
            client: Client::new([ring].into(), Arc::new(clock.clone()), IO_TIMEOUT),
            mailbox: Arc::new(Mailbox::new(DEPTH, true)),
            clock,
            asked,
            ended: 0,
        })
    }

    pub fn reply(&self) -> SlotReply {
        SlotReply::new(0, self.mailbox.clone())
    }

    pub fn turn(&mut self) -> bool {
        self.clock.pass(TURN);
        self.core.turn(Budget::default()).progressed
    }

    /// Turns until so many more reads were answered.
    pub fn answer(&mut self, reads: u64) -> Result<()> {
        let (until, mut turns) = (self.ended + reads, 0);
        while self.ended < until {
            self.turn();
            while self.mailbox.pop().is_some() {
                self.ended += 1;
            }
            turns += 1;
            ensure!(turns < TURNS_MAX, "reads are not answered");
        }
        ensure!(!self.mailbox.has_failed(), "a read ended with an error");
        Ok(())
    }

    /// Turns, and lets time pass, until nothing is left to be done.
    fn rest(&mut self) {
        let mut idle = 0;
        while idle < 1_000 {
            idle = if self.turn() { 0 } else { idle + 1 };
            self.clock.pass(Duration::from_millis(1));
        }
    }
}

/// Reads of one object at places that a seed chooses, or one after the other.
struct Reads<D: BlockDevice + 'static> {
    turned: Turned<D>,
    object: Arc<ObjectVersion>,
    block_bytes: u64,
    blocks: u64,
    rng: Option<Rng>,
    next: u64,
    /// The path asks the origin.
    fills: bool,
    /// Reads of the device that it must ask.
    device_reads: Option<Arc<AtomicU64>>,
}

impl<D: BlockDevice + 'static> Reads<D> {
    fn new(turned: Turned<D>, data_bytes: u64, block_bytes: u64, random: bool) -> Self {
        let object = ObjectVersion::new(bucket(), KEY.into(), validator(), data_bytes);
        Self {
            turned,
            object: Arc::new(object),
            block_bytes,
            blocks: data_bytes / block_bytes,
            rng: random.then_some(Rng(1)),
            next: 0,
            fills: false,
            device_reads: None,
        }
    }

    fn device_reads(&self) -> Option<u64> {
        Some(self.device_reads.as_ref()?.load(Relaxed))
    }

    fn begin(&mut self, place: u64, block_bytes: u64) -> Result<()> {
        let (reply, offset) = (self.turned.reply(), place * block_bytes);
        let client = &self.turned.client;
        match client.read(&self.object, offset, block_bytes as u32, 0, reply) {
            Ok(()) => Ok(()),
            Err(Full(_)) => bail!("the core's ring is full"),
        }
    }

    /// Reads all of it, then looks whether it is where it should be: nothing of a second pass is asked of the origin.
    fn bring(mut self) -> Result<Self> {
        for _ in 0..PASSES_MAX {
            let before = self.turned.asked.load(Relaxed);
            let all = self.blocks * self.block_bytes / MIB;
            for place in 0..all {
                self.begin(place, MIB)?;
                self.turned.answer(1)?;
                // The disk takes what memory gives only as fast as it writes.
                self.turned.turn();
            }
            self.turned.rest();
            if self.turned.asked.load(Relaxed) == before {
                return Ok(self);
            }
        }
        bail!("after {PASSES_MAX} passes something is still asked of the origin")
    }
}

impl<D: BlockDevice + 'static> Work for Reads<D> {
    fn operate(&mut self, count: u64) -> Result<()> {
        let before = self.turned.asked.load(Relaxed);
        let device_before = self.device_reads();
        let mut left = count;
        while left > 0 {
            let depth = left.min((16 * MIB / self.block_bytes).min(DEPTH as u64));
            for _ in 0..depth {
                let place = match &mut self.rng {
                    Some(rng) => rng.next() % self.blocks,
                    None => self.next % self.blocks,
                };
                self.next += 1;
                self.begin(place, self.block_bytes)?;
            }
            self.turned.answer(depth)?;
            left -= depth;
        }
        let asked = self.turned.asked.load(Relaxed) - before;
        let wanted = if self.fills { count } else { 0 };
        ensure!(
            asked == wanted,
            "of {count} reads {asked} asked the origin, and {wanted} should: this would count something else"
        );
        // A third of the data fits into memory: what is there is not what the path is about.
        let from_device = self.device_reads().zip(device_before);
        ensure!(
            from_device.is_none_or(|(after, before)| 2 * (after - before) >= count),
            "of {count} reads over half were answered from memory: this would count something else"
        );
        Ok(())
    }
}

fn hits(block_bytes: u64, random: bool) -> Result<Box<dyn Work>> {
    let turned = in_memory(HIT_BYTES)?;
    let reads = Reads::new(turned, HIT_BYTES, block_bytes, random);
    Ok(Box::new(reads.bring()?))
}

/// A core whose memory holds so much.
pub(super) fn in_memory(data_bytes: u64) -> Result<Turned<MemoryDevice>> {
    let arena_bytes = data_bytes + data_bytes / 2 + 64 * MIB;
    Turned::new(arena_bytes as usize, data_bytes, |_| Ok(Disk::absent()))
}

/// A core with a disk tier on what `device` makes.
fn on_disk<D: BlockDevice + 'static>(
    data_bytes: u64,
    device: impl FnOnce(&Arena, Geometry) -> Result<D>,
) -> Result<Turned<D>> {
    Turned::new(DISK_ARENA_BYTES, data_bytes, |arena| {
        let geometry = Geometry::choose(CAPACITY_BYTES, 1)?;
        let shared = DeviceShared::new("pinned".to_owned(), geometry, LogId(1));
        let config = DiskConfig {
            core: 0,
            cores: 1,
            entries_max: 64 << 10,
            tables_bytes_max: 8 << 20,
            write_bytes_max: DISK_ARENA_BYTES / 4,
            incarnation: 1,
            read_timeout: Duration::from_secs(3600),
            verify: true,
        };
        let seat = DeviceSeat {
            device: device(arena, geometry)?,
            shared: Arc::new(shared),
        };
        Ok(Disk::new(vec![seat], config))
    })
}

fn memory_device(_: &Arena, geometry: Geometry) -> Result<MemoryDevice> {
    let bytes = geometry.offset_bytes(geometry.regions);
    Ok(MemoryDevice::new(bytes as usize))
}

pub(super) fn from_disk<D: BlockDevice + 'static>(
    block_bytes: u64,
    random: bool,
    device: impl FnOnce(&Arena, Geometry) -> Result<D>,
) -> Result<Box<dyn Work>> {
    let turned = on_disk(DATA_BYTES, device)?;
    let reads = Reads::new(turned, DATA_BYTES, block_bytes, random);
    Ok(Box::new(reads.bring()?))
}

pub(super) fn hit_4k(_: &FilePath) -> Result<Box<dyn Work>> {
    hits(4 * KIB, true)
}

pub(super) fn hit_1m(_: &FilePath) -> Result<Box<dyn Work>> {
    hits(MIB, false)
}

/// On a device in memory, which must be asked.
fn from_memory_device(block_bytes: u64, random: bool) -> Result<Box<dyn Work>> {
    let device_reads = Arc::new(AtomicU64::new(0));
    let turned = on_disk(DATA_BYTES, |arena, geometry| {
        let mut device = memory_device(arena, geometry)?;
        device.reads = device_reads.clone();
        Ok(device)
    })?;
    let reads = Reads::new(turned, DATA_BYTES, block_bytes, random);
    let mut reads = reads.bring()?;
    reads.device_reads = Some(device_reads);
    Ok(Box::new(reads))
}

pub(super) fn disk_4k(_: &FilePath) -> Result<Box<dyn Work>> {
    from_memory_device(4 * KIB, true)
}

pub(super) fn disk_1m(_: &FilePath) -> Result<Box<dyn Work>> {
    from_memory_device(MIB, false)
}

pub(super) fn uring_4k(dir: &FilePath) -> Result<Box<dyn Work>> {
    let path = super::file(dir, "pinned-log");
    from_disk(4 * KIB, true, |arena, geometry| -> Result<UringDevice> {
        // Through the page cache: then a read has ended when it was handed in, and no look at the ring is in vain.
        let options = OpenOptions {
            capacity_bytes: Some(geometry.offset_bytes(geometry.regions)),
            create: true,
            buffered: true,
            ..OpenOptions::default()
        };
        let opened = UringFile::open(&path, &options)?;
        Ok(opened.queue_pair(arena.addresses(), QUEUE)?)
    })
}

pub(super) fn fill_1m(_: &FilePath) -> Result<Box<dyn Work>> {
    let turned = on_disk(FILL_BYTES, memory_device)?;
    let mut reads = Reads::new(turned, FILL_BYTES, MIB, false);
    reads.fills = true;
    Ok(Box::new(reads))
}
