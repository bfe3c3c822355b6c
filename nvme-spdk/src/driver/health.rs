//! A controller's own health (log page "SMART / Health Information"), asked for by the thread that polls its admin queue.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;

use super::controller::RawController;
use crate::ffi;
use crate::status::Status;

/// Bytes of the log page.
const HEALTH_BYTES: usize = 512;
/// The controller as a whole.
const ALL_NAMESPACES: u32 = u32::MAX;

/// One question at a time, and its answer. Belongs to the thread that polls the admin queue, in which answers come.
#[derive(Debug)]
pub(crate) struct HealthQuery(Box<Asked>);

#[derive(Debug)]
struct Asked {
    page: UnsafeCell<[u8; HEALTH_BYTES]>,
    under_way: Cell<bool>,
    /// Of an answer that nobody has taken yet.
    status: Cell<Option<u16>>,
}

impl HealthQuery {
    pub(crate) fn new() -> Self {
        Self(Box::new(Asked {
            page: UnsafeCell::new([0; HEALTH_BYTES]),
            under_way: Cell::new(false),
            status: Cell::new(None),
        }))
    }

    /// Asks, unless the last answer has not come yet.
    pub(crate) fn ask(&mut self, controller: &RawController) {
        if self.0.under_way.replace(true) {
            return;
        }
        let asked: &Asked = &self.0;
        let arg = std::ptr::from_ref(asked).cast_mut().cast::<c_void>();
        // SAFETY: the controller is attached, and this is the thread that polls its admin queue. Page and `asked` stay where they
        // are (a box) until the callback has come: `drop` leaks them otherwise. Nobody looks at the page as long as
        // `under_way` is set.
        let refused = unsafe {
            ffi::spdk_nvme_ctrlr_cmd_get_log_page(
                controller.as_ptr(),
                ffi::LOG_HEALTH,
                ALL_NAMESPACES,
                asked.page.get().cast(),
                HEALTH_BYTES as u32,
                0,
                answered,
                arg,
            )
        };
        if refused != 0 {
            self.0.under_way.set(false);
        }
    }

    /// An answer that came since the last look.
    pub(crate) fn answer(&mut self) -> Option<[u8; HEALTH_BYTES]> {
        let status = Status(self.0.status.take()?);
        let fine = status
            .result(forebay_engine::ports::DeviceError::Media)
            .is_ok();
        // SAFETY: the callback has come, so SPDK writes no more; `&mut self` excludes a new question.
        fine.then(|| unsafe { *self.0.page.get() })
    }
}

impl Drop for HealthQuery {
    fn drop(&mut self) {
        if self.0.under_way.get() {
            let never = Asked {
                page: UnsafeCell::new([0; HEALTH_BYTES]),
                under_way: Cell::new(false),
                status: Cell::new(None),
            };
            Box::leak(std::mem::replace(&mut self.0, Box::new(never)));
        }
    }
}

/// The callback, within a poll of the admin queue or the controller's end.
unsafe extern "C" fn answered(arg: *mut c_void, cpl: *const ffi::Cpl) {
    // SAFETY: `arg` is the question's `Asked`, which is there until this has come; only shared references to it exist.
    let asked = unsafe { &*arg.cast::<Asked>() };
    // SAFETY: SPDK gives a completion that is valid during the call.
    asked.status.set(Some(unsafe { (*cpl).status_raw }));
    asked.under_way.set(false);
}
