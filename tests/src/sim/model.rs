//! A group of up to thousands of nodes whose messages, links and origin take what they take on some machine: the production cores, unchanged, on virtual time.
//!
//! Unlike [`super::world`], which looks for faults, this asks how long things take. Nodes have memory and no disks. A core's own work takes no
//! virtual time but what [`Costs::read`] and [`Costs::read_bytes_per_s`] say.

mod readers;
mod run;

use std::time::Duration;

pub use run::{Phase, Run};

/// What things cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One way of a short message between two nodes.
    pub delay: Duration,
    /// What a node sends, and what it receives, at most.
    pub link_bytes_per_s: u64,
    /// From a GET to its first byte.
    pub origin_latency: Duration,
    /// Of one GET.
    pub origin_bytes_per_s: u64,
    /// What a reader's read takes beside the time until its bytes are there: kernel and front end.
    pub read: Duration,
    /// The same for each byte: copies, checksums.
    pub read_bytes_per_s: u64,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    /// Nobody has anything; each reader reads one object from beginning to end, the first the first and so on.
    Cold,
    /// The members have everything in memory; each reader reads blocks at random.
    Steady,
    /// The same, and a member more joins in the middle.
    Join,
    /// The same, and the first member is killed in the middle, its host too.
    Loss,
}

/// How much of what.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What things cost.
    pub costs: Costs,
    /// What happens.
    pub situation: Situation,
    /// Members of the group.
    pub members: usize,
    /// Take-only clients; where there are some, only they read. Else each member does.
    pub clients: usize,
    /// Memory of each node.
    pub memory_bytes: usize,
    /// Objects; each member warms some.
    pub objects: usize,
    /// Bytes of each.
    pub object_bytes: u64,
    /// Bytes of one read.
    pub block_bytes: u32,
    /// Random reads of each reader.
    pub reads: u64,
    /// Of places and times.
    pub seed: u64,
}
