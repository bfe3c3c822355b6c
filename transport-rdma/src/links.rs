//! The state of each connection by RDMA, for people.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forebay_engine::ports::PeerCore;
use parking_lot::Mutex;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It is being made and proven.
    Connecting,
    /// Requests go over it.
    Up,
    /// There is none: it broke, was idle, or could not be made.
    Down,
}

/// One connection, or the place of one.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The other side.
    pub peer: PeerCore,
    /// Our core.
    pub core: u16,
    /// Whether we ask on it; else the peer does.
    pub asks: bool,
    /// Now.
    pub state: LinkState,
    /// Connections that are up: one for each rail that is used.
    pub connections: usize,
    /// Bytes of answers sent since the process started.
    pub sent_bytes: u64,
    /// Bytes of answers received since the process started.
    pub received_bytes: u64,
    /// Why it was down the last time.
    pub last_error: Option<String>,
}

/// Names a connection: our core, the peer's, and whether we ask.
type LinkKey = (u16, PeerCore, bool);

/// What the core that works a connection writes, and `status` reads.
#[derive(Debug)]
pub struct LinkRecord {
    sent: AtomicU64,
    received: AtomicU64,
    connections: AtomicUsize,
    state: Mutex<(LinkState, Option<String>)>,
}

impl LinkRecord {
    fn new() -> Self {
        Self {
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            state: Mutex::new((LinkState::Down, None)),
        }
    }

    pub(crate) fn set(&self, state: LinkState) {
        self.state.lock().0 = state;
    }

    pub(crate) fn set_connections(&self, count: usize) {
        self.connections.store(count, Ordering::Relaxed);
    }

    pub(crate) fn down(&self, why: String) {
        *self.state.lock() = (LinkState::Down, Some(why));
    }

    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// All connections of a node.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<BTreeMap<LinkKey, Arc<LinkRecord>>>);

impl Links {
    pub fn record(&self, core: u16, peer: PeerCore, asks: bool) -> Arc<LinkRecord> {
        let mut links = self.0.lock();
        let record = links.entry((core, peer, asks));
        let record = record.or_insert_with(|| Arc::new(LinkRecord::new()));
        Arc::clone(record)
    }

    /// Forgets links that are down and whose peer is not `known` any more.
    pub fn retain(&self, known: impl Fn(PeerCore) -> bool) {
        let is_down = |record: &LinkRecord| record.state.lock().0 == LinkState::Down;
        self.0
            .lock()
            .retain(|(_, peer, _), record| known(*peer) || !is_down(record));
    }

    pub fn status(&self) -> Vec<LinkStatus> {
        let links = self.0.lock();
        let status = links.iter().map(|((core, peer, asks), record)| {
            let (state, last_error) = record.state.lock().clone();
            LinkStatus {
                peer: *peer,
                core: *core,
                asks: *asks,
                state,
                connections: record.connections.load(Ordering::Relaxed),
                sent_bytes: record.sent.load(Ordering::Relaxed),
                received_bytes: record.received.load(Ordering::Relaxed),
                // Of one that is up again it says nothing.
                last_error: last_error.filter(|_| state != LinkState::Up),
            }
        });
        status.collect()
    }
}
