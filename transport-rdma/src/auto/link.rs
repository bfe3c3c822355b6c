//! What is known of a link: which way it takes, how often it broke, and whether it carries what is long.

use std::time::Duration;

use forebay_engine::ports::Time;

use super::PROBE_PAUSE;

/// One that breaks again and again, or carries nothing, for twice as long each time, up to this.
pub const PROBE_PAUSE_MAX: Duration = Duration::from_secs(160);

/// One that held for so long was good: what breaks it then is the first time.
pub const GOOD: Duration = Duration::from_secs(60);

/// Requests with more time than twice this are asked over TCP as well when half of it is over and nothing long came meanwhile.
const DOUBT_MIN: Duration = Duration::from_millis(500);

/// Bytes of an answer that shows that a link carries what is long.
pub(super) const LONG_BYTES: u32 = 4_096;

/// Which way requests of a link take, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Over a queue pair.
    Verbs,
    /// Over TCP, and why.
    Tcp(String),
}

#[derive(Debug)]
pub(super) struct Link {
    pub path: Path,
    /// Until then it is not tried again.
    pub not_before: Time,
    pub used_at: Time,
    /// How often in a row it broke soon, or carried nothing.
    pub failures: u32,
    /// Since when requests go over queue pairs; of a link over TCP none.
    pub since: Option<Time>,
    /// How often it left queue pairs: a request of an earlier time says nothing of what was made since.
    pub generation: u64,
    /// When something long came last.
    pub long_at: Time,
}

impl Link {
    /// It is of no use for now: over TCP it goes on, and why.
    pub fn fail(&mut self, why: &str, now: Time) -> Path {
        let was_good = self.since.is_some_and(|since| now.since(since) >= GOOD);
        self.failures = match was_good {
            true => 1,
            false => self.failures.saturating_add(1),
        };
        let doublings = (self.failures - 1).min(u32::BITS - 1);
        let pause = PROBE_PAUSE
            .saturating_mul(1 << doublings)
            .min(PROBE_PAUSE_MAX);
        self.not_before = now + pause;
        Path::Tcp(match self.failures {
            1 => why.to_owned(),
            count => format!(
                "{why} ({count} times in a row: it is tried again after {} s)",
                pause.as_secs()
            ),
        })
    }
}

/// When half of a request's time is over; never of one that has little.
pub(super) fn doubt_at(now: Time, deadline: Time) -> Time {
    let half = deadline.since(now) / 2;
    match deadline == Time::NEVER || half < DOUBT_MIN {
        true => Time::NEVER,
        false => now + half,
    }
}
