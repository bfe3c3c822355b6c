//! Tensors of one mapped file: several processes map it and copy its ranges out, each in an order of its own.
//!
//! The processes are this program: `forebay-perf read-tensors`. Each says `ready`, waits for a line, reads, and prints what it did.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Ran;
use crate::counters::Cost;
use crate::load::Rng;
use crate::network::Killed;
use crate::pace::Paced;
use crate::raw::{Mapping, own_usage};
use crate::recorder::Recorder;
use crate::samples::Samples;
use crate::scenario::Scenario;
use crate::side::Turn;

/// Bytes that are copied at a time: a staging buffer's.
const PART_BYTES: usize = 1 << 20;

/// What one process did.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    tensors: u64,
    bytes: u64,
    first_byte_ns: u64,
    cpu_ns: u64,
    voluntary: u64,
    involuntary: u64,
    latencies: Vec<(u64, u64)>,
}

/// Where the tensors of a file begin and end: of uneven sizes, whole numbers of 8 bytes, from the seed.
fn ranges(file_bytes: u64, tensors: u64, seed: u64) -> Vec<(u64, u64)> {
    let mut rng = Rng::of(seed, 0);
    let words = file_bytes / 8;
    let mut cuts: Vec<u64> = (1..tensors)
        .map(|_| rng.next() % words.max(1) * 8)
        .collect();
    cuts.extend([0, file_bytes]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// One process's part.
///
/// # Errors
/// What cannot be read.
pub fn process(file: &Path, tensors: u64, seed: u64) -> Result<()> {
    let said = || format!("reading {}", file.display());
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    if line.is_empty() {
        // Whoever started it is gone.
        return Ok(());
    }
    let (before, start) = (own_usage(), Instant::now());
    let mapping = Mapping::new(&File::open(file).with_context(said)?).with_context(said)?;
    let first = mapping
        .bytes()
        .first()
        .with_context(|| format!("{} is empty", file.display()))?;
    std::hint::black_box(*first);
    let first_byte = start.elapsed();
    // All have the same tensors, and read them in orders of their own.
    let mut order = ranges(mapping.bytes().len() as u64, tensors, 1);
    let mut rng = Rng::of(seed, 1);
    for n in (1..order.len()).rev() {
        order.swap(n, (rng.next() % (n as u64 + 1)) as usize);
    }
    let mut buffer = vec![1; PART_BYTES];
    let mut recorder = Recorder::default();
    let (mut bytes, mut last) = (0, Instant::now());
    for (from, to) in &order {
        for part in mapping.bytes()[*from as usize..*to as usize].chunks(PART_BYTES) {
            buffer[..part.len()].copy_from_slice(part);
            std::hint::black_box(&mut buffer);
        }
        bytes += to - from;
        let now = Instant::now();
        recorder.record(now - last);
        last = now;
    }
    let after = own_usage();
    let told = Told {
        tensors: order.len() as u64,
        bytes,
        first_byte_ns: first_byte.as_nanos() as u64,
        cpu_ns: (after.cpu - before.cpu).as_nanos() as u64,
        voluntary: after.voluntary_switches - before.voluntary_switches,
        involuntary: after.involuntary_switches - before.involuntary_switches,
        latencies: recorder.pairs(),
    };
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

struct Reading {
    child: Killed,
    said: BufReader<std::process::ChildStdout>,
}

impl Reading {
    fn start(file: &Path, tensors: u64, seed: u64) -> Result<Reading> {
        let mut child: Child = Command::new(std::env::current_exe()?)
            .arg("read-tensors")
            .arg(file)
            .args([tensors.to_string(), seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a reader")?;
        let said = child.stdout.take().context("a reader has no output")?;
        let mut reading = Reading {
            child: Killed(child),
            said: BufReader::new(said),
        };
        let line = reading.line()?;
        ensure!(line == "ready", "a reader says {line:?}");
        Ok(reading)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

/// A span: all processes at the same time.
pub(super) fn run(file: &Path, scenario: &Scenario, turn: &Turn) -> Result<Ran> {
    let tensors = scenario.count("tensors");
    let processes = 0..scenario.count("processes");
    let seed = |n: u64| Rng::of(turn.seed, n).next();
    let started = processes.map(|n| Reading::start(file, tensors, seed(n)));
    let mut readings: Vec<Reading> = started.collect::<Result<_>>()?;
    let start = Instant::now();
    for reading in &mut readings {
        let stdin = reading
            .child
            .0
            .stdin
            .as_mut()
            .context("a reader has no input")?;
        stdin.write_all(b"go\n")?;
    }
    let mut told = Vec::new();
    for reading in &mut readings {
        let line = reading.line()?;
        let one: Told = serde_json::from_str(&line)
            .with_context(|| format!("a reader of {} failed", file.display()))?;
        told.push(one);
    }
    let elapsed = start.elapsed();
    add_up(&told, elapsed)
}

fn add_up(told: &[Told], elapsed: Duration) -> Result<Ran> {
    ensure!(!told.is_empty(), "nobody read");
    let mut recorder = Recorder::default();
    told.iter()
        .for_each(|one| recorder.add_pairs(&one.latencies));
    let sum = |of: fn(&Told) -> u64| told.iter().map(of).sum::<u64>();
    let firsts = told.iter().map(|one| one.first_byte_ns as f64 / 1e3);
    Ok(Ran {
        paced: Paced {
            operations: sum(|one| one.tensors),
            // From "go" to the last answer: by their own clocks, who was put off its processor at first would count from later.
            elapsed,
            recorder,
            unfinished: 0,
        },
        bytes: sum(|one| one.bytes),
        first_byte_us: Some(Samples::new(firsts.collect()).median()),
        costs: vec![Cost {
            who: "processes that read".to_owned(),
            cpu_s: sum(|one| one.cpu_ns) as f64 / 1e9,
            voluntary_switches: Some(sum(|one| one.voluntary)),
            involuntary_switches: Some(sum(|one| one.involuntary)),
            instructions: None,
            cycles: None,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_all_of_the_file() {
        let cut = ranges(1 << 20, 50, 1);
        assert_eq!((cut[0].0, cut[cut.len() - 1].1), (0, 1 << 20));
        assert!(cut.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert!(cut.len() > 40 && cut == ranges(1 << 20, 50, 1));
        assert_eq!(ranges(4, 10, 1), [(0, 4)]);
    }
}
