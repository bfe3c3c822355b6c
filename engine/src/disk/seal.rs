//! What follows the data of a batch: index, flush, header; and the footer of a full region.

use super::DiskEvent;
use super::device::Log;
use super::discard::is_of_the_place;
use super::flush::Waits;
use super::index::{Extent, Place};
use super::layout::{EntryRecord, Queue, Trailer, encode_checksums, encode_entries};
use super::log::Buffers;
use super::ops::Op;
use super::regions::{Held, Region, State};
use super::stream::{Done, From, Open};
use super::tier::Tier;
use super::writer::footer_page;
use crate::arena::Lease;
use crate::limits::PAGE_BYTES;
use crate::ports::{BlockDevice, DeviceError, DeviceOp, Time};

impl<D: BlockDevice> Log<D> {
    pub fn batch_data_done(
        &mut self,
        now: Time,
        batch: usize,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        let Some(entry) = self.batches.get_mut(batch) else {
            return;
        };
        entry.pending -= 1;
        entry.failed = entry.failed.or(result.err());
        if entry.pending > 0 {
            return;
        }
        if let Some(error) = entry.failed {
            self.batch_failed(batch, error, tier);
            return self.fault(now, error, tier);
        }
        let (region, records) = (entry.region, std::mem::take(&mut entry.records));
        let replaces = std::mem::take(&mut entry.replaces);
        let parts = std::mem::take(&mut entry.parts);
        if self.is_readable() {
            for (record, old) in records.iter().zip(replaces) {
                self.index_record(region, record, old, tier);
            }
            self.heat_wanted(region, &parts, tier);
        }
        for part in &parts {
            self.settle_part(part, tier);
        }
        if let Some(entry) = self.batches.get_mut(batch) {
            entry.parts = parts;
        }
        self.flush.request(Waits::Data(batch));
    }

    /// What was wanted by name counts as hit: it is not to go before what was there.
    fn heat_wanted(&self, region: u32, parts: &[Done], tier: &mut Tier) {
        let wanted = |part: &&Done| part.from == From::Fill { wanted: true };
        for part in parts.iter().filter(wanted) {
            let is_it = |extent: &Extent| {
                let here = extent.place.device() == self.number && extent.place.region() == region;
                here && extent.covers(part.first_page as u16)
            };
            let found = tier.index.extents(part.block).find(is_it);
            found.inspect(|extent| tier.hit(extent));
        }
    }

    /// The entry can be read from now on.
    fn index_record(
        &mut self,
        region: u32,
        record: &EntryRecord,
        old: Option<Extent>,
        tier: &mut Tier,
    ) {
        // Forgotten or replaced while it was moved: not brought back.
        let given_to = match old {
            None => 0,
            Some(old) => match tier.index.get(old.block, old.first_page, old.place) {
                Some(known) => known.given_to,
                None => return,
            },
        };
        let pinned = tier.is_pinned(record.block);
        if pinned != record.pinned {
            // Pinned or released while it was being written.
            self.note_stale(region);
        }
        let extent = Extent {
            block: record.block,
            first_page: record.first_page,
            pages: record.pages() as u16,
            place: Place::new(self.number, region, record.region_page as u16),
            stamp: 0,
            pinned,
            short_bytes: record.short_bytes(),
            given_to,
        };
        if !tier.insert(extent) {
            self.stats.fills_dropped += 1;
            self.stats.dropped_bytes += u64::from(record.len_bytes);
        }
    }

    /// A part needs its copy in memory no longer.
    pub fn settle_part(&mut self, part: &Done, tier: &mut Tier) {
        if !part.from.is_fill() {
            return;
        }
        let bytes = part.pages as usize * PAGE_BYTES;
        tier.writing_bytes = tier.writing_bytes.saturating_sub(bytes);
        tier.events.push_back(DiskEvent::Settled {
            block: part.block,
            first_page: part.first_page,
            pages: part.pages,
        });
    }

    /// Some of a batch's data could not be written, or not be named.
    fn batch_failed(&mut self, batch: usize, error: DeviceError, tier: &mut Tier) {
        if let Some(region) = self.drop_batch(batch, error, tier) {
            region.bad |= is_of_the_place(error);
        }
    }

    /// A batch will not be there: its region is not appended to any more.
    fn drop_batch(
        &mut self,
        batch: usize,
        error: DeviceError,
        tier: &mut Tier,
    ) -> Option<&mut Region> {
        self.stats.write_errors += 1;
        let entry = self.batches.try_remove(batch)?;
        for part in &entry.parts {
            if entry.failed.is_some() {
                self.settle_part(part, tier);
            }
            if let From::Reclaim(old) = part.from {
                self.move_failed(old, tier);
            }
        }
        self.moved(&entry.parts);
        if let Some(open) = self.streams[entry.queue as usize].find(entry.region) {
            open.batches -= 1;
            open.broken = true;
        }
        let region = self.regions.get_mut(entry.region)?;
        region.partial |= error == DeviceError::NoSpace;
        Some(region)
    }

