//! The control API of a mount: HTTP over a Unix socket of its own.
//!
//! | module | holds |
//! |---|---|
//! | [`report`], [`disk_report`] | what `/status` and `/stats` answer: the keys of `--json` |
//! | [`sockets`] | where sockets lie, and which of them are alive |
//! | [`server`] | answers on the mount's side |
//! | [`client`] | asks, on the command's side |
//! | [`process`] | whether a daemon lives |
//! | [`outcome`] | how a drain ended, for who asks when the daemon is gone |

pub mod client;
pub mod disk_report;
pub mod outcome;
pub mod process;
pub mod report;
#[cfg(test)]
pub(crate) mod scripted;
pub mod server;
pub mod sockets;
