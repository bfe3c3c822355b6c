//! `device-4k`: 4 KiB reads at random by the engine's disk tier (index, device, checksums) against fio
//! on the same file at the same depth. The disk binds; what counts is that the engine keeps it busy, and what a read
//! costs the processor.

use std::path::Path;

use anyhow::Result;

use crate::disk::file::Opening;
use crate::disk::load::{self, Blocks, Order, Reads};
use crate::fio::{self, Access, Engine, Job, Until};
use crate::run::Run;
use crate::samples::{Part, Samples, Target};
use crate::turns::{self, Measured, Player};

const BLOCK_BYTES: usize = 4 << 20;
const DATA_BYTES: u64 = 4 << 30;
const READ_BYTES: usize = 4 << 10;
const DEPTH: usize = 32;
const ARENA_BYTES: usize = 256 << 20;
/// Fills that are not settled yet.
const FILLING_BYTES: usize = 64 << 20;

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    println!("  yardstick: {}", fio::version()?);
    let dir = run.scratch()?;
    let file = dir.path().join("log");
    let data_bytes = run.amount(DATA_BYTES);
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
    load::fill(&mut opening.open(&file)?, blocks, FILLING_BYTES)?;
    let side = Side {
        run,
        file: &file,
        opening,
        blocks,
    };
    let sides = turns::take_turns(
        run,
        vec![
            Player::new("Forebay", |seed| side.ours(true, seed)),
            Player::new("fio", |seed| side.fio(false, seed)),
            Player::new("unverified", |seed| side.ours(false, seed)),
            Player::new("fio-lean", |seed| side.fio(true, seed)),
        ],
    )?;
    let [checked, fio, unchecked, lean] = &sides[..] else {
        unreachable!("as many sides as players");
    };
    let per_read = Measured::cpu_ns_per_io;
    let mut iops = turns::ratio(
        "iops",
        Target::AtLeast(0.95),
        (checked, fio),
        "IOPS",
        Measured::iops,
    );
    iops.detail += &format!(
        "; {} of processor time per read",
        checked.words("ns", 0, per_read)
    );
    let mut cpu = turns::ratio(
        "cpu-per-read-unverified",
        Target::AtMost(1.2),
        (unchecked, fio),
        "ns",
        per_read,
    );
    cpu.detail += &format!(
        "; {} without latency statistics",
        lean.words("ns", 0, per_read)
    );
    Ok(vec![
        iops,
        cpu,
        verification(&checked.turns, &unchecked.turns),
    ])
}

/// Who reads what.
struct Side<'a> {
    run: &'a Run,
    file: &'a Path,
    opening: Opening,
    blocks: Blocks,
}

impl Side<'_> {
    fn ours(&self, verify: bool, seed: u64) -> Result<Measured> {
        // Opened for each turn: only one side has the file at a time.
        let opening = Opening {
            verify,
            ..self.opening
        };
        let mut driver = opening.open(self.file)?;
        load::touch_each(&mut driver, self.blocks)?;
        let reads = Reads {
            blocks: self.blocks,
            len_bytes: READ_BYTES,
            depth: DEPTH,
            order: Order::Random(seed),
            span: self.run.span(),
        };
        load::read(&mut driver, &reads)
    }

    fn fio(&self, lean: bool, seed: u64) -> Result<Measured> {
        let begin = self.opening.geometry()?.offset_bytes(0);
        fio::run(&Job {
            file: self.file,
            engine: Engine::Uring,
            access: Access::RandomReads,
            block_bytes: READ_BYTES as u64,
            depth: DEPTH,
            extent: Some((begin, self.opening.data_bytes)),
            until: Until::Elapsed(self.run.span()),
            sync_every_bytes: None,
            fixed: true,
            lean,
            seed,
        })
    }
}

/// What verification adds: the difference of the medians. No target; the checksum itself of 4 KiB takes about 200 ns.
fn verification(checked: &[Measured], unchecked: &[Measured]) -> Part {
    let of = |turns: &[Measured]| Samples::new(turns.iter().map(Measured::cpu_ns_per_io).collect());
    let (with, without) = (of(checked), of(unchecked));
    Part {
        name: "verification-ns",
        measured: with.median() - without.median(),
        target: Target::None,
        detail: format!(
            "{:.0} ns of processor time per read with, {:.0} without",
            with.median(),
            without.median()
        ),
    }
}
