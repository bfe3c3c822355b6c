//! Region size, numbers and offsets of regions.

use crate::limits::PAGE_BYTES;

/// Regions begin here.
pub const DATA_OFFSET_BYTES: u64 = 1 << 20;
/// The smallest region.
pub const REGION_BYTES_MIN: u32 = 2 << 20;
/// The largest region.
pub const REGION_BYTES_MAX: u32 = 64 << 20;

/// Where a log's regions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a region: a power of two.
    pub region_bytes: u32,
    /// How many there are.
    pub regions: u32,
}

impl Geometry {
    /// Where region `region` begins on the device, in bytes.
    pub fn offset_bytes(&self, region: u32) -> u64 {
        DATA_OFFSET_BYTES + u64::from(region) * u64::from(self.region_bytes)
    }

    /// Pages of a region.
    pub fn region_pages(&self) -> u32 {
        self.region_bytes / PAGE_BYTES as u32
    }

    /// Pages of a region's checksum table: four bytes for each page of the region.
    pub fn checksum_table_pages(&self) -> u32 {
        (self.region_pages() * 4).div_ceil(PAGE_BYTES as u32)
    }

    /// The page of a region where its checksum table begins.
    pub fn checksum_table_page(&self) -> u32 {
        self.trailer_page() - self.checksum_table_pages()
    }

    /// The page of a region's trailer: its last.
    pub fn trailer_page(&self) -> u32 {
        self.region_pages() - 1
    }
}
