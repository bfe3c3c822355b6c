//! libibverbs, loaded at run time: a machine without it is told so instead of not starting the program.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::abi::*;
use crate::VerbsError;

/// Its file, by the name that has stood for the same binary interface since 2008.
const FILE: &CStr = c"libibverbs.so.1";

functions! {
    /// The library's functions, by the names that it has for them.
    struct Library {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device,
        ibv_free_device_list: fn(*mut *mut ibv_device),
        ibv_get_device_name: fn(*mut ibv_device) -> *const c_char,
        ibv_get_device_guid: fn(*mut ibv_device) -> u64,
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context,
        ibv_close_device: fn(*mut ibv_context) -> c_int,
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int,
        ibv_ack_async_event: fn(*mut ibv_async_event),
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
        _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int,
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd,
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int,
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int,
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel,
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int,
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint),
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int,
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int,
    }
}

/// With one of these the library says that something is destroyed as soon as its device begins to go, which may be before the
/// kernel has done it: peers could still write into memory that is used again.
const EARLY_DESTROY: [&str; 2] = ["RDMAV_ALLOW_DISASSOC_DESTROY", "MLX4_DEVICE_FATAL_CLEANUP"];

impl Library {
    /// Loads it once for the whole process; it is never unloaded.
    pub(super) fn get() -> Result<&'static Library, VerbsError> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        if let Some(name) = EARLY_DESTROY
            .iter()
            .find(|name| std::env::var_os(name).is_some())
        {
            return Err(VerbsError::Load {
                library: FILE.to_string_lossy().into_owned(),
                reason: format!(
                    "{name} is set: with it the library tells of queue pairs that are gone while they still receive; unset it"
                ),
            });
        }
        let loaded = Library::load(FILE)?;
        Ok(LIBRARY.get_or_init(|| loaded))
    }

    fn load(file: &CStr) -> Result<Library, VerbsError> {
        Library::with(open(file)?, file)
    }
}

/// Loads one of rdma-core's libraries, for good.
pub(super) fn open(file: &CStr) -> Result<*mut c_void, VerbsError> {
    // SAFETY: the name ends with a zero byte. Initialisers of these libraries only read their configuration.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    match handle.is_null() {
        true => Err(load_error(file)),
        false => Ok(handle),
    }
}

pub(super) fn symbol(
    handle: *mut c_void,
    file: &CStr,
    name: &'static str,
) -> Result<*mut c_void, VerbsError> {
    // SAFETY: the handle is of `dlopen` and never closed; the name ends with a zero byte.
    let found = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
    if found.is_null() {
        return Err(load_error(file));
    }
    Ok(found)
}

/// What the loader said of the last call on this thread.
fn load_error(file: &CStr) -> VerbsError {
    // SAFETY: has no conditions; the text stays until this thread's next call of the loader.
    let said = unsafe { libc::dlerror() };
    let reason = if said.is_null() {
        String::from("the loader does not say why")
    } else {
        // SAFETY: not null, so it is the loader's text, which ends with a zero byte.
        let said = unsafe { CStr::from_ptr(said) };
        said.to_string_lossy().into_owned()
    };
    VerbsError::Load {
        library: file.to_string_lossy().into_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(file: &CStr) -> String {
        match Library::load(file) {
            Ok(_) => panic!("{file:?} was taken for libibverbs"),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn a_machine_without_the_library_is_told_what_to_install() {
        let told = refusal(c"libforebay-no-such-library.so.1");
        assert!(told.contains("libforebay-no-such-library.so.1"), "{told}");
        assert!(told.contains("install rdma-core"), "{told}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let told = refusal(c"libc.so.6");
        assert!(told.contains("ibv_get_device_list"), "{told}");
    }
}
