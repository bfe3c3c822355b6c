//! Virtual time: it stands still until the world moves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::ports::{Clock, Time};

/// The one clock of a simulated world; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// Moves to `time`. Earlier times are ignored: the clock never goes back.
    pub fn advance_to(&self, time: Time) {
        self.0.fetch_max(time.0, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}
