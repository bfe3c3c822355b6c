//! Finding what earlier runs left: headers, then footers; batch headers where there is no footer.
//!
//! ```text
//! headers of own regions -> regions written under another number of cores are told to all
//!   -> tables, oldest region first -> unsealed own regions are appended to again, or sealed
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::DeviceState;
use super::device::Log;
use super::index::{Extent, LOOK_AHEAD, Place};
use super::layout::{EntryRecord, Queue, RegionHeader, Trailer, VoidHeader, decode_entries};
use super::log::Buffers;
use super::ops::Op;
use super::reads::Foreign;
use super::regions::{Held, Regions, State};
use super::stream::Open;
use super::tier::Tier;
use super::walk::Walk;
use crate::arena::Lease;
use crate::identity::{BlockId, Slot};
use crate::limits::{DEVICE_RECOVERY_READ_S_MAX, PAGE_BYTES};
use crate::ports::{BlockDevice, DeviceError, DeviceOp, Time};

/// Reads under way at a time.
const READS_MAX: usize = 32;
/// Regions whose tables are read ahead of the one that is next in order.
const TABLES_AHEAD: usize = 4;

/// What is known of one region so far.
#[derive(Debug)]
enum Found {
    /// To be read: the trailer.
    Header,
    /// To be read: the entry table.
    Sealed(Trailer),
    /// The table, read.
    Records(Vec<EntryRecord>, Trailer),
    /// No footer: from batch to batch.
    Unsealed(Walk),
}

#[derive(Debug)]
struct Job {
    header: RegionHeader,
    found: Found,
    reading: bool,
    /// Something of it could not be read: there may be more than was found.
    unreadable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Headers of own regions.
    Headers,
    /// Waiting for the other cores' headers.
    Others,
    /// Tables, region by region.
    Tables,
}

#[derive(Debug)]
pub(super) struct Recovery {
    phase: Phase,
    started: Option<Time>,
    /// Regions whose header is to be read.
    headers: VecDeque<u32>,
    reading: usize,
    /// When one of its reads ended last, or the first of those under way began.
    moved: Time,
    /// Regions with contents, by their sequence: oldest first.
    jobs: BTreeMap<(u64, u32), Job>,
    /// Where in `jobs` a region is.
    sequences: BTreeMap<u32, u64>,
    /// Blocks that were forgotten meanwhile: what is found of them is not taken in.
    forgotten: BTreeSet<BlockId>,
    bytes: u64,
    entries: u64,
    /// Entries that the index had no room for.
    left_out: u64,
}

impl Recovery {
    pub fn new(regions: &Regions) -> Self {
        Self {
            phase: Phase::Headers,
            started: None,
            headers: regions.numbers().collect(),
            reading: 0,
            moved: Time(0),
            jobs: BTreeMap::new(),
            sequences: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            bytes: 0,
            entries: 0,
            left_out: 0,
        }
    }

    fn job(&mut self, region: u32) -> Option<&mut Job> {
        let sequence = *self.sequences.get(&region)?;
        self.jobs.get_mut(&(sequence, region))
    }

    /// What is found of `block` from now on is not taken in.
    pub fn forget(&mut self, block: BlockId) {
        self.forgotten.insert(block);
    }

    /// When it is given up, unless a read ends before.
    pub fn gives_up_at(&self) -> Time {
        match self.reading {
            0 => Time::NEVER,
            _ => self.moved + Duration::from_secs(DEVICE_RECOVERY_READ_S_MAX),
        }
    }

    /// Whether all of the own regions' headers were read.
    pub fn has_looked(&self) -> bool {
        self.phase != Phase::Headers
    }
}

impl<D: BlockDevice> Log<D> {
    pub fn turn_recovery(
        &mut self,
        now: Time,
        tier: &mut Tier,
        buffers: &mut impl Buffers,
    ) -> bool {
        let Some(recovery) = &mut self.recovery else {
            return false;
        };
        recovery.started.get_or_insert(now);
        match recovery.phase {
            Phase::Headers => self.read_headers(buffers),
            Phase::Others => self.meet_others(),
            Phase::Tables => {
                let read = self.read_tables_ahead(buffers);
                self.take_in_order(now, tier) || read
            }
        }
    }

    fn recovery_read(&mut self, region: u32, page: u32, mut lease: Lease, len: usize) {
        lease.truncate(len);
        let now = self.now;
        let tag = self.ops.begin(Op::Recovery(u64::from(region)));
        let offset_bytes = self.offset_bytes(region, page);
        if let Some(recovery) = &mut self.recovery {
            if recovery.reading == 0 {
                recovery.moved = now;
            }
            recovery.reading += 1;
            recovery.bytes += len as u64;
        }
        self.submit(DeviceOp::Read {
            tag,
            offset_bytes,
            lease,
        });
    }

