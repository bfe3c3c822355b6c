//! Fills and reads of a log, so many at a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use forebay_engine::disk::DiskEvent;
use forebay_engine::identity::{BlockId, ObjectId};
use forebay_engine::limits::{CHUNK_BYTES, PAGE_BYTES};
use forebay_engine::ports::BlockDevice;

use super::driver::{Contents, Driver};
use crate::load::Rng;
use crate::process;
use crate::turns::Measured;

/// A load that gets nowhere for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Blocks of one length, numbered from 0: each an object of its own.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// How many.
    pub count: u64,
    /// Bytes of each: whole pages, at most a block.
    pub len_bytes: usize,
}

impl Blocks {
    /// Identity of block `number`.
    pub fn id(number: u64) -> BlockId {
        let high = u128::from(Rng(number).next());
        BlockId {
            object: ObjectId(high << 64 | u128::from(number)),
            index: 0,
        }
    }

    fn parts(&self) -> u64 {
        self.len_bytes.div_ceil(CHUNK_BYTES) as u64
    }
}

/// Keeps all blocks, with at most `outstanding_bytes_max` not yet settled, and ends when all are on stable media.
///
/// # Errors
/// When a fill is not kept, or the log gets nowhere.
pub fn fill<D: BlockDevice>(
    driver: &mut Driver<D>,
    blocks: Blocks,
    outstanding_bytes_max: usize,
) -> Result<Measured> {
    let contents = Contents::new(blocks.len_bytes.min(CHUNK_BYTES));
    let part_pages = (contents.len_bytes() / PAGE_BYTES) as u32;
    let parts = blocks.count * blocks.parts();
    let (mut begun, mut settled_pages) = (0, 0);
    let total_pages = parts * u64::from(part_pages);
    let (start, cpu) = (Instant::now(), process::own_time()?);
    let mut moved = Instant::now();
    while settled_pages < total_pages {
        let mut outstanding = (begun * u64::from(part_pages) - settled_pages) as usize * PAGE_BYTES;
        while begun < parts && outstanding + contents.len_bytes() <= outstanding_bytes_max {
            let block = Blocks::id(begun / blocks.parts());
            let first_page = (begun % blocks.parts()) as u32 * part_pages;
            let Some(fill) = driver.fill(block, first_page, &contents) else {
                break;
            };
            let now = driver.now();
            ensure!(
                driver.disk().keep(now, fill),
                "fill {begun} of {parts} was not kept"
            );
            begun += 1;
            outstanding += contents.len_bytes();
        }
        if begun == parts {
            driver.disk().settle();
        }
        driver.turn_or_wait()?;
        while let Some(event) = driver.next_event() {
            if let DiskEvent::Settled { pages, .. } = event {
                settled_pages += u64::from(pages);
                moved = Instant::now();
            }
        }
        ensure!(moved.elapsed() < STUCK_AFTER, "fills do not settle");
    }
    driver.settle()?;
    for device in driver.disk().stats().devices {
        ensure!(
            device.fills_dropped == 0 && device.entries_evicted == 0,
            "of {parts} fills {} were dropped and {} entries evicted: {device:?}",
            device.fills_dropped,
            device.entries_evicted
        );
    }
    Ok(Measured {
        ios: blocks.count,
        bytes: blocks.count * blocks.len_bytes as u64,
        elapsed: start.elapsed(),
        cpu: process::own_time()? - cpu,
        p50_us: None,
    })
}

/// In which order a load reads.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Anywhere; the seed chooses.
    Random(u64),
    /// One block after the other, again and again.
    Sequential,
}

/// What a load reads, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// Of which blocks.
    pub blocks: Blocks,
    /// Bytes of one read: a part of a block, at most a chunk.
    pub len_bytes: usize,
    /// Reads under way at a time.
    pub depth: usize,
    /// In which order.
    pub order: Order,
    /// For how long.
    pub span: Duration,
}