    /// What could not be moved stays where it was, and so does its region.
    fn move_failed(&mut self, old: Extent, tier: &mut Tier) {
        let region = old.place.region();
        let waits = self
            .reclaim
            .as_mut()
            .is_some_and(|reclaim| reclaim.fail(region));
        let known = tier
            .index
            .get(old.block, old.first_page, old.place)
            .is_some();
        if waits && !known && self.is_readable() {
            tier.insert(old);
        }
    }

    pub fn flush_done(
        &mut self,
        now: Time,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
        buffers: &mut impl Buffers,
    ) {
        let covered = self.flush.end();
        if let Err(error) = result {
            for waits in covered {
                self.flush_failed(now, waits, error, tier);
            }
            return self.fault(now, error, tier);
        }
        for waits in covered {
            match waits {
                Waits::Data(batch) => self.write_header(batch, buffers),
                Waits::Tables(region) => self.write_trailer(region, buffers),
                Waits::Region(region) => self.region_opened(region),
                Waits::Header(batch) => self.finish_batch(batch),
                Waits::Emptied(region) => self.emptied_lasts(region),
                Waits::Void(region) => self.void_lasts(region),
                Waits::Nobody => {}
            }
        }
    }

    /// One fault is booked for the flush, by the caller. It is no fault of the regions that the flush was for: any of
    /// them can be written again.
    fn flush_failed(&mut self, now: Time, waits: Waits, error: DeviceError, tier: &mut Tier) {
        match waits {
            Waits::Data(batch) | Waits::Header(batch) => {
                self.drop_batch(batch, error, tier);
            }
            Waits::Tables(region) => self.sealing_failed(region),
            Waits::Region(region) => {
                let no_space = error == DeviceError::NoSpace;
                self.opening_failed(region, no_space, false);
            }
            Waits::Emptied(region) => {
                self.put_back(region);
                self.emptied.insert(region, self.batches_begun);
            }
            Waits::Void(region) => self.not_voided(now, region, false),
            Waits::Nobody => {}
        }
    }

    /// The batch's data lasts: now it may be named.
    fn write_header(&mut self, batch: usize, buffers: &mut impl Buffers) {
        let Some(entry) = self.batches.get_mut(batch) else {
            return;
        };
        let (region, page) = (entry.region, entry.page);
        let Some(header) = entry.header.take() else {
            return;
        };
        let bytes = buffers.freeze(header);
        let tag = self.ops.begin(Op::BatchHeader(batch));
        let offset_bytes = self.offset_bytes(region, page);
        self.submit(DeviceOp::Write {
            tag,
            offset_bytes,
            bytes,
        });
    }

    pub fn batch_header_done(
        &mut self,
        now: Time,
        batch: usize,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        let moves = self.batches.get(batch).is_some_and(|entry| {
            entry
                .parts
                .iter()
                .any(|part| matches!(part.from, From::Reclaim(_)))
        });
        match result {
            Ok(()) if moves => self.flush.request(Waits::Header(batch)),
            Ok(()) => self.finish_batch(batch),
            Err(error) => {
                self.batch_failed(batch, error, tier);
                self.fault(now, error, tier);
            }
        }
    }

    fn finish_batch(&mut self, batch: usize) {
        let Some(entry) = self.batches.try_remove(batch) else {
            return;
        };
        self.moved(&entry.parts);
        if let Some(open) = self.streams[entry.queue as usize].find(entry.region) {
            open.batches -= 1;
        }
        if self.settling {
            // The last header shall last as well.
            self.flush.request(Waits::Nobody);
        }
    }

    /// Tells reclaim that parts it had moved have their end, good or bad.
    pub fn moved(&mut self, parts: &[Done]) {
        if let Some(reclaim) = &mut self.reclaim {
            for part in parts {
                if let From::Reclaim(old) = part.from {
                    reclaim.part_moved(old.place.region());
                }
            }
        }
    }

    /// Writes the footer of each full region whose batches are done.
    pub fn seal_full(&mut self, queue: Queue, tier: &Tier, buffers: &mut impl Buffers) -> bool {
        let mut progressed = false;
        let mut at = 0;
        while let Some(open) = self.streams[queue as usize].sealing.get(at) {
            if open.batches > 0 {
                at += 1;
                continue;
            }
            let (region, broken) = (open.region, open.broken);
            let empty = self.held(region).is_none_or(|held| held.records.is_empty())
                || !self.lives(region, tier);
            if broken || empty {
                self.streams[queue as usize].sealing.remove(at);
                self.abandon(region);
                progressed = true;
                continue;
            }
            if !self.write_tables(region, tier, buffers) {
                return progressed;
            }
            self.streams[queue as usize].sealing.remove(at);
            progressed = true;
        }
        progressed
    }

    fn held(&self, region: u32) -> Option<&Held> {
        self.regions.get(region)?.held.as_deref()
    }

