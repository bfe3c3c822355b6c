//! What a daemon does that someone waits for: progress, and an end by a signal.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hyper::Method;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};

use super::asking::{Daemon, Silent};
use super::progress::line;
use super::report::{JobReport, JobRequest};
use crate::control::process::Process;
use crate::progress::Progress;

/// The first looks come sooner: small jobs are done at once.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A daemon that is silent for so long is spoken of.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// A daemon that does something by itself: a question that fails does not end it.
pub struct Followed<'a> {
    daemon: &'a Daemon,
    process: Option<Process>,
    /// Since when no question was answered, and whether that was said.
    silent: Option<(Instant, bool)>,
}

impl<'a> Followed<'a> {
    /// Whoever listens at its socket now.
    pub async fn new(daemon: &'a Daemon) -> Self {
        Self {
            daemon,
            process: daemon.process().await,
            silent: None,
        }
    }

    /// Asks at `path` how far it is. None: there is no answer now, but the process lives, and may be asked again.
    ///
    /// # Errors
    /// When the daemon refuses, or there is no answer and its process has ended.
    pub async fn look<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>> {
        let began = Instant::now();
        let error = match self.daemon.ask(Method::GET, path, Vec::new()).await {
            Ok(report) => {
                self.silent = None;
                return Ok(Some(report));
            }
            Err(error) => error,
        };
        let process = self.process.as_ref();
        let lives = process.is_some_and(|process| !process.has_ended(Duration::ZERO));
        if !lives || !error.is::<Silent>() {
            return Err(error);
        }
        let (since, said) = self.silent.get_or_insert((began, false));
        if since.elapsed() >= SILENT_AFTER && !std::mem::replace(said, true) {
            eprintln!("forebay: {error:#}; its process lives, and is asked again");
        }
        Ok(None)
    }
}

/// Runs a job to its end, or to SIGINT's or SIGTERM's, which stop it.
///
/// # Errors
/// When the daemon refuses, or ends.
pub async fn follow(daemon: &Daemon, request: &JobRequest) -> Result<JobReport> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut followed = Followed::new(daemon).await;
    let id = daemon.start(request).await?;
    let path = Daemon::path_of(&id);
    let mut progress = Progress::start();
    let mut pause = Duration::ZERO;
    let outcome = loop {
        let looked = async {
            tokio::time::sleep(pause).await;
            followed.look::<JobReport>(&path).await
        };
        let looked = tokio::select! {
            looked = looked => looked,
            _ = interrupt.recv() => break daemon.stop(&id).await,
            _ = terminate.recv() => break daemon.stop(&id).await,
        };
        match looked {
            Ok(Some(report)) if report.state.is_over() => break Ok(report),
            Ok(Some(report)) => {
                progress.show(report.bytes_done, report.bytes, |rate| line(&report, rate));
            }
            Ok(None) => {}
            Err(error) => break Err(error),
        }
        pause = (pause * 2).clamp(LOOK_FIRST, LOOK_EVERY);
    };
    progress.end();
    outcome
}

#[cfg(test)]
mod tests {
    use super::super::report::{JobStarted, JobState, Work};
    use super::*;
    use crate::control::scripted::{Answer, Scripted};

    fn request() -> JobRequest {
        JobRequest {
            work: Work::Warmup,
            paths: vec!["a".into()],
            parallel: 1,
            attended: true,
        }
    }

    fn started() -> Answer {
        let id = "1-1".into();
        Answer::Json(serde_json::to_string(&JobStarted { id }).unwrap())
    }

    fn report(state: JobState) -> Answer {
        let report = JobReport {
            state,
            files: 7,
            ..JobReport::default()
        };
        Answer::Json(serde_json::to_string(&report).unwrap())
    }

    #[tokio::test]
    async fn a_question_that_fails_does_not_end_what_is_followed() {
        let scripted = Scripted::start([
            started(),
            Answer::Closed,
            report(JobState::Running),
            Answer::Closed,
            Answer::Closed,
            report(JobState::Done),
        ]);
        let daemon = Daemon::new(&scripted.socket);
        let report = follow(&daemon, &request()).await.unwrap();
        assert_eq!((report.state, report.files), (JobState::Done, 7));
        assert!(scripted.left.lock().is_empty());
    }

    #[tokio::test]
    async fn a_refusal_does() {
        let scripted = Scripted::start([started(), Answer::Closed, Answer::Refused("no such job")]);
        let daemon = Daemon::new(&scripted.socket);
        let error = follow(&daemon, &request()).await.unwrap_err();
        assert_eq!(error.to_string(), "no such job");
    }

    #[tokio::test]
    async fn so_does_the_end_of_the_process() {
        let scripted = Scripted::start([Answer::Closed, Answer::Closed]);
        let daemon = Daemon::new(&scripted.socket);
        let mut followed = Followed::new(&daemon).await;
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        followed.process = Process::of(child.id());
        assert!(
            followed
                .look::<JobReport>("/jobs/1")
                .await
                .unwrap()
                .is_none()
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let error = followed.look::<JobReport>("/jobs/1").await.unwrap_err();
        assert!(error.to_string().contains("has ended or does not answer"));
    }
}
