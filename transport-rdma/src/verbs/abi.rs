//! Structures and numbers of libibverbs (`infiniband/verbs.h`), as far as they are used. Its binary interface has
//! been the same since 2008 (`libibverbs.so.1`); a test compares all that is here with the header.
//! Names are the header's. Where C has an enumeration there is a plain number: hardware may send any.

use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
#[allow(non_camel_case_types)]
pub(super) struct ibv_device {
    _opaque: [u8; 0],
}

/// A function that is not called through this table.
type Unused = Option<unsafe extern "C" fn()>;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

beginnings! {
    /// The provider's functions, which the header's inline ones call.
    struct ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Unused,
        bind_mw: Unused,
        dealloc_mw: Unused,
        _compat_create_cq: Unused,
        poll_cq: Option<PollCq>,
        req_notify_cq: Option<ReqNotifyCq>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Unused,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: Option<PostSend>,
        post_recv: Option<PostRecv>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
    }
    struct ibv_pd {
        context: *mut ibv_context,
    }
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
    }
    struct ibv_cq {
        context: *mut ibv_context,
    }
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        handle: u32,
        qp_num: u32,
        state: c_uint,
    }
}

structures! {
    /// `element` is a union in C: of pointers to what the event is of, and the number of a port.
    struct ibv_async_event {
        element: EventElement,
        event_type: c_uint,
    }
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_uint,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    struct ibv_port_attr {
        state: c_uint,
        max_mtu: c_uint,
        active_mtu: c_uint,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }
    /// `gid` is a union in C: of 16 bytes, and of two numbers of 64 bits, which align it.
    struct ibv_gid_entry {
        gid: AlignedGid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    /// `wr` and the last field are unions in C; only what SEND, WRITE and READ use of them has a name here.
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: RdmaTarget,
        qp_type: u64,
        bind_mw: [u64; 6],
    }
    struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }
    struct ibv_global_route {
        dgid: AlignedGid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    struct ibv_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
}

