//! Appending: parts are staged, closed into batches, written, flushed, named by a header; full regions
//! are sealed.
//!
//! ```text
//! staged -> batch: data -> flush -> header (-> flush, for what reclaim moved) -> done
//! region: header -> flush -> open ... full -> all batches done -> footer -> sealed
//! ```

use std::time::Duration;

use super::Fill;
use super::device::Log;
use super::discard::is_of_the_place;
use super::flush::Waits;
use super::geometry::Geometry;
use super::index::Extent;
use super::layout::{BatchHeader, EntryRecord, Queue, RegionHeader, Trailer, chain_of};
use super::log::Buffers;
use super::ops::Op;
use super::policy::{Arrival, Heat};
use super::reclaim::FREE_MIN;
use super::regions::{Held, State};
use super::stream::{Done, From, Open, Part, Stream, continues};
use super::tier::Tier;
use crate::arena::Lease;
use crate::identity::BlockId;
use crate::limits::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, PAGE_BYTES, PAGES_PER_SUB_BLOCK};
use crate::ports::{BlockDevice, DeviceError, DeviceOp, Time};

/// Parts that are written together.
#[derive(Debug)]
pub(super) struct Batch {
    /// Larger than that of each batch that was begun before.
    pub number: u64,
    pub queue: Queue,
    pub region: u32,
    pub page: u32,
    pub records: Vec<EntryRecord>,
    /// For each record: the entry it replaces, if reclaim moved it.
    pub replaces: Vec<Option<Extent>>,
    pub parts: Vec<Done>,
    pub header: Option<Lease>,
    /// Data writes that have not ended.
    pub pending: u32,
    pub failed: Option<DeviceError>,
}

impl Batch {
    /// Its entries of `block` are not to be found when they are written, nor moved back when they are not. Gives the
    /// parts that reclaim moved.
    pub fn forget(&mut self, block: BlockId) -> Vec<Done> {
        let replaces = std::mem::take(&mut self.replaces);
        let both = std::mem::take(&mut self.records).into_iter().zip(replaces);
        (self.records, self.replaces) = both.filter(|(record, _)| record.block != block).unzip();
        let gone = |part: &mut Done| part.block == block && !part.from.is_fill();
        self.parts.extract_if(.., gone).collect()
    }
}

/// What fits into the open region of a stream.
#[derive(Debug, Default)]
struct Chosen {
    parts: Vec<Part>,
    records: usize,
    data_pages: u32,
    /// Nothing more fits.
    full: bool,
}

impl<D: BlockDevice> Log<D> {
    /// The queue for a part of a block: the same for all parts that come together.
    pub fn queue_for(&mut self, fill: &Fill, pages: u64, tier: &Tier) -> Queue {
        let block = fill.block;
        let has_room = self.regions.usable(self.may_grow()) > FREE_MIN;
        if let Some((last, queue)) = self.last_queue
            && last == block
        {
            if fill.wanted && queue == Queue::Main {
                self.admission.owe(pages, has_room);
            }
            return queue;
        }
        let queue = self.admission.queue_for(Arrival {
            pages,
            is_ghost: tier.ghosts.contains(block),
            is_wanted: fill.wanted,
            has_room,
            has_evicted: tier.has_evicted,
            small: self.regions.count(Queue::Small),
            regions: self.regions.len(),
            region_pages: u64::from(self.geometry.region_pages()),
        });
        self.last_queue = Some((block, queue));
        queue
    }

    /// Takes a part of a fill.
    pub fn stage_fill(&mut self, now: Time, fill: Fill, queue: Queue, tier: &mut Tier) {
        tier.writing_bytes += fill.bytes.len().next_multiple_of(PAGE_BYTES);
        let part = Part {
            block: fill.block,
            first_page: fill.first_page,
            bytes: fill.bytes,
            checksums: fill.checksums,
            checksum_at: 0,
            from: From::Fill {
                wanted: fill.wanted,
            },
        };
        self.want_writes(tier);
        self.streams[queue as usize].stage(now, part);
    }

    /// When the next batch closes by its age.
    pub fn next_close(&self, now: Time) -> Time {
        let closes = self.streams.iter().map(Stream::closes_at).min();
        // What is due already waits for a region or a buffer.
        closes
            .unwrap_or(Time::NEVER)
            .max(now + Duration::from_millis(1))
    }

