//! The command `simulate`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use forebay_cli::units::Bytes;
use forebay_tests::sim::model::{Plan as Model, Situation};
use serde::Serialize;

use super::check::{self, Compared};
use super::constants::Constants;
use super::{Predicted, name, predict};
use crate::plan::Plan;
use crate::table;

/// Counted up when a reader of the one before would misread this one.
pub const SCHEMA: u32 = 1;
const SITUATIONS: [Situation; 4] = [
    Situation::Cold,
    Situation::Steady,
    Situation::Join,
    Situation::Loss,
];
/// The least that a core takes.
const MEMORY_MIN: u64 = forebay_engine::limits::ARENA_BYTES_MIN as u64;
const OBJECT_BYTES_MAX: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// What is simulated.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// Members of the group; several with commas between: 8,64,1000.
    #[arg(long, value_delimiter = ',', default_value = "8,64", value_parser = clap::value_parser!(u64).range(2..=1000))]
    nodes: Vec<u64>,
    /// What happens: cold (nobody has anything), steady (the members have everything), join, loss; several with commas between.
    #[arg(long, value_delimiter = ',', default_value = "cold,steady,join,loss", value_parser = situation)]
    situation: Vec<Situation>,
    /// Bytes of each object; there are as many objects as members, of a cold start one for every --sharers members.
    #[arg(long, default_value = "4MiB")]
    data: Bytes,
    /// Members that read the same object in a cold start.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    sharers: u64,
    /// Bytes of one read.
    #[arg(long, default_value = "128KiB")]
    block: Bytes,
    /// Reads of each member, but in a cold start.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    reads: u64,
    /// Memory of each member.
    #[arg(long, default_value = "32MiB")]
    memory: Bytes,
    /// What things cost, as JSON (docs/perf.md). Default: measured here first.
    #[arg(long)]
    constants: Option<PathBuf>,
    /// Compare the model with three real members and a client, too.
    #[arg(long)]
    check: bool,
    /// Write everything here as JSON (docs/simulate-schema.json).
    #[arg(long)]
    json: Option<PathBuf>,
    /// Chooses places.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn situation(text: &str) -> Result<Situation, String> {
    let found = SITUATIONS.into_iter().find(|one| name(*one) == text);
    found.ok_or_else(|| "it may be cold, steady, join or loss".to_owned())
}

/// Everything that a simulation tells.
#[derive(Clone, Debug, Serialize)]
pub struct Simulated {
    /// [`SCHEMA`].
    pub schema: u32,
    /// This program's version.
    pub version: String,
    /// Of places.
    pub seed: u64,
    /// Bytes of one object.
    pub object_bytes: u64,
    /// Bytes of one read.
    pub block_bytes: u64,
    /// Memory of each member.
    pub memory_bytes: u64,
    /// What things cost.
    pub constants: Constants,
    /// What came of it.
    pub results: Vec<Predicted>,
    /// The model against real processes; null where that was not asked for.
    pub check: Option<Vec<Compared>>,
}

impl SimulateArgs {
    /// Of places.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn verify(&self) -> Result<()> {
        let (data, block, memory) = (self.data.0, self.block.0, self.memory.0);
        let most = forebay_engine::limits::READ_BYTES_MAX as u64;
        ensure!(
            (4_096..=most).contains(&block) && block.is_multiple_of(4_096),
            "--block may be 4KiB to {most} bytes, in whole 4KiB"
        );
        ensure!(
            data >= block && data <= OBJECT_BYTES_MAX,
            "--data may be a --block to 1GiB"
        );
        ensure!(
            (MEMORY_MIN..=64 << 30).contains(&memory),
            "--memory may be {}MiB to 64GiB",
            MEMORY_MIN / MIB
        );
        Ok(())
    }

    fn model(&self, situation: Situation, members: usize, constants: &Constants) -> Model {
        let objects = match situation {
            Situation::Cold => members.div_ceil(self.sharers as usize),
            _ => members,
        };
        Model {
            costs: constants.costs(),
            situation,
            members,
            clients: 0,
            memory_bytes: self.memory.0 as usize,
            objects,
            object_bytes: self.data.0,
            block_bytes: self.block.0 as u32,
            reads: self.reads,
            seed: self.seed,
        }
    }
}

