//! The yardstick for SPDK: its own `spdk_nvme_perf`, found on the path or named by `FOREBAY_SPDK_PERF`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::interrupt;
use crate::turns::Measured;

/// Names the program.
const VARIABLE: &str = "FOREBAY_SPDK_PERF";
/// What it is called where it is installed.
const PROGRAM: &str = "spdk_nvme_perf";

/// Where it is.
///
/// # Errors
/// When it is not found; the message says what to do.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Ok(path.into());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .map(|folder| folder.join(PROGRAM))
        .find(|path| path.is_file());
    found.with_context(|| {
        format!("{PROGRAM}, SPDK's own tool, is the yardstick: put it on the path, or name it in {VARIABLE}")
    })
}

/// Reads at random.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Where.
    pub transport_id: &'a str,
    /// Bytes of a read.
    pub block_bytes: usize,
    /// Reads under way.
    pub depth: usize,
    /// How long.
    pub span: Duration,
    /// Its only processor, which it keeps busy.
    pub cpu: usize,
}

/// Runs it.
///
/// # Errors
/// When it fails, or says something else than expected.
pub fn run(job: &Job<'_>) -> Result<Measured> {
    let seconds = job.span.as_secs().max(1);
    let done = Command::new(program()?)
        .args(["-q", &job.depth.to_string()])
        .args(["-o", &job.block_bytes.to_string()])
        .args(["-w", "randread", "-t", &seconds.to_string()])
        .args(["-c", &format!("{:#x}", 1u128 << job.cpu)])
        .args(["-r", job.transport_id])
        .args(["--no-huge", "-s", "256"])
        .stdin(Stdio::null())
        .output()
        .context("cannot run spdk_nvme_perf")?;
    interrupt::check()?;
    let said = String::from_utf8_lossy(&done.stdout);
    if !done.status.success() {
        let errors = String::from_utf8_lossy(&done.stderr);
        let lines: Vec<&str> = errors.lines().rev().take(5).collect();
        bail!("spdk_nvme_perf ({}): {}", done.status, lines.join("; "));
    }
    measured(&said, job.block_bytes, seconds)
}

/// Reads its table: `Total : IOPS MiB/s average min max`, the last three in microseconds.
fn measured(said: &str, block_bytes: usize, seconds: u64) -> Result<Measured> {
    let total = said
        .lines()
        .rev()
        .find_map(|line| line.trim_start().strip_prefix("Total"))
        .context("spdk_nvme_perf tells no total")?;
    let numbers = total.rsplit(':').next().unwrap_or_default();
    let iops = numbers.split_whitespace().next();
    let iops: f64 = iops
        .and_then(|iops| iops.parse().ok())
        .with_context(|| format!("spdk_nvme_perf's total is garbled: {total}"))?;
    ensure!(iops > 0.0, "spdk_nvme_perf read nothing");
    let elapsed = Duration::from_secs(seconds);
    let ios = (iops * elapsed.as_secs_f64()) as u64;
    Ok(Measured {
        ios,
        bytes: ios * block_bytes as u64,
        elapsed,
        // It polls for as long as it lives.
        cpu: elapsed,
        p50_us: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // As 24.01 prints it.
    const SAID: &str = "\
Initializing NVMe Controllers
Attached to NVMe over Fabrics controller at 127.0.0.1:4420: nqn.2016-06.io.spdk:one
Associating TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.spdk:one) NSID 1 with lcore 1
Initialization complete. Launching workers.
========================================================
                                                                                                             Latency(us)
Device Information                                                           :       IOPS      MiB/s    Average        min        max
TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.spdk:one) NSID 1 from core  1: 152340.50     595.08     209.99      90.15    4085.55
========================================================
Total                                                                        :  152340.50     595.08     209.99      90.15    4085.55
";

    #[test]
    fn its_table_is_read() {
        let measured = measured(SAID, 4096, 2).expect("it is its table");
        assert_eq!(measured.ios, 304_681);
        assert_eq!(measured.bytes, 304_681 * 4096);
        assert!((measured.iops() - 152_340.5).abs() < 1.0);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for wrong in ["", "Total : none", "Total : 0.0 0.0"] {
            assert!(super::measured(wrong, 4096, 2).is_err(), "{wrong}");
        }
    }
}
