//! Emptying the oldest region: what is worth keeping is read, checked and appended to the main queue.
//!
//! ```text
//! choose -> footer -> decide for each entry -> move -> moved parts last -> no readers -> void -> free
//! ```
//!
//! Of a region of which little lives all that does is kept, wherever it stands in its queue.

use std::rc::Rc;
use std::time::Duration;

use crc_fast::crc32_iscsi;

use super::device::Log;
use super::index::{Extent, LOOK_AHEAD};
use super::layout::{EntryRecord, Queue, decode_checksums, decode_entries};
use super::log::Buffers;
use super::ops::Op;
use super::policy;
use super::regions::State;
use super::stream::{From, Part};
use super::tier::Tier;
use super::writer::Batch;
use crate::arena::Lease;
use crate::checksum::BlockSeed;
use crate::limits::{CHUNK_BYTES, DEVICE_RECLAIM_READ_S_MAX, PAGE_BYTES};
use crate::ports::{BlockDevice, DeviceError, DeviceOp, Time};

/// Reads of kept entries under way at a time.
const READS_MAX: usize = 4;
/// After a reclaim that was in vain no other begins for this long.
pub(super) const RECLAIM_PAUSE: Duration = Duration::from_secs(1);
/// Entries that are decided on in one turn: a region may hold thousands, and readers wait meanwhile.
const DECIDE_MAX: usize = 256;
/// Free regions that reclaim sees to.
pub(super) const FREE_MIN: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The footer has to be read.
    Tables,
    /// It is on its way.
    ReadingTables,
    /// Each entry is kept or evicted, some in each turn.
    Deciding,
    /// Kept entries are read and staged.
    Moving,
}

/// The region being emptied.
#[derive(Debug)]
pub(super) struct Reclaim {
    pub region: u32,
    step: Step,
    checksums: Box<[u32]>,
    /// Entries of the region, and how many of them are decided on.
    records: Vec<EntryRecord>,
    decided: usize,
    /// Entries that stay, with their lengths in bytes.
    keeps: Vec<(Extent, u32)>,
    /// Which kept entry is read next, and from which of its pages.
    next: (usize, u32),
    reading: usize,
    /// When one of its reads ended last, or the first of those under way began.
    read_moved: Time,
    /// Parts staged or written whose batch is not done.
    moving: usize,
    /// Something could not be moved.
    failed: bool,
    /// The region stays: what is moved are entries of which the device does not know whether they are pinned.
    pub for_pins: bool,
    /// All that lives in it stays: there is little.
    pub keeps_all: bool,
    /// Entries of the index when it began, when they are why.
    crowd: Option<usize>,
}

impl Reclaim {
    /// A part of an entry of `region` could not be moved: the region stays. False when it is not this one.
    pub fn fail(&mut self, region: u32) -> bool {
        let this = region == self.region;
        self.failed |= this;
        this
    }

    /// A part of an entry of `region` became two.
    pub fn part_split(&mut self, region: u32) {
        if region == self.region {
            self.moving += 1;
        }
    }

    /// The region, when nothing of it is being read: what was waits to be written, or there is no more.
    pub fn is_waiting(&self) -> Option<u32> {
        let waits = self.step == Step::Moving && self.reading == 0;
        waits.then_some(self.region)
    }

    /// When its device is given up, unless one of its reads ends before.
    pub fn gives_up_at(&self) -> Time {
        match self.reading > 0 || self.step == Step::ReadingTables {
            true => self.read_moved + Duration::from_secs(DEVICE_RECLAIM_READ_S_MAX),
            false => Time::NEVER,
        }
    }

    /// Gives up entries that were not read yet, but for pinned ones.
    pub fn keep_pinned_only(&mut self) -> Vec<Extent> {
        let unread = self.next.0 + usize::from(self.next.1 > 0);
        let mut gone = Vec::new();
        let mut number = 0;
        self.keeps.retain(|(extent, _)| {
            number += 1;
            let stays = number <= unread || extent.pinned;
            if !stays {
                gone.push(*extent);
            }
            stays
        });
        gone
    }

