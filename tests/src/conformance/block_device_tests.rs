use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::ports::{Clock, DeviceGeometry, NoDevice};

use super::*;
use crate::sim::clock::SimClock;
use crate::sim::device::{DeviceFaults, DeviceProfile, SimDevice, SimMedia};

const CAPACITY_BYTES: u64 = 8 << 20;

fn profile(sector_bytes: u32) -> DeviceProfile {
    DeviceProfile {
        geometry: DeviceGeometry {
            sector_bytes,
            capacity_bytes: CAPACITY_BYTES,
        },
        latency: (Duration::from_micros(10), Duration::from_micros(900)),
        queue_depth: 32,
        faults: DeviceFaults::default(),
    }
}

/// How an adapter is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    No,
    LosesAnEvent,
    ForgetsTheRange,
    WrapsAround,
    ReadsStaleBytes,
    SwapsBuffers,
    FullAndAcceptedToo,
    DiscardsTooMuch,
    ForgetsWhenReopened,
    KeepsBuffersWhenDropped,
    SeesItsOwnDeviceOnly,
}

struct SimRig {
    clock: SimClock,
    media: Rc<RefCell<SimMedia>>,
    profile: DeviceProfile,
    device: BrokenDevice,
    other: BrokenDevice,
    /// What a broken device does not give back.
    kept: Vec<BrokenDevice>,
}

struct BrokenDevice {
    inner: SimDevice,
    how: Broken,
    events: u64,
    held: VecDeque<DeviceEvent>,
    spare: Option<Lease>,
}

impl DeviceRig for SimRig {
    type Device = BrokenDevice;
    fn device(&mut self) -> &mut BrokenDevice {
        &mut self.device
    }
    fn pump(&mut self) {
        let next = self.device.inner.next_at();
        self.clock
            .advance_to(next.unwrap_or(self.clock.now() + Duration::from_micros(1)));
    }
    fn reopen(&mut self) {
        let media = match self.device.how {
            Broken::ForgetsWhenReopened => SimMedia::new(),
            _ => self.media.clone(),
        };
        let device = broken(self.device.how, &media, &self.profile, &self.clock, 8);
        let before = std::mem::replace(&mut self.device, device);
        if before.how == Broken::KeepsBuffersWhenDropped {
            self.kept.push(before);
        }
    }
    fn swap(&mut self) {
        std::mem::swap(&mut self.device, &mut self.other);
    }
}

impl BlockDevice for BrokenDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let op = match (self.how, op) {
            (
                Broken::ForgetsTheRange,
                DeviceOp::Write {
                    tag,
                    offset_bytes,
                    bytes,
                },
            ) => {
                let offset_bytes = offset_bytes / 512 * 512;
                DeviceOp::Write {
                    tag,
                    offset_bytes,
                    bytes,
                }
            }
            (
                Broken::WrapsAround,
                DeviceOp::Read {
                    tag,
                    offset_bytes,
                    lease,
                },
            ) => DeviceOp::Read {
                tag,
                offset_bytes: offset_bytes % CAPACITY_BYTES,
                lease,
            },
            (
                Broken::DiscardsTooMuch,
                DeviceOp::Discard {
                    tag,
                    offset_bytes,
                    len_bytes,
                },
            ) => DeviceOp::Discard {
                tag,
                offset_bytes: 0,
                len_bytes: len_bytes.wrapping_add(offset_bytes),
            },
            (_, op) => op,
        };
        match self.inner.submit(op) {
            Err(Full(DeviceOp::Write { tag, bytes, .. }))
                if self.how == Broken::FullAndAcceptedToo =>
            {
                self.held.push_back(DeviceEvent::Write {
                    tag,
                    bytes: bytes.clone(),
                    result: Ok(()),
                });
                Err(Full(DeviceOp::Write {
                    tag,
                    offset_bytes: 0,
                    bytes,
                }))
            }
            other => other,
        }
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        if let Some(event) = self.held.pop_front() {
            return Some(event);
        }
        let event = self.inner.poll()?;
        self.events += 1;
        let some = self.events.is_multiple_of(5);
        match (self.how, event) {
            (Broken::LosesAnEvent, _) if some => None,
            (
                Broken::ReadsStaleBytes,
                DeviceEvent::Read {
                    tag,
                    mut lease,
                    result,
                },
            ) if some => {
                lease.bytes_mut().fill(0xaa);
                Some(DeviceEvent::Read { tag, lease, result })
            }
            (Broken::SwapsBuffers, DeviceEvent::Read { tag, lease, result }) => {
                let other = self.spare.replace(lease);
                other.map(|lease| DeviceEvent::Read { tag, lease, result })
            }
            (_, event) => Some(event),
        }
    }
}

fn broken(
    how: Broken,
    media: &Rc<RefCell<SimMedia>>,
    profile: &DeviceProfile,
    clock: &SimClock,
    seed: u64,
) -> BrokenDevice {
    BrokenDevice {
        inner: SimDevice::new(media.clone(), profile.clone(), clock.clone(), seed),
        how,
        events: 0,
        held: VecDeque::new(),
        spare: None,
    }
}

