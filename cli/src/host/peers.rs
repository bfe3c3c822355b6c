//! The two ports of a cache group: over TCP with views, or for a node on its own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_engine::placement::{PeerId, Placement};
use forebay_engine::ports::{
    FetchTag, Full, Membership, NoTransport, Solo, Time, Transport, TransportEvent, TransportOp,
};
use forebay_engine::ring::Doorbell;
use forebay_membership::views::{CoreViews, Views};
use forebay_transport_tcp::{Endpoint, TcpTransport};

use super::clock::MonotonicClock;

/// What the cores of a node in a group are made with.
#[derive(Clone, Debug)]
pub struct Peers {
    /// This node.
    pub me: PeerId,
    /// Disks keep what others own, too.
    pub keep_copies: bool,
    /// Makes each core's transport.
    pub endpoint: Endpoint,
    /// Where views come from.
    pub views: Views,
}

/// A core's way to peers.
#[derive(Debug)]
pub enum HostTransport {
    /// There are none.
    None(NoTransport),
    /// Over TCP. Boxed: a node on its own does not carry it.
    Tcp(Box<TcpTransport>),
}

impl HostTransport {
    /// The transport of one core, made on its thread, and the descriptor that its thread must also wait for.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(
        peers: Option<&Peers>,
        core: usize,
        doorbell: Arc<Doorbell>,
        clock: MonotonicClock,
    ) -> io::Result<(Self, Option<OwnedFd>)> {
        let Some(peers) = peers else {
            return Ok((Self::None(NoTransport::default()), None));
        };
        let core = u16::try_from(core).map_err(io::Error::other)?;
        let transport = peers.endpoint.transport(core, doorbell, clock)?;
        let fd = transport.fd().try_clone_to_owned()?;
        Ok((Self::Tcp(Box::new(transport)), Some(fd)))
    }
}

impl Transport for HostTransport {
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        match self {
            Self::None(transport) => transport.submit(op),
            Self::Tcp(transport) => transport.submit(op),
        }
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        match self {
            Self::None(transport) => transport.poll(),
            Self::Tcp(transport) => transport.poll(),
        }
    }

    fn cancel(&mut self, tag: FetchTag) {
        match self {
            Self::None(transport) => transport.cancel(tag),
            Self::Tcp(transport) => transport.cancel(tag),
        }
    }

    fn wake_at(&self) -> Time {
        match self {
            Self::None(transport) => transport.wake_at(),
            Self::Tcp(transport) => transport.wake_at(),
        }
    }
}

/// Where a core learns who is in the group.
#[derive(Debug)]
pub enum HostMembership {
    /// Nobody else.
    Solo(Solo),
    /// From the group's views.
    Group(CoreViews),
}

impl HostMembership {
    /// The membership of one core.
    pub fn new(peers: Option<&Peers>) -> Self {
        match peers {
            None => Self::Solo(Solo),
            Some(peers) => Self::Group(peers.views.for_core()),
        }
    }
}

impl Membership for HostMembership {
    fn poll(&mut self) -> Option<Arc<Placement>> {
        match self {
            Self::Solo(membership) => membership.poll(),
            Self::Group(membership) => membership.poll(),
        }
    }
}
