use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::arena::{Arena, Frozen, Lease, Share};
use forebay_engine::ports::{
    BlockDevice, Clock, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, DeviceTag, Full, Time,
};

use super::counting::{Counters, CountingDevice, Counts};
use super::delayed::{Delay, DelayedDevice, Delays};
use super::faulty::{Chances, Delivered, Faults, FaultyDevice};
use crate::conformance::block_device::{DeviceRig, every_operation_ends, suite};
use crate::sim::clock::SimClock;
use crate::sim::device::{DeviceFaults, DeviceProfile, SimDevice, SimMedia};

const PAGE: usize = 4096;

type Stack = CountingDevice<FaultyDevice<DelayedDevice<SimDevice, SimClock>>>;

/// All wrappers over the simulated device, and their switches.
struct Rig {
    clock: SimClock,
    media: Rc<RefCell<SimMedia>>,
    faults: Faults,
    delays: Delays,
    counters: Counters,
    queue_depth: usize,
    device: Stack,
    other: Stack,
    arena: Arena,
    tags: u64,
}

impl Rig {
    fn new(queue_depth: usize, seed: u64) -> Self {
        let (clock, media) = (SimClock::default(), SimMedia::new());
        let (faults, delays, counters) =
            (Faults::new(seed), Delays::new(seed), Counters::default());
        let make = || stack(&clock, &media, &faults, &delays, &counters, queue_depth);
        Self {
            device: make(),
            other: make(),
            arena: Arena::new(16 << 20).unwrap(),
            clock,
            media,
            faults,
            delays,
            counters,
            queue_depth,
            tags: 0,
        }
    }

    fn tag(&mut self) -> DeviceTag {
        self.tags += 1;
        DeviceTag(self.tags)
    }

    fn lease(&mut self, byte: u8, len_bytes: usize) -> Lease {
        let mut lease = self.arena.lease(len_bytes, Share::Demand).unwrap();
        lease.bytes_mut().fill(byte);
        lease
    }

    fn frozen(&mut self, byte: u8, len_bytes: usize) -> Frozen {
        let lease = self.lease(byte, len_bytes);
        self.arena.freeze(lease)
    }

    fn write_op(&mut self, offset: usize, byte: u8, len_bytes: usize) -> DeviceOp {
        DeviceOp::Write {
            tag: self.tag(),
            offset_bytes: offset as u64,
            bytes: self.frozen(byte, len_bytes),
        }
    }

    fn run(&mut self, op: DeviceOp) -> DeviceEvent {
        self.device.submit(op).unwrap();
        self.device.commit();
        for _ in 0..1_000 {
            if let Some(event) = self.device.poll() {
                return event;
            }
            self.pump();
        }
        panic!("it never ends");
    }

