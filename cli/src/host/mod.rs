//! The host of the engine: threads, CPUs, memory, clock and sleep. Everything that the engine
//! itself must not know about the machine.
//!
//! | module | holds |
//! |---|---|
//! | [`engine`] | starts and stops the cores' threads; [`Engine`] is what front ends get |
//! | [`run`] | the loop of one core's thread: turn, spin briefly, sleep |
//! | [`parker`] | the one wait of a core's thread |
//! | [`cores`] | which CPUs, and whether cores may spin there |
//! | [`disks`] | the disks, and each core's queue pairs on them |
//! | [`medium`] | what a disk is behind: the kernel, or SPDK |
//! | `pages` | buffers in reserved huge pages, for devices that reach them by themselves |
//! | [`peers`] | the ports of a cache group, or of a node on its own |
//! | [`limits`] | how many files may be open
//! | [`memory`] | how `--memory` is divided |
//! | [`cgroup`] | what control groups leave of the machine |
//! | [`clock`], [`rng`], [`platform`] | the ports that the host implements itself, and the bundle |

pub mod cgroup;
pub mod clock;
pub mod cores;
pub mod disks;
pub mod engine;
pub mod limits;
pub mod medium;
pub mod memory;
mod pages;
pub mod parker;
pub mod peers;
pub mod platform;
pub mod rng;
pub mod run;

pub use clock::MonotonicClock;
pub use cores::{CorePlan, CoresArg, Machine, Poll};
pub use disks::{DiskPlace, DiskSource, Disks};
pub use engine::{Engine, EngineConfig, OriginSeat, core_stats};
pub use medium::{Buffers, HostDevice, Medium};
pub use memory::{MemoryPlan, default_memory_bytes};
pub use pages::arena_for_devices;
pub use peers::Peers;
pub use platform::HostPlatform;
