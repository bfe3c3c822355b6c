//! Completion queues, and the channels by which they wake who waits.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
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
    /// Where what completed is told. Kept, so that a look that finds nothing does not fill it with zeros.
    told: RefCell<[ibv_wc; COMPLETIONS_A_POLL]>,
    // After the queue itself, which is destroyed first.
    _channel: Option<Rc<ChannelShared>>,
    pub device: Rc<DeviceShared>,
}

impl CompletionQueue {
    /// A queue with room for at least `entries` completions.
    pub fn new(device: &Device, entries: u32) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::make(&device.0, entries, None)
    }

    /// One that makes the channel's descriptor readable once after each [`CompletionQueue::arm`].
    pub fn with_channel(
        channel: &CompletionChannel,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::make(&channel.0.device, entries, Some(&channel.0))
    }

    fn make(
        device: &Rc<DeviceShared>,
        entries: u32,
        channel: Option<&Rc<ChannelShared>>,
    ) -> Result<CompletionQueue, VerbsError> {
        let device = Rc::clone(device);
        let channel = channel.map(Rc::clone);
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
        let by = channel
            .as_ref()
            .map_or(ptr::null_mut(), |channel| channel.channel.as_ptr());
        // SAFETY: the context is open; no context of ours, a channel of the same context that the queue keeps, or
        // none; the first vector, which always exists.
        let queue = unsafe {
            (device.library.ibv_create_cq)(device.context.as_ptr(), count, ptr::null_mut(), by, 0)
        };
        match NonNull::new(queue) {
            Some(queue) => Ok(CompletionQueue(Rc::new(QueueShared {
                queue,
                told: RefCell::new([ibv_wc::zeroed(); COMPLETIONS_A_POLL]),
                _channel: channel,
                device,
            }))),
            None => Err(call_failed(
                "ibv_create_cq",
                object(),
                "; look at the limit on locked memory (ulimit -l)",
            )),
        }
    }

    /// Asks for one event on its channel at the next completion. What has completed before makes none: poll again
    /// after this.
    pub fn arm(&self) -> Result<(), VerbsError> {
        let device = &self.0.device;
        let object = || format!("RDMA device {}, a completion queue", device.name);
        let Some(req_notify_cq) = device.operations().req_notify_cq else {
            return Err(VerbsError::Unusable {
                object: object(),
                what: "its driver cannot tell of completions".into(),
            });
        };
        // SAFETY: the queue lives; 0 stands for any completion.
        let returned = unsafe { req_notify_cq(self.0.queue.as_ptr(), 0) };
        checked(returned).map_err(|why| call_failed_with("ibv_req_notify_cq", object(), why, ""))
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
        let device = &self.0.device;
        let object = || format!("RDMA device {}, a completion queue", device.name);
        let Some(poll_cq) = device.operations().poll_cq else {
            return Err(VerbsError::Unusable {
                object: object(),
                what: "its driver cannot poll".into(),
            });
        };
        // Borrowed by nobody else: `each` is given copies, and cannot be this queue's poll, which has it.
        let Ok(mut told) = self.0.told.try_borrow_mut() else {
            return Ok(0);
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

/// Where armed completion queues tell that something has completed. Clones are the same.
#[derive(Clone)]
pub struct CompletionChannel(Rc<ChannelShared>);

struct ChannelShared {
    channel: NonNull<ibv_comp_channel>,
    device: Rc<DeviceShared>,
}

impl CompletionChannel {
    /// A channel of a device, whose descriptor never blocks.
    pub fn new(device: &Device) -> Result<CompletionChannel, VerbsError> {
        let device = Rc::clone(&device.0);
        let object = format!("RDMA device {}, a completion channel", device.name);
        // SAFETY: the context is open.
        let channel = unsafe { (device.library.ibv_create_comp_channel)(device.context.as_ptr()) };
        let Some(channel) = NonNull::new(channel) else {
            return Err(call_failed(
                "ibv_create_comp_channel",
                object,
                "; look at the limit on open files (ulimit -n)",
            ));
        };
        let made = CompletionChannel(Rc::new(ChannelShared { channel, device }));
        match set_nonblocking(made.as_fd()) {
            Ok(()) => Ok(made),
            Err(why) => Err(call_failed_with("fcntl", object, why, "")),
        }
    }

    /// Takes the events that have come, and says how many: the descriptor is not readable any more.
    pub fn take_events(&self) -> Result<usize, VerbsError> {
        let device = &self.0.device;
        let mut taken = 0;
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel lives, and both places are there to be filled.
            let returned = unsafe {
                (device.library.ibv_get_cq_event)(self.0.channel.as_ptr(), &mut queue, &mut context)
            };
            if let Err(why) = checked(returned) {
                match why.kind() {
                    io::ErrorKind::WouldBlock => return Ok(taken),
                    io::ErrorKind::Interrupted => continue,
                    _ => {
                        let object = format!("RDMA device {}, a completion channel", device.name);
                        return Err(call_failed_with("ibv_get_cq_event", object, why, ""));
                    }
                }
            }
            taken += 1;
            // SAFETY: the event names a queue that exists: the kernel drops the events of one that is destroyed, and
            // queues are destroyed on this thread only. Each event is acknowledged once.
            unsafe { (device.library.ibv_ack_cq_events)(queue, 1) };
        }
    }
}

/// Calls that read the descriptor do not wait any more.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: the descriptor is borrowed, so it is open; the command takes no argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above; the command takes a number.
    let returned = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    checked(returned)
}

impl ChannelShared {
    fn fd(&self) -> libc::c_int {
        // SAFETY: the channel lives as long as `self`, and the library does not change its descriptor.
        unsafe { self.channel.as_ref() }.fd
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.0.fd()) }
    }
}

impl Drop for ChannelShared {
    fn drop(&mut self) {
        // SAFETY: the queues that used it held it, and are gone.
        let returned =
            unsafe { (self.device.library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        if let Err(why) = checked(returned) {
            tracing::warn!(
                device = self.device.name,
                "RDMA completion channel could not be destroyed: {why}"
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
