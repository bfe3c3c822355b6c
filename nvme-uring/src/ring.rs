//! The ring, and the buffers that the kernel has. The only unsafe code of this crate.
//!
//! What the kernel may read or write belongs to a [`Slot`], and slots leave [`Ring`] in three ways
//! only: with the completion that ends them ([`Ring::next`]), when the kernel has provably not seen them
//! ([`Ring::take_unsubmitted`]), or never (dropping a ring whose operations do not end leaks them).

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use forebay_engine::arena::{Frozen, Lease};
use forebay_engine::ports::DeviceTag;
use io_uring::types::{CancelBuilder, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, opcode, squeue};
use slab::Slab;

use crate::file::UringFile;
use crate::fixed::FixedBuffers;
use crate::namespace::{Namespace, URING_CMD_IO, errno_of};
use crate::patience::{self, DROP_WAIT};
use crate::queues::{Entry, Queues};

/// The registered file's number, and that of its NVMe namespace.
const FILE: Fixed = Fixed(0);
const NAMESPACE: Fixed = Fixed(1);
/// `BLOCK_URING_CMD_DISCARD` of `linux/blkdev.h`: number 0 of type 0x12, without argument.
const CMD_DISCARD: u32 = 0x12 << 8;

/// How a range's contents are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Erase {
    /// The block device's own discard, as a command through the ring (Linux 6.12).
    Command,
    /// A hole: in a file, or by writing zeros without data on a block device.
    Punch,
}

/// What the kernel is asked to do.
#[derive(Debug)]
pub(crate) enum Work {
    Read {
        tag: DeviceTag,
        offset_bytes: u64,
        lease: Lease,
    },
    Write {
        tag: DeviceTag,
        offset_bytes: u64,
        bytes: Frozen,
    },
    Flush {
        tag: DeviceTag,
    },
    Discard {
        tag: DeviceTag,
        offset_bytes: u64,
        len_bytes: u64,
        how: Erase,
    },
}

/// An operation and how far it has come.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) work: Work,
    /// Bytes of a read or write that are done: it goes on behind them.
    pub(crate) done_bytes: usize,
    /// Times that the kernel asked to try again.
    pub(crate) retries: u32,
    /// Bytes that entries were queued for, `done_bytes` included.
    issued_bytes: usize,
    /// Where its buffer begins: looked at once, before the kernel has any of it.
    address: usize,
    /// The registered buffer that holds it.
    fixed: Option<u16>,
    /// Entries of it that are queued or with the kernel.
    entries: usize,
    /// What the first of its entries to fail returned.
    fault: i32,
}

impl Slot {
    pub(crate) fn new(work: Work) -> Self {
        Self {
            work,
            done_bytes: 0,
            retries: 0,
            issued_bytes: 0,
            address: 0,
            fixed: None,
            entries: 0,
            fault: 0,
        }
    }
}

/// An io_uring with one registered file, used by the thread that made it: slots hold `Frozen`s, which
/// count with `Rc`, so it is not `Send`.
pub(crate) struct Ring {
    uring: Queues,
    file: Arc<UringFile>,
    slots: Slab<Slot>,
    fixed: FixedBuffers,
    /// Keys of the slots whose entries the kernel has not taken out of the queue, in the queue's order.
    unseen: VecDeque<usize>,
    /// Nothing is submitted any more.
    closed: bool,
    /// Completions are written down only when this thread asks for them.
    deferred: bool,
    bell: Bell,
}

