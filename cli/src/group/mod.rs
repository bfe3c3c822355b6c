//! This node in its cache group: from the flags to a running membership.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | what the flags ask for, checked |
//! | [`running`] | the endpoint, the membership and the views, until the end |
//! | [`weight`] | this member's weight: given, or what its disks that work can hold |
//! | [`report`] | what `status` tells of the group |
//! | [`alone`] | a member without others: said, and why |
//! | `elsewhere` | members that read from another S3 endpoint: named |
//! | [`draining`], [`routes`] | leaving with everything: started, stopped, watched |
//! | [`rails`], [`rdma`] | the member's addresses that RDMA ports have, and how cores are introduced to each other's |
//! | [`stats`] | what `stats --group` tells: every member's counters |

pub mod alone;
pub mod draining;
mod elsewhere;
pub mod plan;
pub mod rails;
pub mod rdma;
pub mod report;
pub mod routes;
pub mod running;
pub mod stats;
pub mod weight;

pub use plan::{GroupPlan, Role};
pub use running::Group;
