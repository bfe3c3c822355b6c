//! Page 0 of a region.

use super::LogId;
use super::frame::{Magic, Reader, Writer, chain_of, crc_holds};
use crate::limits::PAGE_BYTES;

const MAGIC: Magic = *b"FBregion";
const VOID_MAGIC: Magic = *b"FBvacant";

/// Which of S3-FIFO's queues a region belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// New blocks.
    Small,
    /// Blocks that were read again.
    Main,
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

impl RegionHeader {
    /// Writes it into `page`.
    ///
    /// # Panics
    /// When `page` is not one page.
    pub fn encode(&self, log: LogId, page: &mut [u8]) {
        assert_eq!(page.len(), PAGE_BYTES, "a region header is one page");
        debug_assert!(self.generation != 0 && self.core < self.cores);
        let mut writer = Writer::begin(page, MAGIC, log);
        writer.u32(self.region);
        writer.u32(self.generation);
        writer.u64(self.sequence);
        writer.u8(match self.queue {
            Queue::Small => 0,
            Queue::Main => 1,
        });
        writer.u8(0);
        writer.u16(self.core);
        writer.u16(self.cores);
        writer.u16(0);
        writer.u32(self.tenant);
        writer.finish();
    }

    /// The header in the first page of `page`, when it is one of `log`.
    pub fn decode(log: LogId, page: &[u8]) -> Option<Self> {
        Self::fields(log, page).filter(|_| crc_holds(&page[..PAGE_BYTES]))
    }

    /// The same whether or not its crc holds: what a header says of which the device may have written only the first
    /// sectors. For people; nothing may be read by it.
    pub fn fields(log: LogId, page: &[u8]) -> Option<Self> {
        let page = page.get(..PAGE_BYTES)?;
        let mut reader = Reader::begin(page, MAGIC, log)?;
        let region = reader.u32()?;
        let generation = reader.u32()?;
        let sequence = reader.u64()?;
        let queue = match reader.u16()? {
            0 => Queue::Small,
            1 => Queue::Main,
            _ => return None,
        };
        let core = reader.u16()?;
        let cores = reader.u16()?;
        let zero = reader.u16()?;
        let tenant = reader.u32()?;
        reader.finish()?;
        let whole = generation != 0 && core < cores && zero == 0;
        whole.then_some(Self {
            region,
            generation,
            sequence,
            queue,
            core,
            cores,
            tenant,
        })
    }

    /// Whether a page is a whole header of another log: of a cache that was there before.
    pub fn is_of_another(log: LogId, page: &[u8]) -> bool {
        let mut head = Reader::over(page);
        let id = head.bytes(16).and_then(|_| head.u128()).map(LogId);
        id.is_some_and(|id| id != log && Self::decode(id, page).is_some())
    }

    /// What the region's first batch header carries as its `chain`.
    pub fn chain(&self, log: LogId) -> u64 {
        let mut page = [0; PAGE_BYTES];
        self.encode(log, &mut page);
        chain_of(&page)
    }
}

/// Page 0 of a region that was emptied: what lies behind it is void. Not zeros, which mean that the region takes no room
/// on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoidHeader {
    /// Which region; misdirected writes are seen.
    pub region: u32,
    /// The generation that is over.
    pub generation: u32,
}

impl VoidHeader {
    /// Writes it into `page`.
    ///
    /// # Panics
    /// When `page` is not one page.
    pub fn encode(&self, log: LogId, page: &mut [u8]) {
        assert_eq!(page.len(), PAGE_BYTES, "a region header is one page");
        let mut writer = Writer::begin(page, VOID_MAGIC, log);
        writer.u32(self.region);
        writer.u32(self.generation);
        writer.finish();
    }

    /// The header in the first page of `page`, when it is one of `log`.
    pub fn decode(log: LogId, page: &[u8]) -> Option<Self> {
        Self::fields(log, page).filter(|_| crc_holds(&page[..PAGE_BYTES]))
    }

    /// The same whether or not its crc holds: the device may have written only the first sectors. For people.
    pub fn fields(log: LogId, page: &[u8]) -> Option<Self> {
        let mut reader = Reader::begin(page.get(..PAGE_BYTES)?, VOID_MAGIC, log)?;
        let void = Self {
            region: reader.u32()?,
            generation: reader.u32()?,
        };
        reader.finish()?;
        Some(void)
    }
}