    pub fn turn_writer(&mut self, now: Time, tier: &mut Tier, buffers: &mut impl Buffers) -> bool {
        let mut progressed = false;
        for queue in [Queue::Main, Queue::Small] {
            progressed |= self.prepare_region(queue, tier, buffers);
            while self.streams[queue as usize].is_due(now, self.settling) {
                if !self.close_batch(now, queue, tier, buffers) {
                    break;
                }
                progressed = true;
            }
            progressed |= self.seal_full(queue, tier, buffers);
            progressed |= self.drop_if_stuck(now, queue, tier);
        }
        progressed
    }

    /// Opens a region ahead of its need.
    fn prepare_region(
        &mut self,
        queue: Queue,
        tier: &mut Tier,
        buffers: &mut impl Buffers,
    ) -> bool {
        let pages = self.geometry.region_pages();
        let stream = &self.streams[queue as usize];
        let nearly_full = stream
            .open
            .as_ref()
            .is_none_or(|open| open.broken || open.page > pages - pages / 4);
        if stream.next.is_some() || stream.opening || !nearly_full || stream.staged.is_empty() {
            return false;
        }
        // The last free region is the main queue's: without it reclaim could not move anything.
        let grow = self.may_grow();
        if queue == Queue::Small && self.regions.usable(grow) < 2 {
            return false;
        }
        let Ok(lease) = buffers.lease(PAGE_BYTES) else {
            return false;
        };
        let Some(region) = self.regions.take_free(grow) else {
            return false;
        };
        self.open_region(queue, region, lease, tier, buffers);
        true
    }

    fn open_region(
        &mut self,
        queue: Queue,
        region: u32,
        mut lease: Lease,
        tier: &mut Tier,
        buffers: &mut impl Buffers,
    ) {
        if let Some(heat) = tier.heat_mut(self.number, region) {
            *heat = Heat::default();
        }
        let sequence = self.regions.next_sequence();
        self.regions.hold(region, queue, State::Opening);
        let Some(entry) = self.regions.get_mut(region) else {
            return;
        };
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.sequence = sequence;
        // Nothing of other cores can be here from now on.
        entry.rehomed = false;
        entry.used_pages = 1;
        entry.held = Some(Box::new(Held {
            records: Vec::new(),
            checksums: vec![0],
        }));
        let header = self.header_of(region);
        self.shared.set_generation(region, header.generation);
        lease.bytes_mut().fill(0);
        header.encode(self.shared.log, lease.bytes_mut());
        let bytes = buffers.freeze(lease);
        self.stats.overhead_bytes += bytes.len() as u64;
        self.streams[queue as usize].opening = true;
        let tag = self.ops.begin(Op::RegionHeader(region));
        let offset_bytes = self.offset_bytes(region, 0);
        self.submit(DeviceOp::Write {
            tag,
            offset_bytes,
            bytes,
        });
    }

    /// The header of a region, from what is known of it.
    pub fn header_of(&self, region: u32) -> RegionHeader {
        let (generation, sequence, queue) = self
            .regions
            .get(region)
            .map_or((0, 0, Queue::Small), |entry| {
                (entry.generation, entry.sequence, entry.queue)
            });
        RegionHeader {
            region,
            generation,
            sequence,
            queue,
            core: self.regions.core() as u16,
            cores: self.regions.cores() as u16,
            tenant: 0,
        }
    }

    pub fn region_header_done(
        &mut self,
        now: Time,
        region: u32,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        match result {
            Ok(()) => self.flush.request(Waits::Region(region)),
            Err(error) => {
                let no_space = error == DeviceError::NoSpace;
                self.opening_failed(region, no_space, is_of_the_place(error));
                self.fault(now, error, tier);
            }
        }
    }

    /// `is_bad`: a place that cannot be written is not tried again before the next start.
    pub fn opening_failed(&mut self, region: u32, no_space: bool, is_bad: bool) {
        self.stats.write_errors += 1;
        let Some(entry) = self.regions.get_mut(region) else {
            return;
        };
        entry.bad |= is_bad;
        let queue = entry.queue;
        self.streams[queue as usize].opening = false;
        self.regions.release(region, no_space);
    }

