//! Devices that answer no more.

use super::*;

#[test]
fn a_device_whose_writes_hang_is_retired() {
    let mut bench = Bench::new(2 << 20, 32);
    bench.media.borrow_mut().hangs = true;
    assert!(bench.keep(block(1), 0, 4096));
    bench.run_until(|bench| matches!(bench.disk.stats().devices[0].state, DeviceState::Retired(_)));
    assert_eq!(bench.settled, 1, "its bytes in memory are let go");
}

/// Nobody reads or writes: whoever asks for its state is told all the same.
#[test]
fn a_device_lost_at_rest_is_retired_with_the_next_turn() {
    let mut bench = Bench::new(2 << 20, 32);
    bench.keep_block(block(1), 100_000);
    bench.settle();
    bench.media.borrow_mut().loss = Some("pulled out".into());
    let (read, written) = {
        let media = bench.media.borrow();
        (media.read_bytes, media.written_bytes)
    };
    bench.turn();
    let DeviceState::Retired(why) = &bench.disk.stats().devices[0].state else {
        panic!("{:?}", bench.disk.stats());
    };
    assert!(why.contains("pulled out"), "{why}");
    assert!(bench.disk.extent(block(1), 0).is_none());
    let media = bench.media.borrow();
    assert_eq!((media.read_bytes, media.written_bytes), (read, written));
}

/// At each of recovery's reads in turn: of headers, of trailers, of tables.
#[test]
fn a_device_that_hangs_while_it_is_recovered_is_retired() {
    let mut seen = 0;
    for reads in 0.. {
        let mut bench = Bench::new(1 << 20, 32);
        for n in 0..40 {
            bench.keep_block(block(n), 100_000);
        }
        bench.settle();
        bench.incarnation += 1;
        bench.disk = Bench::disk(&bench.media, bench.geometry, bench.incarnation, 1);
        bench.media.borrow_mut().reads_left = Some(reads * 8);
        let start = bench.now;
        bench.run_until(|bench| !bench.disk.is_recovering());
        if bench.media.borrow().hung.is_empty() {
            break;
        }
        seen += 1;
        let took = bench.now.since(start);
        assert!(
            took >= Duration::from_secs(60) && took < Duration::from_secs(61),
            "{took:?}"
        );
        let DeviceState::Retired(why) = &bench.disk.stats().devices[0].state else {
            panic!("{:?}", bench.disk.stats());
        };
        assert!(why.contains("no read has ended for 60 s"), "{why}");
        assert!(!bench.keep(block(1), 0, 4096), "nothing is kept on it");
        assert!(bench.disk.is_quiet());
        // What comes in the end finds nobody, and its buffers go home.
        bench.media.borrow_mut().reads_left = None;
        bench.let_go();
        for _ in 0..100 {
            bench.turn();
        }
        assert!((0..40).all(|n| bench.disk.extent(block(n), 0).is_none()));
        bench.buffers.0.reclaim();
        assert_eq!(
            bench.buffers.0.free_bytes(),
            bench.buffers.0.capacity_bytes()
        );
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn a_core_whose_reads_hang_keeps_the_others_no_longer_than_its_own_bound() {
    let mut bench = Bench::new(1 << 20, 32);
    (0..40).for_each(|n| bench.keep_block(block(n), 100_000));
    bench.settle();
    // Two cores now, and the queue pair of the second one hangs.
    let shared = Arc::new(DeviceShared::new("mem".into(), bench.geometry, LogId(7)));
    let of_core = |core| Bench::disk_of_core(&bench.media, shared.clone(), 2, (core, 2));
    let (mut first, mut second) = (of_core(0), of_core(1));
    let mut buffers = ArenaBuffers(Arena::new(8 << 20).unwrap());
    let start = bench.now;
    while first.is_recovering() {
        bench.media.borrow_mut().reads_left = Some(0);
        second.turn(bench.now, &mut buffers);
        bench.media.borrow_mut().reads_left = None;
        first.turn(bench.now, &mut bench.buffers);
        bench.now = bench.now + Duration::from_millis(1);
        assert!(bench.now.since(start) < Duration::from_secs(61));
    }
    assert!(matches!(
        second.stats().devices[0].state,
        DeviceState::Retired(_)
    ));
    assert_eq!(first.stats().devices[0].state, DeviceState::Serving);
    assert!(first.stats().devices[0].entries > 0);
}

/// At its read of a footer, and at its reads of what it keeps.
#[test]
fn a_device_that_hangs_while_room_is_made_is_retired() {
    for footers in [0, 1] {
        let mut bench = Bench::new(1 << 20, 32);
        let mut n = 0;
        while bench.disk.stats().devices[0].regions_reclaimed == 0 {
            bench.keep_block(block(n), 100_000);
            // What is read again is kept, as long as it is there.
            let _ = bench.read(block(n), 100_000, 0, 1);
            n += 1;
            assert!(n < 1_000, "nothing is reclaimed");
        }
        bench.settle();
        bench.media.borrow_mut().reads_left = Some(footers);
        let mut hung_at = None;
        for _ in 0..400_000 {
            if matches!(bench.disk.stats().devices[0].state, DeviceState::Retired(_)) {
                break;
            }
            n += u64::from(bench.keep(block(n), 0, SUB_BLOCK_BYTES));
            bench.turn();
            bench.take_settled();
            if !bench.media.borrow().hung.is_empty() {
                hung_at.get_or_insert(bench.now);
            }
        }
        let DeviceState::Retired(why) = &bench.disk.stats().devices[0].state else {
            panic!("never retired: {:?}", bench.disk.stats());
        };
        assert!(why.contains("no read has ended for 60 s"), "{why}");
        let took = bench.now.since(hung_at.unwrap());
        assert!(
            took >= Duration::from_secs(59) && took < Duration::from_secs(61),
            "{took:?}"
        );
        assert!(bench.disk.is_quiet());
        bench.media.borrow_mut().reads_left = None;
        bench.let_go();
        for _ in 0..100 {
            bench.turn();
            bench.take_settled();
        }
        drop(bench.disk);
        bench.buffers.0.reclaim();
        assert_eq!(
            bench.buffers.0.free_bytes(),
            bench.buffers.0.capacity_bytes()
        );
    }
}

#[test]
fn a_device_whose_flushes_fail_is_read_and_not_written() {
    let mut bench = Bench::new(1 << 20, 32);
    for n in 0..40 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    let mut n = 1_000;
    while bench.disk.stats().devices[0].state == DeviceState::Serving {
        bench.media.borrow_mut().flush_fails = true;
        n += u64::from(bench.keep(block(n), 0, SUB_BLOCK_BYTES));
        bench.turn();
        bench.take_settled();
        assert!(n < 20_000, "{:?}", bench.disk.stats());
    }
    let state = &bench.disk.stats().devices[0].state;
    assert!(matches!(state, DeviceState::ReadOnly(_)), "{state:?}");
    bench.media.borrow_mut().flush_fails = false;
    let whole = (0..40).filter(|n| bench.is_whole(*n, 100_000)).count();
    assert!(whole >= 36, "{whole} of 40 are left");
}
