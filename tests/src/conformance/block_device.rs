//! What every block device must do.

use std::collections::BTreeMap;

use forebay_engine::arena::{Arena, Frozen, Lease, Share};
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag, Full};

use super::{Verdict, demand};
use crate::sim::rng::SimRng;

const ARENA_BYTES: usize = 16 << 20;
/// Pumps after which an operation that has not ended counts as lost.
const PUMPS_MAX: usize = 100_000;
/// Operations after which a queue that never fills counts as unbounded.
const FILL_OPS_MAX: usize = 2_000;

/// A device under test.
pub trait DeviceRig {
    /// The adapter.
    type Device: BlockDevice;
    /// Makes the arena that all buffers will come from.
    ///
    /// # Errors
    /// When there is no memory.
    fn map(&self, capacity_bytes: usize) -> std::io::Result<Arena> {
        Arena::new(capacity_bytes)
    }
    /// Told once, before all else: the arena that all buffers will come from.
    fn lend(&mut self, arena: &Arena) {
        let _ = arena;
    }
    /// The queue pair that is used now. For [`suite`] at least 4 MiB large.
    fn device(&mut self) -> &mut Self::Device;
    /// Lets some time pass, so that operations under way may end.
    fn pump(&mut self);
    /// Drops the queue pair, whatever is under way, and makes another on the same device.
    fn reopen(&mut self);
    /// Makes another queue pair on the same device the one that is used, and keeps this one for the next call.
    fn swap(&mut self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
}

/// An operation under way: its kind, and the address and length of its buffer.
type Open = (Kind, usize, usize);

/// How an operation ended, after the checks that hold for every event.
#[derive(Debug)]
struct Ended {
    tag: DeviceTag,
    result: Result<(), DeviceError>,
    read: Option<Lease>,
}

struct Bench<R> {
    rig: R,
    arena: Arena,
    open: BTreeMap<DeviceTag, Open>,
    tags: u64,
}

fn pattern(number: u64, len_bytes: usize) -> Vec<u8> {
    let mut rng = SimRng::new(number);
    (0..len_bytes.div_ceil(8))
        .flat_map(|_| rng.bits().to_le_bytes())
        .take(len_bytes)
        .collect()
}

impl<R: DeviceRig> Bench<R> {
    fn new(mut rig: R) -> Result<Self, String> {
        let arena = rig
            .map(ARENA_BYTES)
            .map_err(|error| format!("no arena: {error}"))?;
        rig.lend(&arena);
        Ok(Self {
            rig,
            arena,
            open: BTreeMap::new(),
            tags: 0,
        })
    }

    fn sector(&mut self) -> u64 {
        u64::from(self.rig.device().geometry().sector_bytes)
    }

    fn tag(&mut self) -> DeviceTag {
        self.tags += 1;
        DeviceTag(self.tags)
    }

    fn lease(&mut self, len_bytes: usize) -> Result<Lease, String> {
        self.arena
            .lease(len_bytes, Share::Demand)
            .map_err(|denied| format!("no lease: {denied:?}"))
    }

    fn frozen(&mut self, bytes: &[u8]) -> Result<Frozen, String> {
        let mut lease = self.lease(bytes.len())?;
        lease.bytes_mut().copy_from_slice(bytes);
        Ok(self.arena.freeze(lease))
    }

    fn read_op(&mut self, offset_bytes: u64, len_bytes: usize) -> Result<DeviceOp, String> {
        let lease = self.lease(len_bytes)?;
        Ok(DeviceOp::Read {
            tag: self.tag(),
            offset_bytes,
            lease,
        })
    }

