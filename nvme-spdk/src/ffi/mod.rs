//! What is used of SPDK, and nothing else. Everything here is unsafe to call; `driver` makes safe types of it.

mod abi;

use std::ffi::{c_char, c_int, c_void};

pub use abi::{
    Cpl, CtrlrData, CtrlrOpts, DSM_ATTR_DEALLOCATE, DsmRange, EnvOpts, LOG_HEALTH, LOG_WARN,
    NS_DEALLOCATE_SUPPORTED, NS_FLUSH_SUPPORTED, NSATTR_WRITE_PROTECTED, NsData, PciAddr,
    QpairOpts, Registers, TransportId, Uuid,
};

/// `struct spdk_nvme_ctrlr`.
#[repr(C)]
#[derive(Debug)]
pub struct Ctrlr {
    _private: [u8; 0],
}

/// `struct spdk_nvme_ns`.
#[repr(C)]
#[derive(Debug)]
pub struct Ns {
    _private: [u8; 0],
}

/// `struct spdk_nvme_qpair`.
#[repr(C)]
#[derive(Debug)]
pub struct Qpair {
    _private: [u8; 0],
}

/// `struct spdk_pci_device`.
#[repr(C)]
#[derive(Debug)]
pub struct PciDevice {
    _private: [u8; 0],
}

/// `spdk_nvme_cmd_cb`.
pub type CmdCb = unsafe extern "C" fn(arg: *mut c_void, cpl: *const Cpl);
/// `spdk_nvme_timeout_cb`. The queue pair is null for the admin queue.
pub type TimeoutCb =
    unsafe extern "C" fn(arg: *mut c_void, ctrlr: *mut Ctrlr, qpair: *mut Qpair, cid: u16);

/// The length of `struct spdk_nvme_ctrlr_opts` in the headers that this was built with; of what is declared of it where there
/// were none, and nothing can be linked.
pub fn ctrlr_opts_bytes() -> usize {
    option_env!("FOREBAY_SPDK_CTRLR_OPTS_BYTES")
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(std::mem::offset_of!(CtrlrOpts, room))
}