    /// The region's header is on stable media: data may follow.
    pub fn region_opened(&mut self, region: u32) {
        let chain = self.header_of(region).chain(self.shared.log);
        self.regions.set_state(region, State::Open);
        let Some(entry) = self.regions.get_mut(region) else {
            return;
        };
        let (queue, generation) = (entry.queue, entry.generation);
        let stream = &mut self.streams[queue as usize];
        stream.opening = false;
        stream.next = Some(Open {
            region,
            generation,
            page: 1,
            chain,
            batches: 0,
            broken: false,
        });
    }

    /// Closes one batch of what is staged. False when nothing can be closed now.
    fn close_batch(
        &mut self,
        now: Time,
        queue: Queue,
        tier: &Tier,
        buffers: &mut impl Buffers,
    ) -> bool {
        let stream = &mut self.streams[queue as usize];
        if stream.open.as_ref().is_some_and(|open| open.broken) {
            stream.sealing.extend(stream.open.take());
        }
        if stream.open.is_none() {
            stream.open = stream.next.take();
        }
        let Some((page, batches)) = stream.open.as_ref().map(|open| (open.page, open.batches))
        else {
            return false;
        };
        // A batch is found again only behind all batches before it: what reclaim moved counts as safe when
        // its own header lasts, so those before must be done by then.
        if batches > 0 && stream.staged.iter().any(Part::is_moved) {
            return false;
        }
        let chosen = self.choose(queue, page);
        if chosen.parts.is_empty() {
            let stream = &mut self.streams[queue as usize];
            stream.sealing.extend(stream.open.take());
            return stream.next.is_some();
        }
        let header_pages = BatchHeader::header_pages(chosen.records, chosen.data_pages as usize);
        let Ok(lease) = buffers.lease(header_pages * PAGE_BYTES) else {
            self.unstage_back(queue, chosen);
            return false;
        };
        let full = chosen.full;
        self.write_batch(queue, chosen, lease, tier);
        let stream = &mut self.streams[queue as usize];
        stream.oldest = (!stream.staged.is_empty()).then_some(now);
        if full {
            stream.sealing.extend(stream.open.take());
        }
        true
    }

    /// Puts back what was chosen.
    fn unstage_back(&mut self, queue: Queue, chosen: Chosen) {
        let stream = &mut self.streams[queue as usize];
        let pages: u32 = chosen.parts.iter().map(Part::pages).sum();
        stream.staged_pages += u64::from(pages);
        stream.staged.splice(0..0, chosen.parts);
    }

    /// Takes what fits from the staged parts, sorted by block, so that contiguous parts of one block
    /// become one entry.
    fn choose(&mut self, queue: Queue, page: u32) -> Chosen {
        let records_before = self.streams[queue as usize]
            .open
            .as_ref()
            .and_then(|open| self.regions.get(open.region)?.held.as_ref())
            .map_or(0, |held| held.records.len());
        let geometry = self.geometry;
        // Pages left for a batch with so many records: the footer must fit behind it.
        let room = |records: usize, data_pages: u32| {
            let footer = footer_page(&geometry, records_before + records);
            let header = BatchHeader::header_pages(records, data_pages as usize) as u32;
            footer.saturating_sub(page + header)
        };
        let stream = &mut self.streams[queue as usize];
        let mut staged = std::mem::take(&mut stream.staged);
        // What reclaim keeps goes first: the room of which it makes more may be the last.
        staged.sort_by_key(|part| (part.from.is_fill(), part.block, part.first_page));
        let mut rest = staged.into_iter();
        let mut chosen = Chosen::default();
        for mut part in rest.by_ref() {
            let continues = chosen
                .parts
                .last()
                .is_some_and(|last| continues(last, &part));
            let records = chosen.records + usize::from(!continues);
            let with = chosen.data_pages + part.pages();
            let long = with as usize * PAGE_BYTES > BATCH_BYTES_MAX && chosen.data_pages > 0;
            if long || records > BATCH_ENTRIES_MAX {
                stream.staged.push(part);
                break;
            }
            if room(records, with) >= with {
                (chosen.records, chosen.data_pages) = (records, with);
                chosen.parts.push(part);
                continue;
            }
            chosen.full = true;
            let left = room(records, with).saturating_sub(chosen.data_pages);
            if let Some(front) = split_to_fit(&mut part, left) {
                chosen.records = records;
                chosen.data_pages += front.pages();
                if let (From::Reclaim(old), Some(reclaim)) = (front.from, &mut self.reclaim) {
                    reclaim.part_split(old.place.region());
                }
                chosen.parts.push(front);
            }
            stream.staged.push(part);
            break;
        }
        stream.staged.extend(rest);
        stream.staged_pages = stream
            .staged
            .iter()
            .map(|part| u64::from(part.pages()))
            .sum();
        chosen
    }

