//! NVMe controllers of this machine and their drivers: the kernel's, or `vfio-pci`, by which a program drives them itself.
//!
//! | module | holds |
//! |---|---|
//! | [`controller`] | what there is, by `/sys` |
//! | [`usage`] | who uses a controller, so that it must stay where it is |
//! | [`binding`] | to `vfio-pci`, and back |
//! | [`health`] | what a controller says of its own health |

pub mod binding;
pub mod controller;
pub mod health;
pub mod usage;