    fn write_op(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<DeviceOp, String> {
        let bytes = self.frozen(bytes)?;
        Ok(DeviceOp::Write {
            tag: self.tag(),
            offset_bytes,
            bytes,
        })
    }

    /// Submits; the operation back when the device is full.
    fn submit(&mut self, op: DeviceOp) -> Result<Option<DeviceOp>, String> {
        let (tag, open) = describe(&op);
        match self.rig.device().submit(op) {
            Ok(()) => {
                self.open.insert(tag, open);
                Ok(None)
            }
            Err(Full(back)) => {
                demand!(
                    describe(&back) == (tag, open),
                    "Full gave back {back:?} instead of {tag:?}"
                );
                Ok(Some(back))
            }
        }
    }

    /// Submits, waiting for room.
    fn insist(&mut self, op: DeviceOp, ended: &mut Vec<Ended>) -> Verdict {
        let mut next = self.submit(op)?;
        for _ in 0..PUMPS_MAX {
            let Some(op) = next else { return Ok(()) };
            self.rig.pump();
            self.take(ended)?;
            next = self.submit(op)?;
        }
        Err("the device stays full".into())
    }

    /// Takes what has completed by now.
    fn take(&mut self, ended: &mut Vec<Ended>) -> Verdict {
        self.rig.device().commit();
        while let Some(event) = self.rig.device().poll() {
            let (kind, tag, buffer, result, read) = match event {
                DeviceEvent::Read { tag, lease, result } => {
                    (Kind::Read, tag, address(lease.bytes()), result, Some(lease))
                }
                DeviceEvent::Write { tag, bytes, result } => {
                    (Kind::Write, tag, address(&bytes), result, None)
                }
                DeviceEvent::Flush { tag, result } => (Kind::Flush, tag, (0, 0), result, None),
                DeviceEvent::Discard { tag, result } => (Kind::Discard, tag, (0, 0), result, None),
            };
            let Some(open) = self.open.remove(&tag) else {
                return Err(format!("{tag:?} ended twice, or was never accepted"));
            };
            demand!(
                open.0 == kind,
                "{tag:?} was a {:?} and ended as a {kind:?}",
                open.0
            );
            demand!(
                (open.1, open.2) == buffer,
                "{tag:?} came back with another buffer than it was lent"
            );
            ended.push(Ended { tag, result, read });
        }
        Ok(())
    }

    /// Waits until everything has ended.
    fn drain(&mut self, ended: &mut Vec<Ended>) -> Verdict {
        for _ in 0..PUMPS_MAX {
            self.take(ended)?;
            if self.open.is_empty() {
                // Whatever comes now comes twice.
                self.rig.pump();
                return self.take(ended);
            }
            self.rig.pump();
        }
        Err(format!("operations never end: {:?}", self.open.keys()))
    }

    fn run(&mut self, op: DeviceOp) -> Result<Ended, String> {
        let mut ended = Vec::new();
        self.insist(op, &mut ended)?;
        self.drain(&mut ended)?;
        ended
            .pop()
            .ok_or_else(|| "an operation ended without an event".into())
    }

    fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Verdict {
        let op = self.write_op(offset_bytes, bytes)?;
        let ended = self.run(op)?;
        demand!(
            ended.result.is_ok(),
            "a write at {offset_bytes} failed: {:?}",
            ended.result
        );
        Ok(())
    }

    fn expect(&mut self, offset_bytes: u64, bytes: &[u8]) -> Verdict {
        let op = self.read_op(offset_bytes, bytes.len())?;
        let ended = self.run(op)?;
        demand!(
            ended.result.is_ok(),
            "a read at {offset_bytes} failed: {:?}",
            ended.result
        );
        let same = ended.read.is_some_and(|lease| lease.bytes() == bytes);
        demand!(
            same,
            "a read of {} bytes at {offset_bytes} gave other bytes than were written",
            bytes.len()
        );
        Ok(())
    }

    /// Every buffer is back.
    fn finish(mut self) -> Verdict {
        self.arena.reclaim();
        let (free, all) = (self.arena.free_bytes(), self.arena.capacity_bytes());
        demand!(
            free == all,
            "{} bytes of buffers did not come back",
            all - free
        );
        Ok(())
    }
}

fn address(bytes: &[u8]) -> (usize, usize) {
    (bytes.as_ptr() as usize, bytes.len())
}

fn describe(op: &DeviceOp) -> (DeviceTag, Open) {
    let (kind, tag, (at, len_bytes)) = match op {
        DeviceOp::Read { tag, lease, .. } => (Kind::Read, *tag, address(lease.bytes())),
        DeviceOp::Write { tag, bytes, .. } => (Kind::Write, *tag, address(bytes)),
        DeviceOp::Flush { tag } => (Kind::Flush, *tag, (0, 0)),
        DeviceOp::Discard { tag, .. } => (Kind::Discard, *tag, (0, 0)),
    };
    (tag, (kind, at, len_bytes))
}

/// Every rule, on devices that `make` makes and that have no faults.
///
/// # Errors
/// The first rule that is broken.
pub fn suite<R: DeviceRig>(mut make: impl FnMut() -> R) -> Verdict {
    what_was_written_is_read(make())?;
    malformed_ranges_touch_nothing(make())?;
    a_full_queue_gives_the_operation_back(make())?;
    discard_touches_its_range_only(make())?;
    for seed in 0..4 {
        operations_in_any_order_agree_with_a_model(make(), seed)?;
    }
    what_was_flushed_outlives_its_queue_pair(make())?;
    a_dropped_queue_pair_gives_its_buffers_back(make())?;
    queue_pairs_share_one_device(make())?;
    every_operation_ends(make(), 7)
}

fn what_was_written_is_read<R: DeviceRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let sector = bench.sector();
    let lengths = [sector as usize, 64 << 10, 1 << 20];
    for (number, len_bytes) in lengths.into_iter().enumerate() {
        let bytes = pattern(number as u64, len_bytes);
        let offset = sector * 3 * number as u64;
        bench.write(offset, &bytes)?;
        bench.expect(offset, &bytes)?;
        let half = bytes.len() / 2 / sector as usize * sector as usize;
        bench.expect(offset + half as u64, &bytes[half..])?;
    }
    let (old, new) = (pattern(10, sector as usize), pattern(11, sector as usize));
    bench.write(0, &old)?;
    bench.write(0, &new)?;
    bench.expect(0, &new)?;
    let capacity = bench.rig.device().geometry().capacity_bytes;
    bench.write(capacity - sector, &old)?;
    bench.expect(capacity - sector, &old)?;
    bench.finish()
}

fn malformed_ranges_touch_nothing<R: DeviceRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let sector = bench.sector();
    let capacity = bench.rig.device().geometry().capacity_bytes;
    let bytes = pattern(1, 4 * sector as usize);
    bench.write(0, &bytes)?;
    bench.write(capacity - bytes.len() as u64, &bytes)?;
    let other = pattern(2, 2 * sector as usize);
    let whole = other.len();
    let cases = [
        (1, whole),
        (sector / 2, whole),
        (0, whole - 1),
        (0, sector as usize / 2),
        (capacity, whole),
        (capacity - sector, whole),
        (u64::MAX - sector + 1, whole),
        (u64::MAX, whole),
    ];
    for (offset, len_bytes) in cases {
        let read = bench.read_op(offset, len_bytes)?;
        let write = bench.write_op(offset, &other[..len_bytes])?;
        let discard = DeviceOp::Discard {
            tag: bench.tag(),
            offset_bytes: offset,
            len_bytes: len_bytes as u64,
        };
        for op in [read, write, discard] {
            let ended = bench.run(op)?;
            let refused = ended.result == Err(DeviceError::Range);
            demand!(
                refused,
                "{len_bytes} bytes at {offset} gave {:?}, not Range",
                ended.result
            );
        }
    }
    bench.expect(0, &bytes)?;
    bench.expect(capacity - bytes.len() as u64, &bytes)?;
    bench.finish()
}

