//! One core's queue pair.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::arena::Lease;
use forebay_engine::ports::{
    BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full,
};

use crate::driver::{QueuePair, Refusal, Work};
use crate::error::{Loss, MemoryError, QueueError};
use crate::namespace::Namespace;
use crate::pace::Pace;
use crate::trial::{Failed, LOST_PATIENCE, reaches};
use crate::watch::Gate;

/// A doorbell is rung for so many bytes at the latest.
const DOORBELL_BYTES: usize = 512 << 10;

/// The deepest queue.
pub const DEPTH_MAX: usize = 1_024;

/// What a core's queue pair is like.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Operations under way at most; at least 1, at most [`DEPTH_MAX`].
    pub depth: usize,
    /// With operations under way, the core is asked not to sleep before nothing has happened for so long. Nothing for a core
    /// that may not spin.
    pub spin: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            depth: 256,
            spin: Duration::from_micros(150),
        }
    }
}

impl QueueOptions {
    pub(crate) fn depth(&self) -> usize {
        self.depth.clamp(1, DEPTH_MAX)
    }
}

/// A queue pair on a namespace, for the thread that made it. Dropping it waits, for some seconds at most, until what is
/// under way has ended.
///
/// Nothing signals a completion: with operations under way the core must poll, as often as [`BlockDevice::nap`] says.
#[derive(Debug)]
pub struct SpdkDevice {
    queue: QueuePair,
    depth: usize,
    /// Ended without SPDK.
    ready: VecDeque<DeviceEvent>,
    /// Taken while the gate was closed, in their order; SPDK gets them with the next look.
    waiting: VecDeque<Work>,
    gate: Arc<Gate>,
    unrung: Unrung,
    /// Looked at since `poll` gave none.
    looked: bool,
    pace: Pace,
    /// Where a loss is signalled, as long as this is there.
    woken: Option<Arc<OwnedFd>>,
}

impl SpdkDevice {
    pub(crate) fn new(queue: QueuePair, options: &QueueOptions) -> Self {
        Self {
            gate: queue.namespace().controller().watch.gate(),
            waiting: VecDeque::new(),
            queue,
            depth: options.depth(),
            ready: VecDeque::new(),
            unrung: Unrung::default(),
            looked: false,
            pace: Pace::new(options.spin),
            woken: None,
        }
    }

    /// The namespace that it is a queue pair of.
    pub fn namespace(&self) -> &Namespace {
        self.queue.namespace()
    }

