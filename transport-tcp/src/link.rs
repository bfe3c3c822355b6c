//! The way to one core of one peer: its state, and what is asked on it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::Lease;
use forebay_engine::limits::{CALL_BYTES_MAX, PAGE_BYTES, PEER_CREDIT_BYTES_MIN};
use forebay_engine::ports::{Class, FetchStatus, FetchTag, PeerCore, Time, TransportOp};
use forebay_engine::wire::header::{Answer, Ask};

use crate::limits::{BACKOFF_FIRST_MS, BACKOFF_MAX_MS};
use crate::links::LinkRecord;
use crate::outbox::Outbox;
use crate::socket::{Buffer, Socket};

/// A request of this core whose answer has not come.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The engine's name for it.
    pub name: FetchTag,
    /// The connection's.
    pub tag: u64,
    pub link: usize,
    /// None when it was given up: the engine has the lease back, and bytes that still come go nowhere.
    pub lease: Option<Lease>,
    pub len_bytes: u32,
    pub is_fetch: bool,
    pub cost_bytes: u32,
    pub deadline: Time,
}

/// What an operation asks.
#[derive(Debug)]
pub(crate) struct NewAsk {
    pub name: FetchTag,
    pub lease: Lease,
    pub deadline: Time,
    pub is_fetch: bool,
    pub class: Class,
    pub ask: Ask,
    /// The question of a call.
    pub body: Option<Box<[u8]>>,
}

impl NewAsk {
    /// Name and lease come back when the protocol has no form for what is asked; nothing when it is an answer.
    pub fn of(op: TransportOp) -> Result<NewAsk, Option<(FetchTag, Lease)>> {
        match op {
            TransportOp::Fetch {
                tag: name,
                request,
                lease,
                deadline,
                ..
            } => match request.len_bytes as usize == lease.len() {
                true => Ok(NewAsk {
                    name,
                    lease,
                    deadline,
                    is_fetch: true,
                    class: request.class,
                    ask: Ask::Fetch(request),
                    body: None,
                }),
                false => Err(Some((name, lease))),
            },
            TransportOp::Call {
                tag: name,
                class,
                body,
                lease,
                deadline,
                ..
            } => {
                if body.is_empty() || body.len() > CALL_BYTES_MAX {
                    return Err(Some((name, lease)));
                }
                let ask = Ask::Call {
                    class,
                    body_bytes: body.len() as u32,
                    room_bytes: lease.len() as u32,
                };
                Ok(NewAsk {
                    name,
                    lease,
                    deadline,
                    is_fetch: false,
                    class,
                    ask,
                    body: Some(body),
                })
            }
            TransportOp::Answer { .. } => Err(None),
        }
    }
}

/// How a link stands.
#[derive(Debug)]
pub(crate) enum State {
    /// No connection. Before `until` none is made; what is asked meanwhile waits, or fails when the peer could not
    /// be reached.
    Down { until: Time, unreachable: bool },
    /// One is being made.
    Dialling,
    /// There is one.
    Up(Box<Up>),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Up {
    pub socket: Socket,
    pub buffer: Buffer,
    pub body: Option<Body>,
    pub credit_bytes: u64,
    /// An answer came on it.
    pub answered: bool,
    pub used_at: Time,
}

/// An answer whose bytes are coming.
#[derive(Debug)]
pub(crate) struct Body {
    pub slot: usize,
    pub status: FetchStatus,
    pub len_bytes: usize,
    pub got_bytes: usize,
    pub checksums: Vec<u32>,
}

/// The way to one core of one peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub to: PeerCore,
    pub state: State,
    pub outbox: Outbox,
    /// Credit in use.
    pub used_bytes: u64,
    /// Failures since the last answer.
    pub failures: u32,
    /// Since when a request that was given up stays unanswered, and how many do.
    pub given_up: Option<(Time, u32)>,
    pub record: Arc<LinkRecord>,
}

impl Link {
    /// A link that has never been up.
    pub fn new(to: PeerCore, record: Arc<LinkRecord>) -> Self {
        Self {
            to,
            state: State::Down {
                until: Time(0),
                unreachable: false,
            },
            outbox: Outbox::default(),
            used_bytes: 0,
            failures: 0,
            given_up: None,
            record,
        }
    }

    /// Bytes that may be under way: before the peer has granted any, what every peer grants at least.
    pub fn credit_bytes(&self) -> u64 {
        match &self.state {
            State::Up(up) => up.credit_bytes,
            _ => PEER_CREDIT_BYTES_MIN as u64,
        }
    }
}

/// Why a connection is lost.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it breaks the protocol: {0}")]
    Protocol(&'static str),
    #[error("a request that was given up stays unanswered")]
    Silent,
    #[error("idle")]
    Idle,
}

/// Whether an answer has the length that was asked for.
pub(crate) fn fits(asked: &Asked, answer: &Answer) -> bool {
    let pages = (asked.len_bytes as usize).div_ceil(PAGE_BYTES);
    match asked.is_fetch {
        true => answer.len_bytes == asked.len_bytes && usize::from(answer.checksums) == pages,
        false => answer.len_bytes <= asked.len_bytes && answer.checksums == 0,
    }
}

/// How long a link pauses after so many failures: doubling, less up to a quarter so that members do not come
/// back together.
pub(crate) fn pause(failures: u32, now: Time, at: usize) -> Duration {
    let doubled = BACKOFF_FIRST_MS << failures.saturating_sub(1).min(10);
    let span = Duration::from_millis(doubled.min(BACKOFF_MAX_MS));
    let mixed = (now.0 ^ (at as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    span - span / 4 * (mixed >> 56) as u32 / 256
}
