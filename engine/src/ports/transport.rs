//! The way to peers. Frames, keys and connections never leave an adapter: the engine sees whole
//! requests and whole answers.

use super::{Full, Time};
use crate::arena::{Frozen, Lease};
use crate::errors::{OriginErrorKind, ReadError};
use crate::identity::ObjectId;
pub use crate::placement::PeerId;

/// Names one request of one core to a peer; the core never reuses a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchTag(pub u64);

/// Names a peer's request while this core answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestHandle(pub u64);

/// How urgent a transfer is; queues are ordered by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A reader waits.
    Demand,
    /// A reader will probably ask soon.
    Prefetch,
    /// A warm-up.
    WarmUp,
}

/// One core of one peer: requests go to the core that their slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerCore {
    /// Whom.
    pub peer: PeerId,
    /// Which of its cores.
    pub core: u16,
}

/// A request for a range of one object version, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerFetch {
    /// Which version.
    pub object: ObjectId,
    /// Its length: who has the bytes can answer without knowing the object's name.
    pub size_bytes: u64,
    /// First byte, page-aligned.
    pub offset: u64,
    /// Bytes, at most `CHUNK_BYTES`, within one block.
    pub len_bytes: u32,
    /// Bytes from `offset` that will soon be needed, this range included.
    pub want_bytes: u32,
    /// How urgent.
    pub class: Class,
    /// Digest of the asker's view.
    pub view: u64,
    /// Answer only from cache, or from what is on its way from the origin already; never go to the origin, and
    /// never ask another peer.
    pub cached_only: bool,
    /// Answer although another member may own this range: that one did not answer, or passed it on.
    pub forwarded: bool,
    /// The last answer failed its checksums: check the bytes before they leave.
    pub verify: bool,
}

/// How a peer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchStatus {
    /// The bytes are in the destination.
    Bytes,
    /// Not all of it is cached, and `cached_only` was set.
    NotCached {
        /// The sub-blocks touched by the range that are cached, or on their way from the origin: a bit for each, the
        /// lowest for the first.
        here: u16,
        /// Who owned the range before the peer did, and is a member still: a newcomer knows only the last views.
        before: Option<PeerId>,
    },
    /// Another member owns this range.
    NotOwner {
        /// Who does, in the answering peer's view.
        owner: PeerId,
    },
    /// The id is unknown: describe the object first.
    NeedName,
    /// No room for one more request now; ask again, or another.
    Busy,
    /// The peer tried and failed.
    Failed(PeerFailure),
}

/// Why a peer could not bring what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerFailure {
    /// The origin failed it so.
    Origin(OriginErrorKind),
    /// Its bytes fail their checksums.
    Checksum,
    /// It ran out of time.
    Deadline,
    /// It is stopping.
    Shutdown,
    /// It does not understand the request.
    Invalid,
    /// Its origin is at another endpoint than what was asked for: it has nothing to say of that.
    Elsewhere,
}

impl PeerFailure {
    /// What a peer is told of an error.
    pub fn of(error: &ReadError) -> Self {
        match error {
            ReadError::Deadline => PeerFailure::Deadline,
            ReadError::VersionChanged => PeerFailure::Origin(OriginErrorKind::VersionChanged),
            ReadError::Origin(error) => PeerFailure::Origin(error.kind),
            ReadError::Checksum => PeerFailure::Checksum,
            ReadError::Invalid => PeerFailure::Invalid,
            ReadError::Shutdown => PeerFailure::Shutdown,
        }
    }
}

/// Why a request to a peer got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No connection, or it broke.
    #[error("unreachable")]
    Unreachable,
    /// No answer by the deadline.
    #[error("timed out")]
    Timeout,
    /// The peer broke the protocol.
    #[error("protocol violation")]
    Protocol,
    /// Cancelled by the engine.
    #[error("cancelled")]
    Cancelled,
}