    /// Signals at `eventfd` when the controller is lost, so that a core that sleeps learns of it. Completions signal
    /// nothing.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn signal_at(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let eventfd: OwnedFd = eventfd.try_clone_to_owned()?;
        let eventfd = Arc::new(eventfd);
        self.namespace().wake(&eventfd);
        self.woken = Some(eventfd);
        Ok(())
    }

    /// Tries out whether the device reaches `buffers`, which are of this queue pair's arena ([`Arena::probes`]): reads its first sector
    /// into each. For a PCI device before it is used: nothing else tells that the IOMMU has refused its memory. Blocks,
    /// but for some seconds only once the device is lost.
    ///
    /// # Errors
    /// [`QueueError::Memory`]: the device must not be used.
    ///
    /// [`Arena::probes`]: forebay_engine::arena::Arena::probes
    pub fn check_memory(&mut self, buffers: Vec<Lease>) -> Result<Vec<Lease>, QueueError> {
        let (buffers, outcome) = reaches(self, buffers, LOST_PATIENCE);
        let why = match outcome {
            Ok(()) => return Ok(buffers),
            Err(Failed::Unreached(buffers)) => MemoryError::Unreached { buffers },
            Err(Failed::Device(error)) => MemoryError::Device(error),
        };
        Err(QueueError::Memory {
            address: self.namespace().address().to_string(),
            why,
        })
    }

    /// How an operation ends that SPDK need not see.
    fn short_cut(&self, op: &DeviceOp) -> Option<Result<(), DeviceError>> {
        let namespace = self.namespace();
        let gone = || self.lost().then_some(Err(DeviceError::Gone));
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
            DeviceOp::Flush { .. } => {
                let nothing = (!namespace.can_flush()).then_some(Ok(()));
                return gone().or(nothing);
            }
            DeviceOp::Discard {
                offset_bytes,
                len_bytes,
                ..
            } => (*offset_bytes, *len_bytes, true),
        };
        if !in_range(&namespace.geometry(), offset_bytes, len_bytes) {
            return Some(Err(DeviceError::Range));
        }
        if changes && namespace.is_read_only() {
            return Some(Err(DeviceError::ReadOnly));
        }
        let discard = matches!(op, DeviceOp::Discard { .. });
        let nothing = len_bytes == 0 || (discard && !namespace.can_discard());
        gone().or(nothing.then_some(Ok(())))
    }

    fn lost(&self) -> bool {
        self.queue.has_ended() || self.namespace().loss().is_some()
    }

    /// Gives SPDK an operation that it shall see, unless the gate is closed.
    fn hand_over(&mut self, work: Work) -> Handed {
        let gate = self.gate.clone();
        let Some(_passed) = gate.pass() else {
            return Handed::GateClosed(work);
        };
        // What has changed while the gate was closed is known now.
        if self.lost() {
            self.ready.push_back(event(work, Err(DeviceError::Gone)));
            return Handed::Over;
        }
        let len_bytes = len_bytes(&work);
        match self.queue.submit(work) {
            Ok(()) => {
                self.unrung.add(len_bytes);
                self.pace.moved();
            }
            Err((work, Refusal::Full)) => return Handed::Full(work),
            Err((work, Refusal::Errno(errno))) => {
                tracing::debug!(
                    "{}: SPDK takes no operation: {errno}",
                    self.namespace().address()
                );
                let result = Err(match self.lost() {
                    true => DeviceError::Gone,
                    false => refused(&work, errno),
                });
                self.ready.push_back(event(work, result));
            }
        }
        Handed::Over
    }

    /// What was taken while the gate was closed.
    fn hand_over_waiting(&mut self) {
        while let Some(work) = self.waiting.pop_front() {
            match self.hand_over(work) {
                Handed::Over => {}
                Handed::GateClosed(work) | Handed::Full(work) => {
                    self.waiting.push_front(work);
                    return;
                }
            }
        }
    }

    /// Looks for completions and rings the doorbell. An end of the queue pair is the end of the controller for this node.
    fn process(&mut self) {
        self.unrung = Unrung::default();
        self.looked = true;
        if !self.queue.process() {
            self.namespace().controller().watch.lost.lose(Loss::Failed);
        }
    }
}

/// What was submitted, and no doorbell rung for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unrung {
    operations: usize,
    bytes: usize,
}

impl Unrung {
    fn add(&mut self, len_bytes: usize) {
        self.operations += 1;
        self.bytes += len_bytes;
    }

    /// Whether the device must know now. Where completions lie here that are not taken yet, more will be submitted at once: a few
    /// operations wait for those, as long as the device has at least as many others.
    fn is_due(self, found: usize, at_device: usize) -> bool {
        let may_wait = found > 0 && at_device >= self.operations && self.bytes < DOORBELL_BYTES;
        self.operations > 0 && !may_wait
    }
}

/// Bytes that an operation moves; a flush must not wait, nor a discard.
fn len_bytes(work: &Work) -> usize {
    match work {
        Work::Read { lease, .. } => lease.len(),
        Work::Write { bytes, .. } => bytes.len(),
        Work::Flush { .. } | Work::Discard { .. } => DOORBELL_BYTES,
    }
}

/// What became of an operation that SPDK shall see.
enum Handed {
    /// SPDK has it, or it has ended.
    Over,
    /// Namespaces may change just now.
    GateClosed(Work),
    /// SPDK has no request left.
    Full(Work),
}