fn a_full_queue_gives_the_operation_back<R: DeviceRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let sector = bench.sector() as usize;
    let mut back = None;
    for number in 0..FILL_OPS_MAX as u64 {
        let op = bench.write_op(number % 64 * sector as u64, &pattern(number, sector))?;
        back = bench.submit(op)?.map(|op| (op, number));
        if back.is_some() {
            break;
        }
    }
    // A device without a bound of its own is allowed; one with a bound must keep to the rules.
    if let Some((DeviceOp::Write { tag, bytes, .. }, number)) = back {
        demand!(
            *bytes == pattern(number, sector)[..],
            "Full changed the bytes of the write it gave back"
        );
        let mut ended = Vec::new();
        bench.drain(&mut ended)?;
        demand!(
            ended.iter().all(|ended| ended.tag != tag),
            "{tag:?} was given back, and ended as well"
        );
        // Far from the others, which may land in any order.
        bench.insist(
            DeviceOp::Write {
                tag,
                offset_bytes: 1 << 20,
                bytes,
            },
            &mut ended,
        )?;
        bench.drain(&mut ended)?;
        bench.expect(1 << 20, &pattern(number, sector))?;
    } else {
        bench.drain(&mut Vec::new())?;
    }
    bench.finish()
}

fn discard_touches_its_range_only<R: DeviceRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let sector = bench.sector() as usize;
    let bytes = pattern(1, 3 * sector);
    bench.write(0, &bytes)?;
    let op = DeviceOp::Discard {
        tag: bench.tag(),
        offset_bytes: sector as u64,
        len_bytes: sector as u64,
    };
    let ended = bench.run(op)?;
    demand!(ended.result.is_ok(), "a discard failed: {:?}", ended.result);
    bench.expect(0, &bytes[..sector])?;
    bench.expect(2 * sector as u64, &bytes[2 * sector..])?;
    let new = pattern(2, sector);
    bench.write(sector as u64, &new)?;
    bench.expect(sector as u64, &new)?;
    bench.finish()
}

