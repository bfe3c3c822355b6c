//! Emptied regions: their headers are made void, then they are free, or given back to the device.
//!
//! ```text
//! nothing lives in it -> what replaced it lasts -> no readers -> header void -> flush -> free
//! ```
//!
//! Without the void header the next run would find again what was evicted, for as long as the region is not opened.

use std::time::Duration;

use super::device::Log;
use super::flush::Waits;
use super::layout::{Queue, VoidHeader};
use super::log::Buffers;
use super::ops::Op;
use super::regions::State;
use super::tier::Tier;
use crate::limits::PAGE_BYTES;
use crate::ports::{BlockDevice, DeviceError, DeviceOp, Time};

/// A main region of whose pages fewer than so many per cent live is reclaimed first, and what lives is kept: the small
/// queue would give way for ever while nothing holds the room. No main region is warm then.
const SPARSE_MAIN_PERCENT: u64 = 50;
/// The same for a small region. Less, since what is kept gets into the main queue without having been read again.
const SPARSE_SMALL_PERCENT: u64 = 25;
/// Where more than one part in this many of all pages died where they lie (evicted by name, replaced, merged), what lives
/// between them is gathered instead of evicted, from regions of which fewer than so many per cent live.
const DEAD_SHARE: u64 = 32;
const GATHER_PERCENT: u64 = 90;

/// After a header could not be made void no free region is given back for this long: it would be the same one.
const DISCARD_PAUSE: Duration = Duration::from_secs(1);

/// Whether a write failed for a reason that lies where it went, and will come back there.
pub(super) fn is_of_the_place(error: DeviceError) -> bool {
    matches!(error, DeviceError::Media | DeviceError::Write)
}

impl<D: BlockDevice> Log<D> {
    /// Free regions that still take room on the device are given back first.
    pub fn give_back_free(&mut self, now: Time) -> bool {
        if now < self.discard_after {
            return false;
        }
        match self.regions.take_unpunched() {
            Some(region) => {
                self.discard_later(region);
                true
            }
            None => false,
        }
    }

    pub fn discard_later(&mut self, region: u32) {
        self.regions.set_state(region, State::Discarding);
        // Other cores' entries in it are void from here on, not only when it is opened anew.
        if let Some(entry) = self.regions.get_mut(region) {
            entry.generation = entry.generation.wrapping_add(1).max(1);
            self.shared.set_generation(region, entry.generation);
        }
        self.discarding += 1;
        self.discards.push_back(region);
    }

