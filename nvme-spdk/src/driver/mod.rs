//! Safe types over the functions of SPDK.
//!
//! | module | holds |
//! |---|---|
//! | `bus_error` | what becomes of bus errors |
//! | `start` | SPDK's environment: DPDK's memory and buses |
//! | `controller` | an attached controller and its namespaces |
//! | `health` | what a controller says of its own health |
//! | `queue_pair` | a queue pair and the buffers that the device has |
//! | `memory` | memory that PCI devices may reach |

mod bus_error;
mod controller;
mod health;
mod memory;
mod queue_pair;
mod start;

pub(crate) use bus_error::{guard_registers, reset as end_at_bus_errors};
pub(crate) use controller::{ConnectOptions, Identity, RawController, RawNamespace, connect};
pub(crate) use health::HealthQuery;
pub(crate) use memory::Registration;
pub(crate) use queue_pair::{QueuePair, Refusal, Work, queue_pages};
pub(crate) use start::{StartOptions, enter, has_iommu, start};
