//! The yardstick for disks: fio, one job at a time, asked for JSON.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::recorder::{Begun, Latency};
use crate::turns::Measured;

/// What fio does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads at random places.
    RandomReads,
    /// Reads in order.
    Reads,
    /// Writes in order into a file that is made anew.
    Writes,
}

/// How long a job goes on.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// A span of time.
    Elapsed(Duration),
    /// So many bytes.
    Bytes(u64),
}

/// How fio asks for reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, past the page cache.
    Uring,
    /// NVMe commands by io_uring, to a namespace's character device, which is registered.
    NvmeCommands,
}

/// One fio job.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The file.
    pub file: &'a Path,
    /// How it is asked.
    pub engine: Engine,
    /// What is done.
    pub access: Access,
    /// Bytes of one operation.
    pub block_bytes: u64,
    /// Operations under way at a time.
    pub depth: usize,
    /// Where in the file: offset and length in bytes; all of it when none.
    pub extent: Option<(u64, u64)>,
    /// How long.
    pub until: Until,
    /// An fdatasync after so many bytes written; only at the end when none.
    pub sync_every_bytes: Option<u64>,
    /// Fixed buffers and a registered file. A FUSE file takes none.
    pub fixed: bool,
    /// Takes no times of single operations: less work for fio.
    pub lean: bool,
    /// Chooses the places.
    pub seed: u64,
}

/// fio's version.
///
/// # Errors
/// When there is none; says how to install it.
pub fn version() -> Result<String> {
    let output = Command::new("fio").arg("--version").output();
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => bail!(
            "this figure compares with fio, which is not here: install it (apt-get install fio, dnf install fio)"
        ),
    }
}

/// Runs a job.
///
/// # Errors
/// What fio said.
pub fn run(job: &Job<'_>) -> Result<Measured> {
    let report = report(job)?;
    measured(&report, job.access).context("fio's JSON is not as expected")
}

/// The same, with the times of single operations, from when each was handed to the kernel.
///
/// # Errors
/// What fio said.
pub fn run_timed(job: &Job<'_>) -> Result<(Measured, Option<Latency>)> {
    let report = report(job)?;
    let done = measured(&report, job.access).context("fio's JSON is not as expected")?;
    Ok((done, latency(&report, job.access)))
}

