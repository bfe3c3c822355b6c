//! The engine's `Disk` as a cache of small blocks of one length: what it keeps, what it costs in writes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::LogId;
use forebay_engine::disk::{DeviceSeat, DeviceShared, DeviceStats, DiskConfig, DiskEvent};
use forebay_engine::identity::BlockId;
use forebay_engine::limits::{BATCH_DELAY_MS, PAGE_BYTES};
use forebay_engine::ports::Time;

use super::driver::{Clock, Contents, Driver};
use super::load::Blocks;
use super::memory::MemoryDevice;
use super::policy::Outcome;
use super::traces::Trace;

/// Misses that share a batch: time passes accordingly.
const MISSES_PER_BATCH: u64 = 64;
const ARENA_BYTES: usize = 64 << 20;
/// Turns that one request may take.
const TURNS_MAX: usize = 100_000;

/// A disk tier in memory, used as a cache.
#[derive(Debug)]
pub struct DiskCache {
    driver: Driver<MemoryDevice>,
    contents: Contents,
    /// Kept and not yet on disk: answered from memory meanwhile, as the engine does.
    staged: Vec<bool>,
    ticket: u64,
    misses: u64,
    dropped: u64,
}

impl DiskCache {
    /// A log of `geometry` for blocks of `block_bytes` (whole pages) with numbers below `blocks`.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(geometry: Geometry, block_bytes: usize, blocks: usize) -> Result<Self> {
        let shared = DeviceShared::new("memory".to_owned(), geometry, LogId(1));
        let capacity_bytes = geometry.offset_bytes(geometry.regions) as usize;
        let pages = capacity_bytes / PAGE_BYTES;
        let config = DiskConfig {
            core: 0,
            cores: 1,
            entries_max: pages,
            tables_bytes_max: pages * 4 + (1 << 20),
            write_bytes_max: ARENA_BYTES / 2,
            incarnation: 1,
            read_timeout: Duration::from_secs(3600),
            verify: true,
        };
        let clock = Clock::Manual(Time(1));
        let mut driver = Driver::new(ARENA_BYTES, clock, config, |_| {
            let device = MemoryDevice::new(capacity_bytes);
            let shared = Arc::new(shared);
            Ok((DeviceSeat { device, shared }, None))
        })?;
        driver.recover()?;
        Ok(Self {
            driver,
            contents: Contents::new(block_bytes),
            staged: vec![false; blocks],
            ticket: 0,
            misses: 0,
            dropped: 0,
        })
    }

    /// Runs `trace`; counts from where it says.
    ///
    /// # Errors
    /// When the tier fails or drops fills.
    pub fn run(&mut self, trace: &Trace) -> Result<(Outcome, DeviceStats)> {
        let mut before = self.counters();
        for (number, block) in trace.requests.iter().enumerate() {
            if number == trace.counted_from {
                before = self.counters();
            }
            self.request(*block)?;
        }
        let after = self.counters();
        self.driver.serves()?;
        ensure!(
            self.dropped == 0,
            "{} fills were not kept: this measures something else",
            self.dropped
        );
        let filled = after.2.filled_bytes - before.2.filled_bytes;
        let moved = after.2.reinserted_bytes - before.2.reinserted_bytes;
        let overhead = after.2.overhead_bytes - before.2.overhead_bytes;
        let outcome = Outcome {
            misses: after.0 - before.0,
            write_amplification: (filled + moved + overhead) as f64 / filled.max(1) as f64,
        };
        Ok((outcome, after.2))
    }

    fn counters(&mut self) -> (u64, u64, DeviceStats) {
        let device = self.driver.disk().stats().devices.swap_remove(0);
        (self.misses, self.dropped, device)
    }

    fn request(&mut self, number: u32) -> Result<()> {
        let block = Blocks::id(u64::from(number));
        if self.staged[number as usize] {
            self.driver.disk().touch(block);
            return Ok(());
        }
        if self.driver.disk().extent(block, 0).is_some() && self.read(block)? {
            return Ok(());
        }
        self.misses += 1;
        let Some(fill) = self.driver.fill(block, 0, &self.contents) else {
            bail!("no buffer for a fill");
        };
        let now = self.driver.now();
        match self.driver.disk().keep(now, fill) {
            true => self.staged[number as usize] = true,
            false => self.dropped += 1,
        }
        let batch = Duration::from_millis(BATCH_DELAY_MS + 1);
        self.driver.pass(batch / MISSES_PER_BATCH as u32);
        self.turn_while_progress()
    }

    /// False when the block was just evicted.
    fn read(&mut self, block: BlockId) -> Result<bool> {
        self.ticket += 1;
        let (ticket, bytes) = (self.ticket, self.contents.len_bytes());
        ensure!(
            self.driver.read(ticket, block, bytes as u32, (0, bytes)),
            "the device takes no read"
        );
        for _ in 0..TURNS_MAX {
            self.driver.turn();
            while let Some(event) = self.driver.next_event() {
                match event {
                    DiskEvent::Read { ticket: of, .. } if of == ticket => return Ok(true),
                    DiskEvent::Missed { ticket: of, .. } if of == ticket => return Ok(false),
                    other => self.note(&other),
                }
            }
        }
        bail!("a read does not end")
    }

    fn turn_while_progress(&mut self) -> Result<()> {
        for _ in 0..TURNS_MAX {
            let progressed = self.driver.turn().progressed;
            while let Some(event) = self.driver.next_event() {
                self.note(&event);
            }
            if !progressed {
                return Ok(());
            }
        }
        bail!("the disk tier does not come to rest")
    }

    fn note(&mut self, event: &DiskEvent) {
        if let DiskEvent::Settled { block, .. } = event {
            // The low half of the object's id is the number.
            let number = block.object.0 as u64 as usize;
            if let Some(staged) = self.staged.get_mut(number) {
                *staged = false;
            }
        }
    }
}
