//! `remote-share`: reads through a mount whose data is all at other members, against the same reads through a mount that
//! has it itself; in memory on both sides, then on disk. Daemons go on from turn to turn, with memory that was used
//! before, and each turn reads an object that the client never read.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_tests::harness::Mount;

use super::GIB;
use crate::bench::Bench;
use crate::group::{Group, Plan, disk_read_bytes, received_bytes};
use crate::load::{self, Cache, Done};
use crate::process;
use crate::run::Run;
use crate::samples::{Part, Target};
use crate::turns::{self, Measured, Player, Side};

/// One object for each turn of a side.
const OBJECT_BYTES: u64 = 256 << 20;
/// Read before the turns: after it all memory was used once, since new pages cost the kernel more than what is measured. More
/// than one client's memory, or two members'.
const FILLER: (&str, u64) = ("filler.bin", GIB);
/// All objects fit into one such mount, and half of them into one such member.
const MEMORY: &str = "5GiB";
/// Of the client, and of everybody where disks hold the objects.
const LITTLE_MEMORY: &str = "512MiB";
const CACHE: &str = "5GiB";
const LOADS: [&str; 2] = ["sequential", "random"];
const RANDOM_THREADS: usize = 4;

/// Where the data is, at whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Memory,
    Disk,
}

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let turns = 0..run.repetitions() as u64;
    let keys = turns.flat_map(|n| LOADS.map(|load| key(load, n)));
    let mut objects: Vec<(String, u64)> = keys.map(|key| (key, OBJECT_BYTES)).collect();
    objects.push((FILLER.0.to_owned(), FILLER.1));
    let mut parts = Vec::new();
    for tier in [Tier::Memory, Tier::Disk] {
        let sides = Sides::start(run, &objects, tier)?;
        let [sequential, random] = LOADS;
        let sequential = sides.compare(run, sequential, |file, _| {
            load::read_once(file, Cache::Past)
        })?;
        let random = sides.compare(run, random, |file, seed| {
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

fn key(load: &str, turn: u64) -> String {
    format!("{load}-{turn}.bin")
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

/// A mount that is the one member of its group, and has everything.
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
    let bench = match tier {
        Tier::Memory => bench,
        Tier::Disk => bench.remount()?,
    };
    load::read_once(&bench.file(FILLER.0), Cache::Past)?;
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
    let mut group = Group::start(run.scratch()?, objects, &plans)?;
    group.warm_up()?;
    if tier == Tier::Disk {
        group.restart()?;
    }
    Ok(group)
}

/// Both sides. The client goes before its group.
struct Sides {
    local: Bench,
    client: Mount,
    group: Group,
    tier: Tier,
}

impl Sides {
    fn start(run: &Run, objects: &[(String, u64)], tier: Tier) -> Result<Self> {
        let local = local(run, objects, tier)?;
        let group = remote(run, objects, tier)?;
        let client = group.client("client", LITTLE_MEMORY)?;
        load::read_once(&client.dir().join(FILLER.0), Cache::Past)?;
        Ok(Self {
            local,
            client,
            group,
            tier,
        })
    }

    fn compare(
        &self,
        run: &Run,
        name: &str,
        load: impl Fn(&Path, u64) -> Result<Done>,
    ) -> Result<Vec<Side>> {
        let load = &load;
        turns::take_turns(
            run,
            vec![
                Player::new("remote", move |n| {
                    self.remote_turn(|root| load(&root.join(key(name, n)), n))
                }),
                Player::new("local", move |n| {
                    self.local_turn(|root| load(&root.join(key(name, n)), n))
                }),
            ],
        )
    }

    fn remote_turn(&self, load: impl FnOnce(&Path) -> Result<Done>) -> Result<Measured> {
        let root = self.client.dir();
        let used = || -> Result<Duration> {
            Ok(self.group.processor_time()? + readers_and(self.client.pid())?)
        };
        let counts = || -> Result<[u64; 3]> {
            Ok([
                self.group.bucket().server().counters().body_bytes,
                received_bytes(root)?,
                self.group.disk_read_bytes()?,
            ])
        };
        let (before, start) = (counts()?, used()?);
        let done = load(root)?;
        let cpu = used()? - start;
        let [origin, received, disk] = difference(counts()?, before);
        ensure!(
            origin == 0 && received >= done.bytes,
            "of {} bytes {origin} came from the origin and {received} from other members: not a measurement of the group",
            done.bytes
        );
        self.check_tier(&done, disk)?;
        Ok(measured(&done, cpu))
    }

    fn local_turn(&self, load: impl FnOnce(&Path) -> Result<Done>) -> Result<Measured> {
        let (bench, root) = (&self.local, self.local.point());
        let counts = || -> Result<[u64; 2]> {
            Ok([bench.server().counters().body_bytes, disk_read_bytes(root)?])
        };
        let (before, start) = (counts()?, readers_and(bench.pid())?);
        let done = load(root)?;
        let cpu = readers_and(bench.pid())? - start;
        let [origin, disk] = difference(counts()?, before);
        ensure!(
            origin == 0,
            "{origin} bytes came from the origin: not a measurement of what is here"
        );
        self.check_tier(&done, disk)?;
        Ok(measured(&done, cpu))
    }

    /// What is said to come from disk was read there, and nothing else was.
    fn check_tier(&self, done: &Done, disk_bytes: u64) -> Result<()> {
        let right = match self.tier {
            Tier::Memory => disk_bytes == 0,
            Tier::Disk => disk_bytes >= done.bytes,
        };
        ensure!(
            right,
            "{disk_bytes} bytes came from disk for {} that were read: not a measurement of {:?}",
            done.bytes,
            self.tier
        );
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.local.end()?;
        self.client.unmount()?;
        self.group.stop()
    }
}

fn difference<const N: usize>(now: [u64; N], before: [u64; N]) -> [u64; N] {
    std::array::from_fn(|n| now[n] - before[n])
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
