//! Who is in the group.

use std::sync::Arc;

/// A member of the group, stable across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// One serving member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub id: PeerId,
    /// Share of the ring, relative to the others'; 0 hands everything over.
    pub weight: u32,
    /// Engine cores: slots map onto them by contiguous ranges.
    pub cores: u16,
    /// `address:port` that peers connect to.
    pub address: Arc<str>,
}

/// The serving members at one moment, and what identifies that set.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Digest of the members; travels on the wire.
    pub digest: u64,
    /// Sorted by id.
    pub members: Vec<Member>,
}

/// Tells views as they change.
pub trait Membership {
    /// A view newer than the one returned last, if there is one.
    fn poll(&mut self) -> Option<Arc<View>>;
}

/// A node on its own: no group, no peers.
#[derive(Debug, Default)]
pub struct Solo;

impl Membership for Solo {
    fn poll(&mut self) -> Option<Arc<View>> {
        None
    }
}
