//! `miss-ratio` and `overflow`: what the engine's region log keeps, against policies that move single blocks
//! and know no regions.

use std::path::Path;

use anyhow::{Result, ensure};
use forebay_engine::disk::geometry::{Geometry, REGION_BYTES_MIN};

use crate::disk::cache::DiskCache;
use crate::disk::policy::{self, Outcome, Settings};
use crate::disk::reference::{self, Reference};
use crate::disk::traces::{self, Trace};
use crate::run::Run;
use crate::samples::{Part, Target};

/// Regions of the smallest size: in number what one core of a cache of 16 GiB for each core has of the largest.
const REGIONS: u32 = 256;
/// A block is an entry: long enough that headers and tables weigh as little as with real entries, so short that a
/// run takes seconds.
const BLOCK_BYTES: usize = 16 << 10;
/// Data over cache of the Zipf traces.
const DATA_OVER_CACHE: u32 = 10;
const REQUESTS: u64 = 3_000_000;
/// A scan of half the cache after requests for six of it.
const SCAN_OVER_CACHE: f64 = 0.5;
const SCAN_EVERY_OVER_CACHE: f64 = 6.0;
/// Data over cache of the epochs.
const OVERFLOW: u32 = 2;
const EPOCHS: usize = 10;

fn geometry() -> Geometry {
    Geometry {
        region_bytes: REGION_BYTES_MIN,
        regions: REGIONS,
    }
}

/// Blocks that the regions would hold if they held nothing else: the reference's room.
fn capacity_blocks() -> u32 {
    REGIONS * REGION_BYTES_MIN / BLOCK_BYTES as u32
}

fn blocks_of(trace: &Trace) -> usize {
    trace
        .requests
        .iter()
        .max()
        .map_or(0, |most| *most as usize + 1)
}

fn ours(trace: &Trace) -> Result<Outcome> {
    let (outcome, device) =
        DiskCache::new(geometry(), BLOCK_BYTES, blocks_of(trace))?.run(trace)?;
    println!(
        "  {}: {} misses of {}, {:.3} written for each; {} regions small, {} main, {} entries",
        trace.name,
        outcome.misses,
        trace.counted(),
        outcome.write_amplification,
        device.regions_small,
        device.regions_main,
        device.entries,
    );
    Ok(outcome)
}

fn share(misses: u64, trace: &Trace) -> f64 {
    misses as f64 / trace.counted() as f64
}

pub(super) fn miss_ratio(run: &Run) -> Result<Vec<Part>> {
    let reference = Reference::new()?;
    let dir = run.scratch()?;
    let file = dir.path().join("trace");
    let (blocks, requests) = (
        capacity_blocks() * DATA_OVER_CACHE,
        run.amount(REQUESTS) as usize,
    );
    let zipf = |name, skew, seed| traces::zipf(name, blocks, skew, requests, seed);
    let cache = f64::from(capacity_blocks());
    let scan_every = (cache * SCAN_EVERY_OVER_CACHE).min(requests as f64 / 8.0) as usize;
    let scans = |name| {
        let length = (scan_every as f64 * SCAN_OVER_CACHE / SCAN_EVERY_OVER_CACHE) as usize;
        traces::with_scans(name, zipf(name, 1.0, 4), scan_every, length)
    };
    let mut parts = Vec::new();
    for (trace, below) in [
        (zipf("zipf-0.8", 0.8, 1), "zipf-0.8-below-lru"),
        (zipf("zipf-1.0", 1.0, 2), "zipf-1.0-below-lru"),
        (zipf("zipf-1.2", 1.2, 3), "zipf-1.2-below-lru"),
        (scans("zipf-and-scan"), "zipf-and-scan-below-lru"),
    ] {
        let (part, lru, outcome) = against(&reference, &trace, below, &file)?;
        parts.extend([part, lru]);
        if trace.name == "zipf-1.0" {
            parts.push(Part {
                name: "zipf-1.0-write-amplification",
                measured: outcome.write_amplification,
                target: Target::AtMost(1.6),
                detail: curve(&trace, outcome),
            });
        }
    }
    Ok(parts)
}

