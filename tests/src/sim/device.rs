//! A simulated block device: media that keep what was flushed, and queue pairs that can go wrong.
//!
//! [`SimMedia`] outlives a power cut; each [`SimDevice`] is one queue pair on it. The engine of this
//! version has no disk tier: the device is proven by its conformance suite and waits for one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::ports::{
    BlockDevice, Clock, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full, Time,
};

use super::clock::SimClock;
use super::rng::SimRng;
use super::schedule::Schedule;

/// How a device behaves. Chances are per mille of the operations.
#[derive(Clone, Debug)]
pub struct DeviceProfile {
    /// Size and granularity.
    pub geometry: DeviceGeometry,
    /// Time for one operation: from, to. A wide range makes for much reordering.
    pub latency: (Duration, Duration),
    /// Operations under way at a time.
    pub queue_depth: usize,
    /// What goes wrong.
    pub faults: DeviceFaults,
}

/// What goes wrong, each per mille of the operations.
#[derive(Clone, Debug, Default)]
pub struct DeviceFaults {
    /// A written sector turns out to be unreadable later, until it is written again.
    pub latent_error: u32,
    /// A write fails after some of its sectors.
    pub torn_write: u32,
    /// A written sector has one wrong bit. Nothing reports it.
    pub bit_flip: u32,
    /// A write lands one sector further on. Nothing reports it.
    pub misdirected_write: u32,
    /// A hundred times the latency.
    pub slow: u32,
    /// The device is gone for good.
    pub vanish: u32,
    /// `Full`, while other operations are under way.
    pub full: u32,
}

/// What a device holds: as readers see it now, and what is on stable media.
#[derive(Debug, Default)]
pub struct SimMedia {
    current: BTreeMap<u64, Vec<u8>>,
    stable: BTreeMap<u64, Vec<u8>>,
    /// Sector writes so far; numbers those in `unflushed`.
    written: u64,
    /// Number, sector and bytes of what was written and not flushed, in the order of completion.
    unflushed: Vec<(u64, u64, Vec<u8>)>,
    unreadable: BTreeSet<u64>,
    gone: bool,
}

impl SimMedia {
    /// Empty media: every sector reads as zeros.
    pub fn new() -> Rc<RefCell<Self>> {
        Rc::default()
    }

    fn write(&mut self, sector: u64, bytes: Vec<u8>) {
        self.unreadable.remove(&sector);
        self.unflushed.push((self.written, sector, bytes.clone()));
        self.written += 1;
        self.current.insert(sector, bytes);
    }

    fn flush(&mut self, before: u64) {
        let covered = self
            .unflushed
            .extract_if(.., |(number, _, _)| *number < before);
        self.stable
            .extend(covered.map(|(_, sector, bytes)| (sector, bytes)));
    }

    /// The power fails: of what was not flushed, any sectors are kept and the others are not, whatever
    /// the order they were written in.
    pub fn power_cut(&mut self, rng: &mut SimRng) {
        let mut lost = std::mem::take(&mut self.unflushed);
        rng.shuffle(&mut lost);
        for (_, sector, bytes) in lost {
            if rng.chance(500) {
                self.stable.insert(sector, bytes);
            }
        }
        self.current = self.stable.clone();
    }
}

/// One queue pair on simulated media.
pub struct SimDevice {
    media: Rc<RefCell<SimMedia>>,
    profile: DeviceProfile,
    clock: SimClock,
    rng: SimRng,
    /// Each with the number of sector writes that had completed when it was submitted: what a flush
    /// covers.
    planned: Schedule<(DeviceOp, u64)>,
    under_way: usize,
    ready: VecDeque<DeviceEvent>,
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

impl SimDevice {
    /// A queue pair. After a power cut, drop it and make another.
    pub fn new(
        media: Rc<RefCell<SimMedia>>,
        profile: DeviceProfile,
        clock: SimClock,
        seed: u64,
    ) -> Self {
        let rng = SimRng::component(seed, "device", 0);
        Self {
            media,
            profile,
            clock,
            rng,
            planned: Schedule::default(),
            under_way: 0,
            ready: VecDeque::new(),
        }
    }

    /// When a poll will find something next; none when nothing is under way.
    pub fn next_at(&self) -> Option<Time> {
        if self.ready.is_empty() {
            self.planned.next_at()
        } else {
            Some(self.clock.now())
        }
    }

    fn in_range(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let sector = u64::from(self.profile.geometry.sector_bytes);
        let end = offset_bytes.checked_add(len_bytes);
        offset_bytes.is_multiple_of(sector)
            && len_bytes.is_multiple_of(sector)
            && end.is_some_and(|end| end <= self.profile.geometry.capacity_bytes)
    }