/// Simulates, and shows it.
///
/// # Errors
/// What is wrong with the options, what could not be measured, what does not fit.
pub fn simulate(args: &SimulateArgs, plan: &Plan) -> Result<()> {
    args.verify()?;
    let constants = match &args.constants {
        Some(path) => Constants::read(path)?,
        None => Constants::measure(plan)?,
    };
    print!("{}", shown(&constants));
    let mut results = Vec::new();
    for members in &args.nodes {
        for situation in &args.situation {
            let predicted = predict(args.model(*situation, *members as usize, &constants))?;
            print!("{}", line(&predicted));
            results.push(predicted);
        }
    }
    let check = args.check.then(|| check::check(constants.costs(), plan));
    let check = check.transpose()?;
    for compared in check.iter().flatten() {
        print!("{}", agreement(compared));
    }
    let simulated = Simulated {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: args.seed,
        object_bytes: args.data.0,
        block_bytes: args.block.0,
        memory_bytes: args.memory.0,
        constants,
        results,
        check,
    };
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&simulated)? + "\n";
        let written = std::fs::write(path, text);
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn shown(constants: &Constants) -> String {
    format!(
        "constants ({}): {:.1} us one way, link {}, origin {:.0} us and {} a GET, a read {:.1} us and {}\n",
        constants.source,
        constants.delay_us,
        table::rate(constants.link_bytes_per_s),
        constants.origin_latency_us,
        table::rate(constants.origin_bytes_per_s),
        constants.read_us,
        table::rate(constants.read_bytes_per_s)
    )
}

fn line(predicted: &Predicted) -> String {
    let mut text = format!(
        "{:>6} of {:>4}: {} in {:.3} s; origin {} bytes of {} ({} GETs)",
        predicted.situation,
        predicted.members,
        table::rate(predicted.bytes_per_s),
        predicted.elapsed_s,
        predicted.origin_bytes,
        predicted.data_bytes,
        predicted.origin_gets
    );
    if let Some(latency) = &predicted.latency {
        for told in &latency.percentiles {
            if [50.0, 99.0, 99.9].contains(&told.percentile) {
                let _ = write!(text, "; p{} {:.0} us", told.percentile, told.us);
            }
        }
        let _ = write!(text, "; longest {:.0} us", latency.max_us);
    }
    let (sent, received) = (&predicted.sent, &predicted.received);
    let _ = write!(
        text,
        "; busiest sender {:.1} x the mean, {:.0} % of its link; busiest receiver {:.1} x, {:.0} %",
        sent.hot,
        100.0 * sent.link_share,
        received.hot,
        100.0 * received.link_share
    );
    if predicted.failed > 0 {
        let _ = write!(text, "; {} reads FAILED", predicted.failed);
    }
    let _ = writeln!(text, " ({:.1} s to simulate)", predicted.wall_s);
    text
}

fn agreement(compared: &Compared) -> String {
    let origin = match compared.origin_agrees {
        true => "the same in all runs".to_owned(),
        false => format!(
            "NOT the same: {} predicted, {} real (a real client may be slow enough for another member to fetch in its owner's place, or for read-ahead to \
             reach what was evicted)",
            compared.predicted_origin_bytes, compared.real_origin_bytes
        ),
    };
    format!(
        "check {}: origin bytes {origin}; {} predicted, {} real: {:.2} times; p50 {:.0} us predicted, {:.0} us real: {:.2} times\n",
        compared.work,
        table::rate(compared.predicted_bytes_per_s),
        table::rate(compared.real_bytes_per_s),
        compared.throughput_factor,
        compared.predicted_p50_us,
        compared.real_p50_us,
        compared.p50_factor
    )
}
