//! A device that fails in the ways disks fail.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use forebay_engine::arena::Frozen;
use forebay_engine::ports::{
    BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, DeviceTag, Full,
};
use parking_lot::Mutex;

use crate::sim::rng::SimRng;

/// Operations that may have ended without the device below.
const READY_MAX: usize = 256;

/// What is wrong with the media now. Byte ranges are of the device.
#[derive(Clone, Debug, Default)]
pub struct Defects {
    /// Reads that touch these end in `Media`. A write over them heals them.
    pub unreadable: Vec<Range<u64>>,
    /// Writes that touch these end in `Write`, and touch nothing.
    pub unwritable: Vec<Range<u64>>,
    /// Reads of these bytes give them xored with the mask; nothing reports it. A write heals them.
    pub flipped: Vec<(u64, u8)>,
    /// Bytes that may still be written before writes end in `NoSpace`; none for no limit.
    pub space_left_bytes: Option<u64>,
    /// Writes and discards end in `ReadOnly`.
    pub read_only: bool,
    /// Everything ends in `Gone`, also what is under way.
    pub gone: bool,
}

/// What goes wrong by chance, each per mille of the writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chances {
    /// The written range turns out to be unreadable, until it is written again.
    pub unreadable: u32,
    /// One written bit is wrong. Nothing reports it.
    pub flipped: u32,
    /// Ends in `Write`, and touches nothing.
    pub unwritable: u32,
    /// Only the first sectors are written; ends in `Write`.
    pub torn: u32,
    /// Only the first sectors are written; ends well.
    pub cut_short: u32,
    /// Lands one length further on (or before, at the end); ends well.
    pub misdirected: u32,
}

/// Faults that readers and writers were given so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Reads that ended in `Media`.
    pub unreadable: u64,
    /// Bytes that were read wrong.
    pub flipped: u64,
    /// Writes that ended in `Write` untouched.
    pub unwritable: u64,
    /// Torn writes.
    pub torn: u64,
    /// Writes cut short.
    pub cut_short: u64,
    /// Writes elsewhere.
    pub misdirected: u64,
    /// Writes that ended in `NoSpace`.
    pub no_space: u64,
    /// Writes and discards that ended in `ReadOnly`.
    pub read_only: u64,
    /// Operations that ended in `Gone`.
    pub gone: u64,
}

#[derive(Debug)]
struct State {
    defects: Defects,
    chances: Chances,
    delivered: Delivered,
    rng: SimRng,
}

/// The switches of a [`FaultyDevice`]: of all queue pairs that were made with a clone of them, on any
/// thread.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Mutex<State>>);

/// What becomes of a write.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Done,
    Refused(DeviceError),
    /// Only so many bytes are written, and what is reported.
    Part(usize, Result<(), DeviceError>),
    Elsewhere(u64),
}

impl Faults {
    /// None yet; `seed` decides what happens by chance.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            defects: Defects::default(),
            chances: Chances::default(),
            delivered: Delivered::default(),
            rng: SimRng::component(seed, "faulty device", 0),
        })))
    }

    /// Changes what is wrong with the media.
    pub fn defects(&self, change: impl FnOnce(&mut Defects)) {
        change(&mut self.0.lock().defects);
    }

    /// Sets what goes wrong by chance from now on.
    pub fn chances(&self, chances: Chances) {
        self.0.lock().chances = chances;
    }

    /// Ends everything that is wrong. Bytes that were written elsewhere or not at all stay so.
    pub fn heal(&self) {
        let mut state = self.0.lock();
        state.defects = Defects::default();
        state.chances = Chances::default();
    }

    /// Faults delivered so far.
    pub fn delivered(&self) -> Delivered {
        self.0.lock().delivered
    }
}

