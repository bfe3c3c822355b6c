//! The disk tier of one core, as its `Core` sees it.

use super::device::Log;
use super::index::Extent;
use super::pins::{self, PinRefused};
use super::tier::Tier;
use super::{DeviceSeat, DiskConfig, DiskEvent, DiskMiss, DiskRead, DiskStats, DiskTurn, Fill};
use crate::arena::{Denied, Frozen, Lease};
use crate::identity::BlockId;
use crate::limits::{DEVICES_MAX, PAGE_BYTES, PAGES_PER_SUB_BLOCK};
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
    pub(super) logs: Vec<Log<D>>,
    pub(super) tier: Tier,
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

    /// A tier on `seats` (at most [`DEVICES_MAX`]; more are left out); recovery begins with the first
    /// turn. Without seats nothing is ever kept.
    pub fn new(seats: Vec<DeviceSeat<D>>, config: DiskConfig) -> Self {
        let mut tier = Tier::new(config);
        for seat in seats.iter().take(DEVICES_MAX) {
            tier.add_device(seat.shared.geometry.regions);
        }
        let logs = seats.into_iter().take(DEVICES_MAX).enumerate();
        let logs = logs
            .map(|(number, seat)| Log::new(seat, number as u8, &tier))
            .collect();
        Self { logs, tier }
    }

    /// Whether there is any device to read from or write to.
    pub fn is_present(&self) -> bool {
        !self.logs.is_empty()
    }

    /// Whether entries of earlier runs are still being looked for.
    pub fn is_recovering(&self) -> bool {
        self.logs.iter().any(Log::is_recovering)
    }

    /// The counters as of now.
    pub fn stats(&self) -> DiskStats {
        DiskStats {
            devices: self
                .logs
                .iter()
                .map(|log| log.counters(&self.tier))
                .collect(),
            index_bytes: self.tier.index_bytes(),
            tables_bytes: self.tier.tables.memory_bytes() as u64,
            table_reads: self.logs.iter().map(|log| log.reads.table_reads).sum(),
        }
    }

    /// Sub-blocks of `block` that are wholly on disk, one bit each. `block_bytes` is the block's length.
    pub fn present(&self, block: BlockId, block_bytes: u32) -> u64 {
        let pages = block_bytes.div_ceil(PAGE_BYTES as u32);
        let per = PAGES_PER_SUB_BLOCK as u32;
        let mut present = 0;
        for extent in self.tier.index.extents(block) {
            if !self.is_current(extent.place) {
                continue;
            }
            let first = u32::from(extent.first_page).div_ceil(per);
            // An object's last sub-block ends with the object.
            let end = match extent.end() {
                end if end >= pages => end.div_ceil(per),
                end => end / per,
            };
            for sub in first..end {
                present |= 1u64.checked_shl(sub).unwrap_or(0);
            }
        }
        present
    }

    pub(super) fn is_current(&self, place: super::index::Place) -> bool {
        self.logs
            .get(usize::from(place.device()))
            .is_some_and(|log| log.is_readable() && log.is_current(place.region()))
    }

    /// The extent that reaches farthest of those that hold `page` and can be read.
    fn find(&self, block: BlockId, page: u16) -> Option<Extent> {
        let holds = |extent: &Extent| extent.covers(page) && self.is_current(extent.place);
        self.tier
            .index
            .extents(block)
            .filter(holds)
            .reduce(|best, next| if next.end() > best.end() { next } else { best })
    }

    /// Pages of `block` that can be read at once, from `page` on; none when `page` is not on disk.
    pub fn extent(&self, block: BlockId, page: u32) -> Option<std::ops::Range<u32>> {
        let extent = self.find(block, u16::try_from(page).ok()?)?;
        Some(page..extent.end())
    }

    /// Begins a read; its pages must lie in one extent. Ends in one `Read` or `Missed` event with its
    /// ticket. Counts as a hit of the entry: a fill's first reader is served from memory, so a read from disk
    /// is a reading again.
    ///
    /// # Errors
    /// The read, untouched, when the device's queue is full.
    pub fn read(&mut self, now: Time, read: DiskRead) -> Result<(), DiskRead> {
        let pages = (read.lease.len() / PAGE_BYTES) as u16;
        let first = read.first_page as u16;
        let extent = self
            .find(read.block, first)
            .filter(|extent| u32::from(first) + u32::from(pages) <= extent.end());
        let Some(extent) = extent else {
            self.tier.events.push_back(DiskEvent::Missed {
                ticket: read.ticket,
                why: DiskMiss::Reclaimed,
            });
            return Ok(());
        };
        self.logs[usize::from(extent.place.device())].begin_read(
            now,
            read,
            extent,
            &mut self.tier,
        )?;
        self.tier.hit(&extent);
        Ok(())
    }

    /// Takes bytes to be kept. True when a `Settled` event for all of the fill's pages will follow; false when it is
    /// not kept.
    pub fn keep(&mut self, now: Time, fill: Fill) -> bool {
        let len_bytes = fill.bytes.len();
        let pages = len_bytes.div_ceil(PAGE_BYTES);
        let room = self.may_write(len_bytes);
        let Some(number) = self.device_for(fill.block) else {
            return false;
        };
        let log = &mut self.logs[number];
        let whole = pages > 0 && pages == fill.checksums.len();
        if !room || !whole {
            log.stats.fills_dropped += 1;
            log.stats.dropped_bytes += len_bytes as u64;
            return false;
        }
        let queue = log.queue_for(&fill, pages as u64, &self.tier);
        log.stage_fill(now, fill, queue, &mut self.tier);
        true
    }

    /// Whether there is room now for so many bytes more on their way to the devices.
    pub fn may_write(&self, len_bytes: usize) -> bool {
        self.tier.writing_bytes + len_bytes <= self.tier.config.write_bytes_max
            && !self.tier.is_full()
    }

    /// Whether some device would take a part of this block, were there room.
    pub fn takes(&self, block: BlockId) -> bool {
        self.device_for(block).is_some()
    }

    /// Somebody waits for what is staged of this block: its batch closes at `by` at the latest.
    pub fn close_by(&mut self, block: BlockId, by: Time) {
        if let Some(number) = self.device_for(block) {
            let streams = &mut self.logs[number].streams;
            streams.iter_mut().for_each(|stream| stream.close_by(by));
        }
    }

    /// Whether fills that it has taken have not settled yet.
    pub fn is_writing(&self) -> bool {
        self.tier.writing_bytes > 0
    }

    /// The device that a block is written to: always the same while the devices are, by their sizes.
    pub(super) fn device_for(&self, block: BlockId) -> Option<usize> {
        let weight = |log: &Log<D>| match log.is_writable() || log.is_recovering() {
            true => log.regions.len() as u64 * u64::from(log.geometry.region_bytes),
            false => 0,
        };
        let total: u64 = self.logs.iter().map(weight).sum();
        if total == 0 {
            return None;
        }
        let id = block.object.0;
        let mut x = (id as u64) ^ (id >> 64) as u64 ^ u64::from(block.index).rotate_left(32);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mut at = (x ^ (x >> 31)) % total;
        for (number, log) in self.logs.iter().enumerate() {
            match at.checked_sub(weight(log)) {
                Some(rest) => at = rest,
                None => return Some(number),
            }
        }
        None
    }

    /// A reader was served from memory bytes that it had read before: the entry is as hot as they are.
    pub fn touch(&mut self, block: BlockId) {
        let mut extents = self.tier.index.extents(block);
        let Some(first) = extents.next() else {
            return;
        };
        let others: Vec<Extent> = extents.collect();
        self.tier.hit(&first);
        for extent in &others {
            self.tier.hit(extent);
        }
    }

    /// From now on never evicts what there is of the block, nor what is kept of it later; or does so again. The next
    /// run knows of it once what was on the device before has been moved, or closed, which takes some seconds:
    /// see [`Disk::pins_last`]. A damaged or vanished device takes pinned entries with it, [`Disk::forget`] forgets
    /// them, and what lies in a region of another core (after another `--cores`) goes when that core empties it. Of a
    /// block of which nothing is on disk nothing is pinned.
    ///
    /// # Errors
    /// When it does not fit: nothing is changed then.
    pub fn pin(&mut self, block: BlockId, pinned: bool) -> Result<(), PinRefused> {
        if pinned {
            for log in &self.logs {
                let extents = self.tier.index.extents(block);
                let more = extents
                    .filter(|extent| !extent.pinned && extent.place.device() == log.number)
                    .fold((0, 0), |(entries, pages), extent| {
                        (entries + 1, pages + u64::from(extent.pages))
                    });
                pins::fits(&self.tier, log, more)?;
            }
        }
        for extent in self.tier.pin(block, pinned) {
            if let Some(log) = self.logs.get_mut(usize::from(extent.place.device())) {
                log.note_stale(extent.place.region());
            }
        }
        Ok(())
    }

    /// Whether the next run would know of all that was pinned, and of all that was released, in this run. Not while the
    /// device is being told; and never where [`Disk::pins_cannot_last`] says so.
    pub fn pins_last(&self) -> bool {
        let goes_on = |log: &Log<D>| log.reclaim.as_ref().is_some_and(|reclaim| reclaim.for_pins);
        self.logs
            .iter()
            .all(|log| log.stale.is_over() && !goes_on(log))
    }

    /// Whether something was pinned or released that cannot be told to the device: it lies in a region of another core, in
    /// one that cannot be written, or on a device that takes no writes. This run keeps to it all the same.
    pub fn pins_cannot_last(&self) -> bool {
        self.logs.iter().any(|log| log.stale.is_hopeless())
    }

    /// Whether the block was evicted from disk not long ago.
    pub fn was_evicted(&self, block: BlockId) -> bool {
        self.tier.ghosts.contains(block)
    }

    /// Forgets a block, also what of it is still on its way to disk: none of that is found any more. On the device
    /// it stays until its regions are emptied, and the next run may find it again.
    pub fn forget(&mut self, block: BlockId) {
        self.tier.remove_block(block);
        for log in &mut self.logs {
            log.forget_unwritten(block, &mut self.tier);
        }
    }

    /// Closes what is staged without waiting for more: before an orderly end. Turn until
    /// [`Disk::is_quiet`].
    pub fn settle(&mut self) {
        for log in &mut self.logs {
            log.settle();
        }
    }

    /// Whether nothing is under way or waits to be written.
    pub fn is_quiet(&self) -> bool {
        self.tier.events.is_empty() && self.logs.iter().all(Log::is_quiet)
    }

    /// Takes completions, advances every machine, submits. Called once a turn, after the core's own
    /// reads and fills were handed in.
    pub fn turn(&mut self, now: Time, buffers: &mut impl Buffers) -> DiskTurn {
        let mut turn = DiskTurn {
            progressed: false,
            wake_at: Time::NEVER,
        };
        for log in &mut self.logs {
            let (progressed, wake_at) = log.turn(now, &mut self.tier, buffers);
            turn.progressed |= progressed;
            turn.wake_at = turn.wake_at.min(wake_at);
        }
        turn
    }

    /// What happened, oldest first.
    pub fn next_event(&mut self) -> Option<DiskEvent> {
        self.tier.events.pop_front()
    }
}
