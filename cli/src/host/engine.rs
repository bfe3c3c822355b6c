//! The engine in this process: its cores' threads, and the way to them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use forebay_engine::arena::Arena;
use forebay_engine::client::{Client, Reply, Request};
use forebay_engine::core::{Core, CoreConfig, Parts};
use forebay_engine::disk::{Disk, DiskConfig};
use forebay_engine::errors::ReadError;
use forebay_engine::limits::{DEVICE_READ_MS_MAX, DISK_WRITE_SHARE};
use forebay_engine::ports::{Full, Origin, PeerId};
use forebay_engine::ring::{CoreRing, Doorbell};
use forebay_engine::stats::CoreStats;

use super::clock::MonotonicClock;
use super::cores::{CorePlan, CoresArg, Machine, Poll};
use super::disks::{DiskPlace, Disks};
use super::medium::Buffers;
use super::memory::{MemoryPlan, default_memory_bytes};
use super::pages::{are_reserved, arena};
use super::parker::{EventParker, Park};
use super::peers::{HostMembership, HostTransport, Peers};
use super::platform::HostPlatform;
use super::rng::SplitMix;
use super::run::{STOP_TIMEOUT, Seat, run};

/// `--attr-ttl` when it is not given.
pub const ATTR_TTL_DEFAULT: Duration = Duration::from_secs(1);

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
    /// Whether pages read from disks are checked. Off only to measure what it costs.
    pub verify_disks: bool,
    /// `--attr-ttl`: how long attributes and listings are believed.
    pub attr_ttl: Duration,
    /// `--negative-ttl`: how long a name that does not exist is believed not to.
    pub negative_ttl: Duration,
    /// `--stale-max`.
    pub stale_max: Duration,
    /// Where the origin is, as identities spell it: what peers ask of another is declined. None: it is asked for
    /// everything.
    pub endpoint: Option<Arc<str>>,
    /// `--origin-limit`: bytes per second from the origin.
    pub origin_limit: Option<u64>,
    /// `--peer-limit`: bytes per second from other members, and to them.
    pub peer_limit: Option<u64>,
    /// This node's cache group; none for a node on its own.
    pub peers: Option<Peers>,
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
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl EngineConfig {
    /// Chooses for this machine; `None` takes the documented defaults. `disks` tells whether there will be
    /// any, for the division of memory. A core's panic aborts the process.
    ///
    /// # Errors
    /// When the machine lacks what is asked for.
    pub fn choose(
        cores: Option<&CoresArg>,
        memory_bytes: Option<u64>,
        poll: Poll,
        io_timeout: Duration,
        disks: bool,
    ) -> Result<Self> {
        let machine = Machine::read()?;
        let cores = CorePlan::new(cores, poll, &machine)?;
        let memory_bytes = memory_bytes.unwrap_or_else(|| default_memory_bytes(&machine));
        let memory = MemoryPlan::new(memory_bytes, cores.cores(), disks)?;
        let core_death: CoreDeath = Arc::new(|message| {
            eprintln!("forebay: {message}");
            std::process::abort();
        });
        let clock = MonotonicClock::start();
        Ok(Self {
            cores,
            memory,
            io_timeout,
            verify_disks: true,
            attr_ttl: ATTR_TTL_DEFAULT,
            negative_ttl: ATTR_TTL_DEFAULT,
            stale_max: Duration::MAX,
            endpoint: None,
            origin_limit: None,
            peer_limit: None,
            peers: None,
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
struct Shared<F, D> {
    /// Whether the cores' buffers lie in reserved huge pages.
    reserved: bool,
    config: EngineConfig,
    /// Nanoseconds since 1970 when the engine started.
    incarnation: u64,
    stop: Arc<AtomicBool>,
    make_origin: F,
    disks: D,
}

impl<R: Reply> Engine<R> {
    /// Starts the cores, each on a thread `core-N` pinned as planned. `make_origin` is called
    /// once on each of them, and `disks` (a `Vec` of `DiskSource`, which may be empty) is asked for its
    /// queue pairs.
    ///
    /// # Errors
    /// When a thread cannot be started or pinned, its arena not be mapped, its origin or a queue pair not
    /// be made.
    pub fn start<O, F, D>(config: EngineConfig, disks: D, make_origin: F) -> Result<Self>
    where
        O: Origin + 'static,
        F: Fn(OriginSeat) -> Result<O> + Send + Sync + 'static,
        D: Disks,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let reserved = disks.driver_pages().is_some_and(|pages| {
            are_reserved(
                config.cores.cores(),
                config.memory.arena_bytes_per_core,
                pages,
            )
        });
        let shared = Arc::new(Shared {
            reserved,
            config: config.clone(),
            incarnation: incarnation(),
            stop: stop.clone(),
            make_origin,
            disks,
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
        if let Some(peers) = &config.peers {
            let rings = rings.clone();
            let wake = move || rings.iter().for_each(|ring| ring.doorbell().ring());
            peers.views.on_change(wake);
        }
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
            // Not joined: all of ours in it has ended, but the kernel may keep a thread whose disk hangs from
            // ending for as long as that.
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
            && let Err(error) = self.end(STOP_TIMEOUT)
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

/// Larger in each run than in the one before, as far as the machine's clock is.
fn incarnation() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Everything that one core's thread does.
fn core_thread<R, O, F, D>(
    core: usize,
    shared: &Shared<F, D>,
    ring: Arc<CoreRing<R>>,
    mut parker: EventParker,
    started: Started,
) where
    R: Reply,
    O: Origin + 'static,
    F: Fn(OriginSeat) -> Result<O>,
    D: Disks,
{
    let built = pin(core, &shared.config.cores)
        .and_then(|()| build(core, shared, ring.clone(), &mut parker));
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
    if matches!(ended, Ok(false)) {
        tracing::warn!(
            "engine core {core} ends although its disks have not written all: the rest comes from S3 again"
        );
    }
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
    if !plan.spin.spins() {
        tracing::debug!("engine core {core} on CPU {cpu} does not spin");
    }
    Ok(())
}

/// Builds a core on its own thread: its buffers count with `Rc`, and its pages shall come from
/// the CPU's own memory node.
fn build<R, O, F, D>(
    core: usize,
    shared: &Shared<F, D>,
    ring: Arc<CoreRing<R>>,
    parker: &mut EventParker,
) -> Result<Core<HostPlatform<R, O, D::Device>>>
where
    R: Reply,
    O: Origin + 'static,
    F: Fn(OriginSeat) -> Result<O>,
    D: Disks,
{
    let config = &shared.config;
    let cores = config.cores.cores();
    let arena_bytes = config.memory.arena_bytes_per_core;
    let mut arena = arena(arena_bytes, shared.reserved).with_context(|| {
        format!("cannot map {arena_bytes} bytes for engine core {core}: give less --memory")
    })?;
    let seat = OriginSeat {
        core,
        cores,
        doorbell: ring.doorbell().clone(),
    };
    let origin = (shared.make_origin)(seat)
        .with_context(|| format!("cannot start the origin's client for engine core {core}"))?;
    let peers = config.peers.as_ref();
    let (transport, fds) =
        HostTransport::new(peers, core, &arena, ring.doorbell(), config.clock)
            .with_context(|| format!("cannot make the transport of engine core {core}"))?;
    fds.into_iter().for_each(|fd| parker.watch(fd));
    let parts = Parts {
        disk: disk(core, shared, &mut arena, parker)?,
        transport,
        origin,
        membership: HostMembership::new(peers),
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
            me: peers.map_or(PeerId(0), |peers| peers.me),
            keep_copies: peers.is_some_and(|peers| peers.keep_copies),
            attr_ttl: config.attr_ttl,
            negative_ttl: config.negative_ttl,
            stale_max: config.stale_max,
            endpoint: config.endpoint.clone(),
            origin_limit: per_core(config.origin_limit, cores),
            peer_limit: per_core(config.peer_limit, cores),
        },
    ))
}

/// A core's part of a rate for the node.
fn per_core(bytes_per_s: Option<u64>, cores: usize) -> Option<u64> {
    bytes_per_s.map(|rate| rate / cores.max(1) as u64)
}

/// A core's part of the disk tier.
fn disk<F, D: Disks>(
    core: usize,
    shared: &Shared<F, D>,
    arena: &mut Arena,
    parker: &EventParker,
) -> Result<Disk<D::Device>> {
    let seats = shared.disks.seats(&DiskPlace {
        core,
        buffers: Buffers::of(arena),
        spins: shared.config.cores.spin.spins(),
        wake: parker.event(),
    })?;
    if seats.is_empty() {
        return Ok(Disk::absent());
    }
    let (memory, cores) = (&shared.config.memory, shared.config.cores.cores());
    Ok(Disk::new(
        seats,
        DiskConfig {
            core,
            cores,
            entries_max: memory.disk_entries_per_core(cores),
            tables_bytes_max: memory.disk_tables_bytes_per_core(cores),
            write_bytes_max: arena.capacity_bytes() / DISK_WRITE_SHARE,
            incarnation: shared.incarnation,
            read_timeout: Duration::from_millis(DEVICE_READ_MS_MAX),
            verify: shared.config.verify_disks,
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

#[cfg(test)]
mod tests {
    use forebay_engine::disk::DeviceShared;
    use forebay_engine::disk::geometry::{Geometry, REGION_BYTES_MIN};
    use forebay_engine::disk::layout::LogId;
    use forebay_engine::errors::{OriginError, OriginErrorKind};
    use forebay_engine::identity::{Bucket, ObjectVersion, Validator};
    use forebay_engine::ports::{OriginEvent, OriginOp, OriginTag};

    use forebay_nvme_uring::{OpenOptions, UringFile};

    use super::super::disks::DiskSource;
    use super::*;

    /// What a made-up origin does with every GET.
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Fill(u8),
        Refuse,
        Nothing,
        Panic,
    }

    struct MadeUp {
        does: Does,
        events: std::collections::VecDeque<OriginEvent>,
    }

    impl Origin for MadeUp {
        fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
            let OriginOp::Get(get) = op else {
                return Err(Full(op));
            };
            let tag = get.tag;
            let done = |result, unfilled| OriginEvent::GetDone {
                tag,
                result,
                unfilled,
                wasted_bytes: 0,
            };
            match self.does {
                Does::Fill(byte) => {
                    for mut lease in get.leases {
                        lease.bytes_mut().fill(byte);
                        self.events.push_back(OriginEvent::Filled { tag, lease });
                    }
                    self.events.push_back(done(Ok(()), Vec::new()));
                }
                Does::Refuse => {
                    let error = OriginError::new(OriginErrorKind::Denied, "no");
                    self.events.push_back(done(Err(error), get.leases));
                }
                Does::Nothing => {}
                Does::Panic => panic!("planned"),
            }
            Ok(())
        }

        fn poll(&mut self) -> Option<OriginEvent> {
            self.events.pop_front()
        }

        fn cancel(&mut self, _tag: OriginTag) {}
    }

    struct Channel(mpsc::Sender<Result<Vec<u8>, ReadError>>);

    impl Reply for Channel {
        fn data(self, bytes: &[u8]) {
            let _ = self.0.send(Ok(bytes.to_vec()));
        }
        fn error(self, error: ReadError) {
            let _ = self.0.send(Err(error));
        }
    }

    fn config(cores: usize) -> EngineConfig {
        config_with(cores, false)
    }

    fn config_with(cores: usize, disks: bool) -> EngineConfig {
        let cores = CoresArg::Count(cores);
        EngineConfig::choose(
            Some(&cores),
            Some(2 << 30),
            Poll::Auto,
            Duration::from_secs(20),
            disks,
        )
        .unwrap()
    }

    fn no_disks() -> Vec<DiskSource> {
        Vec::new()
    }

    fn engine(config: EngineConfig, does: Does) -> Engine<Channel> {
        Engine::start(config, no_disks(), move |_| {
            Ok(MadeUp {
                does,
                events: Default::default(),
            })
        })
        .unwrap()
    }

    fn object() -> Arc<ObjectVersion> {
        let bucket = Arc::new(Bucket {
            endpoint: "e".into(),
            name: "b".into(),
        });
        Arc::new(ObjectVersion::new(
            bucket,
            "k".into(),
            Validator::ETag("\"1\"".into()),
            1 << 30,
        ))
    }

    fn ask(engine: &Engine<Channel>, offset: u64) -> mpsc::Receiver<Result<Vec<u8>, ReadError>> {
        let (sender, receiver) = mpsc::channel();
        assert!(
            engine
                .client()
                .read(&object(), offset, 4096, 0, Channel(sender))
                .is_ok()
        );
        receiver
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn reads_are_answered_by_every_core_and_counted() {
        let engine = engine(config(3), Does::Fill(7));
        for stripe in 0..12 {
            let bytes = ask(&engine, stripe << 24)
                .recv_timeout(LONG)
                .unwrap()
                .unwrap();
            assert_eq!(bytes, [7; 4096]);
        }
        let cores = core_stats(&engine.client(), LONG);
        assert_eq!(cores.len(), 3);
        assert_eq!(cores.iter().map(|core| core.reads).sum::<u64>(), 12);
        assert!(
            cores.iter().filter(|core| core.reads > 0).count() > 1,
            "stripes spread over cores"
        );
        engine.stop(LONG).unwrap();
    }

    /// A file of eight regions, as the cores of one process see it.
    fn disk(path: &std::path::Path) -> DiskSource {
        let geometry = Geometry {
            region_bytes: REGION_BYTES_MIN,
            regions: 8,
        };
        let options = OpenOptions {
            capacity_bytes: Some(geometry.offset_bytes(geometry.regions)),
            create: true,
            ..OpenOptions::default()
        };
        DiskSource {
            medium: UringFile::open(path, &options).unwrap().into(),
            shared: Arc::new(DeviceShared::new("disk".into(), geometry, LogId(7))),
        }
    }

    #[test]
    fn what_was_fetched_outlives_the_engine_on_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        let start = |does| {
            let disks = vec![disk(&dir.path().join("disk"))];
            let origin = move |_| {
                Ok(MadeUp {
                    does,
                    events: Default::default(),
                })
            };
            Engine::<Channel>::start(config_with(2, true), disks, origin).unwrap()
        };
        let engine = start(Does::Fill(9));
        for stripe in 0..4 {
            ask(&engine, stripe << 24)
                .recv_timeout(LONG)
                .unwrap()
                .unwrap();
        }
        engine.stop(LONG).unwrap();
        let engine = start(Does::Refuse);
        for stripe in 0..4 {
            let bytes = ask(&engine, stripe << 24).recv_timeout(LONG).unwrap();
            assert_eq!(bytes.unwrap(), [9; 4096]);
        }
        let refused = ask(&engine, 5 << 24).recv_timeout(LONG).unwrap();
        assert!(refused.is_err(), "this was never fetched");
        engine.stop(LONG).unwrap();
    }

    #[test]
    fn errors_arrive_and_a_stop_answers_what_waits() {
        let refusing = engine(config(1), Does::Refuse);
        let refused = ask(&refusing, 0).recv_timeout(LONG).unwrap();
        assert!(matches!(refused, Err(ReadError::Origin(_))), "{refused:?}");
        let hanging = engine(config(2), Does::Nothing);
        let waiting: Vec<_> = (0..8).map(|stripe| ask(&hanging, stripe << 24)).collect();
        hanging.stop(LONG).unwrap();
        for answer in waiting {
            assert_eq!(answer.try_recv(), Ok(Err(ReadError::Shutdown)));
        }
    }

    #[test]
    fn threads_bear_the_cores_names_and_end_with_the_engine() {
        let names = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks
                .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
                .filter(|name| name.trim() == "core-77")
                .count()
        };
        let engine = engine(config(78), Does::Nothing);
        assert_eq!(names(), 1);
        drop(engine);
        assert_eq!(names(), 0);
    }

    #[test]
    fn an_origin_that_cannot_be_made_is_told() {
        let made = Engine::<Channel>::start(config(2), no_disks(), |seat| match seat.core {
            0 => Ok(MadeUp {
                does: Does::Nothing,
                events: Default::default(),
            }),
            _ => bail!("no second one"),
        });
        assert!(format!("{:#}", made.unwrap_err()).contains("no second one"));
    }

    #[test]
    fn a_core_that_panics_is_not_survived() {
        let (sender, deaths) = mpsc::channel();
        let mut config = config(1);
        config.core_death = Arc::new(move |message| {
            let _ = sender.send(message.to_owned());
        });
        let engine = engine(config, Does::Panic);
        let _reply = ask(&engine, 0);
        let message = deaths.recv_timeout(LONG).unwrap();
        assert!(
            message.contains("core 0") && message.contains("planned"),
            "{message}"
        );
    }
}
