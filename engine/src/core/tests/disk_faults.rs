//! Disks that fail, lie, hang, fill up, or take long to recover: right bytes from the next source.

use super::disk::{ARENA, OBJECT, TestMedia, bench_with, media, take_reads};
use super::mem_device::Media;
use super::*;
use crate::limits::{BATCH_DELAY_MS, DEVICE_READ_MS_MAX, METADATA_PER_CORE_MAX, PAGE_BYTES};

#[test]
fn a_device_that_is_full_answers_all_direct_reads_in_turn() {
    let (mut bench, media) = bench_with(&[(MIB, MIB)]);
    media.borrow_mut().queue_max = 3;
    let at = |n: u64| MIB + n * 68 * KIB;
    let outcomes: Vec<_> = (0..15).map(|n| bench.read(at(n), 4 * KIB, 0)).collect();
    bench.turn();
    for (n, outcome) in (0..).zip(&outcomes) {
        expect_bytes(outcome, at(n), 4 * KIB);
    }
    assert_eq!(take_reads(&media), [PAGE_BYTES; 15]);
    assert_eq!(bench.core.directs.due_at(), Time::NEVER);
}

#[test]
fn a_device_that_is_full_brings_all_loads_in_turn() {
    let (mut bench, media) = bench_with(&[(0, MIB), (4 * MIB, MIB)]);
    media.borrow_mut().queue_max = 2;
    let one = bench.read(64 * KIB, 900 * KIB, 0);
    let two = bench.read(4 * MIB, MIB, 0);
    bench.turn();
    expect_bytes(&one, 64 * KIB, 900 * KIB);
    expect_bytes(&two, 4 * MIB, MIB);
    assert_eq!(
        take_reads(&media).iter().sum::<usize>() as u64,
        (15 + 16) * 64 * KIB
    );
    assert_eq!(bench.core.loads.len(), 0);
}

#[test]
fn a_direct_read_ends_by_its_deadline_whatever_the_device_does() {
    let (mut bench, media) = bench_with(&[(0, MIB)]);
    media.borrow_mut().hold_reads = true;
    let soon = Duration::from_millis(DEVICE_READ_MS_MAX / 2);
    let outcome = bench.read(0, 4 * KIB, 0);
    let Some(Request::Read(mut request)) = bench.ring.pop() else {
        panic!("the read")
    };
    request.deadline = request.submitted + soon;
    let deadline = request.deadline;
    bench.ring.push(Request::Read(request)).unwrap();
    assert!(bench.core.turn(Budget::default()).wake_at <= deadline);
    bench.pass(soon);
    assert_eq!(*outcome.lock(), [Err(ReadError::Deadline)]);
    assert_eq!(bench.core.directs.due_at(), Time::NEVER);
    bench.pass(2 * soon);
    media.borrow_mut().hold_reads = false;
    bench.turn();
    assert_eq!(outcome.lock().len(), 1);
    assert!(bench.core.is_quiet());
    assert_eq!(bench.core.arena().in_flight_bytes(), 0);
}

/// What a page of a range of the object is filled with.
fn contents(offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(byte_at).collect()
}

/// Reads, twice at a time, what the disk has and cannot give: each sub-block comes from the origin
/// once, booked as `reason`.
fn expect_from_origin(spoil: impl Fn(&mut Media), reason: Reason) {
    for (offset, len) in [
        (2 * MIB, MIB),
        (2 * MIB + 4 * KIB, 4 * KIB),
        (3 * MIB - 32 * KIB, 64 * KIB),
        (0, 200 * KIB),
    ] {
        let (mut bench, media) = bench_with(&[(0, MIB), (2 * MIB, MIB), (3 * MIB, MIB)]);
        let before = bench.core.stats();
        spoil(&mut media.borrow_mut());
        let (one, two) = (bench.read(offset, len, 0), bench.read(offset, len, 0));
        bench.turn();
        bench.pass(Duration::from_millis(DEVICE_READ_MS_MAX));
        media.borrow_mut().hold_reads = false;
        bench.serve_all();
        expect_bytes(&one, offset, len);
        expect_bytes(&two, offset, len);
        let after = bench.core.stats();
        let subs = (offset + len).div_ceil(64 * KIB) - offset / (64 * KIB);
        let again = after.ledger.total_bytes() - before.ledger.total_bytes();
        assert_eq!(again, subs * 64 * KIB, "each sub-block once");
        assert_eq!(after.ledger.bytes(reason), subs * 64 * KIB);
        assert_eq!(after.misses - before.misses, 2, "{offset} {len}");
        assert_eq!(after.disk_hits, 0);
        assert_eq!(bench.core.arena().in_flight_bytes(), 0);
        bench.get(offset, len);
        assert_eq!(
            bench.core.stats().ledger.total_bytes(),
            after.ledger.total_bytes()
        );
    }
}

