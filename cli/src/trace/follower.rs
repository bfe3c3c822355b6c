//! Who records a mount's accesses: takes them from its daemon for as long as it wants them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::routes::PATH;

/// Longest wait for the daemon's first word.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A recording, which ends when this is dropped.
#[derive(Debug)]
pub struct Follower {
    socket: PathBuf,
    body: Incoming,
    // Last: the connection lives on it.
    runtime: tokio::runtime::Runtime,
}

impl Follower {
    /// Asks the daemon at `socket` to record its mount's accesses from now on.
    ///
    /// # Errors
    /// When it does not answer, refuses, or knows nothing of accesses.
    pub fn start(socket: &Path, names: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a tokio runtime")?;
        let asked = runtime
            .block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, ask(socket, names)).await });
        let body = asked
            .unwrap_or_else(|_| bail!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))
            .with_context(|| format!("the daemon at {}", socket.display()))?;
        Ok(Self {
            socket: socket.to_owned(),
            body,
            runtime,
        })
    }

    /// The next bytes of the trace, as far as they come within `most`; none when nothing came.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn next(&mut self, most: Duration) -> Result<Option<Bytes>> {
        let body = &mut self.body;
        let frame = self
            .runtime
            .block_on(async { tokio::time::timeout(most, body.frame()).await });
        let ended = || {
            let socket = self.socket.display();
            format!("the daemon at {socket} has ended: was the mount taken away?")
        };
        match frame {
            Err(_) => Ok(None),
            Ok(None) => bail!("{}", ended()),
            Ok(Some(frame)) => Ok(frame.with_context(ended)?.into_data().ok()),
        }
    }
}

async fn ask(socket: &Path, names: bool) -> Result<Incoming> {
    let stream = UnixStream::connect(socket)
        .await
        .context("cannot connect: is there a mount?")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let names = if names { "yes" } else { "no" };
    let request = Request::get(format!("{PATH}?names={names}"))
        .header("host", "forebay")
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(answer.into_body());
    }
    if status == StatusCode::NOT_FOUND {
        bail!("it records no accesses: it has no mount, or is of an older version");
    }
    let text = Limited::new(answer.into_body(), 4_096).collect().await;
    let text = text.map(|text| text.to_bytes()).unwrap_or_default();
    bail!("{}", String::from_utf8_lossy(&text));
}
