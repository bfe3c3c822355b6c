//! Completion queues.

use std::ptr::{self, NonNull};
use std::rc::Rc;

use super::abi::*;
use super::checked;
use super::device::{Device, DeviceShared, call_failed, call_failed_with};
use crate::VerbsError;
use crate::limits::COMPLETIONS_A_POLL;
use crate::status::{Completed, Completion, WorkFault, WorkKind};

/// Where devices tell what became of work. Clones are the same. It must have room for all work that may be under
/// way on its queue pairs: a device that finds none breaks the queue.
#[derive(Clone)]
pub struct CompletionQueue(pub(super) Rc<QueueShared>);

pub(super) struct QueueShared {
    pub queue: NonNull<ibv_cq>,
    pub device: Rc<DeviceShared>,
}

impl CompletionQueue {
    /// A queue with room for at least `entries` completions.
    pub fn new(device: &Device, entries: u32) -> Result<CompletionQueue, VerbsError> {
        let device = Rc::clone(&device.0);
        let object = || {
            format!(
                "RDMA device {}, a completion queue of {entries}",
                device.name
            )
        };
        let Ok(count) = i32::try_from(entries) else {
            return Err(VerbsError::Unusable {
                object: object(),
                what: "no device has as many".into(),
            });
        };
        // SAFETY: the context is open; no channel and no context of ours, the first vector, which always exists.
        let queue = unsafe {
            (device.library.ibv_create_cq)(
                device.context.as_ptr(),
                count,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        match NonNull::new(queue) {
            Some(queue) => Ok(CompletionQueue(Rc::new(QueueShared { queue, device }))),
            None => Err(call_failed(
                "ibv_create_cq",
                object(),
                "; look at the limit on locked memory (ulimit -l)",
            )),
        }
    }

    /// Takes what has completed, at most [`COMPLETIONS_A_POLL`], and says how many it took. Does not wait.
    ///
    /// # Errors
    /// [`VerbsError::Call`] when the queue is broken: its queue pairs are of no more use.
    pub fn poll(&self, each: impl FnMut(Completion)) -> Result<usize, VerbsError> {
        self.poll_up_to(COMPLETIONS_A_POLL, each)
    }

    /// The same, with a smaller bound.
    pub fn poll_up_to(
        &self,
        count_max: usize,
        mut each: impl FnMut(Completion),
    ) -> Result<usize, VerbsError> {
        let count_max = count_max.min(COMPLETIONS_A_POLL);
        let mut told = [ibv_wc::zeroed(); COMPLETIONS_A_POLL];
        let device = &self.0.device;
        let object = || format!("RDMA device {}, a completion queue", device.name);
        let Some(poll_cq) = device.operations().poll_cq else {
            return Err(VerbsError::Unusable {
                object: object(),
                what: "its driver cannot poll".into(),
            });
        };
        // SAFETY: the queue lives, and there is room for as many completions as are asked for.
        let count = unsafe { poll_cq(self.0.queue.as_ptr(), count_max as i32, told.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            let why = std::io::Error::other(format!("it ended with {count}"));
            return Err(call_failed_with(
                "ibv_poll_cq",
                object(),
                why,
                "; was there room for all completions?",
            ));
        };
        for entry in told.iter().take(count) {
            each(completion(entry));
        }
        Ok(count.min(count_max))
    }
}

fn completion(entry: &ibv_wc) -> Completion {
    // Of work that failed, only its number, the queue pair and the status are told.
    let outcome = match WorkFault::from_code(entry.status, entry.vendor_err) {
        Some(fault) => Err(fault),
        None => match WorkKind::from_code(entry.opcode) {
            Some(kind) => Ok(Completed {
                kind,
                len_bytes: entry.byte_len,
            }),
            None => Err(WorkFault::UnknownKind(entry.opcode)),
        },
    };
    Completion {
        work: entry.wr_id,
        queue_pair: entry.qp_num,
        outcome,
    }
}

impl Drop for QueueShared {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that used it held it, and are gone.
        let returned = unsafe { (self.device.library.ibv_destroy_cq)(self.queue.as_ptr()) };
        if let Err(why) = checked(returned) {
            tracing::warn!(
                device = self.device.name,
                "RDMA completion queue could not be destroyed: {why}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hardware_tells_beyond_the_known_is_an_error_not_a_panic() {
        let mut entry = ibv_wc::zeroed();
        entry.opcode = 200;
        assert_eq!(completion(&entry).outcome, Err(WorkFault::UnknownKind(200)));
        entry.status = 77;
        entry.vendor_err = 5;
        assert_eq!(completion(&entry).outcome, Err(WorkFault::Unknown(77, 5)));
    }
}