    /// A part of an entry of `region` has its end.
    pub fn part_moved(&mut self, region: u32) {
        if region == self.region {
            self.moving = self.moving.saturating_sub(1);
        }
    }
}

impl<D: BlockDevice> Log<D> {
    pub fn turn_reclaim(&mut self, now: Time, tier: &mut Tier, buffers: &mut impl Buffers) -> bool {
        if self.is_recovering() {
            return false;
        }
        let given = self.empty_dead(tier) | self.free_emptied() | self.void_headers(buffers);
        if given || (self.must_shrink() && self.give_back_free(now)) {
            return true;
        }
        let started = self.reclaim.is_none() && self.start_reclaim(now, tier);
        let Some(reclaim) = &self.reclaim else {
            return started;
        };
        match reclaim.step {
            Step::Tables => self.read_tables(buffers) || started,
            Step::ReadingTables => started,
            Step::Deciding => {
                self.decide_some(tier);
                true
            }
            Step::Moving => self.move_kept(buffers) | self.finish_reclaim(now, tier) | started,
        }
    }

    fn start_reclaim(&mut self, now: Time, tier: &mut Tier) -> bool {
        if now < self.reclaim_after {
            return false;
        }
        let short =
            self.writes_wanted && self.regions.usable(self.may_grow()) + self.voiding < FREE_MIN;
        let wanted = short || self.must_evict() || tier.is_crowded();
        let pins = !wanted && self.stale.is_due(now);
        // The look at the batches comes last: there may be tens of thousands of parts in them.
        if !(wanted || pins || self.admission.hand_is_due) || self.has_moving_batches() {
            return false;
        }
        let stale = pins.then(|| self.take_stale()).flatten();
        let for_pins = stale.is_some();
        if !(wanted || for_pins || self.admission.hand_is_due) {
            return false;
        }
        // What is moved wants a region to go to.
        self.want_writes(tier);
        let hand = !for_pins && std::mem::take(&mut self.admission.hand_is_due);
        // Moving entries makes them no fewer.
        let may_move = wanted && !for_pins && !hand && !tier.is_crowded();
        let may_move = may_move && !std::mem::take(&mut self.sparse_failed);
        let sparse = may_move.then(|| self.sparsest(tier)).flatten();
        let keeps_all = sparse.is_some();
        let region = match (stale, sparse) {
            (Some(region), _) => Some(region),
            (None, Some(region)) => {
                self.regions.dequeue(region);
                Some(region)
            }
            (None, None) if hand => self.move_hand(tier),
            (None, None) => self.oldest_region(tier),
        };
        let Some(region) = region else {
            return false;
        };
        if keeps_all {
            self.stats.regions_reclaimed += 1;
        } else if !for_pins {
            tier.has_evicted = true;
            // More ghosts than entries would let blocks into the main queue that no cache of this size could
            // have kept.
            tier.ghosts.set_max(tier.index.len().max(64));
            self.stats.regions_reclaimed += 1;
        }
        self.regions.set_state(region, State::Reclaiming);
        self.reclaim = Some(Reclaim {
            region,
            step: Step::Tables,
            checksums: Box::default(),
            records: Vec::new(),
            decided: 0,
            keeps: Vec::new(),
            next: (0, 0),
            reading: 0,
            read_moved: now,
            moving: 0,
            failed: false,
            for_pins,
            keeps_all,
            crowd: (!short && !hand && !for_pins && !self.must_evict()).then(|| tier.index.len()),
        });
        true
    }

    /// Blocks that came back found no room in the main queue: its oldest region gives way if it is cold,
    /// and else gets another round where it is.
    fn move_hand(&mut self, tier: &mut Tier) -> Option<u32> {
        let region = self.regions.take_oldest(Queue::Main)?;
        let number = self.number;
        let heat = tier.heat(number, region);
        let pages = self.geometry.region_pages();
        if !heat.is_warm(pages) {
            self.admission.allow(heat.cold_pages());
            return Some(region);
        }
        if let Some(heat) = tier.heat_mut(number, region) {
            heat.cool();
        }
        self.regions.enqueue(region);
        None
    }

