//! The core with a disk tier under it.

use super::*;
use crate::limits::{BATCH_DELAY_MS, DEVICE_READ_MS_MAX, PAGE_BYTES};

const ARENA: u64 = 32 * MIB;
const OBJECT: u64 = 256 * MIB;

impl Bench {
    /// What was fetched lies on disk.
    fn settle(&mut self) {
        self.pass(Duration::from_millis(BATCH_DELAY_MS));
        assert!(self.core.parts.disk.is_quiet());
    }

    fn evict_all(&mut self) {
        while self.core.index.evict().is_some() {}
    }

    /// Reads and expects the right bytes, from wherever.
    fn get(&mut self, offset: u64, len: u64) {
        let outcome = self.read(offset, len, 0);
        self.serve_all();
        expect_bytes(&outcome, offset, len);
    }

    fn hits(&self) -> (u64, u64, u64) {
        let stats = self.core.stats();
        (stats.memory_hits, stats.disk_hits, stats.misses)
    }

    fn is_in_memory(&self, offset: u64) -> bool {
        let block = self.object.block(offset);
        self.core.index.find(block).is_some_and(|key| {
            let sub = offset / (64 * KIB) % 64;
            self.core.index.block(key).present & 1 << sub != 0
        })
    }
}

fn bench() -> Bench {
    Bench::with_disk(&TestMedia::default(), ARENA, OBJECT)
}

#[test]
fn what_memory_evicted_comes_from_disk() {
    let mut bench = bench();
    bench.get(8 * MIB, MIB);
    bench.get(13 * MIB + 5, 300 * KIB);
    bench.settle();
    bench.evict_all();
    let origin = bench.core.stats().ledger.total_bytes();
    bench.get(8 * MIB, MIB);
    bench.get(13 * MIB + 5, 300 * KIB);
    let stats = bench.core.stats();
    assert_eq!(stats.ledger.total_bytes(), origin);
    assert_eq!(bench.hits(), (0, 2, 2));
    assert_eq!(stats.disk_hit_bytes, MIB + 300 * KIB);
    assert_eq!(stats.disk_latency_ns.len(), 2);
    bench.get(8 * MIB, MIB);
    assert_eq!(bench.hits(), (1, 2, 2), "it is in memory again");
}

#[test]
fn a_chunk_is_one_device_read_and_the_rest_of_it_sub_blocks() {
    let mut bench = bench();
    bench.get(8 * MIB, MIB);
    bench.settle();
    bench.evict_all();
    bench.get(8 * MIB, MIB);
    assert_eq!(bench.media.borrow_mut().reads.split_off(0), [(0, 1 << 20)]);
    bench.evict_all();
    bench.get(8 * MIB, 64 * KIB);
    bench.get(8 * MIB, 192 * KIB);
    let reads = bench.media.borrow_mut().reads.split_off(0);
    assert_eq!(reads, [(0, 65_536), (16, 65_536), (32, 65_536)]);
}

#[test]
fn another_core_on_the_same_media_asks_the_origin_for_nothing() {
    let media = TestMedia::default();
    let mut first = Bench::with_disk(&media, ARENA, 5 * MIB + 777);
    first.get(0, MIB);
    first.get(4 * MIB + 777, MIB);
    first.ring.push(Request::Shutdown).unwrap();
    first.turn();
    assert!(first.core.is_quiet(), "shutdown settles what was fetched");
    drop(first);
    let mut second = Bench::with_disk(&media, ARENA, 5 * MIB + 777);
    second.get(0, MIB);
    second.get(4 * MIB + 777, MIB);
    second.get(5 * MIB, 777);
    assert_eq!(second.core.stats().gets, 0);
    assert_eq!(second.core.stats().ledger.total_bytes(), 0);
}

#[test]
fn a_small_read_reads_its_pages_and_brings_nothing_to_memory() {
    let mut bench = bench();
    bench.get(MIB, MIB);
    bench.settle();
    bench.evict_all();
    bench.get(MIB + 5_000, 4 * KIB);
    bench.get(MIB + 64 * KIB, 4 * KIB);
    bench.get(MIB + 120 * KIB, 16 * KIB);
    let reads = bench.media.borrow_mut().reads.split_off(0);
    assert_eq!(reads, [(257, 8_192), (272, 4_096), (286, 16_384)]);
    assert!(!bench.is_in_memory(MIB) && !bench.is_in_memory(MIB + 64 * KIB));
    assert_eq!(bench.hits(), (0, 3, 1));
    bench.turn();
    assert_eq!(bench.core.arena().in_flight_bytes(), 0);
    assert_eq!(bench.core.index.len(), 0);
}

#[test]
fn the_last_short_page_of_an_object_is_read_directly_too() {
    let media = TestMedia::default();
    let mut bench = Bench::with_disk(&media, ARENA, 3 * MIB + 100);
    bench.get(3 * MIB - 8 * KIB, 8 * KIB + 100);
    bench.settle();
    bench.evict_all();
    bench.get(3 * MIB - 4 * KIB, 4 * KIB + 100);
    bench.get(3 * MIB + 50, 50);
    assert_eq!(bench.hits(), (0, 2, 1));
}

