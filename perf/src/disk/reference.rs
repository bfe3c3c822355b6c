//! The yardstick for misses: the policies of libcachesim, in a Python of their own.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::traces::Trace;

/// Installs it; prints the Python that has it.
const INSTALLER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ci/libcachesim");
/// What runs in that Python.
const PROGRAM: &str = include_str!("reference.py");
/// How the installer ends when there is nothing to be had.
const NO_DOWNLOAD: i32 = 75;

/// A Python with libcachesim.
#[derive(Debug)]
pub struct Reference {
    python: PathBuf,
}

impl Reference {
    /// Installs libcachesim under `target/` where it is not yet.
    ///
    /// # Errors
    /// When it cannot be installed: then a figure that needs it is not measured.
    pub fn new() -> Result<Self> {
        let output = Command::new(INSTALLER)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {INSTALLER}"))?;
        if output.status.code() == Some(NO_DOWNLOAD) {
            bail!(
                "SKIPPED: libcachesim could not be downloaded (no network, or no wheel for this machine)"
            );
        }
        ensure!(output.status.success(), "ci/libcachesim: {}", output.status);
        Ok(Self {
            python: String::from_utf8_lossy(&output.stdout).trim().into(),
        })
    }

    /// Misses that count, of `policy` (as libcachesim names it) with room for `capacity` blocks.
    ///
    /// # Errors
    /// What Python said.
    pub fn misses(&self, trace: &Trace, file: &Path, policy: &str, capacity: u64) -> Result<u64> {
        let output = Command::new(&self.python)
            .args(["-c", PROGRAM])
            .arg(file)
            .args([policy.to_owned(), capacity.to_string()])
            .args([trace.requests.len(), trace.counted_from].map(|number| number.to_string()))
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {}", self.python.display()))?;
        ensure!(
            output.status.success(),
            "libcachesim's {policy}: {}",
            output.status
        );
        let printed = String::from_utf8_lossy(&output.stdout);
        printed
            .trim()
            .parse()
            .with_context(|| format!("libcachesim's {policy} printed {printed}"))
    }
}

/// Writes `trace` as libcachesim's oracleGeneral: for each request a time, a number, a size (1) and when it is asked
/// for next (unknown).
///
/// # Errors
/// What the file system says.
pub fn write(trace: &Trace, path: &Path) -> Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    for (time, block) in trace.requests.iter().enumerate() {
        file.write_all(&(time as u32 / 1_000).to_le_bytes())?;
        file.write_all(&u64::from(*block).to_le_bytes())?;
        file.write_all(&1u32.to_le_bytes())?;
        file.write_all(&(-2i64).to_le_bytes())?;
    }
    Ok(file.flush()?)
}
