//! From batch header to batch header through a region that has no footer: for recovery, and for tools.
//!
//! ```text
//! follow the chain -> no header here -> look behind it, as far as the longest batch reaches
//!                                        -> one of this life of the region: go on from there
//!                                        -> none: the end
//! ```
//!
//! A header that was damaged, or that a power cut took, costs its own batch and not those behind it: the data of each
//! lasts before its header is written. A header found without its chain must be told from leftovers. It is taken when
//! its crc holds, it names the region, the generation and its own place, and the process that wrote it is no older
//! than the one that wrote the batch before it: a region in which batches are missing is never appended to again, so
//! what an older process left behind the gap was overwritten by a younger one whose header is there.

use super::geometry::Geometry;
use super::layout::{BatchFields, BatchHeader, EntryRecord, LogId, RegionHeader, chain_of};
use super::writer::footer_page;
use crate::limits::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, CHUNK_BYTES, PAGE_BYTES};

/// Pages of the longest batch.
const BATCH_PAGES_MAX: usize = BATCH_BYTES_MAX / PAGE_BYTES
    + BatchHeader::header_pages(BATCH_ENTRIES_MAX, BATCH_BYTES_MAX / PAGE_BYTES);
/// Pages that are looked through at a time.
const WINDOW_PAGES: u32 = (CHUNK_BYTES / PAGE_BYTES) as u32;
/// A region's sequence is larger than the number of the process that opened it, by fewer than this: numbers of
/// processes are nanoseconds, and sequences count regions on from there.
const OPENED_SINCE_MAX: u64 = 1 << 32;

/// A walk through one region.
#[derive(Debug)]
pub struct Walk {
    log: LogId,
    geometry: Geometry,
    header: RegionHeader,
    step: Step,
    /// Where the next batch is to be.
    page: u32,
    chain: u64,
    /// No older process wrote the next batch.
    run_min: u64,
    records: Vec<EntryRecord>,
    checksums: Vec<u32>,
    damaged: Vec<u32>,
    has_gap: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The header at [`Walk::page`], of so many pages.
    Follow { pages: u32 },
    /// Any header from `at` on, so many pages at a time, before page `end`.
    Seek { at: u32, window: u32, end: u32 },
    /// What looks like a header at `at`, of so many pages.
    Try { at: u32, pages: u32, end: u32 },
    /// The end.
    Done,
}

/// What pages say that should begin with a header.
enum Seen {
    /// It is so many pages long.
    More(u32),
    Batch(Box<BatchHeader>),
    None,
}

impl Walk {
    /// A walk from the first batch of the region that `header` describes.
    pub fn new(log: LogId, geometry: Geometry, header: RegionHeader) -> Self {
        Self {
            log,
            geometry,
            step: Step::Follow { pages: 1 },
            page: 1,
            chain: header.chain(log),
            run_min: header.sequence.saturating_sub(OPENED_SINCE_MAX),
            records: Vec::new(),
            checksums: vec![0],
            damaged: Vec::new(),
            has_gap: false,
            header,
        }
    }

    /// First page of the region, and number of pages, that [`Walk::take`] is to be given. None at the end.
    pub fn needs(&self) -> Option<(u32, u32)> {
        match self.step {
            Step::Follow { pages } => Some((self.page, pages)),
            Step::Seek { at, window, end } => Some((at, window.min(end - at))),
            Step::Try { at, pages, .. } => Some((at, pages)),
            Step::Done => None,
        }
    }

    /// Goes on with the pages that were needed; with none of them when they could not be read.
    pub fn take(&mut self, bytes: &[u8]) {
        match self.step {
            Step::Follow { pages } => self.follow(pages, bytes),
            Step::Seek { at, window, end } => self.seek(at, window, end, bytes),
            Step::Try { at, end, .. } => match self.see(at, u32::MAX, bytes) {
                Seen::Batch(batch) if batch.run >= self.run_min => {
                    self.lose_here();
                    self.has_gap = true;
                    self.go_on(at, *batch, bytes);
                }
                _ => self.step = seek(at + 1, WINDOW_PAGES, end),
            },
            Step::Done => {}
        }
    }

    /// Entries found so far, in order of their pages.
    pub fn records(&self) -> &[EntryRecord] {
        &self.records
    }

    /// Checksum of each page from the region's first on, as far as the walk has come; 0 for headers, and for pages of
    /// batches that are lost.
    pub fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    /// Both, without copies.
    pub fn into_parts(self) -> (Vec<EntryRecord>, Vec<u32>) {
        (self.records, self.checksums)
    }

