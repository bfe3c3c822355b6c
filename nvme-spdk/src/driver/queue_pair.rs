//! A queue pair, and the buffers that the device has.
//!
//! What the device may read or write belongs to a [`Work`], and those leave [`QueuePair`] in three ways only: with the
//! completion that ends them ([`QueuePair::next`]), at once when SPDK did not take them ([`QueuePair::submit`]), or never: a
//! PCI device that hangs, or is taken out, may still reach its buffers, so they come back only when it was seen to reach memory no more
//! (`RawController::disarm`, by the controller's thread), and are leaked otherwise. SPDK ends commands of a device that the kernel
//! wants back while that still works: what it says of them counts only then, too.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::LocalKey;
use std::time::{Duration, Instant};

use forebay_engine::arena::{Frozen, Lease};
use forebay_engine::ports::DeviceTag;
use slab::Slab;

use super::controller::RawNamespace;
use super::memory::Registration;
use crate::error::Loss;
use crate::ffi;
use crate::namespace::Namespace;
use crate::status::Status;
use crate::watch::Watch;

/// How long dropped queue pairs wait for what is under way: all that one thread drops together.
const DROP_WAIT: Duration = Duration::from_secs(5);
/// How long they wait then for a PCI device to reach memory no more.
const DISARM_WAIT: Duration = Duration::from_secs(2);
/// What one that is dropped later still has of that: some looks of its controller's thread.
const DISARM_WAIT_MIN: Duration = Duration::from_millis(100);
/// How often they look.
const DISARM_PAUSE: Duration = Duration::from_millis(1);
/// What one that is dropped later still has.
const DROP_WAIT_MIN: Duration = Duration::from_millis(20);
/// Queue pairs that are dropped within so long of each other are dropped together.
const TOGETHER: Duration = Duration::from_secs(1);

/// Until when the last one of this thread might wait, and when it had.
type Last = Cell<Option<(Instant, Instant)>>;

thread_local! {
    /// For what is under way.
    static LAST_DROP: Last = const { Cell::new(None) };
    /// For a device to be disarmed.
    static LAST_DISARM: Last = const { Cell::new(None) };
}

fn together(last: &'static LocalKey<Last>, wait: Duration, least: Duration) -> Instant {
    wait_until(last.get(), Instant::now(), wait, least)
}

/// Until when one waits that begins to at `now`.
fn wait_until(
    last: Option<(Instant, Instant)>,
    now: Instant,
    wait: Duration,
    least: Duration,
) -> Instant {
    match last {
        Some((until, ended)) if now.saturating_duration_since(ended) <= TOGETHER => {
            until.max(now + least)
        }
        _ => now + wait,
    }
}

/// Requests of SPDK's that a queue pair has at most.
const REQUESTS_MAX: usize = 32 << 10;
/// What SPDK 24.01 takes for each of them, and for each operation under way; entries of both rings.
const REQUEST_BYTES: usize = 320;
const TRACKER_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 64 + 16;
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// The largest operation of the engine.
const OPERATION_BYTES_MAX: usize = forebay_engine::limits::CHUNK_BYTES;
/// Sectors in one range of a discard.
const DISCARD_SECTORS_MAX: u64 = u32::MAX as u64;
/// Ranges in one discard.
const DISCARD_RANGES_MAX: usize = 256;

const ENOMEM: c_int = -12;
const ENXIO: c_int = -6;

/// What the device is asked to do.
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
    },
}

/// Why SPDK did not take an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no request left: later.
    Full,
    /// A negative errno.
    Errno(i32),
}

/// What SPDK's completion callback points to, one for each operation that may be under way.
struct Context {
    index: u32,
    home: Cell<*const Completions>,
}

/// Completions that were not taken yet: at most one for each operation under way.
struct Completions {
    contexts: Vec<Context>,
    ring: Vec<Cell<(u32, u16)>>,
    pushed: Cell<usize>,
    taken: Cell<usize>,
}

impl Completions {
    fn new(depth: usize) -> Rc<Self> {
        let context = |index| Context {
            index: index as u32,
            home: Cell::new(std::ptr::null()),
        };
        let new = Rc::new(Self {
            contexts: (0..depth).map(context).collect(),
            ring: vec![Cell::new((0, 0)); depth],
            pushed: Cell::new(0),
            taken: Cell::new(0),
        });
        let home = Rc::as_ptr(&new);
        new.contexts
            .iter()
            .for_each(|context| context.home.set(home));
        new
    }

    fn push(&self, index: u32, status: u16) {
        let pushed = self.pushed.get();
        // A device that completes something twice must not overwrite what others wait for.
        if pushed - self.taken.get() < self.ring.len() {
            self.ring[pushed % self.ring.len()].set((index, status));
            self.pushed.set(pushed + 1);
        }
    }

