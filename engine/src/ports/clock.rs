//! Time and randomness.

use std::fmt;
use std::time::Duration;

/// Monotonic time in nanoseconds since an arbitrary start that all cores of a process share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// Later than any other time.
    pub const NEVER: Time = Time(u64::MAX);

    /// Time that passed since `earlier`; zero when it lies ahead.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(
            self.0
                .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

/// Monotonic time.
pub trait Clock {
    /// The present. Never goes back.
    fn now(&self) -> Time;
}

/// Random numbers, for jitter.
pub trait Rng {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;
}
