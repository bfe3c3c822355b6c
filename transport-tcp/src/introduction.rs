//! Proven connections on which two cores learn how to reach each other by RDMA.

use forebay_engine::ports::PeerCore;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A proven connection for one pair of cores, and what it was proven with.
#[derive(Debug)]
pub struct Introduction {
    /// The other end's core.
    pub peer: PeerCore,
    /// This end's core.
    pub core: u16,
    /// The connection: nothing was said on it since the proofs.
    pub stream: TcpStream,
    /// The dialer's first message, whole.
    pub hello: Vec<u8>,
    /// The acceptor's first message, whole.
    pub welcome: Vec<u8>,
}

/// Connections that peers made to be introduced. Dropped, they are refused.
#[derive(Debug)]
pub struct Introductions(pub(crate) mpsc::Receiver<Introduction>);

impl Introductions {
    /// The next one; none when the endpoint has ended.
    pub async fn next(&mut self) -> Option<Introduction> {
        self.0.recv().await
    }
}