    fn write(&mut self, offset: usize, byte: u8, len_bytes: usize) -> Result<(), DeviceError> {
        let op = self.write_op(offset, byte, len_bytes);
        let DeviceOp::Write { bytes: lent, .. } = &op else {
            unreachable!()
        };
        let lent = lent.clone();
        match self.run(op) {
            DeviceEvent::Write { result, bytes, .. } => {
                assert_eq!((bytes.as_ptr(), bytes.len()), (lent.as_ptr(), lent.len()));
                result
            }
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, offset: usize, len_bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let op = DeviceOp::Read {
            tag: self.tag(),
            offset_bytes: offset as u64,
            lease: self.lease(0xee, len_bytes),
        };
        match self.run(op) {
            DeviceEvent::Read { result, lease, .. } => result.map(|()| lease.bytes().to_vec()),
            other => panic!("{other:?}"),
        }
    }

    fn discard(&mut self) -> Result<(), DeviceError> {
        let op = DeviceOp::Discard {
            tag: self.tag(),
            offset_bytes: 0,
            len_bytes: PAGE as u64,
        };
        match self.run(op) {
            DeviceEvent::Discard { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn chances(&self, set: impl FnOnce(&mut Chances)) {
        let mut chances = Chances::default();
        set(&mut chances);
        self.faults.chances(chances);
    }

    fn delivered(&self) -> Delivered {
        self.faults.delivered()
    }
}

fn stack(
    clock: &SimClock,
    media: &Rc<RefCell<SimMedia>>,
    faults: &Faults,
    delays: &Delays,
    counters: &Counters,
    queue_depth: usize,
) -> Stack {
    let profile = DeviceProfile {
        geometry: DeviceGeometry {
            sector_bytes: 512,
            capacity_bytes: 8 << 20,
        },
        latency: (Duration::from_micros(10), Duration::from_micros(90)),
        queue_depth,
        faults: DeviceFaults::default(),
    };
    let device = SimDevice::new(media.clone(), profile, clock.clone(), 1);
    let device = DelayedDevice::new(device, clock.clone(), delays.clone());
    let device = FaultyDevice::new(device, faults.clone());
    CountingDevice::new(device, counters.clone())
}

impl DeviceRig for Rig {
    type Device = Stack;

    fn device(&mut self) -> &mut Stack {
        &mut self.device
    }

    fn pump(&mut self) {
        let delayed = self.device.inner().inner();
        let next = [delayed.inner().next_at(), delayed.next_at()];
        let next = next.into_iter().flatten().min();
        let soon = self.clock.now() + Duration::from_micros(1);
        self.clock.advance_to(next.unwrap_or(soon));
    }

    fn reopen(&mut self) {
        self.device = stack(
            &self.clock,
            &self.media,
            &self.faults,
            &self.delays,
            &self.counters,
            self.queue_depth,
        );
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.device, &mut self.other);
    }
}

#[test]
fn switched_off_they_change_nothing() {
    suite(|| Rig::new(32, 1)).unwrap();
}

#[test]
fn slow_devices_conform_too() {
    suite(|| {
        let rig = Rig::new(8, 2);
        rig.delays.set(Delay {
            shortest: Duration::ZERO,
            longest: Duration::from_millis(3),
            slow_per_mille: 50,
            slow_factor: 10,
        });
        rig
    })
    .unwrap();
}

#[test]
fn operations_end_whatever_goes_wrong() {
    for seed in 0..20 {
        let rig = Rig::new(16, seed);
        rig.delays.set(Delay::long_tail(Duration::from_micros(100)));
        rig.faults.chances(Chances {
            unreadable: 100,
            flipped: 100,
            unwritable: 100,
            torn: 100,
            cut_short: 100,
            misdirected: 100,
        });
        rig.faults.defects(|defects| match seed % 4 {
            0 => defects.gone = true,
            1 => defects.read_only = true,
            2 => defects.space_left_bytes = Some(100 << 10),
            _ => {}
        });
        let faults = rig.faults.clone();
        every_operation_ends(rig, seed).unwrap();
        let delivered = faults.delivered();
        let expected = match seed % 4 {
            0 => delivered.gone,
            1 => delivered.read_only,
            2 => delivered.no_space,
            _ => delivered.torn.min(delivered.misdirected),
        };
        assert!(expected > 0, "seed {seed}: {delivered:?}");
    }
}

#[test]
fn a_range_is_unreadable_until_it_is_written() {
    let mut rig = Rig::new(8, 1);
    rig.write(0, 1, 4 * PAGE).unwrap();
    let page = PAGE as u64;
    rig.faults
        .defects(|defects| defects.unreadable.push(page + 512..3 * page));
    assert_eq!(rig.read(0, 2 * PAGE), Err(DeviceError::Media));
    assert!(rig.read(0, PAGE).is_ok());
    rig.write(PAGE, 2, PAGE).unwrap();
    assert_eq!(rig.read(0, 2 * PAGE).unwrap()[PAGE], 2);
    assert_eq!(rig.read(2 * PAGE, PAGE), Err(DeviceError::Media));
    assert!(rig.read(3 * PAGE, PAGE).is_ok());
    assert_eq!(rig.delivered().unreadable, 2);
    rig.faults.heal();
    assert_eq!(rig.read(2 * PAGE, PAGE).unwrap()[0], 1);
}

#[test]
fn a_refused_write_touches_nothing() {
    let mut rig = Rig::new(8, 1);
    rig.write(0, 1, PAGE).unwrap();
    rig.faults
        .defects(|defects| defects.unwritable.push(0..512));
    assert_eq!(rig.write(0, 2, PAGE), Err(DeviceError::Write));
    rig.write(PAGE, 2, PAGE).unwrap();
    rig.faults.heal();
    rig.chances(|chances| chances.unwritable = 1_000);
    assert_eq!(rig.write(0, 2, PAGE), Err(DeviceError::Write));
    assert_eq!(rig.read(0, PAGE).unwrap(), vec![1; PAGE]);
    assert_eq!(rig.delivered().unwritable, 2);
}

#[test]
fn space_runs_out_after_so_many_bytes() {
    let mut rig = Rig::new(8, 1);
    rig.faults
        .defects(|defects| defects.space_left_bytes = Some(10 << 10));
    rig.write(0, 1, 2 * PAGE).unwrap();
    assert_eq!(rig.write(2 * PAGE, 1, PAGE), Err(DeviceError::NoSpace));
    rig.write(2 * PAGE, 1, 2048).unwrap();
    assert_eq!(rig.write(0, 1, 512), Err(DeviceError::NoSpace));
    assert_eq!(rig.delivered().no_space, 2);
    assert!(rig.read(0, PAGE).is_ok());
}

#[test]
fn a_read_only_device_is_still_read() {
    let mut rig = Rig::new(8, 1);
    rig.write(0, 1, PAGE).unwrap();
    rig.faults.defects(|defects| defects.read_only = true);
    assert_eq!(rig.write(0, 2, PAGE), Err(DeviceError::ReadOnly));
    assert_eq!(rig.discard(), Err(DeviceError::ReadOnly));
    assert_eq!(rig.read(0, PAGE).unwrap(), vec![1; PAGE]);
    assert_eq!(rig.delivered().read_only, 2);
}

#[test]
fn a_flipped_bit_stays_until_it_is_written() {
    let mut rig = Rig::new(8, 1);
    rig.write(0, 1, PAGE).unwrap();
    rig.faults
        .defects(|defects| defects.flipped.push((100, 0x80)));
    let bytes = rig.read(0, PAGE).unwrap();
    assert_eq!((bytes[99], bytes[100], bytes[101]), (1, 0x81, 1));
    rig.write(0, 1, PAGE).unwrap();
    assert_eq!(rig.read(0, PAGE).unwrap(), vec![1; PAGE]);
    rig.chances(|chances| chances.flipped = 1_000);
    rig.write(0, 1, PAGE).unwrap();
    let bytes = rig.read(0, PAGE).unwrap();
    let wrong: u32 = bytes.iter().map(|byte| (byte ^ 1).count_ones()).sum();
    assert_eq!(wrong, 1, "one bit, once");
    assert_eq!(rig.delivered().flipped, 2);
}

/// Sectors of the first page that hold `byte`, which come first, and whether the others hold `other`.
fn torn_at(bytes: &[u8], byte: u8, other: u8) -> usize {
    let at = bytes.iter().take_while(|have| **have == byte).count();
    assert!(bytes[at..].iter().all(|have| *have == other));
    assert_eq!(at % 512, 0, "sectors are written whole");
    at / 512
}

#[test]
fn a_torn_write_says_so_and_one_cut_short_does_not() {
    let mut partly = 0;
    for seed in 0..20 {
        let mut rig = Rig::new(8, seed);
        rig.write(0, 1, 2 * PAGE).unwrap();
        rig.chances(|chances| chances.torn = 1_000);
        assert_eq!(rig.write(0, 2, PAGE), Err(DeviceError::Write));
        rig.chances(|chances| chances.cut_short = 1_000);
        rig.write(PAGE, 2, PAGE).unwrap();
        for offset in [0, PAGE] {
            let sectors = torn_at(&rig.read(offset, PAGE).unwrap(), 2, 1);
            assert!(sectors < 8);
            partly += usize::from(sectors > 0);
        }
        let delivered = rig.delivered();
        assert_eq!((delivered.torn, delivered.cut_short), (1, 1));
    }
    assert!(partly > 10, "only {partly} of 40 wrote anything");
}

#[test]
fn a_misdirected_write_lands_elsewhere_and_says_nothing() {
    let mut rig = Rig::new(8, 1);
    rig.write(0, 1, 2 * PAGE).unwrap();
    rig.chances(|chances| chances.misdirected = 1_000);
    rig.write(0, 2, PAGE).unwrap();
    assert_eq!(rig.read(0, PAGE).unwrap(), vec![1; PAGE]);
    assert_eq!(rig.read(PAGE, PAGE).unwrap(), vec![2; PAGE]);
    let end = (8 << 20) - PAGE;
    rig.write(end, 3, PAGE).unwrap();
    assert_eq!(rig.read(end - PAGE, PAGE).unwrap(), vec![3; PAGE]);
    assert_eq!(rig.delivered().misdirected, 2);
}

#[test]
fn a_device_vanishes_with_what_is_under_way() {
    let mut rig = Rig::new(8, 1);
    rig.write(0, 1, PAGE).unwrap();
    let op = rig.write_op(0, 2, PAGE);
    rig.device.submit(op).unwrap();
    rig.faults.defects(|defects| defects.gone = true);
    let flush = DeviceOp::Flush { tag: rig.tag() };
    rig.device.submit(flush).unwrap();
    let mut ended = 0;
    while ended < 2 {
        match rig.device.poll() {
            Some(DeviceEvent::Write { result, .. } | DeviceEvent::Flush { result, .. }) => {
                assert_eq!(result, Err(DeviceError::Gone));
                ended += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => rig.pump(),
        }
    }
    assert_eq!(rig.read(0, PAGE), Err(DeviceError::Gone));
    assert_eq!(rig.delivered().gone, 3);
}

#[test]
fn a_write_that_finds_no_room_meets_its_fate_once() {
    let mut rig = Rig::new(1, 1);
    rig.chances(|chances| chances.misdirected = 1_000);
    let first = rig.write_op(0, 1, PAGE);
    rig.device.submit(first).unwrap();
    let mut op = rig.write_op(0, 2, PAGE);
    for _ in 0..5 {
        let Err(Full(back)) = rig.device.submit(op) else {
            panic!("a queue of one took two");
        };
        op = back;
    }
    while rig.device.poll().is_none() {
        rig.pump();
    }
    rig.run(op);
    assert_eq!(rig.delivered().misdirected, 2);
    assert_eq!(rig.counters.now().full, 5);
}

#[test]
fn a_delay_holds_what_has_ended_and_a_hang_holds_all() {
    let mut rig = Rig::new(8, 1);
    let millis = Duration::from_millis;
    rig.delays.set(Delay {
        shortest: millis(5),
        longest: millis(7),
        ..Delay::NONE
    });
    let before = rig.clock.now();
    rig.write(0, 1, PAGE).unwrap();
    let took = rig.clock.now().since(before);
    assert!(took >= millis(5) && took <= millis(8), "{took:?}");

    rig.delays.set(Delay::NONE);
    rig.delays.hang();
    let op = rig.write_op(0, 2, PAGE);
    rig.device.submit(op).unwrap();
    for _ in 0..1_000 {
        rig.pump();
        assert!(rig.device.poll().is_none());
    }
    assert_eq!(rig.delays.held(), 1);
    rig.delays.release();
    assert!(rig.device.poll().is_some());
    assert_eq!(rig.delays.held(), 0);
}

#[test]
fn a_long_tail_is_a_hundred_times_slower_for_a_few() {
    let mut rig = Rig::new(8, 1);
    rig.delays.set(Delay::long_tail(Duration::from_micros(100)));
    let mut spans: Vec<Duration> = (0..1_000)
        .map(|_| {
            let before = rig.clock.now();
            rig.write(0, 1, 512).unwrap();
            rig.clock.now().since(before)
        })
        .collect();
    spans.sort_unstable();
    assert!(spans[500] < Duration::from_millis(1));
    assert!(spans[990] >= Duration::from_millis(10));
    let slow = rig.delays.slow();
    assert!((5..60).contains(&slow), "{slow} of 1,000");
}

#[test]
fn a_sleeping_core_is_woken_for_held_events() {
    let delays = Delays::new(1);
    let (sender, woken) = std::sync::mpsc::channel::<()>();
    struct Tell(std::sync::mpsc::Sender<()>);
    impl std::task::Wake for Tell {
        fn wake(self: std::sync::Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    delays.keep_awake(std::sync::Arc::new(Tell(sender)).into());
    assert!(woken.recv_timeout(Duration::from_millis(50)).is_err());
    let mut rig = Rig::new(8, 1);
    rig.delays = delays.clone();
    rig.reopen();
    delays.hang();
    let op = rig.write_op(0, 1, PAGE);
    rig.device.submit(op).unwrap();
    rig.pump();
    assert!(rig.device.poll().is_none());
    assert!(woken.recv_timeout(Duration::from_secs(10)).is_ok());
}

#[test]
fn what_passes_is_counted() {
    let mut rig = Rig::new(8, 1);
    rig.write(0, 1, 2 * PAGE).unwrap();
    rig.read(0, PAGE).unwrap();
    rig.discard().unwrap();
    let flush = DeviceOp::Flush { tag: rig.tag() };
    rig.run(flush);
    rig.faults.defects(|defects| defects.gone = true);
    rig.read(0, PAGE).unwrap_err();
    assert_eq!(
        rig.counters.now(),
        Counts {
            reads: 2,
            read_bytes: 2 * PAGE as u64,
            writes: 1,
            write_bytes: 2 * PAGE as u64,
            flushes: 1,
            discards: 1,
            discard_bytes: PAGE as u64,
            ended: 5,
            failed: 1,
            full: 0,
        }
    );
    assert_ne!(rig.clock.now(), Time(0));
}