#[test]
fn wrong_pages_on_disk_come_from_the_origin() {
    let flip = |media: &mut Media| {
        let is = [
            contents(0, MIB),
            contents(2 * MIB, MIB),
            contents(3 * MIB, MIB),
        ]
        .concat();
        assert_eq!(media.flip_pages(&is), 3 * 256);
    };
    expect_from_origin(flip, Reason::Checksum);
}

#[test]
fn what_the_device_cannot_read_comes_from_the_origin() {
    let fail = |media: &mut Media| media.read_error = Some(DeviceError::Media);
    expect_from_origin(fail, Reason::Evicted);
}

#[test]
fn what_the_device_takes_too_long_for_comes_from_the_origin() {
    expect_from_origin(|media| media.hold_reads = true, Reason::Evicted);
}

#[test]
fn a_device_that_vanished_costs_nothing_but_speed() {
    expect_from_origin(|media| media.gone = true, Reason::Evicted);
}

#[test]
fn a_device_that_vanishes_while_fills_are_written_lets_go_of_memory() {
    let (mut bench, media) = bench_with(&[]);
    bench.get(0, MIB);
    media.borrow_mut().gone = true;
    bench.get(8 * MIB, MIB);
    bench.settle();
    bench.evict_all();
    assert_eq!(
        bench.core.index.len(),
        0,
        "nothing is held for a device that is gone"
    );
    bench.get(0, MIB);
    bench.get(8 * MIB, MIB);
}

#[test]
fn reads_are_held_while_the_disk_recovers_but_not_for_ever() {
    for ends in [true, false] {
        let (mut first, media) = bench_with(&[(0, MIB)]);
        first.ring.push(Request::Shutdown).unwrap();
        first.turn();
        media.borrow_mut().hold_reads = true;
        let mut bench = Bench::starting_on(&media, ARENA, OBJECT);
        let outcome = bench.read(0, MIB, 0);
        let other = bench.read(128 * MIB, MIB, 0);
        let asked = Arc::new(Mutex::new(0));
        let count = asked.clone();
        let request = crate::client::StatsRequest {
            reply: Box::new(move |stats| *count.lock() += stats.reads_waiting),
        };
        bench.ring.push(Request::Stats(request)).unwrap();
        bench.turn();
        assert_eq!(*asked.lock(), 2, "counters are told meanwhile");
        assert!(bench.gets().is_empty() && !bench.core.is_quiet());
        assert!(bench.core.turn(Budget::default()).wake_at <= Time::default() + TIMEOUT / 3);
        if ends {
            media.borrow_mut().hold_reads = false;
            bench.turn();
            assert_eq!(bench.gets(), [(128 * MIB, MIB)], "the other is on disk");
        } else {
            bench.pass(TIMEOUT / 3);
            assert_eq!(bench.gets(), [(0, MIB), (128 * MIB, MIB)], "not for ever");
        }
        bench.serve_all();
        expect_bytes(&outcome, 0, MIB);
        expect_bytes(&other, 128 * MIB, MIB);
    }
}

#[test]
fn held_reads_wait_without_spinning_while_lookups_are_at_their_maximum() {
    let media = media();
    media.borrow_mut().hold_reads = true;
    let mut bench = Bench::starting_on(&media, ARENA, OBJECT);
    let outcome = bench.read(0, KIB, 0);
    bench.turn();
    for n in 0..METADATA_PER_CORE_MAX {
        let request = crate::client::HeadRequest {
            bucket: bench.object.bucket.clone(),
            key: format!("key/{n}").into(),
            accept: TIMEOUT.into(),
            deadline: bench.clock.now() + 2 * TIMEOUT,
            reply: Box::new(|_| {}),
        };
        bench.ring.push(Request::Head(request)).unwrap();
    }
    bench.turn();
    assert_eq!(bench.core.lookups.len(), METADATA_PER_CORE_MAX);
    media.borrow_mut().hold_reads = false;
    let mut turns = 0;
    while bench.core.turn(Budget::default()).progressed {
        turns += 1;
        assert!(turns < 1_000, "it spins");
    }
    assert!(!bench.core.parts.disk.is_recovering() && bench.core.held.len() == 1);
    let Some(OriginOp::Head(head)) = bench.origin.0.borrow_mut().ops.pop_front() else {
        panic!("the HEADs")
    };
    let error = OriginError::new(OriginErrorKind::NotFound, "scripted");
    bench.push(OriginEvent::Head {
        tag: head.tag,
        result: Err(error),
    });
    bench.turn();
    bench
        .origin
        .0
        .borrow_mut()
        .ops
        .retain(|op| matches!(op, OriginOp::Get(_)));
    bench.serve_all();
    expect_bytes(&outcome, 0, KIB);
}

#[test]
fn a_shutdown_during_recovery_answers_what_was_held() {
    let media: TestMedia = media();
    media.borrow_mut().hold_reads = true;
    let mut bench = Bench::starting_on(&media, ARENA, OBJECT);
    let outcome = bench.read(0, MIB, 0);
    bench.turn();
    assert!(outcome.lock().is_empty());
    bench.ring.push(Request::Shutdown).unwrap();
    bench.turn();
    assert_eq!(*outcome.lock(), [Err(ReadError::Shutdown)]);
}

