//! The transport over TCP on real sockets.
//!
//! | module | holds |
//! |---|---|
//! | `faults` | peers that break the protocol, stop in the middle, or are slow |
//! | `golden` | the wire, byte by byte |
//! | `refusals` | who is not let in |
//! | `raw` | the other side by hand |
//! | `node` | one member: an endpoint and a transport turned by the test |
//! | `conformance` | the suite that every transport must pass |

mod conformance;
mod faults;
mod golden;
mod node;
mod raw;
mod refusals;
