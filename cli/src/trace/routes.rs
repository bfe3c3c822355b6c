//! The daemon's side of a recording: `GET /accesses[?names=yes]` answers with a trace without its end, as long as the connection lives.
//!
//! So the recording ends with whoever asked for it, also when that one is killed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use forebay_fuse::access::{Access, AccessLog, Deed, Recorder};

use super::format;
use super::writer::Writer;

/// Where accesses are asked for.
pub const PATH: &str = "/accesses";
/// Between looks at what was done: a thread's queue holds more than it answers in so long.
const EVERY: Duration = Duration::from_millis(10);
/// Accesses are written so long after they were seen, in order of their time: by then the other threads' are seen too.
const ROUNDS_KEPT: usize = 2;

/// Routes for a mount's accesses.
pub fn routes(accesses: Arc<AccessLog>) -> Router {
    Router::new().route(PATH, get(follow)).with_state(accesses)
}

/// What was seen of a recording and not written yet.
struct Stream {
    recorder: Recorder,
    writer: Writer,
    /// By rounds; the oldest first.
    seen: VecDeque<Vec<Access>>,
    closed: Vec<u64>,
}

impl Stream {
    /// One round: what was seen some rounds ago is written, what is there now is seen.
    fn round(&mut self) -> Vec<u8> {
        let mut now = Vec::new();
        self.recorder.recording().drain(|access| now.push(access));
        self.seen.push_back(now);
        if self.seen.len() <= ROUNDS_KEPT {
            return Vec::new();
        }
        let mut due = self.seen.pop_front().unwrap_or_default();
        due.sort_by_key(|access| access.at_ns);
        let bytes = self.writer.write(&due, self.recorder.recording().dropped());
        self.writer.forget(&self.closed);
        let closed = due.iter().filter(|access| access.deed == Deed::Close);
        self.closed = closed.map(|access| access.handle).collect();
        bytes
    }
}

async fn follow(
    State(accesses): State<Arc<AccessLog>>,
    uri: Uri,
) -> Result<Body, (StatusCode, String)> {
    let names = uri.query() == Some("names=yes");
    let Some(recorder) = accesses.start() else {
        let text = "the accesses of this mount are recorded by somebody else now: one at a time";
        return Err((StatusCode::CONFLICT, text.to_owned()));
    };
    let stream = Stream {
        recorder,
        writer: Writer::new(names),
        seen: VecDeque::new(),
        closed: Vec::new(),
    };
    let head = Some(format::header(names).to_vec());
    let body = futures::stream::unfold((stream, head), |(mut stream, mut head)| async move {
        let bytes = match head.take() {
            Some(head) => head,
            None => loop {
                tokio::time::sleep(EVERY).await;
                let bytes = stream.round();
                if !bytes.is_empty() {
                    break bytes;
                }
            },
        };
        Some((Ok::<_, Infallible>(Bytes::from(bytes)), (stream, head)))
    });
    Ok(Body::from_stream(body))
}
