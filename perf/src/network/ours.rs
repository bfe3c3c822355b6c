//! Fetches from another process by `transport-tcp`: one connection, a thread on each side that turns it as
//! production turns a core.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_cli::host::MonotonicClock;
use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::placement::{Member, View};
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, Full, PeerCore, PeerFetch, PeerId, Transport,
    TransportEvent, TransportOp,
};
use forebay_tests::peer::{Seat, content};
use forebay_transport_tcp::{Endpoint, EndpointConfig, TcpTransport};

use super::Killed;
use crate::process;
use crate::turns::Measured;

const GROUP: &str = "figures";
const PEER: PeerId = PeerId(2);
/// As production's cores do where they have processors of their own.
const SPIN: Duration = Duration::from_micros(50);
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

/// The other process's program: `forebay-perf tcp-peer`.
///
/// # Errors
/// When it cannot start.
pub fn peer() -> Result<()> {
    match forebay_tests::peer::serve(PEER.0, GROUP, SPIN)? {}
}

/// Fetches for a while.
///
/// # Errors
/// When a fetch fails.
pub fn run(load: &Load) -> Result<Measured> {
    let child = Command::new(std::env::current_exe()?)
        .arg("tcp-peer")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the peer")?;
    let mut child = Killed(child);
    let mut line = String::new();
    let stdout = child.0.stdout.take().context("the peer has no output")?;
    BufReader::new(stdout).read_line(&mut line)?;
    let address = line.trim().parse().context("the peer prints no address")?;

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let config = EndpointConfig::new(PeerId(1), GROUP, runtime.handle().clone());
    let (endpoint, _control) = Endpoint::start(config)?;
    endpoint.set_members(&View::new(vec![Member {
        id: PEER,
        weight: 1,
        cores: 1,
        addresses: [address].into(),
    }]));
    Asker::new(&endpoint, load)?.run(child.0.id())
}

struct Asker<'a> {
    seat: Seat,
    transport: TcpTransport,
    arena: Arena,
    clock: MonotonicClock,
    load: &'a Load,
    /// Buffers whose fetch found no credit: before the connection is there only a little is granted.
    waiting: Vec<Lease>,
    tags: u64,
    done: u64,
    failed: Option<String>,
}

impl<'a> Asker<'a> {
    fn new(endpoint: &Endpoint, load: &'a Load) -> Result<Self> {
        let mut seat = Seat::new()?;
        let clock = MonotonicClock::start();
        let transport = endpoint.transport(0, seat.doorbell.clone(), clock)?;
        seat.parker.watch(transport.fd().try_clone_to_owned()?);
        Ok(Self {
            seat,
            transport,
            arena: Arena::new(64 << 20)?,
            clock,
            load,
            waiting: Vec::new(),
            tags: 0,
            done: 0,
            failed: None,
        })
    }

    fn run(mut self, peer: u32) -> Result<Measured> {
        for _ in 0..self.load.depth {
            let lease = self.arena.lease(self.load.len_bytes, Share::Demand);
            let lease = lease.map_err(|denied| anyhow::anyhow!("no buffer: {denied:?}"))?;
            self.waiting.push(lease);
        }
        self.turn_for(WARM_UP)?;
        let (cpu, peer_cpu) = (process::own_time()?, process::processor_time(peer)?);
        let (done, started) = (self.done, Instant::now());
        self.turn_for(self.load.span)?;
        let elapsed = started.elapsed();
        let ios = self.done - done;
        ensure!(ios > 0, "no fetch has ended");
        let (ours, theirs) = (
            process::own_time()? - cpu,
            process::processor_time(peer)? - peer_cpu,
        );
        println!(
            "  {:>16}: processor time of who asks {:.2} s, of who answers {:.2} s",
            "Forebay",
            ours.as_secs_f64(),
            theirs.as_secs_f64()
        );
        Ok(Measured {
            ios,
            bytes: ios * self.load.len_bytes as u64,
            elapsed,
            cpu: ours + theirs,
            p50_us: None,
        })
    }

    fn turn_for(&mut self, span: Duration) -> Result<()> {
        let end = Instant::now() + span;
        while Instant::now() < end {
            let mut seat = std::mem::replace(&mut self.seat, Seat::new()?);
            for _ in 0..64 {
                seat.turn(SPIN, &mut || self.turn());
            }
            self.seat = seat;
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
        let len_bytes = lease.len() as u32;
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
            to: PeerCore {
                peer: PEER,
                core: 0,
            },
            request,
            lease,
            deadline: self.clock.now() + Duration::from_secs(30),
        };
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