    /// Voids the headers of regions that are to be free, or to be given back: what a device gives for discarded
    /// bytes may be anything, also the old header.
    pub fn void_headers(&mut self, buffers: &mut impl Buffers) -> bool {
        let mut some = false;
        while let Some(region) = self.discards.front().copied() {
            let Ok(mut lease) = buffers.lease(PAGE_BYTES) else {
                return some;
            };
            self.discards.pop_front();
            let entry = self.regions.get(region);
            match entry.filter(|entry| entry.state() == State::Voiding) {
                Some(entry) => VoidHeader {
                    region,
                    generation: entry.generation,
                }
                .encode(self.shared.log, lease.bytes_mut()),
                // As what was discarded will be read.
                None => lease.bytes_mut().fill(0),
            }
            let bytes = buffers.freeze(lease);
            self.stats.overhead_bytes += bytes.len() as u64;
            let tag = self.ops.begin(Op::Void(region));
            let offset_bytes = self.offset_bytes(region, 0);
            self.submit(DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            });
            some = true;
        }
        some
    }

    /// A region's header is void, or could not be made so.
    pub fn void_done(
        &mut self,
        now: Time,
        region: u32,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        match result {
            Ok(()) => self.flush.request(Waits::Void(region)),
            Err(error) => {
                self.not_voided(now, region, is_of_the_place(error));
                self.fault(now, error, tier);
            }
        }
    }

    /// The void header lasts.
    pub fn void_lasts(&mut self, region: u32) {
        // Nothing on the device says anything of what was here, right or wrong.
        self.stale.forget(region);
        let state = self.regions.get(region).map(|entry| entry.state());
        if state == Some(State::Voiding) {
            self.voiding -= 1;
            return self.regions.free(region, false);
        }
        self.discard(region);
    }

    /// Nobody knows what a region's header says. Whoever opens it writes a new one first, so that it is free all the same,
    /// unless it cannot be written: but what was evicted from it may be found by the next run.
    pub fn not_voided(&mut self, now: Time, region: u32, is_bad: bool) {
        self.stats.write_errors += 1;
        match self.regions.get(region).map(|entry| entry.state()) {
            Some(State::Voiding) => self.voiding -= 1,
            _ => self.discarding -= 1,
        }
        if let Some(entry) = self.regions.get_mut(region) {
            entry.bad |= is_bad;
        }
        self.regions.free(region, false);
        self.discard_after = now + DISCARD_PAUSE;
    }

    pub fn discard(&mut self, region: u32) {
        let tag = self.ops.begin(Op::Discard(region));
        self.submit(DeviceOp::Discard {
            tag,
            offset_bytes: self.geometry.offset_bytes(region),
            len_bytes: u64::from(self.geometry.region_bytes),
        });
    }

    pub fn discard_done(
        &mut self,
        now: Time,
        region: u32,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        match result {
            Ok(()) => {
                self.discarding -= 1;
                self.regions.discarded(region, true);
            }
            Err(error) => {
                self.stats.write_errors += 1;
                self.discarding -= 1;
                self.regions.discarded(region, false);
                self.fault(now, error, tier);
            }
        }
    }

    /// Regions in which nothing lives any more need no reclaim.
    pub fn empty_dead(&mut self, tier: &mut Tier) -> bool {
        let emptied = tier.take_emptied(self.number);
        self.emptied.extend(
            emptied
                .into_iter()
                .map(|region| (region, self.batches_begun)),
        );
        if self.emptied.is_empty() {
            return false;
        }
        // What replaced its entries must be named before they are not: batches begun before it was emptied are done.
        let oldest = self.batches.iter().map(|(_, batch)| batch.number).min();
        let mut some = false;
        for (region, since) in std::mem::take(&mut self.emptied) {
            let state = self.regions.get(region).map(|entry| entry.state());
            let is_final = matches!(state, Some(State::Sealed | State::Abandoned));
            let is_gone = matches!(
                state,
                None | Some(State::Free { .. } | State::Voiding | State::Discarding)
            );
            if is_gone || self.lives(region, tier) {
                continue;
            }
            if !is_final || oldest.is_some_and(|oldest| oldest < since) {
                self.emptied.insert(region, since);
                continue;
            }
            some = true;
            self.regions.dequeue(region);
            self.regions.set_state(region, State::Reclaiming);
            tier.tables.forget(self.number, region);
            self.flush.request(Waits::Emptied(region));
        }
        some
    }

    /// Whether something of this core's lives in a region of its own, or may of another core's.
    pub fn lives(&self, region: u32, tier: &Tier) -> bool {
        let rehomed = self.regions.get(region).is_some_and(|entry| entry.rehomed);
        rehomed || tier.heat(self.number, region).live_pages > 0
    }

    /// What replaced a region's entries lasts.
    pub fn emptied_lasts(&mut self, region: u32) {
        self.lingering.push(region);
    }

    /// Emptied regions are given up when nobody reads there any more: a read that hangs holds one region, and
    /// no reclaim.
    pub fn free_emptied(&mut self) -> bool {
        let mut some = false;
        let mut at = 0;
        while let Some(region) = self.lingering.get(at).copied() {
            if self
                .regions
                .get(region)
                .is_some_and(|entry| entry.readers > 0)
            {
                at += 1;
                continue;
            }
            some = true;
            self.lingering.swap_remove(at);
            self.give_up(region);
        }
        some
    }

    /// The region holds nothing any more, and nobody of this core reads there.
    pub fn give_up(&mut self, region: u32) {
        let rehomed = self.regions.get(region).is_some_and(|entry| entry.rehomed);
        self.regions.vacate(region, State::Voiding);
        if self.regions.take_partial(region) {
            return self.discard_later(region);
        }
        if rehomed && !self.stale.contains(region) {
            // The next run's other cores may find theirs, as long as it is not opened.
            return self.regions.free(region, false);
        }
        self.void_later(region);
    }

    /// An empty region is free when its header is void.
    pub fn void_later(&mut self, region: u32) {
        self.regions.set_state(region, State::Voiding);
        self.voiding += 1;
        self.discards.push_back(region);
    }

    /// Sealed regions of which little lives: the one with the least, if moving that is worth the room. Of a region in
    /// which other cores have entries nobody knows how much lives: it goes by its age.
    pub fn sparsest(&self, tier: &Tier) -> Option<u32> {
        let pages = u64::from(self.geometry.region_pages());
        let [main_percent, small_percent] = self.sparse_percents(tier);
        let live = |region: &u32| u64::from(tier.heat(self.number, *region).live_pages);
        let of = |queue: Queue, percent: u64| {
            let members = self.regions.members(queue);
            let sparse = |region: &u32| live(region) * 100 < pages * percent;
            let shared = |region: u32| self.regions.get(region).is_some_and(|entry| entry.rehomed);
            let sparse = members.filter(|region| sparse(region) && !shared(*region));
            sparse.min_by_key(live)
        };
        let main = of(Queue::Main, main_percent);
        let small = of(Queue::Small, small_percent);
        main.into_iter().chain(small).min_by_key(live)
    }

    /// A region of which fewer per cent live is sparse, in the main and in the small queue.
    fn sparse_percents(&self, tier: &Tier) -> [u64; 2] {
        let dead = |region| tier.heat(self.number, region).dead_pages();
        let dead: u64 = self.regions.queue_members().map(dead).sum();
        let pages = self.regions.len() as u64 * u64::from(self.geometry.region_pages());
        match dead * DEAD_SHARE > pages {
            true => [GATHER_PERCENT; 2],
            false => [SPARSE_MAIN_PERCENT, SPARSE_SMALL_PERCENT],
        }
    }
}
