//! A peer without an engine: it answers every fetch from memory. For tests of transports, and figures.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_cli::host::MonotonicClock;
use forebay_cli::host::parker::{EventParker, Park};
use forebay_engine::arena::{Arena, Frozen, Share};
use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::{
    FetchStatus, Full, Payload, PeerAsk, PeerId, Transport, TransportEvent, TransportOp,
};
use forebay_engine::ring::Doorbell;
use forebay_transport_tcp::{Endpoint, EndpointConfig};

/// A member that answers fetches until it is killed, turned as production turns a core. Prints the
/// address on which it listens.
///
/// # Errors
/// When it cannot start.
pub fn serve(id: u64, group: &str, spin: Duration) -> Result<Infallible> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut config = EndpointConfig::new(PeerId(id), group, runtime.handle().clone());
    config.listen = vec!["127.0.0.1:0".parse()?];
    let (endpoint, _control) = Endpoint::start(config)?;
    let mut seat = Seat::new()?;
    let mut transport = endpoint.transport(0, seat.doorbell.clone(), MonotonicClock::start())?;
    seat.parker.watch(transport.fd().try_clone_to_owned()?);
    let mut responder = Responder::new(64 << 20)?;
    let address = endpoint.addresses().first().context("no listener")?;
    println!("{address}");
    loop {
        seat.turn(spin, &mut || responder.turn(&mut transport));
    }
}

/// A thread's one wait, and the time that it spins before it waits.
#[allow(missing_debug_implementations)]
pub struct Seat {
    /// What wakes it.
    pub doorbell: Arc<Doorbell>,
    /// Where it sleeps.
    pub parker: EventParker,
    last_progress: Instant,
}

impl Seat {
    /// A seat that only its doorbell wakes, until it watches something.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let parker = EventParker::new()?;
        Ok(Self {
            doorbell: Doorbell::new(parker.waker()),
            parker,
            last_progress: Instant::now(),
        })
    }

    /// Turns once; sleeps when there has been nothing to do for `spin`.
    pub fn turn(&mut self, spin: Duration, work: &mut impl FnMut() -> bool) {
        self.turn_for(spin, Duration::from_millis(100), work);
    }

    /// The same; a sleep takes `most` at most.
    pub fn turn_for(&mut self, spin: Duration, most: Duration, work: &mut impl FnMut() -> bool) {
        if work() {
            self.last_progress = Instant::now();
            return;
        }
        if self.last_progress.elapsed() < spin {
            return std::hint::spin_loop();
        }
        self.doorbell.announce_sleep();
        if !work() {
            self.parker.park(Some(most));
        }
        self.doorbell.announce_awake();
        self.last_progress = Instant::now();
    }
}

/// What the bytes of an answer of that length all are.
pub fn content(len_bytes: usize) -> u8 {
    (len_bytes % 251) as u8
}

/// The checksum that each page of an answer comes with.
pub const CHECKSUM: u32 = 7;

/// Answers fetches with [`content`], and calls as invalid.
#[derive(Debug)]
pub struct Responder {
    arena: Arena,
    buffers: BTreeMap<u32, Frozen>,
    /// Fetches answered so far.
    pub served: usize,
}

impl Responder {
    /// A peer with so many bytes for answers, one buffer for each length that is asked for.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn new(memory_bytes: usize) -> io::Result<Self> {
        Ok(Self::over(Arena::new(memory_bytes)?))
    }

    /// A peer whose answers lie in `arena`.
    pub fn over(arena: Arena) -> Self {
        Self {
            arena,
            buffers: BTreeMap::new(),
            served: 0,
        }
    }

    /// Answers what has arrived. True when something had.
    pub fn turn(&mut self, transport: &mut impl Transport) -> bool {
        let mut progressed = false;
        while let Some(event) = transport.poll() {
            progressed = true;
            let TransportEvent::Request { handle, ask, .. } = event else {
                continue;
            };
            let (status, payload) = match ask {
                PeerAsk::Fetch(fetch) => match self.payload(fetch.len_bytes) {
                    Some(payload) => (FetchStatus::Bytes, Some(payload)),
                    None => (FetchStatus::Busy, None),
                },
                PeerAsk::Call { .. } => (
                    FetchStatus::NotCached {
                        here: 0,
                        before: None,
                    },
                    None,
                ),
            };
            let mut op = TransportOp::Answer {
                handle,
                status,
                payload,
            };
            while let Err(Full(back)) = transport.submit(op) {
                op = back;
            }
            self.served += 1;
        }
        progressed
    }

    fn payload(&mut self, len_bytes: u32) -> Option<Payload> {
        let len = len_bytes as usize;
        if !self.buffers.contains_key(&len_bytes) {
            let mut lease = self.arena.lease(len, Share::Serve).ok()?;
            lease.bytes_mut().fill(content(len));
            self.buffers.insert(len_bytes, self.arena.freeze(lease));
        }
        Some(Payload {
            parts: vec![self.buffers.get(&len_bytes)?.clone()],
            checksums: vec![CHECKSUM; len.div_ceil(PAGE_BYTES)],
        })
    }
}
