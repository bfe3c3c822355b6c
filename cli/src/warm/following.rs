//! A job that someone waits for: progress, and an end by a signal.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::asking::Daemon;
use super::progress::line;
use super::report::{JobReport, JobRequest};
use crate::progress::Progress;

/// The first looks come sooner: small jobs are done at once.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs a job to its end, or to SIGINT's or SIGTERM's, which stop it.
///
/// # Errors
/// When the daemon does not answer, or ends.
pub async fn follow(daemon: &Daemon, request: &JobRequest) -> Result<JobReport> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let id = daemon.start(request).await?;
    let mut progress = Progress::start();
    let mut pause = LOOK_FIRST;
    let outcome = loop {
        match daemon.job(&id).await {
            Ok(report) if report.state.is_over() => break Ok(report),
            Ok(report) => {
                progress.show(report.bytes_done, report.bytes, |rate| line(&report, rate));
            }
            Err(error) => break Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = interrupt.recv() => break daemon.stop(&id).await,
            _ = terminate.recv() => break daemon.stop(&id).await,
        }
        pause = (pause * 2).min(LOOK_EVERY);
    };
    progress.end();
    outcome
}
