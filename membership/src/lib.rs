//! Who is in the cache group.
//!
//! Members gossip over UDP (`chitchat`, each datagram sealed with the group's secret) and publish what others
//! need to place and reach them. From each change of the serving members follows a view and its placement, made
//! here and handed to the engine's cores. Take-only clients do not gossip: they ask a member
//! (`docs/decisions/0022-membership.md`).
//!
//! | module | role |
//! |---|---|
//! | [`identity`] | ids that survive restarts |
//! | [`secret`] | the group's secret, and keys made from it |
//! | [`seal`], `fragments`, `socket` | datagrams: proof, size, and chitchat's transport over them |
//! | [`record`] | what a member publishes |
//! | `liveness` | who was heard lately |
//! | [`gossip`] | a member: joins, follows the others, leaves |
//! | [`views`] | the newest view, for cores and for whoever waits |
//! | [`follow`] | views for take-only clients, both sides |
//! | [`seeds`] | where to look for members first |
//! | [`local`] | this machine's addresses, `--group-ip` |

pub mod follow;
mod fragments;
pub mod gossip;
pub mod identity;
mod liveness;
pub mod local;
pub mod record;
mod replays;
pub mod seal;
pub mod secret;
pub mod seeds;
mod socket;
pub mod views;

/// The port of gossip (UDP) and of peers' data and control (TCP), when none is given.
pub const PORT_DEFAULT: u16 = 7440;
