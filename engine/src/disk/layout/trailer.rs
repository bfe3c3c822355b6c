//! The last page of a sealed region: what its footer holds.

use super::frame::{Magic, Reader, Writer, crc_holds};
use super::{ENTRY_BYTES, LogId, RegionHeader};
use crate::disk::geometry::{Geometry, REGION_BYTES_MAX};
use crate::limits::PAGE_BYTES;

const MAGIC: Magic = *b"FBsealed";

/// The last page of a sealed region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Which region; misdirected writes are seen.
    pub region: u32,
    /// The region's generation; a trailer of an older one is void.
    pub generation: u32,
    /// The region's sequence, as its header has it. Generations begin again when a header is lost.
    pub sequence: u64,
    /// Number of entries in the entry table.
    pub entries: u32,
    /// Where the entry table begins, by page of the region.
    pub entry_table_page: u32,
    /// Crc of the entry table's pages, padding included.
    pub entries_crc: u32,
    /// Crc of the checksum table's pages, padding included.
    pub checksums_crc: u32,
}

impl Trailer {
    /// Pages of an entry table of so many entries.
    pub const fn entry_table_pages(entries: usize) -> usize {
        (entries * ENTRY_BYTES).div_ceil(PAGE_BYTES)
    }

    /// Writes it into `page`.
    ///
    /// # Panics
    /// When `page` is not one page.
    pub fn encode(&self, log: LogId, page: &mut [u8]) {
        assert_eq!(page.len(), PAGE_BYTES, "a trailer is one page");
        let mut writer = Writer::begin(page, MAGIC, log);
        writer.u32(self.region);
        writer.u32(self.generation);
        writer.u64(self.sequence);
        writer.u32(self.entries);
        writer.u32(self.entry_table_page);
        writer.u32(self.entries_crc);
        writer.u32(self.checksums_crc);
        writer.finish();
    }

    /// The trailer in the first page of `page`, when it is one of `log`. Its entry table fits in the
    /// largest region; whether in this one, says [`Trailer::fits`].
    pub fn decode(log: LogId, page: &[u8]) -> Option<Self> {
        let page = page.get(..PAGE_BYTES)?;
        let mut reader = Reader::begin(page, MAGIC, log)?;
        let trailer = Self {
            region: reader.u32()?,
            generation: reader.u32()?,
            sequence: reader.u64()?,
            entries: reader.u32()?,
            entry_table_page: reader.u32()?,
            entries_crc: reader.u32()?,
            checksums_crc: reader.u32()?,
        };
        reader.finish()?;
        let whole = trailer.generation != 0
            && trailer.entry_table_page != 0
            && trailer.entry_table_end() < u64::from(REGION_BYTES_MAX) / PAGE_BYTES as u64
            && crc_holds(page);
        whole.then_some(trailer)
    }

    /// The page behind the entry table.
    fn entry_table_end(&self) -> u64 {
        let bytes = u64::from(self.entries) * ENTRY_BYTES as u64;
        u64::from(self.entry_table_page) + bytes.div_ceil(PAGE_BYTES as u64)
    }

    /// Whether it was written when the region was, in the life that its header tells of.
    pub fn is_of(&self, header: &RegionHeader) -> bool {
        let theirs = (header.region, header.generation, header.sequence);
        (self.region, self.generation, self.sequence) == theirs
    }

    /// Whether the entry table ends where a region of this geometry has its checksum table, or before.
    pub fn fits(&self, geometry: &Geometry) -> bool {
        self.entry_table_end() <= u64::from(geometry.checksum_table_page())
    }

    /// Whether these are the bytes of the entry table: its whole pages.
    pub fn holds_entries(&self, pages: &[u8]) -> bool {
        pages.len() == Self::entry_table_pages(self.entries as usize) * PAGE_BYTES
            && crc_fast::crc32_iscsi(pages) == self.entries_crc
    }

    /// Whether these are the bytes of the checksum table: its whole pages.
    pub fn holds_checksums(&self, pages: &[u8]) -> bool {
        crc_fast::crc32_iscsi(pages) == self.checksums_crc
    }
}
