//! Copying in memory: from what does not fit the processor's caches into a reader's buffer.

use std::time::Instant;

use anyhow::Result;

use super::huge::HugeBytes;
use super::{Ceiling, MEASURE, Unit};
use crate::load::Rng;

const SOURCE_BYTES: usize = 256 << 20;

/// Copies blocks of one length.
#[derive(Debug)]
pub struct MemoryCopy {
    source: HugeBytes,
    to: Vec<u8>,
    random: bool,
}

impl MemoryCopy {
    /// Blocks of `block_bytes`, one after the other or anywhere.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(block_bytes: usize, random: bool) -> Result<MemoryCopy> {
        let mut source = HugeBytes::new(SOURCE_BYTES.max(block_bytes))?;
        // Not zeros: those would all be one page of the kernel's.
        source.bytes_mut().fill(0x5a);
        Ok(MemoryCopy {
            source,
            to: vec![1; block_bytes],
            random,
        })
    }
}

impl Ceiling for MemoryCopy {
    fn name(&self) -> &str {
        "memory copy"
    }

    fn unit(&self) -> Unit {
        Unit::Bytes
    }

    fn measure(&mut self, seed: u64) -> Result<f64> {
        let block = self.to.len();
        let source = self.source.bytes();
        let blocks = (source.len() / block) as u64;
        let mut rng = Rng::of(seed, 0);
        let (start, mut copied) = (Instant::now(), 0u64);
        loop {
            // The clock is asked once in a MiB or so.
            for _ in 0..((1 << 20) / block).max(1) {
                let number = match self.random {
                    true => rng.next() % blocks,
                    false => copied % blocks,
                };
                let at = number as usize * block;
                self.to
                    .copy_from_slice(std::hint::black_box(&source[at..at + block]));
                std::hint::black_box(&mut self.to);
                copied += 1;
            }
            let elapsed = start.elapsed();
            if elapsed >= MEASURE {
                return Ok((copied * block as u64) as f64 / elapsed.as_secs_f64());
            }
        }
    }
}
