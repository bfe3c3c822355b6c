//! The yardstick for SPDK: its own `spdk_nvme_perf`, found on the path or named by `FOREBAY_SPDK_PERF`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::interrupt;
use crate::recorder::{Begun, Latency};
use crate::turns::Measured;

/// Names the program.
pub const VARIABLE: &str = "FOREBAY_SPDK_PERF";
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

/// What a PCI device's transport id says first.
const PCI: &str = "trtype:PCIe";
/// Not measured, before what is.
const WARM_UP_S: u64 = 1;
/// Memory of its own, in MiB: in huge pages for a PCI device, which reaches no other.
const MEMORY_MIB: u32 = 256;

/// Reads of all of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Where.
    pub transport_id: &'a str,
    /// At random places, or in order.
    pub random: bool,
    /// Bytes of a read.
    pub block_bytes: usize,
    /// Reads under way.
    pub depth: usize,
    /// How long.
    pub span: Duration,
    /// Its only processor, which it keeps busy.
    pub cpu: usize,
}

impl Job<'_> {
    fn arguments(&self, timed: bool) -> Vec<String> {
        let access = if self.random { "randread" } else { "read" };
        let mut words = vec![
            format!("-q {}", self.depth),
            format!("-o {}", self.block_bytes),
            format!("-w {access}"),
            format!("-t {}", self.seconds()),
            format!("-a {WARM_UP_S}"),
            format!("-c {:#x}", 1u128 << self.cpu),
            format!("-s {MEMORY_MIB}"),
        ];
        if timed {
            // Of single reads, in a summary; that takes it some time.
            words.push("-L".to_owned());
        }
        if !self.transport_id.starts_with(PCI) {
            words.push("--no-huge".to_owned());
        }
        let words = words.iter().flat_map(|words| words.split(' '));
        words
            .map(str::to_owned)
            .chain(["-r".to_owned(), self.transport_id.to_owned()])
            .collect()
    }

    /// It counts in whole seconds.
    fn seconds(&self) -> u64 {
        self.span.as_secs().max(1)
    }
}

/// How it calls the PCI device at an address.
pub fn pci(address: &str) -> String {
    format!("{PCI} traddr:{address}")
}

/// Runs it.
///
/// # Errors
/// When it fails, or says something else than expected.
pub fn run(job: &Job<'_>) -> Result<Measured> {
    Ok(run_as(job, false)?.0)
}

/// The same, with the times of single reads, from when each was handed to SPDK.
///
/// # Errors
/// As [`run`].
pub fn run_timed(job: &Job<'_>) -> Result<(Measured, Option<Latency>)> {
    run_as(job, true)
}

fn run_as(job: &Job<'_>, timed: bool) -> Result<(Measured, Option<Latency>)> {
    let done = Command::new(program()?)
        .args(job.arguments(timed))
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
    let mut done = measured(&said, job.block_bytes, job.seconds())?;
    let latency = latency(&said, done.ios);
    done.p50_us = latency.as_ref().and_then(|latency| {
        let half = latency
            .percentiles
            .iter()
            .find(|one| one.percentile == 50.0);
        half.map(|one| one.us)
    });
    Ok((done, latency))
}

/// Reads its summary of times: lines `99.00000% :    25.600us`, and the last three numbers of its total.
fn latency(said: &str, count: u64) -> Option<Latency> {
    let percentiles = said.lines().filter_map(|line| {
        let (percent, us) = line.split_once("% :")?;
        let us = us.trim().strip_suffix("us")?;
        Some((percent.trim().parse().ok()?, us.parse().ok()?))
    });
    let total = said.lines().rev().find(|line| line.starts_with("Total"))?;
    let mut last = total.split_whitespace().rev().map(str::parse::<f64>);
    let (max, min, mean) = (last.next()?.ok()?, last.next()?.ok()?, last.next()?.ok()?);
    Latency::told(
        Begun::Submission,
        count,
        (min, mean, max),
        percentiles.collect(),
    )
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

    // As 24.01 prints it, with fewer of its percentiles.
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

Summary latency data for TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.spdk:one) NSID 1 from core  1:
=================================================================================
  1.00000% :   140.800us
 50.00000% :   207.238us
 99.00000% :   290.304us
 99.99999% :  4085.760us
";

    #[test]
    fn its_table_is_read() {
        let measured = measured(SAID, 4096, 2).expect("it is its table");
        assert_eq!(measured.ios, 304_681);
        assert_eq!(measured.bytes, 304_681 * 4096);
        assert!((measured.iops() - 152_340.5).abs() < 1.0);
        let latency = latency(SAID, measured.ios).expect("it tells of times");
        assert_eq!((latency.min_us, latency.max_us), (90.15, 4085.55));
        let told: Vec<(f64, f64)> = latency
            .percentiles
            .iter()
            .map(|one| (one.percentile, one.us))
            .collect();
        // Ten reads must lie beyond a percentile.
        assert_eq!(told, [(1.0, 140.8), (50.0, 207.238), (99.0, 290.304)]);
    }

    #[test]
    fn a_pci_device_gets_huge_pages_and_others_none() {
        let pci = super::pci("0000:5e:00.0");
        let job = |transport_id| Job {
            transport_id,
            random: true,
            block_bytes: 4096,
            depth: 32,
            span: Duration::from_secs(3),
            cpu: 1,
        };
        let of_pci = job(&pci).arguments(false);
        assert!(!of_pci.contains(&"--no-huge".to_owned()), "{of_pci:?}");
        assert_eq!(of_pci.last(), Some(&pci));
        let of_tcp = job("trtype:TCP traddr:127.0.0.1").arguments(true);
        assert!(of_tcp.contains(&"--no-huge".to_owned()), "{of_tcp:?}");
        assert!(
            of_tcp.windows(2).any(|two| two == ["-c", "0x2"]),
            "{of_tcp:?}"
        );
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for wrong in ["", "Total : none", "Total : 0.0 0.0"] {
            assert!(super::measured(wrong, 4096, 2).is_err(), "{wrong}");
        }
    }
}
