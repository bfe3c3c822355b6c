//! What the C compiler compares with SPDK's headers. Only `build.rs` uses it.

use super::abi::*;

/// A C type, its length as declared here (a minimum where the declaration is longer or shorter on purpose), and the places
/// of its fields.
pub struct Layout {
    pub c_type: &'static str,
    pub size: Size,
    pub fields: &'static [(&'static str, usize)],
}

/// How a declaration's length relates to the header's.
pub enum Size {
    /// They are the same.
    Same(usize),
    /// The header's is no longer.
    AtMost(usize),
    /// The header's is no shorter: only its beginning is declared.
    AtLeast(usize),
}

macro_rules! layout {
    ($size:ident, $c:literal, $rust:ty, $($field:ident = $name:literal),+ $(,)?) => {
        Layout {
            c_type: $c,
            size: Size::$size(size_of::<$rust>()),
            fields: &[$(($name, std::mem::offset_of!($rust, $field))),+],
        }
    };
}

/// Each structure.
pub const LAYOUTS: &[Layout] = &[
    layout!(
        Same,
        "struct spdk_pci_addr",
        PciAddr,
        domain = "domain",
        bus = "bus",
        dev = "dev",
        func = "func",
    ),
    layout!(
        AtMost,
        "struct spdk_env_opts",
        EnvOpts,
        name = "name",
        core_mask = "core_mask",
        lcore_map = "lcore_map",
        shm_id = "shm_id",
        mem_channel = "mem_channel",
        main_core = "main_core",
        mem_size = "mem_size",
        no_pci = "no_pci",
        hugepage_single_segments = "hugepage_single_segments",
        unlink_hugepage = "unlink_hugepage",
        no_huge = "no_huge",
        num_pci_addr = "num_pci_addr",
        hugedir = "hugedir",
        pci_blocked = "pci_blocked",
        pci_allowed = "pci_allowed",
        iova_mode = "iova_mode",
        base_virtaddr = "base_virtaddr",
        env_context = "env_context",
        vf_token = "vf_token",
    ),
    layout!(
        Same,
        "struct spdk_nvme_transport_id",
        TransportId,
        trstring = "trstring",
        trtype = "trtype",
        adrfam = "adrfam",
        traddr = "traddr",
        trsvcid = "trsvcid",
        subnqn = "subnqn",
        priority = "priority",
    ),
    layout!(
        AtMost,
        "struct spdk_nvme_ctrlr_opts",
        CtrlrOpts,
        num_io_queues = "num_io_queues",
        keep_alive_timeout_ms = "keep_alive_timeout_ms",
        transport_retry_count = "transport_retry_count",
        io_queue_size = "io_queue_size",
        hostnqn = "hostnqn",
        io_queue_requests = "io_queue_requests",
        src_addr = "src_addr",
        admin_timeout_ms = "admin_timeout_ms",
        disable_error_logging = "disable_error_logging",
        opts_size = "opts_size",
        fabrics_connect_timeout_us = "fabrics_connect_timeout_us",
    ),
    layout!(
        AtMost,
        "struct spdk_nvme_io_qpair_opts",
        QpairOpts,
        qprio = "qprio",
        io_queue_size = "io_queue_size",
        io_queue_requests = "io_queue_requests",
        delay_cmd_submit = "delay_cmd_submit",
        sq_vaddr = "sq.vaddr",
        cq_buffer_size = "cq.buffer_size",
        create_only = "create_only",
        async_mode = "async_mode",
    ),
    layout!(
        Same,
        "struct spdk_nvme_cpl",
        Cpl,
        cdw0 = "cdw0",
        sqid = "sqid",
        cid = "cid",
        status_raw = "status_raw",
    ),
    layout!(
        Same,
        "struct spdk_nvme_dsm_range",
        DsmRange,
        attributes = "attributes",
        length = "length",
        starting_lba = "starting_lba",
    ),
    layout!(
        AtLeast,
        "struct spdk_nvme_ctrlr_data",
        CtrlrData,
        vid = "vid",
        sn = "sn",
        mn = "mn",
        fr = "fr"
    ),
    layout!(
        AtLeast,
        "struct spdk_nvme_ns_data",
        NsData,
        nsattr = "nsattr",
        nguid = "nguid",
        eui64 = "eui64",
    ),
    layout!(
        AtLeast,
        "struct spdk_nvme_registers",
        Registers,
        cc = "cc",
        csts = "csts",
    ),
    layout!(Same, "struct spdk_uuid", Uuid, raw = "u.raw"),
];

