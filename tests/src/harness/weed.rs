//! SeaweedFS as a child process: an S3 server that others wrote.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::Credentials;

/// It is usually there after 12 to 19 seconds.
const STARTS_WITHIN: Duration = Duration::from_secs(90);

/// A running SeaweedFS. It is killed when dropped.
#[derive(Debug)]
pub struct Weed {
    child: Child,
    endpoint: String,
    credentials: Credentials,
}

impl Weed {
    /// Starts the program `weed` with its data under `dir`, and waits until its S3 port answers.
    /// `keep_waiting` is asked now and then; when it says no, the start is given up.
    ///
    /// # Errors
    /// When it does not start, or ends; the message quotes the end of its log.
    pub fn start(weed: &Path, dir: &Path, keep_waiting: impl Fn() -> bool) -> Result<Self> {
        let credentials = Credentials {
            access_key: "demo-access".to_owned(),
            secret_key: "demo-secret".to_owned(),
            region: "us-east-1".to_owned(),
        };
        let data = dir.join("data");
        fs::create_dir_all(&data)?;
        let config = dir.join("s3.json");
        fs::write(&config, s3_config(&credentials).to_string())?;
        let log_path = dir.join("weed.log");
        let log = fs::File::create(&log_path)?;
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
        let mut started = Self {
            child,
            endpoint: format!("http://127.0.0.1:{s3}"),
            credentials,
        };
        started.wait_for_port(s3, &keep_waiting).with_context(|| {
            let log = fs::read_to_string(&log_path).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            format!("SeaweedFS did not start; its last words, latest first: {last:#?}")
        })?;
        Ok(started)
    }

    fn wait_for_port(&mut self, port: u16, keep_waiting: &impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
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
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
