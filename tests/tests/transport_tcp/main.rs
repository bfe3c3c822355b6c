//! The transport over TCP on real sockets.
//!
//! | module | holds |
//! |---|---|
//! | `node` | one member: an endpoint and a transport turned by the test |
//! | `conformance` | the suite that every transport must pass |

mod conformance;
mod node;
