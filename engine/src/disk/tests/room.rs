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
fn half_of_a_nearly_full_cache_evicted_and_filled_again_loses_nothing_else() {
    let mut bench = Bench::new(2 << 20, 32);
    // What goes and what stays lie side by side in every region: none is nearly empty.
    fill(&mut bench, 0..490);
    for round in 1..6 {
        let goes = |n: &u64| *n % 2 == round % 2;
        evict(&mut bench, (0..490).filter(goes));
        fill(&mut bench, (0..490).filter(goes));
        assert_eq!(missing(&bench, 0..490), [0; 0], "round {round}");
        assert_eq!(reclaimed(&bench), 0, "round {round}");
    }
}

/// A cache full of what was read again and again, and lately by nobody.
fn full_of_warm(bench: &mut Bench) {
    for _ in 0..3 {
        let gone = missing(bench, 0..700);
        fill(bench, gone.into_iter());
        let here: Vec<u64> = (0..700).filter(|n| bench.is_whole(*n, 100_000)).collect();
        for n in here {
            let _ = bench.read(block(n), 100_000, 0, 25);
        }
    }
    assert!(missing(bench, 0..700).len() < 200);
}

#[test]
fn what_a_user_names_takes_the_room_of_what_nobody_reads() {
    for set in [1_000..1_060, 1_000..1_250, 1_000..1_440] {
        let mut bench = Bench::new(2 << 20, 32);
        full_of_warm(&mut bench);
        let before = bench.disk.stats().devices[0].clone();
        bench.wanted = true;
        fill(&mut bench, set.clone());
        assert_eq!(missing(&bench, set.clone()), [0; 0], "{set:?}");
        // Nothing is written again and again for it.
        let after = &bench.disk.stats().devices[0];
        let again = after.reinserted_bytes - before.reinserted_bytes;
        let filled = after.filled_bytes - before.filled_bytes;
        assert!(again < filled, "{again} of {filled}");
    }
}

#[test]
fn what_a_user_names_does_not_take_the_room_of_what_is_read_meanwhile() {
    let mut bench = Bench::new(2 << 20, 32);
    full_of_warm(&mut bench);
    let read: Vec<u64> = (0..700)
        .filter(|n| bench.is_whole(*n, 100_000))
        .take(100)
        .collect();
    let mut again = 0;
    bench.wanted = true;
    for n in 1_000..1_300 {
        bench.keep_block(block(n), 100_000);
        if n % 30 == 0 {
            bench.wanted = false;
            for n in &read {
                // It comes back from the origin when it went.
                if !bench.is_whole(*n, 100_000) || bench.read(block(*n), 100_000, 0, 25).is_err() {
                    again += 1;
                    bench.keep_block(block(*n), 100_000);
                }
            }
            bench.wanted = true;
        }
    }
    bench.settle();
    assert_eq!(missing(&bench, 1_000..1_300), [0; 0]);
    let gone = missing(&bench, read.iter().copied());
    // Ten rounds of a hundred reads; what was not read since the first look at its region goes once.
    assert!(gone.len() < 10 && again < 150, "{gone:?}, {again}");
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

/// Serving, and all regions can still be written.
fn is_sound(bench: &Bench) -> bool {
    let stats = &bench.disk.stats().devices[0];
    (&stats.state, stats.regions_lost) == (&DeviceState::Serving, 0)
}

/// What went wrong says nothing of the regions: most of a cache that is evicted is not lost by it.
#[test]
fn regions_whose_headers_are_not_made_void_are_free_all_the_same() {
    for what in ["the flush", "no space"] {
        let mut bench = Bench::new(2 << 20, 32);
        fill(&mut bench, 0..450);
        let mut media = bench.media.borrow_mut();
        match what {
            "the flush" => media.flush_fails_behind = Some((b"FBvacant", 100)),
            _ => media.fails = Some((b"FBvacant", DeviceError::NoSpace)),
        }
        drop(media);
        evict(&mut bench, 0..450);
        bench.settle();
        let stats = &bench.disk.stats().devices[0];
        assert!(stats.write_errors > 3, "{what}: {stats:?}");
        assert!(is_sound(&bench), "{what}: {stats:?}");
        assert!(stats.regions_free >= 28, "{what}: {stats:?}");
        // The log may grow again half a minute after there was no space.
        bench.media.borrow_mut().fails = None;
        bench.now = bench.now + Duration::from_secs(31);
        fill(&mut bench, 1_000..1_450);
        assert_eq!(missing(&bench, 1_000..1_450), [0; 0], "{what}");
        assert_eq!(reclaimed(&bench), 0, "{what}");
        bench.restart();
        assert_eq!(missing(&bench, 1_000..1_450), [0; 0], "{what}");
    }
}

#[test]
fn a_header_that_cannot_be_written_costs_its_region() {
    let mut bench = Bench::new(2 << 20, 32);
    fill(&mut bench, 0..100);
    bench.media.borrow_mut().fails = Some((b"FBvacant", DeviceError::Media));
    evict(&mut bench, 0..100);
    bench.settle();
    let lost = bench.disk.stats().devices[0].regions_lost;
    assert!((3..6).contains(&lost), "{lost}");
}

#[test]
fn a_failed_flush_costs_no_region_and_an_emptied_one_is_free_in_the_end() {
    // Behind a region's header, behind data; and the one that emptied regions wait for.
    for behind in [Some((&b"FBregion"[..], 1)), None] {
        let mut bench = Bench::new(2 << 20, 32);
        bench.media.borrow_mut().flush_fails_behind = behind;
        if behind.is_none() {
            fill(&mut bench, 0..1);
            bench.media.borrow_mut().flush_fails = true;
        }
        fill(&mut bench, 1..3);
        bench.run_until(|bench| bench.disk.stats().devices[0].write_errors > 0);
        fill(&mut bench, 3..200);
        assert!(is_sound(&bench), "{:?}", bench.disk.stats());
        assert_eq!(missing(&bench, 3..200), [0; 0]);
        evict(&mut bench, 0..200);
        bench.media.borrow_mut().flush_fails = true;
        bench.settle();
        let stats = &bench.disk.stats().devices[0];
        assert!(!bench.media.borrow().flush_fails);
        assert!(is_sound(&bench), "{stats:?}");
        assert!(stats.regions_free >= 28, "{stats:?}");
    }
}
