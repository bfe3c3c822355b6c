//! What comes to a member while it leaves, from the origin or from others that leave.

use std::time::Duration;

use super::super::Core;
use crate::ports::{Platform, Time};

/// What may bring something that no other member has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrivals {
    /// Entries ever put into the disk index.
    pub insertions: u64,
    /// Parts of GETs that ever came. What the origin is asked for brings nothing while it does not answer, and readers
    /// ask again and again.
    pub filled: u64,
}

/// A GET that is under way at the end of a pass and has brought nothing is waited for so long: it may be about to.
const FILL_PATIENCE: Duration = Duration::from_secs(2);

impl<P: Platform> Core<P> {
    /// As of now.
    pub(super) fn arrivals(&self) -> Arrivals {
        Arrivals {
            insertions: self.parts.disk.insertions(),
            filled: self.fills.parts_came,
        }
    }

    /// Whether a GET that is under way is waited for at the end of a pass. One that brings nothing is not, in the end:
    /// an outage may last for hours, and is when one wants to move.
    pub(super) fn awaits_fills(&mut self, now: Time, was_filled: bool) -> bool {
        let since = &mut self.handover.awaits_fills_since;
        if was_filled || self.fills.len() == 0 {
            *since = None;
        }
        self.fills.len() > 0 && now.since(*since.get_or_insert(now)) < FILL_PATIENCE
    }
}
