//! Reading pages for readers: the data and, where it is not in memory, the page of the checksum table that
//! covers it, at the same time; both together are checked before anything leaves.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use slab::Slab;

use super::device::Log;
use super::index::Extent;
use super::layout::decode_checksums;
use super::log::Buffers;
use super::ops::Op;
use super::tables::TableKey;
use super::tier::{CHECKSUMS_PER_PAGE, Tier};
use super::{DiskEvent, DiskMiss, DiskRead};
use crate::arena::Lease;
use crate::checksum::BlockSeed;
use crate::identity::BlockId;
use crate::limits::PAGE_BYTES;
use crate::ports::{BlockDevice, DeviceError, DeviceOp, Time};

/// A read that has begun.
#[derive(Debug)]
struct Reading {
    id: u64,
    ticket: u64,
    block: BlockId,
    block_bytes: u32,
    first_page: u32,
    /// The entry, for forgetting it.
    extent: Extent,
    /// Where the pages are.
    region: u32,
    region_page: u32,
    generation: u32,
    /// The data, when it is there.
    lease: Option<Lease>,
    /// The pages' checksums, as far as they are known.
    checksums: Rc<[u32]>,
    /// Pages of the checksum table that are on their way.
    tables: u8,
    failed: Option<DeviceError>,
    /// Its checksums could not be read.
    tables_failed: bool,
    /// Its reader has been told; only the lease is still awaited.
    given_up: bool,
}

impl Reading {
    /// Copies those of its checksums that `table` has, which begins with page `first` of the region.
    fn copy(&mut self, first: u32, table: &[u32]) {
        let start = self.region_page;
        // Shared with nobody before the read has ended.
        let Some(checksums) = Rc::get_mut(&mut self.checksums) else {
            return;
        };
        for (page, checksum) in (start..).zip(checksums) {
            if let Some(known) = page
                .checked_sub(first)
                .and_then(|at| table.get(at as usize))
            {
                *checksum = *known;
            }
        }
    }
}

/// What is known of a region that another core owns: it was found at start.
#[derive(Debug)]
pub(super) struct Foreign {
    pub generation: u32,
    /// Of a region that was not sealed then.
    pub checksums: Option<Vec<u32>>,
}

#[derive(Debug, Default)]
pub(super) struct Reads {
    all: Slab<Reading>,
    last_id: u64,
    /// When each read is given up, in the order of their beginning.
    deadlines: VecDeque<(Time, usize, u64)>,
    /// Readings that wait for a table page.
    tables: BTreeMap<TableKey, Vec<(usize, u64)>>,
    /// Table pages that are to be read.
    wanted: VecDeque<TableKey>,
    pub foreign: BTreeMap<u32, Foreign>,
    /// Pages of tables read.
    pub table_reads: u64,
}

impl Reads {
    pub fn wants_tables(&self) -> bool {
        !self.wanted.is_empty()
    }

    fn get(&mut self, slot: usize, id: u64) -> Option<&mut Reading> {
        self.all.get_mut(slot).filter(|reading| reading.id == id)
    }
}

impl<D: BlockDevice> Log<D> {
    /// Begins a read of pages that lie in `extent`.
    ///
    /// # Errors
    /// The read back, when the device is full.
    pub fn begin_read(
        &mut self,
        now: Time,
        read: DiskRead,
        extent: Extent,
        tier: &mut Tier,
    ) -> Result<(), DiskRead> {
        let DiskRead {
            ticket,
            block,
            block_bytes,
            first_page,
            lease,
        } = read;
        let region = extent.place.region();
        let region_page = u32::from(extent.place.page) + first_page - u32::from(extent.first_page);
        let len_bytes = lease.len() as u64;
        let slot = self.reads.all.vacant_key();
        let tag = self.ops.begin(Op::Read(slot));
        let op = DeviceOp::Read {
            tag,
            offset_bytes: self.offset_bytes(region, region_page),
            lease,
        };
        if let Err(op) = self.submit_now(op) {
            self.ops.end(tag);
            let DeviceOp::Read { lease, .. } = op else {
                unreachable!("a full device gives the operation back")
            };
            return Err(DiskRead {
                ticket,
                block,
                block_bytes,
                first_page,
                lease,
            });
        }
        self.stats.reads += 1;
        self.stats.read_bytes += len_bytes;
        self.reads.last_id += 1;
        let id = self.reads.last_id;
        let pages = (len_bytes as usize / PAGE_BYTES) as u32;
        let generation = self.begin_reading(region);
        let known = match tier.config.verify {
            true => pages as usize,
            false => 0,
        };
        let mut reading = Reading {
            id,
            ticket,
            block,
            block_bytes,
            first_page,
            extent,
            region,
            region_page,
            generation,
            lease: None,
            checksums: std::iter::repeat_n(0, known).collect(),
            tables: 0,
            failed: None,
            tables_failed: false,
            given_up: false,
        };
        if tier.config.verify && !self.copy_held(&mut reading) {
            self.want_tables(slot, &mut reading, tier);
        }
        self.reads.all.insert(reading);
        let until = now + tier.config.read_timeout;
        self.reads.deadlines.push_back((until, slot, id));
        Ok(())
    }