fn report(job: &Job<'_>) -> Result<Value> {
    let output = Command::new("fio")
        .args(arguments(job))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run fio")?;
    ensure!(
        output.status.success(),
        "fio on {}: {}\n{}",
        job.file.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    // Notes that fio prints come before the JSON.
    let start = output.stdout.iter().position(|byte| *byte == b'{');
    let json = &output.stdout[start.unwrap_or_default()..];
    serde_json::from_slice(json).context("fio printed no JSON")
}

fn arguments(job: &Job<'_>) -> Vec<String> {
    let access = match job.access {
        Access::RandomReads => "randread",
        Access::Reads => "read",
        Access::Writes => "write",
    };
    let mut arguments = vec![
        "--name=yardstick".to_owned(),
        format!("--filename={}", job.file.display()),
        format!("--rw={access}"),
        format!("--bs={}", job.block_bytes),
        format!("--iodepth={}", job.depth),
        "--thread".to_owned(),
        "--norandommap".to_owned(),
        "--randrepeat=0".to_owned(),
        format!("--randseed={}", job.seed.wrapping_add(1)),
        "--output-format=json".to_owned(),
        "--percentile_list=50:75:90:95:99:99.9:99.99".to_owned(),
    ];
    // A character device takes no O_DIRECT, and has no page cache.
    arguments.extend(match job.engine {
        Engine::Uring => ["--ioengine=io_uring".to_owned(), "--direct=1".to_owned()],
        Engine::NvmeCommands => [
            "--ioengine=io_uring_cmd".to_owned(),
            "--cmd_type=nvme".to_owned(),
        ],
    });
    if job.fixed {
        arguments.push("--fixedbufs=1".to_owned());
    }
    if job.fixed || job.engine == Engine::NvmeCommands {
        arguments.push("--registerfiles=1".to_owned());
    }
    if job.lean {
        arguments.push("--gtod_reduce=1".to_owned());
    }
    if let Some((offset_bytes, len_bytes)) = job.extent {
        arguments.push(format!("--offset={offset_bytes}"));
        arguments.push(format!("--size={len_bytes}"));
    }
    match job.until {
        Until::Elapsed(span) => {
            arguments.push("--time_based=1".to_owned());
            arguments.push(format!("--runtime={}ms", span.as_millis()));
        }
        Until::Bytes(bytes) => arguments.push(format!("--io_size={bytes}")),
    }
    if job.access == Access::Writes {
        arguments.extend(["--fallocate=none".to_owned(), "--end_fsync=1".to_owned()]);
        if let Some(bytes) = job.sync_every_bytes {
            arguments.push(format!("--fdatasync={}", (bytes / job.block_bytes).max(1)));
        }
    }
    arguments
}

fn side(report: &Value, access: Access) -> Option<&Value> {
    report.pointer("/jobs/0")?.get(match access {
        Access::Writes => "write",
        _ => "read",
    })
}

fn latency(report: &Value, access: Access) -> Option<Latency> {
    let told = side(report, access)?.get("clat_ns")?;
    let us = |name: &str| Some(told.get(name)?.as_f64()? / 1e3);
    let count = told.get("N")?.as_u64()?;
    let listed = told.get("percentile").and_then(Value::as_object);
    let named = listed
        .into_iter()
        .flatten()
        .filter_map(|(name, ns)| Some((name.parse().ok()?, ns.as_f64()? / 1e3)));
    let told = (us("min")?, us("mean")?, us("max")?);
    Latency::told(Begun::Submission, count, told, named.collect())
}

fn measured(report: &Value, access: Access) -> Option<Measured> {
    let job = report.pointer("/jobs/0")?;
    let side = side(report, access)?;
    // fio gives shares of the job's own run time, not of its start.
    let run_ms = job.get("job_runtime")?.as_f64()?;
    let percent = job.get("usr_cpu")?.as_f64()? + job.get("sys_cpu")?.as_f64()?;
    // A final fsync is part of what writing takes; `runtime` of the writes leaves it out.
    let elapsed_ms = match access {
        Access::Writes => run_ms.max(side.get("runtime")?.as_f64()?),
        _ => side.get("runtime")?.as_f64()?,
    };
    let p50_ns = side
        .pointer("/clat_ns/percentile/50.000000")
        .and_then(Value::as_f64);
    Some(Measured {
        ios: side.get("total_ios")?.as_u64()?,
        bytes: side.get("io_bytes")?.as_u64()?,
        elapsed: Duration::from_secs_f64(elapsed_ms / 1e3),
        cpu: Duration::from_secs_f64(run_ms / 1e3 * percent / 100.0),
        p50_us: p50_ns.map(|ns| ns / 1e3),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_fio_3_33_printed() {
        let report = serde_json::from_str(include_str!("peers/captured/fio.json"));
        let report: Value = report.expect("it is JSON");
        let done = measured(&report, Access::RandomReads).expect("all is there");
        assert_eq!((done.ios, done.bytes), (25_718, 25_718 * 4096));
        let told = latency(&report, Access::RandomReads).expect("times were taken");
        assert_eq!(
            (told.count, told.at(50.0), told.at(99.9)),
            (25_718, Some(92.672), Some(7634.944))
        );
        assert_eq!(told.at(99.99), None, "fewer than ten are beyond it");
        assert!(told.min_us < told.mean_us && told.mean_us < told.max_us);
        assert!(latency(&report, Access::Writes).is_none_or(|none| none.count == 0));
    }

    #[test]
    fn reads_what_fio_prints() {
        let report = serde_json::json!({"jobs": [{
            "job_runtime": 2000, "usr_cpu": 10.0, "sys_cpu": 40.0,
            "read": {"total_ios": 1000, "io_bytes": 4_096_000, "runtime": 1990,
                     "clat_ns": {"percentile": {"50.000000": 250_000}}},
            "write": {"total_ios": 7, "io_bytes": 7, "runtime": 7},
        }]});
        let done = measured(&report, Access::RandomReads).expect("all is there");
        assert_eq!((done.ios, done.bytes), (1000, 4_096_000));
        assert_eq!(done.cpu, Duration::from_secs(1));
        assert_eq!(done.elapsed, Duration::from_millis(1990));
        assert_eq!(done.p50_us, Some(250.0));
        let done = measured(&report, Access::Writes).expect("all is there");
        assert_eq!(done.elapsed, Duration::from_secs(2));
        assert!(measured(&serde_json::json!({"jobs": []}), Access::Reads).is_none());
    }
}
