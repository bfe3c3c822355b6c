//! Entries that are never evicted, and how a restart knows of them.
//!
//! ```text
//! pin -> the index says so at once, and what is written of the block from now on
//!   -> open region: closed, and its footer says so
//!   -> sealed one: gone through, and pinned entries that it does not know as such are moved to the main queue
//! unpin -> the same, but for a sealed region: all that lives in it is moved, and its header made void
//! ```
//!
//! Of two entries with the same pages recovery takes the one in the younger region: what is moved must get into a
//! region that was opened after the one that it leaves, if that one stays. An entry that is moved in two parts replaces
//! nothing at recovery: what says that it is pinned must go. A region in which other cores have entries stays all
//! the same: what was released in it may be found pinned again.

use std::collections::BTreeSet;
use std::time::Duration;

use super::device::Log;
use super::index::Extent;
use super::layout::Queue;
use super::regions::{Region, State};
use super::stream::Open;
use super::tier::Tier;
use crate::identity::BlockId;
use crate::limits::PAGE_BYTES;
use crate::ports::{BlockDevice, Time};

/// Pinned entries may take one part in this many of a core's regions, and of its index: with more, reclaim would move
/// them around most of the time.
const PINNED_SHARE: u64 = 2;
/// Regions are gone through so long after the first pin in them: there may be more.
const WRITE_DELAY: Duration = Duration::from_secs(2);

/// A pin that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} MiB are pinned on this core's share of the cache, and it takes no more than {} MiB in pins: unpin something, or \
     give more --cache-size",
    pinned_bytes >> 20,
    pinned_bytes_max >> 20
)]
pub struct PinRefused {
    /// What is pinned already.
    pub pinned_bytes: u64,
    /// What may be.
    pub pinned_bytes_max: u64,
}

/// Regions with entries that say something else on the device than the index does.
#[derive(Debug, Default)]
pub(super) struct Stale {
    regions: BTreeSet<u32>,
    after: Time,
    /// Those of which nothing can be done about it: other cores', those that cannot be written, and all of a device
    /// that takes no writes.
    hopeless: BTreeSet<u32>,
}

impl Stale {
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Whether what can be done was done, and nothing is left of which nothing can be done.
    pub fn is_over(&self) -> bool {
        self.regions.is_empty() && self.hopeless.is_empty()
    }

    pub fn is_hopeless(&self) -> bool {
        !self.hopeless.is_empty()
    }

    pub fn contains(&self, region: u32) -> bool {
        self.regions.contains(&region)
    }

    /// Whether something may be done about it now.
    pub fn is_due(&self, now: Time) -> bool {
        !self.regions.is_empty() && self.after <= now
    }

    /// When something is to be done about it.
    pub fn due_at(&self) -> Time {
        match self.regions.is_empty() {
            true => Time::NEVER,
            false => self.after,
        }
    }

    /// Before an orderly end: there will be no more pins.
    pub fn hurry(&mut self) {
        self.after = Time(0);
    }

    /// The region is emptied, or gone through.
    pub fn forget(&mut self, region: u32) {
        self.regions.remove(&region);
    }

    /// The region was not gone through to its end.
    pub fn retry(&mut self, region: u32) {
        self.regions.insert(region);
    }

    /// Nothing can be done about the region.
    pub fn despair(&mut self, region: u32) {
        self.regions.remove(&region);
        self.hopeless.insert(region);
    }

    /// The device takes no writes any more.
    pub fn despair_of_all(&mut self) {
        self.hopeless.append(&mut self.regions);
    }

    /// Nothing of this core's is in these regions any more.
    pub fn forget_all(&mut self, gone: impl Fn(u32) -> bool) {
        self.regions.retain(|region| !gone(*region));
        self.hopeless.retain(|region| !gone(*region));
    }
}

impl<D: BlockDevice> Log<D> {
    /// Bytes that may be pinned here.
    pub fn pinned_bytes_max(&self) -> u64 {
        self.regions.len() as u64 * u64::from(self.geometry.region_bytes) / PINNED_SHARE
    }

