//! Whose files are read: Forebay's mount, a mount in a group, the local file system.
//!
//! Peers' mounts are in [`crate::peers`].

pub mod forebay;
pub mod group;
pub mod local;