#[test]
fn what_is_read_directly_again_and_again_moves_to_memory() {
    let mut bench = bench();
    bench.get(MIB, 64 * KIB);
    bench.settle();
    bench.evict_all();
    for _ in 0..3 {
        bench.get(MIB + 8 * KIB, 4 * KIB);
        assert!(!bench.is_in_memory(MIB));
    }
    bench.get(MIB + 8 * KIB, 4 * KIB);
    assert!(bench.is_in_memory(MIB));
    bench.get(MIB + 60 * KIB, 4 * KIB);
    assert_eq!(bench.hits(), (1, 4, 1));
}

#[test]
fn a_device_that_is_full_answers_all_direct_reads_in_turn() {
    let mut bench = bench();
    bench.get(MIB, MIB);
    bench.settle();
    bench.evict_all();
    bench.media.borrow_mut().queue_max = 3;
    let at = |n: u64| MIB + n * 68 * KIB;
    let outcomes: Vec<_> = (0..15).map(|n| bench.read(at(n), 4 * KIB, 0)).collect();
    bench.turn();
    for (n, outcome) in (0..).zip(&outcomes) {
        expect_bytes(outcome, at(n), 4 * KIB);
    }
    let lengths: Vec<_> = bench.media.borrow().reads.iter().map(|r| r.1).collect();
    assert_eq!(lengths, [PAGE_BYTES; 15]);
    assert_eq!(bench.core.directs.due_at(), Time::NEVER);
}

#[test]
fn a_direct_read_ends_by_its_deadline_whatever_the_device_does() {
    let mut bench = bench();
    bench.get(0, MIB);
    bench.settle();
    bench.evict_all();
    bench.media.borrow_mut().hold_reads = true;
    let submitted = bench.clock.now();
    let outcome = bench.read(0, 4 * KIB, 0);
    let Some(Request::Read(mut request)) = bench.ring.pop() else {
        panic!("the read")
    };
    request.deadline = submitted + Duration::from_millis(DEVICE_READ_MS_MAX / 2);
    bench.ring.push(Request::Read(request)).unwrap();
    let turn = bench.core.turn(Budget::default());
    assert!(turn.wake_at <= submitted + Duration::from_millis(DEVICE_READ_MS_MAX / 2));
    bench.pass(Duration::from_millis(DEVICE_READ_MS_MAX / 2));
    assert_eq!(*outcome.lock(), [Err(ReadError::Deadline)]);
    bench.pass(Duration::from_millis(DEVICE_READ_MS_MAX));
    assert_eq!(outcome.lock().len(), 1);
    assert!(bench.core.is_quiet());
}

/// Reads `reads` with a disk that has the bytes and cannot give them.
fn expect_from_origin(spoil: impl Fn(&mut fake_disk::Media), reason: Reason) {
    for (offset, len) in [(2 * MIB, MIB), (2 * MIB + 4 * KIB, 4 * KIB), (0, 200 * KIB)] {
        let mut bench = bench();
        bench.get(0, 4 * MIB / 4);
        bench.get(2 * MIB, MIB);
        bench.settle();
        bench.evict_all();
        let before = bench.core.stats();
        spoil(&mut bench.media.borrow_mut());
        let (one, two) = (bench.read(offset, len, 0), bench.read(offset, len, 0));
        bench.turn();
        bench.pass(Duration::from_millis(DEVICE_READ_MS_MAX));
        spoil_ends(&bench);
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
    }
}

fn spoil_ends(bench: &Bench) {
    bench.media.borrow_mut().hold_reads = false;
}

#[test]
fn wrong_pages_on_disk_come_from_the_origin() {
    expect_from_origin(|media| media.flip(), Reason::Checksum);
}

#[test]
fn what_the_device_cannot_read_comes_from_the_origin() {
    expect_from_origin(|media| media.fail_reads = true, Reason::Evicted);
}

#[test]
fn what_the_device_takes_too_long_for_comes_from_the_origin() {
    expect_from_origin(|media| media.hold_reads = true, Reason::Evicted);
}

#[test]
fn readers_of_one_sub_block_share_a_load_and_a_prefetch_becomes_urgent() {
    let mut bench = bench();
    bench.get(0, MIB);
    bench.settle();
    bench.evict_all();
    bench.media.borrow_mut().hold_reads = true;
    let request = PrefetchRequest {
        object: bench.object.clone(),
        offset: 0,
        len_bytes: 256 * KIB as u32,
        deadline: bench.clock.now() + TIMEOUT,
    };
    bench.ring.push(Request::Prefetch(request)).unwrap();
    let one = bench.read(100, 100 * KIB, 0);
    let two = bench.read(KIB, 4 * KIB, 0);
    bench.turn();
    assert_eq!(bench.media.borrow().reads.len(), 4);
    bench.media.borrow_mut().hold_reads = false;
    bench.turn();
    expect_bytes(&one, 100, 100 * KIB);
    expect_bytes(&two, KIB, 4 * KIB);
    assert_eq!(bench.media.borrow().reads.len(), 4);
    assert_eq!(bench.hits(), (0, 2, 1));
}

