//! The command's side of the control API: blocking, one request a connection, bounded in time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::report::{StatsReport, StatusReport};
use super::sockets::{self, is_alive};
use crate::group::stats::GroupStats;

/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Asks one daemon.
#[derive(Clone, Debug)]
pub struct ControlClient {
    socket: PathBuf,
}

impl ControlClient {
    /// A client of the daemon at `socket`.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the mount is.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn status(&self) -> Result<StatusReport> {
        self.get("/status")
    }

    /// What it did.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn stats(&self) -> Result<StatsReport> {
        self.get("/stats")
    }

    /// What its group did; none for a node on its own.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn group_stats(&self) -> Result<Option<GroupStats>> {
        self.get_within("/group-stats", 2 * ANSWER_TIMEOUT)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.get_within(path, ANSWER_TIMEOUT)
    }

    fn get_within<T: DeserializeOwned>(&self, path: &str, within: Duration) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a tokio runtime")?;
        let answer = runtime
            .block_on(async { tokio::time::timeout(within, fetch(&self.socket, path)).await });
        let body = answer
            .unwrap_or_else(|_| bail!("no answer within {} s", within.as_secs()))
            .with_context(|| format!("the daemon at {} does not answer", self.socket.display()))?;
        serde_json::from_slice(&body).with_context(|| {
            format!(
                "the daemon at {} answered something else: is it of another version?",
                self.socket.display()
            )
        })
    }
}

/// The process that listens at `socket`, also when it does not answer. None when there is none, or
/// it runs where its number means nothing here.
pub fn peer_pid(socket: &Path) -> Option<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    runtime.block_on(async {
        let connected = tokio::time::timeout(ANSWER_TIMEOUT, UnixStream::connect(socket)).await;
        let pid = connected.ok()?.ok()?.peer_cred().ok()?.pid()?;
        u32::try_from(pid).ok().filter(|pid| *pid > 0)
    })
}

async fn fetch(socket: &Path, path: &str) -> Result<Bytes> {
    let stream = UnixStream::connect(socket)
        .await
        .context("cannot connect")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path)
        .header("host", "forebay")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::OK {
        bail!("it answered {} to {path}", response.status());
    }
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await;
    connection.abort();
    body.map(|body| body.to_bytes())
        .map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))
}

/// The daemons of `dir` that answer, by mount point; sockets of killed daemons are passed over.
pub fn living(dir: &Path) -> Vec<(ControlClient, StatusReport)> {
    let sockets = sockets::sockets(dir)
        .into_iter()
        .filter(|socket| is_alive(socket));
    // At the same time: some may hang.
    let asking: Vec<_> = sockets
        .map(|socket| {
            std::thread::spawn(move || {
                let client = ControlClient::new(socket);
                client.status().map(|status| (client, status))
            })
        })
        .collect();
    let mut daemons: Vec<_> = asking
        .into_iter()
        .filter_map(|asked| match asked.join() {
            Ok(Ok(daemon)) => Some(daemon),
            Ok(Err(error)) => {
                eprintln!("forebay: {error:#}");
                None
            }
            Err(_) => None,
        })
        .collect();
    daemons.sort_by_key(|(_, status)| status.name());
    daemons
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::super::report::NamespaceCounts;
    use super::super::server::{ControlSocket, Reports};
    use super::*;

    struct Fixed;

    impl Reports for Fixed {
        fn status(&self) -> StatusReport {
            StatusReport {
                mount_point: "/data".into(),
                pid: 7,
                uptime_seconds: 1.5,
                ..StatusReport::default()
            }
        }

        fn stats(&self) -> StatsReport {
            let mut namespace = NamespaceCounts::default();
            namespace.left_out.insert("dot part".into(), 2);
            namespace.counters.insert("inodes".into(), 3);
            StatsReport::new(&[], namespace, 2.0)
        }
    }

    #[test]
    fn reports_travel_through_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let path = run.join("data.sock");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (guard, _task) = runtime.block_on(async {
            ControlSocket::bind(&path)
                .unwrap()
                .serve(Arc::new(Fixed))
                .unwrap()
        });
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );

        let client = ControlClient::new(path.clone());
        assert_eq!(client.status().unwrap(), Fixed.status());
        assert_eq!(client.stats().unwrap(), Fixed.stats());
        assert!(client.get::<StatusReport>("/other").is_err());
        assert_eq!(living(&run).len(), 1);

        drop(guard);
        assert!(!path.exists());
        assert!(client.status().is_err());
        assert_eq!(living(&run).len(), 0);
    }

    #[test]
    fn a_killed_daemons_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let older = ControlSocket::bind(&path).unwrap();
        let newer = ControlSocket::bind(&path).unwrap();
        drop(older);
        assert!(
            path.exists(),
            "the older one leaves the newer one's socket alone"
        );
        drop(newer);
        assert!(!path.exists());
    }

    #[test]
    fn a_daemon_that_hangs_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let start = std::time::Instant::now();
        let error = format!("{:#}", ControlClient::new(path).status().unwrap_err());
        assert!(
            error.contains("no answer within") && start.elapsed() < 2 * ANSWER_TIMEOUT,
            "{error}"
        );
    }
}
