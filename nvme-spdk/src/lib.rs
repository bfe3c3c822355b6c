//! Blocks at rest on NVMe without the kernel: SPDK's driver, polled by the cores that own its queue pairs.
//!
//! | module | holds | without the feature `spdk` |
//! |---|---|---|
//! | `address` | [`Address`]: a PCI address or an SPDK transport id, and which namespace | there |
//! | `status` | what an NVMe status means to the engine | there |
//! | `error` | why something cannot be used, and why it was lost | there |
//! | `fingerprint` | whether a namespace is still what was opened | there |
//! | `behind` | whether an IOMMU stands between a PCI device and memory | there |
//! | `locked` | how much memory may still be locked | there |
//! | `trial` | whether a device reaches its buffers | there |
//! | `watch` | whether controllers and namespaces are lost, and whom that wakes | there |
//! | `pace` | how often a device is looked at that signals nothing | there |
//! | `namespace` | [`Namespace`]: opened once, shared by all cores | - |
//! | `device` | [`SpdkDevice`]: one core's queue pair, the engine's `BlockDevice` | - |
//! | `controller` | attached controllers, and a thread for each that waits for it | - |
//! | `environment` | [`Environment`]: SPDK, started once | - |
//! | `disarm` | how a PCI device is made to reach memory no more | there |
//! | `driver` | safe types over the functions of SPDK: the only unsafe code besides `ffi` | - |
//! | `ffi` | the functions and structures of SPDK that are used, checked against its headers by `build.rs` | - |
//!
//! `docs/decisions/0027-nvme-spdk.md` tells who polls what, and in which order things end.

#![deny(unsafe_code)]

mod address;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod behind;
#[cfg(feature = "spdk")]
mod controller;
#[cfg(feature = "spdk")]
mod device;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod disarm;
#[cfg(feature = "spdk")]
#[allow(unsafe_code)]
mod driver;
#[cfg(feature = "spdk")]
mod environment;
mod error;
#[cfg(feature = "spdk")]
#[allow(unsafe_code)]
mod ffi;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod fingerprint;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod locked;
#[cfg(feature = "spdk")]
mod namespace;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod pace;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod status;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod trial;
#[cfg_attr(not(feature = "spdk"), allow(dead_code))]
mod watch;

pub use address::{Address, AddressError, PciAddress};
#[cfg(feature = "spdk")]
pub use device::{DEPTH_MAX, QueueOptions, SpdkDevice};
#[cfg(feature = "spdk")]
pub use environment::{Environment, EnvironmentOptions};
pub use error::{Change, EnvironmentError, Loss, MemoryError, OpenError, QueueError};
#[cfg(feature = "spdk")]
pub use namespace::{Namespace, OpenOptions};

/// Has bus errors (SIGBUS) end the process, as they do without SPDK: its handler is there from the moment the program is loaded, and only
/// returns. To be called at the program's start.
#[cfg(feature = "spdk")]
pub fn end_at_bus_errors() {
    driver::end_at_bus_errors();
}
