//! `amplification`: origin bytes over bytes asked for, as the S3 server counts them.
//! Sequential readers ask for all of an object; random ones for 4 KiB here and there.

use anyhow::Result;

use super::{GIB, REPETITIONS};
use crate::bench::Bench;
use crate::load::{self, Cache, Done, Until};
use crate::samples::{Part, Samples, Target};

/// Less than the object, so that what was fetched for nothing is not paid back by a later hit.
const MEMORY: &str = "512MiB";
const RANDOM_THREADS: usize = 4;
const RANDOM_READS_PER_THREAD: u64 = 512;

pub(super) fn measure() -> Result<Vec<Part>> {
    let names = [
        "sequential-direct",
        "sequential-cached",
        "random-direct",
        "random-cached",
    ];
    let objects: Vec<(String, u64)> = names
        .iter()
        .flat_map(|name| (0..REPETITIONS).map(move |n| (format!("{name}/{n}"), GIB)))
        .collect();
    let bench = Bench::start(&objects, MEMORY)?;
    let mut parts = Vec::new();
    for name in names {
        let mut ratios = Vec::new();
        for repetition in 0..REPETITIONS {
            let path = bench.file(&format!("{name}/{repetition}"));
            let before = bench.bucket().settled_bytes()?;
            let done = load_of(name, &path, repetition as u64)?;
            let origin = bench.bucket().settled_bytes()? - before;
            println!(
                "  {name}: {} bytes asked for, {origin} from the origin",
                done.bytes
            );
            ratios.push(origin as f64 / done.bytes as f64);
        }
        let ratios = Samples::new(ratios);
        let most = if name.starts_with("sequential") {
            1.01
        } else {
            16.0
        };
        let detail = format!("{:.4} to {:.4}", ratios.min(), ratios.max());
        parts.push(Part {
            name,
            measured: ratios.median(),
            target: Target::AtMost(most),
            detail,
        });
    }
    bench.end()?;
    Ok(parts)
}

fn load_of(name: &str, path: &std::path::Path, seed: u64) -> Result<Done> {
    let cache = if name.ends_with("direct") {
        Cache::Past
    } else {
        Cache::Through
    };
    if name.starts_with("sequential") {
        load::read_once(path, cache)
    } else {
        load::random(
            path,
            cache,
            RANDOM_THREADS,
            seed,
            Until::Reads(RANDOM_READS_PER_THREAD),
        )
    }
}
