//! How much of a scenario is measured, and where.

use std::path::PathBuf;
use std::time::Duration;

use crate::run::Run;

/// What a run is told beside its scenario.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where files lie, and devices.
    pub run: Run,
    /// Spans of each side.
    pub repeats: usize,
    /// How long operations begin in a span.
    pub span: Duration,
    /// The same before the first span.
    pub warm_up: Duration,
    /// Of places and arrivals.
    pub seed: u64,
    /// Whether limits are measured between the spans.
    pub ceilings: bool,
}

/// How much of a scenario is measured, as the command line has it.
#[derive(Clone, Debug, clap::Args)]
pub struct MeasureArgs {
    /// Write the outcome here as JSON (docs/perf-schema.json).
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// How long operations begin in a span. Patterns (epoch, stream, ...) measure whole passes instead.
    #[arg(long, value_parser = span, default_value = "3s")]
    span: Duration,
    /// The same before the first span.
    #[arg(long, value_parser = span, default_value = "1s")]
    warm_up: Duration,
    /// Spans of each side; medians of them count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,
    /// Chooses places and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do not measure the limits.
    #[arg(long)]
    no_ceilings: bool,
}

impl MeasureArgs {
    /// The same as a plan, for files that lie where `run` says.
    pub fn plan(&self, run: Run) -> Plan {
        Plan {
            run,
            repeats: self.repeats as usize,
            span: self.span,
            warm_up: self.warm_up,
            seed: self.seed,
            ceilings: !self.no_ceilings,
        }
    }
}

/// A span of time that is not nothing, as the command line has it.
///
/// # Errors
/// What is wrong with it.
pub fn span(text: &str) -> Result<Duration, String> {
    let span = forebay_cli::units::parse_duration(text)?;
    match span {
        Duration::ZERO => Err("nothing can be measured in no time".to_owned()),
        span if span > Duration::from_secs(3600) => Err("an hour at most".to_owned()),
        span => Ok(span),
    }
}
