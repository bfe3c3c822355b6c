//! What goes where and what stays: S3-FIFO (Yang et al., SOSP 2023) by whole regions, with a main queue
//! that does not give way to blocks that are no warmer than its own. Decision 16 has the reasons.

use super::layout::Queue;

/// The small queue holds one part in this many of the regions.
const SMALL_SHARE: usize = 16;
/// A main region of whose pages so many per cent were hit since it was last looked at is warm.
const WARM_PERCENT: u64 = 80;
/// A region of whose pages fewer than so many per cent live is not warm, whatever is hot.
const LIVE_PERCENT: u64 = 50;
/// The hand moves each time ghosts of so many per cent of a region came back and found no room.
const HAND_PERCENT: u64 = 75;

/// How warm a region is. Hits are forgotten all at once by taking the next stamp: an entry was hit since the
/// last look when it carries the region's stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heat {
    /// Never 0, which is the stamp of an entry that was not hit.
    pub stamp: u8,
    /// Pages of entries that carry the stamp.
    pub hot_pages: u32,
    /// Pages of all entries.
    pub live_pages: u32,
    /// Pages of all entries that it ever took in since it was opened.
    pub taken_pages: u32,
}

impl Default for Heat {
    fn default() -> Self {
        Self {
            stamp: 1,
            hot_pages: 0,
            live_pages: 0,
            taken_pages: 0,
        }
    }
}

impl Heat {
    /// Whether so much of what lives in a region of `pages` is hot. A region of which much is dead is never
    /// warm: its room would be held by nothing.
    pub fn is_warm(&self, pages: u32) -> bool {
        let (hot, live) = (u64::from(self.hot_pages), u64::from(self.live_pages));
        live * 100 >= u64::from(pages) * LIVE_PERCENT && hot * 100 >= live * WARM_PERCENT
    }

    /// Pages of entries that reclaim would evict.
    pub fn cold_pages(&self) -> u32 {
        self.live_pages.saturating_sub(self.hot_pages)
    }

    /// Pages of entries that went although the region stays.
    pub fn dead_pages(&self) -> u64 {
        u64::from(self.taken_pages.saturating_sub(self.live_pages))
    }

    /// Forgets all hits.
    pub fn cool(&mut self) {
        self.stamp = self.stamp.checked_add(1).unwrap_or(1);
        self.hot_pages = 0;
    }
}

/// What decides between the queues for blocks that come back, on one device.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Pages that the main queue may take: what cold entries it gave up.
    allowance_pages: u64,
    /// Pages that the main queue took without: what was wanted by name. It gives up as many, warm or not.
    owed_pages: u64,
    /// Pages of blocks that came back and found no room in it since the hand last moved.
    rejected_pages: u64,
    /// The hand is to move.
    pub hand_is_due: bool,
}

/// What is known when a block comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub pages: u64,
    pub is_ghost: bool,
    /// A user named it: a warm-up.
    pub is_wanted: bool,
    /// There are free regions to spare.
    pub has_room: bool,
    /// Something was evicted before.
    pub has_evicted: bool,
    /// Regions of the small queue, and in all.
    pub small: usize,
    pub regions: usize,
    pub region_pages: u64,
}

impl Admission {
    /// The queue for a block.
    pub fn queue_for(&mut self, arrival: Arrival) -> Queue {
        if !arrival.has_evicted {
            let filled = arrival.small >= small_max(arrival.regions);
            return if filled { Queue::Main } else { Queue::Small };
        }
        if arrival.is_wanted {
            // In the small queue one part of a warm-up would push out the one before.
            self.owe(arrival.pages, arrival.has_room);
            return Queue::Main;
        }
        if !arrival.is_ghost {
            return Queue::Small;
        }
        if let Some(left) = self.allowance_pages.checked_sub(arrival.pages) {
            self.allowance_pages = left;
            return Queue::Main;
        }
        self.rejected_pages += arrival.pages;
        if self.rejected_pages * 100 >= arrival.region_pages * HAND_PERCENT {
            self.rejected_pages = 0;
            self.hand_is_due = true;
        }
        Queue::Small
    }

    /// The main queue takes so many pages that were wanted by name.
    pub fn owe(&mut self, pages: u64, has_room: bool) {
        let allowed = self.allowance_pages.min(pages);
        self.allowance_pages -= allowed;
        if !has_room {
            self.owed_pages += pages - allowed;
        }
    }

    /// A main region gave up so many pages.
    pub fn allow(&mut self, pages: u32) {
        let paid = self.owed_pages.min(u64::from(pages));
        self.owed_pages -= paid;
        self.allowance_pages += u64::from(pages) - paid;
    }

    /// Whether the main queue took in more than it gave up.
    pub fn owes(&self) -> bool {
        self.owed_pages > 0
    }
}

/// Regions that the small queue may hold.
pub(super) fn small_max(regions: usize) -> usize {
    (regions / SMALL_SHARE).max(1)
}

/// The queue whose oldest region makes room. `small` and `main` are complete regions.
pub(super) fn reclaim_first(
    small: usize,
    main: usize,
    regions: usize,
    main_is_warm: bool,
) -> Queue {
    if small > small_max(regions) || main == 0 || (main_is_warm && small > 1) {
        Queue::Small
    } else {
        Queue::Main
    }
}
