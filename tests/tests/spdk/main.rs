//! SPDK's queue pairs against SPDK's own target over NVMe/TCP on loopback. Needs SPDK where this is built (feature `spdk`) and
//! its target where it runs (`FOREBAY_SPDK_TGT`); says loudly what could not run.

#![cfg_attr(not(feature = "spdk"), allow(dead_code))]

#[cfg(feature = "spdk")]
mod bench;
#[cfg(feature = "spdk")]
mod changes;
#[cfg(feature = "spdk")]
#[path = "../group/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[cfg(feature = "spdk")]
mod conformance;
#[cfg(feature = "spdk")]
mod crash;
#[cfg(feature = "spdk")]
mod faults;
#[cfg(feature = "spdk")]
mod mounting;
#[cfg(feature = "spdk")]
mod opening;
#[cfg(feature = "spdk")]
#[path = "../group/owners.rs"]
#[allow(dead_code)]
mod owners;
#[cfg(feature = "spdk")]
#[allow(dead_code)]
mod rig;
#[cfg(feature = "spdk")]
#[path = "../cli_commands/support.rs"]
#[allow(dead_code)]
mod support;

#[cfg(not(feature = "spdk"))]
#[test]
fn everything_on_spdk() {
    println!(
        "SKIPPED: everything on SPDK: built without the feature `spdk`, which needs SPDK to link"
    );
}
