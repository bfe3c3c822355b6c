//! Structures and numbers as SPDK's headers have them. `build.rs` takes this file as well, and has the C compiler compare what
//! `declared` lists of it with the headers that are installed: a difference is an error of the build.
//!
//! Structures that newer versions make longer end in room that no version uses; their length is told to SPDK, or SPDK
//! takes no more than it knows.

use std::ffi::{c_char, c_int, c_void};

/// `struct spdk_pci_addr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PciAddr {
    pub domain: u32,
    pub bus: u8,
    pub dev: u8,
    pub func: u8,
}

/// `struct spdk_env_opts`. `opts_size` came with 24.05; before, it lies past the structure's end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EnvOpts {
    pub name: *const c_char,
    pub core_mask: *const c_char,
    pub lcore_map: *const c_char,
    pub shm_id: c_int,
    pub mem_channel: c_int,
    pub main_core: c_int,
    pub mem_size: c_int,
    pub no_pci: u8,
    pub hugepage_single_segments: u8,
    pub unlink_hugepage: u8,
    pub no_huge: u8,
    pub reserved: u32,
    pub num_pci_addr: usize,
    pub hugedir: *const c_char,
    pub pci_blocked: *mut PciAddr,
    pub pci_allowed: *mut PciAddr,
    pub iova_mode: *const c_char,
    pub base_virtaddr: u64,
    pub env_context: *mut c_void,
    pub vf_token: *const c_char,
    pub opts_size: usize,
    pub room: [u64; 64],
}

/// `struct spdk_nvme_transport_id`; its numbers are C enumerations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TransportId {
    pub trstring: [c_char; 33],
    pub trtype: u32,
    pub adrfam: u32,
    pub traddr: [c_char; 257],
    pub trsvcid: [c_char; 33],
    pub subnqn: [c_char; 224],
    pub priority: c_int,
}

/// The beginning of `struct spdk_nvme_ctrlr_opts`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CtrlrOpts {
    pub num_io_queues: u32,
    pub use_cmb_sqs: u8,
    pub no_shn_notification: u8,
    pub reserved6: [u8; 2],
    pub arb_mechanism: u32,
    pub arbitration_burst: u8,
    pub low_priority_weight: u8,
    pub medium_priority_weight: u8,
    pub high_priority_weight: u8,
    pub keep_alive_timeout_ms: u32,
    pub transport_retry_count: u8,
    pub reserved21: [u8; 3],
    pub io_queue_size: u32,
    pub hostnqn: [c_char; 224],
    pub io_queue_requests: u32,
    pub src_addr: [c_char; 257],
    pub src_svcid: [c_char; 33],
    pub host_id: [u8; 8],
    pub extended_host_id: [u8; 16],
    pub reserved570: [u8; 2],
    pub command_set: u32,
    pub admin_timeout_ms: u32,
    pub header_digest: u8,
    pub data_digest: u8,
    pub disable_error_logging: u8,
    pub transport_ack_timeout: u8,
    pub admin_queue_size: u16,
    pub reserved586: [u8; 6],
    pub opts_size: usize,
    pub fabrics_connect_timeout_us: u64,
    pub room: [u64; 128],
}

/// The beginning of `struct spdk_nvme_io_qpair_opts`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QpairOpts {
    pub qprio: u32,
    pub io_queue_size: u32,
    pub io_queue_requests: u32,
    pub delay_cmd_submit: u8,
    pub reserved13: [u8; 3],
    pub sq_vaddr: *mut c_void,
    pub sq_paddr: u64,
    pub sq_buffer_size: u64,
    pub cq_vaddr: *mut c_void,
    pub cq_paddr: u64,
    pub cq_buffer_size: u64,
    pub create_only: u8,
    pub async_mode: u8,
    pub room: [u8; 126],
}

/// `struct spdk_nvme_cpl`, a completion.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Cpl {
    pub cdw0: u32,
    pub cdw1: u32,
    pub sqhd: u16,
    pub sqid: u16,
    pub cid: u16,
    pub status_raw: u16,
}

/// `struct spdk_nvme_dsm_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DsmRange {
    pub attributes: u32,
    pub length: u32,
    pub starting_lba: u64,
}

/// The beginning of `struct spdk_nvme_ctrlr_data`: what identifies a controller.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CtrlrData {
    pub vid: u16,
    pub ssvid: u16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
}

/// The beginning of `struct spdk_nvme_ns_data`. Bit 0 of `nsattr`: write protected.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NsData {
    pub before: [u8; 99],
    pub nsattr: u8,
    pub between: [u8; 4],
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
}

/// The beginning of `struct spdk_nvme_registers`, which lie in the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub cap: u64,
    pub vs: u32,
    pub intms: u32,
    pub intmc: u32,
    pub cc: u32,
    pub reserved1: u32,
    pub csts: u32,
}

/// `struct spdk_uuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Uuid {
    pub raw: [u8; 16],
}

/// Bit 0 of `NsData::nsattr`.
pub const NSATTR_WRITE_PROTECTED: u8 = 1;

/// `SPDK_NVME_DSM_ATTR_DEALLOCATE`.
pub const DSM_ATTR_DEALLOCATE: u32 = 4;
/// `SPDK_NVME_NS_DEALLOCATE_SUPPORTED`.
pub const NS_DEALLOCATE_SUPPORTED: u32 = 1;
/// `SPDK_NVME_NS_FLUSH_SUPPORTED`.
pub const NS_FLUSH_SUPPORTED: u32 = 2;
/// `SPDK_NVME_LOG_HEALTH_INFORMATION`.
pub const LOG_HEALTH: u8 = 2;
/// `SPDK_LOG_WARN`.
pub const LOG_WARN: c_int = 1;
