//! The transport over RDMA, on a device: SoftRoCE in a guest, or hardware. `ci/softroce` runs it.

mod conformance;
mod doctor;
mod endings;
mod held;
mod pair;