fn rig_on(media: Rc<RefCell<SimMedia>>, how: Broken, profile: DeviceProfile, seed: u64) -> SimRig {
    let clock = SimClock::default();
    let others = match how {
        Broken::SeesItsOwnDeviceOnly => SimMedia::new(),
        _ => media.clone(),
    };
    SimRig {
        device: broken(how, &media, &profile, &clock, seed),
        other: broken(how, &others, &profile, &clock, seed + 1),
        clock,
        media,
        profile,
        kept: Vec::new(),
    }
}

fn rig_of(how: Broken, profile: DeviceProfile, seed: u64) -> SimRig {
    rig_on(SimMedia::new(), how, profile, seed)
}

#[test]
fn the_simulated_device_conforms() {
    for (seed, sector_bytes) in [(1, 512), (2, 4_096)] {
        suite(|| rig_of(Broken::No, profile(sector_bytes), seed)).unwrap();
    }
}

#[test]
fn each_broken_device_is_caught() {
    for how in [
        Broken::LosesAnEvent,
        Broken::ForgetsTheRange,
        Broken::WrapsAround,
        Broken::ReadsStaleBytes,
        Broken::SwapsBuffers,
        Broken::FullAndAcceptedToo,
        Broken::DiscardsTooMuch,
        Broken::ForgetsWhenReopened,
        Broken::KeepsBuffersWhenDropped,
        Broken::SeesItsOwnDeviceOnly,
    ] {
        let verdict = suite(|| rig_of(how, profile(512), 3));
        assert!(verdict.is_err(), "{how:?} went unseen");
    }
}

#[test]
fn operations_end_on_a_device_with_every_fault() {
    for seed in 0..20 {
        let mut profile = profile(4_096);
        profile.faults = DeviceFaults {
            latent_error: 100,
            torn_write: 100,
            bit_flip: 100,
            misdirected_write: 100,
            slow: 100,
            vanish: 2,
            full: 200,
        };
        every_operation_ends(rig_of(Broken::No, profile, seed), seed).unwrap();
    }
}

struct Absent(NoDevice);

impl DeviceRig for Absent {
    type Device = NoDevice;
    fn device(&mut self) -> &mut NoDevice {
        &mut self.0
    }
    fn pump(&mut self) {}
    fn reopen(&mut self) {
        self.0 = NoDevice::default();
    }
    fn swap(&mut self) {}
}

#[test]
fn operations_end_on_no_device() {
    every_operation_ends(Absent(NoDevice::default()), 1).unwrap();
    assert!(
        suite(|| Absent(NoDevice::default())).is_err(),
        "nothing can be written to no device"
    );
}

fn bench_on(media: &Rc<RefCell<SimMedia>>, faults: DeviceFaults) -> Bench<SimRig> {
    let profile = DeviceProfile {
        faults,
        ..profile(512)
    };
    Bench::new(rig_on(media.clone(), Broken::No, profile, 5)).unwrap()
}

#[test]
fn a_power_cut_keeps_what_was_flushed_and_any_of_the_rest() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..20 {
        let media = SimMedia::new();
        let mut bench = bench_on(&media, DeviceFaults::default());
        let (flushed, late) = (pattern(1, 4_096), pattern(2, 4_096));
        bench.write(0, &flushed).unwrap();
        let flush = DeviceOp::Flush { tag: bench.tag() };
        bench.run(flush).unwrap().result.unwrap();
        bench.write(8_192, &late).unwrap();
        bench.write(0, &late).unwrap();
        drop(bench);
        media.borrow_mut().power_cut(&mut SimRng::new(seed));
        let mut bench = bench_on(&media, DeviceFaults::default());
        for sector in 0..8 {
            let range = sector * 512..(sector + 1) * 512;
            let offset = range.start as u64;
            let whole_old = bench.expect(offset, &flushed[range.clone()]).is_ok();
            let whole_new = bench.expect(offset, &late[range.clone()]).is_ok();
            assert!(
                whole_old || whole_new,
                "sectors are written whole or not at all"
            );
            kept += u64::from(whole_new);
            lost += u64::from(whole_old);
        }
    }
    assert!(kept > 20 && lost > 20, "{kept} kept, {lost} lost");
}

#[test]
fn each_fault_shows() {
    let always = |set: fn(&mut DeviceFaults)| {
        let mut faults = DeviceFaults::default();
        set(&mut faults);
        faults
    };
    let bytes = pattern(1, 4_096);
    let mut bench = bench_on(
        &SimMedia::new(),
        always(|faults| faults.latent_error = 1_000),
    );
    bench.write(0, &bytes).unwrap();
    assert!(bench.expect(0, &bytes).unwrap_err().contains("Media"));
    let mut bench = bench_on(&SimMedia::new(), always(|faults| faults.torn_write = 1_000));
    assert!(bench.write(0, &bytes).unwrap_err().contains("Write"));
    for faults in [
        always(|faults| faults.bit_flip = 1_000),
        always(|faults| faults.misdirected_write = 1_000),
    ] {
        let mut bench = bench_on(&SimMedia::new(), faults);
        bench.write(0, &bytes).unwrap();
        assert!(bench.expect(0, &bytes).unwrap_err().contains("other bytes"));
    }
    let mut bench = bench_on(&SimMedia::new(), always(|faults| faults.vanish = 1_000));
    assert!(bench.write(0, &bytes).unwrap_err().contains("Gone"));
}