    fn len(&self) -> usize {
        self.pushed.get() - self.taken.get()
    }

    fn pop(&self) -> Option<(u32, u16)> {
        let taken = self.taken.get();
        (taken < self.pushed.get()).then(|| {
            self.taken.set(taken + 1);
            self.ring[taken % self.ring.len()].get()
        })
    }
}

/// A queue pair, for the thread that made it: `Work` holds `Frozen`s, which count with `Rc`, so it is not `Send`.
pub(crate) struct QueuePair {
    /// None when SPDK has freed it.
    qpair: Option<NonNull<ffi::Qpair>>,
    slots: Slab<Work>,
    depth: usize,
    sector_bytes: u64,
    completions: Rc<Completions>,
    /// SPDK's errno, since it has ended.
    ended: Option<c_int>,
    // Their order matters: the memory stays known to SPDK, and the controller attached, until the queue pair is gone.
    memory: Option<Arc<Registration>>,
    namespace: Arc<Namespace>,
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair")
            .field("under_way", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl QueuePair {
    /// Makes one, and connects it. For a network target `memory` may be none. None when the controller has none left.
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        memory: Option<Arc<Registration>>,
        depth: usize,
    ) -> Option<Self> {
        let raw = namespace.raw();
        let qpair = NonNull::new(alloc(raw, namespace.transfer_bytes_max(), depth))?;
        Some(Self {
            qpair: Some(qpair),
            slots: Slab::with_capacity(depth),
            depth,
            sector_bytes: namespace.geometry().sector_bytes.into(),
            completions: Completions::new(depth),
            ended: None,
            memory,
            namespace,
        })
    }

    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    pub(crate) fn under_way(&self) -> usize {
        self.slots.len()
    }

    /// Of those, how many have ended and wait for [`QueuePair::next`].
    pub(crate) fn found(&self) -> usize {
        // Who waits for what is held back need not look for it without a rest.
        if self.holds_back() {
            return 0;
        }
        self.completions.len().min(self.slots.len())
    }

    /// Whether nothing is handed out: the device may still reach what its operations hold.
    fn holds_back(&self) -> bool {
        self.ended.is_some() && self.namespace.is_pci() && !self.watch().is_disarmed()
    }

    /// Whether SPDK has ended it, or the controller.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Hands an operation to SPDK, whose range is whole sectors of the namespace and not empty.
    ///
    /// # Errors
    /// The operation back, and why.
    pub(crate) fn submit(&mut self, work: Work) -> Result<(), (Work, Refusal)> {
        if self.slots.len() >= self.depth {
            return Err((work, Refusal::Full));
        }
        let index = self.slots.insert(work);
        let refused = match self.hand_over(index) {
            0 => return Ok(()),
            ENOMEM if self.slots.len() > 1 => Refusal::Full,
            errno => Refusal::Errno(errno),
        };
        Err((self.slots.remove(index), refused))
    }

    /// SPDK's errno.
    fn hand_over(&mut self, index: usize) -> c_int {
        let Some(context) = self.completions.contexts.get(index) else {
            return ENOMEM;
        };
        let Some(qpair) = self.qpair else {
            return ENXIO;
        };
        let arg = std::ptr::from_ref(context).cast_mut().cast::<c_void>();
        let (ns, qpair, sector) = (self.namespace.raw().ns(), qpair.as_ptr(), self.sector_bytes);
        match &mut self.slots[index] {
            Work::Read {
                offset_bytes,
                lease,
                ..
            } => {
                let (lba, sectors) = (*offset_bytes / sector, lease.len() as u64 / sector);
                let at = lease.bytes_mut().as_mut_ptr().cast();
                // SAFETY: `at` is valid for `sectors` sectors and belongs to the lease, which stays in its slot, untouched,
                // until the callback has come. `arg` lives as long as `completions`, which outlives the queue pair. Namespace
                // and queue pair belong to one controller, which `namespace` keeps. This is the queue pair's own thread.
                unsafe {
                    ffi::spdk_nvme_ns_cmd_read(ns, qpair, at, lba, sectors as u32, ended, arg, 0)
                }
            }
            Work::Write {
                offset_bytes,
                bytes,
                ..
            } => {
                let (lba, sectors) = (*offset_bytes / sector, bytes.len() as u64 / sector);
                let at = bytes.as_ptr().cast_mut().cast();
                // SAFETY: as for reads; SPDK only reads the bytes, which nobody writes as long as they are frozen.
                unsafe {
                    ffi::spdk_nvme_ns_cmd_write(ns, qpair, at, lba, sectors as u32, ended, arg, 0)
                }
            }
            // SAFETY: `arg`, namespace and queue pair as for reads.
            Work::Flush { .. } => unsafe { ffi::spdk_nvme_ns_cmd_flush(ns, qpair, ended, arg) },
            Work::Discard {
                offset_bytes,
                len_bytes,
                ..
            } => {
                let ranges = ranges(*offset_bytes / sector, *len_bytes / sector);
                let (at, count) = (ranges.as_ptr(), ranges.len() as u16);
                let kind = ffi::DSM_ATTR_DEALLOCATE;
                // SAFETY: SPDK copies the ranges before it returns; the rest as for reads.
                unsafe {
                    ffi::spdk_nvme_ns_cmd_dataset_management(ns, qpair, kind, at, count, ended, arg)
                }
            }
        }
    }

    /// Rings the doorbell for what was submitted, and looks for completions. False when the queue pair, or the controller,
    /// has ended; what was under way has ended with it, unless that is a PCI device which may still reach memory.
    pub(crate) fn process(&mut self) -> bool {
        let Some(qpair) = self.qpair else {
            return false;
        };
        // SAFETY: the queue pair is there, and this is its own thread. Callbacks only push to `completions`, of which nothing
        // is borrowed now.
        let found = unsafe { ffi::spdk_nvme_qpair_process_completions(qpair.as_ptr(), 0) };
        if found >= 0 {
            return true;
        }
        match self.namespace.is_pci() {
            false if self.ended.is_none() => {
                // SAFETY: as above. SPDK closes the socket, after which nothing is written into buffers, and aborts what is
                // under way: their callbacks come now.
                unsafe { ffi::spdk_nvme_ctrlr_disconnect_io_qpair(qpair.as_ptr()) };
            }
            true if self.watch().is_disarmed() => self.free(),
            true if !self.slots.is_empty() => self.watch().want_disarmed(),
            _ => {}
        }
        self.ended.get_or_insert(found);
        false
    }

    fn watch(&self) -> &Watch {
        &self.namespace.controller().watch
    }

    /// Has a PCI device disarmed that does not end what it was given; whether it was.
    fn is_disarmed_in_time(&self) -> bool {
        let watch = self.watch();
        watch.lost.lose(Loss::TimedOut(DROP_WAIT));
        watch.want_disarmed();
        let until = together(&LAST_DISARM, DISARM_WAIT, DISARM_WAIT_MIN);
        while !watch.is_disarmed() && Instant::now() < until {
            std::thread::sleep(DISARM_PAUSE);
        }
        LAST_DISARM.set(Some((until, Instant::now())));
        watch.is_disarmed()
    }

    /// SPDK calls back for what is still under way, within this.
    fn free(&mut self) {
        if let Some(qpair) = self.qpair.take() {
            // SAFETY: not used again. The device reaches nothing of what is under way: there is nothing, or the connection is closed by
            // this before, or it reaches no memory any more. Slots and contexts are dropped after this.
            unsafe { ffi::spdk_nvme_ctrlr_free_io_qpair(qpair.as_ptr()) };
        }
    }

    /// An operation that ended, and how.
    pub(crate) fn next(&mut self) -> Option<(Work, Status)> {
        if self.holds_back() {
            return None;
        }
        while let Some((index, status)) = self.completions.pop() {
            if let Some(work) = self.slots.try_remove(index as usize) {
                return Some((work, Status(status)));
            }
        }
        None
    }
}

/// The callback of every command.
unsafe extern "C" fn ended(arg: *mut c_void, cpl: *const ffi::Cpl) {
    // SAFETY: `arg` is a context of the queue pair's `completions`, which outlive it.
    let context = unsafe { &*arg.cast::<Context>() };
    // SAFETY: set by `Completions::new` to the `Rc`'s own place, which does not move; only shared references to it exist.
    let home = unsafe { &*context.home.get() };
    // SAFETY: SPDK gives a completion that is valid during the call.
    let status = unsafe { (*cpl).status_raw };
    home.push(context.index, status);
}

/// SPDK's queue pair for so many operations, or null.
fn alloc(namespace: &RawNamespace, transfer_bytes_max: u32, depth: usize) -> *mut ffi::Qpair {
    // SAFETY: numbers and pointers, for which zeros are values.
    let mut opts: ffi::QpairOpts = unsafe { std::mem::zeroed() };
    // The beginning that all versions share.
    let known = std::mem::offset_of!(ffi::QpairOpts, room);
    let ctrlr = namespace.ctrlr();
    // SAFETY: the controller is attached; `opts` is longer than `known`, and longer than SPDK's structure.
    unsafe { ffi::spdk_nvme_ctrlr_get_default_io_qpair_opts(ctrlr, &mut opts, known) };
    // The ring keeps one entry free. More than the controller takes was asked for when it was attached, so this is its own
    // bound; what is beyond it, or in parts, SPDK keeps until there is room.
    opts.io_queue_size = opts.io_queue_size.min(depth as u32 + 1);
    opts.io_queue_requests =
        requests(transfer_bytes_max, depth).max(opts.io_queue_size as usize) as u32;
    // One doorbell for all that was submitted, rung by `process`.
    opts.delay_cmd_submit = 1;
    // SAFETY: as above; SPDK copies `opts`.
    unsafe { ffi::spdk_nvme_ctrlr_alloc_io_qpair(ctrlr, &opts, known) }
}

/// Requests for so many operations: SPDK splits one that is larger than a transfer, and wants one for each part and one for the whole.
fn requests(transfer_bytes_max: u32, depth: usize) -> usize {
    let transfer = transfer_bytes_max.max(4096) as usize;
    let each = OPERATION_BYTES_MAX.div_ceil(transfer) + 1;
    (depth * each).min(REQUESTS_MAX)
}

/// Huge pages of 2 MiB that SPDK takes for such a queue pair, with room for what its allocator wastes.
pub(crate) fn queue_pages(transfer_bytes_max: u32, depth: usize) -> u64 {
    let bytes = requests(transfer_bytes_max, depth) * REQUEST_BYTES
        + (depth + 1) * (TRACKER_BYTES + ENTRY_BYTES);
    (bytes as u64 * 9 / 8).div_ceil(HUGE_PAGE_BYTES)
}

/// As many as one command takes: a discard is a hint, and what is left of a huge one stays.
fn ranges(first: u64, sectors: u64) -> Vec<ffi::DsmRange> {
    let mut ranges = Vec::with_capacity(1);
    let mut done = 0;
    while done < sectors && ranges.len() < DISCARD_RANGES_MAX {
        let length = (sectors - done).min(DISCARD_SECTORS_MAX);
        ranges.push(ffi::DsmRange {
            attributes: 0,
            length: length as u32,
            starting_lba: first + done,
        });
        done += length;
    }
    ranges
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let until = together(&LAST_DROP, DROP_WAIT, DROP_WAIT_MIN);
        while !self.slots.is_empty() && Instant::now() < until && self.process() {
            while self.next().is_some() {}
            std::hint::spin_loop();
        }
        LAST_DROP.set(Some((until, Instant::now())));
        while self.next().is_some() {}
        if !self.slots.is_empty() && self.namespace.is_pci() && !self.is_disarmed_in_time() {
            tracing::error!(
                "{}: {} operations never end; their buffers are lost, because the device may still reach them",
                self.namespace.address(),
                self.slots.len()
            );
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(self.completions.clone());
            std::mem::forget(self.memory.clone());
            std::mem::forget(self.namespace.clone());
            return;
        }
        self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_come_out_as_they_went_in_and_never_more_than_fit() {
        let completions = Completions::new(2);
        for round in 0..5 {
            completions.push(0, round);
            completions.push(1, round);
            completions.push(1, 99);
            assert_eq!(completions.pop(), Some((0, round)));
            assert_eq!(completions.pop(), Some((1, round)));
            assert_eq!(completions.pop(), None);
        }
    }

    #[test]
    fn those_dropped_together_wait_together() {
        let start = Instant::now();
        let drop_until = |last, now| wait_until(last, now, DROP_WAIT, DROP_WAIT_MIN);
        let first = drop_until(None, start);
        assert_eq!(first, start + DROP_WAIT);
        let ended = first;
        assert_eq!(
            drop_until(Some((first, ended)), ended),
            ended + DROP_WAIT_MIN
        );
        let later = ended + TOGETHER * 2;
        assert_eq!(drop_until(Some((first, ended)), later), later + DROP_WAIT);
    }

    #[test]
    fn pages_of_a_queue_pair_are_for_all_of_its_requests() {
        // 257 trackers and entries are 1 MiB, 2,304 requests 0.7 MiB.
        assert_eq!(queue_pages(128 << 10, 256), 1);
        assert_eq!(queue_pages(1 << 20, 8), 1);
        // 1,025 are 4.1 MiB, 9,216 requests 2.8 MiB.
        assert_eq!(queue_pages(128 << 10, 1024), 4);
        // 16,640 requests are 5 MiB.
        assert_eq!(queue_pages(16 << 10, 256), 4);
        assert_eq!(queue_pages(0, usize::from(u16::MAX)), 153);
    }

    #[test]
    fn a_large_discard_is_cut_into_ranges() {
        let all = |first, sectors| -> Vec<(u64, u32)> {
            let ranges = ranges(first, sectors);
            ranges
                .iter()
                .map(|range| (range.starting_lba, range.length))
                .collect()
        };
        assert_eq!(all(7, 9), [(7, 9)]);
        assert_eq!(
            all(1, DISCARD_SECTORS_MAX + 2),
            [(1, u32::MAX), (1 << 32, 2)]
        );
        assert_eq!(all(0, u64::MAX).len(), DISCARD_RANGES_MAX);
    }
}
