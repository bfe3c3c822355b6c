//! When something cannot be had any more: writes are dropped rather than held for ever, and room is
//! made without moving anything.

use std::collections::BTreeSet;

use super::device::Log;
use super::index::Extent;
use super::layout::Queue;
use super::reclaim::{FREE_MIN, RECLAIM_PAUSE, Reclaim};
use super::stream::{Done, From};
use super::tier::Tier;
use crate::identity::BlockId;
use crate::limits::PAGE_BYTES;
use crate::ports::{BlockDevice, Time};

impl<D: BlockDevice> Log<D> {
    /// What is staged will not be written.
    pub fn drop_writes(&mut self, tier: &mut Tier) {
        for queue in [Queue::Small, Queue::Main] {
            self.drop_staged(queue, tier);
            self.streams[queue as usize].hurry = false;
            self.streams[queue as usize].sealing.clear();
        }
        if let Some(reclaim) = self.reclaim.take().filter(|reclaim| reclaim.for_pins) {
            self.stale.retry(reclaim.region);
        }
        self.stale.despair_of_all();
        self.discards.clear();
        self.emptied.clear();
    }

    fn drop_staged(&mut self, queue: Queue, tier: &mut Tier) {
        let stream = &mut self.streams[queue as usize];
        stream.staged_pages = 0;
        stream.oldest = None;
        for part in std::mem::take(&mut stream.staged) {
            if part.from.is_fill() {
                self.stats.fills_dropped += 1;
                self.stats.dropped_bytes += part.bytes.len() as u64;
            }
            self.settle_part(&part.done(), tier);
        }
    }

    /// What of a block is not in the index yet shall never get there: it is forgotten.
    pub fn forget_unwritten(&mut self, block: BlockId, tier: &mut Tier) {
        for queue in [Queue::Small, Queue::Main] {
            let mut gone = Vec::new();
            self.streams[queue as usize].unstage(|part| {
                let this = part.block == block;
                gone.extend(this.then(|| part.done()));
                this
            });
            for part in &gone {
                self.settle_part(part, tier);
            }
            self.moved(&gone);
        }
        let moved: Vec<Done> = self
            .batches
            .iter_mut()
            .flat_map(|(_, batch)| batch.forget(block))
            .collect();
        self.moved(&moved);
        if let Some(recovery) = &mut self.recovery {
            recovery.forget(block);
        }
    }

    /// Of a device that is gone: no batch will be finished, no buffer is needed.
    pub fn drop_batches(&mut self, tier: &mut Tier) {
        for batch in std::mem::take(&mut self.batches) {
            let (_, batch) = batch;
            if batch.pending > 0 {
                for part in &batch.parts {
                    self.settle_part(part, tier);
                }
            }
        }
        self.regions.drop_buffers();
    }

    /// Drops what is staged for a queue when no region for it can be had, now or by any reclaim.
    pub fn drop_if_stuck(&mut self, now: Time, queue: Queue, tier: &mut Tier) -> bool {
        let stream = &self.streams[queue as usize];
        let has_region = stream.open.is_some() || stream.next.is_some() || stream.opening;
        if !stream.is_due(now, self.settling) || has_region || self.discarding + self.voiding > 0 {
            return false;
        }
        let usable = self.regions.usable(self.may_grow());
        match queue {
            Queue::Main if usable == 0 && self.reclaim.is_some() => {
                self.evict_instead(tier) || self.give_up_reclaim(now, tier)
            }
            _ if self.may_come(usable, queue) => false,
            _ => {
                self.drop_staged(queue, tier);
                self.stop_if_mostly_bad(tier);
                true
            }
        }
    }

    /// Whether a region may still be had.
    fn may_come(&self, usable: usize, queue: Queue) -> bool {
        let needs = match queue {
            Queue::Small => FREE_MIN,
            Queue::Main => 1,
        };
        let reclaimable = self.regions.queued(Queue::Small) + self.regions.queued(Queue::Main);
        let sealing = self
            .streams
            .iter()
            .any(|stream| stream.opening || !stream.sealing.is_empty());
        usable >= needs || reclaimable > 0 || self.reclaim.is_some() || sealing
    }

