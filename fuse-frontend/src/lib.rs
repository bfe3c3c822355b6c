//! Forebay's read-only file system over the engine's [`Client`](forebay_engine::client::Client).
//!
//! | module | holds |
//! |---|---|
//! | [`options`] | what a mount is told once |
//! | [`namespace`] | inodes, lookups, attributes, directories, handles: no kernel, no waiting |
//! | [`read_ahead`] | which bytes a handle will want next: pure logic |
//! | [`access`] | who reads what, while somebody records it |
//! | [`reply`] | how a reader is answered, and which errno says what |
//! | [`session`] | the shim from FUSE requests to the namespace; [`mount`] and [`MountHandle`] |
//! | `mount_point` | mount(2), unmount, `fusermount3`, the mount's own read-ahead |
//!
//! Nothing here waits: FUSE workers hand a request to the engine and take the next one; the
//! engine's core answers the kernel from its own thread.

#![forbid(unsafe_code)]

pub mod access;
pub mod namespace;
pub mod options;
pub mod read_ahead;
pub mod reply;
pub mod session;

mod mount_point;

pub use access::AccessLog;
pub use namespace::{Namespace, NamespaceStats};
pub use options::MountOptions;
pub use reply::{FuseReply, ReadReply};
pub use session::{KernelPages, MountHandle, mount};
