//! The region logs of one core, as its `Core` sees them.

use super::{DeviceSeat, DiskConfig, DiskEvent, DiskRead, DiskTurn, Fill};
use crate::arena::{Denied, Frozen, Lease};
use crate::identity::BlockId;
use crate::ports::{BlockDevice, Time};

/// Where the disk tier gets buffers for its own work from: the core's arena, with eviction.
pub trait Buffers {
    /// A buffer of [`crate::arena::Share::Disk`].
    ///
    /// # Errors
    /// When there is none now; asked for again next turn.
    fn lease(&mut self, len_bytes: usize) -> Result<Lease, Denied>;
    /// Makes a filled lease writable by a device.
    fn freeze(&mut self, lease: Lease) -> Frozen;
}

/// The disk tier of one core.
#[derive(Debug)]
pub struct Disk<D: BlockDevice> {
    seats: Vec<DeviceSeat<D>>,
    config: DiskConfig,
}

impl<D: BlockDevice> Disk<D> {
    /// No disk tier.
    pub fn absent() -> Self {
        let config = DiskConfig {
            core: 0,
            cores: 1,
            entries_max: 0,
            tables_bytes_max: 0,
            write_bytes_max: 0,
            incarnation: 0,
            read_timeout: std::time::Duration::ZERO,
            verify: true,
        };
        Self::new(Vec::new(), config)
    }

    /// The counters as of now.
    pub fn stats(&self) -> super::DiskStats {
        super::DiskStats::default()
    }

    /// A tier on `seats`; recovery begins with the first turn. Without seats nothing is ever kept.
    pub fn new(seats: Vec<DeviceSeat<D>>, config: DiskConfig) -> Self {
        Self { seats, config }
    }

    /// Whether there is any device to read from or write to.
    pub fn is_present(&self) -> bool {
        !self.seats.is_empty() && self.config.cores > 0
    }

    /// Whether entries of earlier runs are still being looked for.
    pub fn is_recovering(&self) -> bool {
        false
    }

    /// Sub-blocks of `block` that are wholly on disk, one bit each. `block_bytes` is the block's length.
    pub fn present(&self, block: BlockId, block_bytes: u32) -> u64 {
        let _ = (block, block_bytes);
        0
    }

    /// Pages of `block` that can be read at once, from `page` on; none when `page` is not on disk.
    pub fn extent(&self, block: BlockId, page: u32) -> Option<std::ops::Range<u32>> {
        let _ = (block, page);
        None
    }

    /// Begins a read; its pages must lie in one extent. Ends in one `Read` or `Missed` event with its
    /// ticket. Counts a hit of the entry when the read begins before where the last one ended.
    ///
    /// # Errors
    /// The read, untouched, when the device's queue is full.
    pub fn read(&mut self, now: Time, read: DiskRead) -> Result<(), DiskRead> {
        let _ = now;
        Err(read)
    }

    /// Takes bytes to be kept. True when a `Settled` event for all of the fill's pages will follow; false when it is
    /// not kept.
    pub fn keep(&mut self, now: Time, fill: Fill) -> bool {
        let _ = (now, fill);
        false
    }

    /// A reader was served from memory bytes that it had read before: the entry is as hot as they are.
    pub fn touch(&mut self, block: BlockId) {
        let _ = block;
    }

    /// Whether the block was evicted from disk not long ago.
    pub fn was_evicted(&self, block: BlockId) -> bool {
        let _ = block;
        false
    }

    /// Forgets a block.
    pub fn forget(&mut self, block: BlockId) {
        let _ = block;
    }

    /// Closes what is staged without waiting for more: before an orderly end. Turn until
    /// [`Disk::is_quiet`].
    pub fn settle(&mut self) {}

    /// Whether nothing is under way or waits to be written.
    pub fn is_quiet(&self) -> bool {
        true
    }

    /// Takes completions, advances every machine, submits. Called once a turn, after the core's own
    /// reads and fills were handed in.
    pub fn turn(&mut self, now: Time, buffers: &mut impl Buffers) -> DiskTurn {
        let _ = (now, buffers);
        DiskTurn {
            progressed: false,
            wake_at: Time::NEVER,
        }
    }

    /// What happened, oldest first.
    pub fn next_event(&mut self) -> Option<DiskEvent> {
        None
    }
}