    /// Counts a reader of the region; its generation.
    fn begin_reading(&mut self, region: u32) -> u32 {
        match self.regions.get_mut(region) {
            Some(entry) => {
                entry.readers += 1;
                entry.generation
            }
            None => self
                .reads
                .foreign
                .get(&region)
                .map_or(0, |foreign| foreign.generation),
        }
    }

    /// Copies the checksums of a region that is not sealed; false when it is.
    fn copy_held(&self, reading: &mut Reading) -> bool {
        let held = match self.regions.get(reading.region) {
            Some(entry) => entry.held.as_ref().map(|held| &held.checksums),
            None => self
                .reads
                .foreign
                .get(&reading.region)
                .and_then(|foreign| foreign.checksums.as_ref()),
        };
        let Some(held) = held else {
            return false;
        };
        reading.copy(0, held);
        true
    }

    /// Whether what was known of a region when an entry was made still holds.
    pub fn is_current(&self, region: u32) -> bool {
        if self.regions.is_own(region) {
            return true;
        }
        let known = self.reads.foreign.get(&region);
        let now = self.shared.generation(region);
        known.is_some_and(|foreign| now == 0 || now == foreign.generation)
    }

    /// Copies what the pool has of the checksums, and sees to it that the rest comes.
    fn want_tables(&mut self, slot: usize, reading: &mut Reading, tier: &mut Tier) {
        let per = CHECKSUMS_PER_PAGE as u32;
        let pages = reading.checksums.len() as u32;
        for page in reading.region_page / per..=(reading.region_page + pages - 1) / per {
            let key = TableKey {
                device: self.number,
                region: reading.region,
                generation: reading.generation,
                page: page as u16,
            };
            if let Some(table) = tier.tables.get(key) {
                reading.copy(page * per, table);
                continue;
            }
            reading.tables += 1;
            let waiting = self.reads.tables.entry(key).or_default();
            if waiting.is_empty() {
                self.reads.wanted.push_back(key);
            }
            waiting.push((slot, reading.id));
        }
    }

    /// Submits the reads of table pages.
    pub fn start_table_reads(&mut self, buffers: &mut impl Buffers) -> bool {
        let mut some = false;
        while let Some(key) = self.reads.wanted.front().copied() {
            let Ok(lease) = buffers.lease(PAGE_BYTES) else {
                return some;
            };
            self.reads.wanted.pop_front();
            self.reads.table_reads += 1;
            let tag = self.ops.begin(Op::Table(key));
            let page = self.geometry.checksum_table_page() + u32::from(key.page);
            let offset_bytes = self.offset_bytes(key.region, page);
            self.submit(DeviceOp::Read {
                tag,
                offset_bytes,
                lease,
            });
            some = true;
        }
        some
    }

    pub fn table_done(
        &mut self,
        now: Time,
        key: TableKey,
        lease: &Lease,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        let table = decode_checksums(lease.bytes());
        if let Err(error) = result {
            // One fault, however many entries it covers; and all of the region's go, or each reader would
            // find the same again.
            self.stats.read_errors += 1;
            self.forget_region(key.region, tier);
            self.fault(now, error, tier);
        }
        for (slot, id) in self.reads.tables.remove(&key).unwrap_or_default() {
            if let Some(reading) = self.reads.get(slot, id) {
                reading.tables -= 1;
                reading.tables_failed |= result.is_err();
                reading.copy(u32::from(key.page) * CHECKSUMS_PER_PAGE as u32, &table);
                self.try_finish(now, slot, tier);
            }
        }
        if result.is_ok() {
            tier.tables.insert(key, table);
        }
    }

    pub fn read_done(
        &mut self,
        now: Time,
        slot: usize,
        lease: Lease,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        let Some(reading) = self.reads.all.get_mut(slot) else {
            return;
        };
        reading.lease = Some(lease);
        reading.failed = reading.failed.or(result.err());
        self.try_finish(now, slot, tier);
    }

