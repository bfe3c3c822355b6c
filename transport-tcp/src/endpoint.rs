//! A member's address.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use forebay_engine::limits::{CORES_MAX, PEER_CREDIT_BYTES_MIN};
use forebay_engine::placement::View;
use forebay_engine::ports::{Clock, PeerCore, PeerId};
use forebay_engine::ring::Doorbell;
use forebay_engine::wire::hello::{Key, Purpose, Refusal};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::dial::DialError;
use crate::introduction::{Introduction, Introductions};
use crate::limits::{CONTROL_WAITING_MAX, CREDIT_BYTES_DEFAULT, INTRODUCTIONS_WAITING_MAX};
use crate::links::LinkStatus;
use crate::shared::Shared;
use crate::transport::TcpTransport;
use crate::{accept, dial};

/// What an endpoint is started with.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Who this node is.
    pub me: PeerId,
    /// The cache group.
    pub group: String,
    /// The group's secret. Without one only peers on the loopback interface are talked to.
    pub secret: Option<Key>,
    /// Where to listen; port 0 takes a free one. Empty for a node that only asks.
    pub listen: Vec<SocketAddr>,
    /// Engine cores of this node.
    pub cores: u16,
    /// Bytes of answers under way that each connection to this node is granted; at least
    /// `PEER_CREDIT_BYTES_MIN`.
    pub credit_bytes: u32,
    /// Where connections are made and proven.
    pub runtime: Handle,
}

impl EndpointConfig {
    /// An endpoint without secret and listeners, with one core.
    pub fn new(me: PeerId, group: &str, runtime: Handle) -> Self {
        Self {
            me,
            group: group.to_owned(),
            secret: None,
            listen: Vec::new(),
            cores: 1,
            credit_bytes: CREDIT_BYTES_DEFAULT,
            runtime,
        }
    }
}

/// Why an endpoint did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}; is another Forebay using it?")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// More cores than there may be.
    #[error("{0} cores: at most {CORES_MAX} are possible")]
    Cores(u16),
}

/// A member's address: listens, dials, proves, and knows where others are. Clones are the same one; the last
/// one that goes stops listening. Connections that cores have got live on.
#[derive(Clone, Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    listening: Arc<Listening>,
}

#[derive(Debug)]
struct Listening {
    addresses: Vec<SocketAddr>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Control connections that peers made, each proven, and whose they are. Dropped, they are refused.
#[derive(Debug)]
pub struct ControlIncoming(mpsc::Receiver<(PeerId, TcpStream)>);

impl ControlIncoming {
    /// The next one; none when the endpoint has ended.
    pub async fn next(&mut self) -> Option<(PeerId, TcpStream)> {
        self.0.recv().await
    }
}

impl Endpoint {
    /// Listens, and answers handshakes from now on. Connections for cores are refused until the core has
    /// its transport.
    ///
    /// # Errors
    /// What cannot be listened on, and why.
    pub fn start(config: EndpointConfig) -> Result<(Endpoint, ControlIncoming), StartError> {
        if usize::from(config.cores) > CORES_MAX {
            return Err(StartError::Cores(config.cores));
        }
        let (control, incoming) = mpsc::channel(CONTROL_WAITING_MAX);
        let shared = Shared::new(
            (config.me, config.group, config.secret),
            config.cores,
            config.credit_bytes.max(PEER_CREDIT_BYTES_MIN as u32),
            config.runtime.clone(),
            control,
        );
        let mut listening = Listening {
            addresses: Vec::new(),
            tasks: Vec::new(),
        };
        let _context = config.runtime.enter();
        for address in config.listen {
            let listen = || -> io::Result<_> {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let bound = listener.local_addr()?;
                Ok((tokio::net::TcpListener::from_std(listener)?, bound))
            };
            let (listener, bound) =
                listen().map_err(|error| StartError::Listen { address, error })?;
            let task = config.runtime.spawn(accept::run(shared.clone(), listener));
            listening.addresses.push(bound);
            listening.tasks.push(task.abort_handle());
        }
        let endpoint = Endpoint {
            shared,
            listening: Arc::new(listening),
        };
        Ok((endpoint, ControlIncoming(incoming)))
    }

    /// Addresses that are listened on, with the ports that were free.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.listening.addresses
    }

    /// The transport of one core, to be made and used on its thread. `doorbell` wakes that thread, which must
    /// also wait for [`TcpTransport::fd`].
    ///
    /// # Errors
    /// When there is no such core, or the process has no descriptor left.
    pub fn transport(
        &self,
        core: u16,
        doorbell: Arc<Doorbell>,
        clock: impl Clock + 'static,
    ) -> io::Result<TcpTransport> {
        TcpTransport::new(self.shared.clone(), core, doorbell, Box::new(clock))
    }

    /// Lets peers ask for RDMA from now on, and hands them out; none when that was asked for before.
    pub fn introductions(&self) -> Option<Introductions> {
        let (sender, incoming) = mpsc::channel(INTRODUCTIONS_WAITING_MAX);
        let first = self.shared.introductions.set(sender).is_ok();
        first.then_some(Introductions(incoming))
    }

    /// A proven connection on which `to` says how this node's `core` reaches it by RDMA.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn introduce(&self, core: u16, to: PeerCore) -> Result<Introduction, DialError> {
        dial::for_rdma(&self.shared, core, to).await
    }

    /// Tells where members are from now on.
    pub fn set_members(&self, view: &View) {
        self.shared.set_members(view);
    }

    /// Every connection between cores, and those that should be there.
    pub fn links(&self) -> Vec<LinkStatus> {
        self.shared.links()
    }

    /// How many connections were refused so far, by either side, and why.
    pub fn refusals(&self) -> Vec<(Refusal, u64)> {
        self.shared.refusals()
    }

    /// A control connection to whoever is at that address, and who that is.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect_control(
        &self,
        address: SocketAddr,
    ) -> Result<(PeerId, TcpStream), DialError> {
        let (host, stream) = dial::connect(&self.shared, address, Purpose::Control, None).await?;
        Ok((host.from, stream))
    }
}
