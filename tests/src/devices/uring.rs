//! The io_uring device under the conformance suite, on whatever file or device a test opens.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::Arena;
use forebay_engine::ports::BlockDevice;
use forebay_nvme_uring::{UringDevice, UringFile};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::conformance::block_device::{DeviceRig, every_operation_ends, suite};

/// Two queue pairs on one file or device; none before the arena is known.
pub struct UringRig {
    file: Arc<UringFile>,
    depth: usize,
    /// Whether buffers are registered with the kernel.
    fixed: bool,
    addresses: Range<usize>,
    event: OwnedFd,
    device: Option<UringDevice>,
    other: Option<UringDevice>,
}

impl UringRig {
    /// Queue pairs of `depth`; with `fixed`, buffers are registered with the kernel.
    ///
    /// # Panics
    /// Without a descriptor.
    pub fn new(file: &Arc<UringFile>, depth: usize, fixed: bool) -> Self {
        Self {
            file: file.clone(),
            depth,
            fixed,
            addresses: 0..0,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            device: None,
            other: None,
        }
    }

    fn queue_pair(&self) -> UringDevice {
        let mut device = self
            .file
            .queue_pair(self.addresses.clone(), self.depth)
            .unwrap();
        device.signal_at(self.event.as_fd()).unwrap();
        device
    }
}

impl DeviceRig for UringRig {
    type Device = UringDevice;

    fn lend(&mut self, arena: &Arena) {
        if self.fixed {
            self.addresses = arena.addresses();
        }
        self.device = Some(self.queue_pair());
        self.other = Some(self.queue_pair());
    }

    fn device(&mut self) -> &mut UringDevice {
        self.device.as_mut().unwrap()
    }

    fn pump(&mut self) {
        self.device().commit();
        wait(&self.event, Duration::from_millis(1));
    }

    fn reopen(&mut self) {
        self.device = None;
        self.device = Some(self.queue_pair());
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.device, &mut self.other);
    }
}

/// Until the kernel signals, or the span is over; whether it did.
///
/// # Panics
/// When waiting fails.
pub fn wait(event: &OwnedFd, span: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: span.as_secs() as i64,
        tv_nsec: span.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    let signalled = poll(&mut fds, Some(&timeout)).unwrap() > 0;
    let _ = rustix::io::read(event, &mut [0; 8]);
    signalled
}

/// The whole suite over a file or device, with several depths, with and without registered buffers.
///
/// # Panics
/// With what it breaks.
pub fn conforms(file: &Arc<UringFile>) {
    for (depth, fixed) in [(1, true), (8, false), (128, true)] {
        if let Err(broken) = suite(|| UringRig::new(file, depth, fixed)) {
            panic!(
                "{} with depth {depth}, fixed buffers {fixed}: {broken}",
                file.path().display()
            );
        }
    }
    every_operation_ends(UringRig::new(file, 32, true), 3).unwrap();
}
