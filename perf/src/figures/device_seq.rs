//! `device-seq`: long reads and fills by the engine's disk tier against fio, same disk, block size and depth.

use std::path::Path;

use anyhow::Result;
use forebay_engine::limits::{BATCH_BYTES_MAX, DISK_WRITE_SHARE};

use crate::disk::file::Opening;
use crate::disk::load::{self, Blocks, Order, Reads};
use crate::fio::{self, Access, Engine, Job, Until};
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::turns::{self, Measured, Player};

const BLOCK_BYTES: usize = 4 << 20;
const READ_BYTES: usize = 1 << 20;
const READ_DEPTH: usize = 8;
const READ_DATA_BYTES: u64 = 4 << 30;
const FILL_DATA_BYTES: u64 = 2 << 30;
const ARENA_BYTES: usize = 256 << 20;
/// Bytes that fills hold until they are settled: what a core of 256 MiB lets them hold. fio has as many under way,
const FILLING_BYTES: usize = ARENA_BYTES / DISK_WRITE_SHARE;
/// but not more operations than these.
const FIO_DEPTH_MAX: usize = 64;

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    println!("  yardstick: {}", fio::version()?);
    let dir = run.scratch()?;
    let mut parts = vec![reads(run, &dir.path().join("log"))?];
    for (name, len_bytes) in [
        ("fill-64KiB", 64 << 10),
        ("fill-1MiB", 1 << 20),
        ("fill-4MiB", 4 << 20),
    ] {
        parts.push(fills(run, name, len_bytes, dir.path())?);
    }
    Ok(parts)
}

fn reads(run: &Run, file: &Path) -> Result<Part> {
    let data_bytes = run.amount(READ_DATA_BYTES);
    let blocks = Blocks {
        count: data_bytes / BLOCK_BYTES as u64,
        len_bytes: BLOCK_BYTES,
    };
    let opening = Opening {
        data_bytes,
        entries: 4 * blocks.count as usize,
        arena_bytes: ARENA_BYTES,
        verify: true,
    };
    load::fill(&mut opening.open(file)?, blocks, FILLING_BYTES)?;
    let ours = |_| {
        let mut driver = opening.open(file)?;
        let reads = Reads {
            blocks,
            len_bytes: READ_BYTES,
            depth: READ_DEPTH,
            order: Order::Sequential,
            span: run.span(),
        };
        load::read(&mut driver, &reads)
    };
    let begin = opening.geometry()?.offset_bytes(0);
    let theirs = |seed| {
        fio::run(&Job {
            file,
            engine: Engine::Uring,
            access: Access::Reads,
            block_bytes: READ_BYTES as u64,
            depth: READ_DEPTH,
            extent: Some((begin, data_bytes)),
            until: Until::Elapsed(run.span()),
            sync_every_bytes: None,
            fixed: true,
            lean: false,
            seed,
        })
    };
    let sides = turns::take_turns(
        run,
        vec![Player::new("Forebay", ours), Player::new("fio", theirs)],
    )?;
    std::fs::remove_file(file)?;
    let part = turns::ratio(
        "read-1MiB",
        Target::AtLeast(0.97),
        (&sides[0], &sides[1]),
        "MiB/s",
        Measured::mib_per_second,
    );
    Ok(with_cpu(part, &sides))
}

/// Both sides write a new file. Forebay flushes for each batch of at most 8 MiB; fio calls fdatasync as often. What
/// fio does without is told beside.
fn fills(run: &Run, name: &'static str, len_bytes: usize, dir: &Path) -> Result<Part> {
    let data_bytes = run.amount(FILL_DATA_BYTES);
    let blocks = Blocks {
        count: data_bytes / len_bytes as u64,
        len_bytes,
    };
    let opening = Opening {
        data_bytes,
        entries: 4 * blocks.count as usize,
        arena_bytes: ARENA_BYTES,
        verify: true,
    };
    let file = dir.join("filled");
    let ours = |_| {
        let done = load::fill(&mut opening.open(&file)?, blocks, FILLING_BYTES);
        std::fs::remove_file(&file)?;
        done
    };
    let theirs = |sync_every_bytes| {
        let file = &file;
        move |seed| {
            let done = fio::run(&Job {
                file,
                engine: Engine::Uring,
                access: Access::Writes,
                block_bytes: len_bytes as u64,
                depth: (FILLING_BYTES / len_bytes).clamp(1, FIO_DEPTH_MAX),
                extent: Some((0, data_bytes)),
                until: Until::Bytes(data_bytes),
                sync_every_bytes,
                fixed: true,
                lean: false,
                seed,
            });
            std::fs::remove_file(file)?;
            done
        }
    };
    let sides = turns::take_turns(
        run,
        vec![
            Player::new("Forebay", ours),
            Player::new("fio", theirs(Some(BATCH_BYTES_MAX as u64))),
            Player::new("fio-unsynced", theirs(None)),
        ],
    )?;
    let part = turns::ratio(
        name,
        Target::AtLeast(0.9),
        (&sides[0], &sides[1]),
        "MiB/s",
        Measured::mib_per_second,
    );
    Ok(with_cpu(part, &sides))
}

/// Adds every side's processor time, and the speed of those beyond the two that are compared.
fn with_cpu(mut part: Part, sides: &[turns::Side]) -> Part {
    for side in &sides[2..] {
        part.detail += &format!("; {}", side.words("MiB/s", 0, Measured::mib_per_second));
    }
    let cpu: Vec<String> = sides
        .iter()
        .map(|side| {
            side.words("", 3, Measured::cpu_s_per_gib)
                .replace(" (", "(")
        })
        .collect();
    part.detail += &format!("; processor seconds per GiB: {}", cpu.join(", "));
    part
}
