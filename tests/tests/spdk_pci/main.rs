//! SPDK's queue pairs on a PCI device: `ci/softroce` runs this in its guest, which has an emulated NVMe controller behind an
//! emulated IOMMU, where SPDK is found on this machine.

#![cfg_attr(not(feature = "spdk"), allow(dead_code))]

#[cfg(feature = "spdk")]
#[path = "../spdk/bench.rs"]
#[allow(dead_code)]
mod bench;
#[cfg(feature = "spdk")]
mod carriage;
#[cfg(feature = "spdk")]
#[path = "../group/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[cfg(feature = "spdk")]
mod device;
#[cfg(feature = "spdk")]
mod meddling;
#[cfg(feature = "spdk")]
mod mounting;
#[cfg(feature = "spdk")]
#[path = "../group/owners.rs"]
#[allow(dead_code)]
mod owners;
#[cfg(feature = "spdk")]
#[path = "../transport_rdma/pair.rs"]
#[allow(dead_code)]
mod pair;
#[cfg(feature = "spdk")]
mod removal;
#[cfg(feature = "spdk")]
#[path = "../spdk/rig.rs"]
mod rig;
#[cfg(feature = "spdk")]
#[path = "../cli_commands/support.rs"]
#[allow(dead_code)]
mod support;

#[cfg(not(feature = "spdk"))]
#[test]
fn a_pci_device_by_spdk() {
    println!(
        "SKIPPED: PCI devices by SPDK: built without the feature `spdk`, which needs SPDK to link"
    );
}
