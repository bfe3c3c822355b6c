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
