//! The daemon's side of the control socket.
//!
//! | request | answer |
//! |---|---|
//! | `POST /jobs` with a [`JobRequest`] | [`JobStarted`] |
//! | `GET /jobs` | a list of [`JobReport`]s |
//! | `GET /jobs/ID` | a [`JobReport`] |
//! | `POST /jobs/ID/stop` | a [`JobReport`] |
//! | `POST /check` with a [`JobRequest`] | a [`CheckLine`] a line; the check ends with the connection |

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::sync::mpsc::{Receiver, channel};

use super::jobs::{Job, Jobs};
use super::report::{CheckLine, JobReport, JobRequest, JobStarted, REQUEST_BYTES_MAX, Work};

/// Lines of a check that wait for their reader.
const LINES_MAX: usize = 4_096;

type Refusal = (StatusCode, String);

/// Routes for `jobs`.
pub fn routes(jobs: Arc<Jobs>) -> Router {
    Router::new()
        .route("/jobs", get(list).post(start))
        .route("/jobs/{id}", get(report))
        .route("/jobs/{id}/stop", post(stop))
        .route("/check", post(check))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(jobs)
}

async fn start(
    State(jobs): State<Arc<Jobs>>,
    Json(request): Json<JobRequest>,
) -> Result<Json<JobStarted>, Refusal> {
    if request.work == Work::Check {
        return Err((StatusCode::BAD_REQUEST, "ask at /check".into()));
    }
    let job = jobs.start(request, None).map_err(refused)?;
    Ok(Json(JobStarted { id: job.id.clone() }))
}

async fn list(State(jobs): State<Arc<Jobs>>) -> Json<Vec<JobReport>> {
    Json(jobs.list())
}

async fn report(
    State(jobs): State<Arc<Jobs>>,
    Path(id): Path<String>,
) -> Result<Json<JobReport>, Refusal> {
    named(&jobs, &id).map(|job| Json(job.report()))
}

async fn stop(
    State(jobs): State<Arc<Jobs>>,
    Path(id): Path<String>,
) -> Result<Json<JobReport>, Refusal> {
    let job = named(&jobs, &id)?;
    job.stop();
    while !job.tally.state().is_over() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Ok(Json(job.report()))
}

fn named(jobs: &Jobs, id: &str) -> Result<Arc<Job>, Refusal> {
    let missing = || {
        (
            StatusCode::NOT_FOUND,
            format!("there is no job {id} (any more)"),
        )
    };
    jobs.get(id).ok_or_else(missing)
}

fn refused(reason: String) -> Refusal {
    (StatusCode::SERVICE_UNAVAILABLE, reason)
}

/// Stops a check whose reader is gone.
struct Answer {
    job: Arc<Job>,
    lines: Receiver<CheckLine>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.job.stop();
    }
}

async fn check(
    State(jobs): State<Arc<Jobs>>,
    Json(request): Json<JobRequest>,
) -> Result<Body, Refusal> {
    let (sender, lines) = channel(LINES_MAX);
    let job = jobs.start(request, Some(sender)).map_err(refused)?;
    let stream = futures::stream::unfold(Answer { job, lines }, |mut answer| async move {
        let mut lines = Vec::new();
        answer.lines.recv_many(&mut lines, 256).await;
        let mut text = Vec::new();
        for line in &lines {
            serde_json::to_writer(&mut text, line).ok()?;
            text.push(b'\n');
        }
        let chunk = Ok::<_, std::convert::Infallible>(Bytes::from(text));
        (!lines.is_empty()).then_some((chunk, answer))
    });
    Ok(Body::from_stream(stream))
}
