//! What moves bytes between two processes on this host: our transport, and the yardsticks.
//!
//! | module | holds |
//! |---|---|
//! | [`ours`] | fetches from another process by our transports |
//! | [`read_or_write`] | blocks over verbs, moved by either end |
//! | [`node`] | who asks, and the process that answers |
//! | [`port`] | the RDMA port that is measured |
//! | [`perftest`] | messages over RDMA |
//! | [`iperf3`] | one stream of bytes |
//! | [`ucx`] | messages over UCX on TCP |

pub mod iperf3;
pub mod node;
pub mod ours;
pub mod perftest;
pub mod port;
pub mod read_or_write;
pub mod ucx;

use std::net::TcpListener;
use std::process::Child;

use anyhow::Result;

/// A child that is killed when it is not needed any more.
#[derive(Debug)]
pub(crate) struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
