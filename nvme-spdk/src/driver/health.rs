//! A controller's own health (log page "SMART / Health Information"), asked for by the thread that polls its admin queue. The
//! answer may come on any thread: a core that makes or frees a queue pair polls that queue, too.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::controller::RawController;
use crate::ffi;
use crate::status::Status;

/// Bytes of the log page.
const HEALTH_BYTES: usize = 512;
/// The controller as a whole.
const ALL_NAMESPACES: u32 = u32::MAX;

/// Nobody has been asked, or the answer was taken.
const IDLE: u32 = u32::MAX;
/// SPDK has the page. Anything else is the status of an answer that nobody has taken yet.
const UNDER_WAY: u32 = u32::MAX - 1;

/// One question at a time, and its answer.
#[derive(Debug)]
pub(crate) struct HealthQuery(Box<Asked>);

#[derive(Debug)]
struct Asked {
    page: UnsafeCell<[u8; HEALTH_BYTES]>,
    state: AtomicU32,
}

// SAFETY: the page is written by whichever thread completes the command, while `state` is `UNDER_WAY`, and read by the owner of the
// `HealthQuery` afterwards: the callback's release and the owner's acquire of `state` order the two.
unsafe impl Sync for Asked {}

impl Asked {
    fn new() -> Box<Self> {
        Box::new(Self {
            page: UnsafeCell::new([0; HEALTH_BYTES]),
            state: AtomicU32::new(IDLE),
        })
    }
}

impl HealthQuery {
    pub(crate) fn new() -> Self {
        Self(Asked::new())
    }

    /// Asks, unless the last answer has not come yet, or was not taken.
    pub(crate) fn ask(&mut self, controller: &RawController) {
        if self.0.state.load(Ordering::Acquire) != IDLE {
            return;
        }
        self.0.state.store(UNDER_WAY, Ordering::Release);
        let asked: &Asked = &self.0;
        let arg = std::ptr::from_ref(asked).cast_mut().cast::<c_void>();
        // SAFETY: the controller is attached, and SPDK guards its admin queue by the controller's lock. Page and `asked` stay where
        // they are (a box) until the callback has come: `drop` leaks them otherwise. Nobody looks at the page as long as
        // `state` is `UNDER_WAY`.
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
            self.0.state.store(IDLE, Ordering::Release);
        }
    }

    /// An answer that came since the last look.
    pub(crate) fn answer(&mut self) -> Option<[u8; HEALTH_BYTES]> {
        // Acquires what the callback's thread did before it.
        let state = self.0.state.load(Ordering::Acquire);
        let status = Status(u16::try_from(state).ok()?);
        let fine = status
            .result(forebay_engine::ports::DeviceError::Media)
            .is_ok();
        // SAFETY: the callback has come, so SPDK writes no more; `&mut self` excludes a new question.
        let page = fine.then(|| unsafe { *self.0.page.get() });
        self.0.state.store(IDLE, Ordering::Release);
        page
    }
}

impl Drop for HealthQuery {
    fn drop(&mut self) {
        if self.0.state.load(Ordering::Acquire) == UNDER_WAY {
            Box::leak(std::mem::replace(&mut self.0, Asked::new()));
        }
    }
}

/// The callback: on whichever thread polls the admin queue, or at the controller's end.
unsafe extern "C" fn answered(arg: *mut c_void, cpl: *const ffi::Cpl) {
    // SAFETY: `arg` is the question's `Asked`, which is there until this has come; only shared references to it exist.
    let asked = unsafe { &*arg.cast::<Asked>() };
    // SAFETY: SPDK gives a completion that is valid during the call.
    let status = unsafe { (*cpl).status_raw };
    // Releases the page, which SPDK has filled on this thread.
    asked.state.store(status.into(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What SPDK does, on a core's thread.
    fn complete(asked: &Asked, byte: u8, status: u16) {
        assert_eq!(asked.state.load(Ordering::Acquire), UNDER_WAY);
        // SAFETY: `state` is `UNDER_WAY`: nobody looks at the page.
        unsafe { *asked.page.get() = [byte; HEALTH_BYTES] };
        let cpl = ffi::Cpl {
            cdw0: 0,
            cdw1: 0,
            sqhd: 0,
            sqid: 0,
            cid: 0,
            status_raw: status,
        };
        // SAFETY: both live until the call has returned.
        unsafe { answered(std::ptr::from_ref(asked).cast_mut().cast(), &cpl) };
    }

    /// It compiles only as long as an answer may come on another thread than the question's.
    #[test]
    fn an_answer_may_come_on_any_thread() {
        let mut query = HealthQuery::new();
        for round in 0..2_000_u32 {
            query.0.state.store(UNDER_WAY, Ordering::Release);
            let byte = round as u8;
            let page = std::thread::scope(|scope| {
                let asked: &'static Asked = {
                    // SAFETY: the thread ends within this scope, and the box stays where it is.
                    unsafe { &*std::ptr::from_ref::<Asked>(&query.0) }
                };
                scope.spawn(move || complete(asked, byte, 1));
                loop {
                    if let Some(page) = query.answer() {
                        break page;
                    }
                    std::hint::spin_loop();
                }
            });
            assert_eq!(page, [byte; HEALTH_BYTES]);
            assert_eq!(query.answer(), None, "it is told once");
        }
        query.0.state.store(UNDER_WAY, Ordering::Release);
        complete(&query.0, 7, 0x08 << 1);
        assert_eq!(query.answer(), None, "a failure is no page");
        assert_eq!(query.0.state.load(Ordering::Acquire), IDLE, "and is over");
    }
}