/// Many operations at a time, on ranges that do not overlap while they are under way.
fn operations_in_any_order_agree_with_a_model<R: DeviceRig>(rig: R, seed: u64) -> Verdict {
    const SLOTS: u64 = 24;
    let mut bench = Bench::new(rig)?;
    let mut rng = SimRng::component(seed, "device suite", 0);
    let sector = bench.sector() as usize;
    let slot_bytes = 8 * sector;
    // What each slot holds, and what a read under way must find in it.
    let mut model: Vec<Option<u64>> = vec![None; SLOTS as usize];
    for _ in 0..30 {
        let mut expected: BTreeMap<DeviceTag, u64> = BTreeMap::new();
        let mut ended = Vec::new();
        for slot in 0..SLOTS {
            let offset = slot * slot_bytes as u64;
            match (rng.below(4), model[slot as usize]) {
                (0, _) | (1, None) => {
                    let number = rng.bits();
                    model[slot as usize] = Some(number);
                    let op = bench.write_op(offset, &pattern(number, slot_bytes))?;
                    bench.insist(op, &mut ended)?;
                }
                (1 | 2, Some(number)) => {
                    let op = bench.read_op(offset, slot_bytes)?;
                    expected.insert(describe(&op).0, number);
                    bench.insist(op, &mut ended)?;
                }
                _ if rng.chance(100) => {
                    let op = DeviceOp::Flush { tag: bench.tag() };
                    bench.insist(op, &mut ended)?;
                }
                _ => bench.rig.pump(),
            }
        }
        bench.drain(&mut ended)?;
        for ended in ended {
            demand!(
                ended.result.is_ok(),
                "{:?} failed: {:?}",
                ended.tag,
                ended.result
            );
            if let Some(lease) = ended.read {
                let number = expected.remove(&ended.tag).unwrap_or_default();
                let same = lease.bytes() == pattern(number, slot_bytes);
                demand!(same, "{:?} gave other bytes than were written", ended.tag);
            }
        }
        demand!(expected.is_empty(), "reads ended without their buffers");
    }
    bench.finish()
}

