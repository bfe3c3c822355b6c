//! A bare loop that reads and checks pages: what a hit in memory cannot be faster than.

use std::time::Instant;

use anyhow::{Result, ensure};
use forebay_engine::checksum::BlockSeed;
use forebay_engine::identity::{BlockId, ObjectId};
use forebay_engine::limits::PAGE_BYTES;

use super::huge::HugeBytes;
use super::{Ceiling, MEASURE, Unit};
use crate::load::Rng;

/// Checks the pages of blocks anywhere in the data.
#[derive(Debug)]
pub struct PageCheck {
    bytes: HugeBytes,
    checksums: Vec<u32>,
    seed: BlockSeed,
    block_pages: usize,
    /// Where each block's bytes are copied to when it was checked.
    to: Option<Vec<u8>>,
}

impl PageCheck {
    /// Of `data_bytes`, in blocks of `block_bytes`; copied to a reader or not.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(data_bytes: usize, block_bytes: usize, copied: bool) -> Result<PageCheck> {
        let mut rng = Rng(1);
        let mut bytes = HugeBytes::new(data_bytes / PAGE_BYTES * PAGE_BYTES)?;
        for word in bytes.bytes_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next().to_le_bytes());
        }
        let seed = BlockSeed::of(BlockId {
            object: ObjectId(7),
            index: 0,
        });
        Ok(PageCheck {
            checksums: seed.checksums(0, bytes.bytes()).to_vec(),
            bytes,
            seed,
            block_pages: block_bytes / PAGE_BYTES,
            to: copied.then(|| vec![1; block_bytes]),
        })
    }

    /// Checks blocks for a while; tells how many a second.
    ///
    /// # Errors
    /// When memory is broken.
    pub fn run(&mut self, seed: u64, span: std::time::Duration) -> Result<f64> {
        let data = self.bytes.bytes();
        let blocks = (self.checksums.len() / self.block_pages) as u64;
        let mut rng = Rng::of(seed, 0);
        let (start, mut checked) = (Instant::now(), 0u64);
        loop {
            for _ in 0..(256 / self.block_pages).max(1) {
                let first = (rng.next() % blocks) as usize * self.block_pages;
                for page in first..first + self.block_pages {
                    let bytes = &data[page * PAGE_BYTES..(page + 1) * PAGE_BYTES];
                    let right = self.seed.checksum(page as u32, bytes) == self.checksums[page];
                    ensure!(right, "page {page} is not what it was: broken memory");
                }
                if let Some(to) = &mut self.to {
                    let at = first * PAGE_BYTES;
                    let end = at + to.len();
                    to.copy_from_slice(&data[at..end]);
                    std::hint::black_box(to);
                }
                checked += 1;
            }
            let elapsed = start.elapsed();
            if elapsed >= span {
                return Ok(checked as f64 / elapsed.as_secs_f64());
            }
        }
    }
}

impl Ceiling for PageCheck {
    fn name(&self) -> &str {
        match self.to {
            Some(_) => "bare check and copy",
            None => "bare check",
        }
    }

    fn unit(&self) -> Unit {
        Unit::Operations
    }

    fn measure(&mut self, seed: u64) -> Result<f64> {
        self.run(seed, MEASURE)
    }
}
