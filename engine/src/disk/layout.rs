//! What lies on a device: structures, and how they become bytes and are read back.

/// Names one log: drawn at format, carried by every structure, so that leftovers of another log are
/// never taken for ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogId(pub u128);

/// Which of S3-FIFO's queues a region belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// New blocks.
    Small,
    /// Blocks that were read again.
    Main,
}

/// The first page of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity.
    pub log: LogId,
    /// Bytes of a region: a power of two between the limits of `geometry`.
    pub region_bytes: u32,
    /// Sector size of the device at format.
    pub sector_bytes: u32,
    /// Nanoseconds since 1970 at format.
    pub created_ns: u64,
    /// Whose: `group/node`, at most 512 bytes; for people.
    pub owner: String,
}

/// Page 0 of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionHeader {
    /// Which region; misdirected writes are seen.
    pub region: u32,
    /// Grows each time the region is opened; never 0.
    pub generation: u32,
    /// Order of opening over all regions of the writer core; larger is younger.
    pub sequence: u64,
    /// Its queue.
    pub queue: Queue,
    /// The core that writes it.
    pub core: u16,
    /// How many cores there were.
    pub cores: u16,
    /// Whose bytes; 0 until tenants exist.
    pub tenant: u32,
}

/// An extent on disk: contiguous pages of one block. 32 bytes: object 16, block index 4, page of the
/// region 4, length in bytes 4, first page of the block 2, flags 1, hits 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// Which block.
    pub block: crate::identity::BlockId,
    /// First page, by number in the block.
    pub first_page: u16,
    /// Bytes; the last page may be short.
    pub len_bytes: u32,
    /// Where it begins, by page of the region.
    pub region_page: u32,
    /// Never evicted.
    pub pinned: bool,
    /// Hit counter when it was written.
    pub hits: u8,
}

/// Bytes of an [`EntryRecord`].
pub const ENTRY_BYTES: usize = 32;