#[test]
fn one_read_takes_from_disk_what_is_there_and_the_rest_from_the_origin() {
    let mut bench = bench();
    bench.get(64 * KIB, 64 * KIB);
    bench.settle();
    bench.evict_all();
    let outcome = bench.read(0, 256 * KIB, 0);
    bench.turn();
    assert_eq!(bench.gets(), [(0, 64 * KIB), (128 * KIB, 128 * KIB)]);
    bench.serve_all();
    expect_bytes(&outcome, 0, 256 * KIB);
    assert_eq!(bench.hits(), (0, 0, 2), "it waited for the origin");
    let ledger = bench.core.stats().ledger;
    assert_eq!(ledger.bytes(Reason::Cold), 256 * KIB);
}

#[test]
fn a_block_put_together_from_scattered_reads_becomes_one_entry() {
    let media = TestMedia::default();
    let mut bench = Bench::with_disk(&media, ARENA, 4 * MIB);
    for n in (0..64).rev() {
        bench.get(n * 64 * KIB, 64 * KIB);
        bench.settle();
        let entries = if n == 0 { 1 } else { 64 - n as usize };
        assert_eq!(media.borrow().entries(), entries);
    }
    assert_eq!(media.borrow().kept_bytes as u64, 63 * 64 * KIB + 4 * MIB);
    bench.evict_all();
    bench.get(0, MIB);
    assert_eq!(bench.core.stats().ledger.total_bytes(), 4 * MIB);
}

#[test]
fn a_block_that_lies_in_long_extents_is_not_written_twice() {
    let media = TestMedia::default();
    let mut bench = Bench::with_disk(&media, ARENA, 4 * MIB);
    for n in (0..4).rev() {
        bench.get(n * MIB, MIB);
        bench.settle();
    }
    assert_eq!(media.borrow().kept_bytes as u64, 4 * MIB);
    assert_eq!(media.borrow().entries(), 4);
}

#[test]
fn only_what_came_from_the_origin_is_kept_and_memory_hits_are_told() {
    let mut bench = bench();
    bench.get(0, MIB);
    bench.settle();
    bench.evict_all();
    bench.get(0, MIB);
    bench.settle();
    assert_eq!(bench.media.borrow().kept_bytes as u64, MIB);
    assert_eq!(bench.media.borrow().touches, 0);
    bench.get(0, MIB);
    assert_eq!(bench.media.borrow().touches, 1);
}

#[test]
fn pieces_that_are_being_written_stay_in_memory_until_they_are() {
    let mut bench = bench();
    bench.get(0, MIB);
    bench.settle();
    bench.get(8 * MIB, MIB);
    bench.get(8 * MIB, MIB);
    bench.evict_all();
    assert!(!bench.is_in_memory(0) && bench.is_in_memory(8 * MIB));
    bench.settle();
    bench.evict_all();
    assert!(!bench.is_in_memory(8 * MIB));
    assert_eq!(bench.core.index.len(), 0);
}

#[test]
fn reads_are_held_while_the_disk_recovers_but_not_for_ever() {
    for ends in [true, false] {
        let media = TestMedia::default();
        let mut first = Bench::with_disk(&media, ARENA, OBJECT);
        first.get(0, MIB);
        first.settle();
        media.borrow_mut().recovering = true;
        let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
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
            media.borrow_mut().recovering = false;
            bench.turn();
        } else {
            bench.pass(TIMEOUT / 3);
        }
        assert!(bench.gets().contains(&(128 * MIB, MIB)), "given up or over");
        bench.serve_all();
        expect_bytes(&outcome, 0, MIB);
        expect_bytes(&other, 128 * MIB, MIB);
    }
}

#[test]
fn a_shutdown_during_recovery_answers_what_was_held() {
    let media = TestMedia::default();
    media.borrow_mut().recovering = true;
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    let outcome = bench.read(0, MIB, 0);
    bench.turn();
    bench.ring.push(Request::Shutdown).unwrap();
    bench.turn();
    assert_eq!(*outcome.lock(), [Err(ReadError::Shutdown)]);
    assert!(bench.core.is_quiet());
}

#[test]
fn more_readers_than_the_arena_holds_are_served_from_disk_once_each() {
    let mut bench = Bench::with_disk(&TestMedia::default(), 16 * MIB, OBJECT);
    for n in 0..40 {
        bench.get(n * 4 * MIB + 100, MIB);
        bench.settle();
    }
    let origin = bench.core.stats().ledger.total_bytes();
    bench.media.borrow_mut().reads.clear();
    let outcomes: Vec<_> = (0..40)
        .map(|n| bench.read(n * 4 * MIB + 100, MIB, 0))
        .collect();
    bench.turn();
    for (n, outcome) in (0..).zip(&outcomes) {
        expect_bytes(outcome, n * 4 * MIB + 100, MIB);
    }
    assert_eq!(bench.core.stats().ledger.total_bytes(), origin);
    let subs: usize = bench.media.borrow().reads.iter().map(|r| r.1 >> 16).sum();
    assert!(subs <= 40 * 17, "{subs} sub-blocks read");
    assert_eq!(bench.core.admitted_bytes, 0);
}
