//! The way to peers over TCP.
//!
//! Connections are made, accepted and proven on the control runtime, and handed to the core that they are
//! for. There one [`TcpTransport`] works them in the core's turn: no thread of its own, no lock, no blocking
//! call. Frames are those of `forebay_engine::wire`; bytes go straight from frozen buffers to the socket, and
//! from the socket into the lease.
//!
//! | module | holds |
//! |---|---|
//! | `endpoint` | [`Endpoint`]: a member's address; starts, tells who is where, hands out the rest |
//! | `accept`, `dial` | connections from and to peers, until they are proven |
//! | `handshake` | hello, welcome and proofs on one connection |
//! | `introduction` | connections on which two cores learn how to reach each other by RDMA; the rest of that is not in here |
//! | `shared` | what all of these know: the address book, the seats of the cores, refusals |
//! | `links` | the state of each connection, for people |
//! | `transport` | [`TcpTransport`]: one core's turn over its connections |
//! | `asking` | connections that this core asks on: requests, answers, deadlines, back-off |
//! | `link` | one of those: its state, and what is asked on it |
//! | `serving` | connections that peers ask this core on |
//! | `outbox` | frames on their way out, by class |
//! | `socket` | a connection's socket, and the buffer behind it |
//! | `limits` | every bound and time |
//!
//! A connection carries requests one way: who dialled asks. Two members that ask each other have two.

#![forbid(unsafe_code)]

mod accept;
mod asking;
mod dial;
mod endpoint;
mod handshake;
mod introduction;
pub mod limits;
mod link;
mod links;
mod outbox;
mod serving;
mod shared;
mod socket;
mod transport;

pub use dial::DialError;
pub use endpoint::{ControlIncoming, Endpoint, EndpointConfig, StartError};
pub use forebay_engine::wire::hello::{Key, Refusal};
pub use introduction::{Introduction, Introductions};
pub use links::{LinkState, LinkStatus};
pub use transport::TcpTransport;
