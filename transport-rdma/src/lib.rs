//! The way to peers over RDMA: [`Endpoint`], a member's, and [`LinkedTransport`], one core's. How cores prove each other
//! over TCP is not in here: who starts an endpoint carries its questions there ([`endpoint::Invite`]).
//!
//! libibverbs is loaded when RDMA is first wanted, so the same binary starts on machines without it.
//!
//! | module | holds |
//! |---|---|
//! | `address` | what a queue pair's peer must know: [`Gid`], [`PortAddress`], [`PeerAddress`] |
//! | `status` | what became of work: [`Completion`], [`WorkFault`] |
//! | `events` | what devices tell unasked: [`DeviceEvent`] |
//! | `error` | [`VerbsError`], [`PostError`] |
//! | `verbs` | libibverbs behind safe types: [`Verbs`], [`Device`], [`ProtectionDomain`], [`CompletionQueue`], [`MemoryRegion`], [`ArenaRegion`], [`QueuePair`], [`Cm`]; all unsafe code, but for `rail`'s two promises |
//! | [`asking`], [`serving`] | one connection, from either end: what is under way on it, and whose leases may still be written into; no device in there |
//! | `rail`, `rails`, `wire`, `connection` | what a core has of a device, and of all of them; one connection's queue pair and slots; its rules over those |
//! | `transport` | one core's turn over its connections: [`RdmaTransport`] |
//! | [`endpoint`] | a member's rails: starts, lets peers in, hands out transports |
//! | `connector` | what the control thread does by rdma_cm; in its tests a script |
//! | `control`, `seat` | the thread that makes connections by rdma_cm, and what it and the cores tell each other |
//! | `linked` | one core's transport, which has its connections made: [`LinkedTransport`] |
//! | [`links`] | the state of each connection, for people |
//! | `message` | what travels between the two |
//! | [`introduce`] | how two cores that proved each other over TCP find each other's queue pair; no device in there |
//! | `ways` | by which addresses a connection goes |
//! | `ports` | which ports are down, and how often people are told |
//! | `gids` | whether the kernel chose the GID that it should |
//! | `numa` | which memory a device and a thread are near to |
//! | [`auto`] | this way and TCP as one: which a link takes, and what happens when a queue pair breaks |
//! | [`inventory`] | what RDMA a machine has, and which ports are a member's rails |
//! | `limits` | every bound and time |
//!
//! # Whose is what
//!
//! Each object keeps what it was made from: a queue pair its completion queues and protection domain, a
//! region its domain, all of them the device. Handles may be dropped in any order; what lies below goes last.
//! None leaves the thread that made it:
//!
//! ```compile_fail,E0277
//! fn leaves_its_thread<T: Send>() {}
//! leaves_its_thread::<forebay_transport_rdma::QueuePair>();
//! ```
//! ```compile_fail,E0277
//! fn leaves_its_thread<T: Send>() {}
//! leaves_its_thread::<forebay_transport_rdma::CompletionQueue>();
//! ```
//! ```compile_fail,E0277
//! fn leaves_its_thread<T: Send>() {}
//! leaves_its_thread::<forebay_transport_rdma::MemoryRegion>();
//! ```
//!
//! A slice of a region cannot outlive it:
//!
//! ```
//! # fn is_there<T>() {}
//! # is_there::<(forebay_transport_rdma::QueuePair, forebay_transport_rdma::CompletionQueue)>();
//! fn in_time(region: forebay_transport_rdma::MemoryRegion, pair: &forebay_transport_rdma::QueuePair) {
//!     let slice = region.slice(0, 8).unwrap();
//!     pair.post_send(1, slice, true).unwrap();
//!     drop(region);
//! }
//! ```
//! ```compile_fail,E0505
//! fn outlives(region: forebay_transport_rdma::MemoryRegion, pair: &forebay_transport_rdma::QueuePair) {
//!     let slice = region.slice(0, 8).unwrap();
//!     drop(region);
//!     pair.post_send(1, slice, true).unwrap();
//! }
//! ```

#![deny(unsafe_code)]

mod address;
pub mod asking;
pub mod auto;
mod connection;
mod connector;
mod control;
pub mod endpoint;
mod error;
mod events;
mod gids;
pub mod introduce;
pub mod inventory;
pub mod limits;
mod linked;
pub mod links;
mod message;
mod numa;
mod ports;
mod rail;
mod rails;
mod seat;
pub mod serving;
mod status;
mod transport;
#[allow(unsafe_code)]
mod verbs;
mod ways;
mod wire;

pub use address::{Gid, GidEntry, GidKind, LinkLayer, Mtu, PeerAddress, PortAddress, PortInfo};
pub use endpoint::{Endpoint, EndpointConfig, WeakEndpoint};
pub use error::{PostError, VerbsError};
pub use events::DeviceEvent;
pub use linked::LinkedTransport;
pub use rail::RailConfig;
pub use status::{Completed, Completion, WorkFault, WorkKind};
pub use transport::RdmaTransport;
pub use verbs::{
    Access, ArenaRegion, Batch, Cm, CmEvent, CmId, CmPlace, CompletionChannel, CompletionQueue,
    ConnectSteps, Device, DeviceInfo, LocalSlice, MemoryRegion, Parcel, PrepareStep,
    ProtectionDomain, QueuePair, QueuePairSize, RemoteSlice, Verbs,
};
pub use wire::ConnectionId;
