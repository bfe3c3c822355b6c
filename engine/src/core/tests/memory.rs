//! The core and its memory: hits, checks, eviction, waiting for room.

use super::*;

#[test]
fn reads_across_blocks_and_pieces_are_put_together() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let warm = bench.read(4 * MIB - 64 * KIB, KIB, 0);
    bench.serve_all();
    expect_bytes(&warm, 4 * MIB - 64 * KIB, KIB);
    let outcome = bench.read(4 * MIB - 300 * KIB - 7, 700 * KIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, 4 * MIB - 300 * KIB - 7, 700 * KIB);
}

#[test]
fn a_spoiled_page_is_fetched_again_and_never_served() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let warm = bench.read(0, MIB, 0);
    bench.serve_all();
    expect_bytes(&warm, 0, MIB);
    assert!(bench.core.index.corrupt(bench.object.block(0)));
    let outcome = bench.read(0, 4 * KIB, 0);
    bench.turn();
    assert_eq!(bench.gets().len(), 1);
    bench.serve();
    expect_bytes(&outcome, 0, 4 * KIB);
    let stats = bench.core.stats();
    assert_eq!(
        (
            stats.checksum_failures,
            stats.ledger.bytes(Reason::Checksum)
        ),
        (1, 64 * KIB)
    );
}

#[test]
fn a_cache_smaller_than_the_object_evicts_and_says_so() {
    let mut bench = Bench::new(16 * MIB, 64 * MIB);
    for pass in 0..2 {
        for n in 0..64 {
            let outcome = bench.read(n * MIB, MIB, 0);
            bench.serve_all();
            expect_bytes(&outcome, n * MIB, MIB);
        }
        assert_eq!(
            bench.core.stats().ledger.bytes(Reason::Cold),
            64 * MIB,
            "pass {pass}"
        );
    }
    let stats = bench.core.stats();
    assert!(stats.ledger.bytes(Reason::Evicted) >= 48 * MIB && stats.evictions > 0);
    assert!(stats.memory_used_bytes <= stats.memory_bytes);
}

#[test]
fn fills_that_wait_for_memory_never_wait_for_each_other() {
    let mut bench = Bench::new(16 * MIB, 64 * MIB);
    // Every block caches a little, and every block is promised more than the arena holds.
    let warm: Vec<_> = (0..16).map(|n| bench.read(n * 4 * MIB, MIB, 0)).collect();
    bench.serve_all();
    assert!(warm.iter().all(|outcome| outcome.lock()[0].is_ok()));
    let rest: Vec<_> = (0..16)
        .map(|n| bench.read(n * 4 * MIB + MIB, MIB, 0))
        .collect();
    bench.serve_all();
    for (n, outcome) in (0..).zip(&rest) {
        expect_bytes(outcome, n * 4 * MIB + MIB, MIB);
    }
}

#[test]
fn a_dropped_prefetch_promises_nothing() {
    let mut bench = Bench::new(16 * MIB, 256 * MIB);
    for n in 0..16 {
        let request = PrefetchRequest {
            object: bench.object.clone(),
            offset: n * 16 * MIB,
            len_bytes: 16 * MIB as u32,
            deadline: bench.clock.now() + TIMEOUT,
        };
        bench.ring.push(Request::Prefetch(request)).unwrap();
    }
    bench.serve_all();
    assert!(bench.core.stats().prefetch_dropped > 0);
    assert_eq!(bench.core.fills.len(), 0);
    let outcome = bench.read(255 * MIB, MIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, 255 * MIB, MIB);
}

#[test]
fn shutdown_answers_everything_and_gives_every_buffer_back() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let outcome = bench.read(0, MIB, 16 * MIB);
    bench.turn();
    bench.ring.push(Request::Shutdown).unwrap();
    let late = bench.read(0, MIB, 0);
    bench.turn();
    assert_eq!(*outcome.lock(), [Err(ReadError::Shutdown)]);
    assert_eq!(*late.lock(), [Err(ReadError::Shutdown)]);
    assert!(!bench.core.is_quiet(), "the GETs have not ended");
    while !bench.gets().is_empty() {
        bench.fail(OriginErrorKind::Cancelled, 0);
    }
    assert!(bench.core.is_quiet());
    assert_eq!(bench.core.arena().in_flight_bytes(), 0);
}

#[test]
fn what_was_read_ahead_outlives_a_scan_until_it_is_read() {
    let mut bench = Bench::new(64 * MIB, 512 * MIB);
    // A hot set fills the main queue, so that the small queue is held to its tenth.
    for _ in 0..3 {
        for n in 0..40 {
            bench.read(n * MIB, MIB, 0);
            bench.serve_all();
        }
    }
    let request = PrefetchRequest {
        object: bench.object.clone(),
        offset: 256 * MIB,
        len_bytes: 8 * MIB as u32,
        deadline: bench.clock.now() + TIMEOUT,
    };
    bench.ring.push(Request::Prefetch(request)).unwrap();
    bench.serve_all();
    for n in 100..130 {
        bench.read(n * MIB, MIB, 0);
        bench.serve_all();
    }
    let gets = bench.core.stats().gets;
    for n in 256..264 {
        bench.read(n * MIB, MIB, 0);
        bench.serve_all();
    }
    assert_eq!(
        bench.core.stats().gets,
        gets,
        "nothing that was read ahead is fetched again"
    );
}