    /// Where batches begin whose header is damaged, could not be read, or was not written to its end when the power
    /// went. One for each gap: of several in a row the first.
    pub fn damaged(&self) -> &[u32] {
        &self.damaged
    }

    /// Whether batches were found behind one that is lost: nothing may be appended.
    pub fn has_gap(&self) -> bool {
        self.has_gap
    }

    /// The page behind the last batch found.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// What the next batch's header carries as its chain.
    pub fn chain(&self) -> u64 {
        self.chain
    }

    fn follow(&mut self, pages: u32, bytes: &[u8]) {
        match self.see(self.page, pages, bytes) {
            Seen::More(pages) => self.step = Step::Follow { pages },
            Seen::Batch(batch) if batch.chain == self.chain => self.go_on(self.page, *batch, bytes),
            Seen::Batch(_) => self.look_behind(),
            Seen::None => {
                let fields = BatchFields::read(self.log, bytes);
                if bytes.is_empty() || fields.is_some_and(|fields| self.is_ours(&fields, self.page))
                {
                    self.lose_here();
                }
                self.look_behind();
            }
        }
    }

    /// There is no header where the next one is to be. That nothing was ever written there is not told by zeros: data may
    /// be zeros, and its header may never have reached the device.
    fn look_behind(&mut self) {
        let end = (self.page + BATCH_PAGES_MAX as u32 + 1).min(self.geometry.checksum_table_page());
        self.step = seek(self.page + 1, WINDOW_PAGES, end);
    }

    fn seek(&mut self, at: u32, window: u32, end: u32, bytes: &[u8]) {
        for (number, page) in (at..).zip(bytes.chunks(PAGE_BYTES)) {
            let Some(fields) = BatchFields::read(self.log, page) else {
                continue;
            };
            let last = number + (fields.shape.header_pages + fields.shape.data_pages) as u32;
            if self.is_ours(&fields, number)
                && fields.run >= self.run_min
                && last <= self.geometry.checksum_table_page()
            {
                let pages = fields.shape.header_pages as u32;
                self.step = Step::Try {
                    at: number,
                    pages,
                    end,
                };
                return;
            }
        }
        self.step = seek(at + window, WINDOW_PAGES, end);
    }

    fn is_ours(&self, fields: &BatchFields, page: u32) -> bool {
        (fields.region, fields.generation, fields.page)
            == (self.header.region, self.header.generation, page)
    }

    /// What begins at `page`; only the first `pages` pages of its header may be there.
    fn see(&self, page: u32, pages: u32, bytes: &[u8]) -> Seen {
        let Some(shape) = BatchHeader::peek(self.log, bytes) else {
            return Seen::None;
        };
        let (header_pages, data_pages) = (shape.header_pages as u32, shape.data_pages as u32);
        if page + header_pages + data_pages > self.geometry.checksum_table_page() {
            return Seen::None;
        }
        if header_pages > pages {
            return Seen::More(header_pages);
        }
        match BatchHeader::decode(self.log, bytes) {
            Some(batch)
                if (batch.region, batch.generation, batch.page)
                    == (self.header.region, self.header.generation, page) =>
            {
                Seen::Batch(Box::new(batch))
            }
            _ => Seen::None,
        }
    }

    /// The batch that was to begin here is lost.
    fn lose_here(&mut self) {
        if self.damaged.last() != Some(&self.page) {
            self.damaged.push(self.page);
        }
    }

    /// Takes a batch in that begins at `at`.
    fn go_on(&mut self, at: u32, batch: BatchHeader, bytes: &[u8]) {
        let header_pages = BatchHeader::header_pages(batch.entries.len(), batch.checksums.len());
        self.chain = chain_of(&bytes[..header_pages * PAGE_BYTES]);
        self.run_min = self.run_min.max(batch.run);
        self.checksums.resize(at as usize + header_pages, 0);
        self.checksums.extend_from_slice(&batch.checksums);
        self.records.extend_from_slice(&batch.entries);
        self.page = at + header_pages as u32 + batch.data_pages;
        // Where the next header would begin where the footer must, there is none.
        self.step = match footer_page(&self.geometry, self.records.len()) <= self.page {
            true => Step::Done,
            false => Step::Follow { pages: 1 },
        };
    }
}

fn seek(at: u32, window: u32, end: u32) -> Step {
    match at < end {
        true => Step::Seek { at, window, end },
        false => Step::Done,
    }
}
