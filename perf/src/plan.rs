//! How much of a scenario is measured, and where.

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