/// Fields that only newer versions have: `(type, field, place, since)`.
pub const LATER_FIELDS: &[(&str, &str, usize, (u32, u32))] = &[(
    "struct spdk_env_opts",
    "opts_size",
    std::mem::offset_of!(EnvOpts, opts_size),
    (24, 5),
)];

/// Each number by its name in C.
pub const NUMBERS: &[(&str, i64)] = &[
    ("SPDK_NVME_DSM_ATTR_DEALLOCATE", DSM_ATTR_DEALLOCATE as i64),
    (
        "SPDK_NVME_NS_DEALLOCATE_SUPPORTED",
        NS_DEALLOCATE_SUPPORTED as i64,
    ),
    ("SPDK_NVME_NS_FLUSH_SUPPORTED", NS_FLUSH_SUPPORTED as i64),
    ("SPDK_NVME_LOG_HEALTH_INFORMATION", LOG_HEALTH as i64),
    ("sizeof(struct spdk_nvme_health_information_page)", 512),
    ("SPDK_LOG_WARN", LOG_WARN as i64),
    ("sizeof(enum spdk_nvme_transport_type)", 4),
    ("sizeof(enum spdk_nvmf_adrfam)", 4),
    ("sizeof(enum spdk_nvme_qprio)", 4),
    ("sizeof(bool)", 1),
];

