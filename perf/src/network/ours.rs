//! Fetches from another process: one connection, a thread on each side that turns it as production turns a core.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use forebay_cli::host::MonotonicClock;
use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, Full, PeerFetch, Transport, TransportEvent, TransportOp,
};
use forebay_tests::peer::{Seat, content};

use super::node::{Asking, Pair, TO, Way};
use crate::samples::Samples;
use crate::turns::Measured;
use crate::{cpus, process};

/// Before the measured span: the connection is made, and its window grows.
const WARM_UP: Duration = Duration::from_millis(500);

/// What is fetched.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of one fetch.
    pub len_bytes: usize,
    /// Fetches under way.
    pub depth: usize,
    /// For so long.
    pub span: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Fetched {
    /// With the processor time of both processes.
    pub measured: Measured,
    /// What all processors were busy with meanwhile, also the kernel's own threads.
    pub busy: Duration,
}

/// Fetches for a while.
///
/// # Errors
/// When a fetch fails.
pub fn run(way: &Way, load: &Load) -> Result<Fetched> {
    let pair = Pair::start(way)?;
    let cpu = way.cpus.map(|[_, own]| own);
    match way.rdma {
        Some(_) => {
            let asking = pair.over_rdma()?;
            cpus::pinned(cpu, || fetch(asking, &pair, way, load))
        }
        None => {
            let asking = pair.over_tcp()?;
            cpus::pinned(cpu, || fetch(asking, &pair, way, load))
        }
    }
}

fn fetch(asking: Asking<impl Transport>, pair: &Pair, way: &Way, load: &Load) -> Result<Fetched> {
    let Asking {
        mut seat,
        transport,
        mut arena,
        clock,
    } = asking;
    let mut asker = Asker::new(transport, clock, &mut arena, load)?;
    let spin = way.poll.spin();
    asker.turn_for(&mut seat, spin, WARM_UP)?;
    asker.latencies_us.clear();
    let (cpu, peer_cpu) = (process::own_time()?, process::processor_time(pair.pid())?);
    let busy = process::machine_busy()?;
    let (done, started) = (asker.done, Instant::now());
    asker.turn_for(&mut seat, spin, load.span)?;
    let elapsed = started.elapsed();
    let ios = asker.done - done;
    ensure!(ios > 0, "no fetch has ended");
    let busy = process::machine_busy()? - busy;
    let (ours, theirs) = (
        process::own_time()? - cpu,
        process::processor_time(pair.pid())? - peer_cpu,
    );
    println!(
        "  {:>16}: processor time of who asks {:.2} s, of who answers {:.2} s, of the machine {:.2} s",
        "Forebay",
        ours.as_secs_f64(),
        theirs.as_secs_f64(),
        busy.as_secs_f64()
    );
    let latencies = std::mem::take(&mut asker.latencies_us);
    Ok(Fetched {
        measured: Measured {
            ios,
            bytes: ios * load.len_bytes as u64,
            elapsed,
            cpu: ours + theirs,
            p50_us: (!latencies.is_empty()).then(|| Samples::new(latencies).median()),
        },
        busy,
    })
}

struct Asker<T> {
    transport: T,
    clock: MonotonicClock,
    len_bytes: usize,
    /// Buffers whose fetch found no credit: before the connection is there only a little is granted.
    waiting: Vec<Lease>,
    tags: u64,
    done: u64,
    /// Of a load of depth 1: when its fetch was handed in, and how long each took.
    asked_at: Option<Instant>,
    latencies_us: Vec<f64>,
    failed: Option<String>,
}

impl<T: Transport> Asker<T> {
    fn new(transport: T, clock: MonotonicClock, arena: &mut Arena, load: &Load) -> Result<Self> {
        let lease = |_| {
            let lease = arena.lease(load.len_bytes, Share::Demand);
            lease.map_err(|denied| anyhow::anyhow!("no buffer: {denied:?}"))
        };
        Ok(Self {
            transport,
            clock,
            len_bytes: load.len_bytes,
            waiting: (0..load.depth).map(lease).collect::<Result<_>>()?,
            tags: 0,
            done: 0,
            asked_at: (load.depth == 1).then(Instant::now),
            latencies_us: Vec::new(),
            failed: None,
        })
    }

    fn turn_for(&mut self, seat: &mut Seat, spin: Duration, span: Duration) -> Result<()> {
        let end = Instant::now() + span;
        while Instant::now() < end {
            for _ in 0..64 {
                seat.turn(spin, &mut || self.turn());
            }
            if let Some(failed) = self.failed.take() {
                bail!("a fetch ended as {failed}");
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> bool {
        let mut progressed = false;
        while let Some(event) = self.transport.poll() {
            progressed = true;
            let TransportEvent::Fetched { lease, result, .. } = event else {
                continue;
            };
            if let Some(asked_at) = self.asked_at {
                self.latencies_us
                    .push(asked_at.elapsed().as_secs_f64() * 1e6);
            }
            // A byte of each answer is looked at: the rest is the engine's work, and not part of the way.
            let right = lease.bytes().first() == Some(&content(lease.len()));
            if result != Ok(FetchStatus::Bytes) || !right {
                self.failed = Some(format!("{result:?}"));
            }
            self.done += 1;
            self.waiting.push(lease);
        }
        while let Some(lease) = self.waiting.pop()
            && self.fetch(lease)
        {}
        progressed
    }

    /// False when the lease must wait.
    fn fetch(&mut self, lease: Lease) -> bool {
        self.tags += 1;
        let len_bytes = self.len_bytes as u32;
        let request = PeerFetch {
            object: ObjectId(5),
            size_bytes: 1 << 40,
            offset: 0,
            len_bytes,
            want_bytes: len_bytes,
            class: Class::Demand,
            view: 1,
            cached_only: false,
            forwarded: false,
            verify: false,
        };
        let op = TransportOp::Fetch {
            tag: FetchTag(self.tags),
            to: TO,
            request,
            lease,
            deadline: self.clock.now() + Duration::from_secs(30),
        };
        if let Some(asked_at) = &mut self.asked_at {
            *asked_at = Instant::now();
        }
        match self.transport.submit(op) {
            Ok(()) => true,
            Err(Full(TransportOp::Fetch { lease, .. })) => {
                self.waiting.push(lease);
                false
            }
            Err(_) => false,
        }
    }
}
