//! Who does what a scenario says: a layer of Forebay, or a peer.

use std::time::Duration;

use anyhow::Result;

use crate::ceilings::Ceiling;
use crate::counters::{Cost, Watch, Watched};
use crate::outcome::Span;
use crate::pace::{Load, Paced};

/// One span to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Its number among this side's spans; warming up is number 0.
    pub number: u64,
    /// How long operations begin. Patterns measure a whole pass instead.
    pub span: Duration,
    /// Of places and arrivals: the same for all sides.
    pub seed: u64,
}

/// One side. Whatever it started ends with it.
pub trait Side {
    /// How reports call it.
    fn name(&self) -> &str;

    /// What it is, and in which version.
    fn version(&self) -> String;

    /// Makes what is read, and starts who answers.
    ///
    /// # Errors
    /// What could not be made or started.
    fn prepare(&mut self) -> Result<()>;

    /// Once before the first span: brings the data where it is to be when it is read, and the rest out of its first slowness.
    ///
    /// # Errors
    /// What failed.
    fn warm(&mut self, turn: &Turn) -> Result<()>;

    /// One span.
    ///
    /// # Errors
    /// What failed; also when something else than the scenario was measured.
    fn span(&mut self, turn: &Turn) -> Result<Span>;

    /// Ends in order.
    ///
    /// # Errors
    /// What did not end.
    fn clean(&mut self) -> Result<()>;

    /// How many processors it may keep busy, and how reports call them. None where it never sleeps: then it uses all of them
    /// whatever it gets done.
    fn processors(&self) -> Option<(&'static str, f64)> {
        let all = std::thread::available_parallelism().map_or(1, |n| n.get());
        Some(("all processors", all as f64))
    }

    /// Of the bytes that a span's readers got, those that a disk must have given: what several share counts once.
    fn device_bytes(&self, span: &Span) -> u64 {
        span.bytes
    }

    /// What a reader must know of what was measured. Asked for after the last span.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The limits that may bind it. Asked for after it was warmed.
    ///
    /// # Errors
    /// When one cannot be measured here.
    fn ceilings(&self) -> Result<Vec<Box<dyn Ceiling>>> {
        Ok(Vec::new())
    }
}

/// Runs a load while processes are watched, and tells of both.
///
/// # Errors
/// What the load said, or that a process is gone.
pub fn watched(
    processes: &[Watched],
    load: &Load,
    block_bytes: u64,
    run: impl FnOnce() -> Result<Paced>,
) -> Result<Span> {
    let watch = Watch::start(processes)?;
    let paced = run()?;
    let (costs, busy) = watch.stop()?;
    let bytes = paced.operations * block_bytes;
    Ok(span(&paced, load, bytes, costs, busy))
}

/// A span of a load that brought so many bytes.
pub fn span(paced: &Paced, load: &Load, bytes: u64, costs: Vec<Cost>, busy: Duration) -> Span {
    Span {
        operations: paced.operations,
        bytes,
        elapsed_s: paced.elapsed.as_secs_f64(),
        offered_per_s: load.rate,
        unfinished: paced.unfinished,
        first_byte_us: None,
        latency: paced.recorder.summary(load.begun()),
        costs,
        machine_busy_s: busy.as_secs_f64(),
    }
}
