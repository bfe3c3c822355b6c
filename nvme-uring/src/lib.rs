//! Blocks at rest on a file or a block device, by io_uring.
//!
//! | module | holds |
//! |---|---|
//! | `file` | [`UringFile`]: opened once, with `O_DIRECT` where that works; shared by all cores |
//! | `device` | [`UringDevice`]: one core's queue pair, the engine's `BlockDevice` |
//! | `ring` | the ring and the buffers that the kernel has; unsafe |
//! | `queues` | the ring's two kinds, with plain and with wide entries; unsafe |
//! | `namespace` | NVMe commands past the block layer, for `/dev/ngXnY`; unsafe |
//! | `patience` | how long what is dropped is waited for |
//! | `setup` | a ring as good as this kernel has one |
//! | `fixed` | which registered buffer an address lies in |
//! | `errno` | what an errno of a disk means to the engine |
//!
//! A ring belongs to one thread, is submitted to once a turn, and makes completions only when asked
//! (`SINGLE_ISSUER`, `DEFER_TASKRUN`). No thread of its own, no polling by the kernel: idle costs nothing.

#![deny(unsafe_code)]

mod device;
mod errno;
mod file;
mod fixed;
#[allow(unsafe_code)]
mod namespace;
mod patience;
#[allow(unsafe_code)]
mod queues;
#[allow(unsafe_code)]
mod ring;
mod setup;

pub use device::{DEPTH_MAX, UringDevice};
pub use file::{OpenError, OpenOptions, Presence, UringFile};
pub use namespace::block_device_of;
pub use patience::{DROP_WAIT, DROP_WAIT_MIN};
pub use setup::{SetupError, try_ring};
