//! Safe types over the functions of SPDK.
//!
//! | module | holds |
//! |---|---|
//! | `start` | SPDK's environment: DPDK's memory and buses |
//! | `controller` | an attached controller and its namespaces |
//! | `queue_pair` | a queue pair and the buffers that the device has |
//! | `memory` | memory that PCI devices may reach |

mod controller;
mod memory;
mod queue_pair;
mod start;

pub(crate) use controller::{ConnectOptions, Identity, RawController, RawNamespace, connect};
pub(crate) use memory::Registration;
pub(crate) use queue_pair::{QueuePair, Refusal, Work};
pub(crate) use start::{StartOptions, start};
