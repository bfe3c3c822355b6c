//! What is due when. Entries are removed when they are settled, so the set is as large as what
//! waits, never as what once waited.

use std::collections::BTreeSet;

use super::fill::FillKey;
use super::jobs::JobKey;
use super::metadata::LookupKey;
use super::pull::PullKey;
use super::read::ReadKey;
use super::takeover::TakeKey;
use crate::ports::Time;

/// Whom a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A read's deadline.
    Read(ReadKey),
    /// A fill's next step: its attempt stalled, or its back-off ends.
    Fill(FillKey),
    /// A metadata request's next step.
    Lookup(LookupKey),
    /// A pull's back-off ends.
    Pull(PullKey),
    /// A job's deadline, or the end of its pause.
    Job(JobKey),
    /// The same of a block that is taken over.
    Take(TakeKey),
    /// Origins that do not answer are tried again.
    Probe,
}

#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Time, Due)>);

impl Timers {
    pub fn set(&mut self, at: Time, due: Due) {
        self.0.insert((at, due));
    }

    pub fn clear(&mut self, at: Time, due: Due) {
        self.0.remove(&(at, due));
    }

    /// When the next one is due.
    pub fn next(&self) -> Time {
        self.0.first().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// Takes the next one that is due at `now`.
    pub fn expired(&mut self, now: Time) -> Option<Due> {
        if self.next() > now {
            return None;
        }
        self.0.pop_first().map(|(_, due)| due)
    }
}
