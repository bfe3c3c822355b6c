//! The engine in this process: its cores' threads, and the way to them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use forebay_engine::arena::Arena;
use forebay_engine::client::{Client, Reply, Request};
use forebay_engine::core::{Core, CoreConfig, Parts};
use forebay_engine::errors::ReadError;
use forebay_engine::ports::{Full, NoDevice, NoTransport, Origin, Solo};
use forebay_engine::ring::{CoreRing, Doorbell};
use forebay_engine::stats::CoreStats;

use super::clock::MonotonicClock;
use super::cores::{CorePlan, CoresArg, Machine, Poll, Spin};
use super::memory::{MemoryPlan, default_memory_bytes};
use super::parker::{EventParker, Park};
use super::platform::HostPlatform;
use super::rng::SplitMix;
use super::run::{Seat, run};

/// Called, on the thread that failed, when a core panics. Must end the process: its readers
/// would wait for ever.
pub type CoreDeath = Arc<dyn Fn(&str) + Send + Sync>;

/// What an engine is started with.
#[derive(Clone)]
pub struct EngineConfig {
    /// How many cores, where, and whether they spin.
    pub cores: CorePlan,
    /// How much memory, for what.
    pub memory: MemoryPlan,
    /// `--io-timeout`: every request's span from asking to its deadline.
    pub io_timeout: Duration,
    /// The clock of cores and origin.
    pub clock: MonotonicClock,
    /// What ends the process when a core panics.
    pub core_death: CoreDeath,
}

impl std::fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineConfig")
            .field("cores", &self.cores)
            .field("memory", &self.memory)
            .field("io_timeout", &self.io_timeout)
            .finish_non_exhaustive()
    }
}

impl EngineConfig {
    /// Chooses for this machine; `None` takes the documented defaults. A core's panic aborts the
    /// process.
    ///
    /// # Errors
    /// When the machine lacks what is asked for.
    pub fn choose(
        cores: Option<&CoresArg>,
        memory_bytes: Option<u64>,
        poll: Poll,
        io_timeout: Duration,
    ) -> Result<Self> {
        let machine = Machine::read()?;
        let cores = CorePlan::new(cores, poll, &machine)?;
        let memory_bytes = memory_bytes.unwrap_or_else(|| default_memory_bytes(&machine));
        let memory = MemoryPlan::new(memory_bytes, cores.cores())?;
        let core_death: CoreDeath = Arc::new(|message| {
            eprintln!("forebay: {message}");
            std::process::abort();
        });
        let clock = MonotonicClock::start();
        Ok(Self {
            cores,
            memory,
            io_timeout,
            clock,
            core_death,
        })
    }
}

/// Where an origin's instance will live: one for each core, made on that core's thread.
#[derive(Clone, Debug)]
pub struct OriginSeat {
    /// Which core, from 0.
    pub core: usize,
    /// How many cores there are.
    pub cores: usize,
    /// Rung by the origin after it made an event visible to `poll`.
    pub doorbell: Arc<Doorbell>,
}

/// Running cores. Dropping it stops them and waits for that.
pub struct Engine<R: Reply> {
    client: Client<R>,
    rings: Arc<[Arc<CoreRing<R>>]>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    config: EngineConfig,
}

impl<R: Reply> std::fmt::Debug for Engine<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What every core's thread shares.
struct Shared<F> {
    config: EngineConfig,
    stop: Arc<AtomicBool>,
    make_origin: F,
}

impl<R: Reply> Engine<R> {
    /// Starts the cores, each on a thread `core-N` pinned as planned. `make_origin` is called
    /// once on each of them.
    ///
    /// # Errors
    /// When a thread cannot be started or pinned, its arena not be mapped, its origin not be made.
    pub fn start<O, F>(config: EngineConfig, make_origin: F) -> Result<Self>
    where
        O: Origin + 'static,
        F: Fn(OriginSeat) -> Result<O> + Send + Sync + 'static,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared {
            config: config.clone(),
            stop: stop.clone(),
            make_origin,
        });
        let mut rings = Vec::new();
        let mut threads = Vec::new();
        let (started, outcomes) = mpsc::channel();
        for core in 0..config.cores.cores() {
            let parker = EventParker::new().context("cannot make an eventfd for an engine core")?;
            let ring = CoreRing::<R>::new(Doorbell::new(parker.waker()));
            rings.push(ring.clone());
            let (shared, started) = (shared.clone(), started.clone());
            let thread = std::thread::Builder::new()
                .name(format!("core-{core}"))
                .spawn(move || core_thread(core, &shared, ring, parker, started))
                .context("cannot start a thread for an engine core")?;
            threads.push(thread);
        }
        drop(started);
        let rings: Arc<[_]> = rings.into();
        let client = Client::new(rings.clone(), Arc::new(config.clock), config.io_timeout);
        let engine = Self {
            client,
            rings,
            threads,
            stop,
            config,
        };
        for _ in 0..engine.rings.len() {
            // A thread that panics before it reports drops its sender; dropping `engine` stops the others.
            outcomes
                .recv()
                .unwrap_or_else(|_| Err(anyhow!("an engine core died while it started")))?;
        }
        Ok(engine)
    }

    /// The way to the cores, for any thread.
    pub fn client(&self) -> Client<R> {
        self.client.clone()
    }

    /// What it was started with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Answers everything that waits with `Shutdown`, ends the cores' threads and waits for them,
    /// at most `within`. Front ends should have ended before; what they still push afterwards is
    /// dropped unanswered.
    ///
    /// # Errors
    /// When a core has not ended in time; its thread is left behind.
    pub fn stop(mut self, within: Duration) -> Result<()> {
        self.end(within)
    }

    fn end(&mut self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        let pause = || std::thread::sleep(Duration::from_millis(1));
        for ring in self.rings.iter() {
            let mut request = Request::Shutdown;
            while let Err(Full(back)) = ring.push(request) {
                request = back;
                if Instant::now() >= deadline {
                    break;
                }
                pause();
            }
        }
        self.stop.store(true, Ordering::Release);
        for ring in self.rings.iter() {
            ring.doorbell().ring();
        }
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                if Instant::now() >= deadline {
                    bail!(
                        "engine thread {} did not end within {within:?}",
                        thread.thread().name().unwrap_or("core")
                    );
                }
                pause();
            }
            let _ = thread.join();
        }
        // Pushed between a core's last look and its end.
        self.rings.iter().for_each(|ring| {
            while let Some(request) = ring.pop() {
                refuse(request);
            }
        });
        Ok(())
    }
}

