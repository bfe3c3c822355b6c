//! The header of a batch: what was appended to a region together.

use super::entry::decode_within;
use super::frame::{CRC_BYTES, HEAD_BYTES, Magic, Reader, Writer, chain_of, crc_holds};
use super::{ENTRY_BYTES, EntryRecord, LogId};
use crate::disk::geometry::REGION_BYTES_MAX;
use crate::limits::{CHUNK_BYTES, PAGE_BYTES};

const MAGIC: Magic = *b"FBbatch\0";
/// Bytes before the entries: the head and region 4, generation 4, page 4, data pages 4, entries 4,
/// zero 4, run 8, chain 8.
const FIXED_BYTES: usize = HEAD_BYTES + 40;
const REGION_PAGES_MAX: usize = REGION_BYTES_MAX as usize / PAGE_BYTES;

// What `peek` says of a header's length can be read into one buffer.
const _: () = assert!(
    BatchHeader::header_pages(REGION_PAGES_MAX, REGION_PAGES_MAX) * PAGE_BYTES <= CHUNK_BYTES
);

/// Header of a batch. In the region it stands right before the batch's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Which region; misdirected writes are seen.
    pub region: u32,
    /// The region's generation.
    pub generation: u32,
    /// Where the header begins, by page of the region.
    pub page: u32,
    /// Pages of data behind the header.
    pub data_pages: u32,
    /// The process that wrote it: another number in each run. Without it a batch that is written again
    /// after a crash, the same as before, would be continued by the headers that followed it then, while
    /// their data is being overwritten.
    pub run: u64,
    /// Hash of the header before: [`super::RegionHeader::chain`] or [`BatchHeader::next_chain`].
    pub chain: u64,
    /// The entries, in order of their pages; at least one. Pages between them belong to none.
    pub entries: Vec<EntryRecord>,
    /// One for each data page, in order.
    pub checksums: Vec<u32>,
}

/// How long a batch is, from its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Pages of the header.
    pub header_pages: usize,
    /// Pages of data behind it.
    pub data_pages: usize,
    /// Number of entries.
    pub entries: usize,
}

impl BatchHeader {
    /// Pages of the header of a batch of so many entries and pages of data.
    pub const fn header_pages(entries: usize, data_pages: usize) -> usize {
        let bytes = FIXED_BYTES + entries * ENTRY_BYTES + data_pages * 4 + CRC_BYTES;
        bytes.div_ceil(PAGE_BYTES)
    }

    /// Writes it into `out`.
    ///
    /// # Panics
    /// When `out` is not exactly [`BatchHeader::header_pages`], or there is not one checksum for each
    /// data page.
    pub fn encode(&self, log: LogId, out: &mut [u8]) {
        let header_pages = Self::header_pages(self.entries.len(), self.checksums.len());
        assert_eq!(out.len(), header_pages * PAGE_BYTES, "wrong header length");
        assert_eq!(self.checksums.len(), self.data_pages as usize);
        let mut writer = Writer::begin(out, MAGIC, log);
        writer.u32(self.region);
        writer.u32(self.generation);
        writer.u32(self.page);
        writer.u32(self.data_pages);
        writer.u32(self.entries.len() as u32);
        writer.u32(0);
        writer.u64(self.run);
        writer.u64(self.chain);
        for entry in &self.entries {
            writer.bytes(&entry.encode());
        }
        for checksum in &self.checksums {
            writer.u32(*checksum);
        }
        writer.finish();
    }

    /// How long the batch is whose header's first page this is. Bounds are checked, so that
    /// the whole fits in the largest region; the crc only when the header is one page.
    pub fn peek(log: LogId, first_page: &[u8]) -> Option<BatchShape> {
        let first_page = first_page.get(..PAGE_BYTES)?;
        let fixed = BatchFields::read(log, first_page)?;
        let whole = fixed.shape.header_pages > 1 || crc_holds(first_page);
        whole.then_some(fixed.shape)
    }

    /// The header at the beginning of `bytes`, when all of it is there and it is one of `log`: its crc
    /// holds, and every entry lies within its block, within the batch's data and behind the one before.
    /// Whether region, generation, page and chain are the expected ones is the caller's to check.
    pub fn decode(log: LogId, bytes: &[u8]) -> Option<Self> {
        let BatchFields { shape, .. } = BatchFields::read(log, bytes)?;
        let bytes = bytes.get(..shape.header_pages * PAGE_BYTES)?;
        if !crc_holds(bytes) {
            return None;
        }
        let mut reader = Reader::begin(bytes, MAGIC, log)?;
        let fixed = BatchFields::take(&mut reader)?;
        let data_begins = fixed.page + shape.header_pages as u32;
        let table = reader.bytes(shape.entries * ENTRY_BYTES)?;
        let data = data_begins..data_begins + shape.data_pages as u32;
        let entries = decode_within(table, shape.entries, data)?;
        let checksums = super::decode_checksums(reader.bytes(shape.data_pages * 4)?);
        reader.finish()?;
        Some(Self {
            region: fixed.region,
            generation: fixed.generation,
            page: fixed.page,
            data_pages: shape.data_pages as u32,
            run: fixed.run,
            chain: fixed.chain,
            entries,
            checksums: checksums.into_vec(),
        })
    }

    /// What the next batch header carries as its `chain`. The same as [`chain_of`] the encoded header.
    pub fn next_chain(&self, log: LogId) -> u64 {
        let pages = Self::header_pages(self.entries.len(), self.checksums.len());
        let mut bytes = vec![0; pages * PAGE_BYTES];
        self.encode(log, &mut bytes);
        chain_of(&bytes)
    }
}

/// The fields of a header before its tables, bounds checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFields {
    /// See [`BatchHeader::region`].
    pub region: u32,
    /// See [`BatchHeader::generation`].
    pub generation: u32,
    /// See [`BatchHeader::page`].
    pub page: u32,
    /// See [`BatchHeader::run`].
    pub run: u64,
    chain: u64,
    /// How long the batch is.
    pub shape: BatchShape,
}

impl BatchFields {
    /// What the header says whose first page this is, whether or not its crc holds: nothing may be read by it.
    pub fn read(log: LogId, first_page: &[u8]) -> Option<Self> {
        Self::take(&mut Reader::begin(first_page, MAGIC, log)?)
    }

    fn take(reader: &mut Reader<'_>) -> Option<Self> {
        let region = reader.u32()?;
        let generation = reader.u32()?;
        let page = reader.u32()?;
        let data_pages = reader.u32()? as usize;
        let entries = reader.u32()? as usize;
        let zero = reader.u32()?;
        let run = reader.u64()?;
        let chain = reader.u64()?;
        let counted = generation != 0
            && zero == 0
            && (1..=data_pages).contains(&entries)
            && data_pages < REGION_PAGES_MAX
            && (1..REGION_PAGES_MAX).contains(&(page as usize));
        if !counted {
            return None;
        }
        let header_pages = BatchHeader::header_pages(entries, data_pages);
        let fits = page as usize + header_pages + data_pages <= REGION_PAGES_MAX;
        fits.then_some(Self {
            region,
            generation,
            page,
            run,
            chain,
            shape: BatchShape {
                header_pages,
                data_pages,
                entries,
            },
        })
    }
}