    /// The region that makes room.
    fn oldest_region(&mut self, tier: &mut Tier) -> Option<u32> {
        let (small, main) = (
            self.regions.queued(Queue::Small),
            self.regions.queued(Queue::Main),
        );
        if self.admission.owes() && main > 0 && small <= policy::small_max(self.regions.len()) {
            return self.coldest_main(main, tier);
        }
        let warm = self.regions.oldest(Queue::Main).is_some_and(|region| {
            let pages = self.geometry.region_pages();
            tier.heat(self.number, region).is_warm(pages)
        });
        let first = policy::reclaim_first(small, main, self.regions.len(), warm);
        let second = match first {
            Queue::Small => Queue::Main,
            Queue::Main => Queue::Small,
        };
        self.regions
            .take_oldest(first)
            .or_else(|| self.regions.take_oldest(second))
    }

    /// The oldest of the main queue's regions that is not warm; all of them are looked at once at most, and what is warm
    /// is so no more.
    fn coldest_main(&mut self, main: usize, tier: &mut Tier) -> Option<u32> {
        let pages = self.geometry.region_pages();
        for _ in 0..=main {
            let region = self.regions.take_oldest(Queue::Main)?;
            let heat = tier.heat(self.number, region);
            if !heat.is_warm(pages) {
                self.admission.allow(heat.cold_pages());
                return Some(region);
            }
            if let Some(heat) = tier.heat_mut(self.number, region) {
                heat.cool();
            }
            self.regions.enqueue(region);
        }
        None
    }

