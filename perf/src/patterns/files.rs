//! Whole files: an epoch over many small ones, a stream of large ones, a checkpoint that many read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Ran;
use super::blocks::Reader;
use crate::direct::{AlignedBuf, open_direct};
use crate::load::Rng;
use crate::pace::{self, Tally};
use crate::raw::Mapping;
use crate::scenario::Scenario;
use crate::side::Turn;

/// The longest read of a small file.
const WHOLE_BYTES: usize = 1 << 20;

/// The file's name in its directory.
pub(super) fn name(number: u64) -> String {
    format!("{number:07}.bin")
}

/// Each file once, in an order that the seed shuffles; an operation is a file.
pub(super) fn epoch(dir: &Path, scenario: &Scenario, turn: &Turn) -> Result<Ran> {
    let (files, size) = (scenario.count("files"), scenario.size("size"));
    let mut order: Vec<u64> = (0..files).collect();
    let mut rng = Rng::of(turn.seed, turn.number);
    for n in (1..order.len()).rev() {
        order.swap(n, (rng.next() % (n as u64 + 1)) as usize);
    }
    let reader = Reader::named(scenario.word("reader"));
    let (order, workers) = (&order, scenario.count("workers") as usize);
    let (paced, bytes) = pace::shared(workers, files, |_| {
        let mut buffer = AlignedBuf::new(WHOLE_BYTES);
        Ok(move |item: u64, tally: &mut Tally| {
            let path = dir.join(name(order[item as usize]));
            let got = whole(&path, reader, buffer.bytes(), |_| {})?;
            ensure!(
                got == size,
                "{} has {got} bytes, not {size}",
                path.display()
            );
            tally.ended(got);
            Ok(())
        })
    })?;
    Ok(Ran {
        paced,
        bytes,
        ..Ran::default()
    })
}

/// Each file once, from beginning to end; an operation is a block.
pub(super) fn stream(dir: &Path, scenario: &Scenario) -> Result<Ran> {
    let (files, workers) = (scenario.count("files"), scenario.count("workers") as usize);
    blocks_of(scenario, workers, files, |item| dir.join(name(item)))
}

/// All of one file by each reader.
pub(super) fn checkpoint(dir: &Path, scenario: &Scenario) -> Result<Ran> {
    let readers = scenario.count("readers");
    blocks_of(scenario, readers as usize, readers, |_| dir.join(name(0)))
}

fn blocks_of(
    scenario: &Scenario,
    workers: usize,
    items: u64,
    path: impl Fn(u64) -> std::path::PathBuf + Sync,
) -> Result<Ran> {
    let (block, size) = (scenario.size("block") as usize, scenario.size("size"));
    let reader = Reader::named(scenario.word("reader"));
    let path = &path;
    let (paced, bytes) = pace::shared(workers, items, |_| {
        let mut buffer = AlignedBuf::new(block);
        Ok(move |item: u64, tally: &mut Tally| {
            let path = path(item);
            let got = whole(&path, reader, buffer.bytes(), |got| tally.ended(got))?;
            ensure!(
                got == size,
                "{} has {got} bytes, not {size}",
                path.display()
            );
            Ok(())
        })
    })?;
    Ok(Ran {
        paced,
        bytes,
        ..Ran::default()
    })
}

/// Opens, reads and closes a file; `each` hears of each read.
fn whole(path: &Path, reader: Reader, buffer: &mut [u8], mut each: impl FnMut(u64)) -> Result<u64> {
    let said = || format!("reading {}", path.display());
    let file = match reader {
        Reader::Direct => open_direct(path),
        _ => File::open(path),
    };
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let mut bytes = 0;
    if reader == Reader::Mmap {
        let mapping = Mapping::new(&file).with_context(said)?;
        for part in mapping.bytes().chunks(buffer.len()) {
            buffer[..part.len()].copy_from_slice(part);
            std::hint::black_box(&mut *buffer);
            bytes += part.len() as u64;
            each(part.len() as u64);
        }
        return Ok(bytes);
    }
    loop {
        crate::interrupt::check()?;
        let got = file.read_at(buffer, bytes).with_context(said)? as u64;
        if got == 0 {
            return Ok(bytes);
        }
        bytes += got;
        each(got);
    }
}