    fn read_headers(&mut self, buffers: &mut impl Buffers) -> bool {
        let mut some = false;
        loop {
            let Some(recovery) = &mut self.recovery else {
                return some;
            };
            if recovery.reading >= READS_MAX {
                return some;
            }
            let Some(region) = recovery.headers.front().copied() else {
                break;
            };
            let Ok(lease) = buffers.lease(PAGE_BYTES) else {
                return some;
            };
            recovery.headers.pop_front();
            self.recovery_read(region, 0, lease, PAGE_BYTES);
            some = true;
        }
        if let Some(recovery) = &mut self.recovery
            && recovery.reading == 0
        {
            recovery.phase = Phase::Others;
            self.shared.rehome.looked.fetch_add(1, Ordering::AcqRel);
            return true;
        }
        some
    }

    /// Goes on when every core has told which of its regions were written under another number of cores.
    fn meet_others(&mut self) -> bool {
        let cores = self.regions.cores();
        if self.shared.rehome.looked.load(Ordering::Acquire) < cores {
            return false;
        }
        let others: Vec<(u32, RegionHeader)> = self.shared.rehome.regions.lock().clone();
        for (region, header) in others {
            if !self.regions.is_own(region) {
                self.add_job(region, header);
            }
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.phase = Phase::Tables;
        }
        true
    }

    fn add_job(&mut self, region: u32, header: RegionHeader) {
        let job = Job {
            header,
            found: Found::Header,
            reading: false,
            unreadable: false,
        };
        if let Some(recovery) = &mut self.recovery {
            recovery.sequences.insert(region, header.sequence);
            recovery.jobs.insert((header.sequence, region), job);
        }
    }

    /// A read for recovery ended; `region` is the one it is about.
    pub fn recovery_done(
        &mut self,
        now: Time,
        region: u64,
        lease: Lease,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        let region = region as u32;
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.reading -= 1;
        recovery.moved = now;
        if let Err(error) = result {
            self.stats.read_errors += 1;
            self.fault(now, error, tier);
        }
        let bytes = match result {
            Ok(()) => lease.bytes(),
            // What cannot be read is not there.
            Err(_) => &[],
        };
        if self
            .recovery
            .as_ref()
            .is_some_and(|all| all.phase == Phase::Headers)
        {
            return self.header_found(region, bytes);
        }
        let (log, geometry) = (self.shared.log, self.geometry);
        if let Some(job) = self.recovery.as_mut().and_then(|all| all.job(region)) {
            job.reading = false;
            job.unreadable |= result.is_err();
            job.advance(bytes, log, &geometry);
        }
    }