    /// Ends a read whose data and checksums are all there.
    fn try_finish(&mut self, now: Time, slot: usize, tier: &mut Tier) {
        let ready = self
            .reads
            .all
            .get(slot)
            .is_some_and(|reading| reading.lease.is_some() && reading.tables == 0);
        if !ready {
            return;
        }
        let mut reading = self.reads.all.remove(slot);
        if reading.given_up || reading.tables_failed || !self.is_readable() {
            self.end_reading(&reading);
            return self.miss_unless_told(&reading, DiskMiss::Device, tier);
        }
        if let Some(error) = reading.failed {
            self.end_reading(&reading);
            self.stats.read_errors += 1;
            self.forget(&reading, tier);
            self.miss_unless_told(&reading, DiskMiss::Device, tier);
            return self.fault(now, error, tier);
        }
        let Some(lease) = reading.lease.take() else {
            return;
        };
        let checksums = reading.checksums.clone();
        self.end_reading(&reading);
        if tier.config.verify && !holds(&reading, lease.bytes(), &checksums) {
            if !self.is_current(reading.region) {
                return self.miss_unless_told(&reading, DiskMiss::Reclaimed, tier);
            }
            self.stats.checksum_failures += 1;
            tracing::warn!(
                device = self.shared.name,
                region = reading.region,
                page = reading.region_page,
                block = reading.block.index,
                "bytes on disk failed their checksum; the entry is dropped"
            );
            self.forget(&reading, tier);
            self.miss_unless_told(&reading, DiskMiss::Checksum, tier);
            // Perhaps it is the table in the pool that is wrong.
            tier.tables.forget(self.number, reading.region);
            return self.damaged(now, reading.region, tier);
        }
        tier.events.push_back(DiskEvent::Read {
            ticket: reading.ticket,
            lease,
            checksums,
        });
    }

    fn end_reading(&mut self, reading: &Reading) {
        if let Some(entry) = self.regions.get_mut(reading.region) {
            entry.readers = entry.readers.saturating_sub(1);
        }
    }

    fn forget(&mut self, reading: &Reading, tier: &mut Tier) {
        let Extent {
            block,
            first_page,
            place,
            ..
        } = reading.extent;
        tier.remove(block, first_page, place);
    }

    fn miss_unless_told(&mut self, reading: &Reading, why: DiskMiss, tier: &mut Tier) {
        if !reading.given_up {
            tier.events.push_back(DiskEvent::Missed {
                ticket: reading.ticket,
                why,
            });
        }
    }

    /// The device is gone: nobody waits any more, and buffers that have come back go home.
    pub fn end_all_reads(&mut self, tier: &mut Tier) {
        self.reads.tables.clear();
        self.reads.wanted.clear();
        let slots: Vec<usize> = self.reads.all.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(reading) = self.reads.all.get_mut(slot) else {
                continue;
            };
            reading.tables = 0;
            if !std::mem::replace(&mut reading.given_up, true) {
                let ticket = reading.ticket;
                let why = DiskMiss::Device;
                tier.events.push_back(DiskEvent::Missed { ticket, why });
            }
            if reading.lease.is_some() {
                let reading = self.reads.all.remove(slot);
                self.end_reading(&reading);
            }
        }
    }

    /// Tells the readers of reads that take too long; when the next one will be.
    pub fn give_up_slow_reads(&mut self, now: Time, tier: &mut Tier) -> Time {
        while let Some((until, slot, id)) = self.reads.deadlines.front().copied() {
            let waits = self
                .reads
                .get(slot, id)
                .is_some_and(|reading| !reading.given_up);
            if waits && until > now {
                return until;
            }
            self.reads.deadlines.pop_front();
            let Some(reading) = self.reads.get(slot, id).filter(|reading| !reading.given_up) else {
                continue;
            };
            reading.given_up = true;
            let (ticket, extent) = (reading.ticket, reading.extent);
            tier.remove(extent.block, extent.first_page, extent.place);
            tier.events.push_back(DiskEvent::Missed {
                ticket,
                why: DiskMiss::Slow,
            });
            self.stats.slow_reads += 1;
            self.silent_fault(now, "a read that took too long", tier);
        }
        Time::NEVER
    }

    /// Books a checksum failure, once a second for one region.
    pub fn damaged(&mut self, now: Time, region: u32, tier: &mut Tier) {
        let known = self
            .last_damage
            .is_some_and(|(last, at)| last == region && now.since(at) < Duration::from_secs(1));
        if !known {
            self.last_damage = Some((region, now));
            self.silent_fault(now, "a checksum failure", tier);
        }
    }

    /// Forgets every entry in a region.
    pub fn forget_region(&mut self, region: u32, tier: &mut Tier) {
        let number = self.number;
        tier.remove_where(|extent| {
            extent.place.device() == number && extent.place.region() == region
        });
    }
}

/// Whether every page is what it was when it was written.
fn holds(reading: &Reading, bytes: &[u8], checksums: &[u32]) -> bool {
    let seed = BlockSeed::of(reading.block);
    bytes
        .chunks(PAGE_BYTES)
        .zip(checksums)
        .zip(reading.first_page..)
        .all(|((page, checksum), number)| {
            let left = (reading.block_bytes as usize).saturating_sub(number as usize * PAGE_BYTES);
            let len = PAGE_BYTES.min(left);
            len > 0 && seed.checksum(number, &page[..len]) == *checksum
        })
        && bytes.len() / PAGE_BYTES == checksums.len()
}
