//! The yardstick for RDMA: perftest, one queue pair, between two processes on one port.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::port::Port;
use super::{Killed, free_port};
use crate::turns::Measured;
use crate::{interrupt, process};

/// Messages of one measurement of latencies.
const ROUND_TRIPS: u32 = 2_000;
/// The rates of so much at the beginning and the end are left out.
const MARGIN_S: u64 = 1;
/// A run that takes longer than its span by so much hangs: on Linux 6.1's SoftRoCE that happens.
const GRACE: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_millis(20);

/// Perftest's programs, and the port that they measure.
#[derive(Clone, Debug)]
pub struct Perftest {
    /// A folder with `usr/bin` and `usr/lib`; none: they are installed.
    pub tree: Option<PathBuf>,
    /// The port.
    pub port: Port,
    /// The processors of its server and of its client.
    pub cpus: [usize; 2],
}

/// One measurement of bandwidth, as told.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bandwidth {
    mib_per_second: f64,
    messages_per_second: f64,
}

impl Perftest {
    /// Its version.
    ///
    /// # Errors
    /// When there is none; says how to install it.
    pub fn version(&self) -> Result<String> {
        let output = self
            .program("ib_write_bw", self.cpus[1])
            .arg("--version")
            .output();
        // It says so, and ends with 1.
        let text = output.map_or(String::new(), |output| {
            String::from_utf8_lossy(&output.stdout).into_owned()
        });
        match text.trim().strip_prefix("Version:") {
            Some(version) => Ok(format!("perftest {}", version.trim())),
            None => bail!(
                "this figure compares with perftest, which is not here: install it (apt-get install perftest, dnf install perftest)"
            ),
        }
    }

    fn program(&self, name: &str, cpu: usize) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string()]);
        match &self.tree {
            None => command.arg(name),
            Some(tree) => command
                .arg(tree.join("usr/bin").join(name))
                .env("LD_LIBRARY_PATH", tree.join("usr/lib/x86_64-linux-gnu")),
        };
        command
    }

    /// Messages one way for `span`, `depth` under way.
    ///
    /// # Errors
    /// What the program said, when it failed or hung twice.
    pub fn bandwidth(
        &self,
        name: &str,
        len_bytes: usize,
        depth: usize,
        span: Duration,
    ) -> Result<Measured> {
        let seconds = (span.as_secs().max(1) + 2 * MARGIN_S).to_string();
        let (len, depth, margin) = (
            len_bytes.to_string(),
            depth.to_string(),
            MARGIN_S.to_string(),
        );
        // A completion for each message: with one for every 32, its default for short ones, so few of them are under way
        // that at this depth it waits for itself.
        let arguments = [
            "-s", &len, "-t", &depth, "-D", &seconds, "-f", &margin, "-Q", "1",
        ];
        let cpu = process::children_time()?;
        let told = self.twice(name, &arguments, span, |text| {
            let told = bandwidth(text)?;
            // What it says when its clock puzzles it.
            (told.messages_per_second > 0.0).then_some(told)
        })?;
        // Its rate is of the span without its margins; its processor time is of all.
        let whole = (span + Duration::from_secs(2 * MARGIN_S)).as_secs_f64();
        let cpu = (process::children_time()? - cpu).mul_f64(span.as_secs_f64() / whole);
        // The shorter the messages, the coarser are the MiB that it tells; the longer, the coarser their number.
        let per_second = match len_bytes {
            0..=16_384 => told.messages_per_second,
            _ => told.mib_per_second * f64::from(1 << 20) / len_bytes as f64,
        };
        let ios = (per_second * span.as_secs_f64()).ceil();
        Ok(Measured {
            ios: ios as u64,
            bytes: ios as u64 * len_bytes as u64,
            elapsed: Duration::from_secs_f64(ios / per_second),
            cpu,
            p50_us: None,
        })
    }

    /// The typical time of a message one way, in microseconds.
    ///
    /// # Errors
    /// What the program said, when it failed or hung twice.
    pub fn latency_us(&self, name: &str, len_bytes: usize) -> Result<f64> {
        let (len, count) = (len_bytes.to_string(), ROUND_TRIPS.to_string());
        let arguments = ["-s", &len, "-n", &count];
        let typical = self.twice(name, &arguments, Duration::ZERO, typical_us)?;
        ensure!(typical > 0.0, "{name} tells of no time");
        Ok(typical)
    }

    /// Runs a program, once more if that fails.
    fn twice<T>(
        &self,
        name: &str,
        arguments: &[&str],
        span: Duration,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let limit = span + GRACE;
        match self.once(name, arguments, limit, &read) {
            Err(error) if !interrupt::came() => {
                println!("  {name}: once more, since {error:#}");
                self.once(name, arguments, limit, &read)
            }
            outcome => outcome,
        }
    }

    fn once<T>(
        &self,
        name: &str,
        arguments: &[&str],
        limit: Duration,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + limit;
        let meeting = free_port()?.to_string();
        let run = |cpu| {
            let mut command = self.program(name, cpu);
            command
                .args(["-d", &self.port.device, "-F", "-p", &meeting])
                .args(["-i", &self.port.number.to_string()])
                .args(["-x", &self.port.gid_index.to_string()])
                .args(arguments)
                .stdin(Stdio::null())
                .stderr(Stdio::null());
            command
        };
        let server = run(self.cpus[0]).stdout(Stdio::null()).spawn();
        let mut server = Killed(server.with_context(|| format!("cannot run {name}"))?);
        loop {
            thread::sleep(Duration::from_millis(300));
            let mut client = run(self.cpus[1]);
            let client = client.arg(self.port.ip.to_string()).stdout(Stdio::piped());
            let mut client = Killed(client.spawn()?);
            let text = output(&mut client.0, end).with_context(|| format!("{name} hangs"))?;
            if client.0.wait()?.success() {
                // It ends with its client, and then its processor time is counted.
                while server.0.try_wait()?.is_none() && Instant::now() < end {
                    thread::sleep(LOOK);
                }
                return read(&text).with_context(|| format!("{name} says: {text}"));
            }
            // Until its server listens.
            ensure!(
                Instant::now() < end && server.0.try_wait()?.is_none(),
                "{name} failed: {text}"
            );
        }
    }
}