    fn header_found(&mut self, region: u32, bytes: &[u8]) {
        let header =
            RegionHeader::decode(self.shared.log, bytes).filter(|header| header.region == region);
        let cores = self.regions.cores();
        let Some(header) = header else {
            let void = VoidHeader::decode(self.shared.log, bytes);
            if let Some(void) = void.filter(|void| void.region == region)
                && let Some(entry) = self.regions.get_mut(region)
            {
                entry.generation = void.generation;
            }
            // Never opened, emptied, or not to be understood: free. Zeros where nothing was written.
            let punched = !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0);
            return self.regions.set_state(region, State::Free { punched });
        };
        let Some(entry) = self.regions.get_mut(region) else {
            return;
        };
        let rehomed = u32::from(header.cores) != cores;
        entry.generation = header.generation;
        entry.sequence = header.sequence;
        entry.rehomed = rehomed;
        self.regions.sequence = self.regions.sequence.max(header.sequence);
        self.shared.set_generation(region, header.generation);
        if rehomed {
            self.shared.rehome.regions.lock().push((region, header));
        }
        self.add_job(region, header);
    }

    /// Reads what the oldest regions need next.
    fn read_tables_ahead(&mut self, buffers: &mut impl Buffers) -> bool {
        let Some(recovery) = &self.recovery else {
            return false;
        };
        let mut wanted = Vec::new();
        // Of this region and older ones, on their way or here: buffers that were never used cost more than
        // what is read into them.
        let mut tables = 0;
        for ((_, region), job) in recovery.jobs.iter().take(READS_MAX) {
            tables += usize::from(job.has_table());
            if let Some((page, pages)) = job.needs(&self.geometry)
                && (pages == 1 || tables < TABLES_AHEAD)
            {
                tables += usize::from(pages > 1);
                wanted.push((*region, page, pages));
            }
        }
        let mut some = false;
        for (region, page, pages) in wanted {
            let len = pages as usize * PAGE_BYTES;
            let Ok(lease) = buffers.lease(len) else {
                return some;
            };
            if let Some(job) = self.recovery.as_mut().and_then(|all| all.job(region)) {
                job.reading = true;
            }
            self.recovery_read(region, page, lease, len);
            some = true;
        }
        some
    }

    /// Takes in what is complete, oldest first: what is younger replaces it.
    fn take_in_order(&mut self, now: Time, tier: &mut Tier) -> bool {
        let mut some = false;
        loop {
            let Some(recovery) = &mut self.recovery else {
                return some;
            };
            let Some(first) = recovery.jobs.first_entry() else {
                self.finish_recovery(now, tier);
                return true;
            };
            if !first.get().is_complete() {
                return some;
            }
            let ((_, region), job) = first.remove_entry();
            self.take_in(region, job, tier);
            some = true;
        }
    }

    fn take_in(&mut self, region: u32, job: Job, tier: &mut Tier) {
        let Job {
            header,
            found,
            unreadable,
            ..
        } = job;
        let own = self.regions.is_own(region);
        let records: Vec<EntryRecord> = match found {
            Found::Records(records, trailer) => {
                if own {
                    self.adopt_sealed(region, &header, &trailer);
                } else {
                    self.note_foreign(region, &header, None);
                }
                records
            }
            Found::Unsealed(walk) => {
                self.tell_damaged(region, &walk);
                let records = walk.records().to_vec();
                if own {
                    self.adopt_unsealed(region, &header, walk, unreadable);
                } else {
                    self.note_foreign(region, &header, Some(walk.into_parts().1));
                }
                records
            }
            _ => return,
        };
        tier.recovers(header.queue, (self.number, region), records.len());
        let (core, cores) = (self.regions.core() as usize, self.regions.cores() as usize);
        for some in records.chunks(LOOK_AHEAD) {
            tier.index
                .look_ahead(some.iter().map(|record| record.block));
            for record in some {
                let home = Slot::of_stripe(record.block.object, record.block.offset()).core(cores);
                if home == core {
                    self.take_in_record(region, record, tier);
                }
            }
        }
    }

    fn take_in_record(&mut self, region: u32, record: &EntryRecord, tier: &mut Tier) {
        let forgotten = |recovery: &Recovery| recovery.forgotten.contains(&record.block);
        if self.recovery.as_ref().is_some_and(forgotten) {
            return;
        }
        let extent = Extent {
            block: record.block,
            first_page: record.first_page,
            pages: record.pages() as u16,
            place: Place::new(self.number, region, record.region_page as u16),
            stamp: 0,
            pinned: record.pinned,
            short_bytes: record.short_bytes(),
            given_to: 0,
        };
        let mut inserted = tier.insert(extent);
        if !inserted && tier.index.capacity() > 0 {
            // Too many for the memory that there is now: what reclaim would take first gives way.
            let gone = tier.make_room();
            self.stats.entries_evicted += gone.entries;
            self.stats.evicted_bytes += gone.pages * PAGE_BYTES as u64;
            if let Some(recovery) = &mut self.recovery {
                recovery.left_out += gone.entries;
                recovery.entries = recovery.entries.saturating_sub(gone.entries);
            }
            inserted = tier.insert(extent);
        }
        if let Some(recovery) = &mut self.recovery {
            match inserted {
                true => recovery.entries += 1,
                false => recovery.left_out += 1,
            }
        }
    }

    fn tell_damaged(&mut self, region: u32, walk: &Walk) {
        self.stats.batches_damaged += walk.damaged().len() as u64;
        for page in walk.damaged() {
            tracing::warn!(
                device = self.shared.name,
                region,
                page,
                "a batch's header is damaged, or was being written when the machine stopped: what lay in the batch comes \
                 from elsewhere again"
            );
        }
    }

    fn note_foreign(&mut self, region: u32, header: &RegionHeader, checksums: Option<Vec<u32>>) {
        let foreign = Foreign {
            generation: header.generation,
            checksums,
        };
        self.reads.foreign.insert(region, foreign);
    }

    fn adopt_sealed(&mut self, region: u32, header: &RegionHeader, trailer: &Trailer) {
        self.regions.hold(region, header.queue, State::Sealed);
        let pages = self.geometry.region_pages();
        if let Some(entry) = self.regions.get_mut(region) {
            entry.used_pages = pages;
            entry.entries = trailer.entries;
            entry.entry_table_page = trailer.entry_table_page;
            entry.table_crcs = [trailer.entries_crc, trailer.checksums_crc];
        }
        self.regions.enqueue(region);
    }

    /// An unsealed region is appended to again; the younger of two of one queue is, the other is sealed.
    fn adopt_unsealed(&mut self, region: u32, header: &RegionHeader, walk: Walk, unreadable: bool) {
        if walk.records().is_empty() {
            let free = State::Free { punched: false };
            return self.regions.set_state(region, free);
        }
        let open = Open {
            region,
            generation: header.generation,
            page: walk.page(),
            chain: walk.chain(),
            batches: 0,
            broken: false,
        };
        let has_gap = walk.has_gap();
        let (records, checksums) = walk.into_parts();
        self.regions.hold(region, header.queue, State::Open);
        if let Some(entry) = self.regions.get_mut(region) {
            entry.used_pages = open.page;
            entry.held = Some(Box::new(Held { records, checksums }));
        }
        if unreadable || has_gap {
            // What lies behind may still be named by a footer that could not be read just now; and a batch appended
            // behind a gap would be lost with the next header that goes.
            return self.seal_later(header.queue, open);
        }
        if u32::from(header.cores) != self.regions.cores() {
            // Its header says that other cores need not look here for their entries: nothing of this
            // run may be added.
            return self.seal_later(header.queue, open);
        }
        if let Some(older) = self.streams[header.queue as usize].open.replace(open) {
            self.seal_later(header.queue, older);
        }
    }

    fn finish_recovery(&mut self, now: Time, tier: &mut Tier) {
        let Some(recovery) = self.recovery.take() else {
            return;
        };
        tier.recovery_ended();
        self.regions.collect_free();
        if recovery.left_out == 0 {
            // Also regions from which nothing was taken in.
            self.emptied = self
                .regions
                .queue_members()
                .map(|region| (region, 0))
                .collect();
        } else {
            // A next run with more memory finds it there, if nothing comes in between.
            tier.take_emptied(self.number);
        }
        self.state = DeviceState::Serving;
        self.stats.recovered_entries = recovery.entries;
        self.stats.recovery_bytes = recovery.bytes;
        let started = recovery.started.unwrap_or(now);
        self.stats.recovery_ns = now.since(started).as_nanos() as u64;
        if recovery.left_out > 0 {
            tracing::warn!(
                device = self.shared.name,
                entries = recovery.left_out,
                "the index has no room for all entries that earlier runs left: those that were least worth keeping are \
                 left out; give more --memory"
            );
        }
        tracing::info!(
            device = self.shared.name,
            entries = recovery.entries,
            bytes_read = recovery.bytes,
            "the disk tier is ready"
        );
    }
}

