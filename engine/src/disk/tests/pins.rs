//! What is pinned, under pressure and over restarts.

use super::*;

fn whole(bench: &Bench, blocks: std::ops::Range<u64>) -> usize {
    blocks.filter(|n| bench.is_whole(*n, 100_000)).count()
}

/// Five times the cache's size of other blocks.
fn churn(bench: &mut Bench, from: u64) {
    for n in from..from + 3_200 {
        bench.keep_block(block(n), 100_000);
    }
}

fn pins_last(bench: &mut Bench) {
    bench.run_until(|bench| bench.disk.pins_last());
}

#[test]
fn pins_outlive_pressure_and_restarts_and_so_does_their_end() {
    let mut bench = Bench::new(2 << 20, 32);
    // Over several regions, the last of them open.
    for n in 0..130 {
        bench.keep_block(block(n), 100_000);
    }
    for n in (0..130).step_by(13) {
        bench.disk.pin(block(n), true).unwrap();
    }
    let pinned = |bench: &Bench| bench.disk.stats().devices[0].entries_pinned;
    let there = |bench: &Bench| (0..130).step_by(13).all(|n| bench.is_whole(n, 100_000));
    assert_eq!(pinned(&bench), 10);
    pins_last(&mut bench);
    for round in 1..=3 {
        bench.restart();
        assert_eq!(pinned(&bench), 10, "round {round}");
        churn(&mut bench, round * 10_000);
        assert!(there(&bench), "round {round}");
    }
    assert_eq!(bench.disk.stats().devices[0].pinned_bytes, 10 * 25 * 4096);
    for n in (0..130).step_by(13) {
        bench.read(block(n), 100_000, 0, 25).unwrap();
        bench.disk.pin(block(n), false).unwrap();
    }
    pins_last(&mut bench);
    assert!(there(&bench));
    bench.restart();
    assert_eq!(pinned(&bench), 0);
    assert!(there(&bench));
}

#[test]
fn what_comes_later_of_a_pinned_block_is_pinned_too() {
    let mut bench = Bench::new(2 << 20, 32);
    assert!(bench.keep(block(1), 0, 64 << 10));
    bench.settle();
    bench.disk.pin(block(1), true).unwrap();
    assert!(bench.keep(block(1), 16, 100_000));
    bench.settle();
    pins_last(&mut bench);
    bench.restart();
    churn(&mut bench, 100);
    assert_eq!(bench.disk.extent(block(1), 0), Some(0..16));
    assert_eq!(bench.disk.extent(block(1), 16), Some(16..41));
}

#[test]
fn half_of_the_cache_can_be_pinned_and_the_rest_works_on() {
    let mut bench = Bench::new(2 << 20, 32);
    for n in 0..400 {
        bench.keep_block(block(n), 100_000);
    }
    bench.run_until(|bench| bench.is_whole(399, 100_000));
    let refused = (0..400).find_map(|n| Some((n, bench.disk.pin(block(n), true).err()?)));
    let (n, refused) = refused.unwrap();
    assert_eq!(refused.pinned_bytes_max, 32 << 20);
    assert!(refused.pinned_bytes > 31 << 20);
    assert_eq!(
        refused.to_string(),
        "31 MiB are pinned on this core's share of the cache, and it takes no more than 32 MiB in pins: unpin \
         something, or give more --cache-size"
    );
    assert_eq!(bench.disk.stats().devices[0].entries_pinned, n);
    churn(&mut bench, 10_000);
    assert_eq!(whole(&bench, 0..n), n as usize);
    let others = whole(&bench, 12_800..13_200);
    assert!(others > 40, "{others}: {:?}", bench.disk.stats());
    bench.settle();
    pins_last(&mut bench);
    bench.restart();
    assert_eq!(whole(&bench, 0..n), n as usize);
    // An index for fewer than are pinned and lie there by far keeps the pinned ones.
    bench.restart_with(n as usize + 20);
    assert_eq!(whole(&bench, 0..n), n as usize);
    bench.disk.pin(block(0), false).unwrap();
    bench.disk.pin(block(1), false).unwrap();
    bench.restart_with(1_000);
    bench.disk.pin(block(2), true).unwrap();
}