/// Misses over those of S3-FIFO, and over those of LRU.
fn against(
    reference: &Reference,
    trace: &Trace,
    below: &'static str,
    file: &Path,
) -> Result<(Part, Part, Outcome)> {
    reference::write(trace, file)?;
    let capacity = u64::from(capacity_blocks());
    let s3fifo = reference.misses(trace, file, "S3FIFO", capacity)?;
    let lru = reference.misses(trace, file, "LRU", capacity)?;
    let outcome = ours(trace)?;
    ensure!(
        s3fifo > 0 && lru > 0,
        "{}: the reference missed nothing",
        trace.name
    );
    let over = |misses: u64| outcome.misses as f64 / misses as f64;
    let detail = format!(
        "miss ratio {:.4} at {:.3} written for each byte filled; S3-FIFO of libcachesim {:.4}, LRU {:.4}; {} requests count",
        share(outcome.misses, trace),
        outcome.write_amplification,
        share(s3fifo, trace),
        share(lru, trace),
        trace.counted()
    );
    let parts = (
        Part {
            name: trace.name,
            measured: over(s3fifo),
            target: Target::AtMost(1.05),
            detail,
        },
        Part {
            name: below,
            measured: over(lru),
            target: Target::Below(1.0),
            detail: "misses over those of LRU".to_owned(),
        },
    );
    Ok((parts.0, parts.1, outcome))
}

/// Misses against write amplification: the model of the policy at several settings, the log itself at its own.
fn curve(trace: &Trace, log: Outcome) -> String {
    let settings = Settings {
        regions: REGIONS as usize,
        region_blocks: REGION_BYTES_MIN as usize / BLOCK_BYTES,
        ..policy::ENGINE
    };
    let mut points = Vec::new();
    for warm_share in [0.6, 0.7, 0.8, 0.9, 0.95, 2.0] {
        let outcome = policy::run(
            Settings {
                warm_share,
                ..settings
            },
            trace,
        );
        let name = match warm_share {
            share if share > 1.0 => "never".to_owned(),
            share => format!("{share}"),
        };
        points.push(format!(
            "{name}: {:.4} at {:.2}",
            share(outcome.misses, trace),
            outcome.write_amplification
        ));
    }
    format!(
        "the log: {:.4} at {:.3}. Miss ratio at write amplification by the model without headers, by the share of hit blocks from which on a region \
         stays: {}",
        share(log.misses, trace),
        log.write_amplification,
        points.join(", ")
    )
}

pub(super) fn overflow(run: &Run) -> Result<Vec<Part>> {
    let epochs = if run.short { 5 } else { EPOCHS };
    let trace = traces::epochs("epochs", capacity_blocks() * OVERFLOW, epochs, 5);
    let outcome = ours(&trace)?;
    let hits = 1.0 - share(outcome.misses, &trace);
    let possible = 1.0 / f64::from(OVERFLOW);
    let mut detail = format!(
        "hit share {hits:.4} with data {OVERFLOW} x the cache, {:.3} written for each byte filled",
        outcome.write_amplification
    );
    match Reference::new() {
        Ok(reference) => {
            let dir = run.scratch()?;
            let file = dir.path().join("trace");
            reference::write(&trace, &file)?;
            for policy in ["S3FIFO", "LRU"] {
                let misses = reference.misses(&trace, &file, policy, capacity_blocks().into())?;
                detail += &format!("; {policy} {:.4}", 1.0 - share(misses, &trace));
            }
        }
        // The target does not need it.
        Err(error) => println!("  no comparison: {error:#}"),
    }
    Ok(vec![Part {
        name: "hit-share-over-cache-share",
        measured: hits / possible,
        target: Target::AtLeast(0.9),
        detail,
    }])
}
