//! What is evicted makes room, all of it.

use super::*;

/// A third of the device.
const SET: std::ops::Range<u64> = 0..200;

fn fill(bench: &mut Bench, blocks: impl Iterator<Item = u64>) {
    for n in blocks {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
}

fn evict(bench: &mut Bench, blocks: impl Iterator<Item = u64>) {
    for n in blocks {
        bench.disk.forget(block(n));
    }
}

fn missing(bench: &Bench, blocks: impl Iterator<Item = u64>) -> Vec<u64> {
    blocks.filter(|n| !bench.is_whole(*n, 100_000)).collect()
}

fn reclaimed(bench: &Bench) -> u64 {
    bench.disk.stats().devices[0].entries_evicted
}

#[test]
fn evicting_and_filling_for_ever_keeps_all_each_time() {
    // Three quarters of the cache at a time, ten times over.
    let mut bench = Bench::new(2 << 20, 32);
    for round in 0..10 {
        let set = move || (round % 2) * 1_000..(round % 2) * 1_000 + 450;
        fill(&mut bench, set());
        assert_eq!(missing(&bench, set()), [0; 0], "round {round}");
        evict(&mut bench, set());
        bench.settle();
    }
    let stats = &bench.disk.stats().devices[0];
    assert_eq!((stats.entries, stats.entries_evicted), (0, 0));
    assert!(stats.regions_free >= 28, "{stats:?}");
}

#[test]
fn what_stays_between_what_is_evicted_is_kept_and_its_room_used() {
    let mut bench = Bench::new(2 << 20, 32);
    // What stays lies in every region, between what goes.
    let stays = |n: &u64| n.is_multiple_of(4);
    let mut old: Vec<u64> = (0..500).collect();
    fill(&mut bench, old.iter().copied());
    for round in 1..8 {
        evict(&mut bench, old.iter().copied().filter(|n| !stays(n)));
        let new: Vec<u64> = (round * 1_000..round * 1_000 + 300).collect();
        fill(&mut bench, new.iter().copied());
        let kept = (0..500).filter(stays);
        assert_eq!(missing(&bench, kept), [0; 0], "round {round}");
        assert_eq!(
            missing(&bench, new.iter().copied()),
            [0; 0],
            "round {round}"
        );
        assert_eq!(reclaimed(&bench), 0, "round {round}");
        evict(&mut bench, new.into_iter());
        old.clear();
    }
}

#[test]
fn an_emptied_region_is_not_found_by_the_next_run_and_takes_its_room() {
    let mut bench = Bench::new(2 << 20, 32);
    fill(&mut bench, SET);
    evict(&mut bench, SET);
    bench.settle();
    let before = bench.disk.stats().devices[0].clone();
    bench.restart();
    let after = &bench.disk.stats().devices[0];
    // What lay in the open regions is not of emptied ones.
    assert!(after.entries < 45, "{after:?}");
    assert!(after.regions_free >= before.regions_free - 2);
    // They still take room on the device: more than is allowed is given back.
    let taken = bench.media.borrow().written_bytes;
    assert!(taken > 16 << 20);
    bench.disk.logs[0]
        .shared
        .allowed_bytes
        .store(4 << 20, Ordering::Relaxed);
    bench.run_until(|bench| bench.disk.logs[0].regions.occupied() <= 2);
}
