//! A mount's accesses as a trace: offsets, sizes and times, no contents.
//!
//! | module | holds |
//! |---|---|
//! | [`format`] | the file's format (docs/trace-format.md): encoder and decoder |
//! | `writer` | accesses of a recording become frames of it |
//! | [`routes`] | the daemon's side: `GET /accesses` on the control socket |
//! | [`follower`] | the side of who records |

pub mod follower;
pub mod format;
pub mod routes;
mod writer;
