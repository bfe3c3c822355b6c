//! `engine`: reads answered by a core; from memory by a whole core, from disk by its disk tier alone.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crossbeam_queue::ArrayQueue;
use forebay_cli::host::rng::SplitMix;
use forebay_cli::host::{CoresArg, DiskSource, Engine, EngineConfig, MonotonicClock, Poll};
use forebay_engine::arena::Arena;
use forebay_engine::client::{Client, Reply};
use forebay_engine::core::{Budget, Core, CoreConfig, Parts};
use forebay_engine::disk::Disk;
use forebay_engine::errors::ReadError;
use forebay_engine::identity::{Bucket, ObjectVersion, Validator};
use forebay_engine::ports::{
    Full, NoDevice, NoTransport, Origin, OriginEvent, OriginOp, OriginTag, PeerId, Platform, Solo,
};
use forebay_engine::ring::{CoreRing, Doorbell};
use forebay_nvme_uring::UringDevice;
use tempfile::TempDir;

use super::device::load_of;
use super::tier::TierReads;
use crate::ceilings::Ceiling;
use crate::ceilings::checksum::PageCheck;
use crate::ceilings::device::Device as DeviceCeiling;
use crate::ceilings::memory::MemoryCopy;
use crate::counters::Watched;
use crate::disk::file::Opening;
use crate::disk::load as disk_load;
use crate::load::Rng;
use crate::outcome::Span;
use crate::pace::{self, Load, Order, Slots};
use crate::plan::Plan;
use crate::raw;
use crate::scenario::Scenario;
use crate::side::{Side, Turn, watched};

const MIB: u64 = 1 << 20;
const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// What the disk tier's fills and reads lie in.
const TIER_ARENA_BYTES: usize = 256 << 20;
const TIER_BLOCK_BYTES: usize = 4 << 20;
/// A PageCheck over more than this says nothing new.
const CHECKED_BYTES_MAX: u64 = 256 * MIB;
/// Between looks at whether a wait has become too long.
const LOOKS: u32 = 1_000;

/// Where answers arrive.
#[derive(Debug)]
pub(crate) struct Mailbox {
    ended: ArrayQueue<usize>,
    failed: AtomicBool,
    copies: bool,
}

impl Mailbox {
    /// For so many answers that were not taken yet; with `copies` each is copied to a reader, as front ends do.
    pub fn new(depth: usize, copies: bool) -> Mailbox {
        Mailbox {
            ended: ArrayQueue::new(depth),
            failed: AtomicBool::new(false),
            copies,
        }
    }

    /// The slot of the next answer.
    pub fn pop(&self) -> Option<usize> {
        self.ended.pop()
    }

    /// Whether an answer was an error.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }
}

/// Answers one slot.
pub(crate) struct SlotReply {
    slot: usize,
    mailbox: Arc<Mailbox>,
}

impl SlotReply {
    /// Answers `slot` in `mailbox`.
    pub fn new(slot: usize, mailbox: Arc<Mailbox>) -> SlotReply {
        SlotReply { slot, mailbox }
    }

    /// The answer is an error.
    pub fn fail(self) {
        self.mailbox.failed.store(true, Relaxed);
        let _ = self.mailbox.ended.push(self.slot);
    }
}

thread_local! {
    /// A reader's buffer, for each thread that answers.
    static READER: RefCell<Vec<u8>> = RefCell::new(vec![1; MIB as usize]);
}

impl Reply for SlotReply {
    fn data(self, bytes: &[u8]) {
        if self.mailbox.copies {
            READER.with_borrow_mut(|buffer| {
                let to = &mut buffer[..bytes.len()];
                to.copy_from_slice(bytes);
                std::hint::black_box(to);
            });
        } else {
            std::hint::black_box(bytes);
        }
        // It has room for each slot.
        let _ = self.mailbox.ended.push(self.slot);
    }

    fn error(self, _: ReadError) {
        self.fail();
    }
}

/// An origin that has everything at once, and counts how often it is asked.
#[derive(Debug, Default)]
struct MemoryOrigin {
    events: VecDeque<OriginEvent>,
    asked: Arc<AtomicU64>,
}

impl MemoryOrigin {
    /// Counts in `asked`.
    fn counted(asked: Arc<AtomicU64>) -> MemoryOrigin {
        MemoryOrigin {
            events: VecDeque::new(),
            asked,
        }
    }
}

