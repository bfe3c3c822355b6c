//! The six ports: all that the engine needs from the world.
//!
//! Every port is non-blocking: `submit` gives the operation back when it is full, so that no
//! buffer is lost, and `poll` returns typed completions. One instance of each belongs to one
//! core and is called from that core's thread only.

mod block_device;
mod clock;
mod membership;
mod origin;
mod transport;

pub use block_device::*;
pub use clock::*;
pub use membership::*;
pub use origin::*;
pub use transport::*;

use crate::client::Reply;

/// The port is full; here is the operation back, untouched.
#[derive(Debug)]
pub struct Full<T>(pub T);

/// The bundle of adapters that a core runs on: six ports, and the type that answers a reader.
pub trait Platform: 'static {
    /// Blocks at rest on this node.
    type Device: BlockDevice;
    /// The way to peers.
    type Transport: Transport;
    /// Object storage.
    type Origin: Origin;
    /// Who is in the group.
    type Membership: Membership;
    /// Monotonic time.
    type Clock: Clock;
    /// Randomness for jitter; never for decisions about data.
    type Rng: Rng;
    /// How a front end's reader is answered. By value, so that no read allocates.
    type Reply: Reply;
}