impl Job {
    /// The pages that it has to read next.
    fn needs(&self, geometry: &super::geometry::Geometry) -> Option<(u32, u32)> {
        if self.reading {
            return None;
        }
        match &self.found {
            Found::Header => Some((geometry.trailer_page(), 1)),
            Found::Sealed(trailer) => Some((
                trailer.entry_table_page,
                Trailer::entry_table_pages(trailer.entries as usize) as u32,
            )),
            Found::Unsealed(walk) => walk.needs(),
            Found::Records(..) => None,
        }
    }

    /// Whether all of it was found.
    fn is_complete(&self) -> bool {
        match &self.found {
            Found::Records(..) => true,
            Found::Unsealed(walk) => walk.needs().is_none(),
            Found::Header | Found::Sealed(_) => false,
        }
    }

    /// Whether its table is on its way or here.
    fn has_table(&self) -> bool {
        match &self.found {
            Found::Sealed(_) => self.reading,
            Found::Records(..) => true,
            Found::Unsealed(walk) => {
                self.reading && walk.needs().is_some_and(|(_, pages)| pages > 1)
            }
            Found::Header => false,
        }
    }

    /// Goes on with what was read; nothing when it could not be read.
    fn advance(
        &mut self,
        bytes: &[u8],
        log: super::layout::LogId,
        geometry: &super::geometry::Geometry,
    ) {
        let walk = || Walk::new(log, *geometry, self.header);
        self.found = match std::mem::replace(&mut self.found, Found::Header) {
            Found::Header => {
                let trailer = Trailer::decode(log, bytes).filter(|trailer| {
                    trailer.is_of(&self.header) && trailer.entries > 0 && trailer.fits(geometry)
                });
                match trailer {
                    Some(trailer) => Found::Sealed(trailer),
                    None => Found::Unsealed(walk()),
                }
            }
            Found::Sealed(trailer) => {
                let records = trailer
                    .holds_entries(bytes)
                    .then(|| decode_entries(bytes, trailer.entries as usize, geometry))
                    .flatten();
                match records {
                    Some(records) => Found::Records(records, trailer),
                    None => Found::Unsealed(walk()),
                }
            }
            Found::Unsealed(mut walk) => {
                walk.take(bytes);
                Found::Unsealed(walk)
            }
            done => done,
        };
    }
}

const _: () = assert!(Queue::Small as usize == 0 && Queue::Main as usize == 1);