    /// The region stays as it is until reclaim comes to it.
    fn abandon(&mut self, region: u32) {
        if let Some(entry) = self.regions.get_mut(region) {
            entry.trailer = None;
        }
        self.regions.set_state(region, State::Abandoned);
        self.regions.enqueue(region);
        self.emptied.entry(region).or_insert(self.batches_begun);
    }

    /// Writes both tables of the footer. False when there is no buffer for them now.
    fn write_tables(&mut self, region: u32, tier: &Tier, buffers: &mut impl Buffers) -> bool {
        let geometry = self.geometry;
        let Some(held) = self.held(region) else {
            return true;
        };
        let first = footer_page(&geometry, held.records.len());
        let pages = geometry.trailer_page() - first;
        // Asked for first, so that the trailer cannot fail for want of a buffer.
        let (Ok(trailer), Ok(mut lease)) = (
            buffers.lease(PAGE_BYTES),
            buffers.lease(pages as usize * PAGE_BYTES),
        ) else {
            return false;
        };
        let trailer = self.encode_footer(region, (first, tier), &mut lease, trailer);
        let bytes = buffers.freeze(lease);
        self.stats.overhead_bytes += (bytes.len() + PAGE_BYTES) as u64;
        self.regions.set_state(region, State::Sealing);
        if let Some(entry) = self.regions.get_mut(region) {
            if let Some((trailer, crcs)) = trailer {
                entry.trailer = Some(trailer);
                entry.table_crcs = crcs;
            }
            entry.entry_table_page = first;
            entry.entries = entry.held.as_ref().map_or(0, |held| held.records.len()) as u32;
        }
        let tag = self.ops.begin(Op::Tables(region));
        let offset_bytes = self.offset_bytes(region, first);
        self.submit(DeviceOp::Write {
            tag,
            offset_bytes,
            bytes,
        });
        true
    }

    /// Writes the tables into `lease`; gives back the trailer that describes them.
    fn encode_footer(
        &self,
        region: u32,
        (first, tier): (u32, &Tier),
        lease: &mut Lease,
        mut trailer: Lease,
    ) -> Option<(Lease, [u32; 2])> {
        let (entry, held) = (self.regions.get(region)?, self.held(region)?);
        let table = Trailer::entry_table_pages(held.records.len()) * PAGE_BYTES;
        let (entries, checksums) = lease.bytes_mut().split_at_mut(table);
        // Its batches say what was pinned when they were written.
        let records = held.records.iter().map(|record| EntryRecord {
            pinned: tier.is_pinned(record.block),
            ..*record
        });
        let records: Vec<EntryRecord> = records.collect();
        let entries_crc = encode_entries(&records, entries);
        let checksums_crc = encode_checksums(&held.checksums, checksums);
        Trailer {
            region,
            generation: entry.generation,
            sequence: entry.sequence,
            entries: held.records.len() as u32,
            entry_table_page: first,
            entries_crc,
            checksums_crc,
        }
        .encode(self.shared.log, trailer.bytes_mut());
        Some((trailer, [entries_crc, checksums_crc]))
    }

    pub fn tables_done(
        &mut self,
        now: Time,
        region: u32,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        match result {
            Ok(()) => self.flush.request(Waits::Tables(region)),
            Err(error) => {
                self.sealing_failed(region);
                self.fault(now, error, tier);
            }
        }
    }

    /// The region stays readable: what its footer would say is in memory.
    fn sealing_failed(&mut self, region: u32) {
        self.stats.write_errors += 1;
        self.abandon(region);
    }

    /// The tables last: now the trailer may say so.
    fn write_trailer(&mut self, region: u32, buffers: &mut impl Buffers) {
        let trailer = self
            .regions
            .get_mut(region)
            .and_then(|entry| entry.trailer.take());
        let Some(trailer) = trailer else {
            return;
        };
        let bytes = buffers.freeze(trailer);
        let tag = self.ops.begin(Op::Trailer(region));
        let offset_bytes = self.offset_bytes(region, self.geometry.trailer_page());
        self.submit(DeviceOp::Write {
            tag,
            offset_bytes,
            bytes,
        });
    }

    pub fn trailer_done(
        &mut self,
        now: Time,
        region: u32,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        if let Err(error) = result {
            self.sealing_failed(region);
            return self.fault(now, error, tier);
        }
        let pages = self.geometry.region_pages();
        self.regions.set_state(region, State::Sealed);
        let Some(entry) = self.regions.get_mut(region) else {
            return;
        };
        entry.used_pages = pages;
        let generation = entry.generation;
        if let Some(held) = entry.held.take() {
            // What is read next is likely to be what was written last.
            tier.seed_tables(self.number, region, generation, &held.checksums);
        }
        self.regions.enqueue(region);
    }

    /// A full region that is not appended to any more, for sealing.
    pub fn seal_later(&mut self, queue: Queue, open: Open) {
        self.streams[queue as usize].sealing.push(open);
    }
}