    fn complete(&mut self, op: DeviceOp, written: u64) -> DeviceEvent {
        let gone = self.media.borrow().gone || self.rng.chance(self.profile.faults.vanish);
        self.media.borrow_mut().gone = gone;
        let state = if gone { Err(DeviceError::Gone) } else { Ok(()) };
        match op {
            DeviceOp::Read {
                tag,
                offset_bytes,
                mut lease,
            } => {
                let result = state.and_then(|()| self.read(offset_bytes, lease.bytes_mut()));
                DeviceEvent::Read { tag, lease, result }
            }
            DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            } => {
                let result = state.and_then(|()| self.write(offset_bytes, &bytes));
                DeviceEvent::Write { tag, bytes, result }
            }
            DeviceOp::Discard {
                tag,
                offset_bytes,
                len_bytes,
            } => {
                let result = state.and_then(|()| self.discard(offset_bytes, len_bytes));
                DeviceEvent::Discard { tag, result }
            }
            DeviceOp::Flush { tag } => {
                if !gone {
                    self.media.borrow_mut().flush(written);
                }
                DeviceEvent::Flush { tag, result: state }
            }
        }
    }

    fn sectors(&self, offset_bytes: u64, len_bytes: usize) -> std::ops::Range<u64> {
        let sector = u64::from(self.profile.geometry.sector_bytes);
        offset_bytes / sector..(offset_bytes + len_bytes as u64) / sector
    }

    fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if !self.in_range(offset_bytes, bytes.len() as u64) {
            return Err(DeviceError::Range);
        }
        let media = self.media.borrow();
        let sectors = self.sectors(offset_bytes, bytes.len());
        for (sector, piece) in
            sectors.zip(bytes.chunks_mut(self.profile.geometry.sector_bytes as usize))
        {
            if media.unreadable.contains(&sector) {
                return Err(DeviceError::Media);
            }
            match media.current.get(&sector) {
                Some(bytes) => piece.copy_from_slice(bytes),
                None => piece.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if !self.in_range(offset_bytes, bytes.len() as u64) {
            return Err(DeviceError::Range);
        }
        let faults = self.profile.faults.clone();
        let sectors = self.sectors(offset_bytes, bytes.len());
        let count = sectors.end - sectors.start;
        let torn_after = self
            .rng
            .chance(faults.torn_write)
            .then(|| self.rng.below(count));
        let further = u64::from(self.rng.chance(faults.misdirected_write));
        let last =
            self.profile.geometry.capacity_bytes / u64::from(self.profile.geometry.sector_bytes);
        for (sector, piece) in sectors
            .clone()
            .zip(bytes.chunks(self.profile.geometry.sector_bytes as usize))
        {
            if torn_after == Some(sector - sectors.start) {
                return Err(DeviceError::Write);
            }
            let mut piece = piece.to_vec();
            if self.rng.chance(faults.bit_flip) {
                let at = self.rng.below(piece.len() as u64) as usize;
                piece[at] ^= 1 << self.rng.below(8);
            }
            let sector = (sector + further).min(last - 1);
            let mut media = self.media.borrow_mut();
            media.write(sector, piece);
            if self.rng.chance(faults.latent_error) {
                media.unreadable.insert(sector);
            }
        }
        Ok(())
    }

    fn discard(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        if !self.in_range(offset_bytes, len_bytes) {
            return Err(DeviceError::Range);
        }
        // Reading it afterwards gives anything: garbage shows who relies on zeros or on old bytes.
        let sector_bytes = self.profile.geometry.sector_bytes as usize;
        for sector in self.sectors(offset_bytes, len_bytes as usize) {
            let garbage = self.rng.bits().to_le_bytes().repeat(sector_bytes / 8);
            self.media.borrow_mut().write(sector, garbage);
        }
        Ok(())
    }
}

impl BlockDevice for SimDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.profile.geometry
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let busy = self.under_way > 0 && self.rng.chance(self.profile.faults.full);
        if busy || self.under_way >= self.profile.queue_depth {
            return Err(Full(op));
        }
        let (shortest, longest) = self.profile.latency;
        let nanos = self
            .rng
            .between(shortest.as_nanos() as u64, longest.as_nanos() as u64);
        let slow = if self.rng.chance(self.profile.faults.slow) {
            100
        } else {
            1
        };
        let at = self.clock.now() + Duration::from_nanos(nanos) * slow;
        let written = self.media.borrow().written;
        self.planned.push(at, (op, written));
        self.under_way += 1;
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        let now = self.clock.now();
        while let Some((_, (op, written))) = self.planned.pop_due(now) {
            let event = self.complete(op, written);
            self.ready.push_back(event);
        }
        let event = self.ready.pop_front()?;
        self.under_way -= 1;
        Some(event)
    }
}
