//! Regions that were written under another number of cores.

use super::layout::{Queue, RegionHeader, VoidHeader};
use super::reclaim::FREE_MIN;
use super::*;

/// A core has an eighth of each of them: that they are nearly empty is not said by that.
#[test]
fn after_more_cores_a_region_goes_by_its_age_and_not_by_what_its_owner_has_in_it() {
    let mut bench = Bench::new(1 << 20, 96);
    for n in 0..800 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    bench.disk = bench.next_cores(8).swap_remove(0);
    let log = &bench.disk.logs[0];
    let pages = u64::from(bench.geometry.region_pages());
    let members: Vec<u32> = log.regions.queue_members().collect();
    let live = |region: &u32| u64::from(bench.disk.tier.heat(0, *region).live_pages);
    assert!(members.len() > 8);
    let all: Vec<u64> = members.iter().map(live).collect();
    // The oldest is not the emptiest.
    assert!(
        all.iter().any(|live| *live > 0 && *live * 4 < pages),
        "{all:?} {pages}"
    );
    let oldest = [Queue::Small, Queue::Main].map(|queue| log.regions.oldest(queue));
    let mut n = 10_000;
    while bench.disk.logs[0].reclaim.is_none() {
        n += u64::from(bench.keep(block(n), 0, SUB_BLOCK_BYTES));
        bench.turn();
        bench.take_settled();
        assert!(n < 12_000, "nothing is reclaimed: {:?}", bench.disk.stats());
    }
    let reclaim = bench.disk.logs[0].reclaim.as_ref().unwrap();
    assert!(!reclaim.keeps_all && oldest.contains(&Some(reclaim.region)));
}

/// More cores want more free regions than were free.
#[test]
fn after_more_cores_nothing_goes_before_something_is_written() {
    let mut bench = Bench::new(1 << 20, 64);
    for n in 0..540 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    let before = bench.disk.stats().devices[0].entries_evicted;
    assert_eq!(before, 0, "all of it fits");
    let mut cores = bench.next_cores(8);
    let free: Vec<usize> = cores
        .iter()
        .map(|disk| disk.logs[0].regions.usable(true))
        .collect();
    let full = free.iter().position(|free| *free < FREE_MIN);
    let full = full.unwrap_or_else(|| panic!("each core has room: {free:?}"));
    bench.disk = cores.swap_remove(full);
    for _ in 0..1_000 {
        bench.turn();
    }
    assert_eq!(
        bench.disk.stats().devices[0].entries_evicted,
        0,
        "nobody wrote"
    );
    assert!(bench.disk.logs[0].reclaim.is_none());
    let mut n = 10_000;
    while bench.disk.stats().devices[0].entries_evicted == 0 {
        n += u64::from(bench.keep(block(n), 0, SUB_BLOCK_BYTES));
        bench.turn();
        bench.take_settled();
        assert!(n < 12_000, "nothing is reclaimed: {:?}", bench.disk.stats());
    }
}

#[test]
fn regions_that_other_cores_never_wrote_to_are_void_when_they_are_emptied() {
    let mut bench = Bench::new(2 << 20, 32);
    let at = |bench: &Bench, region: u32| bench.geometry.offset_bytes(region) as usize;
    for region in 0..6 {
        let header = RegionHeader {
            region,
            generation: 1,
            sequence: 1 << 32 | u64::from(region),
            queue: Queue::Small,
            core: 0,
            cores: 2,
            tenant: 0,
        };
        let at = at(&bench, region);
        let mut media = bench.media.borrow_mut();
        header.encode(LogId(7), &mut media.bytes[at..at + PAGE_BYTES]);
    }
    bench.restart();
    for n in 0..100 {
        bench.keep_block(block(n), 100_000);
    }
    for n in 0..100 {
        bench.disk.forget(block(n));
    }
    bench.settle();
    let media = bench.media.borrow();
    let page = |region| &media.bytes[at(&bench, region)..at(&bench, region) + PAGE_BYTES];
    let void = (0..6).filter(|region| VoidHeader::decode(LogId(7), page(*region)).is_some());
    assert!(void.count() >= 3, "all but the open ones");
}
