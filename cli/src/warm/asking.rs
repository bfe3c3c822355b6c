//! The commands' side of the control socket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::report::{CheckLine, JobReport, JobRequest, JobStarted};
use crate::control::process::Process;

/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer that is read: a thousand failures of the longest paths.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why a question got no answer: in the errors of [`Daemon`], other than where the daemon refuses.
#[derive(Debug)]
pub struct Silent(String);

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The daemon of one mount.
#[derive(Clone, Debug)]
pub struct Daemon {
    socket: PathBuf,
}

impl Daemon {
    /// Listens at `socket`.
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Starts a job; its name.
    ///
    /// # Errors
    /// When the daemon does not answer, or has too many.
    pub async fn start(&self, request: &JobRequest) -> Result<String> {
        let body = serde_json::to_vec(request).context("cannot write JSON")?;
        let started: JobStarted = self.ask(Method::POST, "/jobs", body).await?;
        Ok(started.id)
    }

    /// All its jobs.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub async fn jobs(&self) -> Result<Vec<JobReport>> {
        self.ask(Method::GET, "/jobs", Vec::new()).await
    }

    /// How far a job is.
    ///
    /// # Errors
    /// When the daemon does not answer, or has no such job.
    pub async fn job(&self, id: &str) -> Result<JobReport> {
        self.ask(Method::GET, &Self::path_of(id), Vec::new()).await
    }

    /// Where a job is asked for.
    pub fn path_of(id: &str) -> String {
        format!("/jobs/{id}")
    }

    /// Stops a job.
    ///
    /// # Errors
    /// When the daemon does not answer, or has no such job.
    pub async fn stop(&self, id: &str) -> Result<JobReport> {
        let path = format!("{}/stop", Self::path_of(id));
        self.ask(Method::POST, &path, Vec::new()).await
    }

    /// Tells `line` of every file, as it comes; what it came to.
    ///
    /// # Errors
    /// When the daemon does not answer or ends, or `line` fails.
    pub async fn check(
        &self,
        request: &JobRequest,
        mut line: impl FnMut(super::report::CheckedFile) -> Result<()>,
    ) -> Result<JobReport> {
        let body = serde_json::to_vec(request).context("cannot write JSON")?;
        let answer = self.send(Method::POST, "/check", body).await?;
        let mut answer = refusal(answer).await?.into_body();
        let mut rest = Vec::new();
        while let Some(frame) = answer.frame().await {
            let frame = frame.with_context(|| self.ended())?;
            rest.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
            let whole = rest.iter().rposition(|byte| *byte == b'\n');
            let after = rest.split_off(whole.map_or(0, |at| at + 1));
            for text in rest.split(|byte| *byte == b'\n').filter(|t| !t.is_empty()) {
                match serde_json::from_slice(text).context("the daemon answered something else")? {
                    CheckLine::File(file) => line(file)?,
                    CheckLine::Summary(report) => return Ok(*report),
                }
            }
            rest = after;
        }
        Err(anyhow::Error::msg(self.ended()))
    }

    /// Asks for something else.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T> {
        let asked = async {
            let answer = refusal(self.send(method, path, body).await?).await?;
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
            let body = body.collect().await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}").context(self.ended()))?;
            serde_json::from_slice(&body.to_bytes())
                .context("the daemon answered something else: is it of another version?")
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        answer.unwrap_or_else(|_| {
            let (socket, seconds) = (self.socket.display(), ANSWER_TIMEOUT.as_secs());
            let text = format!("the daemon at {socket} does not answer within {seconds} s");
            Err(anyhow::Error::msg(Silent(text)))
        })
    }

    /// Its process; none when nobody listens, or it runs where its number means nothing here.
    pub async fn process(&self) -> Option<Process> {
        let stream = UnixStream::connect(&self.socket).await.ok()?;
        let pid = stream.peer_cred().ok()?.pid()?;
        Process::of(u32::try_from(pid).ok()?)
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.with_context(|| self.ended())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(|| self.ended())?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "forebay")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await;
        answer.with_context(|| self.ended())
    }

    fn ended(&self) -> Silent {
        Silent(format!(
            "the daemon at {} has ended or does not answer (`forebay status` tells); what is cached on disk stays",
            self.socket.display()
        ))
    }
}

/// An answer that is none becomes an error.
async fn refusal(answer: Response<Incoming>) -> Result<Response<Incoming>> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = Limited::new(answer.into_body(), 64 << 10).collect().await;
    let text = body.map(|body| body.to_bytes()).unwrap_or_default();
    match text.is_empty() {
        true => bail!("the daemon answered {status}: is it of another version?"),
        false => bail!("{}", String::from_utf8_lossy(&text)),
    }
}
