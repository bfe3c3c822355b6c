//! The two ports of a cache group: over RDMA and TCP with views, or for a node on its own.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result};
use forebay_engine::arena::Arena;
use forebay_engine::placement::{PeerId, Placement};
use forebay_engine::ports::{
    FetchTag, Full, Membership, NoTransport, PeerCore, Solo, Time, Transport, TransportEvent,
    TransportOp,
};
use forebay_engine::ring::Doorbell;
use forebay_membership::views::{CoreViews, Views};
use forebay_transport_rdma::auto::{Auto, BEING_MADE, Path};
use forebay_transport_rdma::{Endpoint as Rdma, LinkedTransport, WeakEndpoint as WeakRdma};
use forebay_transport_tcp::{Endpoint, TcpTransport};
use parking_lot::Mutex;

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
    /// Makes each core's way by RDMA, where this node has one.
    pub rdma: Option<RdmaWay>,
    /// Where views come from.
    pub views: Views,
}

/// A node's way to peers by RDMA.
#[derive(Clone, Debug)]
pub struct RdmaWay {
    /// Makes connections.
    pub endpoint: Rdma,
    /// Each link that takes TCP is warned of, and a core without RDMA is an error.
    must: bool,
    shown: Arc<Shown>,
}

/// What cores tell of their links, for `status`.
#[derive(Debug, Default)]
struct Shown {
    /// By this node's core and the peer's.
    paths: Mutex<BTreeMap<(u16, PeerCore), Path>>,
    /// Why cores have no RDMA.
    failed: Mutex<BTreeMap<u16, String>>,
    /// Why addresses of this node have no rail.
    missing: Mutex<Vec<String>>,
}

/// An [`RdmaWay`] that ends all the same when all others are gone.
#[derive(Debug)]
pub struct WeakWay {
    endpoint: WeakRdma,
    must: bool,
    shown: Arc<Shown>,
}

impl WeakWay {
    /// The way, while there is one.
    pub fn upgrade(&self) -> Option<RdmaWay> {
        Some(RdmaWay {
            endpoint: self.endpoint.upgrade()?,
            must: self.must,
            shown: self.shown.clone(),
        })
    }
}

impl RdmaWay {
    /// Over `endpoint`. With `must`, each link that takes TCP is warned of, and a core without RDMA is an error.
    pub fn new(endpoint: Rdma, must: bool) -> Self {
        Self {
            endpoint,
            must,
            shown: Arc::default(),
        }
    }

    /// Why a link takes TCP; none when it takes RDMA, or was not used.
    pub fn why_tcp(&self, core: u16, to: PeerCore) -> Option<String> {
        match self.shown.paths.lock().get(&(core, to)) {
            Some(Path::Tcp(why)) => Some(why.clone()),
            _ => None,
        }
    }

