//! A take-only client's side.

use std::collections::BTreeSet;
use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::messages::{Answer, MESSAGE_BYTES_MAX, Question, read, write};
use super::server::{ANSWER_AFTER, name};
use crate::record::Roster;
use crate::seal::unix_ms;
use crate::seeds::Seeds;
use crate::views::{GroupView, Views};

/// A member that does not let us in within this is passed over.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// A member that answers later than it should by so much is given up.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// Pauses between attempts, doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Opens control connections to members, proven on both sides.
pub trait Connect: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send;

    /// Opens one.
    fn connect(&self, to: SocketAddr) -> impl Future<Output = Result<Self::Stream>> + Send;
}

/// Asks a member for its counters over a proven control connection.
///
/// # Errors
/// When the connection fails or ends, or the member does not tell them.
pub async fn ask_stats(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<serde_json::Value> {
    write(stream, &Question::GetStats).await?;
    match read(stream, MESSAGE_BYTES_MAX).await? {
        Some(Answer::Stats(stats)) => Ok(stats),
        Some(Answer::Error(why)) => Err(Error::other(why)),
        Some(_) => Err(Error::new(
            ErrorKind::InvalidData,
            "it answered something else",
        )),
        // One that does not know the question ends the connection.
        None => Err(Error::new(
            ErrorKind::UnexpectedEof,
            "it ended the connection: is its software older?",
        )),
    }
}

/// How following fares.
#[derive(Clone, Debug, Default)]
pub struct FollowerStatus {
    /// The member that is asked now.
    pub asking: Option<SocketAddr>,
    /// What went wrong last, and where.
    pub error: Option<String>,
}

/// Keeps a client's views up to date. Stops when dropped.
#[derive(Debug)]
pub struct Follower {
    task: JoinHandle<()>,
    status: Arc<Mutex<FollowerStatus>>,
    views: Views,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    /// Asks members for views, and publishes them in `views`: first at the seeds, then at any member known.
    /// Needs a Tokio runtime, which its task runs on.
    pub fn start(connect: impl Connect, seeds: Arc<Seeds>, views: Views) -> Self {
        let status = Arc::new(Mutex::new(FollowerStatus::default()));
        let asker = Asker {
            connect,
            seeds,
            views: views.clone(),
            status: status.clone(),
            turn: unix_ms() as usize,
        };
        Self {
            task: tokio::spawn(asker.run()),
            status,
            views,
        }
    }

    /// Waits for the first view.
    pub async fn ready(&self) {
        // An error would mean that the sender is gone, and `self.views` holds it.
        let _ = self.views.watch().wait_for(Option::is_some).await;
    }

    /// How it fares.
    pub fn status(&self) -> FollowerStatus {
        self.status.lock().clone()
    }
}

struct Asker<C> {
    connect: C,
    seeds: Arc<Seeds>,
    views: Views,
    status: Arc<Mutex<FollowerStatus>>,
    /// Where among the candidates to go on: clients spread, and none is tried twice in a row.
    turn: usize,
}

impl<C: Connect> Asker<C> {
    async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            for address in self.candidates() {
                let before = self.views.newest().map(|view| view.fingerprint);
                let error = match self.ask(address).await {
                    Ok(()) => "the member closed the connection".to_owned(),
                    Err(error) => error.to_string(),
                };
                tracing::debug!("view from {address}: {error}");
                // Some errors name the address already.
                let at = format!("{address}: ");
                let error = error.strip_prefix(&at).unwrap_or(&error);
                *self.status.lock() = FollowerStatus {
                    asking: None,
                    error: Some(format!("{at}{error}")),
                };
                if self.views.newest().map(|view| view.fingerprint) != before {
                    // It told us of others: begin with those.
                    pause = PAUSE_MIN;
                    break;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The addresses of each member of the last view, beginning with another member each time; then the seeds.
    fn candidates(&mut self) -> Vec<SocketAddr> {
        self.turn = self.turn.wrapping_add(1);
        let newest = self.views.newest();
        let members = newest.iter().flat_map(|view| view.roster.members());
        let known: Vec<&[SocketAddr]> = members.map(|member| &*member.record.addresses).collect();
        let mut known = rotated(known, self.turn).concat();
        let seeds: BTreeSet<SocketAddr> = self.seeds.addresses();
        let others = seeds.into_iter().filter(|seed| !known.contains(seed));
        let others = rotated(others.collect(), self.turn);
        known.extend(others);
        known
    }

    /// Asks one member for as long as it answers.
    async fn ask(&self, address: SocketAddr) -> Result<()> {
        let late =
            |what: &str| Error::new(ErrorKind::TimedOut, format!("it did not {what} in time"));
        let connected = timeout(CONNECT_MAX, self.connect.connect(address)).await;
        let mut stream = connected.map_err(|_| late("let us in"))??;
        loop {
            let known = self.views.newest().map(|view| view.fingerprint);
            write(&mut stream, &Question::GetView(name(known))).await?;
            let reply = timeout(
                ANSWER_AFTER + ANSWER_GRACE,
                read(&mut stream, MESSAGE_BYTES_MAX),
            )
            .await;
            match reply.map_err(|_| late("answer"))?? {
                None => return Ok(()),
                Some(Answer::Unchanged) => {}
                Some(Answer::Error(error)) => return Err(Error::other(error)),
                Some(Answer::Stats(_)) => {
                    return Err(Error::new(
                        ErrorKind::InvalidData,
                        "it answered something else",
                    ));
                }
                Some(Answer::View(members)) => self.publish(Roster::new(members)).await?,
            }
            *self.status.lock() = FollowerStatus {
                asking: Some(address),
                error: None,
            };
        }
    }

    async fn publish(&self, roster: Roster) -> Result<()> {
        if roster
            .members()
            .iter()
            .any(|member| member.record.addresses.is_empty() || member.record.cores == 0)
        {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "it told of a member without addresses or cores",
            ));
        }
        let roster = Arc::new(roster);
        let view = tokio::task::spawn_blocking(move || GroupView::new(roster)).await;
        let view =
            view.map_err(|error| Error::other(format!("cannot make the placement: {error}")))?;
        tracing::info!(members = view.roster.members().len(), "the group's view");
        self.views.publish(view);
        Ok(())
    }
}

/// The same, beginning at place `turn`, counted around.
fn rotated<T>(mut list: Vec<T>, turn: usize) -> Vec<T> {
    if !list.is_empty() {
        let places = turn % list.len();
        list.rotate_left(places);
    }
    list
}