    /// What the device says of an entry in this region is out of date.
    pub fn note_stale(&mut self, region: u32) {
        let can_write = self.is_writable() || self.is_recovering();
        if !can_write || !self.regions.is_own(region) {
            self.stale.despair(region);
        } else {
            let delay = if self.settling {
                Duration::ZERO
            } else {
                WRITE_DELAY
            };
            if self.stale.is_empty() {
                self.stale.after = self.now + delay;
            }
            self.stale.regions.insert(region);
        }
    }

    /// The next region to go through, out of its queue; none when there is none now.
    pub fn take_stale(&mut self) -> Option<u32> {
        let regions: Vec<u32> = self.stale.regions.iter().copied().collect();
        for region in regions {
            match self.regions.get(region).map(Region::state) {
                Some(State::Sealed | State::Abandoned) => {
                    self.stale.forget(region);
                    self.regions.dequeue(region);
                    return Some(region);
                }
                // Its footer will say what the index does.
                Some(State::Open) => self.close_region(region),
                // Emptied, but its header could not be made void.
                Some(State::Free { punched: false }) => self.void_again(region),
                Some(State::Free { punched: true }) | None => self.stale.forget(region),
                Some(_) => {}
            }
        }
        None
    }

    fn void_again(&mut self, region: u32) {
        if self.now < self.discard_after {
            return;
        }
        match self.regions.unfree(region) {
            true => self.void_later(region),
            false => self.stale.despair(region),
        }
    }

    /// Whether what is moved out of `region` gets into a younger one. Where it would not, the main queue goes on to
    /// its next.
    pub fn moves_to_younger(&mut self, region: u32) -> bool {
        let sequence = |number: u32| self.regions.get(number).map_or(0, |entry| entry.sequence);
        let left = sequence(region);
        let is_old = |open: &Open| sequence(open.region) <= left;
        let stream = &self.streams[Queue::Main as usize];
        let is_open_old = stream.open.as_ref().is_some_and(is_old);
        let is_next_old = stream.next.as_ref().is_some_and(is_old);
        let stream = &mut self.streams[Queue::Main as usize];
        if is_open_old {
            stream.sealing.extend(stream.open.take());
        }
        if is_next_old {
            stream.sealing.extend(stream.next.take());
        }
        // One that is being opened may be older.
        !stream.opening
    }

    /// The region is appended to no more, and sealed.
    fn close_region(&mut self, region: u32) {
        for stream in &mut self.streams {
            let this = |open: &Open| open.region == region;
            if stream.open.as_ref().is_some_and(this) {
                stream.sealing.extend(stream.open.take());
            }
            if stream.next.as_ref().is_some_and(this) {
                stream.sealing.extend(stream.next.take());
            }
        }
    }
}

impl Tier {
    /// Whether the block's entries are never evicted.
    pub fn is_pinned(&self, block: BlockId) -> bool {
        self.index.pinned() > 0 && self.index.extents(block).any(|extent| extent.pinned)
    }

    /// Pins or releases a block's entries; those that are changed by it.
    pub fn pin(&mut self, block: BlockId, pinned: bool) -> Vec<Extent> {
        let extents = self.index.extents(block);
        let changed: Vec<Extent> = extents.filter(|extent| extent.pinned != pinned).collect();
        for extent in &changed {
            self.count_pinned(extent, pinned);
        }
        self.index.pin(block, pinned);
        changed
    }
}

/// Whether so many pages and entries more fit.
pub(super) fn fits(
    tier: &Tier,
    log: &Log<impl BlockDevice>,
    (entries, pages): (u64, u64),
) -> Result<(), PinRefused> {
    let live = tier.live(log.number);
    let pinned_bytes_max = log.pinned_bytes_max();
    let pinned_bytes = live.pinned_pages * PAGE_BYTES as u64;
    let bytes = pinned_bytes + pages * PAGE_BYTES as u64;
    let entries = (tier.index.pinned() as u64 + entries) * PINNED_SHARE;
    if bytes > pinned_bytes_max || entries > tier.index.capacity() as u64 {
        return Err(PinRefused {
            pinned_bytes,
            pinned_bytes_max,
        });
    }
    Ok(())
}
