//! What is pinned, under pressure and over restarts.

use super::layout::{Queue, VoidHeader};
use super::*;

/// Keeps a block in a queue, whatever the policy says.
fn keep_in(bench: &mut Bench, n: u64, queue: Queue, len_bytes: usize) {
    bench.disk.logs[0].last_queue = Some((block(n), queue));
    bench.keep_block(block(n), len_bytes);
}

fn region_of(bench: &Bench, n: u64) -> u32 {
    let mut extents = bench.disk.tier.index.extents(block(n));
    extents.next().unwrap().place.region()
}

fn pinned(bench: &Bench) -> u64 {
    bench.disk.stats().devices[0].entries_pinned
}

/// The oldest region begins to give way, as if the index were full.
fn reclaim_one(bench: &mut Bench) -> u32 {
    let entries_max = bench.disk.tier.config.entries_max;
    bench.disk.tier.config.entries_max = bench.disk.tier.index.len();
    bench.run_until(|bench| bench.disk.logs[0].reclaim.is_some());
    bench.disk.tier.config.entries_max = entries_max;
    let reclaim = bench.disk.logs[0].reclaim.as_ref().unwrap();
    assert!(!reclaim.for_pins);
    reclaim.region
}

/// An open main region that is older than the small one which holds block 1, sealed.
fn older_main_region() -> (Bench, u32, u32) {
    let mut bench = Bench::new(2 << 20, 32);
    keep_in(&mut bench, 0, Queue::Main, 100_000);
    for n in 1..50 {
        keep_in(&mut bench, n, Queue::Small, 100_000);
    }
    bench.run_until(|bench| bench.is_whole(49, 100_000));
    let (main, small) = (region_of(&bench, 0), region_of(&bench, 1));
    let sequence = |region| bench.disk.logs[0].regions.get(region).unwrap().sequence;
    assert!(sequence(main) < sequence(small));
    (bench, main, small)
}

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

#[test]
fn what_reclaim_moves_into_an_older_region_is_found_pinned() {
    let (mut bench, main, small) = older_main_region();
    bench.disk.pin(block(1), true).unwrap();
    assert_eq!(reclaim_one(&mut bench), small);
    assert!(!bench.disk.pins_last());
    pins_last(&mut bench);
    assert_eq!(region_of(&bench, 1), main);
    bench.restart();
    assert_eq!(pinned(&bench), 1);
    assert!(bench.is_whole(1, 100_000));
}

#[test]
fn a_pin_lasts_though_the_reclaim_of_its_region_fails() {
    let (mut bench, _, small) = older_main_region();
    bench.disk.pin(block(1), true).unwrap();
    let mut page = vec![0; PAGE_BYTES];
    fill_page(block(1), 0, &mut page);
    bench.media.borrow_mut().no_space_for = Some(page);
    assert_eq!(reclaim_one(&mut bench), small);
    bench.run_until(|bench| bench.disk.logs[0].reclaim.is_none());
    assert!(bench.media.borrow().no_space_for.is_none(), "it failed");
    pins_last(&mut bench);
    bench.restart();
    assert_eq!(pinned(&bench), 1);
}

/// As long as the old header is there, so is the old mark.
#[test]
fn a_pin_lasts_only_when_the_region_that_it_left_is_void() {
    let (mut bench, _, small) = older_main_region();
    bench.disk.pin(block(1), true).unwrap();
    bench.media.borrow_mut().fails = Some((b"FBvacant", DeviceError::Range));
    assert_eq!(reclaim_one(&mut bench), small);
    bench.run_until(|bench| bench.disk.stats().devices[0].write_errors > 0);
    assert!(!bench.disk.pins_last());
    bench.media.borrow_mut().fails = None;
    pins_last(&mut bench);
    let at = bench.geometry.offset_bytes(small) as usize;
    let page = bench.media.borrow().bytes[at..at + PAGE_BYTES].to_vec();
    assert!(VoidHeader::decode(LogId(7), &page).is_some());
    bench.restart();
    assert_eq!(pinned(&bench), 1);
}

/// Of two parts neither covers the entry that said so.
#[test]
fn what_is_released_and_moved_in_parts_is_not_found_pinned() {
    let mut bench = Bench::new(2 << 20, 32);
    for n in 0..39 {
        keep_in(&mut bench, n, Queue::Small, 150_000);
        if n % 13 == 4 {
            bench.run_until(|bench| bench.is_whole(n, 150_000));
            for n in n - 4..=n {
                bench.disk.pin(block(n), true).unwrap();
            }
        }
    }
    pins_last(&mut bench);
    bench.restart();
    assert!(pinned(&bench) >= 15);
    for n in 0..39 {
        bench.disk.pin(block(n), false).unwrap();
    }
    pins_last(&mut bench);
    bench.restart();
    assert_eq!(pinned(&bench), 0);
    assert!((0..39).all(|n| bench.is_whole(n, 150_000)));
}

#[test]
fn pins_that_cannot_be_written_are_told() {
    let mut bench = Bench::new(2 << 20, 32);
    for n in 0..60 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    bench.disk.pin(block(1), true).unwrap();
    assert!(!bench.disk.pins_last() && !bench.disk.pins_cannot_last());
    bench.media.borrow_mut().write_error = Some(DeviceError::ReadOnly);
    bench.keep_block(block(99), 4096);
    bench.run_until(|bench| {
        matches!(
            bench.disk.stats().devices[0].state,
            DeviceState::ReadOnly(_)
        )
    });
    assert!(!bench.disk.pins_last() && bench.disk.pins_cannot_last());
    bench.media.borrow_mut().write_error = None;
    // Of two cores the first owns every other region.
    let first = bench.next_cores(2).swap_remove(0);
    bench.disk = first;
    assert!(bench.disk.pins_last());
    let there: Vec<u64> = (0..60).filter(|n| bench.is_whole(*n, 100_000)).collect();
    let other = |n: &&u64| region_of(&bench, **n) % 2 == 1;
    let foreign = *there.iter().find(other).unwrap();
    bench.disk.pin(block(foreign), true).unwrap();
    assert!(!bench.disk.pins_last() && bench.disk.pins_cannot_last());
}

/// Other cores may have entries in it, so that it is not made void for nothing; but for a pin it is.
#[test]
fn what_is_pinned_in_a_region_of_another_number_of_cores_is_found_pinned() {
    let (mut bench, main, small) = older_main_region();
    let entry = bench.disk.logs[0].regions.get_mut(small);
    entry.unwrap().rehomed = true;
    bench.disk.pin(block(1), true).unwrap();
    assert_eq!(reclaim_one(&mut bench), small);
    pins_last(&mut bench);
    assert_eq!(region_of(&bench, 1), main);
    bench.restart();
    assert_eq!(pinned(&bench), 1);
}
