//! Structures and numbers of librdmacm (`rdma/rdma_cma.h`), as far as they are used, in the way of `abi`.

use std::ffi::{c_int, c_uint, c_void};

use super::abi::*;

/// An address of any family, which is told by its beginning.
#[repr(C)]
#[allow(non_camel_case_types)]
pub(super) struct sockaddr {
    _opaque: [u8; 0],
}

beginnings! {
    struct rdma_event_channel {
        fd: c_int,
    }
    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: c_uint,
        port_num: u8,
    }
    /// `param` is a union in C; of identifiers of connections it has these parameters.
    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: c_uint,
        status: c_int,
        param: rdma_conn_param,
    }
}

structures! {
    /// Three unions in C: of all kinds of addresses, and of one of InfiniBand.
    struct rdma_addr {
        src_addr: [u64; 16],
        dst_addr: [u64; 16],
        addr: [u64; 5],
    }
    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut c_void,
        num_paths: c_int,
    }
    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
}

numbers! {
    RDMA_PS_TCP = 0x0106;
    RDMA_CM_EVENT_ADDR_RESOLVED = 0;
    RDMA_CM_EVENT_ADDR_ERROR = 1;
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2;
    RDMA_CM_EVENT_ROUTE_ERROR = 3;
    RDMA_CM_EVENT_CONNECT_REQUEST = 4;
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5;
    RDMA_CM_EVENT_CONNECT_ERROR = 6;
    RDMA_CM_EVENT_UNREACHABLE = 7;
    RDMA_CM_EVENT_REJECTED = 8;
    RDMA_CM_EVENT_ESTABLISHED = 9;
    RDMA_CM_EVENT_DISCONNECTED = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11;
}

#[cfg(test)]
mod tests {
    use super::super::declare::tests::{Comparison, compiler_says, is_there};
    use super::*;

    #[test]
    fn structures_and_numbers_are_those_of_the_header() {
        if !is_there("rdma/rdma_cma.h", "librdmacm-dev") {
            return;
        }
        let mut program = Comparison::with("rdma/rdma_cma.h");
        for (name, len_bytes, fields) in layouts() {
            program.expect(&format!("sizeof(struct {name})"), len_bytes);
            program.places(name, &fields);
        }
        for (name, fields) in layouts_of_beginnings() {
            program.places(name, &fields);
        }
        for (name, value) in NUMBERS {
            program.expect(name, *value as usize);
        }
        program.functions(super::super::cm_library::signatures());
        let program = program.0;
        assert_eq!(compiler_says(&program), "", "the program was:\n{program}");
        let wrong = program.replace(
            "offsetof(struct rdma_cm_event, status) == 20",
            "offsetof(struct rdma_cm_event, status) == 24",
        );
        assert_ne!(wrong, program);
        assert!(
            compiler_says(&wrong).contains("status"),
            "the comparison sees no fault"
        );
    }
}