/// What the engine asks of the transport.
#[derive(Debug)]
pub enum TransportOp {
    /// Ask a peer for bytes.
    Fetch {
        /// Names the request.
        tag: FetchTag,
        /// Whom.
        to: PeerCore,
        /// What.
        request: PeerFetch,
        /// Where the bytes go; its length is the request's.
        lease: Lease,
        /// After this the lease must be on its way back.
        deadline: Time,
    },
    /// Ask a peer for something else ([`crate::wire::call`]).
    Call {
        /// Names the request.
        tag: FetchTag,
        /// Whom.
        to: PeerCore,
        /// How urgent.
        class: Class,
        /// The question, at most `CALL_BYTES_MAX`.
        body: Box<[u8]>,
        /// Where the answer goes; it may be shorter.
        lease: Lease,
        /// After this the lease must be on its way back.
        deadline: Time,
    },
    /// Answer a peer's request.
    Answer {
        /// Which request.
        handle: RequestHandle,
        /// How.
        status: FetchStatus,
        /// With `Bytes`: what answers it.
        payload: Option<Payload>,
    },
}

/// Bytes that answer a peer, in the order of the answer. They must not change until the payload is back.
#[derive(Debug, Default)]
pub struct Payload {
    /// Slices of frozen buffers; not one of them empty, at most `PAYLOAD_PARTS_MAX`.
    pub parts: Vec<Frozen>,
    /// For a fetch: one for each page of the range. For a call: none.
    pub checksums: Vec<u32>,
}

impl Payload {
    /// Bytes of all parts.
    pub fn len_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }
}

/// What a peer asks.
#[derive(Debug)]
pub enum PeerAsk {
    /// Bytes.
    Fetch(PeerFetch),
    /// Something else ([`crate::wire::call`]).
    Call {
        /// The question.
        body: Box<[u8]>,
        /// The longest answer that the asker has room for.
        room_bytes: u32,
    },
}

/// What the transport tells.
#[derive(Debug)]
pub enum TransportEvent {
    /// A fetch or call of ours ended; the lease is back and no late write will touch it.
    Fetched {
        /// Which.
        tag: FetchTag,
        /// The destination.
        lease: Lease,
        /// The peer's answer, or why there is none.
        result: Result<FetchStatus, TransportError>,
        /// With `Bytes`: how many were written, from the lease's start.
        len_bytes: u32,
        /// With `Bytes` for a fetch: one for each page.
        checksums: Vec<u32>,
    },
    /// A peer asks.
    Request {
        /// Names the request until it is answered.
        handle: RequestHandle,
        /// Who.
        peer: PeerId,
        /// What.
        ask: PeerAsk,
        /// When the asker stops waiting, by this node's clock.
        deadline: Time,
    },
    /// A peer waits no more for a request that is not answered yet: it gave it up, or its connection is lost. A hint,
    /// which may not come: the request is answered all the same, and that answer goes nowhere.
    GivenUp {
        /// Which request.
        handle: RequestHandle,
    },
    /// An answer of ours has left (or its connection broke): the buffers are free again.
    Answered {
        /// Which request.
        handle: RequestHandle,
        /// The buffers, if the answer carried some.
        payload: Option<Payload>,
    },
}

/// The way to peers, owned by one core.
///
/// Rules that the conformance suite checks: every accepted `Fetch` or `Call` ends in exactly one `Fetched`
/// with its lease, by its deadline plus the time to flush the connection; bytes are never written
/// to a lease after it came back; every accepted `Answer` ends in one `Answered`, that to a request that was given up, too.
pub trait Transport {
    /// Starts an operation, or gives it back when credits or queues are used up.
    ///
    /// # Errors
    /// [`Full`] with the operation, untouched.
    // By value: boxing would allocate for each operation.
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>>;

    /// The next event, if there is one.
    fn poll(&mut self) -> Option<TransportEvent>;

    /// Asks for an early end of a fetch. Its `Fetched` still comes. Unknown tags are ignored.
    fn cancel(&mut self, tag: FetchTag);

    /// When it must be polled though nothing wakes the core: the next deadline or other timer of its own.
    fn wake_at(&self) -> Time {
        Time::NEVER
    }
}

/// A node without peers.
#[derive(Debug, Default)]
pub struct NoTransport {
    refused: std::collections::VecDeque<TransportEvent>,
}

impl Transport for NoTransport {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        self.refused.push_back(match op {
            TransportOp::Fetch { tag, lease, .. } | TransportOp::Call { tag, lease, .. } => {
                TransportEvent::Fetched {
                    tag,
                    lease,
                    result: Err(TransportError::Unreachable),
                    len_bytes: 0,
                    checksums: Vec::new(),
                }
            }
            TransportOp::Answer {
                handle, payload, ..
            } => TransportEvent::Answered { handle, payload },
        });
        Ok(())
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        self.refused.pop_front()
    }

    fn cancel(&mut self, _tag: FetchTag) {}
}
