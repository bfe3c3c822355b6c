//! The disk, by a bare ring at the same block size and depth.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Ceiling, MEASURE, Unit};
use crate::direct::open_direct;
use crate::pace::{Load, Order, Places};
use crate::raw::Ring;

/// Reads of a part of a file, past the page cache.
#[derive(Debug)]
pub struct Device {
    /// The file.
    pub file: PathBuf,
    /// Where in it reads begin.
    pub offset_bytes: u64,
    /// Bytes of it that are read.
    pub len_bytes: u64,
    /// Bytes of one read.
    pub block_bytes: u64,
    /// Reads under way.
    pub depth: usize,
    /// In which order.
    pub order: Order,
}

impl Ceiling for Device {
    fn name(&self) -> &str {
        "device"
    }

    fn unit(&self) -> Unit {
        Unit::Bytes
    }

    fn measure(&mut self, seed: u64) -> Result<f64> {
        let load = Load {
            blocks: self.len_bytes / self.block_bytes,
            order: self.order,
            depth: self.depth,
            rate: None,
            span: MEASURE,
            seed,
        };
        ensure!(load.blocks > 0, "{} is too small", self.file.display());
        let mut places = Places::new(&load, 0, 1);
        let file = self.file.display();
        let said = || format!("a bare ring on {file}");
        let opened = open_direct(&self.file)?;
        let ring = Ring::new(opened, self.depth, self.block_bytes as usize);
        let mut ring = ring.with_context(said)?;
        let mut ended: Vec<usize> = (0..self.depth).collect();
        let (start, mut reads) = (Instant::now(), 0u64);
        loop {
            for slot in ended.drain(..) {
                let at = self.offset_bytes + places.next() * self.block_bytes;
                ring.begin(slot, at).with_context(said)?;
            }
            ring.go_on(&mut ended).with_context(said)?;
            reads += ended.len() as u64;
            let elapsed = start.elapsed();
            if elapsed >= MEASURE {
                return Ok((reads * self.block_bytes) as f64 / elapsed.as_secs_f64());
            }
        }
    }
}
