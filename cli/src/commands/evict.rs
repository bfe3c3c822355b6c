//! `forebay evict`: drops what is cached of files, never data.

use anyhow::{Result, bail};
use serde::Serialize;

use super::jobs::{Failed, runtime, sorted};
use crate::args::PathArgs;
use crate::output::{json, print};
use crate::units::Bytes;
use crate::warm::following::follow;
use crate::warm::report::{Failure, JobRequest, JobState, PARALLEL_DEFAULT, Work};

/// What it came to.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    files: u64,
    dropped_bytes: u64,
    failed: u64,
    failures: Vec<Failure>,
}

/// Runs the command.
///
/// # Errors
/// When a path is not there, or a member did not answer.
pub fn run(args: &PathArgs) -> Result<()> {
    let sorted = sorted(args)?;
    let mut failed = Failed::new(sorted.failures);
    let mut outcome = Outcome::default();
    let mut stopped = false;
    let runtime = runtime()?;
    for place in sorted.places {
        let request = JobRequest {
            work: Work::Evict,
            paths: place.paths,
            parallel: PARALLEL_DEFAULT,
            attended: true,
        };
        let report = runtime.block_on(follow(&place.daemon, &request))?;
        outcome.files += report.files_done;
        outcome.dropped_bytes += report.dropped_bytes;
        failed.add(&report);
        stopped = report.state == JobState::Stopped;
        if stopped {
            break;
        }
    }
    let count = failed.count;
    if args.json {
        outcome.failed = count;
        outcome.failures = std::mem::take(&mut failed.named);
        print(&json(&outcome, true)?)?;
    } else {
        print(&format!(
            "{} dropped of {} files\n",
            Bytes(outcome.dropped_bytes),
            outcome.files
        ))?;
        failed.print();
    }
    match (stopped, count) {
        (true, _) => bail!("stopped before the end"),
        (false, 0) => Ok(()),
        (false, count) => bail!("{count} paths failed"),
    }
}
