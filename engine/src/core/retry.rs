//! When to try the origin again: exponential back-off with full jitter, within the deadline.

use std::time::Duration;

use crate::limits::{ATTEMPTS_PER_DEADLINE, BACKOFF_FIRST_MS, BACKOFF_MAX_MS};
use crate::ports::Rng;

/// The pause before attempt number `attempt` + 1, after `attempt` failed ones (1 or more).
pub(super) fn backoff(attempt: u32, rng: &mut impl Rng) -> Duration {
    let ceiling_ms = (BACKOFF_FIRST_MS << attempt.saturating_sub(1).min(16)).min(BACKOFF_MAX_MS);
    let ceiling_us = ceiling_ms * 1_000;
    Duration::from_micros(1 + rng.next_u64() % ceiling_us)
}

/// How long an attempt may make no progress before it is given up.
pub(super) fn stall_limit(io_timeout: Duration) -> Duration {
    io_timeout / ATTEMPTS_PER_DEADLINE
}