#[test]
fn checking_ahead_hides_no_wrong_page() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let read_to_the_fourth = |bench: &mut Bench| {
        for n in 2..4 {
            let outcome = bench.read(n * MIB, MIB, 0);
            bench.serve_all();
            expect_bytes(&outcome, n * MIB, MIB);
        }
    };
    bench.read(4 * MIB, MIB, 0);
    bench.serve_all();
    let block = bench.object.block(4 * MIB);
    // Wrong before the check: the read finds it.
    assert!(bench.core.index.corrupt(block));
    read_to_the_fourth(&mut bench);
    let mended = bench.read(4 * MIB, MIB, 0);
    bench.serve_all();
    expect_bytes(&mended, 4 * MIB, MIB);
    assert_eq!(bench.core.stats().checksum_failures, 1);
    // Wrong after the check, which by then no longer counts.
    read_to_the_fourth(&mut bench);
    assert!(bench.core.index.corrupt(block));
    bench.pass(Duration::from_millis(2));
    let late = bench.read(4 * MIB, MIB, 0);
    bench.serve_all();
    expect_bytes(&late, 4 * MIB, MIB);
    assert_eq!(bench.core.stats().checksum_failures, 2);
}

#[test]
fn sizes_that_no_origin_has_are_refused_and_not_walked() {
    for size in [OBJECT_BYTES_MAX + 1, i64::MAX as u64, u64::MAX] {
        let mut bench = Bench::new(16 * MIB, size);
        for offset in [OBJECT_BYTES_MAX - 10, 1 << 54, size - 20] {
            let outcome = bench.read(offset, 20, 0);
            bench.turn();
            assert_eq!(
                *outcome.lock(),
                [Err(ReadError::Invalid)],
                "{size} {offset}"
            );
        }
        let request = PrefetchRequest {
            object: bench.object.clone(),
            offset: 1 << 54,
            len_bytes: 16 * MIB as u32,
            deadline: bench.clock.now() + TIMEOUT,
        };
        bench.ring.push(Request::Prefetch(request)).unwrap();
        let near = bench.read(MIB, KIB, 0);
        bench.serve_all();
        expect_bytes(&near, MIB, KIB);
    }
}

#[test]
fn one_pass_in_small_reads_is_no_hit_and_two_are() {
    for (step, start) in [(4 * KIB, 0), (100 * KIB + 7, 0), (KIB, 3)] {
        let mut bench = Bench::new(64 * MIB, 4 * MIB);
        let pass = |bench: &mut Bench| {
            for n in 0..30 {
                bench.read(start + n * step, step, 0);
                bench.serve_all();
            }
        };
        pass(&mut bench);
        let key = bench.core.index.find(bench.object.block(0)).unwrap();
        assert_eq!(bench.core.index.hits(key), 0, "step {step}");
        pass(&mut bench);
        assert!(bench.core.index.hits(key) > 0, "step {step}");
    }
}

#[test]
fn more_readers_than_the_arena_holds_get_on_without_fetching_twice() {
    let mut bench = Bench::new(16 * MIB, 512 * MIB);
    // Each needs bytes of two blocks; all of them together four times the arena.
    let outcomes: Vec<_> = (0..64)
        .map(|n| bench.read((n + 1) * 4 * MIB - MIB / 2 - 7, MIB, 0))
        .collect();
    bench.turn();
    let mut served = 0;
    while !bench.gets().is_empty() {
        bench.serve();
        served += 1;
        assert!(served < 10_000, "readers evict each other's bytes");
    }
    for (n, outcome) in (0..).zip(&outcomes) {
        expect_bytes(outcome, (n + 1) * 4 * MIB - MIB / 2 - 7, MIB);
    }
    let touched = 64 * 18 * 64 * KIB;
    let origin = bench.core.stats().ledger.total_bytes();
    assert!(
        origin <= touched,
        "{origin} origin bytes for {touched} that were needed"
    );
    assert_eq!(bench.core.lanes.admitted_bytes(), 0);
}

#[test]
fn reads_that_wait_for_room_keep_their_deadline() {
    let mut bench = Bench::new(16 * MIB, 512 * MIB);
    let outcomes: Vec<_> = (0..40).map(|n| bench.read(n * 4 * MIB, MIB, 0)).collect();
    bench.turn();
    assert!(bench.core.lanes.someone_waits());
    bench.pass(TIMEOUT);
    assert!(
        outcomes
            .iter()
            .all(|outcome| *outcome.lock() == [Err(ReadError::Deadline)])
    );
    assert_eq!(bench.core.lanes.admitted_bytes(), 0);
    while !bench.gets().is_empty() {
        bench.fail(OriginErrorKind::Cancelled, 0);
    }
    let outcome = bench.read(0, MIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, 0, MIB);
    assert!(!bench.core.lanes.someone_waits());
}
