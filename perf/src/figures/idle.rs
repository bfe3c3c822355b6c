//! `idle`: what a mount costs that nobody reads (share of one core), and how far the daemon's
//! memory exceeds `--memory` under a heavy mixed load.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::{GIB, MIB, REPETITIONS};
use crate::bench::Bench;
use crate::interrupt;
use crate::load::{self, Cache, Until};
use crate::process;
use crate::samples::{Part, Samples, Target};

const MEMORY: &str = "512MiB";
const MEMORY_BYTES: u64 = 512 << 20;
/// One idle measurement; five of them follow each other.
const IDLE_SPAN: Duration = Duration::from_secs(20);
const LOAD_SPAN: Duration = Duration::from_secs(30);
/// Several times the memory, so that eviction goes on all the time.
const OBJECTS: u64 = 4;
const SMALL_OBJECTS: u64 = 2_000;

pub(super) fn measure() -> Result<Vec<Part>> {
    let large = (0..OBJECTS).map(|n| (format!("large/{n}.bin"), GIB));
    let small = (0..SMALL_OBJECTS).map(|n| (format!("small/{n:04}.bin"), 1 + n * 97));
    let bench = Bench::start(&large.chain(small).collect::<Vec<_>>(), MEMORY)?;
    // Idle after use, not before: caches are warm, connections are open.
    load::read_once(&bench.file("large/0.bin"), Cache::Past)?;
    interrupt::sleep(Duration::from_secs(2))?;

    let mut shares = Vec::new();
    for _ in 0..REPETITIONS {
        let (before, start) = (process::processor_time(bench.pid())?, Instant::now());
        interrupt::sleep(IDLE_SPAN)?;
        let used = process::processor_time(bench.pid())? - before;
        shares.push(100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64());
        println!("  idle: {:.3} % of a core", shares[shares.len() - 1]);
    }
    let shares = Samples::new(shares);

    let most = process::resident_bytes_max(bench.pid(), || mixed_load(&bench))?;
    let over = most as f64 / MIB - MEMORY_BYTES as f64 / MIB;
    println!(
        "  under load: at most {:.1} MiB resident, --memory {MEMORY}",
        most as f64 / MIB
    );
    bench.end()?;
    Ok(vec![
        Part {
            name: "percent-of-a-core",
            measured: shares.median(),
            target: Target::Below(1.0),
            detail: format!("{:.3} to {:.3} %", shares.min(), shares.max()),
        },
        Part {
            name: "MiB-over-memory",
            measured: over,
            target: Target::AtMost(64.0),
            detail: format!(
                "at most {:.1} MiB resident with --memory {MEMORY}",
                most as f64 / MIB
            ),
        },
    ])
}

/// Sequential and random readers of large objects and readers of small ones, all at once.
fn mixed_load(bench: &Bench) -> Result<()> {
    let end = Instant::now() + LOAD_SPAN;
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let mut running = Vec::new();
        for n in 0..OBJECTS {
            let path = bench.file(&format!("large/{n}.bin"));
            let cache = if n % 2 == 0 {
                Cache::Past
            } else {
                Cache::Through
            };
            let direct = path.clone();
            running.push(scope.spawn(move || {
                while Instant::now() < end {
                    load::read_once(&path, cache)?;
                }
                Ok(())
            }));
            running.push(scope.spawn(move || {
                let until = Until::Elapsed(LOAD_SPAN);
                load::random(&direct, Cache::Past, 4, n, until).map(drop)
            }));
        }
        running.push(scope.spawn(move || {
            while Instant::now() < end {
                for n in 0..SMALL_OBJECTS {
                    load::read_once(&bench.file(&format!("small/{n:04}.bin")), Cache::Past)?;
                    if Instant::now() >= end {
                        break;
                    }
                }
            }
            Ok(())
        }));
        let ended = running.into_iter().map(|one| one.join());
        ended
            .map(|one| one.unwrap_or_else(|_| Err(anyhow!("a reader panicked"))))
            .collect()
    });
    results.into_iter().collect()
}
