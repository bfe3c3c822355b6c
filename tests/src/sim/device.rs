//! A simulated block device: media that keep what was flushed, and queue pairs that can go wrong.
//!
//! [`SimMedia`] outlives its queue pairs: a power cut, a killed process, an orderly end. Each
//! [`SimDevice`] is one queue pair on it; clones are handles of the same one, so that a world can
//! look at what a core owns.

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

/// A sector that was written: number of the write, which sector, its bytes.
type Written = (u64, u64, Rc<[u8]>);

/// What a device holds: as readers see it now, and what is on stable media.
#[derive(Debug, Default)]
pub struct SimMedia {
    current: BTreeMap<u64, Rc<[u8]>>,
    stable: BTreeMap<u64, Rc<[u8]>>,
    /// Sector writes so far; numbers those in `unflushed`.
    written: u64,
    /// What was written and not flushed, in the order of completion.
    unflushed: Vec<Written>,
    unreadable: BTreeSet<u64>,
    gone: bool,
    /// No fault is drawn any more; what is broken stays broken.
    healed: bool,
    /// The file system has room for so many sectors; what is written stays where it is.
    room_sectors: Option<usize>,
    read_only: bool,
    /// Writes accepted so far, by all queue pairs.
    writes: u64,
    /// The power fails when so many writes have been accepted.
    off_after_writes: Option<u64>,
    off: bool,
}

impl SimMedia {
    /// Empty media: every sector reads as zeros.
    pub fn new() -> Rc<RefCell<Self>> {
        Rc::default()
    }

    /// No faults from now on. What was damaged stays so until it is written again.
    pub fn heal(&mut self) {
        self.healed = true;
    }

    /// The file system is full: what is there may be overwritten, what takes more room ends in
    /// `NoSpace`. Discards give room back.
    pub fn set_full(&mut self, full: bool) {
        self.room_sectors = full.then_some(self.current.len());
    }

    fn has_room(&self, sectors: std::ops::Range<u64>) -> bool {
        let Some(room) = self.room_sectors else {
            return true;
        };
        let new = sectors
            .filter(|sector| !self.current.contains_key(sector))
            .count();
        new == 0 || self.current.len() + new <= room
    }

    /// Writes and discards end in `ReadOnly` while this is set.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// The device is gone for good: another one must be bought.
    pub fn vanish(&mut self) {
        self.gone = true;
    }

    /// The file is cut to so many sectors.
    pub fn truncate(&mut self, sectors: u64) {
        for side in [&mut self.current, &mut self.stable] {
            side.split_off(&sectors);
        }
        self.unflushed.retain(|(_, sector, _)| *sector < sectors);
        self.unreadable.split_off(&sectors);
    }

    /// Whether it is gone.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Writes that were accepted so far.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// The power fails at once when write number `number` (from 1, counted as by
    /// [`SimMedia::writes`]) is accepted: nothing completes any more.
    pub fn fail_power_at_write(&mut self, number: u64) {
        self.off_after_writes = Some(number);
    }

    /// The power fails now: nothing completes any more until [`SimMedia::power_cut`].
    pub fn fail_power(&mut self) {
        self.off = true;
    }

    /// Whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Flips one bit of the byte at `offset_bytes`, for good. `sector_bytes` as in the profile.
    pub fn rot(&mut self, offset_bytes: u64, sector_bytes: u32) {
        let sector = offset_bytes / u64::from(sector_bytes);
        let at = (offset_bytes % u64::from(sector_bytes)) as usize;
        for side in [&mut self.current, &mut self.stable] {
            if let Some(bytes) = side.get_mut(&sector) {
                let mut rotten = bytes.to_vec();
                rotten[at] ^= 1;
                *bytes = rotten.into();
            }
        }
    }

    /// The bytes from `offset_bytes` on, past every queue and fault: as a reader would see them now, or
    /// what is on stable media only.
    pub fn look(&self, stable: bool, offset_bytes: u64, sector_bytes: u32, bytes: &mut [u8]) {
        let side = if stable { &self.stable } else { &self.current };
        let first = offset_bytes / u64::from(sector_bytes);
        for (sector, piece) in (first..).zip(bytes.chunks_mut(sector_bytes as usize)) {
            match side.get(&sector) {
                Some(bytes) => piece.copy_from_slice(&bytes[..piece.len()]),
                None => piece.fill(0),
            }
        }
    }

    fn write(&mut self, sector: u64, bytes: Rc<[u8]>) {
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

    /// The power fails and comes back: of what was not flushed, any sectors are kept and the others are
    /// not, whatever the order they were written in. Drop the queue pairs first: of what they have
    /// under way, some arrives.
    pub fn power_cut(&mut self, rng: &mut SimRng) {
        let mut lost = std::mem::take(&mut self.unflushed);
        rng.shuffle(&mut lost);
        for (_, sector, bytes) in lost {
            if rng.chance(500) {
                self.stable.insert(sector, bytes);
            }
        }
        self.current = self.stable.clone();
        self.off = false;
        self.off_after_writes = None;
    }

    fn accept(&mut self, op: &DeviceOp) {
        if matches!(op, DeviceOp::Write { .. }) && !self.off {
            self.writes += 1;
            self.off = self.off_after_writes.is_some_and(|at| self.writes >= at);
        }
    }
}

/// One queue pair on simulated media. Clones are handles of the same queue pair.
#[derive(Clone)]
pub struct SimDevice(Rc<RefCell<Pair>>);

struct Pair {
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
            .field("under_way", &self.0.borrow().under_way)
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
        Self(Rc::new(RefCell::new(Pair {
            media,
            profile,
            clock,
            rng,
            planned: Schedule::default(),
            under_way: 0,
            ready: VecDeque::new(),
        })))
    }

