//! Cache groups as users meet them: real processes on loopback addresses of their own, against the embedded S3
//! server, whose counters tell what left the origin.

#[path = "../cli_commands/support.rs"]
#[allow(dead_code)]
mod support;

#[allow(dead_code, reason = "tests/group_rdma uses the rest")]
mod cluster;
mod commands;
mod disks;
mod leaving;
mod names;
mod origins;
mod owners;
mod partitions;
mod pressure;
mod reading;
mod stats;
mod strangers;
mod warm;
