//! The transport over RDMA, on a device: SoftRoCE in a guest, or hardware. `ci/softroce` runs it.

mod conformance;
mod doctor;
mod endings;
mod garbage;
mod held;
mod pair;
mod raw;
mod sleeping;
