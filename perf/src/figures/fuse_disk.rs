//! `fuse-disk`: reads through the mount of what is on disk, against the same reads of local files on the
//! same disk. The daemon is mounted anew before each turn and the page cache is dropped: nothing is in memory.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::bench::Bench;
use crate::fio::{self, Access, Engine, Job, Until};
use crate::load::{self, Cache, Rng};
use crate::process;
use crate::run::{self, Run};
use crate::samples::{Part, Target};
use crate::turns::{self, Measured, Player, Side};

const MEMORY: &str = "512MiB";
/// Four times the memory.
const LARGE_BYTES: u64 = 2 << 30;
const LARGE: &str = "large.bin";
const SMALL_FILES: u64 = 2_000;
const SMALL_BYTES: u64 = 100 << 10;
const SMALL: &str = "small";
const CACHE: &str = "4GiB";
const SEQUENTIAL_BYTES: u64 = 1 << 20;
const SEQUENTIAL_DEPTH: usize = 8;
const RANDOM_BYTES: u64 = 4 << 10;

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    println!("  yardstick: {}", fio::version()?);
    let large_bytes = run.amount(LARGE_BYTES);
    let local = run.scratch()?;
    make_local(local.path(), large_bytes)?;
    let sides = Sides {
        bench: RefCell::new(Some(filled(run, large_bytes)?)),
        local: local.path().to_owned(),
    };
    let sequential = sides.compare(run, |file, seed| {
        fio_job(
            file,
            Access::Reads,
            SEQUENTIAL_BYTES,
            SEQUENTIAL_DEPTH,
            Until::Bytes(large_bytes),
            seed,
        )
    })?;
    let random = sides.compare(run, |file, seed| {
        fio_job(
            file,
            Access::RandomReads,
            RANDOM_BYTES,
            1,
            Until::Elapsed(run.span()),
            seed,
        )
    })?;
    let small = sides.compare(run, |file, _| read_small(file))?;
    sides.end()?;

    let per_gib = |turn: &Measured| turn.cpu_s_per_gib();
    let per_io = |turn: &Measured| turn.cpu_ns_per_io() / 1e3;
    Ok(vec![
        turns::with_cpu(
            turns::ratio(
                "sequential-1MiB",
                Target::AtLeast(0.95),
                (&sequential[0], &sequential[1]),
                "MiB/s",
                Measured::mib_per_second,
            ),
            (&sequential, "s/GiB", 3),
            per_gib,
        ),
        turns::with_cpu(
            turns::ratio(
                "random-4KiB-p50",
                Target::AtMost(1.3),
                (&random[0], &random[1]),
                "us",
                |turn| turn.p50_us.unwrap_or(f64::NAN),
            ),
            (&random, "us each", 1),
            per_io,
        ),
        turns::with_cpu(
            turns::ratio(
                "small-files-time",
                Target::AtMost(2.5),
                (&small[0], &small[1]),
                "ms",
                |turn| turn.elapsed.as_secs_f64() * 1e3,
            ),
            (&small, "us each", 1),
            per_io,
        ),
    ])
}

/// Both sides of all three comparisons.
struct Sides {
    // Taken out while it is mounted anew.
    bench: RefCell<Option<Bench>>,
    local: PathBuf,
}

impl Sides {
    /// Runs `load` on the mount and on the local files in turn. The load names its file by a path from the root of either.
    fn compare(
        &self,
        run: &Run,
        load: impl Fn(&Path, u64) -> Result<Measured>,
    ) -> Result<Vec<Side>> {
        let load = &load;
        turns::take_turns(
            run,
            vec![
                Player::new("Forebay", move |seed| {
                    self.through_mount(|root| load(root, seed))
                }),
                Player::new("local", move |seed| {
                    run::drop_caches()?;
                    list(&self.local)?;
                    load(&self.local, seed)
                }),
            ],
        )
    }

    /// A turn of the mount: nothing in memory before it, nothing from the origin in it.
    fn through_mount(&self, load: impl FnOnce(&Path) -> Result<Measured>) -> Result<Measured> {
        let bench = self.bench.take().context("the mount did not come back")?;
        let bench = bench.remount()?;
        run::drop_caches()?;
        list(&bench.file(""))?;
        let (origin, cpu) = (
            bench.server().counters().body_bytes,
            process::processor_time(bench.pid())?,
        );
        let (hits, asked) = (bench.stats()?.memory_hits, requests(&bench));
        let mut done = load(&bench.file(""))?;
        done.cpu += process::processor_time(bench.pid())? - cpu;
        let fetched = bench.server().counters().body_bytes - origin;
        let hits = bench.stats()?.memory_hits - hits;
        println!(
            "  {hits} reads from memory, {fetched} bytes from the origin, {} requests of it",
            requests(&bench) - asked
        );
        ensure!(
            fetched == 0,
            "{fetched} bytes came from the origin: not a measurement of the disk tier"
        );
        self.bench.replace(Some(bench));
        Ok(done)
    }

