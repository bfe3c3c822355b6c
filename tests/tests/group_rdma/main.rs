//! Cache groups over RDMA as users meet them: real processes and mounts, whose blocks travel over verbs. `ci/softroce` runs
//! it, in its guest or on a device of this machine.

#[path = "../group/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../group/owners.rs"]
#[allow(dead_code)]
mod owners;
#[path = "../cli_commands/support.rs"]
#[allow(dead_code)]
mod support;

mod demo;
mod faults;
mod links;
mod reading;
mod wire;
