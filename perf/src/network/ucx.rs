//! The yardstick for messages: ucx_perftest over TCP on the loopback interface.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Killed, free_port};
use crate::process;
use crate::turns::Measured;

/// Which of its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Messages one way, each sent without being asked for.
    Messages,
    /// Each is asked for.
    Gets,
}

/// Its version.
///
/// # Errors
/// When there is none; says how to install it.
pub fn version() -> Result<String> {
    let output = Command::new("ucx_info").arg("-v").output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text
                .lines()
                .find(|line| line.to_lowercase().contains("version"));
            let words = line.unwrap_or_default().trim_start_matches('#').trim();
            Ok(format!("UCX, {words}"))
        }
        _ => bail!(
            "this figure compares with ucx_perftest, which is not here: install it (apt-get install ucx-utils, dnf install ucx)"
        ),
    }
}

fn perftest(port: &str) -> Command {
    let mut command = Command::new("ucx_perftest");
    command
        .env("UCX_TLS", "tcp")
        .env("UCX_NET_DEVICES", "lo")
        .args(["-p", port])
        .stdin(Stdio::null());
    command
}

/// So many messages of `len_bytes`, `depth` under way.
///
/// # Errors
/// What ucx_perftest said.
pub fn run(test: Test, len_bytes: usize, depth: usize, count: u64) -> Result<Measured> {
    let port = free_port()?.to_string();
    let server = perftest(&port)
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run ucx_perftest")?;
    let server = Killed(server);
    thread::sleep(Duration::from_millis(500));
    let name = match test {
        Test::Messages => "tag_bw",
        Test::Gets => "ucp_get",
    };
    let started = Instant::now();
    let child = perftest(&port)
        .args(["127.0.0.1", "-t", name, "-f", "-w", "1000"])
        .args(["-s", &len_bytes.to_string()])
        .args(["-O", &depth.to_string()])
        .args(["-n", &count.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run ucx_perftest")?;
    let client = child.id();
    // Its processor time is looked at until it ends: the kernel tells of children only all at once.
    let reader = thread::spawn(move || child.wait_with_output());
    let mut cpu = Duration::ZERO;
    while !reader.is_finished() {
        let both = process::processor_time(client)
            .and_then(|own| Ok(own + process::processor_time(server.0.id())?));
        cpu = both.map_or(cpu, |both| both.max(cpu));
        thread::sleep(Duration::from_millis(10));
        if started.elapsed() > Duration::from_secs(120) {
            bail!("ucx_perftest does not end");
        }
    }
    let output = reader
        .join()
        .map_err(|_| anyhow::anyhow!("reading its output panicked"))??;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = rate(&text).with_context(|| format!("not what ucx_perftest prints: {text}"))?;
    Ok(Measured {
        ios: count,
        bytes: count * len_bytes as u64,
        elapsed: Duration::from_secs_f64(count as f64 / rate),
        cpu,
        p50_us: None,
    })
}

/// Messages per second over all: the last number of the line with the results.
fn rate(text: &str) -> Option<f64> {
    let line = text.lines().rev().find(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() >= 8 && words.iter().all(|word| word.parse::<f64>().is_ok())
    })?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        assert_eq!(
            rate(include_str!("../peers/captured/ucx.txt")),
            Some(4990.0)
        );
        let text = "+----+\n|   Test  | x |\n      300000      1.384    24.088    25.834      162.16     151.20       41514       38708\n";
        assert_eq!(rate(text), Some(38708.0));
        assert_eq!(rate("nothing"), None);
    }
}
