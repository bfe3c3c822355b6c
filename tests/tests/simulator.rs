//! The engine in the simulator: 200 seeds, and the same seed in several processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_engine::disk::DeviceStats;
use forebay_tests::sim::scenario::{Scenario, Weather};
use forebay_tests::sim::world::{self, Passed};

/// Seeds in one run of this test.
const SEEDS: u64 = 200;
/// Of those, the ones that are the same in every run.
const FIXED_SEEDS: u64 = 100;
/// Real time that a run should stay under, on two cores and in the dev profile.
const SLOW: Duration = Duration::from_secs(60);

/// The seeds to run: from `FOREBAY_SIM_SEED` on, or some fixed and some fresh ones.
fn seeds() -> Vec<u64> {
    if let Ok(text) = std::env::var("FOREBAY_SIM_SEED") {
        let first: u64 = text.parse().expect("FOREBAY_SIM_SEED is a number");
        println!("seeds {first}..{}, from FOREBAY_SIM_SEED", first + SEEDS);
        return (first..first + SEEDS).collect();
    }
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock is past 1970");
    // Seconds in hundreds: consecutive runs take consecutive ranges, and seeds stay short.
    let fresh = clock.as_secs() * FIXED_SEEDS;
    println!(
        "seeds 0..{FIXED_SEEDS} and {fresh}..{}",
        fresh + SEEDS - FIXED_SEEDS
    );
    (0..FIXED_SEEDS)
        .chain(fresh..fresh + SEEDS - FIXED_SEEDS)
        .collect()
}

#[test]
fn two_hundred_seeds() {
    let began = Instant::now();
    let seeds = seeds();
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get().min(8));
    // Each run is single-threaded and knows nothing of the others.
    let passed: Vec<Passed> = std::thread::scope(|scope| {
        let run = |seed: &u64| {
            world::run(Scenario::from_seed(*seed), false)
                .unwrap_or_else(|failed| panic!("\n{failed}"))
        };
        let shares = seeds.chunks(seeds.len().div_ceil(threads));
        let runs: Vec<_> = shares
            .map(|share| scope.spawn(move || share.iter().map(run).collect::<Vec<_>>()))
            .collect();
        runs.into_iter()
            .flat_map(|run| run.join().expect("a seed failed: see above"))
            .collect()
    });
    let sum = |count: fn(&Passed) -> u64| passed.iter().map(count).sum::<u64>();
    let (events, evictions) = (sum(|run| run.events), sum(|run| run.stats.evictions));
    let (retries, errors) = (
        sum(|run| run.stats.retries),
        sum(|run| run.stats.read_errors),
    );
    let took = began.elapsed();
    println!(
        "{SEEDS} seeds, {events} events, {evictions} evictions, {retries} retries, \
         {errors} failed reads in {took:?}"
    );
    if took > SLOW {
        println!("SLOW: more than {SLOW:?}");
    }
    // Runs in which nothing ever goes wrong or out of memory would prove little.
    assert!(evictions > 500 && retries > 500 && errors > 100);
    let device = |count: fn(&DeviceStats) -> u64| {
        let devices = passed.iter().flat_map(|run| &run.stats.disk.devices);
        devices.map(count).sum::<u64>()
    };
    let (hits, recovered) = (
        sum(|run| run.stats.disk_hits),
        device(|device| device.recovered_entries),
    );
    let (reclaimed, failures) = (
        device(|device| device.regions_reclaimed),
        device(|device| device.checksum_failures + device.read_errors + device.write_errors),
    );
    println!(
        "disks: {hits} reads, {recovered} entries recovered, {reclaimed} regions reclaimed, \
         {failures} failures"
    );
    assert!(hits > 100 && recovered > 300 && reclaimed > 10 && failures > 20);
    let (pulled, served) = (sum(|run| run.stats.group_hits), sum(|run| run.stats.serves));
    let (silent, wrong) = (
        sum(|run| run.stats.peer_failures),
        sum(|run| run.stats.checksum_failures),
    );
    println!(
        "groups: {pulled} reads from members, {served} requests served, {silent} not answered, \
         {wrong} checksums wrong"
    );
    assert!(pulled > 1_000 && served > 1_000 && silent > 30 && wrong > 3);
}

/// What `binary` prints for some seeds.
fn hashes(binary: &Path) -> String {
    let output = Command::new(binary)
        .args(["--seeds", "0..40"])
        .output()
        .expect("forebay-sim runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.ends_with(" ok")).count(),
        40,
        "{text}"
    );
    text
}

#[test]
fn the_same_seed_gives_the_same_hash_in_every_process_and_profile() {
    let binary = Path::new(env!("CARGO_BIN_EXE_forebay-sim"));
    let first = hashes(binary);
    assert_eq!(first, hashes(binary), "two processes");
    for seed in [3, 11] {
        let passed = world::run(Scenario::from_seed(seed), false).expect("the binary passed it");
        let line = format!(
            "seed {seed} hash {:016x} events {} ok",
            passed.hash, passed.events
        );
        assert!(first.contains(&line), "this process has {line}");
    }
    let other = other_profile(binary);
    if up_to_date(&other, binary) {
        assert_eq!(first, hashes(&other), "{}", other.display());
    } else {
        println!(
            "SKIPPED: comparison of debug and release hashes: {} is missing or older than {}; \
             build it with `cargo build --release -p forebay-tests --bin forebay-sim`",
            other.display(),
            binary.display()
        );
    }
}

/// The same binary in the other profile's folder.
fn other_profile(binary: &Path) -> PathBuf {
    let folder = binary.parent().expect("a binary lies in a folder");
    let other = if folder.ends_with("release") {
        "debug"
    } else {
        "release"
    };
    folder
        .with_file_name(other)
        .join(binary.file_name().expect("a binary has a name"))
}

/// A release binary of older sources says nothing about these.
fn up_to_date(other: &Path, binary: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    let margin = Duration::from_secs(3_600);
    match (modified(other), modified(binary)) {
        (Some(other), Some(binary)) => other + margin >= binary,
        _ => false,
    }
}

#[test]
fn every_weather_occurs_and_differs() {
    let mut seen: Vec<Weather> = (0..FIXED_SEEDS)
        .map(|seed| Scenario::from_seed(seed).weather)
        .collect();
    seen.dedup();
    for weather in [
        Weather::Calm,
        Weather::Tight,
        Weather::Storm,
        Weather::Flood,
    ] {
        assert!(seen.contains(&weather), "{weather:?}");
    }
}