    fn read_tables(&mut self, buffers: &mut impl Buffers) -> bool {
        let Some(region) = self.reclaim.as_ref().map(|reclaim| reclaim.region) else {
            return false;
        };
        let Some(entry) = self.regions.get(region) else {
            return false;
        };
        if let Some(held) = &entry.held {
            let (records, checksums) = (held.records.clone(), held.checksums.clone());
            self.decide(records, checksums.into_boxed_slice());
            return true;
        }
        let first = entry.entry_table_page;
        let pages = self.geometry.trailer_page() - first;
        let Ok(lease) = buffers.lease(pages as usize * PAGE_BYTES) else {
            return false;
        };
        let tag = self.ops.begin(Op::ReclaimTables);
        let offset_bytes = self.offset_bytes(region, first);
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.step = Step::ReadingTables;
            reclaim.read_moved = self.now;
        }
        self.submit(DeviceOp::Read {
            tag,
            offset_bytes,
            lease,
        });
        true
    }

    pub fn reclaim_tables_done(
        &mut self,
        now: Time,
        lease: Lease,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        let Some(region) = self.reclaim.as_ref().map(|reclaim| reclaim.region) else {
            return;
        };
        let Some(entry) = self.regions.get(region) else {
            return;
        };
        let table_pages = self.geometry.checksum_table_page() - entry.entry_table_page;
        let (table, checksums) = lease.bytes().split_at(table_pages as usize * PAGE_BYTES);
        let count = entry.entries as usize;
        let crcs = [crc32_iscsi(table), crc32_iscsi(checksums)];
        let known = entry.table_crcs;
        let records = (result.is_ok() && crcs == known)
            .then(|| decode_entries(table, count, &self.geometry))
            .flatten();
        match records {
            Some(records) => self.decide(records, decode_checksums(checksums)),
            None => {
                // Nobody can say any more what lies here: all of it is forgotten.
                self.forget_region(region, tier);
                self.decide(Vec::new(), Box::default());
            }
        }
        match result {
            Err(error) => {
                self.stats.read_errors += 1;
                self.fault(now, error, tier);
            }
            Ok(()) if crcs != known => {
                self.stats.checksum_failures += 1;
                self.silent_fault(now, "a damaged footer", tier);
            }
            Ok(()) => {}
        }
    }

    /// What lies in the region is known.
    fn decide(&mut self, records: Vec<EntryRecord>, checksums: Box<[u32]>) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.step = Step::Deciding;
            reclaim.records = records;
            reclaim.checksums = checksums;
        }
    }

    /// Keeps or evicts each of the next entries.
    fn decide_some(&mut self, tier: &mut Tier) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        let (region, for_pins) = (reclaim.region, reclaim.for_pins);
        let keeps_all = reclaim.keeps_all;
        let rehomed = self.regions.get(region).is_some_and(|entry| entry.rehomed);
        let records = std::mem::take(&mut reclaim.records);
        let end = records.len().min(reclaim.decided + DECIDE_MAX);
        let some = &records[reclaim.decided.min(end)..end];
        for near in some.chunks(LOOK_AHEAD) {
            tier.index
                .look_ahead(near.iter().map(|record| record.block));
        }
        let released = |record: &EntryRecord| record.pinned && !tier.is_pinned(record.block);
        if for_pins && !rehomed && some.iter().any(released) {
            return self.empty_for_pins(records);
        }
        let mut keeps = Vec::new();
        for record in some {
            let place = super::index::Place::new(self.number, region, record.region_page as u16);
            let Some(extent) = tier.index.get(record.block, record.first_page, place) else {
                continue;
            };
            if for_pins {
                if extent.pinned != record.pinned {
                    keeps.push((extent, record.len_bytes));
                }
                continue;
            }
            if keeps_all || extent.pinned || tier.is_hot(&extent) {
                keeps.push((extent, record.len_bytes));
                continue;
            }
            tier.remove(extent.block, extent.first_page, place);
            self.stats.entries_evicted += 1;
            self.stats.evicted_bytes += u64::from(record.len_bytes);
            tier.ghosts.remember(extent.block);
        }
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.keeps.extend(keeps);
            reclaim.decided = end;
            if end < records.len() {
                reclaim.records = records;
            } else {
                reclaim.step = Step::Moving;
            }
        }
    }

    /// What was released in a region would be found pinned for as long as its entries are there: all that lives in it
    /// is moved, and its header made void.
    fn empty_for_pins(&mut self, records: Vec<EntryRecord>) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        (reclaim.for_pins, reclaim.keeps_all) = (false, true);
        (reclaim.records, reclaim.decided) = (records, 0);
        reclaim.keeps.clear();
        self.stale.retry(reclaim.region);
        self.stats.regions_reclaimed += 1;
    }

    /// Reads kept entries, a chunk at a time.
    fn move_kept(&mut self, buffers: &mut impl Buffers) -> bool {
        let mut some = false;
        loop {
            let Some(reclaim) = &self.reclaim else {
                return some;
            };
            let (keep, page) = reclaim.next;
            let Some((extent, _)) = reclaim.keeps.get(keep).copied() else {
                break;
            };
            let (region, is_first) = (reclaim.region, reclaim.next == (0, 0));
            if reclaim.for_pins && is_first && !self.moves_to_younger(region) {
                return some;
            }
            let Some(reclaim) = &self.reclaim else {
                return some;
            };
            if reclaim.reading >= READS_MAX {
                return some;
            }
            let stream = &mut self.streams[Queue::Main as usize];
            if stream.has_batch() {
                // What is read is held until it is written: more would take the memory that writing needs.
                stream.hurry = true;
                return some;
            }
            let pages = (u32::from(extent.pages) - page).min((CHUNK_BYTES / PAGE_BYTES) as u32);
            let Ok(lease) = buffers.lease(pages as usize * PAGE_BYTES) else {
                return some;
            };
            let region = reclaim.region;
            let next = if page + pages < u32::from(extent.pages) {
                (keep, page + pages)
            } else {
                (keep + 1, 0)
            };
            if let Some(reclaim) = &mut self.reclaim {
                reclaim.next = next;
                if reclaim.reading == 0 {
                    reclaim.read_moved = self.now;
                }
                reclaim.reading += 1;
            }
            let tag = self.ops.begin(Op::ReclaimRead(keep, page as u16));
            let offset_bytes = self.offset_bytes(region, u32::from(extent.place.page) + page);
            self.submit(DeviceOp::Read {
                tag,
                offset_bytes,
                lease,
            });
            some = true;
        }
        // All is read: what is staged of it need not wait for more.
        let waits = self
            .reclaim
            .as_ref()
            .is_some_and(|reclaim| reclaim.reading == 0 && reclaim.moving > 0);
        self.streams[Queue::Main as usize].hurry = waits;
        some
    }

    pub fn reclaim_read_done(
        &mut self,
        now: Time,
        (keep, page): (usize, u16),
        lease: Lease,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
        buffers: &mut impl Buffers,
    ) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        let Some((extent, len_bytes)) = reclaim.keeps.get(keep).copied() else {
            return;
        };
        reclaim.reading -= 1;
        reclaim.read_moved = now;
        let first = usize::from(extent.place.page) + usize::from(page);
        let pages = lease.len() / PAGE_BYTES;
        let checksums: Rc<[u32]> = reclaim
            .checksums
            .get(first..first + pages)
            .unwrap_or_default()
            .into();
        let first_page = u32::from(extent.first_page) + u32::from(page);
        let mut lease = lease;
        lease.truncate(len_bytes as usize - usize::from(page) * PAGE_BYTES);
        if result.is_err() || !is_whole(&extent, first_page, lease.bytes(), &checksums) {
            self.evict(&extent, tier);
            if let Err(error) = result {
                self.stats.read_errors += 1;
                return self.fault(now, error, tier);
            }
            self.stats.checksum_failures += 1;
            return self.damaged(now, extent.place.region(), tier);
        }
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.moving += 1;
        }
        let part = Part {
            block: extent.block,
            first_page,
            bytes: buffers.freeze(lease),
            checksums,
            checksum_at: 0,
            from: From::Reclaim(extent),
        };
        self.streams[Queue::Main as usize].stage(now, part);
    }

    /// Whether parts of an earlier reclaim are still being written.
    fn has_moving_batches(&self) -> bool {
        let moves = |batch: &Batch| {
            let parts = &batch.parts;
            parts
                .iter()
                .any(|part| matches!(part.from, From::Reclaim(_)))
        };
        self.batches.iter().any(|(_, batch)| moves(batch))
    }

    /// The region is free when all that was kept lasts elsewhere and nobody reads here.
    fn finish_reclaim(&mut self, now: Time, tier: &mut Tier) -> bool {
        let Some(reclaim) = &self.reclaim else {
            return false;
        };
        let busy = reclaim.next.0 < reclaim.keeps.len() || reclaim.reading > 0;
        if busy || reclaim.moving > 0 {
            return false;
        }
        let Some(reclaim) = self.reclaim.take() else {
            return false;
        };
        let region = reclaim.region;
        self.streams[Queue::Main as usize].hurry = false;
        if reclaim.failed {
            // What could not be moved is still here.
            self.reclaim_after = now + RECLAIM_PAUSE;
            self.sparse_failed = reclaim.keeps_all;
            if reclaim.for_pins {
                self.stale.retry(region);
            }
            self.put_back(region);
            return true;
        }
        for (extent, _) in reclaim.keeps {
            tier.remove(extent.block, extent.first_page, extent.place);
        }
        if reclaim.for_pins {
            self.put_back(region);
            return true;
        }
        if reclaim
            .crowd
            .is_some_and(|before| tier.index.len() >= before)
        {
            // All of it is to stay: the next region will not help either.
            self.reclaim_after = now + RECLAIM_PAUSE;
        }
        tier.tables.forget(self.number, region);
        self.lingering.push(region);
        true
    }

    /// A region that reclaim leaves as it is.
    pub fn put_back(&mut self, region: u32) {
        let entry = self.regions.get(region);
        let held = entry.is_some_and(|entry| entry.held.is_some());
        let state = if held {
            State::Abandoned
        } else {
            State::Sealed
        };
        self.regions.set_state(region, state);
        self.regions.enqueue(region);
    }
}

/// Whether every page is what it was when it was written.
fn is_whole(extent: &Extent, first_page: u32, bytes: &[u8], checksums: &[u32]) -> bool {
    let seed = BlockSeed::of(extent.block);
    bytes.len().div_ceil(PAGE_BYTES) == checksums.len()
        && bytes
            .chunks(PAGE_BYTES)
            .zip(checksums)
            .zip(first_page..)
            .all(|((page, checksum), number)| seed.checksum(number, page) == *checksum)
}