impl Origin for MemoryOrigin {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        let OriginOp::Get(get) = op else {
            return Err(Full(op));
        };
        self.asked.fetch_add(1, Relaxed);
        let (tag, mut rng) = (get.tag, Rng(get.offset));
        for mut lease in get.leases {
            for word in lease.bytes_mut().chunks_mut(8) {
                word.copy_from_slice(&rng.next().to_le_bytes()[..word.len()]);
            }
            self.events.push_back(OriginEvent::Filled { tag, lease });
        }
        self.events.push_back(OriginEvent::GetDone {
            tag,
            result: Ok(()),
            unfilled: Vec::new(),
            wasted_bytes: 0,
        });
        Ok(())
    }

    fn poll(&mut self) -> Option<OriginEvent> {
        self.events.pop_front()
    }

    fn cancel(&mut self, _: OriginTag) {}
}

struct Local;

impl Platform for Local {
    type Device = NoDevice;
    type Transport = NoTransport;
    type Origin = MemoryOrigin;
    type Membership = Solo;
    type Clock = MonotonicClock;
    type Rng = SplitMix;
    type Reply = SlotReply;
}

/// Who turns the cores.
enum Cores {
    /// The thread that asks.
    Own(Box<Core<Local>>),
    /// Threads of their own, as in production.
    Threads { _engine: Box<Engine<SlotReply>> },
}

/// Reads through the engine's front door.
struct ClientReads {
    client: Client<SlotReply>,
    cores: Cores,
    mailbox: Arc<Mailbox>,
    object: Arc<ObjectVersion>,
    block_bytes: u64,
    asked: Arc<AtomicU64>,
}

impl ClientReads {
    fn start(scenario: &Scenario) -> Result<ClientReads> {
        let data_bytes = scenario.size("data");
        // All of it, pieces that do not fill their frames, and what is in flight.
        let memory_bytes = data_bytes + data_bytes / 2 + 64 * MIB;
        let asked = Arc::new(AtomicU64::new(0));
        let (client, cores) = match scenario.count("cores") {
            0 => own_core(memory_bytes, asked.clone())?,
            count => threads(count as usize, memory_bytes, asked.clone())?,
        };
        let bucket = Arc::new(Bucket {
            endpoint: "http://memory".into(),
            name: "perf".into(),
        });
        let validator = Validator::ETag("\"1\"".into());
        Ok(ClientReads {
            client,
            cores,
            mailbox: Arc::new(Mailbox::new(
                scenario.count("depth") as usize,
                scenario.word("answer") == "copied",
            )),
            object: Arc::new(ObjectVersion::new(
                bucket,
                "data".into(),
                validator,
                data_bytes,
            )),
            block_bytes: scenario.size("block"),
            asked,
        })
    }

    /// Nothing may be read from the origin any more.
    fn warm(&mut self, load: &Load) -> Result<()> {
        // A pass over all of it, then a span of what is measured.
        pace::pass(self, load)?;
        let before = self.asked.load(Relaxed);
        pace::slots(self, load)?;
        let again = self.asked.load(Relaxed) - before;
        ensure!(
            again == 0,
            "{again} reads missed after a whole pass: the data does not fit memory"
        );
        Ok(())
    }
}

fn own_core(memory_bytes: u64, asked: Arc<AtomicU64>) -> Result<(Client<SlotReply>, Cores)> {
    let clock = MonotonicClock::start();
    // Nobody sleeps who would have to be woken.
    let ring = CoreRing::new(Doorbell::new(std::task::Waker::noop().clone()));
    let arena = Arena::new(memory_bytes as usize).context("no memory for the data")?;
    let parts: Parts<Local> = Parts {
        disk: Disk::absent(),
        transport: NoTransport::default(),
        origin: MemoryOrigin::counted(asked),
        membership: Solo,
        clock,
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
        attr_ttl: Duration::from_secs(1),
        negative_ttl: Duration::from_secs(1),
        stale_max: Duration::MAX,
        endpoint: None,
        origin_limit: None,
        peer_limit: None,
    };
    let core = Box::new(Core::new(parts, config));
    let client = Client::new([ring].into(), Arc::new(clock), IO_TIMEOUT);
    Ok((client, Cores::Own(core)))
}