    fn write_batch(&mut self, queue: Queue, chosen: Chosen, mut lease: Lease, tier: &Tier) {
        let Some(open) = self.streams[queue as usize].open.as_mut() else {
            return;
        };
        let (region, page) = (open.region, open.page);
        let header_pages = (lease.len() / PAGE_BYTES) as u32;
        let mut at = page + header_pages;
        let mut header = BatchHeader {
            region,
            generation: open.generation,
            page,
            data_pages: chosen.data_pages,
            run: self.regions.run,
            chain: open.chain,
            entries: Vec::with_capacity(chosen.records),
            checksums: Vec::with_capacity(chosen.data_pages as usize),
        };
        let mut replaces = Vec::with_capacity(chosen.records);
        for (n, part) in chosen.parts.iter().enumerate() {
            header.checksums.extend_from_slice(part.page_checksums());
            match header.entries.last_mut() {
                Some(last) if n > 0 && continues(&chosen.parts[n - 1], part) => {
                    last.len_bytes += part.bytes.len() as u32;
                }
                _ => {
                    header.entries.push(record_of(part, at, tier));
                    replaces.push(match part.from {
                        From::Fill { .. } => None,
                        From::Reclaim(old) => Some(old),
                    });
                }
            }
            at += part.pages();
        }
        header.encode(self.shared.log, lease.bytes_mut());
        open.chain = chain_of(lease.bytes());
        open.page = at;
        open.batches += 1;
        self.stats.overhead_bytes += lease.len() as u64;
        self.hold(region, header_pages, at, &header);
        let number = self.batches_begun;
        self.batches_begun += 1;
        let batch = self.batches.insert(Batch {
            number,
            queue,
            region,
            page,
            records: header.entries,
            replaces,
            parts: chosen.parts.iter().map(Part::done).collect(),
            header: Some(lease),
            pending: chosen.parts.len() as u32,
            failed: None,
        });
        self.write_parts(batch, region, page + header_pages, chosen.parts);
    }

    fn hold(&mut self, region: u32, header_pages: u32, end: u32, header: &BatchHeader) {
        let Some(entry) = self.regions.get_mut(region) else {
            return;
        };
        entry.used_pages = end;
        if let Some(held) = &mut entry.held {
            let headers = std::iter::repeat_n(0, header_pages as usize);
            held.checksums.extend(headers);
            held.checksums.extend_from_slice(&header.checksums);
            held.records.extend_from_slice(&header.entries);
        }
    }

    fn write_parts(&mut self, batch: usize, region: u32, page: u32, parts: Vec<Part>) {
        let mut at = page;
        for part in parts {
            let bytes = part.bytes.padded();
            match part.from {
                From::Fill { .. } => self.stats.filled_bytes += part.bytes.len() as u64,
                From::Reclaim(_) => self.stats.reinserted_bytes += part.bytes.len() as u64,
            }
            self.stats.overhead_bytes += (bytes.len() - part.bytes.len()) as u64;
            let tag = self.ops.begin(Op::BatchData(batch));
            let offset_bytes = self.offset_bytes(region, at);
            at += part.pages();
            self.submit(DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            });
        }
    }
}

/// Where the footer of a region with so many entries begins.
pub(super) fn footer_page(geometry: &Geometry, entries: usize) -> u32 {
    let table = Trailer::entry_table_pages(entries) as u32;
    geometry.checksum_table_page().saturating_sub(table)
}

/// Cuts off as many whole sub-blocks as fit `pages`: readers look for whole sub-blocks.
fn split_to_fit(part: &mut Part, pages: u32) -> Option<Part> {
    let sub = PAGES_PER_SUB_BLOCK as u32;
    let end = (part.first_page + pages) / sub * sub;
    let fits = end.checked_sub(part.first_page)?;
    (fits >= sub && fits < part.pages()).then(|| part.split_off_front(fits))
}

fn record_of(part: &Part, region_page: u32, tier: &Tier) -> EntryRecord {
    EntryRecord {
        block: part.block,
        first_page: part.first_page as u16,
        len_bytes: part.bytes.len() as u32,
        region_page,
        pinned: tier.is_pinned(part.block),
        hits: 0,
    }
}
