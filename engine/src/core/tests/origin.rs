//! The core and its origin: what is asked for, tried again, shared, given up.

use super::*;

#[test]
fn a_random_read_fetches_the_sub_block_it_touches_and_no_more() {
    let mut bench = Bench::new(32 * MIB, 64 * MIB);
    let outcome = bench.read(5 * MIB + 100, 4 * KIB, 0);
    bench.turn();
    assert_eq!(bench.gets(), [(5 * MIB, 64 * KIB)]);
    bench.serve();
    expect_bytes(&outcome, 5 * MIB + 100, 4 * KIB);
    let again = bench.read(5 * MIB, 64 * KIB, 0);
    bench.turn();
    expect_bytes(&again, 5 * MIB, 64 * KIB);
    assert_eq!(bench.core.stats().memory_hits, 1);
    assert_eq!(bench.core.stats().ledger.bytes(Reason::Cold), 64 * KIB);
}

#[test]
fn a_sequential_reader_gets_long_gets_and_one_slice() {
    let mut bench = Bench::new(256 * MIB, 64 * MIB);
    let outcome = bench.read(0, MIB, 16 * MIB);
    bench.turn();
    assert_eq!(bench.gets(), [(0, 8 * MIB), (8 * MIB, 8 * MIB)]);
    bench.serve_all();
    expect_bytes(&outcome, 0, MIB);
    assert_eq!(bench.core.stats().ledger.bytes(Reason::Cold), MIB);
    assert_eq!(bench.core.stats().ledger.bytes(Reason::Prefetch), 15 * MIB);
}

#[test]
fn overlapping_reads_share_one_fetch_that_outlives_the_first() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let first = bench.read(0, 128 * KIB, 0);
    bench.turn();
    bench.pass(TIMEOUT / 2);
    let second = bench.read(64 * KIB, 128 * KIB, 0);
    bench.turn();
    assert_eq!(
        bench.gets(),
        [(0, 128 * KIB), (128 * KIB, 64 * KIB)],
        "only the new part is asked for"
    );
    bench.pass(TIMEOUT / 2);
    assert_eq!(*first.lock(), [Err(ReadError::Deadline)]);
    assert!(second.lock().is_empty());
    bench.serve_all();
    expect_bytes(&second, 64 * KIB, 128 * KIB);
    assert_eq!(bench.core.stats().ledger.total_bytes(), 192 * KIB);
}

#[test]
fn a_failed_attempt_is_tried_again_from_where_it_broke() {
    let mut bench = Bench::new(256 * MIB, 64 * MIB);
    let outcome = bench.read(0, MIB, 4 * MIB);
    bench.turn();
    let mut get = bench.next_get();
    let tag = get.tag;
    let lease = get.leases.remove(0);
    bench.push(OriginEvent::Filled {
        tag,
        lease: filled(lease, 0),
    });
    let result = Err(OriginError::new(OriginErrorKind::ShortBody, "scripted"));
    bench.push(OriginEvent::GetDone {
        tag,
        result,
        unfilled: get.leases,
        wasted_bytes: 1000,
    });
    bench.turn();
    expect_bytes(&outcome, 0, MIB);
    bench.pass(Duration::from_secs(3));
    assert_eq!(bench.gets(), [(MIB, 3 * MIB)]);
    bench.serve();
    let stats = bench.core.stats();
    assert_eq!(stats.ledger.bytes(Reason::Retry), 1000);
    assert_eq!(stats.ledger.total_bytes(), 4 * MIB + 1000);
    assert_eq!(bench.core.arena().in_flight_bytes(), 0);
}

