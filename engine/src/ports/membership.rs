//! Who is in the group.

use std::sync::Arc;

use crate::placement::Placement;

/// Tells placements as the group's members change.
pub trait Membership {
    /// The placement of a view newer than the one returned last, if there is one. A node that never gets
    /// one is on its own.
    fn poll(&mut self) -> Option<Arc<Placement>>;
}

/// A node on its own: no group, no peers.
#[derive(Debug, Default)]
pub struct Solo;

impl Membership for Solo {
    fn poll(&mut self) -> Option<Arc<Placement>> {
        None
    }
}
