//! Connections to peers, until they are proven.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::ports::{PeerCore, PeerId};
use forebay_engine::wire::hello::{Purpose, Refusal};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::handshake::{self, Failure, Host};
use crate::introduction::Introduction;
use crate::limits::{CONNECT_MS, HANDSHAKE_MS};
use crate::shared::{Arrival, Dialled, Seat, Shared};
use crate::socket;

/// Why there is no connection to a peer.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The view does not know that peer.
    #[error("no address is known: it is not in the view")]
    NoAddress,
    /// It is not reached.
    #[error("{address}: cannot connect: {error}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// It was reached and does not answer as a member does.
    #[error("{address}: the handshake failed: {error}")]
    Handshake {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// It is not in time.
    #[error("{address}: no answer within {after_ms} ms")]
    Timeout {
        /// Where.
        address: SocketAddr,
        /// After this.
        after_ms: u64,
    },
    /// One side refuses the other.
    #[error("{address}: {} {reason}", if *.by_peer { "it refuses:" } else { "refused:" })]
    Refused {
        /// Where.
        address: SocketAddr,
        /// Whether it refuses us; else we refuse it.
        by_peer: bool,
        /// Why.
        reason: Refusal,
    },
}

impl DialError {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            DialError::Refused { reason, .. } => Some(*reason),
            _ => None,
        }
    }
}

/// Makes a connection for a core, and tells its seat.
pub(crate) async fn for_core(shared: Arc<Shared>, seat: Arc<Seat>, core: u16, to: PeerCore) {
    let result = to_core(&shared, core, to).await;
    if let Err(DialError::Refused {
        address, reason, ..
    }) = &result
    {
        shared.refused(*reason, address);
    }
    seat.push(Arrival::Dialled { to, result });
}

async fn to_core(shared: &Shared, core: u16, to: PeerCore) -> Result<Dialled, DialError> {
    let purpose = Purpose::Core {
        from_core: core,
        to_core: to.core,
    };
    let (address, host, stream) = to_peer(shared, core, to.peer, purpose).await?;
    let stream = stream
        .into_std()
        .map_err(|error| DialError::Handshake { address, error })?;
    Ok(Dialled {
        stream,
        credit_bytes: host.credit_bytes,
    })
}

/// Tries the peer's addresses, beginning with another one for each core.
async fn to_peer(
    shared: &Shared,
    core: u16,
    to: PeerId,
    purpose: Purpose,
) -> Result<(SocketAddr, Host, TcpStream), DialError> {
    let addresses = shared.addresses(to).ok_or(DialError::NoAddress)?;
    let mut last = DialError::NoAddress;
    for n in 0..addresses.len() {
        let address = addresses[(n + usize::from(core)) % addresses.len()];
        match connect(shared, address, purpose, Some(to)).await {
            Ok((host, stream)) => return Ok((address, host, stream)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A proven connection on which a peer's core says how it is reached by RDMA.
pub(crate) async fn for_rdma(
    shared: &Shared,
    core: u16,
    to: PeerCore,
) -> Result<Introduction, DialError> {
    let purpose = Purpose::Rdma {
        from_core: core,
        to_core: to.core,
    };
    let (_, host, stream) = to_peer(shared, core, to.peer, purpose).await?;
    Ok(Introduction {
        peer: to,
        core,
        stream,
        hello: host.began.hello,
        welcome: host.began.welcome,
    })
}

/// One proven connection.
pub(crate) async fn connect(
    shared: &Shared,
    address: SocketAddr,
    purpose: Purpose,
    to: Option<PeerId>,
) -> Result<(Host, TcpStream), DialError> {
    if !shared.may_talk_to(address.ip()) {
        return Err(DialError::Refused {
            address,
            by_peer: false,
            reason: Refusal::NoSecret,
        });
    }
    let late = |after_ms| move |_| DialError::Timeout { address, after_ms };
    let connecting = timeout(
        Duration::from_millis(CONNECT_MS),
        TcpStream::connect(address),
    );
    let mut stream = connecting
        .await
        .map_err(late(CONNECT_MS))?
        .map_err(|error| DialError::Connect { address, error })?;
    socket::tune(&stream).map_err(|error| DialError::Connect { address, error })?;
    let shaking = timeout(
        Duration::from_millis(HANDSHAKE_MS),
        handshake::dial(shared, &mut stream, purpose, to),
    );
    let refused = |by_peer, reason| DialError::Refused {
        address,
        by_peer,
        reason,
    };
    let host = shaking
        .await
        .map_err(late(HANDSHAKE_MS))?
        .map_err(|failure| match failure {
            Failure::Io(error) => DialError::Handshake { address, error },
            Failure::RefuseProof => refused(false, Refusal::Secret),
            Failure::Refuse(reason) => refused(false, reason),
            Failure::Refused(reason) => refused(true, reason),
        })?;
    Ok((host, stream))
}
