//! `simulate --check`: three members and a client, by the model and by real processes.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_tests::sim::model::{Costs, Plan as Model, Situation};
use serde::Serialize;

use super::predict;
use crate::direct::{AlignedBuf, open_direct};
use crate::group::{Group, Plan as Member};
use crate::interrupt;
use crate::load::Rng;
use crate::plan::Plan;
use crate::recorder::{Begun, Recorder};
use crate::samples::Samples;

const MEMBERS: usize = 3;
const OBJECT_BYTES: u64 = 128 << 20;
const BLOCK_BYTES: u32 = 1 << 20;
const READS: u64 = 64;
/// Of the members and, in the model, of the client.
const MEMORY: &str = "512MiB";
const MEMORY_BYTES: usize = 512 << 20;
/// Objects that are each read once cold, then at random; medians count.
const TURNS: usize = 3;

/// One kind of work, both ways.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// `cold`: from beginning to end, nobody has anything. `steady`: blocks at random, the members have them.
    pub work: &'static str,
    /// Bytes that left the origin, as predicted.
    pub predicted_origin_bytes: u64,
    /// And as it was: of the median run.
    pub real_origin_bytes: u64,
    /// Whether they are the same in each run.
    pub origin_agrees: bool,
    /// The client's, predicted.
    pub predicted_bytes_per_s: f64,
    /// And real.
    pub real_bytes_per_s: f64,
    /// Predicted over real.
    pub throughput_factor: f64,
    /// Of a read, predicted.
    pub predicted_p50_us: f64,
    /// And real.
    pub real_p50_us: f64,
    /// Predicted over real.
    pub p50_factor: f64,
}

/// What one pass of real reads came to.
struct Real {
    bytes_per_s: f64,
    p50_us: f64,
    origin_bytes: u64,
}

/// Both.
///
/// # Errors
/// What a member, the client or the model said.
pub fn check(costs: Costs, plan: &Plan) -> Result<Vec<Compared>> {
    let objects: Vec<(String, u64)> = (0..TURNS)
        .map(|turn| (format!("turn-{turn}"), OBJECT_BYTES))
        .collect();
    let members: Vec<Member<'_>> = (0..MEMBERS)
        .map(|n| Member {
            node: format!("m{n}"),
            memory: MEMORY,
            cache: None,
            weight: 1,
        })
        .collect();
    let mut group = Group::start(plan.run.scratch()?, &objects, &members)?;
    let (mut cold, mut steady) = (Vec::new(), Vec::new());
    for (turn, (key, _)) in objects.iter().enumerate() {
        interrupt::check()?;
        cold.push(real(&group, key, None)?);
        steady.push(real(&group, key, Some(plan.seed + turn as u64))?);
    }
    group.stop()?;
    let model = |situation| {
        predict(Model {
            costs,
            situation,
            members: MEMBERS,
            clients: 1,
            memory_bytes: MEMORY_BYTES,
            objects: 1,
            object_bytes: OBJECT_BYTES,
            block_bytes: BLOCK_BYTES,
            reads: READS,
            seed: plan.seed,
        })
    };
    let mut all = Vec::new();
    for (situation, real) in [(Situation::Cold, cold), (Situation::Steady, steady)] {
        let predicted = model(situation)?;
        let latency = predicted.latency.as_ref().and_then(|told| told.at(50.0));
        let predicted_p50_us = latency.context("the model answered too few reads")?;
        let median = |of: fn(&Real) -> f64| Samples::new(real.iter().map(of).collect()).median();
        let (bytes_per_s, p50_us) = (median(|one| one.bytes_per_s), median(|one| one.p50_us));
        all.push(Compared {
            work: predicted.situation,
            predicted_origin_bytes: predicted.origin_bytes,
            real_origin_bytes: median(|one| one.origin_bytes as f64) as u64,
            origin_agrees: real
                .iter()
                .all(|one| one.origin_bytes == predicted.origin_bytes),
            predicted_bytes_per_s: predicted.bytes_per_s,
            real_bytes_per_s: bytes_per_s,
            throughput_factor: predicted.bytes_per_s / bytes_per_s,
            predicted_p50_us,
            real_p50_us: p50_us,
            p50_factor: predicted_p50_us / p50_us,
        });
    }
    Ok(all)
}

/// A new client reads a file: from beginning to end, or blocks that a seed chooses.
fn real(group: &Group, key: &str, seed: Option<u64>) -> Result<Real> {
    let before = group.bucket().settled_bytes()?;
    let client = group.client("reader", MEMORY)?;
    let read = read(&client.dir().join(key), seed);
    let (elapsed, bytes, p50_us) = read?;
    let origin_bytes = group.bucket().settled_bytes()? - before;
    client.unmount()?;
    Ok(Real {
        bytes_per_s: bytes as f64 / elapsed.as_secs_f64(),
        p50_us,
        origin_bytes,
    })
}

fn read(path: &Path, seed: Option<u64>) -> Result<(Duration, u64, f64)> {
    let said = || format!("reading {}", path.display());
    let file = open_direct(path).with_context(said)?;
    let mut buffer = AlignedBuf::new(BLOCK_BYTES as usize);
    let mut recorder = Recorder::default();
    let blocks = OBJECT_BYTES / u64::from(BLOCK_BYTES);
    let mut rng = Rng::of(seed.unwrap_or(0), 0);
    let reads = if seed.is_some() { READS } else { blocks };
    let start = Instant::now();
    let mut last = start;
    for n in 0..reads {
        interrupt::check()?;
        let block = if seed.is_some() {
            rng.next() % blocks
        } else {
            n
        };
        file.read_exact_at(buffer.bytes(), block * u64::from(BLOCK_BYTES))
            .with_context(said)?;
        let now = Instant::now();
        recorder.record(now - last);
        last = now;
    }
    let latency = recorder.summary(Begun::EndOfTheOneBefore);
    let p50_us = latency.and_then(|told| told.at(50.0));
    let p50_us = p50_us.context("too few reads for a median")?;
    Ok((last - start, reads * u64::from(BLOCK_BYTES), p50_us))
}