/// As long as a pointer: a queue pair's address, or in the first four bytes a port's number.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct EventElement(pub [u8; 8]);

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct AlignedGid(pub [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RdmaTarget {
    pub remote_addr: u64,
    pub rkey: u32,
    pub _atomics: [u64; 2],
}

numbers! {
    IBV_PORT_ACTIVE = 4;
    IBV_LINK_LAYER_INFINIBAND = 1;
    IBV_LINK_LAYER_ETHERNET = 2;
    IBV_GID_TYPE_IB = 0;
    IBV_GID_TYPE_ROCE_V1 = 1;
    IBV_GID_TYPE_ROCE_V2 = 2;
    IBV_ACCESS_LOCAL_WRITE = 1;
    IBV_ACCESS_REMOTE_WRITE = 2;
    IBV_ACCESS_REMOTE_READ = 4;
    IBV_QPT_RC = 2;
    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    IBV_QPS_ERR = 6;
    IBV_QP_STATE = 1 << 0;
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    IBV_QP_PKEY_INDEX = 1 << 4;
    IBV_QP_PORT = 1 << 5;
    IBV_QP_AV = 1 << 7;
    IBV_QP_PATH_MTU = 1 << 8;
    IBV_QP_TIMEOUT = 1 << 9;
    IBV_QP_RETRY_CNT = 1 << 10;
    IBV_QP_RNR_RETRY = 1 << 11;
    IBV_QP_RQ_PSN = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    IBV_QP_SQ_PSN = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    IBV_QP_DEST_QPN = 1 << 20;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_SEND = 2;
    IBV_WR_RDMA_READ = 4;
    IBV_SEND_SIGNALED = 2;
    IBV_SEND_INLINE = 8;
}

#[cfg(test)]
mod tests {
    use super::super::declare::tests::{Comparison, compiler_says, is_there};
    use super::*;

    /// Numbers that `status` and `events` know, by the header's names.
    const STATUS_NUMBERS: &[(&str, u32)] = &[
        ("IBV_WC_SUCCESS", 0),
        ("IBV_WC_LOC_LEN_ERR", 1),
        ("IBV_WC_LOC_QP_OP_ERR", 2),
        ("IBV_WC_LOC_PROT_ERR", 4),
        ("IBV_WC_WR_FLUSH_ERR", 5),
        ("IBV_WC_BAD_RESP_ERR", 7),
        ("IBV_WC_LOC_ACCESS_ERR", 8),
        ("IBV_WC_REM_INV_REQ_ERR", 9),
        ("IBV_WC_REM_ACCESS_ERR", 10),
        ("IBV_WC_REM_OP_ERR", 11),
        ("IBV_WC_RETRY_EXC_ERR", 12),
        ("IBV_WC_RNR_RETRY_EXC_ERR", 13),
        ("IBV_WC_SEND", 0),
        ("IBV_WC_RDMA_WRITE", 1),
        ("IBV_WC_RDMA_READ", 2),
        ("IBV_WC_RECV", 128),
        ("IBV_EVENT_CQ_ERR", 0),
        ("IBV_EVENT_QP_FATAL", 1),
        ("IBV_EVENT_QP_REQ_ERR", 2),
        ("IBV_EVENT_QP_ACCESS_ERR", 3),
        ("IBV_EVENT_DEVICE_FATAL", 8),
        ("IBV_EVENT_PORT_ACTIVE", 9),
        ("IBV_EVENT_PORT_ERR", 10),
        ("IBV_EVENT_LID_CHANGE", 11),
        ("IBV_EVENT_PKEY_CHANGE", 12),
        ("IBV_EVENT_SM_CHANGE", 13),
        ("IBV_EVENT_CLIENT_REREGISTER", 17),
        ("IBV_EVENT_GID_CHANGE", 18),
        ("IBV_MTU_256", 1),
        ("IBV_MTU_4096", 5),
    ];

    fn comparison() -> String {
        let mut program = Comparison::with("infiniband/verbs.h");
        for (name, len_bytes, fields) in layouts() {
            // One field came after ours, within what was padding in some versions.
            if name != "ibv_port_attr" {
                program.expect(&format!("sizeof(struct {name})"), len_bytes);
            }
            // The members of C's unnamed unions have names of their own.
            program.places(name, &fields);
        }
        for (name, fields) in layouts_of_beginnings() {
            program.places(name, &fields);
        }
        let send = size_of::<RdmaTarget>();
        program.expect("sizeof(((struct ibv_send_wr *)0)->wr)", send);
        let send = std::mem::offset_of!(ibv_send_wr, wr);
        program.expect(
            "offsetof(struct ibv_send_wr, wr.rdma.rkey)",
            send + std::mem::offset_of!(RdmaTarget, rkey),
        );
        for (name, value) in NUMBERS.iter().chain(STATUS_NUMBERS) {
            program.expect(name, *value as usize);
        }
        program.functions(super::super::library::signatures());
        for (name, arguments) in [
            ("poll_cq", "struct ibv_cq *, int, struct ibv_wc *"),
            ("req_notify_cq", "struct ibv_cq *, int"),
            (
                "post_send",
                "struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **",
            ),
            (
                "post_recv",
                "struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **",
            ),
        ] {
            let place = format!("__typeof__(((struct ibv_context_ops *)0)->{name})");
            let same = format!("__builtin_types_compatible_p({place}, int (*)({arguments}))");
            program.expect(&same, 1);
        }
        // What the library exports fills the older, shorter form that the header's inline function names.
        let port = "(ibv_query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *)";
        assert!(program.0.contains(port));
        program.0.replace(
            port,
            &port.replace("ibv_port_attr", "_compat_ibv_port_attr"),
        )
    }

    #[test]
    fn structures_and_numbers_are_those_of_the_header() {
        if !is_there("infiniband/verbs.h", "libibverbs-dev") {
            return;
        }
        let program = comparison();
        assert_eq!(compiler_says(&program), "", "the program was:\n{program}");
        let wrong = program.replace(
            "offsetof(struct ibv_wc, qp_num) == 28",
            "offsetof(struct ibv_wc, qp_num) == 32",
        );
        assert_ne!(wrong, program);
        assert!(
            compiler_says(&wrong).contains("qp_num"),
            "the comparison sees no fault"
        );
        let wrong = program.replace("(ibv_dereg_mr)(struct ibv_mr *)", "(ibv_dereg_mr)(int *)");
        assert_ne!(wrong, program);
        assert!(
            compiler_says(&wrong).contains("conflicting types"),
            "the comparison sees no other function"
        );
    }
}
