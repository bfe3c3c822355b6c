//! The way to peers. Frames, keys and connections never leave an adapter: the engine sees whole
//! requests and whole answers.

use super::{Full, PeerId, Time};
use crate::arena::{Frozen, Lease};
use crate::identity::ObjectId;

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

/// A request for a range of one object version, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerFetch {
    /// Which version.
    pub object: ObjectId,
    /// First byte, page-aligned.
    pub offset: u64,
    /// Bytes, at most `CHUNK_BYTES`.
    pub len_bytes: u32,
    /// Bytes from `offset` that will soon be needed, this range included.
    pub want_bytes: u32,
    /// How urgent.
    pub class: Class,
    /// Digest of the asker's view.
    pub view: u64,
    /// Answer only from cache; never go to the origin.
    pub cached_only: bool,
    /// This request was already passed on once.
    pub forwarded: bool,
}

/// How a peer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchStatus {
    /// The bytes are in the destination.
    Bytes,
    /// Not cached, and `cached_only` was set.
    NotCached,
    /// Another member owns this range.
    NotOwner {
        /// Who does, in the answering peer's view.
        owner: PeerId,
    },
    /// The id is unknown: describe the object first.
    NeedName,
    /// The peer tried and failed.
    Failed,
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
        peer: PeerId,
        /// What.
        request: PeerFetch,
        /// Where the bytes go; its length is the request's.
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
        /// With `Bytes`: the source buffer, the range in it, and the checksums of its pages.
        payload: Option<Payload>,
    },
}

/// Bytes that answer a peer.
#[derive(Debug)]
pub struct Payload {
    /// The buffer.
    pub bytes: Frozen,
    /// First byte in the buffer.
    pub start: usize,
    /// How many.
    pub len: usize,
    /// One per page of the range.
    pub checksums: Box<[u32]>,
}

/// What the transport tells.
#[derive(Debug)]
pub enum TransportEvent {
    /// A request of ours ended; the lease is back and no late write will touch it.
    Fetched {
        /// Which.
        tag: FetchTag,
        /// The destination.
        lease: Lease,
        /// The peer's answer, or why there is none.
        result: Result<FetchStatus, TransportError>,
        /// With `Bytes`: one per page.
        checksums: Box<[u32]>,
    },
    /// A peer asks.
    Request {
        /// Names the request until it is answered.
        handle: RequestHandle,
        /// Who.
        peer: PeerId,
        /// What.
        request: PeerFetch,
    },
    /// An answer of ours has left (or its connection broke): the buffer is free again.
    Answered {
        /// Which request.
        handle: RequestHandle,
        /// The buffer, if the answer carried one.
        payload: Option<Payload>,
    },
}

/// The way to peers, owned by one core.
///
/// Rules that the conformance suite checks: every accepted `Fetch` ends in exactly one `Fetched`
/// with its lease, by its deadline plus the time to flush the connection; bytes are never written
/// to a lease after it came back; every accepted `Answer` ends in one `Answered`.
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
}

/// A node without peers.
#[derive(Debug, Default)]
pub struct NoTransport {
    refused: std::collections::VecDeque<TransportEvent>,
}

impl Transport for NoTransport {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        self.refused.push_back(match op {
            TransportOp::Fetch { tag, lease, .. } => TransportEvent::Fetched {
                tag,
                lease,
                result: Err(TransportError::Unreachable),
                checksums: Box::default(),
            },
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