fn threads(
    count: usize,
    memory_bytes: u64,
    asked: Arc<AtomicU64>,
) -> Result<(Client<SlotReply>, Cores)> {
    let cores = CoresArg::Count(count);
    // Stripes are not spread evenly over cores.
    let memory_bytes = memory_bytes * if count > 1 { 2 } else { 1 };
    let config = EngineConfig::choose(
        Some(&cores),
        Some(memory_bytes),
        Poll::Auto,
        IO_TIMEOUT,
        false,
    )?;
    let engine = Engine::start(config, Vec::<DiskSource>::new(), move |_| {
        Ok(MemoryOrigin::counted(asked.clone()))
    })?;
    Ok((
        engine.client(),
        Cores::Threads {
            _engine: Box::new(engine),
        },
    ))
}

impl Slots for ClientReads {
    fn begin(&mut self, slot: usize, place: u64) -> Result<()> {
        let (offset, len) = (place * self.block_bytes, self.block_bytes as u32);
        let mut reply = SlotReply {
            slot,
            mailbox: self.mailbox.clone(),
        };
        // The ring is longer than any depth, but other cores may be slow to take from theirs.
        let started = Instant::now();
        while let Err(Full(back)) = self.client.read(&self.object, offset, len, 0, reply) {
            ensure!(
                started.elapsed() < IO_TIMEOUT,
                "a core takes nothing from its ring"
            );
            reply = back;
        }
        Ok(())
    }

    fn go_on(&mut self, ended: &mut Vec<usize>, most: Duration) -> Result<()> {
        let before = ended.len();
        match &mut self.cores {
            Cores::Own(core) => {
                core.turn(Budget::default());
                while let Some(slot) = self.mailbox.ended.pop() {
                    ended.push(slot);
                }
            }
            Cores::Threads { .. } => {
                let (mut looks, started) = (0, Instant::now());
                loop {
                    while let Some(slot) = self.mailbox.ended.pop() {
                        ended.push(slot);
                    }
                    looks += 1;
                    if ended.len() > before || (looks > LOOKS && started.elapsed() >= most) {
                        break;
                    }
                    match looks % 64 {
                        // Where there are more threads than processors, one of them has work.
                        0 => std::thread::yield_now(),
                        _ => std::hint::spin_loop(),
                    }
                }
            }
        }
        ensure!(!self.mailbox.has_failed(), "a read ended with an error");
        Ok(())
    }
}

enum State {
    Memory(Box<ClientReads>),
    Disk {
        reads: Box<TierReads<UringDevice>>,
        file: PathBuf,
        begin_bytes: u64,
        _dir: TempDir,
    },
}

/// Forebay's side of `engine`.
pub struct EngineSide {
    scenario: Scenario,
    plan: Plan,
    state: Option<State>,
    name: String,
    /// Reads of all spans, and how often the core's thread asked for memory meanwhile.
    allocated: Arc<Allocated>,
}

/// What a core's thread, turned by the one that asks, did in all spans.
#[derive(Debug, Default)]
pub struct Allocated {
    reads: AtomicU64,
    allocations: AtomicU64,
}

impl Allocated {
    /// Allocations for each read; none before there were reads.
    pub fn per_read(&self) -> Option<f64> {
        let reads = self.reads.load(Relaxed);
        (reads > 0).then(|| self.allocations.load(Relaxed) as f64 / reads as f64)
    }
}

impl EngineSide {
    /// Of a scenario of that kind.
    pub fn new(scenario: &Scenario, plan: &Plan) -> EngineSide {
        EngineSide {
            scenario: scenario.clone(),
            plan: plan.clone(),
            state: None,
            name: "Forebay".to_owned(),
            allocated: Arc::default(),
        }
    }

    /// Where its allocations are counted.
    pub fn allocated(&self) -> Arc<Allocated> {
        self.allocated.clone()
    }

    /// By another name, where two sides are Forebay.
    pub fn named(mut self, name: &str) -> EngineSide {
        self.name = name.to_owned();
        self
    }

    fn disk(&self) -> Result<State> {
        let dir = self.plan.run.scratch()?;
        let file = dir.path().join("log");
        let data_bytes = self.scenario.size("data");
        let blocks = disk_load::Blocks {
            count: (data_bytes / TIER_BLOCK_BYTES as u64).max(1),
            len_bytes: TIER_BLOCK_BYTES,
        };
        let opening = Opening {
            data_bytes: blocks.count * TIER_BLOCK_BYTES as u64,
            entries: 4 * blocks.count as usize,
            arena_bytes: TIER_ARENA_BYTES
                .max(self.scenario.count("depth") as usize * TIER_BLOCK_BYTES),
            verify: self.scenario.word("verify") == "on",
        };
        disk_load::fill(&mut opening.open(&file)?, blocks, TIER_ARENA_BYTES / 4)?;
        let mut driver = opening.open(&file)?;
        disk_load::touch_each(&mut driver, blocks)?;
        let begin_bytes = opening.geometry()?.offset_bytes(0);
        let depth = self.scenario.count("depth") as usize;
        let len_bytes = self.scenario.size("block") as usize;
        Ok(State::Disk {
            reads: Box::new(TierReads::new(driver, blocks, len_bytes, depth)),
            file,
            begin_bytes,
            _dir: dir,
        })
    }