    fn end(self) -> Result<()> {
        self.bench.into_inner().map_or(Ok(()), Bench::end)
    }
}

/// Requests of all kinds that the origin got.
fn requests(bench: &Bench) -> u64 {
    bench.server().counters().requests.values().sum()
}

/// A mount whose disk holds everything.
fn filled(run: &Run, large_bytes: u64) -> Result<Bench> {
    let mut objects = vec![(LARGE.to_owned(), large_bytes)];
    objects.extend((0..SMALL_FILES).map(|number| (small(number), SMALL_BYTES)));
    let dir = run.scratch()?;
    let cache = dir.path().join("cache");
    std::fs::create_dir(&cache)?;
    let flags: [OsString; 6] = [
        "--cache-dir".into(),
        cache.into(),
        "--cache-size".into(),
        CACHE.into(),
        // What else lies on the disk shall not shrink the cache meanwhile.
        "--free-space-ratio".into(),
        "0.01".into(),
    ];
    let bench = Bench::start_in(dir, &objects, MEMORY, &flags)?;
    load::read_once(&bench.file(LARGE), Cache::Past)?;
    for number in 0..SMALL_FILES {
        load::read_once(&bench.file(&small(number)), Cache::Past)?;
    }
    // What the disk was too slow for the first time comes again.
    for _ in 0..3 {
        let before = bench.server().counters().body_bytes;
        load::read_once(&bench.file(LARGE), Cache::Past)?;
        for number in 0..SMALL_FILES {
            load::read_once(&bench.file(&small(number)), Cache::Past)?;
        }
        if bench.server().counters().body_bytes == before {
            break;
        }
    }
    Ok(bench)
}

fn small(number: u64) -> String {
    format!("{SMALL}/{number:04}.bin")
}

/// The same files on the local file system, with noise in them.
fn make_local(dir: &Path, large_bytes: u64) -> Result<()> {
    let mut rng = Rng(1);
    let noise: Vec<u8> = (0..(1 << 20) / 8)
        .flat_map(|_| rng.next().to_le_bytes())
        .collect();
    let mut large = File::create(dir.join(LARGE))?;
    for _ in 0..large_bytes >> 20 {
        large.write_all(&noise)?;
    }
    large.sync_all()?;
    std::fs::create_dir(dir.join(SMALL))?;
    for number in 0..SMALL_FILES {
        std::fs::write(dir.join(small(number)), &noise[..SMALL_BYTES as usize])?;
    }
    rustix::fs::sync();
    Ok(())
}

/// Names and sizes of the small files are known on both sides before anything is timed.
fn list(root: &Path) -> Result<()> {
    for entry in std::fs::read_dir(root.join(SMALL))? {
        entry?.metadata()?;
    }
    Ok(())
}

fn fio_job(
    root: &Path,
    access: Access,
    block_bytes: u64,
    depth: usize,
    until: Until,
    seed: u64,
) -> Result<Measured> {
    fio::run(&Job {
        file: &root.join(LARGE),
        engine: Engine::Uring,
        access,
        block_bytes,
        depth,
        extent: None,
        until,
        sync_every_bytes: None,
        fixed: false,
        lean: false,
        seed,
    })
}

/// Opens, reads and closes all small files, one after the other, through the page cache.
fn read_small(root: &Path) -> Result<Measured> {
    let mut buf = vec![0; 1 << 20];
    let (start, cpu) = (Instant::now(), process::own_time()?);
    let mut bytes = 0;
    for number in 0..SMALL_FILES {
        let mut file = File::open(root.join(small(number)))?;
        loop {
            let got = file.read(&mut buf)?;
            if got == 0 {
                break;
            }
            bytes += got as u64;
        }
    }
    let elapsed = start.elapsed();
    ensure!(
        bytes == SMALL_FILES * SMALL_BYTES,
        "the small files have {bytes} bytes"
    );
    Ok(Measured {
        ios: SMALL_FILES,
        bytes,
        elapsed,
        cpu: process::own_time()? - cpu,
        p50_us: None,
    })
}