impl State {
    /// Decides about a write, and what the media are like afterwards.
    fn write(&mut self, geometry: &DeviceGeometry, offset: u64, len_bytes: usize) -> Fate {
        let range = offset..offset.saturating_add(len_bytes as u64);
        if self.defects.read_only {
            self.delivered.read_only += 1;
            return Fate::Refused(DeviceError::ReadOnly);
        }
        let refused = self.rng.chance(self.chances.unwritable);
        if refused || touches(&self.defects.unwritable, &range) {
            self.delivered.unwritable += 1;
            return Fate::Refused(DeviceError::Write);
        }
        if let Some(left) = &mut self.defects.space_left_bytes {
            if *left < len_bytes as u64 {
                self.delivered.no_space += 1;
                return Fate::Refused(DeviceError::NoSpace);
            }
            *left -= len_bytes as u64;
        }
        let sectors = len_bytes as u64 / u64::from(geometry.sector_bytes);
        let part =
            |rng: &mut SimRng| (rng.below(sectors) * u64::from(geometry.sector_bytes)) as usize;
        if self.rng.chance(self.chances.torn) {
            self.delivered.torn += 1;
            return Fate::Part(part(&mut self.rng), Err(DeviceError::Write));
        }
        if self.rng.chance(self.chances.cut_short) {
            self.delivered.cut_short += 1;
            return Fate::Part(part(&mut self.rng), Ok(()));
        }
        if self.rng.chance(self.chances.misdirected)
            && let Some(elsewhere) = elsewhere(geometry, &range)
        {
            self.delivered.misdirected += 1;
            return Fate::Elsewhere(elsewhere);
        }
        self.heal_range(&range);
        if self.rng.chance(self.chances.unreadable) {
            self.defects.unreadable.push(range.clone());
        }
        if self.rng.chance(self.chances.flipped) && len_bytes > 0 {
            let at = offset + self.rng.below(len_bytes as u64);
            self.defects.flipped.push((at, 1 << self.rng.below(8)));
        }
        Fate::Done
    }

    fn heal_range(&mut self, range: &Range<u64>) {
        let whole = std::mem::take(&mut self.defects.unreadable);
        let rest = |bad: Range<u64>| {
            [
                bad.start..bad.end.min(range.start),
                bad.start.max(range.end)..bad.end,
            ]
        };
        let left = whole.into_iter().flat_map(rest);
        self.defects.unreadable = left.filter(|range| !range.is_empty()).collect();
        self.defects.flipped.retain(|(at, _)| !range.contains(at));
    }

    /// What the media make of a read that the device below did.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        if touches(&self.defects.unreadable, &range) {
            self.delivered.unreadable += 1;
            return Err(DeviceError::Media);
        }
        for (at, mask) in &self.defects.flipped {
            if range.contains(at) {
                bytes[(at - offset) as usize] ^= mask;
                self.delivered.flipped += 1;
            }
        }
        Ok(())
    }
}

fn touches(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    ranges
        .iter()
        .any(|bad| bad.start < range.end && range.start < bad.end)
}

/// A place of the same length next to `range`; none on a device that has no second one.
fn elsewhere(geometry: &DeviceGeometry, range: &Range<u64>) -> Option<u64> {
    let len_bytes = range.end - range.start;
    if range.end.checked_add(len_bytes)? <= geometry.capacity_bytes {
        return Some(range.end);
    }
    range.start.checked_sub(len_bytes)
}

fn ended(op: DeviceOp, result: Result<(), DeviceError>) -> DeviceEvent {
    match op {
        DeviceOp::Read { tag, lease, .. } => DeviceEvent::Read { tag, lease, result },
        DeviceOp::Write { tag, bytes, .. } => DeviceEvent::Write { tag, bytes, result },
        DeviceOp::Flush { tag } => DeviceEvent::Flush { tag, result },
        DeviceOp::Discard { tag, .. } => DeviceEvent::Discard { tag, result },
    }
}

/// What must be known when an operation of the device below ends.
#[derive(Debug)]
enum Open {
    Read {
        offset_bytes: u64,
    },
    /// The bytes as they were lent, and what is reported instead of success.
    Write {
        bytes: Frozen,
        result: Result<(), DeviceError>,
    },
}

/// A queue pair with [`Faults`] over another one.
#[derive(Debug)]
pub struct FaultyDevice<D> {
    inner: D,
    faults: Faults,
    open: HashMap<DeviceTag, Open>,
    /// What was decided about writes that the device below had no room for: they come again.
    decided: HashMap<DeviceTag, Fate>,
    ready: VecDeque<DeviceEvent>,
    waker: Option<Waker>,
}

