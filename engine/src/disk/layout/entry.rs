//! The two tables that batch headers and footers hold: entries and checksums.

use super::frame::Reader;
use crate::disk::geometry::Geometry;
use crate::identity::{BlockId, ObjectId};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};

/// An extent on disk: contiguous pages of one block. 32 bytes: object 16, block index 4, page of the
/// region 4, length in bytes 4, first page of the block 2, flags 1, hits 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// Which block.
    pub block: BlockId,
    /// First page, by number in the block.
    pub first_page: u16,
    /// Bytes; the last page may be short.
    pub len_bytes: u32,
    /// Where it begins, by page of the region.
    pub region_page: u32,
    /// Never evicted.
    pub pinned: bool,
    /// Kept for a hit counter; written as 0, and heat is not kept over a restart.
    pub hits: u8,
}

/// Bytes of an [`EntryRecord`].
pub const ENTRY_BYTES: usize = 32;

const PINNED: u8 = 1;

impl EntryRecord {
    /// Pages that it occupies.
    pub fn pages(&self) -> u32 {
        self.len_bytes.div_ceil(PAGE_BYTES as u32)
    }

    /// What the last page lacks of a page.
    pub fn short_bytes(&self) -> u16 {
        (self.pages() * PAGE_BYTES as u32 - self.len_bytes) as u16
    }

    pub(super) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        out[..16].copy_from_slice(&self.block.object.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.block.index.to_le_bytes());
        out[20..24].copy_from_slice(&self.region_page.to_le_bytes());
        out[24..28].copy_from_slice(&self.len_bytes.to_le_bytes());
        out[28..30].copy_from_slice(&self.first_page.to_le_bytes());
        out[30] = if self.pinned { PINNED } else { 0 };
        out[31] = self.hits;
        out
    }

    /// The entry, when it lies within its block and is not empty.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::over(bytes);
        let block = BlockId {
            object: ObjectId(reader.u128()?),
            index: reader.u32()?,
        };
        let region_page = reader.u32()?;
        let len_bytes = reader.u32()?;
        let first_page = reader.u16()?;
        let flags = reader.u8()?;
        let hits = reader.u8()?;
        let end = u64::from(first_page) * PAGE_BYTES as u64 + u64::from(len_bytes);
        let whole = len_bytes > 0 && end <= BLOCK_BYTES as u64 && flags & !PINNED == 0;
        whole.then_some(Self {
            block,
            first_page,
            len_bytes,
            region_page,
            pinned: flags == PINNED,
            hits,
        })
    }
}

/// Entries of a table, checked one by one: each behind the one before, all within `pages` of the region.
/// `None` at the first that is not.
pub(super) fn decode_within(
    bytes: &[u8],
    count: usize,
    pages: std::ops::Range<u32>,
) -> Option<Vec<EntryRecord>> {
    // The table is there, so memory for it is bounded by what was read.
    let table = bytes.get(..count.checked_mul(ENTRY_BYTES)?)?;
    let mut entries = Vec::with_capacity(count);
    let mut free = pages.start;
    for record in table.chunks_exact(ENTRY_BYTES) {
        let entry = EntryRecord::decode(record)?;
        let end = entry.region_page.checked_add(entry.pages())?;
        if entry.region_page < free || end > pages.end {
            return None;
        }
        free = end;
        entries.push(entry);
    }
    Some(entries)
}

/// Writes a footer's entry table, zeros behind it. Gives the crc of all of `out`, for the trailer.
///
/// # Panics
/// When `out` is shorter than the table.
pub fn encode_entries(entries: &[EntryRecord], out: &mut [u8]) -> u32 {
    let (table, padding) = out.split_at_mut(entries.len() * ENTRY_BYTES);
    for (entry, slot) in entries.iter().zip(table.chunks_exact_mut(ENTRY_BYTES)) {
        slot.copy_from_slice(&entry.encode());
    }
    padding.fill(0);
    crc_fast::crc32_iscsi(out)
}

/// Reads `count` entries of a footer. `None` when one is not whole, lies outside of the region's data,
/// or does not lie behind the one before: entries are in order of their pages. The table's crc is
/// checked by [`super::Trailer::holds_entries`].
pub fn decode_entries(bytes: &[u8], count: usize, geometry: &Geometry) -> Option<Vec<EntryRecord>> {
    decode_within(bytes, count, 1..geometry.checksum_table_page())
}

/// Writes a checksum table, or pages of one, zeros behind it. Gives the crc of all of `out`, for the trailer.
///
/// # Panics
/// When `out` is shorter than the table.
pub fn encode_checksums(checksums: &[u32], out: &mut [u8]) -> u32 {
    let (table, padding) = out.split_at_mut(checksums.len() * 4);
    for (checksum, slot) in checksums.iter().zip(table.chunks_exact_mut(4)) {
        slot.copy_from_slice(&checksum.to_le_bytes());
    }
    padding.fill(0);
    crc_fast::crc32_iscsi(out)
}

/// Reads a checksum table, or pages of one: one number for each four bytes.
pub fn decode_checksums(bytes: &[u8]) -> Box<[u32]> {
    let (checksums, _) = bytes.as_chunks::<4>();
    checksums
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect()
}