impl<R: Reply> Drop for Engine<R> {
    fn drop(&mut self) {
        if !self.threads.is_empty()
            && let Err(error) = self.end(Duration::from_secs(5))
        {
            tracing::error!("{error:#}");
        }
    }
}

/// Answers a request that no core will see.
fn refuse<R: Reply>(request: Request<R>) {
    if let Request::Read(read) = request {
        read.answer.error(ReadError::Shutdown);
    }
}

type Started = mpsc::Sender<Result<()>>;

/// Everything that one core's thread does.
fn core_thread<R, O, F>(
    core: usize,
    shared: &Shared<F>,
    ring: Arc<CoreRing<R>>,
    mut parker: EventParker,
    started: Started,
) where
    R: Reply,
    O: Origin + 'static,
    F: Fn(OriginSeat) -> Result<O>,
{
    let built = pin(core, &shared.config.cores).and_then(|()| build(core, shared, ring.clone()));
    let mut built = match built {
        Ok(built) => {
            let _ = started.send(Ok(()));
            built
        }
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    drop(started);
    let seat = Seat {
        doorbell: ring.doorbell(),
        clock: &shared.config.clock,
        spin: shared.config.cores.spin,
        stop: &shared.stop,
    };
    let ended = catch_unwind(AssertUnwindSafe(|| run(&mut built, &seat, &mut parker)));
    if let Err(panic) = ended {
        let message = format!("engine core {core} panicked: {}", panic_text(&*panic));
        tracing::error!("{message}");
        (shared.config.core_death)(&message);
    }
}

fn pin(core: usize, plan: &CorePlan) -> Result<()> {
    let Some(cpu) = plan.cpus[core] else {
        tracing::warn!("engine core {core} is not pinned: there are more cores than CPUs");
        return Ok(());
    };
    if !core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) {
        bail!("cannot pin engine core {core} to CPU {cpu}: choose other CPUs with --cores");
    }
    if plan.spin == Spin::For(Duration::ZERO) {
        tracing::debug!("engine core {core} on CPU {cpu} does not spin");
    }
    Ok(())
}

/// Builds a core on its own thread: its buffers count with `Rc`, and its pages shall come from
/// the CPU's own memory node.
fn build<R, O, F>(
    core: usize,
    shared: &Shared<F>,
    ring: Arc<CoreRing<R>>,
) -> Result<Core<HostPlatform<R, O>>>
where
    R: Reply,
    O: Origin + 'static,
    F: Fn(OriginSeat) -> Result<O>,
{
    let config = &shared.config;
    let cores = config.cores.cores();
    let arena_bytes = config.memory.arena_bytes_per_core;
    let arena = Arena::new(arena_bytes).with_context(|| {
        format!("cannot map {arena_bytes} bytes for engine core {core}: give less --memory")
    })?;
    let seat = OriginSeat {
        core,
        cores,
        doorbell: ring.doorbell().clone(),
    };
    let origin = (shared.make_origin)(seat)
        .with_context(|| format!("cannot start the origin's client for engine core {core}"))?;
    let parts = Parts {
        device: NoDevice::default(),
        transport: NoTransport::default(),
        origin,
        membership: Solo,
        clock: config.clock,
        rng: SplitMix::from_os(),
        arena,
        ring,
    };
    Ok(Core::new(
        parts,
        CoreConfig {
            core,
            cores,
            io_timeout: config.io_timeout,
        },
    ))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Asks every core for its counters and waits for them, at most `within`. Cores that do not
/// answer in time are missing from the result.
pub fn core_stats<R: Reply>(client: &Client<R>, within: Duration) -> Vec<CoreStats> {
    let (sender, receiver) = mpsc::channel();
    client.stats(move |stats| {
        let _ = sender.send(*stats);
    });
    let deadline = Instant::now() + within;
    let mut cores = Vec::new();
    while cores.len() < client.cores() {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(stats) => cores.push(stats),
            Err(_) => break,
        }
    }
    cores
}
