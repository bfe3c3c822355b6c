//! One core's queue pair.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use forebay_engine::ports::{
    BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full,
};
use rustix::io::Errno;

use crate::errno::{device_error, is_transient, is_unsupported};
use crate::file::{UringFile, in_range};
use crate::ring::{Erase, Ring, Slot, Work};
use crate::setup::{self, SetupError};

/// The deepest queue.
pub const DEPTH_MAX: usize = 4_096;
/// Operations that wait for the end of the turn at most: a device that gets all of them then has nothing to do while
/// the turn works.
const WAITING_MAX: usize = 4;
/// Times in a row that the kernel may ask to try an operation again.
const RETRIES_MAX: u32 = 16;

/// A queue pair on a file or block device, for the thread that made it. Dropping it waits, for some
/// seconds at most, until the kernel has given back what is under way; what it was not handed never
/// begins.
#[derive(Debug)]
pub struct UringDevice {
    file: Arc<UringFile>,
    ring: Ring,
    depth: usize,
    /// How ranges are discarded; none when the device turned out not to be able to.
    erase: Option<Erase>,
    /// Ended without the kernel.
    ready: VecDeque<DeviceEvent>,
    /// Where the kernel signals, for what ends without it.
    eventfd: Option<OwnedFd>,
    /// The last poll found nothing, and nothing was handed over since.
    found_nothing: bool,
    /// The kernel takes nothing any more.
    dead: bool,
}

impl UringDevice {
    pub(crate) fn new(
        file: Arc<UringFile>,
        arena_addresses: Range<usize>,
        depth: usize,
    ) -> Result<Self, SetupError> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = setup::ring(&file, arena_addresses, depth)?;
        let erase = if file.is_block_device() {
            Erase::Command
        } else {
            Erase::Punch
        };
        Ok(Self {
            file,
            ring,
            depth,
            erase: Some(erase),
            ready: VecDeque::new(),
            eventfd: None,
            found_nothing: true,
            dead: false,
        })
    }

    /// The file that it is a queue pair of.
    pub fn file(&self) -> &Arc<UringFile> {
        &self.file
    }

    /// Signals at `eventfd` when there is something to poll: what a sleeping thread waits for. After a poll
    /// that found nothing the next completion is signalled; between others signals may be left out. The ring's own
    /// descriptor would not do: the kernel does not wake its watchers for deferred completions.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn signal_at(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.eventfd = Some(eventfd.try_clone_to_owned()?);
        self.ring.signal_at(eventfd)
    }

    /// Ends an operation without the kernel, and sees to it that it is polled.
    fn end(&mut self, work: Work, result: Result<(), DeviceError>) {
        self.ready.push_back(event(work, result));
        if let Some(eventfd) = &self.eventfd {
            // It fails only where the counter is full, and then the sleeper is awake.
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }

    /// How an operation ends that the kernel need not see.
    fn short_cut(&self, op: &DeviceOp) -> Option<Result<(), DeviceError>> {
        let (offset_bytes, len_bytes, changes) = match op {
            DeviceOp::Read {
                offset_bytes,
                lease,
                ..
            } => (*offset_bytes, lease.len() as u64, false),
            DeviceOp::Write {
                offset_bytes,
                bytes,
                ..
            } => (*offset_bytes, bytes.len() as u64, true),
            DeviceOp::Flush { .. } => return self.dead.then_some(Err(DeviceError::Gone)),
            DeviceOp::Discard {
                offset_bytes,
                len_bytes,
                ..
            } => (*offset_bytes, *len_bytes, true),
        };
        if !in_range(&self.file.geometry(), offset_bytes, len_bytes) {
            return Some(Err(DeviceError::Range));
        }
        if changes && self.file.is_read_only() {
            return Some(Err(DeviceError::ReadOnly));
        }
        if self.dead {
            return Some(Err(DeviceError::Gone));
        }
        let nothing =
            len_bytes == 0 || (self.erase.is_none() && matches!(op, DeviceOp::Discard { .. }));
        nothing.then_some(Ok(()))
    }

    /// Queues a slot. Its entry exists: at most `depth` are under way, and the ring has as many.
    fn push(&mut self, slot: Slot) {
        if let Err(slot) = self.ring.push(slot) {
            self.end(slot.work, Err(DeviceError::Gone));
        }
        // The first one after a poll that found nothing goes at once: a disk that completes all it has in one go
        // has nothing to do until then.
        let first = std::mem::take(&mut self.found_nothing);
        if !self.dead && (first || self.ring.waiting() >= WAITING_MAX) {
            self.ring_doorbell();
        }
    }

    /// Rings the doorbell. A kernel that is short of memory takes the rest later; one that refuses for
    /// good has no device for us.
    fn ring_doorbell(&mut self) {
        let Err(error) = self.ring.submit() else {
            return;
        };
        let later = [Errno::INTR, Errno::AGAIN, Errno::BUSY, Errno::NOMEM];
        if later
            .iter()
            .any(|errno| errno.raw_os_error() == raw(&error))
        {
            return;
        }
        tracing::error!(
            "{}: the kernel takes no more operations: {error}",
            self.file.path().display()
        );
        self.dead = true;
        for slot in self.ring.take_unsubmitted() {
            self.end(slot.work, Err(DeviceError::Gone));
        }
    }

    /// What a completion means: the end, or a rest that was queued again.
    fn complete(&mut self, mut slot: Slot, result: i32) -> Option<DeviceEvent> {
        let ended = match u32::try_from(result) {
            Ok(bytes) => self.advance(&mut slot, bytes as usize),
            Err(_) => self.fail(&mut slot, Errno::from_raw_os_error(-result)),
        };
        match ended {
            Some(result) => Some(event(slot.work, result)),
            None if self.dead => Some(event(slot.work, Err(DeviceError::Gone))),
            None => {
                self.push(slot);
                None
            }
        }
    }

    /// `bytes` more are done. None when there is a rest.
    fn advance(&self, slot: &mut Slot, bytes: usize) -> Option<Result<(), DeviceError>> {
        let (done, length) = match &slot.work {
            Work::Read { lease, .. } => (slot.done_bytes + bytes, lease.len()),
            Work::Write { bytes: all, .. } => (slot.done_bytes + bytes, all.len()),
            Work::Flush { .. } | Work::Discard { .. } => return Some(Ok(())),
        };
        if done >= length {
            return Some(Ok(()));
        }
        // Direct I/O goes on at whole sectors only.
        let granule = match self.file.is_direct() {
            true => self.file.geometry().sector_bytes as usize,
            false => 1,
        };
        let whole = done - done % granule;
        if whole > slot.done_bytes && (done == whole || matches!(slot.work, Work::Write { .. })) {
            slot.done_bytes = whole;
            slot.retries = 0;
            return None;
        }
        match &mut slot.work {
            // The end of a file that is shorter than its capacity: the rest was never written.
            Work::Read { lease, .. } if !self.file.is_block_device() => {
                lease.bytes_mut()[done..].fill(0);
                Some(Ok(()))
            }
            Work::Read { .. } => Some(Err(DeviceError::Media)),
            _ => Some(Err(DeviceError::Write)),
        }
    }

    /// None when the operation shall be tried again, or in another way.
    fn fail(&mut self, slot: &mut Slot, errno: Errno) -> Option<Result<(), DeviceError>> {
        if is_transient(errno) && slot.retries < RETRIES_MAX {
            slot.retries += 1;
            return None;
        }
        if let Work::Discard { how, .. } = &mut slot.work {
            // An older kernel knows no command and says EINVAL: the range was checked.
            if is_unsupported(errno) || (*how == Erase::Command && errno == Errno::INVAL) {
                let next = (*how == Erase::Command).then_some(Erase::Punch);
                self.erase = next;
                return match next {
                    Some(next) => {
                        *how = next;
                        None
                    }
                    None => Some(Ok(())),
                };
            }
        }
        let otherwise = match slot.work {
            Work::Read { .. } => DeviceError::Media,
            _ => DeviceError::Write,
        };
        Some(Err(device_error(errno, otherwise)))
    }
}

