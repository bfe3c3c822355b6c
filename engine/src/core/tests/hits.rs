//! Reads that are answered from memory, many at a time.

use super::*;
use crate::identity::BlockId;

const PAGE: u64 = 4 * KIB;

/// A core that has all of its object in memory, in sub-blocks.
fn warm(object_bytes: u64) -> Bench {
    let mut bench = Bench::new(64 * MIB, object_bytes);
    for at in (0..object_bytes).step_by(64 << 10) {
        bench.read(at, PAGE, 0);
        bench.serve_all();
    }
    bench
}

/// Places that are far from each other.
fn places(count: u64) -> Vec<u64> {
    (0..count).map(|n| (n * 37 % 512) * PAGE).collect()
}

#[test]
fn hits_look_at_the_clock_and_the_index_no_more_often_than_they_need() {
    let mut bench = warm(2 * MIB);
    let places = places(64);
    let outcomes: Vec<Outcome> = places.iter().map(|at| bench.read(*at, PAGE, 0)).collect();
    let (looks, finds) = (bench.clock.1.get(), bench.core.index.finds.get());
    bench.core.turn(Budget::default());
    let (looks, finds) = (
        bench.clock.1.get() - looks,
        bench.core.index.finds.get() - finds,
    );
    for (outcome, at) in outcomes.iter().zip(places) {
        expect_bytes(outcome, at, PAGE);
    }
    // Once for the turn, and once for four hits.
    assert!(looks <= 1 + 64 / 4, "{looks} looks at the clock");
    // Once when a read is taken, once when it is answered.
    assert!(finds <= 2 * 64, "{finds} look-ups");
    let stats = bench.core.stats();
    assert_eq!(stats.memory_hits, 64);
}

#[test]
fn requests_that_were_taken_ahead_are_answered_in_order_whatever_a_turn_may_do() {
    let mut bench = warm(2 * MIB);
    let outcomes: Vec<Outcome> = places(20)
        .iter()
        .map(|at| bench.read(*at, PAGE, 0))
        .collect();
    let one = Budget {
        requests: 1,
        ..Budget::default()
    };
    for (n, at) in places(20).into_iter().enumerate() {
        assert!(n == 0 || !bench.core.is_quiet(), "it has taken some ahead");
        assert!(bench.core.turn(one).progressed);
        expect_bytes(&outcomes[n], at, PAGE);
        assert!(
            outcomes[n + 1..]
                .iter()
                .all(|later| later.lock().is_empty())
        );
    }
    bench.turn();
    assert!(bench.core.is_quiet());
}

#[test]
fn a_wrong_page_among_many_hits_is_found_once_and_fetched_again() {
    let mut bench = warm(2 * MIB);
    let id = BlockId {
        object: bench.object.id,
        index: 0,
    };
    // The first page is the wrong one.
    assert!(bench.core.index.corrupt(id));
    let mut all = vec![5 * PAGE, 0, 40 * PAGE, 0, 99 * PAGE];
    all.extend(places(8));
    let outcomes: Vec<Outcome> = all.iter().map(|at| bench.read(*at, PAGE, 0)).collect();
    bench.turn();
    assert_eq!(
        bench.gets().len(),
        1,
        "the sub-block is fetched again, once"
    );
    bench.serve_all();
    for (outcome, at) in outcomes.iter().zip(all) {
        expect_bytes(outcome, at, PAGE);
    }
    assert_eq!(bench.core.stats().checksum_failures, 1);
}

#[test]
fn what_was_taken_ahead_is_refused_by_a_shutdown_that_came_before_it() {
    let mut bench = warm(2 * MIB);
    let before = bench.read(0, PAGE, 0);
    bench.ring.push(Request::Shutdown).unwrap();
    let after: Vec<Outcome> = places(3)
        .iter()
        .map(|at| bench.read(*at, PAGE, 0))
        .collect();
    bench.turn();
    expect_bytes(&before, 0, PAGE);
    for outcome in after {
        assert_eq!(*outcome.lock(), [Err(ReadError::Shutdown)]);
    }
}
