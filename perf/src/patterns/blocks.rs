//! Blocks of one file, by threads that open it themselves.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};

use super::Ran;
use crate::direct::{AlignedBuf, open_direct};
use crate::pace::{self, Load, Order};
use crate::raw::Mapping;
use crate::scenario::Scenario;

/// Of what goes through the page cache, so little is left there that hits in it do not count: a random reader drops it
/// whenever it has read this part of the file.
const DROPS: u64 = 16;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Past the page cache.
    Direct,
    /// Through it.
    Buffered,
    /// By a mapping.
    Mmap,
}

impl Reader {
    /// By its name in a scenario.
    pub fn named(word: &str) -> Reader {
        match word {
            "buffered" => Reader::Buffered,
            "mmap" => Reader::Mmap,
            _ => Reader::Direct,
        }
    }
}

/// One thread's way to a file.
#[derive(Debug)]
pub struct BlockReader {
    file: File,
    mapping: Option<Mapping>,
    reader: Reader,
    buffer: AlignedBuf,
    block_bytes: u64,
    random: bool,
    /// Bytes read since the page cache was dropped, and how many may be.
    cached: u64,
    cached_max: u64,
}

impl BlockReader {
    /// Opens a file of `load`'s blocks.
    ///
    /// # Errors
    /// What the system says, with the path.
    pub fn open(path: &Path, reader: Reader, block_bytes: u64, load: &Load) -> Result<BlockReader> {
        let file = match reader {
            Reader::Direct => open_direct(path),
            _ => File::open(path),
        };
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let random = load.order == Order::Random;
        if random && reader == Reader::Buffered {
            // What a loader that reads at random does, so that the kernel reads nothing ahead.
            fadvise(&file, 0, None, Advice::Random)?;
        }
        let data = load.blocks * block_bytes;
        let part = match random {
            true => data / DROPS,
            // A pass over its own part, not to meet it again.
            false => data / load.depth as u64,
        };
        let mut opened = BlockReader {
            mapping: None,
            file,
            reader,
            buffer: AlignedBuf::new(block_bytes as usize),
            block_bytes,
            random,
            cached: 0,
            cached_max: part.max(block_bytes),
        };
        opened.map()?;
        Ok(opened)
    }

    fn map(&mut self) -> Result<()> {
        if self.reader == Reader::Mmap {
            let mapping = Mapping::new(&self.file)?;
            if self.random {
                mapping.random()?;
            }
            self.mapping = Some(mapping);
        }
        Ok(())
    }

    /// Reads a block.
    ///
    /// # Errors
    /// What the system says, with the place.
    pub fn read(&mut self, place: u64) -> Result<()> {
        let at = place * self.block_bytes;
        let buffer = self.buffer.bytes();
        match &self.mapping {
            Some(mapping) => {
                let bytes = mapping.bytes().get(at as usize..);
                let from = bytes.and_then(|bytes| bytes.get(..buffer.len()));
                buffer.copy_from_slice(from.with_context(|| format!("the file ends before {at}"))?);
                std::hint::black_box(buffer);
            }
            None => self
                .file
                .read_exact_at(buffer, at)
                .with_context(|| format!("reading at {at}"))?,
        }
        if self.reader != Reader::Direct {
            self.cached += self.block_bytes;
            if self.cached >= self.cached_max {
                self.cached = 0;
                // Mapped pages cannot be dropped.
                self.mapping = None;
                fadvise(&self.file, 0, None, Advice::DontNeed)?;
                self.map()?;
            }
        }
        Ok(())
    }
}

/// A span of `fuse` or `group`.
pub(super) fn run(file: &Path, scenario: &Scenario, load: &Load) -> Result<Ran> {
    let reader = Reader::named(scenario.word("reader"));
    let block_bytes = scenario.size("block");
    let paced = pace::threads(load, |_| {
        let mut opened = BlockReader::open(file, reader, block_bytes, load)?;
        Ok(move |place| opened.read(place))
    });
    let paced = paced.with_context(|| format!("reading {}", file.display()))?;
    Ok(Ran {
        bytes: paced.operations * block_bytes,
        paced,
        ..Ran::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn all_readers_read_the_whole_file_again_and_again() -> Result<()> {
        let dir = tempfile::tempdir_in(".")?;
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 64 << 10])?;
        for reader in [Reader::Direct, Reader::Buffered, Reader::Mmap] {
            for order in [Order::Random, Order::Sequential] {
                let load = Load {
                    blocks: 16,
                    order,
                    depth: 2,
                    rate: None,
                    span: Duration::ZERO,
                    seed: 1,
                };
                let mut places = pace::Places::new(&load, 1, 2);
                let mut opened = BlockReader::open(&path, reader, 4096, &load)?;
                for _ in 0..40 {
                    opened.buffer.bytes().fill(1);
                    opened.read(places.next())?;
                    let right = opened.buffer.bytes().iter().all(|byte| *byte == 7);
                    assert!(right, "{reader:?} {order:?}");
                }
            }
        }
        let load = Load {
            blocks: 16,
            order: Order::Random,
            depth: 1,
            rate: None,
            span: Duration::ZERO,
            seed: 1,
        };
        for reader in [Reader::Buffered, Reader::Mmap] {
            let mut beyond = BlockReader::open(&path, reader, 4096, &load)?;
            assert!(beyond.read(16).is_err(), "{reader:?}");
            assert!(beyond.read(u64::MAX >> 12).is_err(), "{reader:?}");
        }
        assert!(BlockReader::open(&dir.path().join("none"), Reader::Mmap, 4096, &load).is_err());
        Ok(())
    }
}
