//! `simulate`: the production cores on virtual time, with costs that were measured on some machine, for groups that no desk holds.
//!
//! | module | holds |
//! |---|---|
//! | [`command`] | the command line, the table, the JSON |
//! | [`constants`] | what things cost: measured here, or from a file |
//! | [`check`] | the same work by the model and by real processes |

pub mod check;
pub mod command;
pub mod constants;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use forebay_tests::sim::model::{Phase, Plan, Run, Situation};
use serde::Serialize;

use crate::interrupt;
use crate::recorder::{Begun, Latency, Recorder};

/// Between two lines of progress.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// A run of the model that takes longer is ended.
pub const WALL_MAX: Duration = Duration::from_secs(600);

/// What one situation came to.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    /// `cold`, `steady`, `join`, `loss`.
    pub situation: &'static str,
    /// Members at its beginning.
    pub members: usize,
    /// Virtual time, to the last answer.
    pub elapsed_s: f64,
    /// Reads that brought bytes.
    pub reads: u64,
    /// Reads that did not.
    pub failed: u64,
    /// Bytes of all readers, each second.
    pub bytes_per_s: f64,
    /// How long reads took.
    pub latency: Option<Latency>,
    /// Bytes that are read at least once.
    pub data_bytes: u64,
    /// Bytes that left the origin.
    pub origin_bytes: u64,
    /// GETs.
    pub origin_gets: u64,
    /// What nodes sent to others.
    pub sent: Load,
    /// What they received.
    pub received: Load,
    /// Real time that it took to simulate.
    pub wall_s: f64,
}

/// Bytes over a link, of all nodes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// On average.
    pub mean_bytes: f64,
    /// Of the busiest.
    pub max_bytes: u64,
    /// How many times the average the busiest has.
    pub hot: f64,
    /// Of what the busiest one's link could carry meanwhile.
    pub link_share: f64,
}

impl Load {
    fn of(bytes: &[u64], elapsed_s: f64, link_bytes_per_s: u64) -> Load {
        let mean_bytes = bytes.iter().sum::<u64>() as f64 / bytes.len().max(1) as f64;
        let max_bytes = bytes.iter().copied().max().unwrap_or(0);
        let over = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Load {
            mean_bytes,
            max_bytes,
            hot: over(max_bytes as f64, mean_bytes),
            link_share: over(max_bytes as f64, elapsed_s * link_bytes_per_s as f64),
        }
    }
}

/// A situation's word.
pub fn name(situation: Situation) -> &'static str {
    match situation {
        Situation::Cold => "cold",
        Situation::Steady => "steady",
        Situation::Join => "join",
        Situation::Loss => "loss",
    }
}

/// Simulates.
///
/// # Errors
/// When it does not fit into memory, takes too long, or the model finds something wrong.
pub fn predict(plan: Plan) -> Result<Predicted> {
    fits(&plan)?;
    let began = Instant::now();
    let what = format!("{} of {} members", name(plan.situation), plan.members);
    let mut last = began;
    let mut told = |turns: u64, virtual_time: Duration| {
        if last.elapsed() >= TELL_EVERY {
            last = Instant::now();
            let passed = virtual_time.as_secs_f64();
            eprintln!("  {what}: {turns} turns, {passed:.3} s of virtual time");
        }
        !interrupt::came() && began.elapsed() < WALL_MAX
    };
    let mut run = Run::start(plan).context("the nodes do not start")?;
    let phase = run.live(&mut told);
    interrupt::check()?;
    ensure!(
        began.elapsed() < WALL_MAX,
        "{what}: not within {} s: fewer nodes, or less --data",
        WALL_MAX.as_secs()
    );
    let phase = phase.map_err(|text| anyhow!("{what}: {text}"))?;
    told_of(&plan, &phase, began.elapsed())
}

fn told_of(plan: &Plan, phase: &Phase, wall: Duration) -> Result<Predicted> {
    ensure!(phase.reads > 0, "no read was answered");
    let mut recorder = Recorder::default();
    phase
        .latencies
        .iter()
        .for_each(|took| recorder.record(*took));
    let elapsed_s = phase.elapsed.as_secs_f64();
    let load = |bytes: &[u64]| {
        // The last one is there only where it joins; clients send nothing.
        let nodes = plan.members + plan.clients + usize::from(plan.situation == Situation::Join);
        Load::of(
            &bytes[..nodes.min(bytes.len())],
            elapsed_s,
            plan.costs.link_bytes_per_s,
        )
    };
    let (sent, received) = (load(&phase.sent), load(&phase.received));
    Ok(Predicted {
        situation: name(plan.situation),
        members: plan.members,
        elapsed_s,
        reads: phase.reads,
        failed: phase.failed,
        bytes_per_s: phase.bytes as f64 / elapsed_s.max(1e-9),
        latency: recorder.summary(Begun::EndOfTheOneBefore),
        data_bytes: plan.objects as u64 * plan.object_bytes,
        origin_bytes: phase.origin_bytes,
        origin_gets: phase.origin_gets,
        sent,
        received,
        wall_s: wall.as_secs_f64(),
    })
}

/// What a model takes beside what its nodes hold: placement, rings, tables.
const NODE_BYTES: u64 = 3 << 20;

fn free_memory() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

fn fits(plan: &Plan) -> Result<()> {
    let nodes = (plan.members + plan.clients + 1) as u64;
    // A reader's copies, and its share of what the group holds.
    let own = match plan.situation {
        Situation::Cold => plan.object_bytes,
        _ => plan.object_bytes + plan.reads * u64::from(plan.block_bytes),
    };
    let held = plan.objects as u64 * plan.object_bytes / plan.members.max(1) as u64;
    let each = (own + held).min(plan.memory_bytes as u64) + NODE_BYTES;
    let (needed, free) = (nodes * each, free_memory());
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    ensure!(
        needed <= free / 10 * 8,
        "{nodes} nodes take about {:.1} GiB of memory, and {:.1} GiB are free: fewer --nodes, or less --data",
        gib(needed),
        gib(free)
    );
    Ok(())
}
