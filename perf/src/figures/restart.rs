//! `restart`: how long a log with two million entries takes to come back: processor time and bytes read
//! for each entry, and memory.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::MIB;
use crate::disk::file::Opening;
use crate::disk::load::{self, Blocks};
use crate::process;
use crate::run::{self, Run};
use crate::samples::{Part, Samples, Target};

const ENTRIES: u64 = 2_000_000;
const ENTRY_BYTES: usize = 4 << 10;
const ARENA_BYTES: usize = 256 << 20;
const FILLING_BYTES: usize = 64 << 20;

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let dir = run.scratch()?;
    let file = dir.path().join("log");
    let blocks = Blocks {
        count: run.amount(ENTRIES),
        len_bytes: ENTRY_BYTES,
    };
    let opening = Opening {
        data_bytes: blocks.count * ENTRY_BYTES as u64,
        entries: blocks.count as usize,
        arena_bytes: ARENA_BYTES,
        verify: true,
    };
    println!("  filling {} entries", blocks.count);
    let filled = load::fill(&mut opening.open(&file)?, blocks, FILLING_BYTES)?;
    println!(
        "  filled at {:.0} entries/s, {:.0} ns of processor time each",
        filled.iops(),
        filled.cpu_ns_per_io()
    );
    let mut restarts = Vec::new();
    for _ in 0..run.repetitions() {
        restarts.push(restart(&opening, &file, blocks.count)?);
    }
    let of = |quantity: fn(&Restart) -> f64| Samples::new(restarts.iter().map(quantity).collect());
    let spans = of(|restart| restart.span_s);
    let took = format!(
        "; {} entries in {:.2} s ({:.2} to {:.2})",
        blocks.count,
        spans.median(),
        spans.min(),
        spans.max()
    );
    let bounded = format!(
        "; at most {:.0} MiB",
        opening.index_bytes_max() as f64 / MIB
    );
    Ok(vec![
        part(
            "cpu-ns-per-entry",
            &of(|restart| restart.cpu_ns),
            Target::AtMost(100.0),
            &format!("ns{took}"),
        ),
        part(
            "bytes-read-per-entry",
            &of(|restart| restart.read_bytes),
            Target::AtMost(48.0),
            "bytes, the larger of the kernel's count and our own",
        ),
        part(
            "memory-bytes-per-entry",
            &of(|restart| restart.memory_bytes),
            Target::AtMost(64.0),
            &format!("bytes of index, hash table and ghosts{bounded}"),
        ),
    ])
}

/// What coming back cost; all but the span for each entry.
struct Restart {
    span_s: f64,
    cpu_ns: f64,
    read_bytes: f64,
    memory_bytes: f64,
}

fn restart(opening: &Opening, file: &Path, entries: u64) -> Result<Restart> {
    // O_DIRECT does not look there, but the file's metadata is read again too.
    run::drop_caches()?;
    let mut driver = opening.begin(file)?;
    let (start, cpu, io) = (Instant::now(), process::own_time()?, process::read_bytes()?);
    driver.recover()?;
    let cpu = process::own_time()? - cpu;
    let span = start.elapsed();
    let io = process::read_bytes()? - io;
    let stats = driver.disk().stats();
    let device = &stats.devices[0];
    ensure!(
        device.entries == entries,
        "{} entries of {entries} came back",
        device.entries
    );
    let each = |sum: f64| sum / entries as f64;
    let restart = Restart {
        span_s: span.as_secs_f64(),
        cpu_ns: each(cpu.as_nanos() as f64),
        read_bytes: each(io.max(device.recovery_bytes) as f64),
        memory_bytes: each(stats.index_bytes as f64),
    };
    println!(
        "  {:.2} s, {:.1} ns of processor time, {:.1} bytes read, {:.1} bytes of memory an entry",
        restart.span_s, restart.cpu_ns, restart.read_bytes, restart.memory_bytes
    );
    Ok(restart)
}

fn part(name: &'static str, samples: &Samples, target: Target, words: &str) -> Part {
    Part {
        name,
        measured: samples.median(),
        target,
        detail: format!("{:.1} to {:.1} {words}", samples.min(), samples.max()),
    }
}