/// What a child prints until it ends.
fn output(child: &mut Child, end: Instant) -> Result<String> {
    let mut stdout = child.stdout.take().context("no output")?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        let _ = stdout.read_to_string(&mut text);
        text
    });
    while child.try_wait()?.is_none() {
        interrupt::check()?;
        ensure!(Instant::now() < end, "it did not end in time");
        thread::sleep(LOOK);
    }
    reader
        .join()
        .map_err(|_| anyhow::anyhow!("reading its output panicked"))
}

/// The numbers of the line behind the heads of the columns.
fn numbers(text: &str) -> Option<Vec<f64>> {
    let mut lines = text.lines();
    lines.find(|line| line.trim_start().starts_with("#bytes"))?;
    let line = lines.next()?;
    line.split_whitespace()
        .map(|word| word.parse().ok())
        .collect()
}

fn bandwidth(text: &str) -> Option<Bandwidth> {
    match numbers(text)?[..] {
        [_, _, _, mib_per_second, millions_per_second] => Some(Bandwidth {
            mib_per_second,
            messages_per_second: millions_per_second * 1e6,
        }),
        _ => None,
    }
}

fn typical_us(text: &str) -> Option<f64> {
    match numbers(text)?[..] {
        [_, _, _, _, typical, _, _, _, _] => Some(typical),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 CQ Moderation   : 1
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 remote address: LID 0000 QPN 0x0019 PSN 0x980a36 RKey 0x000bb9 VAddr 0x005626c5024000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:09:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1312             0.00               41.06  \t\t   0.000657
---------------------------------------------------------------------------------------
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 80      2000          16.39          34266.80      24.70    \t       2192.70     \t3641.97\t\t17089.21 \t\t28929.56
---------------------------------------------------------------------------------------
";

    /// A server that ends with its client, and a client that finds it at the second try, or never ends.
    const FAKE: &str = r#"#!/bin/sh
here=$(dirname "$0")
for last; do :; done
if [ "$last" != 127.0.0.1 ]; then
    until [ -e "$here/over" ]; do sleep 0.05; done
elif [ -e "$here/hangs" ]; then
    exec sleep 60
elif [ -e "$here/asked" ]; then
    cat "$here/text" && touch "$here/over"
else
    touch "$here/asked" && exit 1
fi
"#;

    fn fake() -> Result<(tempfile::TempDir, Perftest)> {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir()?;
        let bin = dir.path().join("usr/bin");
        std::fs::create_dir_all(&bin)?;
        std::fs::write(bin.join("ib_fake"), FAKE)?;
        std::fs::write(bin.join("text"), BANDWIDTH)?;
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join("ib_fake"), runs)?;
        let port = Port {
            device: "rxe0".into(),
            number: 1,
            gid_index: 1,
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
        };
        let [one, _] = crate::cpus::two().unwrap_or([0, 0]);
        let perftest = Perftest {
            tree: Some(dir.path().into()),
            port,
            cpus: [one, one],
        };
        Ok((dir, perftest))
    }

    #[test]
    fn a_client_that_comes_before_its_server_tries_again() -> Result<()> {
        let (_dir, perftest) = fake()?;
        let limit = Duration::from_secs(60);
        let told = perftest.once("ib_fake", &[], limit, bandwidth)?;
        assert_eq!(told.mib_per_second, 41.06);
        Ok(())
    }

    #[test]
    fn a_run_that_hangs_is_ended() -> Result<()> {
        let (dir, perftest) = fake()?;
        std::fs::write(dir.path().join("usr/bin/hangs"), "")?;
        let started = Instant::now();
        let failed = perftest.once("ib_fake", &[], Duration::from_secs(1), bandwidth);
        let error = format!("{:#}", failed.expect_err("it never ends"));
        assert!(error.contains("ib_fake hangs"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(50));
        Ok(())
    }

    #[test]
    fn reads_what_it_prints() {
        let told = bandwidth(BANDWIDTH).expect("a line of results");
        assert_eq!(told.mib_per_second, 41.06);
        assert!((told.messages_per_second - 657.0).abs() < 1e-6);
        assert_eq!(typical_us(LATENCY), Some(24.70));
    }

    #[test]
    fn what_is_cut_off_is_no_result() {
        for text in ["", "Couldn't connect to 10.9.0.1:18515\n"] {
            assert_eq!(bandwidth(text), None);
            assert_eq!(typical_us(text), None);
        }
        // The other program's line.
        assert_eq!(bandwidth(LATENCY), None);
        assert_eq!(typical_us(BANDWIDTH), None);
        let heads = BANDWIDTH.lines().take_while(|line| !line.contains("41.06"));
        assert_eq!(bandwidth(&heads.collect::<Vec<_>>().join("\n")), None);
    }
}
