//! `forebay warmup` and `forebay check` of the whole mount.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Stop;
use crate::harness::forebay_binary;

/// Runs `forebay warmup` with its progress shown; it is stopped when the demo is.
///
/// # Errors
/// When not every byte is cached at the end.
pub(super) fn up(point: &Path, stop: &Stop) -> Result<()> {
    let mut child = Command::new(forebay_binary()?)
        .arg("warmup")
        .arg(point)
        .stdin(Stdio::null())
        .spawn()?;
    let status = wait(&mut child, stop);
    if status.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let status = status?;
    ensure!(status.success(), "forebay warmup: {status}");
    Ok(())
}

fn wait(child: &mut Child, stop: &Stop) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            stop.check()?;
            return Ok(status);
        }
        stop.check()?;
        thread::sleep(Duration::from_millis(50));
    }
}

/// What `forebay check` says in sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) files: u64,
    pub(super) full: u64,
    pub(super) bytes: u64,
    pub(super) cached_bytes: u64,
}

/// Runs `forebay check`.
///
/// # Errors
/// When it fails otherwise than by finding less than everything.
pub(super) fn check(point: &Path) -> Result<Checked> {
    let output = Command::new(forebay_binary()?)
        .args(["check", "--json"])
        .arg(point)
        .stderr(Stdio::piped())
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("forebay check: {}: {told}", output.status))?;
    let summary = &report["summary"];
    let number = |key: &str| {
        let number = summary[key].as_u64();
        number.with_context(|| format!("forebay check --json has no {key}"))
    };
    ensure!(number("failed")? == 0, "forebay check: {summary}");
    Ok(Checked {
        files: number("files")?,
        full: number("full")?,
        bytes: number("bytes")?,
        cached_bytes: number("cached_bytes")?,
    })
}
