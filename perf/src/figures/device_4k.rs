//! `device-4k`: 4 KiB reads at random by the engine's disk tier (index, device, checksums) against fio
//! on the same file at the same depth. The disk binds; what counts is that the engine keeps it busy, and what a read
//! costs the processor.

use anyhow::Result;

use crate::disk::file::Opening;
use crate::disk::load::{self, Blocks, Order, Reads};
use crate::fio::{self, Access, Job, Until};
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
    let used = opening.geometry()?.offset_bytes(0)..data_bytes;

    let ours = |verify: bool| {
        let (file, opening) = (&file, Opening { verify, ..opening });
        move |seed| {
            // Opened for each turn: only one side has the file at a time.
            let mut driver = opening.open(file)?;
            let reads = Reads {
                blocks,
                len_bytes: READ_BYTES,
                depth: DEPTH,
                order: Order::Random(seed),
                span: run.span(),
            };
            load::touch_each(&mut driver, blocks)?;
            load::read(&mut driver, &reads)
        }
    };
    let theirs = |lean| {
        let (file, used) = (&file, used.clone());
        move |seed| {
            fio::run(&Job {
                file,
                access: Access::RandomReads,
                block_bytes: READ_BYTES as u64,
                depth: DEPTH,
                extent: Some((used.start, used.end - used.start)),
                until: Until::Elapsed(run.span()),
                sync_every_bytes: None,
                fixed: true,
                lean,
                seed,
            })
        }
    };
    let sides = turns::take_turns(
        run,
        vec![
            Player::new("Forebay", ours(true)),
            Player::new("fio", theirs(false)),
            Player::new("unverified", ours(false)),
            Player::new("fio-lean", theirs(true)),
        ],
    )?;
    let [checked, fio, unchecked, lean] = &sides[..] else {
        unreachable!("as many sides as players");
    };
    let mut iops = turns::ratio(
        "iops",
        Target::AtLeast(0.95),
        (checked, fio),
        "IOPS",
        Measured::iops,
    );
    iops.detail = format!(
        "{}; {}",
        iops.detail,
        checked.words("ns of processor time per read", 0, Measured::cpu_ns_per_io)
    );
    let mut cpu = turns::ratio(
        "cpu-per-read-unverified",
        Target::AtMost(1.2),
        (unchecked, fio),
        "ns",
        Measured::cpu_ns_per_io,
    );
    cpu.detail = format!(
        "{}; {} without its latency statistics",
        cpu.detail,
        lean.words("ns", 0, Measured::cpu_ns_per_io)
    );
    Ok(vec![
        iops,
        cpu,
        verification(&checked.turns, &unchecked.turns),
    ])
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
