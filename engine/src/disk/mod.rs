//! The disk tier of one core: a region log on each of its devices.
//!
//! `docs/decisions/0015-region-log.md` has the layout and the order of writes. Sans-IO like all of the
//! engine: a [`Disk`] talks to [`BlockDevice`]s, is driven by [`Disk::turn`], and tells what happened by
//! [`DiskEvent`]s.
//!
//! | file | role |
//! |---|---|
//! | [`layout`] | what lies on a device: superblock, region header, batch header, entry, trailer; encode and decode |
//! | [`geometry`] | region size, numbers and offsets of regions |
//! | `log` | the tier as its core sees it |
//! | `held` | going through what is held, and the room for more: for members that leave |
//! | `tier` | what the logs of a core share |
//! | `device` | the log on one device: its operations, its turn, its faults |
//! | `regions` | which regions are free, which hold what, which goes next |
//! | `stream`, `writer`, `seal`, `flush` | appending: batches, headers, footers, in the order that survives a power cut |
//! | `reads` | reading and checking pages |
//! | `policy` | which queue a block enters, which region goes, what of it stays |
//! | `reclaim` | emptying the oldest region |
//! | `pins` | entries that are never evicted |
//! | `discard` | giving regions back to the device |
//! | `stuck` | dropping what cannot be had any more |
//! | `recovery` | finding what earlier runs left |
//! | [`walk`] | the batches of a region without a footer |
//! | `index` | where a block's extents are: at most 64 bytes an entry |
//! | `ghosts` | blocks evicted not long ago |
//! | `tables` | checksums of sealed regions: a bounded pool |
//! | `health` | a device's fault account, and when it is retired |

mod device;
mod discard;
mod flush;
pub mod geometry;
mod ghosts;
mod health;
mod held;
mod index;
pub mod layout;
mod log;
mod ops;
mod pins;
mod policy;
mod reads;
mod reclaim;
mod recovery;
mod regions;
mod seal;
mod stats;
mod stream;
mod stuck;
mod tables;
#[cfg(test)]
mod tests;
mod tier;
pub mod walk;
mod writer;

pub use held::Held;
pub use log::{Buffers, Disk};
pub use pins::PinRefused;
pub use stats::{DeviceState, DeviceStats, DiskStats};

use parking_lot::Mutex;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arena::{Frozen, Lease};
use crate::identity::BlockId;
use crate::ports::{BlockDevice, Time};

/// What all cores of the process know of one device. Made once, when the device is opened.
#[derive(Debug)]
pub struct DeviceShared {
    /// How users name it: the directory, or the device's path.
    pub name: String,
    /// Where its regions are.
    pub geometry: geometry::Geometry,
    /// The log's identity, from the superblock.
    pub log: layout::LogId,
    /// Bytes that the log may occupy now; the host lowers it when the disk's other users need room
    /// (`--free-space-ratio`) and rings the cores' doorbells; they then give regions back.
    pub allowed_bytes: AtomicU64,
    /// Generation of each region, set by its owner: what another core remembers of an older one is void.
    generations: Box<[AtomicU32]>,
    rehome: Rehome,
}

/// Regions that were written under another number of cores: every core looks through them at start.
#[derive(Debug, Default)]
struct Rehome {
    regions: Mutex<Vec<(u32, layout::RegionHeader)>>,
    /// Cores that have looked at their own regions.
    looked: AtomicU32,
}

impl DeviceShared {
    /// What the cores of a new process share about a device.
    pub fn new(name: String, geometry: geometry::Geometry, log: layout::LogId) -> Self {
        let generations = (0..geometry.regions).map(|_| AtomicU32::new(0)).collect();
        Self {
            name,
            geometry,
            log,
            allowed_bytes: AtomicU64::new(u64::MAX),
            generations,
            rehome: Rehome::default(),
        }
    }

    fn set_generation(&self, region: u32, generation: u32) {
        if let Some(known) = self.generations.get(region as usize) {
            known.store(generation, Ordering::Release);
        }
    }

    /// The generation that a region's owner has told; 0 before it has.
    fn generation(&self, region: u32) -> u32 {
        self.generations
            .get(region as usize)
            .map_or(0, |known| known.load(Ordering::Acquire))
    }
}

/// One core's seat at a device.
#[derive(Debug)]
pub struct DeviceSeat<D: BlockDevice> {
    /// Its queue pair.
    pub device: D,
    /// What it shares with the other cores.
    pub shared: Arc<DeviceShared>,
}

/// What a core's disk tier is told once.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// This core, from 0.
    pub core: usize,
    /// How many there are.
    pub cores: usize,
    /// Entries that the index may hold: its memory divided by [`crate::limits::DISK_ENTRY_BYTES`].
    pub entries_max: usize,
    /// Memory for checksum tables of sealed regions.
    pub tables_bytes_max: usize,
    /// Bytes that writes may hold; fills beyond it are not kept.
    pub write_bytes_max: usize,
    /// Larger in each run than in the one before: nanoseconds since 1970 when the process started.
    pub incarnation: u64,
    /// A read that takes longer is given up; the default is [`crate::limits::DEVICE_READ_MS_MAX`].
    pub read_timeout: std::time::Duration,
    /// Whether pages are checked when they are read. Off only to measure what it costs.
    pub verify: bool,
}

/// Bytes to be kept: a part of a block that has just arrived.
#[derive(Clone, Debug)]
pub struct Fill {
    /// Which block.
    pub block: BlockId,
    /// Its first page in the block.
    pub first_page: u32,
    /// The bytes; the last page may be short.
    pub bytes: Frozen,
    /// Seeded checksum of each of its pages.
    pub checksums: Rc<[u32]>,
    /// A user asked for it by name (a warm-up), not a reader by chance: what nobody reads any more gives way.
    pub wanted: bool,
}

/// A read of pages that lie in one extent (see [`Disk::extent`]).
#[derive(Debug)]
pub struct DiskRead {
    /// Names the read; comes back in its event.
    pub ticket: u64,
    /// Which block.
    pub block: BlockId,
    /// Bytes of the block as a whole: tells how long an object's last page is.
    pub block_bytes: u32,
    /// First page, by number in the block.
    pub first_page: u32,
    /// Destination: whole pages.
    pub lease: Lease,
}

/// Why a read from disk brought nothing. The entry is forgotten: ask the next source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskMiss {
    /// Reclaimed meanwhile.
    Reclaimed,
    /// A page failed its checksum.
    Checksum,
    /// The device could not read it.
    Device,
    /// The device takes too long; the lease stays lent until the device gives it back.
    Slow,
}

/// What the disk tier tells its core.
#[derive(Debug)]
pub enum DiskEvent {
    /// A read ended with verified bytes.
    Read {
        /// Which.
        ticket: u64,
        /// The bytes: whole pages.
        lease: Lease,
        /// Checksum of each page.
        checksums: Rc<[u32]>,
    },
    /// A read brought nothing.
    Missed {
        /// Which.
        ticket: u64,
        /// Why.
        why: DiskMiss,
    },
    /// These pages no longer need their copy in memory: they are on disk, or will not be.
    Settled {
        /// Which block.
        block: BlockId,
        /// First page.
        first_page: u32,
        /// Number of pages.
        pages: u32,
    },
}

/// How a turn of the disk tier ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskTurn {
    /// Something was done.
    pub progressed: bool,
    /// When it must turn again at the latest.
    pub wake_at: Time,
}
