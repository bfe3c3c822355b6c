//! librdmacm, loaded at run time as libibverbs is.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::abi::ibv_qp_attr;
use super::cm_abi::*;
use super::library::open;
use crate::VerbsError;

const FILE: &CStr = c"librdmacm.so.1";

functions! {
    /// The library's functions, by the names that it has for them.
    struct CmLibrary {
        rdma_create_event_channel: fn() -> *mut rdma_event_channel,
        rdma_destroy_event_channel: fn(*mut rdma_event_channel),
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int,
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int,
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr) -> c_int,
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int,
        rdma_get_src_port: fn(*mut rdma_cm_id) -> u16,
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int,
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int,
        rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int,
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int,
        rdma_establish: fn(*mut rdma_cm_id) -> c_int,
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int,
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int,
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int,
    }
}

impl CmLibrary {
    /// Loads it once for the whole process; it is never unloaded.
    pub(super) fn get() -> Result<&'static CmLibrary, VerbsError> {
        static LIBRARY: OnceLock<CmLibrary> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let loaded = CmLibrary::with(open(FILE)?, FILE)?;
        Ok(LIBRARY.get_or_init(|| loaded))
    }
}