/// Whether the kernel signals at an eventfd that there is something to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bell {
    /// There is none.
    None,
    /// It does, whenever there is something new.
    On,
    /// It does not: this thread is at it, and will look once more before it turns the bell on.
    Off,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("under_way", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// Room for `depth` operations, which must not exceed the entries of `uring`.
    pub(crate) fn new(uring: Queues, file: Arc<UringFile>, depth: usize, deferred: bool) -> Self {
        Self {
            uring,
            file,
            slots: Slab::with_capacity(depth),
            fixed: FixedBuffers::default(),
            unseen: VecDeque::new(),
            closed: false,
            deferred,
            bell: Bell::None,
        }
    }

    /// Signals at `eventfd` when there is something to take.
    pub(crate) fn signal_at(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.uring
            .submitter()
            .register_eventfd(eventfd.as_raw_fd())?;
        self.bell = Bell::On;
        Ok(())
    }

    /// Makes the file what all operations work on.
    pub(crate) fn register_file(&mut self) -> io::Result<()> {
        let file = self.file.as_fd().as_raw_fd();
        let submitter = self.uring.submitter();
        match &self.file.namespace {
            Some(namespace) => submitter.register_files(&[file, namespace.raw_fd()]),
            None => submitter.register_files(&[file]),
        }
    }

    /// From now on operations on buffers in `range` spare the kernel the look-up of their pages. Does
    /// nothing more than make room in the kernel's table.
    ///
    /// # Errors
    /// What the kernel says; operations are plain ones then.
    pub(crate) fn use_fixed(&mut self, range: Range<usize>) -> io::Result<()> {
        let fixed = FixedBuffers::over(range);
        if fixed.pieces() > 0 {
            let submitter = self.uring.submitter();
            submitter.register_buffers_sparse(fixed.pieces() as u32)?;
        }
        self.fixed = fixed;
        Ok(())
    }

    /// The number of the registered buffer that holds the memory, which is registered when it is not
    /// yet. None when the memory lies outside, or the kernel refuses.
    fn fixed_index(&mut self, (address, len_bytes): (usize, usize)) -> Option<u16> {
        let index = self.fixed.index(address, len_bytes)?;
        if !self.fixed.is_registered(index) {
            if let Err(error) = self.register_piece(index) {
                // What is registered stays so in the kernel's table, unused.
                self.fixed = FixedBuffers::default();
                self.file.told.no_fixed_buffers(&self.file, &error);
                return None;
            }
            self.fixed.set_registered(index);
        }
        u16::try_from(index).ok()
    }

    fn register_piece(&self, index: usize) -> io::Result<()> {
        let piece = self.fixed.piece(index);
        let piece = [libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(piece.start),
            iov_len: piece.len(),
        }];
        let submitter = self.uring.submitter();
        // SAFETY: the kernel checks the range and pins the pages that are mapped there now, so they stay
        // allocated until the ring is gone whatever becomes of the mapping. It touches them only for
        // operations of `entry`, which name memory of a buffer that the operation's slot owns.
        unsafe { submitter.register_buffers_update(index as u32, &piece, None) }
    }

    /// Operations whose slots are here.
    pub(crate) fn under_way(&self) -> usize {
        self.slots.len()
    }

    /// Queues an operation, for the next [`Ring::submit`]: one entry, or as many NVMe commands as its length takes.
    ///
    /// # Errors
    /// The slot, when the queue has no entry left.
    pub(crate) fn push(&mut self, mut slot: Slot) -> Result<(), Box<Slot>> {
        if self.uring.is_full() {
            return Err(Box::new(slot));
        }
        let fixed = memory(&slot).and_then(|memory| self.fixed_index(memory));
        let (issued_bytes, address) = (slot.done_bytes, address_of(&mut slot.work));
        let key = self.slots.insert(Slot {
            issued_bytes,
            address,
            fixed,
            entries: 0,
            fault: 0,
            ..slot
        });
        self.issue(key);
        match self.slots[key].entries {
            0 => Err(Box::new(self.slots.remove(key))),
            _ => Ok(()),
        }
    }

    /// Queues entries for what is left of a slot's operation, as far as the queue has room.
    fn issue(&mut self, key: usize) {
        loop {
            if self.uring.is_full() {
                // What the kernel says is told at the next submit.
                let _ = self.submit();
            }
            let slot = &mut self.slots[key];
            let fixed = slot.fixed;
            let (entry, issued_bytes) = match &self.file.namespace {
                Some(namespace) => command(namespace, slot, fixed, key),
                None => (Entry::Plain(entry(slot, fixed).user_data(key as u64)), None),
            };
            // SAFETY: the entry names memory of the buffer in `slots[key]` only (see `entry` and `command`). The slot
            // keeps that buffer until the completions of all of its entries were taken or the kernel never saw
            // them, see the head of this module. Nobody looks into a slot meanwhile; a read's bytes are not aliased, since a
            // lease is the sole right to them, and a write's bytes are only read, by the kernel as by others.
            if !unsafe { self.uring.push(entry) } {
                return;
            }
            let slot = &mut self.slots[key];
            slot.entries += 1;
            self.unseen.push_back(key);
            match issued_bytes {
                Some(issued) => slot.issued_bytes = issued,
                None => return,
            }
            if !slot.has_more() {
                return;
            }
        }
    }

    /// Operations that wait for the next [`Ring::submit`].
    pub(crate) fn waiting(&mut self) -> usize {
        self.uring.waiting()
    }

    /// Hands everything queued to the kernel, in one system call unless it takes less than all.
    /// What it did not take stays queued.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        while self.uring.waiting() > 0 {
            let taken = self.uring.submit();
            let unseen = self.uring.waiting();
            let seen = self.unseen.len().saturating_sub(unseen);
            self.unseen.drain(..seen);
            if taken? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// An operation that has ended, and what the kernel returned. Enters the kernel only when it has
    /// completions that it has not written down yet.
    pub(crate) fn next(&mut self) -> Option<(Slot, i32)> {
        loop {
            if let Some((number, result)) = self.uring.next() {
                self.hush();
                match usize::try_from(number)
                    .ok()
                    .and_then(|key| self.completed(key, result))
                {
                    Some(ended) => return Some(ended),
                    None => continue,
                }
            }
            if self.uring.has_unwritten() {
                self.hush();
                if self.get_events().is_ok() && self.uring.has_completions() {
                    continue;
                }
            }
            if self.bell != Bell::Off {
                return None;
            }
            self.uring.set_bell(true);
            self.bell = Bell::On;
            // What came before the kernel saw the bell on must be seen below: it first marks what it has,
            // then looks at the bell.
            fence(Ordering::SeqCst);
        }
    }

    /// Takes one completion; the slot, with the last of its entries. Each entry of ours completes once, and its key is
    /// reused only afterwards.
    fn completed(&mut self, key: usize, result: i32) -> Option<(Slot, i32)> {
        let slot = self.slots.get_mut(key)?;
        slot.entries = slot.entries.saturating_sub(1);
        let is_command = self.file.namespace.is_some() && slot.transfer_bytes().is_some();
        if !is_command {
            return Some((self.slots.remove(key), result));
        }
        if slot.fault == 0 {
            slot.fault = errno_of(result);
        }
        if slot.fault == 0 && slot.has_more() && self.closed {
            slot.fault = -libc::ENODEV;
        } else if slot.fault == 0 && slot.has_more() {
            self.issue(key);
            let _ = self.submit();
        }
        let slot = &mut self.slots[key];
        if slot.entries > 0 {
            return None;
        }
        if slot.fixed.take().is_some() && slot.fault == -libc::EINVAL && !self.closed {
            // Kernels before 6.12 take for a command only what is a whole registered buffer.
            (slot.fault, slot.issued_bytes) = (0, slot.done_bytes);
            self.fixed = FixedBuffers::default();
            self.file.told.no_fixed_commands(&self.file);
            self.issue(key);
            let _ = self.submit();
            if self.slots[key].entries > 0 {
                return None;
            }
            return Some((self.slots.remove(key), -libc::EAGAIN));
        }
        let moved = match slot.fault {
            0 => slot.issued_bytes - slot.done_bytes,
            fault => return Some((self.slots.remove(key), fault)),
        };
        Some((self.slots.remove(key), moved as i32))
    }

    /// Spares the kernel the signals, and the next sleep a wake-up, for what this thread is about to take.
    /// Only with deferred completions, where the kernel marks new ones by a locked operation before it looks at the bell;
    /// architectures whose locked operations order nothing keep the bell on.
    fn hush(&mut self) {
        if self.bell == Bell::On && self.deferred && cfg!(target_arch = "x86_64") {
            self.uring.set_bell(false);
            self.bell = Bell::Off;
        }
    }

    /// Lets the kernel write down completions, without waiting for any.
    fn get_events(&self) -> io::Result<usize> {
        let submitter = self.uring.submitter();
        // SAFETY: nothing is submitted, and no argument is passed that the kernel would read.
        unsafe { submitter.enter::<libc::sigset_t>(0, 0, EnterFlags::GETEVENTS.bits(), None) }
    }

    /// Waits for one completion, at most `within`.
    fn wait_event(&self, within: Duration) {
        if !self.uring.waits_for_a_time() {
            // Linux before 5.11 cannot wait for a time.
            std::thread::sleep(within.min(Duration::from_millis(1)));
            return;
        }
        let span = Timespec::from(within);
        let argument = SubmitArgs::new().timespec(&span);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let submitter = self.uring.submitter();
        // SAFETY: nothing is submitted; the argument is of the type that EXT_ARG asks for, and it and the span
        // that it points to outlive the call.
        let _ = unsafe { submitter.enter(0, 1, flags.bits(), Some(&argument)) };
    }

    /// Takes back what the kernel has not seen, when it refuses to look. Nothing may be submitted
    /// afterwards.
    pub(crate) fn take_unsubmitted(&mut self) -> Vec<Slot> {
        self.closed = true;
        let mut taken = Vec::new();
        for key in std::mem::take(&mut self.unseen) {
            let Some(slot) = self.slots.get_mut(key) else {
                continue;
            };
            slot.entries = slot.entries.saturating_sub(1);
            // Of one of several entries the rest ends it, as failed.
            slot.fault = -libc::ENODEV;
            if slot.entries == 0 {
                taken.push(self.slots.remove(key));
            }
        }
        taken
    }

    /// Waits until the kernel has given everything back. False when it has not in time.
    fn drain(&mut self, deadline: Instant) -> bool {
        loop {
            while self.next().is_some() {}
            if self.slots.is_empty() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.wait_event(left);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        drop(self.take_unsubmitted());
        if self.slots.is_empty() {
            return;
        }
        // Ends what waits for a kernel worker; what a device has already begun ends by itself.
        let _ = self
            .uring
            .submitter()
            .register_sync_cancel(Some(Timespec::new()), CancelBuilder::any().all());
        if !patience::wait_with(|until| self.drain(until)) {
            tracing::error!(
                "{} disk operations do not end ({DROP_WAIT:?} were waited for all disks): their buffers are lost until the \
                 process ends",
                self.slots.len()
            );
            // The kernel may still read or write these bytes.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

impl Slot {
    /// Whether there are bytes that no entry was queued for.
    fn has_more(&self) -> bool {
        self.transfer_bytes()
            .is_some_and(|all| all > self.issued_bytes)
    }

    /// The length of a read or write; none for other work. It does not look at bytes that the kernel may be writing.
    fn transfer_bytes(&self) -> Option<usize> {
        match &self.work {
            Work::Read { lease, .. } => Some(lease.len()),
            Work::Write { bytes, .. } => Some(bytes.len()),
            Work::Flush { .. } | Work::Discard { .. } => None,
        }
    }
}

/// Where the buffer of an operation begins, for commands that name it by a number.
fn address_of(work: &mut Work) -> usize {
    match work {
        Work::Read { lease, .. } => lease.bytes_mut().as_mut_ptr().expose_provenance(),
        Work::Write { bytes, .. } => bytes.as_ptr().expose_provenance(),
        Work::Flush { .. } | Work::Discard { .. } => 0,
    }
}

/// Address and length of what is left of a slot's buffer.
fn memory(slot: &Slot) -> Option<(usize, usize)> {
    let bytes: &[u8] = match &slot.work {
        Work::Read { lease, .. } => lease.bytes(),
        Work::Write { bytes, .. } => bytes,
        Work::Flush { .. } | Work::Discard { .. } => return None,
    };
    let rest = bytes.get(slot.done_bytes..)?;
    Some((rest.as_ptr().addr(), rest.len()))
}

/// The entry for what is left of a slot's operation. It names memory of the slot's own buffer only.
/// `fixed` is the registered buffer that holds it.
fn entry(slot: &mut Slot, fixed: Option<u16>) -> squeue::Entry {
    let done = slot.done_bytes;
    match &mut slot.work {
        Work::Read {
            offset_bytes,
            lease,
            ..
        } => {
            let rest = &mut lease.bytes_mut()[done..];
            let (at, len) = (rest.as_mut_ptr(), rest.len() as u32);
            let offset = *offset_bytes + done as u64;
            match fixed {
                Some(index) => opcode::ReadFixed::new(FILE, at, len, index)
                    .offset(offset)
                    .build(),
                None => opcode::Read::new(FILE, at, len).offset(offset).build(),
            }
        }
        Work::Write {
            offset_bytes,
            bytes,
            ..
        } => {
            let rest = &bytes[done..];
            let (at, len) = (rest.as_ptr(), rest.len() as u32);
            let offset = *offset_bytes + done as u64;
            match fixed {
                Some(index) => opcode::WriteFixed::new(FILE, at, len, index)
                    .offset(offset)
                    .build(),
                None => opcode::Write::new(FILE, at, len).offset(offset).build(),
            }
        }
        Work::Flush { .. } => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
        Work::Discard {
            offset_bytes,
            len_bytes,
            how,
            ..
        } => erase(*how, *offset_bytes, *len_bytes),
    }
}

/// The entry for the next command of a slot's operation on a namespace, and the bytes that are then issued; for what is no
/// transfer, what [`entry`] says. It names memory of the slot's own buffer only.
fn command(
    namespace: &Namespace,
    slot: &mut Slot,
    fixed: Option<u16>,
    key: usize,
) -> (Entry, Option<usize>) {
    let issued = slot.issued_bytes;
    let (writes, offset_bytes) = match &slot.work {
        Work::Read { offset_bytes, .. } => (false, *offset_bytes),
        Work::Write { offset_bytes, .. } => (true, *offset_bytes),
        Work::Flush { .. } | Work::Discard { .. } => {
            let entry = entry(slot, fixed).user_data(key as u64);
            return (Entry::Plain(entry), None);
        }
    };
    let len_bytes = slot.transfer_bytes().unwrap_or(0);
    let (address, left_bytes) = (slot.address + issued, len_bytes - issued);
    let len_bytes = left_bytes.min(namespace.command_bytes);
    let offset_bytes = offset_bytes + issued as u64;
    let command = namespace.transfer(writes, offset_bytes, address, len_bytes);
    let entry = opcode::UringCmd80::new(NAMESPACE, URING_CMD_IO)
        .cmd(command)
        .buf_index(fixed)
        .build()
        .user_data(key as u64);
    (Entry::Wide(Box::new(entry)), Some(issued + len_bytes))
}

fn erase(how: Erase, offset_bytes: u64, len_bytes: u64) -> squeue::Entry {
    match how {
        Erase::Punch => opcode::Fallocate::new(FILE, len_bytes)
            .offset(offset_bytes)
            .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            .build(),
        Erase::Command => {
            // The command's length lies where other operations have their third address.
            let mut argument = [0u8; 16];
            argument[..8].copy_from_slice(&len_bytes.to_ne_bytes());
            opcode::UringCmd16::new(FILE, CMD_DISCARD)
                .addr(Some(offset_bytes))
                .cmd(argument)
                .build()
        }
    }
}