#[test]
fn a_shutdown_answers_direct_reads_and_loads_under_way() {
    let (mut bench, media) = bench_with(&[(0, MIB), (4 * MIB, MIB)]);
    media.borrow_mut().hold_reads = true;
    let outcomes = [bench.read(0, 4 * KIB, 0), bench.read(4 * MIB, MIB, 0)];
    bench.turn();
    bench.ring.push(Request::Shutdown).unwrap();
    bench.turn();
    for outcome in &outcomes {
        assert_eq!(*outcome.lock(), [Err(ReadError::Shutdown)]);
    }
    media.borrow_mut().hold_reads = false;
    bench.turn();
    assert!(bench.core.is_quiet());
    assert_eq!(bench.core.arena().in_flight_bytes(), 0);
}

/// Random numbers below a bound, the same for each seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }
}

const SIZE: u64 = 48 * MIB + 12_345;

/// One read, and at times a prefetch.
fn ask(bench: &Bench, dice: &mut Dice) -> (u64, u64, Outcome) {
    let len = [4 * KIB, 4 * KIB, 20 * KIB, 200 * KIB, MIB][dice.below(5) as usize];
    let reach = if dice.below(3) == 0 { 2 * MIB } else { SIZE };
    let offset = dice.below(reach - len);
    let want = if dice.below(4) == 0 { 3 * MIB } else { 0 };
    if dice.below(10) == 0 {
        let request = PrefetchRequest {
            object: bench.object.clone(),
            offset: dice.below(48 * MIB),
            len_bytes: 2 * MIB as u32,
            deadline: bench.clock.now() + TIMEOUT,
        };
        bench.ring.push(Request::Prefetch(request)).unwrap();
    }
    (offset, len, bench.read(offset, len, want))
}

/// Faults begin, or all end.
fn change(media: &mut Media, dice: &mut Dice, offset: u64) {
    match dice.below(40) {
        0 => media.read_error = Some(DeviceError::Media),
        1 => media.hold_reads = true,
        2 => {
            media.flip_pages(&contents(offset.next_multiple_of(4 * KIB), 4 * KIB));
        }
        3 => media.queue_max = 1 + dice.below(4) as usize,
        4..14 => heal(media),
        _ => {}
    }
}

fn heal(media: &mut Media) {
    media.read_error = None;
    media.hold_reads = false;
    media.queue_max = 64;
}

/// Readers of all kinds on a disk whose faults come and go: every answer is right or an error that a
/// deadline explains, and in the end nothing is left.
#[test]
fn random_reads_over_random_faults_are_right() {
    // SOAK=n runs n seeds.
    let soak = std::env::var("SOAK").ok().and_then(|n| n.parse().ok());
    let seeds: Vec<u64> = soak.map_or(vec![0, 1, 2], |n: u64| (0..n).collect());
    let disk_hits: u64 = seeds.iter().map(|seed| soak_over_faults(*seed)).sum();
    assert!(
        disk_hits > 20 * seeds.len() as u64,
        "the disk had a part in it"
    );
}

/// One seed's run; how many reads the disk answered.
fn soak_over_faults(seed: u64) -> u64 {
    let media = media();
    let mut bench = Bench::with_disk(&media, 16 * MIB, SIZE);
    let mut dice = Dice(seed);
    let mut outcomes = Vec::new();
    for _ in 0..600 {
        outcomes.push(ask(&bench, &mut dice));
        change(
            &mut media.borrow_mut(),
            &mut dice,
            outcomes[outcomes.len() - 1].0,
        );
        match dice.below(3) {
            0 => bench.turn(),
            1 => bench.pass(Duration::from_millis(dice.below(400))),
            _ => bench.serve_all(),
        }
    }
    heal(&mut media.borrow_mut());
    // What waits for memory that writes hold waits for those.
    for _ in 0..10 {
        bench.pass(Duration::from_millis(BATCH_DELAY_MS));
        bench.serve_all();
    }
    for (offset, len, outcome) in &outcomes {
        match outcome.lock().as_slice() {
            [Ok(_)] => {}
            [Err(ReadError::Deadline)] => continue,
            other => panic!("seed {seed}: {offset}+{len}: {other:?}"),
        }
        expect_bytes(outcome, *offset, *len);
    }
    bench.ring.push(Request::Shutdown).unwrap();
    bench.turn();
    while !bench.gets().is_empty() {
        bench.fail(OriginErrorKind::Cancelled, 0);
    }
    assert!(bench.core.is_quiet(), "seed {seed}");
    let stats = bench.core.stats();
    assert!(stats.read_errors * 10 < stats.reads, "seed {seed}");
    // What the tier still holds goes with it; nobody else holds anything.
    bench.core.parts.disk = Disk::absent();
    bench.core.parts.arena.reclaim();
    assert_eq!(bench.core.arena().in_flight_bytes(), 0, "seed {seed}");
    assert_eq!(bench.core.lanes.admitted_bytes(), 0, "seed {seed}");
    stats.disk_hits
}