/// Each function's type in C; `ffi` has the same in Rust, in this order.
pub const FUNCTIONS: &[(&str, &str)] = &[
    ("spdk_log_set_print_level", "void(enum spdk_log_level)"),
    ("spdk_env_opts_init", "void(struct spdk_env_opts *)"),
    ("spdk_env_init", "int(const struct spdk_env_opts *)"),
    ("spdk_iommu_is_enabled", "bool(void)"),
    ("spdk_mem_register", "int(void *, size_t)"),
    ("spdk_mem_unregister", "int(void *, size_t)"),
    (
        "spdk_nvme_transport_id_parse",
        "int(struct spdk_nvme_transport_id *, const char *)",
    ),
    (
        "spdk_nvme_ctrlr_get_default_ctrlr_opts",
        "void(struct spdk_nvme_ctrlr_opts *, size_t)",
    ),
    (
        "spdk_nvme_connect",
        "struct spdk_nvme_ctrlr *(const struct spdk_nvme_transport_id *, const struct spdk_nvme_ctrlr_opts *, size_t)",
    ),
    ("spdk_nvme_detach", "int(struct spdk_nvme_ctrlr *)"),
    (
        "spdk_nvme_ctrlr_process_admin_completions",
        "int32_t(struct spdk_nvme_ctrlr *)",
    ),
    ("spdk_nvme_ctrlr_fail", "void(struct spdk_nvme_ctrlr *)"),
    (
        "spdk_nvme_ctrlr_register_timeout_callback",
        "void(struct spdk_nvme_ctrlr *, uint64_t, uint64_t, void (*)(void *, struct spdk_nvme_ctrlr *, struct spdk_nvme_qpair *, uint16_t), void *)",
    ),
    (
        "spdk_nvme_ctrlr_get_pci_device",
        "struct spdk_pci_device *(struct spdk_nvme_ctrlr *)",
    ),
    (
        "spdk_pci_device_is_removed",
        "bool(struct spdk_pci_device *)",
    ),
    (
        "spdk_nvme_ctrlr_get_registers",
        "volatile struct spdk_nvme_registers *(struct spdk_nvme_ctrlr *)",
    ),
    (
        "spdk_nvme_ctrlr_get_regs_cc",
        "union spdk_nvme_cc_register(struct spdk_nvme_ctrlr *)",
    ),
    (
        "spdk_nvme_ctrlr_get_regs_csts",
        "union spdk_nvme_csts_register(struct spdk_nvme_ctrlr *)",
    ),
    (
        "spdk_pci_device_cfg_read16",
        "int(struct spdk_pci_device *, uint16_t *, uint32_t)",
    ),
    (
        "spdk_pci_device_cfg_write16",
        "int(struct spdk_pci_device *, uint16_t, uint32_t)",
    ),
    (
        "spdk_nvme_ctrlr_cmd_get_log_page",
        "int(struct spdk_nvme_ctrlr *, uint8_t, uint32_t, void *, uint32_t, uint64_t, void (*)(void *, const struct spdk_nvme_cpl *), void *)",
    ),
    (
        "spdk_nvme_ctrlr_get_data",
        "const struct spdk_nvme_ctrlr_data *(struct spdk_nvme_ctrlr *)",
    ),
    (
        "spdk_nvme_ctrlr_get_first_active_ns",
        "uint32_t(struct spdk_nvme_ctrlr *)",
    ),
    (
        "spdk_nvme_ctrlr_get_next_active_ns",
        "uint32_t(struct spdk_nvme_ctrlr *, uint32_t)",
    ),
    (
        "spdk_nvme_ctrlr_is_active_ns",
        "bool(struct spdk_nvme_ctrlr *, uint32_t)",
    ),
    (
        "spdk_nvme_ctrlr_get_ns",
        "struct spdk_nvme_ns *(struct spdk_nvme_ctrlr *, uint32_t)",
    ),
    (
        "spdk_nvme_ns_get_data",
        "const struct spdk_nvme_ns_data *(struct spdk_nvme_ns *)",
    ),
    (
        "spdk_nvme_ns_get_uuid",
        "const struct spdk_uuid *(const struct spdk_nvme_ns *)",
    ),
    (
        "spdk_nvme_ns_get_sector_size",
        "uint32_t(struct spdk_nvme_ns *)",
    ),
    (
        "spdk_nvme_ns_get_md_size",
        "uint32_t(struct spdk_nvme_ns *)",
    ),
    (
        "spdk_nvme_ns_get_num_sectors",
        "uint64_t(struct spdk_nvme_ns *)",
    ),
    ("spdk_nvme_ns_get_flags", "uint32_t(struct spdk_nvme_ns *)"),
    (
        "spdk_nvme_ns_get_max_io_xfer_size",
        "uint32_t(struct spdk_nvme_ns *)",
    ),
    (
        "spdk_nvme_ctrlr_get_default_io_qpair_opts",
        "void(struct spdk_nvme_ctrlr *, struct spdk_nvme_io_qpair_opts *, size_t)",
    ),
    (
        "spdk_nvme_ctrlr_alloc_io_qpair",
        "struct spdk_nvme_qpair *(struct spdk_nvme_ctrlr *, const struct spdk_nvme_io_qpair_opts *, size_t)",
    ),
    (
        "spdk_nvme_ctrlr_disconnect_io_qpair",
        "void(struct spdk_nvme_qpair *)",
    ),
    (
        "spdk_nvme_ctrlr_free_io_qpair",
        "int(struct spdk_nvme_qpair *)",
    ),
    (
        "spdk_nvme_qpair_process_completions",
        "int32_t(struct spdk_nvme_qpair *, uint32_t)",
    ),
    (
        "spdk_nvme_ns_cmd_read",
        "int(struct spdk_nvme_ns *, struct spdk_nvme_qpair *, void *, uint64_t, uint32_t, void (*)(void *, const struct spdk_nvme_cpl *), void *, uint32_t)",
    ),
    (
        "spdk_nvme_ns_cmd_write",
        "int(struct spdk_nvme_ns *, struct spdk_nvme_qpair *, void *, uint64_t, uint32_t, void (*)(void *, const struct spdk_nvme_cpl *), void *, uint32_t)",
    ),
    (
        "spdk_nvme_ns_cmd_flush",
        "int(struct spdk_nvme_ns *, struct spdk_nvme_qpair *, void (*)(void *, const struct spdk_nvme_cpl *), void *)",
    ),
    (
        "spdk_nvme_ns_cmd_dataset_management",
        "int(struct spdk_nvme_ns *, struct spdk_nvme_qpair *, uint32_t, const struct spdk_nvme_dsm_range *, uint16_t, void (*)(void *, const struct spdk_nvme_cpl *), void *)",
    ),
];