impl<D: BlockDevice> FaultyDevice<D> {
    /// Over `inner`. Without faults it does what `inner` does.
    pub fn new(inner: D, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            open: HashMap::new(),
            decided: HashMap::new(),
            ready: VecDeque::new(),
            waker: None,
        }
    }

    /// For real cores, which sleep: `waker` is used when an operation ends without the device below.
    pub fn waking(self, waker: Waker) -> Self {
        Self {
            waker: Some(waker),
            ..self
        }
    }

    fn end_early(&mut self, event: DeviceEvent) -> Result<(), Full<DeviceOp>> {
        self.ready.push_back(event);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
        Ok(())
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Whether there is an event that the device below does not know of.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn submit_write(
        &mut self,
        tag: DeviceTag,
        offset_bytes: u64,
        bytes: Frozen,
    ) -> Result<(), Full<DeviceOp>> {
        let geometry = self.inner.geometry();
        // What is malformed ends as it does below.
        let sound = crate::devices::in_range(&geometry, offset_bytes, bytes.len() as u64);
        let fate = match self.decided.remove(&tag) {
            Some(fate) => fate,
            None if sound => {
                let mut state = self.faults.0.lock();
                state.write(&geometry, offset_bytes, bytes.len())
            }
            None => Fate::Done,
        };
        let (to_bytes, part, result) = match fate {
            Fate::Done => (offset_bytes, bytes.clone(), Ok(())),
            Fate::Elsewhere(elsewhere) => (elsewhere, bytes.clone(), Ok(())),
            Fate::Part(len, result) if len > 0 => (offset_bytes, bytes.slice(0..len), result),
            Fate::Part(_, result) => return self.end_write(tag, bytes, result),
            Fate::Refused(error) => return self.end_write(tag, bytes, Err(error)),
        };
        let op = DeviceOp::Write {
            tag,
            offset_bytes: to_bytes,
            bytes: part,
        };
        match self.inner.submit(op) {
            Ok(()) => {
                self.open.insert(tag, Open::Write { bytes, result });
                Ok(())
            }
            Err(_) => {
                self.decided.insert(tag, fate);
                Err(Full(DeviceOp::Write {
                    tag,
                    offset_bytes,
                    bytes,
                }))
            }
        }
    }

    fn end_write(
        &mut self,
        tag: DeviceTag,
        bytes: Frozen,
        result: Result<(), DeviceError>,
    ) -> Result<(), Full<DeviceOp>> {
        self.end_early(DeviceEvent::Write { tag, bytes, result })
    }

    fn end(&mut self, event: DeviceEvent) -> DeviceEvent {
        let mut state = self.faults.0.lock();
        if state.defects.gone {
            state.delivered.gone += 1;
        }
        let gone = state.defects.gone.then_some(Err(DeviceError::Gone));
        match event {
            DeviceEvent::Read {
                tag,
                mut lease,
                result,
            } => {
                let result = match self.open.remove(&tag) {
                    Some(Open::Read { offset_bytes }) => {
                        result.and_then(|()| state.read(offset_bytes, lease.bytes_mut()))
                    }
                    _ => result,
                };
                let result = gone.unwrap_or(result);
                DeviceEvent::Read { tag, lease, result }
            }
            DeviceEvent::Write { tag, bytes, result } => {
                let (bytes, result) = match self.open.remove(&tag) {
                    Some(Open::Write {
                        bytes: lent,
                        result: reported,
                    }) => (lent, result.and(reported)),
                    _ => (bytes, result),
                };
                let result = gone.unwrap_or(result);
                DeviceEvent::Write { tag, bytes, result }
            }
            DeviceEvent::Flush { tag, result } => DeviceEvent::Flush {
                tag,
                result: gone.unwrap_or(result),
            },
            DeviceEvent::Discard { tag, result } => DeviceEvent::Discard {
                tag,
                result: gone.unwrap_or(result),
            },
        }
    }
}

impl<D: BlockDevice> BlockDevice for FaultyDevice<D> {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        if self.ready.len() >= READY_MAX {
            return Err(Full(op));
        }
        let (gone, read_only) = {
            let defects = &self.faults.0.lock().defects;
            (defects.gone, defects.read_only)
        };
        match op {
            // Counted when it is polled.
            _ if gone => self.end_early(ended(op, Err(DeviceError::Gone))),
            DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            } => self.submit_write(tag, offset_bytes, bytes),
            DeviceOp::Read {
                tag, offset_bytes, ..
            } => {
                self.inner.submit(op)?;
                self.open.insert(tag, Open::Read { offset_bytes });
                Ok(())
            }
            DeviceOp::Discard { .. } if read_only => {
                self.faults.0.lock().delivered.read_only += 1;
                self.end_early(ended(op, Err(DeviceError::ReadOnly)))
            }
            DeviceOp::Discard { .. } | DeviceOp::Flush { .. } => self.inner.submit(op),
        }
    }

    fn commit(&mut self) {
        self.inner.commit();
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        let event = match self.ready.pop_front() {
            Some(event) => event,
            None => self.inner.poll()?,
        };
        Some(self.end(event))
    }

    fn nap(&mut self) -> Option<Duration> {
        self.inner.nap()
    }

    fn loss(&self) -> Option<String> {
        self.inner.loss()
    }
}