/// Reads with so many under way; each is looked up in the index, read and (if the tier was told so) checked.
///
/// # Errors
/// When a read misses: then this measures something else.
pub fn read<D: BlockDevice>(driver: &mut Driver<D>, reads: &Reads) -> Result<Measured> {
    let mut places = Places::new(reads);
    let mut slots = Slots::new(reads.depth);
    let mut ended = 0;
    let (start, cpu) = (Instant::now(), process::own_time()?);
    let mut over = false;
    while !(over && slots.all_free()) {
        while !over && let Some(slot) = slots.free.pop() {
            let (block, first_page) = places.next();
            let what = (reads.blocks, reads.len_bytes);
            slots.pieces[slot] = begin(driver, what, slot, block, first_page)?;
        }
        driver.turn_or_wait()?;
        while let Some(event) = driver.next_event() {
            match event {
                DiskEvent::Read { ticket, .. } => ended += slots.ended(ticket),
                DiskEvent::Missed { why, .. } => bail!("a read missed: {why:?}"),
                DiskEvent::Settled { .. } => {}
            }
        }
        over = over || start.elapsed() >= reads.span;
    }
    driver.serves()?;
    Ok(Measured {
        ios: ended,
        bytes: ended * reads.len_bytes as u64,
        elapsed: start.elapsed(),
        cpu: process::own_time()? - cpu,
        p50_us: None,
    })
}

/// Begins one read of so many bytes of the blocks: one piece for each extent that it crosses. Gives their number.
///
/// # Errors
/// When it is not on disk, or nobody takes that many.
pub fn begin<D: BlockDevice>(
    driver: &mut Driver<D>,
    (blocks, len_bytes): (Blocks, usize),
    slot: usize,
    block: BlockId,
    first_page: u32,
) -> Result<u32> {
    let mut page = first_page;
    let end = first_page + (len_bytes / PAGE_BYTES) as u32;
    let mut pieces = 0;
    while page < end {
        let Some(found) = driver.disk().extent(block, page) else {
            bail!("{block:?} is not on disk from page {page}");
        };
        let piece_end = found.end.min(end);
        let len_bytes = (piece_end - page) as usize * PAGE_BYTES;
        let block_bytes = blocks.len_bytes as u32;
        ensure!(
            driver.read(slot as u64, block, block_bytes, (page, len_bytes)),
            "the device's queue or the buffers do not hold that many reads"
        );
        page = piece_end;
        pieces += 1;
    }
    Ok(pieces)
}

/// Reads under way, by number.
struct Slots {
    free: Vec<usize>,
    /// Pieces that each still waits for.
    pieces: Vec<u32>,
}

impl Slots {
    fn new(depth: usize) -> Self {
        Self {
            free: (0..depth).collect(),
            pieces: vec![0; depth],
        }
    }

    fn all_free(&self) -> bool {
        self.free.len() == self.pieces.len()
    }

    /// A piece has come; tells how many reads that ends: one or none.
    fn ended(&mut self, ticket: u64) -> u64 {
        let slot = ticket as usize;
        self.pieces[slot] -= 1;
        if self.pieces[slot] > 0 {
            return 0;
        }
        self.free.push(slot);
        1
    }
}

/// Reads the first page of each block once, so that the checksum tables are in memory before anything is timed.
///
/// # Errors
/// As [`read`].
pub fn touch_each<D: BlockDevice>(driver: &mut Driver<D>, blocks: Blocks) -> Result<()> {
    for number in 0..blocks.count {
        let block_bytes = blocks.len_bytes as u32;
        let begun = driver.read(number, Blocks::id(number), block_bytes, (0, PAGE_BYTES));
        ensure!(begun, "the device takes no read");
        loop {
            driver.turn_or_wait()?;
            match driver.next_event() {
                Some(DiskEvent::Read { .. }) => break,
                Some(DiskEvent::Missed { why, .. }) => bail!("a read missed: {why:?}"),
                Some(DiskEvent::Settled { .. }) | None => {}
            }
        }
    }
    Ok(())
}

struct Places {
    blocks: Blocks,
    pages: u32,
    per_block: u64,
    count: u64,
    rng: Option<Rng>,
}

impl Places {
    fn new(reads: &Reads) -> Self {
        Self {
            blocks: reads.blocks,
            pages: (reads.len_bytes / PAGE_BYTES) as u32,
            per_block: (reads.blocks.len_bytes / reads.len_bytes) as u64,
            count: 0,
            rng: match reads.order {
                Order::Random(seed) => Some(Rng::of(seed, 0)),
                Order::Sequential => None,
            },
        }
    }

    fn next(&mut self) -> (BlockId, u32) {
        let all = self.blocks.count * self.per_block;
        let number = match &mut self.rng {
            Some(rng) => rng.next() % all,
            None => self.count % all,
        };
        self.count += 1;
        let (block, part) = (number / self.per_block, number % self.per_block);
        (Blocks::id(block), part as u32 * self.pages)
    }
}
