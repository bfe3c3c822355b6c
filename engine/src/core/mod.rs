//! One core: its slice of the cache, and the turn that drives it.

use std::sync::Arc;
use std::time::Duration;

use crate::arena::Arena;
use crate::ports::{Platform, Time};
use crate::ring::CoreRing;

/// What a core is made of.
#[allow(missing_debug_implementations)]
pub struct Parts<P: Platform> {
    /// Its device queue.
    pub device: P::Device,
    /// Its connections.
    pub transport: P::Transport,
    /// Its way to object storage.
    pub origin: P::Origin,
    /// Its view of the group.
    pub membership: P::Membership,
    /// The process's clock.
    pub clock: P::Clock,
    /// Its randomness.
    pub rng: P::Rng,
    /// Its buffers.
    pub arena: Arena,
    /// Its ring.
    pub ring: Arc<CoreRing<P::Reply>>,
}

/// What a core is told once.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// This core, from 0.
    pub core: usize,
    /// How many there are.
    pub cores: usize,
    /// `--io-timeout`: every request's span from asking to its deadline.
    pub io_timeout: Duration,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Something was done: turn again before sleeping.
    pub progressed: bool,
    /// When the core must turn again at the latest; `Time::NEVER` when nothing is scheduled.
    pub wake_at: Time,
}

/// How much one turn may do before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests taken from the ring.
    pub requests: usize,
    /// Completions taken from each port.
    pub completions: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { requests: crate::limits::RING_BUDGET, completions: crate::limits::POLL_BUDGET }
    }
}

/// One core.
#[allow(missing_debug_implementations)]
pub struct Core<P: Platform> {
    parts: Parts<P>,
    config: CoreConfig,
}

impl<P: Platform> Core<P> {
    /// A core with an empty cache.
    pub fn new(parts: Parts<P>, config: CoreConfig) -> Self {
        Self { parts, config }
    }

    /// Takes requests and completions, advances every machine that can advance, submits.
    /// Nothing else changes the core's state. Never waits.
    pub fn turn(&mut self, _budget: Budget) -> Turn {
        let _ = (&self.parts, &self.config);
        Turn { progressed: false, wake_at: Time::NEVER }
    }
}