    /// When a poll will find something next; none when nothing is under way.
    pub fn next_at(&self) -> Option<Time> {
        let pair = self.0.borrow();
        if pair.media.borrow().off {
            None
        } else if !pair.ready.is_empty() {
            Some(pair.clock.now())
        } else {
            pair.planned.next_at()
        }
    }

    /// Operations under way, those that ended but were not polled included.
    pub fn under_way(&self) -> usize {
        self.0.borrow().under_way
    }
}

impl Drop for Pair {
    /// The process ends with operations under way: of each write, any sectors arrive.
    fn drop(&mut self) {
        while let Some((_, (op, _))) = self.planned.pop_due(Time::NEVER) {
            let DeviceOp::Write {
                offset_bytes,
                bytes,
                ..
            } = op
            else {
                continue;
            };
            let mut media = self.media.borrow_mut();
            let fine = !media.gone && media.room_sectors.is_none() && !media.read_only;
            if !fine || !self.in_range(offset_bytes, bytes.len() as u64) {
                continue;
            }
            let whole = self.rng.chance(300);
            let size = self.profile.geometry.sector_bytes as usize;
            let sectors = self.sectors(offset_bytes, bytes.len());
            for (sector, piece) in sectors.zip(bytes.chunks(size)) {
                if whole || self.rng.chance(500) {
                    media.write(sector, piece.into());
                }
            }
        }
    }
}

impl Pair {
    fn in_range(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let sector = u64::from(self.profile.geometry.sector_bytes);
        let end = offset_bytes.checked_add(len_bytes);
        offset_bytes.is_multiple_of(sector)
            && len_bytes.is_multiple_of(sector)
            && end.is_some_and(|end| end <= self.profile.geometry.capacity_bytes)
    }

    fn complete(&mut self, op: DeviceOp, written: u64) -> DeviceEvent {
        let vanishes = self.fault(self.profile.faults.vanish);
        let gone = self.media.borrow().gone || vanishes;
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

    /// Draws a fault; none after the media were healed.
    fn fault(&mut self, per_mille: u32) -> bool {
        self.rng.chance(per_mille) && !self.media.borrow().healed
    }

    /// What the media say to a write.
    fn writable(&self, sectors: std::ops::Range<u64>) -> Result<(), DeviceError> {
        let media = self.media.borrow();
        match (media.read_only, media.has_room(sectors)) {
            (true, _) => Err(DeviceError::ReadOnly),
            (_, false) => Err(DeviceError::NoSpace),
            _ => Ok(()),
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
        self.writable(sectors.clone())?;
        let count = sectors.end - sectors.start;
        let torn_after = self.fault(faults.torn_write).then(|| self.rng.below(count));
        let further = u64::from(self.fault(faults.misdirected_write));
        let last =
            self.profile.geometry.capacity_bytes / u64::from(self.profile.geometry.sector_bytes);
        for (sector, piece) in sectors
            .clone()
            .zip(bytes.chunks(self.profile.geometry.sector_bytes as usize))
        {
            if torn_after == Some(sector - sectors.start) {
                return Err(DeviceError::Write);
            }
            let mut piece: Rc<[u8]> = piece.into();
            if self.fault(faults.bit_flip) {
                let at = self.rng.below(piece.len() as u64) as usize;
                let mut flipped = piece.to_vec();
                flipped[at] ^= 1 << self.rng.below(8);
                piece = flipped.into();
            }
            let sector = (sector + further).min(last - 1);
            self.media.borrow_mut().write(sector, piece);
            if self.fault(faults.latent_error) {
                self.media.borrow_mut().unreadable.insert(sector);
            }
        }
        Ok(())
    }

    fn discard(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<(), DeviceError> {
        if !self.in_range(offset_bytes, len_bytes) {
            return Err(DeviceError::Range);
        }
        if self.media.borrow().read_only {
            return Err(DeviceError::ReadOnly);
        }
        // Reading it afterwards gives anything: garbage shows who relies on zeros or on old bytes.
        let sector_bytes = self.profile.geometry.sector_bytes as usize;
        for sector in self.sectors(offset_bytes, len_bytes as usize) {
            let garbage = self.rng.bits().to_le_bytes().repeat(sector_bytes / 8);
            let mut media = self.media.borrow_mut();
            if media.room_sectors.is_some() {
                // A hole in a file: zeros, and room for others.
                media.current.remove(&sector);
                media.stable.remove(&sector);
            } else {
                media.write(sector, garbage.into());
            }
        }
        Ok(())
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let busy = self.under_way > 0 && self.fault(self.profile.faults.full);
        if busy || self.under_way >= self.profile.queue_depth {
            return Err(Full(op));
        }
        self.media.borrow_mut().accept(&op);
        let (shortest, longest) = self.profile.latency;
        let nanos = self
            .rng
            .between(shortest.as_nanos() as u64, longest.as_nanos() as u64);
        let slow = if self.fault(self.profile.faults.slow) {
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
        if self.media.borrow().off {
            return None;
        }
        while let Some((_, (op, written))) = self.planned.pop_due(now) {
            let event = self.complete(op, written);
            self.ready.push_back(event);
        }
        let event = self.ready.pop_front()?;
        self.under_way -= 1;
        Some(event)
    }
}

impl BlockDevice for SimDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.0.borrow().profile.geometry
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        self.0.borrow_mut().submit(op)
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        self.0.borrow_mut().poll()
    }
}
