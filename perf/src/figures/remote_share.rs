//! `remote-share`: reads through a mount whose data is all at other members, against the same reads through a mount that
//! has it itself; in memory on both sides, then on disk. The remote client is mounted anew before each turn, so nothing
//! is in its memory.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::GIB;
use crate::bench::Bench;
use crate::group::{Group, Plan};
use crate::load::{self, Cache, Done};
use crate::process;
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::turns::{self, Measured, Player, Side};

const OBJECT: &str = "object.bin";
/// Holds the object, in one mount or in two members.
const MEMORY: &str = "2GiB";
/// Of the client, and of everybody where the disk holds the object.
const LITTLE_MEMORY: &str = "512MiB";
const CACHE: &str = "3GiB";
const RANDOM_THREADS: usize = 4;

/// Where the data is, at whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Memory,
    /// Whoever has it starts anew before each turn, so nothing is in its memory.
    Disk,
}

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for tier in [Tier::Memory, Tier::Disk] {
        let objects = [(OBJECT.to_owned(), run.amount(GIB))];
        let sides = Sides {
            local: RefCell::new(Some(local(run, &objects, tier)?)),
            group: RefCell::new(remote(run, &objects, tier)?),
            tier,
        };
        let sequential = sides.compare(run, |file, _| load::read_once(file, Cache::Past))?;
        let random = sides.compare(run, |file, seed| {
            load::scattered(file, RANDOM_THREADS, seed)
        })?;
        sides.end()?;
        let names = match tier {
            Tier::Memory => ["memory-sequential-1MiB", "memory-random-4KiB"],
            Tier::Disk => ["disk-sequential-1MiB", "disk-random-4KiB"],
        };
        parts.extend(parts_of(names, &sequential, &random));
    }
    Ok(parts)
}

fn parts_of(names: [&'static str; 2], sequential: &[Side], random: &[Side]) -> [Part; 2] {
    let sequential_pair = (&sequential[0], &sequential[1]);
    let random_pair = (&random[0], &random[1]);
    let mib = Measured::mib_per_second;
    [
        turns::with_cpu(
            turns::ratio(names[0], Target::None, sequential_pair, "MiB/s", mib),
            (sequential, "s/GiB", 3),
            Measured::cpu_s_per_gib,
        ),
        turns::with_cpu(
            turns::ratio(names[1], Target::None, random_pair, "IOPS", Measured::iops),
            (random, "us each", 1),
            |turn| turn.cpu_ns_per_io() / 1e3,
        ),
    ]
}

/// A mount that is the one member of its group, and has read everything.
fn local(run: &Run, objects: &[(String, u64)], tier: Tier) -> Result<Bench> {
    let dir = run.scratch()?;
    let [x, y] = (std::process::id() as u16).to_be_bytes();
    // Nobody else's address: groups count their members from 1.
    let listen = format!("127.{}.{y}.200:7440", 16 + x % 200);
    let mut flags = ["--listen", &listen, "--cache-group", "perf-local"]
        .map(OsString::from)
        .to_vec();
    let memory = match tier {
        Tier::Memory => MEMORY,
        Tier::Disk => {
            let cache = dir.path().join("cache");
            std::fs::create_dir(&cache)?;
            flags.extend(["--cache-size", CACHE, "--free-space-ratio", "0"].map(OsString::from));
            flags.extend(["--cache-dir".into(), cache.into()]);
            LITTLE_MEMORY
        }
    };
    let bench = Bench::start_in(dir, objects, memory, &flags)?;
    bench.warm_up()?;
    Ok(bench)
}

/// A group of two that has everything.
fn remote(run: &Run, objects: &[(String, u64)], tier: Tier) -> Result<Group> {
    let (memory, cache) = match tier {
        Tier::Memory => (MEMORY, None),
        Tier::Disk => (LITTLE_MEMORY, Some(CACHE)),
    };
    let plans = ["a", "b"].map(|node| Plan {
        node: node.to_owned(),
        memory,
        cache,
        weight: 1,
    });
    let group = Group::start(run.scratch()?, objects, &plans)?;
    group.warm_up()?;
    Ok(group)
}

struct Sides {
    // Taken out while it is mounted anew.
    local: RefCell<Option<Bench>>,
    group: RefCell<Group>,
    tier: Tier,
}

impl Sides {
    fn compare(&self, run: &Run, load: impl Fn(&Path, u64) -> Result<Done>) -> Result<Vec<Side>> {
        let load = &load;
        turns::take_turns(
            run,
            vec![
                Player::new("remote", move |seed| {
                    self.remote_turn(|file| load(file, seed))
                }),
                Player::new("local", move |seed| {
                    self.local_turn(|file| load(file, seed))
                }),
            ],
        )
    }

    fn remote_turn(&self, load: impl FnOnce(&Path) -> Result<Done>) -> Result<Measured> {
        let mut group = self.group.borrow_mut();
        if self.tier == Tier::Disk {
            group.restart()?;
        }
        let client = group.client("client", LITTLE_MEMORY)?;
        let origin = group.bucket().settled_bytes()?;
        let used = || Ok::<_, anyhow::Error>(group.processor_time()? + readers_and(client.pid())?);
        let before = used()?;
        let done = load(&client.dir().join(OBJECT))?;
        let cpu = used()? - before;
        let fetched = group.bucket().settled_bytes()? - origin;
        ensure!(
            fetched == 0,
            "{fetched} bytes came from the origin: not a measurement of the group"
        );
        client.unmount()?;
        Ok(measured(&done, cpu))
    }

    fn local_turn(&self, load: impl FnOnce(&Path) -> Result<Done>) -> Result<Measured> {
        let bench = self.local.take().context("the mount did not come back")?;
        let bench = match self.tier {
            Tier::Memory => bench,
            Tier::Disk => bench.remount()?,
        };
        let (stats, before) = (bench.stats()?, readers_and(bench.pid())?);
        let done = load(&bench.file(OBJECT))?;
        let cpu = readers_and(bench.pid())? - before;
        let now = bench.stats()?;
        let (hits, misses) = (
            now.memory_hits - stats.memory_hits,
            now.misses - stats.misses,
        );
        ensure!(
            misses == 0 && (self.tier == Tier::Disk || hits >= done.reads),
            "{} reads, but {hits} memory hits and {misses} misses: not a measurement of what is here",
            done.reads
        );
        self.local.replace(Some(bench));
        Ok(measured(&done, cpu))
    }

    fn end(self) -> Result<()> {
        self.local.into_inner().map_or(Ok(()), Bench::end)?;
        self.group.into_inner().stop()
    }
}

/// Processor time of this process, where the readers are, and of a daemon.
fn readers_and(daemon: u32) -> Result<Duration> {
    Ok(process::processor_time(std::process::id())? + process::processor_time(daemon)?)
}

fn measured(done: &Done, cpu: Duration) -> Measured {
    Measured {
        ios: done.reads,
        bytes: done.bytes,
        elapsed: done.elapsed,
        cpu,
        p50_us: None,
    }
}
