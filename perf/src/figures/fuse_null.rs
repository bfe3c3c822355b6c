//! `fuse-null`: how much of what FUSE allows is left when Forebay answers from its memory tier,
//! checksums verified. Forebay and the null server take turns within one run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{MIB, REPETITIONS};
use crate::bench::Bench;
use crate::load::{self, Cache, Done, Until};
use crate::null_server::NullMount;
use crate::samples::{Part, Samples, Target};

/// Fits the memory tier twice over.
const OBJECT_BYTES: u64 = 512 << 20;
const MEMORY: &str = "1GiB";
const OBJECT: &str = "object.bin";
/// One measurement of one side takes at least this.
const SPAN: Duration = Duration::from_secs(2);
const RANDOM_THREADS: usize = 8;

pub(super) fn measure() -> Result<Vec<Part>> {
    let bench = Bench::start(&[(OBJECT.to_owned(), OBJECT_BYTES)], MEMORY)?;
    let ours = bench.file(OBJECT);
    load::read_once(&ours, Cache::Past)?;
    let point = bench.dir().join("null");
    std::fs::create_dir(&point)?;
    let null = NullMount::start(&point, OBJECT_BYTES)?;
    let theirs = null.file();

    let sequential = compare(&bench, &ours, &theirs, "MiB/s", &|path, _| {
        load::sequential(path, SPAN).map(|done| (done, done.bytes_per_second() / MIB))
    })?;
    let random = compare(&bench, &ours, &theirs, "IOPS", &|path, seed| {
        let done = load::random(
            path,
            Cache::Past,
            RANDOM_THREADS,
            seed,
            Until::Elapsed(SPAN),
        )?;
        Ok((done, done.reads_per_second()))
    })?;
    drop(null);
    bench.end()?;
    Ok(vec![
        part("sequential-1MiB", sequential, Target::AtLeast(0.9)),
        part("random-4KiB-8-threads", random, Target::AtLeast(0.8)),
    ])
}

struct Compared {
    ratio: f64,
    detail: String,
}

fn part(name: &'static str, compared: Compared, target: Target) -> Part {
    Part {
        name,
        measured: compared.ratio,
        target,
        detail: compared.detail,
    }
}

/// Runs on a file, with a seed; gives what was done and the value that is compared.
type Load<'a> = dyn Fn(&Path, u64) -> Result<(Done, f64)> + 'a;

/// Runs `load` on both, taking turns, and compares the medians.
fn compare(
    bench: &Bench,
    ours: &Path,
    theirs: &Path,
    unit: &str,
    load: &Load<'_>,
) -> Result<Compared> {
    let (mut our_values, mut their_values, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 0..REPETITIONS {
        let seed = repetition as u64;
        // Whoever goes first changes, so that neither always finds the machine warmer.
        let (their_value, our_value);
        if repetition % 2 == 0 {
            their_value = load(theirs, seed)?.1;
            our_value = from_memory(bench, || load(ours, seed))?;
        } else {
            our_value = from_memory(bench, || load(ours, seed))?;
            their_value = load(theirs, seed)?.1;
        }
        println!("  Forebay {our_value:.0} {unit}, null server {their_value:.0} {unit}");
        our_values.push(our_value);
        their_values.push(their_value);
        ratios.push(our_value / their_value);
    }
    let (ours, theirs) = (Samples::new(our_values), Samples::new(their_values));
    let ratios = Samples::new(ratios);
    Ok(Compared {
        ratio: ours.median() / theirs.median(),
        detail: format!(
            "Forebay {:.0} {unit}, null server {:.0} {unit}; ratio of single pairs {:.3} to {:.3}",
            ours.median(),
            theirs.median(),
            ratios.min(),
            ratios.max()
        ),
    })
}

/// Runs a load and makes sure that it was answered from memory, else the figure means nothing.
fn from_memory(bench: &Bench, run: impl FnOnce() -> Result<(Done, f64)>) -> Result<f64> {
    let before = bench.stats()?;
    let (done, value) = run()?;
    let after = bench.stats()?;
    let hits = after.memory_hits - before.memory_hits;
    ensure!(
        after.misses == before.misses && hits >= done.reads,
        "{} reads, but {hits} memory hits and {} misses: not a measurement of the memory tier",
        done.reads,
        after.misses - before.misses
    );
    Ok(value)
}
