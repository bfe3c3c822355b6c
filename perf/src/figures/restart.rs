//! `restart`: how long a log with two million entries takes to come back: processor time and bytes read
//! for each entry, and memory.

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
    let (mut cpu, mut read, mut memory, mut spans) = (vec![], vec![], vec![], vec![]);
    for _ in 0..run.repetitions() {
        // O_DIRECT does not look there, but the file's metadata is read again too.
        run::drop_caches()?;
        let mut driver = opening.begin(&file)?;
        let (start, before) = (Instant::now(), process::own_time()?);
        let io_before = process::read_bytes()?;
        driver.recover()?;
        let used = process::own_time()? - before;
        let elapsed = start.elapsed();
        let io = process::read_bytes()? - io_before;
        let stats = driver.disk().stats();
        let device = &stats.devices[0];
        ensure!(
            device.entries == blocks.count,
            "{} entries of {} came back",
            device.entries,
            blocks.count
        );
        let each = |sum: f64| sum / blocks.count as f64;
        println!(
            "  {:.2} s, {:.1} ns of processor time, {:.1} bytes read ({:.1} by the kernel's count), {:.1} bytes of memory an entry",
            elapsed.as_secs_f64(),
            each(used.as_nanos() as f64),
            each(device.recovery_bytes as f64),
            each(io as f64),
            each(stats.index_bytes as f64)
        );
        cpu.push(each(used.as_nanos() as f64));
        read.push(each(io.max(device.recovery_bytes) as f64));
        memory.push(each(stats.index_bytes as f64));
        spans.push(elapsed.as_secs_f64());
    }
    let spans = Samples::new(spans);
    let of = |name, samples: Vec<f64>, target, unit: &str, more: String| {
        let samples = Samples::new(samples);
        Part {
            name,
            measured: samples.median(),
            target,
            detail: format!("{:.1} to {:.1} {unit}{more}", samples.min(), samples.max()),
        }
    };
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
        of("cpu-ns-per-entry", cpu, Target::AtMost(100.0), "ns", took),
        of(
            "bytes-read-per-entry",
            read,
            Target::AtMost(48.0),
            "bytes",
            String::new(),
        ),
        of(
            "memory-bytes-per-entry",
            memory,
            Target::AtMost(64.0),
            "bytes of index, hash table and ghosts",
            bounded,
        ),
    ])
}