    /// There is no region to move to: what reclaim would keep is evicted, but for what is pinned.
    fn evict_instead(&mut self, tier: &mut Tier) -> bool {
        let Some(reclaim) = self.reclaim.as_mut().filter(|reclaim| !reclaim.for_pins) else {
            return false;
        };
        let mut gone = reclaim.keep_pinned_only();
        let stream = &mut self.streams[Queue::Main as usize];
        stream.unstage(|part| match part.from {
            From::Reclaim(old) if !old.pinned => {
                reclaim.part_moved(old.place.region());
                gone.push(old);
                true
            }
            _ => false,
        });
        let some = !gone.is_empty();
        for extent in gone {
            self.evict(&extent, tier);
        }
        some
    }

    /// What is left of the region is pinned, and cannot be moved: it stays where it is. Staged fills give way.
    fn give_up_reclaim(&mut self, now: Time, tier: &mut Tier) -> bool {
        let Some(region) = self.reclaim.as_ref().and_then(Reclaim::is_waiting) else {
            return false;
        };
        if let Some(reclaim) = self.reclaim.take() {
            self.sparse_failed = reclaim.keeps_all;
            if reclaim.for_pins {
                self.stale.retry(region);
            }
        }
        self.streams[Queue::Main as usize].hurry = false;
        self.reclaim_after = now + RECLAIM_PAUSE;
        self.drop_staged(Queue::Main, tier);
        self.put_back(region);
        true
    }

    /// Forgets an entry that was not wanted to go.
    pub fn evict(&mut self, extent: &Extent, tier: &mut Tier) {
        if let Some(gone) = tier.remove(extent.block, extent.first_page, extent.place) {
            self.stats.entries_evicted += 1;
            self.stats.evicted_bytes += u64::from(gone.pages) * PAGE_BYTES as u64;
            tier.ghosts.remember(gone.block);
        }
    }

    /// Something is to be written, perhaps for the first time since the start. Not before that is room made for it: under
    /// another number of cores a core may find none, and whoever only reads shall lose nothing.
    pub fn want_writes(&mut self, tier: &mut Tier) {
        if !std::mem::replace(&mut self.writes_wanted, true) {
            self.leave_room(tier);
        }
    }

    /// After recovery regions that had been emptied before may have been found again with all that was in
    /// them. Frees those that hold least, so that appending can begin.
    fn leave_room(&mut self, tier: &mut Tier) {
        let missing = FREE_MIN.saturating_sub(self.regions.usable(true) + self.voiding);
        if missing == 0 {
            return;
        }
        tier.has_evicted = true;
        let number = self.number;
        let mut pinned = BTreeSet::new();
        if tier.live(number).pinned > 0 {
            let all = tier.index.iter().filter(|extent| extent.pinned);
            pinned.extend(all.map(|extent| extent.place.region()));
        }
        let mut emptiest: Vec<(u32, u32)> = self
            .regions
            .queue_members()
            .filter(|region| !pinned.contains(region))
            .map(|region| (tier.heat(number, region).live_pages, region))
            .collect();
        emptiest.sort_unstable();
        emptiest.truncate(missing);
        let gone: BTreeSet<u32> = emptiest.iter().map(|(_, region)| *region).collect();
        let before = tier.live(number);
        tier.remove_where(|extent| {
            extent.place.device() == number && gone.contains(&extent.place.region())
        });
        let after = tier.live(number);
        self.stats.entries_evicted += before.entries - after.entries;
        self.stats.evicted_bytes += (before.pages - after.pages) * PAGE_BYTES as u64;
        for region in gone {
            self.stats.regions_reclaimed += 1;
            self.regions.dequeue(region);
            self.give_up(region);
        }
    }

    /// Forgets entries of other cores' regions that those cores have opened anew. A sweep looks at
    /// the whole index: only when there is enough to find.
    pub fn sweep_foreign(&mut self, tier: &mut Tier) {
        let stale: BTreeSet<u32> = self
            .reads
            .foreign
            .iter()
            .filter(|(region, foreign)| {
                let now = self.shared.generation(**region);
                now != 0 && now != foreign.generation
            })
            .map(|(region, _)| *region)
            .collect();
        self.stale.forget_all(|region| stale.contains(&region));
        let enough = (self.reads.foreign.len() / 16).max(1);
        if stale.len() < enough {
            return;
        }
        let number = self.number;
        tier.remove_where(|extent| {
            extent.place.device() == number && stale.contains(&extent.place.region())
        });
        self.reads
            .foreign
            .retain(|region, _| !stale.contains(region));
    }
}