    fn load(&self, turn: &Turn) -> Load {
        load_of(&self.scenario, turn)
    }
}

impl Side for EngineSide {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> String {
        let what = match (self.scenario.word("tier"), self.scenario.count("cores")) {
            ("disk", _) => "the disk tier alone",
            (_, 0) => "a core turned by the thread that asks",
            _ => "cores' threads as in production",
        };
        format!("{} ({what})", env!("CARGO_PKG_VERSION"))
    }

    fn prepare(&mut self) -> Result<()> {
        self.state = Some(match self.scenario.word("tier") {
            "disk" => self.disk()?,
            _ => State::Memory(Box::new(ClientReads::start(&self.scenario)?)),
        });
        Ok(())
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        let load = self.load(turn);
        match &mut self.state {
            Some(State::Memory(reads)) => reads.warm(&load),
            Some(State::Disk { reads, .. }) => pace::slots(&mut **reads, &load).map(drop),
            None => bail!("the engine was not prepared"),
        }
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let load = self.load(turn);
        let block = self.scenario.size("block");
        let here = [Watched::Own("engine and load".to_owned())];
        match &mut self.state {
            Some(State::Memory(reads)) => {
                let before = reads.asked.load(Relaxed);
                let allocated = &self.allocated;
                let span = watched(&here, &load, block, || {
                    let before = raw::allocations();
                    let paced = pace::slots(&mut **reads, &load)?;
                    let asked = raw::allocations() - before;
                    allocated.allocations.fetch_add(asked, Relaxed);
                    allocated.reads.fetch_add(paced.operations, Relaxed);
                    Ok(paced)
                })?;
                let missed = reads.asked.load(Relaxed) - before;
                ensure!(
                    missed == 0,
                    "{missed} reads missed: not a measurement of memory hits"
                );
                Ok(span)
            }
            Some(State::Disk { reads, .. }) => {
                watched(&here, &load, block, || pace::slots(&mut **reads, &load))
            }
            None => bail!("the engine was not prepared"),
        }
    }

    fn clean(&mut self) -> Result<()> {
        self.state = None;
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        // With threads of their own, cores allocate where nobody counts.
        let counted = self.allocated.per_read();
        let counted = counted.filter(|_| self.scenario.count("cores") == 0);
        let words = |each| {
            format!(
                "{}: {each:.6} allocations for each read, the load's own with them",
                self.name
            )
        };
        counted.map(words).into_iter().collect()
    }

    fn processors(&self) -> Option<(&'static str, f64)> {
        // Whoever asks for what is in memory turns without rest, with cores of their own too.
        (self.scenario.word("tier") == "disk").then_some(("one processor", 1.0))
    }

    fn ceilings(&self) -> Result<Vec<Box<dyn Ceiling>>> {
        let (data_bytes, block_bytes) = (self.scenario.size("data"), self.scenario.size("block"));
        let order = Order::named(self.scenario.word("order"));
        let random = order == Order::Random;
        let mut limits: Vec<Box<dyn Ceiling>> = Vec::new();
        match &self.state {
            Some(State::Disk {
                file, begin_bytes, ..
            }) => limits.push(Box::new(DeviceCeiling {
                file: file.clone(),
                offset_bytes: *begin_bytes,
                len_bytes: data_bytes,
                block_bytes,
                depth: self.scenario.count("depth") as usize,
                order,
            })),
            _ => {
                let copied = self.scenario.word("answer") == "copied";
                let checked = data_bytes.min(CHECKED_BYTES_MAX).max(block_bytes) as usize;
                limits.push(Box::new(PageCheck::new(
                    checked,
                    block_bytes as usize,
                    copied,
                )?));
                limits.push(Box::new(MemoryCopy::new(block_bytes as usize, random)?));
            }
        }
        Ok(limits)
    }
}

impl std::fmt::Debug for EngineSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineSide").finish_non_exhaustive()
    }
}