// The types in C are in `declared::FUNCTIONS`, which the C compiler compares with the headers.
unsafe extern "C" {
    pub fn spdk_log_set_print_level(level: c_int);
    pub fn spdk_env_opts_init(opts: *mut EnvOpts);
    pub fn spdk_env_init(opts: *const EnvOpts) -> c_int;
    pub fn spdk_iommu_is_enabled() -> u8;
    pub fn spdk_mem_register(vaddr: *mut c_void, len: usize) -> c_int;
    pub fn spdk_mem_unregister(vaddr: *mut c_void, len: usize) -> c_int;
    pub fn spdk_nvme_transport_id_parse(trid: *mut TransportId, text: *const c_char) -> c_int;
    pub fn spdk_nvme_ctrlr_get_default_ctrlr_opts(opts: *mut CtrlrOpts, opts_size: usize);
    pub fn spdk_nvme_connect(
        trid: *const TransportId,
        opts: *const CtrlrOpts,
        opts_size: usize,
    ) -> *mut Ctrlr;
    pub fn spdk_nvme_detach(ctrlr: *mut Ctrlr) -> c_int;
    pub fn spdk_nvme_ctrlr_process_admin_completions(ctrlr: *mut Ctrlr) -> i32;
    pub fn spdk_nvme_ctrlr_fail(ctrlr: *mut Ctrlr);
    pub fn spdk_nvme_ctrlr_register_timeout_callback(
        ctrlr: *mut Ctrlr,
        timeout_io_us: u64,
        timeout_admin_us: u64,
        callback: TimeoutCb,
        arg: *mut c_void,
    );
    pub fn spdk_nvme_ctrlr_get_pci_device(ctrlr: *mut Ctrlr) -> *mut PciDevice;
    pub fn spdk_pci_device_is_removed(device: *mut PciDevice) -> u8;
    pub fn spdk_nvme_ctrlr_get_registers(ctrlr: *mut Ctrlr) -> *mut Registers;
    pub fn spdk_nvme_ctrlr_get_regs_cc(ctrlr: *mut Ctrlr) -> u32;
    pub fn spdk_nvme_ctrlr_get_regs_csts(ctrlr: *mut Ctrlr) -> u32;
    pub fn spdk_pci_device_cfg_read16(
        device: *mut PciDevice,
        value: *mut u16,
        offset: u32,
    ) -> c_int;
    pub fn spdk_pci_device_cfg_write16(device: *mut PciDevice, value: u16, offset: u32) -> c_int;
    pub fn spdk_nvme_ctrlr_cmd_get_log_page(
        ctrlr: *mut Ctrlr,
        page: u8,
        nsid: u32,
        payload: *mut c_void,
        payload_bytes: u32,
        offset_bytes: u64,
        callback: CmdCb,
        arg: *mut c_void,
    ) -> c_int;
    pub fn spdk_nvme_ctrlr_get_data(ctrlr: *mut Ctrlr) -> *const CtrlrData;
    pub fn spdk_nvme_ctrlr_get_first_active_ns(ctrlr: *mut Ctrlr) -> u32;
    pub fn spdk_nvme_ctrlr_get_next_active_ns(ctrlr: *mut Ctrlr, previous: u32) -> u32;
    pub fn spdk_nvme_ctrlr_is_active_ns(ctrlr: *mut Ctrlr, nsid: u32) -> u8;
    pub fn spdk_nvme_ctrlr_get_ns(ctrlr: *mut Ctrlr, nsid: u32) -> *mut Ns;
    pub fn spdk_nvme_ns_get_data(ns: *mut Ns) -> *const NsData;
    pub fn spdk_nvme_ns_get_uuid(ns: *const Ns) -> *const Uuid;
    pub fn spdk_nvme_ns_get_sector_size(ns: *mut Ns) -> u32;
    pub fn spdk_nvme_ns_get_md_size(ns: *mut Ns) -> u32;
    pub fn spdk_nvme_ns_get_num_sectors(ns: *mut Ns) -> u64;
    pub fn spdk_nvme_ns_get_flags(ns: *mut Ns) -> u32;
    pub fn spdk_nvme_ns_get_max_io_xfer_size(ns: *mut Ns) -> u32;
    pub fn spdk_nvme_ctrlr_get_default_io_qpair_opts(
        ctrlr: *mut Ctrlr,
        opts: *mut QpairOpts,
        opts_size: usize,
    );
    pub fn spdk_nvme_ctrlr_alloc_io_qpair(
        ctrlr: *mut Ctrlr,
        opts: *const QpairOpts,
        opts_size: usize,
    ) -> *mut Qpair;
    pub fn spdk_nvme_ctrlr_disconnect_io_qpair(qpair: *mut Qpair);
    pub fn spdk_nvme_ctrlr_free_io_qpair(qpair: *mut Qpair) -> c_int;
    pub fn spdk_nvme_qpair_process_completions(qpair: *mut Qpair, completions_max: u32) -> i32;
    pub fn spdk_nvme_ns_cmd_read(
        ns: *mut Ns,
        qpair: *mut Qpair,
        payload: *mut c_void,
        lba: u64,
        lba_count: u32,
        callback: CmdCb,
        arg: *mut c_void,
        io_flags: u32,
    ) -> c_int;
    pub fn spdk_nvme_ns_cmd_write(
        ns: *mut Ns,
        qpair: *mut Qpair,
        payload: *mut c_void,
        lba: u64,
        lba_count: u32,
        callback: CmdCb,
        arg: *mut c_void,
        io_flags: u32,
    ) -> c_int;
    pub fn spdk_nvme_ns_cmd_flush(
        ns: *mut Ns,
        qpair: *mut Qpair,
        callback: CmdCb,
        arg: *mut c_void,
    ) -> c_int;
    pub fn spdk_nvme_ns_cmd_dataset_management(
        ns: *mut Ns,
        qpair: *mut Qpair,
        kind: u32,
        ranges: *const DsmRange,
        ranges_count: u16,
        callback: CmdCb,
        arg: *mut c_void,
    ) -> c_int;
}