impl BlockDevice for SpdkDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.namespace().geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        if self.queue.under_way() + self.ready.len() + self.waiting.len() >= self.depth {
            return Err(Full(op));
        }
        if let Some(result) = self.short_cut(&op) {
            self.ready.push_back(event(work(op), result));
            return Ok(());
        }
        let work = work(op);
        if !self.waiting.is_empty() {
            self.waiting.push_back(work);
            return Ok(());
        }
        match self.hand_over(work) {
            Handed::Over => Ok(()),
            Handed::GateClosed(work) => {
                self.waiting.push_back(work);
                Ok(())
            }
            Handed::Full(work) => Err(Full(op_of(work))),
        }
    }

    fn commit(&mut self) {
        self.hand_over_waiting();
        let found = self.queue.found();
        let here = found + self.unrung.operations;
        let at_device = self.queue.under_way().saturating_sub(here);
        if self.unrung.is_due(found, at_device) {
            self.process();
        }
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        self.hand_over_waiting();
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        let mut ended = self.queue.next();
        // One look a turn: each costs a doorbell (or a system call) for what it found, and a device that ends things one by one would
        // be looked at for each.
        if ended.is_none() && !std::mem::take(&mut self.looked) && self.queue.under_way() > 0 {
            self.process();
            ended = self.queue.next();
            self.looked = ended.is_some();
        }
        let (work, status) = ended?;
        self.pace.moved();
        let result = status.result(otherwise(&work));
        Some(event(work, result))
    }

    fn nap(&mut self) -> Option<Duration> {
        if !self.ready.is_empty() || self.queue.found() > 0 {
            return Some(Duration::ZERO);
        }
        let under_way = self.queue.under_way() > 0 || !self.waiting.is_empty();
        under_way.then(|| self.pace.nap(Instant::now()))
    }

    fn loss(&self) -> Option<String> {
        self.namespace().loss().map(|loss| loss.to_string())
    }
}

/// What SPDK's errno means that is no lack of requests. `-ENXIO`: the queue pair is not connected any more.
fn refused(work: &Work, errno: i32) -> DeviceError {
    const ENXIO: i32 = -6;
    match errno {
        ENXIO => DeviceError::Gone,
        _ => otherwise(work),
    }
}

/// What an error means that says nothing in particular.
fn otherwise(work: &Work) -> DeviceError {
    match work {
        Work::Read { .. } => DeviceError::Media,
        _ => DeviceError::Write,
    }
}

/// Whether a range is whole sectors within the device.
fn in_range(geometry: &DeviceGeometry, offset_bytes: u64, len_bytes: u64) -> bool {
    let sector = u64::from(geometry.sector_bytes);
    offset_bytes.is_multiple_of(sector)
        && len_bytes.is_multiple_of(sector)
        && offset_bytes
            .checked_add(len_bytes)
            .is_some_and(|end| end <= geometry.capacity_bytes)
}

fn work(op: DeviceOp) -> Work {
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
        },
    }
}

fn op_of(work: Work) -> DeviceOp {
    match work {
        Work::Read {
            tag,
            offset_bytes,
            lease,
        } => DeviceOp::Read {
            tag,
            offset_bytes,
            lease,
        },
        Work::Write {
            tag,
            offset_bytes,
            bytes,
        } => DeviceOp::Write {
            tag,
            offset_bytes,
            bytes,
        },
        Work::Flush { tag } => DeviceOp::Flush { tag },
        Work::Discard {
            tag,
            offset_bytes,
            len_bytes,
        } => DeviceOp::Discard {
            tag,
            offset_bytes,
            len_bytes,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_waits_for_more_only_while_the_device_has_something_to_do() {
        let of = |lengths: &[usize]| {
            let mut unrung = Unrung::default();
            lengths.iter().for_each(|len| unrung.add(*len));
            unrung
        };
        assert!(!of(&[]).is_due(0, 0));
        // Nothing else will be submitted in this turn.
        assert!(of(&[4096]).is_due(0, 31));
        // The device has nothing to do.
        assert!(of(&[4096]).is_due(31, 0));
        assert!(!of(&[4096]).is_due(4, 27));
        // Half of what is under way by now.
        assert!(!of(&[4096; 14]).is_due(4, 14));
        assert!(of(&[4096; 15]).is_due(4, 13));
        assert!(!of(&[128 << 10; 3]).is_due(4, 25));
        assert!(of(&[128 << 10; 4]).is_due(4, 24));
    }
}