    /// Why cores have no RDMA, if some have not.
    pub fn failed(&self) -> Option<String> {
        let failed = self.shown.failed.lock();
        let lines = failed
            .iter()
            .map(|(core, why)| format!("core {core}: {why}"));
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// The same, without keeping it.
    pub fn weak(&self) -> WeakWay {
        WeakWay {
            endpoint: self.endpoint.downgrade(),
            must: self.must,
            shown: self.shown.clone(),
        }
    }

    /// Why addresses of this node have no rail.
    pub fn missing(&self) -> Vec<String> {
        self.shown.missing.lock().clone()
    }

    /// Whether one has none, or there is none at all.
    pub fn is_missing_some(&self) -> bool {
        !self.shown.missing.lock().is_empty() || self.endpoint.rails().is_empty()
    }

    /// Tells why addresses of this node have no rail.
    pub fn set_missing(&self, missing: Vec<String>) {
        *self.shown.missing.lock() = missing;
    }

    /// Forgets links to peers that are not `known` any more.
    pub fn retain(&self, known: impl Fn(PeerId) -> bool) {
        self.endpoint.retain_links(|to| known(to.peer));
        self.shown.paths.lock().retain(|(_, to), _| known(to.peer));
    }

    /// A core's transport; none when this core has to do without.
    fn transport(
        &self,
        core: u16,
        arena: &Arena,
        doorbell: Arc<Doorbell>,
        clock: MonotonicClock,
    ) -> Result<Option<LinkedTransport>> {
        match self.endpoint.transport(core, arena, doorbell, clock) {
            Ok(transport) => Ok(Some(transport)),
            Err(error) if self.must => Err(error).context("--transport rdma"),
            Err(error) => {
                tracing::warn!("engine core {core} speaks TCP alone: {error}");
                self.shown.failed.lock().insert(core, error.to_string());
                Ok(None)
            }
        }
    }

    fn watch(&self, core: u16) -> impl FnMut(PeerCore, &Path) + 'static {
        let (shown, must) = (self.shown.clone(), self.must);
        move |to, path| {
            match path {
                Path::Tcp(why) if must && why != BEING_MADE => {
                    tracing::warn!(peer = to.peer.0, core = to.core, "a link takes TCP: {why}");
                }
                _ => tracing::debug!(peer = to.peer.0, core = to.core, "a link takes {path:?}"),
            }
            shown.paths.lock().insert((core, to), path.clone());
        }
    }
}

/// A core's way to peers.
#[derive(Debug)]
pub enum HostTransport {
    /// There are none.
    None(NoTransport),
    /// Over TCP. Boxed: a node on its own does not carry it.
    Tcp(Box<TcpTransport>),
    /// Over RDMA where a link has it, else over TCP.
    Auto(Box<Auto<LinkedTransport, TcpTransport>>),
}

impl HostTransport {
    /// The transport of one core, made on its thread, and the descriptors that its thread must also wait for. All leases and
    /// payloads are of `arena`.
    ///
    /// # Errors
    /// When the process has no descriptor left, or with `--transport rdma` its devices refuse.
    pub fn new(
        peers: Option<&Peers>,
        core: usize,
        arena: &Arena,
        doorbell: &Arc<Doorbell>,
        clock: MonotonicClock,
    ) -> Result<(Self, Vec<OwnedFd>)> {
        let Some(peers) = peers else {
            return Ok((Self::None(NoTransport::default()), Vec::new()));
        };
        let core = u16::try_from(core).map_err(io::Error::other)?;
        let tcp = peers.endpoint.transport(core, doorbell.clone(), clock)?;
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let mut fds = vec![own(tcp.fd())?];
        let rdma = peers.rdma.as_ref();
        let linked = rdma
            .map(|way| way.transport(core, arena, doorbell.clone(), clock))
            .transpose()?
            .flatten();
        let (Some(way), Some(linked)) = (rdma, linked) else {
            return Ok((Self::Tcp(Box::new(tcp)), fds));
        };
        fds.push(own(linked.fd())?);
        let auto = Auto::new(linked, tcp, clock).watched(Box::new(way.watch(core)));
        Ok((Self::Auto(Box::new(auto)), fds))
    }
}

impl Transport for HostTransport {
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        match self {
            Self::None(transport) => transport.submit(op),
            Self::Tcp(transport) => transport.submit(op),
            Self::Auto(transport) => transport.submit(op),
        }
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        match self {
            Self::None(transport) => transport.poll(),
            Self::Tcp(transport) => transport.poll(),
            Self::Auto(transport) => transport.poll(),
        }
    }

    fn cancel(&mut self, tag: FetchTag) {
        match self {
            Self::None(transport) => transport.cancel(tag),
            Self::Tcp(transport) => transport.cancel(tag),
            Self::Auto(transport) => transport.cancel(tag),
        }
    }

    fn wake_at(&self) -> Time {
        match self {
            Self::None(transport) => transport.wake_at(),
            Self::Tcp(transport) => transport.wake_at(),
            Self::Auto(transport) => transport.wake_at(),
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