#[test]
fn what_no_retry_can_mend_fails_at_once_and_is_asked_again_by_the_next_reader() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    for (kind, expected) in [
        (OriginErrorKind::VersionChanged, ReadError::VersionChanged),
        (
            OriginErrorKind::Denied,
            ReadError::Origin(OriginError::new(OriginErrorKind::Denied, "scripted")),
        ),
    ] {
        let outcome = bench.read(0, KIB, 0);
        bench.turn();
        bench.fail(kind, 10);
        assert_eq!(*outcome.lock(), [Err(expected)]);
    }
    assert_eq!(bench.core.stats().ledger.bytes(Reason::VersionChanged), 10);
    assert_eq!(bench.core.index.len(), 0, "nothing is left of what failed");
    let outcome = bench.read(0, KIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, 0, KIB);
}

#[test]
fn a_read_across_blocks_fails_once_when_its_fill_fails() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let across = bench.read(4 * MIB - KIB, 2 * KIB, 0);
    bench.turn();
    bench.fail(OriginErrorKind::VersionChanged, 0);
    assert_eq!(*across.lock(), [Err(ReadError::VersionChanged)]);
    assert_eq!(bench.core.index.len(), 0);
}

#[test]
fn a_silent_origin_is_cancelled_and_the_read_ends_by_its_deadline() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let outcome = bench.read(0, KIB, 0);
    bench.turn();
    bench.pass(TIMEOUT / 3);
    assert_eq!(
        bench.origin.0.borrow().cancelled.len(),
        1,
        "no progress: give the attempt up"
    );
    bench.pass(TIMEOUT / 3);
    assert!(outcome.lock().is_empty());
    bench.pass(TIMEOUT);
    assert_eq!(*outcome.lock(), [Err(ReadError::Deadline)]);
}

#[test]
fn heads_are_shared_and_each_asker_keeps_its_deadline() {
    let mut bench = Bench::new(16 * MIB, MIB);
    let answers = Arc::new(Mutex::new(Vec::new()));
    let ask = |bench: &Bench| {
        let answers = answers.clone();
        let request = crate::client::HeadRequest {
            bucket: bench.object.bucket.clone(),
            key: "key".into(),
            accept: TIMEOUT.into(),
            deadline: bench.clock.now() + TIMEOUT,
            reply: Box::new(move |told| {
                answers.lock().push(told.result.map_err(|error| error.kind))
            }),
        };
        bench.ring.push(Request::Head(request)).unwrap();
    };
    ask(&bench);
    bench.turn();
    bench.pass(TIMEOUT / 6);
    ask(&bench);
    bench.turn();
    assert_eq!(bench.origin.0.borrow().ops.len(), 1);
    bench.pass(TIMEOUT / 6 * 5);
    assert_eq!(*answers.lock(), [Err(OriginErrorKind::Timeout)]);
    let Some(OriginOp::Head(head)) = bench.origin.0.borrow_mut().ops.pop_front() else {
        panic!("a HEAD")
    };
    let meta = ObjectMeta {
        key: "key".into(),
        size_bytes: MIB,
        validator: bench.object.validator.clone(),
        modified_ns: 0,
    };
    bench.push(OriginEvent::Head {
        tag: head.tag,
        result: Ok(meta.clone()),
    });
    bench.turn();
    assert_eq!(*answers.lock(), [Err(OriginErrorKind::Timeout), Ok(meta)]);
    assert!(bench.core.is_quiet());
}

#[test]
fn askers_whose_deadlines_are_out_of_order_are_each_answered_in_time() {
    let mut bench = Bench::new(16 * MIB, MIB);
    let answers = Arc::new(Mutex::new(Vec::new()));
    for later in [Duration::from_millis(1), Duration::ZERO] {
        let answers = answers.clone();
        let request = crate::client::HeadRequest {
            bucket: bench.object.bucket.clone(),
            key: "key".into(),
            accept: TIMEOUT.into(),
            deadline: bench.clock.now() + TIMEOUT + later,
            reply: Box::new(move |_| answers.lock().push(later)),
        };
        bench.ring.push(Request::Head(request)).unwrap();
    }
    bench.turn();
    bench.pass(TIMEOUT);
    assert_eq!(*answers.lock(), [Duration::ZERO]);
    bench.pass(Duration::from_millis(1));
    assert_eq!(answers.lock().len(), 2);
}

