//! Draining over the control socket.
//!
//! | request | answer |
//! |---|---|
//! | `POST /drain` | begins; a [`DrainReport`] |
//! | `GET /drain` | a [`DrainReport`] |
//! | `POST /drain/stop` | a [`DrainReport`] |

use std::sync::Arc;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};

use super::Group;
use super::draining::DrainReport;

type Refusal = (StatusCode, String);
type Place = Option<Arc<Group>>;

/// Routes for this node's part in `group`; none: it is on its own.
pub fn routes(group: Place) -> Router {
    Router::new()
        .route("/drain", get(report).post(start))
        .route("/drain/stop", post(stop))
        .with_state(group)
}

fn member(group: Place) -> Result<Arc<Group>, Refusal> {
    let alone = "this node is in no cache group: there is nobody to hand anything over to";
    group.ok_or_else(|| (StatusCode::CONFLICT, alone.to_owned()))
}

fn told(group: &Group, outcome: Result<()>) -> Result<Json<DrainReport>, Refusal> {
    match outcome {
        Ok(()) => Ok(Json(group.drain_report())),
        Err(error) => Err((StatusCode::CONFLICT, format!("{error:#}"))),
    }
}

/// Whoever asked may go away meanwhile: a weight that was told without its drain would stay.
async fn to_its_end(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|error| Err(error.into()))
}

async fn report(State(group): State<Place>) -> Result<Json<DrainReport>, Refusal> {
    let group = member(group)?;
    told(&group, Ok(()))
}

async fn start(State(group): State<Place>) -> Result<Json<DrainReport>, Refusal> {
    let group = member(group)?;
    let own = group.clone();
    told(
        &group,
        to_its_end(async move { own.start_drain().await }).await,
    )
}

async fn stop(State(group): State<Place>) -> Result<Json<DrainReport>, Refusal> {
    let group = member(group)?;
    let own = group.clone();
    told(
        &group,
        to_its_end(async move { own.stop_drain().await }).await,
    )
}
