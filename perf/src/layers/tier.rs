//! Reads of the disk tier in a loop of its own: index, device and checksums, without a core's way of a read.

use std::time::Duration;

use anyhow::{Result, bail};
use forebay_engine::disk::DiskEvent;
use forebay_engine::ports::BlockDevice;

use crate::disk::driver::Driver;
use crate::disk::load::{Blocks, begin};
use crate::pace::Slots;

/// Reads of blocks that a log holds.
#[derive(Debug)]
pub struct TierReads<D: BlockDevice> {
    driver: Driver<D>,
    blocks: Blocks,
    len_bytes: usize,
    /// Pieces that each slot still waits for.
    pieces: Vec<u32>,
}

impl<D: BlockDevice> TierReads<D> {
    /// Reads of `len_bytes`, at most `depth` at a time.
    pub fn new(driver: Driver<D>, blocks: Blocks, len_bytes: usize, depth: usize) -> Self {
        Self {
            driver,
            blocks,
            len_bytes,
            pieces: vec![0; depth],
        }
    }
}

impl<D: BlockDevice> Slots for TierReads<D> {
    fn begin(&mut self, slot: usize, place: u64) -> Result<()> {
        let per_block = (self.blocks.len_bytes / self.len_bytes) as u64;
        let (block, part) = (place / per_block % self.blocks.count, place % per_block);
        let pages = self.len_bytes / forebay_engine::limits::PAGE_BYTES;
        let first_page = part as u32 * pages as u32;
        self.pieces[slot] = begin(
            &mut self.driver,
            (self.blocks, self.len_bytes),
            slot,
            Blocks::id(block),
            first_page,
        )?;
        Ok(())
    }

    fn go_on(&mut self, ended: &mut Vec<usize>, most: Duration) -> Result<()> {
        self.driver.turn_or_wait_for(most)?;
        while let Some(event) = self.driver.next_event() {
            match event {
                DiskEvent::Read { ticket, .. } => {
                    let slot = ticket as usize;
                    self.pieces[slot] -= 1;
                    if self.pieces[slot] == 0 {
                        ended.push(slot);
                    }
                }
                DiskEvent::Missed { why, .. } => bail!("a read missed: {why:?}"),
                DiskEvent::Settled { .. } => {}
            }
        }
        Ok(())
    }
}
