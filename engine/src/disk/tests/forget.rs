//! Blocks that are forgotten before they are on disk.

use super::*;

#[test]
fn what_is_forgotten_on_its_way_to_disk_is_not_found_when_it_has_got_there() {
    // Staged; handed to the device; and kept once more.
    for turns in [0, 1] {
        let mut bench = Bench::new(2 << 20, 32);
        bench.keep_block(block(0), 4096);
        bench.media.borrow_mut().holds_writes = turns > 0;
        assert!(bench.keep(block(1), 0, 8192) && bench.keep(block(2), 0, 8192));
        for _ in 0..turns {
            bench.run_until(|bench| !bench.media.borrow().hung.is_empty());
        }
        bench.disk.forget(block(1));
        bench.let_go();
        bench.settle();
        assert_eq!(bench.settled, 5, "their bytes in memory are let go");
        assert!(bench.disk.extent(block(1), 0).is_none(), "{turns}");
        assert!(bench.disk.extent(block(2), 0).is_some());
        assert!(bench.keep(block(1), 0, 4096));
        bench.settle();
        assert_eq!(bench.disk.extent(block(1), 0), Some(0..1));
    }
}

#[test]
fn what_is_forgotten_while_it_is_moved_is_not_brought_back() {
    let mut bench = Bench::new(2 << 20, 32);
    bench.keep_block(block(0), 100_000);
    bench.settle();
    bench.disk.pin(block(0), true).unwrap();
    let mut page = vec![0; PAGE_BYTES];
    fill_page(block(0), 0, &mut page);
    // The move reaches the device, which holds it, and fails it when all is forgotten.
    bench.media.borrow_mut().holds = Some(page.clone());
    let mut n = 1;
    while bench.media.borrow().hung.is_empty() {
        bench.keep_block(block(n), 300_000);
        n += 1;
        assert!(n < 5_000, "reclaim never moved the pinned entry");
    }
    bench.disk.forget(block(0));
    bench.media.borrow_mut().no_space_for = Some(page);
    bench.let_go();
    bench.settle();
    assert!(bench.media.borrow().no_space_for.is_none(), "it failed");
    assert!(bench.disk.extent(block(0), 0).is_none());
}

#[test]
fn what_is_forgotten_during_recovery_is_not_found_by_it() {
    let mut bench = Bench::new(2 << 20, 32);
    bench.keep_block(block(1), 4096);
    bench.keep_block(block(2), 4096);
    bench.settle();
    bench.incarnation += 1;
    bench.disk = Bench::disk(&bench.media, bench.geometry, bench.incarnation, 1);
    bench.turn();
    assert!(bench.disk.is_recovering());
    bench.disk.forget(block(1));
    bench.run_until(|bench| !bench.disk.is_recovering());
    assert!(bench.disk.extent(block(1), 0).is_none());
    assert!(bench.disk.extent(block(2), 0).is_some());
}
