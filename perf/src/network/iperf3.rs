//! The yardstick for a stream: iperf3, one connection, the server sends.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{Killed, free_port};
use crate::turns::Measured;

/// Its version.
///
/// # Errors
/// When there is none; says how to install it.
pub fn version() -> Result<String> {
    let output = Command::new("iperf3").arg("--version").output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(text.lines().next().unwrap_or_default().to_owned())
        }
        _ => bail!(
            "this figure compares with iperf3, which is not here: install it (apt-get install iperf3, dnf install iperf3)"
        ),
    }
}

/// One stream for a while, in writes of `len_bytes`.
///
/// # Errors
/// What iperf3 said.
pub fn run(len_bytes: usize, span: Duration) -> Result<Measured> {
    let port = free_port()?.to_string();
    let server = Command::new("iperf3")
        .args(["-s", "-1", "-B", "127.0.0.1", "-p", &port])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run iperf3")?;
    let _server = Killed(server);
    let seconds = span.as_secs().max(1).to_string();
    let len = len_bytes.to_string();
    let arguments = [
        "-c",
        "127.0.0.1",
        "-p",
        &port,
        "-R",
        "-J",
        "-t",
        &seconds,
        "-l",
        &len,
    ];
    for _ in 0..50 {
        let output = Command::new("iperf3")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot run iperf3")?;
        let report: Value =
            serde_json::from_slice(&output.stdout).context("iperf3 printed no JSON")?;
        // Until its server listens. With -J it may end well all the same.
        if !output.status.success() || refused(&report) {
            thread::sleep(Duration::from_millis(100));
            continue;
        }
        let measured = measured(&report, len_bytes).context("iperf3's JSON is not as expected")?;
        ensure!(measured.bytes > 0, "iperf3 moved nothing");
        return Ok(measured);
    }
    bail!("iperf3 finds its own server at port {port} not within 5 s")
}

fn refused(report: &Value) -> bool {
    report.get("error").is_some()
}

fn measured(report: &Value, len_bytes: usize) -> Option<Measured> {
    let received = report.pointer("/end/sum_received")?;
    let elapsed_s = received.get("seconds")?.as_f64()?;
    let cpu = report.pointer("/end/cpu_utilization_percent")?;
    let percent = cpu.get("host_total")?.as_f64()? + cpu.get("remote_total")?.as_f64()?;
    let bytes = received.get("bytes")?.as_u64()?;
    Some(Measured {
        ios: bytes / len_bytes as u64,
        bytes,
        elapsed: Duration::from_secs_f64(elapsed_s),
        cpu: Duration::from_secs_f64(elapsed_s * percent / 100.0),
        p50_us: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_iperf3_3_12_printed() {
        let report = serde_json::from_str(include_str!("../peers/captured/iperf3.json"));
        let report: Value = report.expect("it is JSON");
        let done = measured(&report, 1 << 20).expect("all is there");
        assert_eq!((done.ios, done.bytes), (1_328, 1_393_160_949));
        assert_eq!(done.elapsed.as_millis(), 1_006);
        assert!((400..430).contains(&done.cpu.as_millis()), "{:?}", done.cpu);
    }

    /// Printed with the exit status 0.
    #[test]
    fn a_server_that_does_not_listen_yet_is_seen() {
        let text = r#"{"start": {"connected": []}, "intervals": [], "end": {},
            "error": "unable to connect to server: Connection refused"}"#;
        let report: Value = serde_json::from_str(text).expect("it is JSON");
        assert!(refused(&report) && measured(&report, 1).is_none());
        assert!(!refused(&serde_json::json!({"end": {}})));
    }

    #[test]
    fn reads_what_iperf3_prints() {
        let report = serde_json::json!({"end": {
            "sum_received": {"seconds": 2.0, "bytes": 4_194_304},
            "cpu_utilization_percent": {"host_total": 30.0, "remote_total": 20.0},
        }});
        let done = measured(&report, 1 << 20).expect("all is there");
        assert_eq!((done.ios, done.bytes), (4, 4 << 20));
        assert_eq!(done.elapsed, Duration::from_secs(2));
        assert_eq!(done.cpu, Duration::from_secs(1));
        assert!(measured(&serde_json::json!({"end": {}}), 1).is_none());
    }
}
