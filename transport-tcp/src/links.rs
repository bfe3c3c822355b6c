//! The state of each connection, for people.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::SystemTime;

use forebay_engine::ports::PeerId;
use parking_lot::Mutex;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    pub peer: PeerId,
    /// Our core.
    pub core: u16,
    /// The peer's core.
    pub peer_core: u16,
    /// Whether we ask on it; else the peer does.
    pub asks: bool,
    /// Which transport: `tcp`.
    pub transport: &'static str,
    /// Now.
    pub state: LinkState,
    /// Since when.
    pub since: SystemTime,
    /// Bytes sent since the process started.
    pub sent_bytes: u64,
    /// Bytes received since the process started.
    pub received_bytes: u64,
    /// Why it was down the last time.
    pub last_error: Option<String>,
}

/// Names a connection: peer, our core, its core, and whether we ask.
pub(crate) type LinkKey = (PeerId, u16, u16, bool);

/// What the core that works a connection writes, and `status` reads.
#[derive(Debug)]
pub(crate) struct LinkRecord {
    key: LinkKey,
    state: AtomicU8,
    sent: AtomicU64,
    received: AtomicU64,
    changed: Mutex<(SystemTime, Option<String>)>,
}

impl LinkRecord {
    pub fn new(key: LinkKey) -> Self {
        Self {
            key,
            state: AtomicU8::new(LinkState::Down as u8),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            changed: Mutex::new((SystemTime::now(), None)),
        }
    }

    pub fn set(&self, state: LinkState, error: Option<String>) {
        self.state.store(state as u8, Ordering::Relaxed);
        let mut changed = self.changed.lock();
        changed.0 = SystemTime::now();
        if error.is_some() {
            changed.1 = error;
        }
    }

    pub fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn is_down(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LinkState::Down as u8
    }

    pub fn status(&self) -> LinkStatus {
        let state = match self.state.load(Ordering::Relaxed) {
            code if code == LinkState::Connecting as u8 => LinkState::Connecting,
            code if code == LinkState::Up as u8 => LinkState::Up,
            _ => LinkState::Down,
        };
        let (peer, core, peer_core, asks) = self.key;
        let (since, last_error) = self.changed.lock().clone();
        LinkStatus {
            peer,
            core,
            peer_core,
            asks,
            transport: "tcp",
            state,
            since,
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            last_error,
        }
    }
}