#[test]
fn a_slow_get_that_makes_progress_is_not_given_up() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let outcome = bench.read(0, MIB, 0);
    bench.turn();
    let get = bench.next_get();
    for _ in 0..5 {
        bench.pass(TIMEOUT / 6);
        bench.push(OriginEvent::Progress { tag: get.tag });
        bench.turn();
    }
    assert!(bench.origin.0.borrow().cancelled.is_empty());
    let tag = get.tag;
    for lease in get.leases {
        bench.push(OriginEvent::Filled {
            tag,
            lease: filled(lease, 0),
        });
    }
    bench.push(OriginEvent::GetDone {
        tag,
        result: Ok(()),
        unfilled: Vec::new(),
        wasted_bytes: 0,
    });
    bench.turn();
    expect_bytes(&outcome, 0, MIB);
}

#[test]
fn bytes_beyond_the_demand_stand_behind_another_readers_miss() {
    let mut bench = Bench::new(1024 * MIB, 1024 * MIB);
    // Each reader's window makes two GETs; there are as many readers as GETs may run.
    for n in 0..64 {
        bench.read(n * 16 * MIB, 64 * KIB, 16 * MIB);
    }
    bench.turn();
    let gets = bench.gets();
    assert!(
        (0..64).all(|n| gets.contains(&(n * 16 * MIB, 8 * MIB))),
        "{gets:?}"
    );
    // A reader that needs what was only wanted makes it urgent.
    let outcome = bench.read(15 * MIB, 4 * KIB, 0);
    bench.serve();
    assert!(bench.gets().contains(&(8 * MIB, 8 * MIB)));
    bench.serve_all();
    expect_bytes(&outcome, 15 * MIB, 4 * KIB);
}

#[test]
fn bytes_that_came_for_nothing_are_booked_even_when_the_get_succeeded() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    bench.read(0, 64 * KIB, 0);
    bench.turn();
    let get = bench.next_get();
    let tag = get.tag;
    for lease in get.leases {
        bench.push(OriginEvent::Filled {
            tag,
            lease: filled(lease, 0),
        });
    }
    let error = OriginError::new(
        OriginErrorKind::BadAnswer,
        "the body is longer than the range",
    );
    bench.push(OriginEvent::GetDone {
        tag,
        result: Err(error),
        unfilled: Vec::new(),
        wasted_bytes: 77,
    });
    bench.turn();
    assert_eq!(bench.core.stats().ledger.total_bytes(), 64 * KIB + 77);
}

#[test]
fn failures_are_counted_and_a_stall_says_so() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let outcome = bench.read(0, KIB, 0);
    bench.turn();
    bench.fail(OriginErrorKind::Denied, 0);
    assert!(outcome.lock()[0].is_err());
    assert_eq!(bench.core.stats().origin_errors, 1);
    let outcome = bench.read(0, KIB, 0);
    bench.turn();
    for _ in 0..3 {
        bench.pass(TIMEOUT / 3);
        // Once it is known to be silent it is probed with HEADs.
        let is_get = matches!(bench.origin.0.borrow().ops.front(), Some(OriginOp::Get(_)));
        if is_get {
            bench.fail(OriginErrorKind::Cancelled, 0);
        }
    }
    assert!(outcome.lock()[0].is_err());
    assert!(
        bench.core.stats().origin_errors >= 2,
        "a stall counts as a timeout"
    );
}

#[test]
fn a_read_across_stripes_is_planned_stripe_by_stripe() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let outcome = bench.read(16 * MIB - 100 * KIB, 200 * KIB, 0);
    bench.turn();
    assert_eq!(
        bench.gets(),
        [(16 * MIB - 128 * KIB, 128 * KIB), (16 * MIB, 128 * KIB)]
    );
    bench.serve_all();
    expect_bytes(&outcome, 16 * MIB - 100 * KIB, 200 * KIB);
}