fn what_was_flushed_outlives_its_queue_pair<R: DeviceRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let sector = bench.sector() as usize;
    let written: Vec<_> = (0..16u64)
        .map(|number| (number * 37 * sector as u64, pattern(number, 8 * sector)))
        .collect();
    for (offset, bytes) in &written {
        bench.write(*offset, bytes)?;
    }
    let flush = DeviceOp::Flush { tag: bench.tag() };
    let flushed = bench.run(flush)?;
    demand!(
        flushed.result.is_ok(),
        "a flush failed: {:?}",
        flushed.result
    );
    bench.rig.reopen();
    for (offset, bytes) in &written {
        bench.expect(*offset, bytes)?;
    }
    bench.finish()
}

/// Whatever was under way: nothing of the arena is kept, and each sector holds what it held or what was
/// being written.
fn a_dropped_queue_pair_gives_its_buffers_back<R: DeviceRig>(rig: R) -> Verdict {
    const SLOTS: u64 = 16;
    let mut bench = Bench::new(rig)?;
    let sector = bench.sector() as usize;
    let len_bytes = 16 * sector;
    let (old, new) = (pattern(1, len_bytes), pattern(2, len_bytes));
    let offset = |slot: u64| slot * len_bytes as u64;
    for slot in 0..SLOTS {
        bench.write(offset(slot), &old)?;
    }
    for slot in 0..SLOTS {
        let write = bench.write_op(offset(slot), &new)?;
        let read = bench.read_op(offset(slot), len_bytes)?;
        let flush = DeviceOp::Flush { tag: bench.tag() };
        for op in [write, read, flush] {
            // What does not fit any more is not under way.
            let _ = bench.submit(op)?;
        }
        if slot == SLOTS / 2 {
            bench.rig.device().commit();
        }
    }
    bench.rig.reopen();
    bench.open.clear();
    bench.arena.reclaim();
    let (free, all) = (bench.arena.free_bytes(), bench.arena.capacity_bytes());
    demand!(
        free == all,
        "a dropped queue pair keeps {} bytes of buffers",
        all - free
    );
    for slot in 0..SLOTS {
        for at in (0..len_bytes).step_by(sector) {
            let offset = offset(slot) + at as u64;
            let same = bench.expect(offset, &old[at..at + sector]).is_ok()
                || bench.expect(offset, &new[at..at + sector]).is_ok();
            demand!(same, "a sector is neither as before nor as written");
        }
    }
    bench.finish()
}

fn queue_pairs_share_one_device<R: DeviceRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let sector = bench.sector();
    for round in 0..8u64 {
        let bytes = pattern(round, 4 * sector as usize);
        bench.write(round * sector, &bytes)?;
        bench.rig.swap();
        bench.expect(round * sector, &bytes)?;
    }
    bench.finish()
}

/// The rule that holds for broken, faulty and absent devices too: every accepted operation ends in
/// exactly one event of its kind, with the buffer it was lent.
///
/// # Errors
/// How it is broken.
pub fn every_operation_ends<R: DeviceRig>(rig: R, seed: u64) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut rng = SimRng::component(seed, "device suite", 1);
    let sector = bench.sector() as usize;
    let mut ended = Vec::new();
    for _ in 0..500 {
        let offset_bytes = rng.below(64) * sector as u64;
        let len_bytes = sector * rng.between(1, 8) as usize;
        let op = match rng.below(8) {
            0..4 => bench.read_op(offset_bytes, len_bytes)?,
            4..6 => bench.write_op(offset_bytes, &pattern(offset_bytes, len_bytes))?,
            6 => DeviceOp::Flush { tag: bench.tag() },
            _ => DeviceOp::Discard {
                tag: bench.tag(),
                offset_bytes,
                len_bytes: len_bytes as u64,
            },
        };
        bench.insist(op, &mut ended)?;
        if rng.chance(300) {
            bench.rig.pump();
            bench.take(&mut ended)?;
        }
        // Leases that came back are of no more use.
        ended.clear();
    }
    bench.drain(&mut ended)?;
    ended.clear();
    bench.finish()
}

#[cfg(test)]
#[path = "block_device_tests.rs"]
mod tests;