impl BlockDevice for UringDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.file.geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        if self.ring.under_way() + self.ready.len() >= self.depth {
            return Err(Full(op));
        }
        let short_cut = self.short_cut(&op);
        let work = work(op, self.erase.unwrap_or(Erase::Punch));
        match short_cut {
            Some(result) => self.end(work, result),
            None => self.push(Slot::new(work)),
        }
        Ok(())
    }

    fn commit(&mut self) {
        if !self.dead {
            self.ring_doorbell();
        }
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        while let Some((slot, result)) = self.ring.next() {
            if let Some(event) = self.complete(slot, result) {
                return Some(event);
            }
            // A rest does not wait for the next turn: this one may be the last for a while.
            self.commit();
        }
        self.found_nothing = true;
        None
    }
}

fn raw(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn work(op: DeviceOp, how: Erase) -> Work {
    match op {
        DeviceOp::Read {
            tag,
            offset_bytes,
            lease,
        } => Work::Read {
            tag,
            offset_bytes,
            lease,
        },
        DeviceOp::Write {
            tag,
            offset_bytes,
            bytes,
        } => Work::Write {
            tag,
            offset_bytes,
            bytes,
        },
        DeviceOp::Flush { tag } => Work::Flush { tag },
        DeviceOp::Discard {
            tag,
            offset_bytes,
            len_bytes,
        } => Work::Discard {
            tag,
            offset_bytes,
            len_bytes,
            how,
        },
    }
}

fn event(work: Work, result: Result<(), DeviceError>) -> DeviceEvent {
    match work {
        Work::Read { tag, lease, .. } => DeviceEvent::Read { tag, lease, result },
        Work::Write { tag, bytes, .. } => DeviceEvent::Write { tag, bytes, result },
        Work::Flush { tag } => DeviceEvent::Flush { tag, result },
        Work::Discard { tag, .. } => DeviceEvent::Discard { tag, result },
    }
}
