//! SeaweedFS as a child process: an S3 server that others wrote.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::Credentials;

/// It is usually there after 12 to 19 seconds.
const STARTS_WITHIN: Duration = Duration::from_secs(90);
/// Another program may take a port between our look and its bind; then it ends early.
const STARTS_MAX: usize = 3;
/// What `ci/seaweedfs` ends with when there was nothing to download it from.
const NO_DOWNLOAD: i32 = 75;

/// The program `weed`, which `ci/seaweedfs` installs if need be. `Ok(Err(why))` when it cannot be
/// downloaded here, which is a reason to skip, loudly.
///
/// # Errors
/// When it was downloaded and is not what was pinned, or does not install.
pub fn install_weed() -> Result<Result<PathBuf, String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/seaweedfs");
    let output = Command::new(&script)
        .output()
        .with_context(|| format!("cannot run {}", script.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NO_DOWNLOAD) {
        let last = said.lines().last().unwrap_or("no reason given");
        return Ok(Err(last.to_owned()));
    }
    ensure!(
        output.status.success(),
        "ci/seaweedfs: {}: {said}",
        output.status
    );
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Ok(path.into()))
}

const LOG: &str = "weed.log";

/// A running SeaweedFS. It is killed when dropped.
#[derive(Debug)]
pub struct Weed {
    child: Child,
    port: u16,
    endpoint: String,
    credentials: Credentials,
}

impl Weed {
    /// Starts the program `weed` with its data under `dir`, and waits until its S3 port answers.
    /// `keep_waiting` is asked now and then; when it says no, the start is given up.
    ///
    /// # Errors
    /// When it does not start, or ends early each time; the message quotes the end of its log.
    pub fn start(weed: &Path, dir: &Path, keep_waiting: impl Fn() -> bool) -> Result<Self> {
        let mut tries = 0;
        loop {
            tries += 1;
            let own = dir.join(format!("start-{tries}"));
            let mut started = Self::spawn(weed, &own)?;
            let outcome = started.wait_for_port(&keep_waiting).with_context(|| {
                let log = fs::read_to_string(own.join(LOG)).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                format!("SeaweedFS did not start; its last words, latest first: {last:#?}")
            });
            match outcome {
                Ok(()) => return Ok(started),
                Err(error) if started.has_ended() && tries < STARTS_MAX => {
                    eprintln!("starting SeaweedFS again, on other ports: {error:#}");
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn spawn(weed: &Path, dir: &Path) -> Result<Self> {
        let credentials = Credentials {
            access_key: "demo-access".to_owned(),
            secret_key: "demo-secret".to_owned(),
            region: "us-east-1".to_owned(),
        };
        let data = dir.join("data");
        fs::create_dir_all(&data)?;
        let config = dir.join("s3.json");
        fs::write(&config, s3_config(&credentials).to_string())?;
        let log = fs::File::create(dir.join(LOG))?;
        let ports = free_ports::<8>()?;
        let [master, volume, filer, s3, ..] = ports;
        let mut command = Command::new(weed);
        command
            .arg("server")
            .arg(format!("-dir={}", data.display()))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"])
            .args(["-master.volumeSizeLimitMB=1024", "-volume.max=50"])
            // Servers beside S3 on fixed ports: two SeaweedFS on one machine would collide.
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
            .arg("-master.telemetry=false")
            .arg(format!("-master.port={master}"))
            .arg(format!("-master.port.grpc={}", ports[4]))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-volume.port.grpc={}", ports[5]))
            .arg(format!("-filer.port={filer}"))
            .arg(format!("-filer.port.grpc={}", ports[6]))
            .arg(format!("-s3.port={s3}"))
            .arg(format!("-s3.port.grpc={}", ports[7]))
            .arg(format!("-s3.config={}", config.display()))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", weed.display()))?;
        Ok(Self {
            child,
            port: s3,
            endpoint: format!("http://127.0.0.1:{s3}"),
            credentials,
        })
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    fn wait_for_port(&mut self, keep_waiting: &impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended: {status}");
            }
            if start.elapsed() > STARTS_WITHIN {
                bail!("no answer within {STARTS_WITHIN:?}");
            }
            if !keep_waiting() {
                bail!("interrupted");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// The S3 endpoint's URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What it was configured with.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn s3_config(credentials: &Credentials) -> serde_json::Value {
    json!({ "identities": [{
        "name": "demo",
        "credentials": [{
            "accessKey": credentials.access_key,
            "secretKey": credentials.secret_key,
        }],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }] })
}

/// Ports that were free a moment ago; all are held until the last is known, so they differ.
///
/// SeaweedFS takes many seconds until it binds them. So they are not of the range from which the
/// kernel serves every socket that asks for any port: there each connection could take one away.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    /// Below are well-known servers.
    const FIRST: u16 = 10_000;
    let end = ephemeral_start().max(FIRST + 1_000);
    let span = usize::from(end - FIRST);
    let start = usize::try_from(RandomState::new().hash_one(0) % span as u64)?;
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    let mut tried = 0;
    for port in &mut ports {
        let listener = loop {
            ensure!(tried < span, "no {N} free ports between {FIRST} and {end}");
            let candidate = FIRST + u16::try_from((start + tried) % span)?;
            tried += 1;
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", candidate)) {
                break listener;
            }
        };
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// The first port that the kernel gives to sockets that ask for any.
fn ephemeral_start() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next();
    first.and_then(|text| text.parse().ok()).unwrap_or(32_768)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn ports_are_not_those_that_any_connection_may_take() {
        let ports = free_ports::<8>().expect("eight free ports");
        assert_eq!(HashSet::from(ports).len(), 8);
        for port in ports {
            assert!(
                (10_000..ephemeral_start().max(11_000)).contains(&port),
                "{port}"
            );
        }
    }

    #[test]
    fn a_start_that_ends_early_is_tried_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let weed = dir.path().join("weed");
        // Counts its starts, in the place where all of them have their directories.
        fs::write(&weed, "#!/bin/sh\necho x >>../starts\nexit 1\n").expect("written");
        fs::set_permissions(&weed, fs::Permissions::from_mode(0o755)).expect("executable");
        let error = Weed::start(&weed, dir.path(), || true).expect_err("it ends each time");
        assert!(format!("{error:#}").contains("it ended"), "{error:#}");
        let starts = fs::read_to_string(dir.path().join("starts")).expect("counted");
        assert_eq!(starts.lines().count(), STARTS_MAX);
    }
}
