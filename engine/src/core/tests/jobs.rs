//! Warming, checking and dropping ranges.

use super::disk::{ARENA, OBJECT, media};
use super::group::{OTHERS, everyone};
use super::*;
use crate::client::{RangeRequest, RangeWork};
use crate::limits::{BATCH_DELAY_MS, DISK_WRITE_SHARE, PAGE_BYTES, STRIPE_BYTES, WARM_ARENA_SHARE};
use crate::wire::call::{Call, CallAnswer};

type Told = Arc<Mutex<Vec<Result<u64, ReadError>>>>;

const STRIPE: u64 = STRIPE_BYTES as u64;

impl Bench {
    fn range(&mut self, work: RangeWork, offset: u64, len: u64) -> Told {
        let told = Told::default();
        let heard = told.clone();
        let request = RangeRequest {
            work,
            object: self.object.clone(),
            offset,
            len_bytes: len as u32,
            deadline: self.clock.now() + TIMEOUT,
            reply: Box::new(move |result| heard.lock().push(result)),
        };
        self.ring.push(Request::Range(request)).unwrap();
        self.turn();
        told
    }

    /// Serves the origin, or lets time pass when it is asked for nothing.
    fn go_on(&mut self, step: Duration) {
        let idle = self.origin.0.borrow().ops.is_empty();
        match idle {
            true => self.pass(step),
            false => self.serve(),
        }
    }

    /// Serves the origin and lets time pass until the job is done.
    fn finish(&mut self, told: &Told) -> Result<u64, ReadError> {
        for _ in 0..4_000 {
            if let Some(result) = told.lock().first() {
                return result.clone();
            }
            self.go_on(Duration::from_millis(5));
        }
        panic!("the job never ends");
    }
}

#[test]
fn a_warm_up_brings_a_stripe_to_disk_in_long_gets_and_memory_stays_small() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    let told = bench.range(RangeWork::Warm, 0, STRIPE);
    assert!(bench.gets()[0].1 >= 2 * MIB, "{:?}", bench.gets());
    assert_eq!(bench.finish(&told), Ok(STRIPE));
    bench.evict_all();
    let check = bench.range(RangeWork::Check, 0, STRIPE);
    assert_eq!(check.lock()[..], [Ok(STRIPE)]);
    let stats = bench.core.stats();
    assert_eq!(stats.ledger.total_bytes(), STRIPE);
    assert_eq!(stats.reads, 0, "a warm-up is no reader");
    // Again: nothing to do, and nothing read from the disk.
    let reads = bench.device().reads;
    let told = bench.range(RangeWork::Warm, 0, STRIPE);
    assert_eq!(bench.finish(&told), Ok(STRIPE));
    assert_eq!(bench.device().reads, reads);
    assert_eq!(bench.core.stats().ledger.total_bytes(), STRIPE);
}

#[test]
fn a_warm_up_waits_for_a_slow_disk_and_loses_nothing() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    let jobs: Vec<Told> = (0..8)
        .map(|n| bench.range(RangeWork::Warm, n * STRIPE, STRIPE))
        .collect();
    for told in &jobs {
        assert_eq!(bench.finish(told), Ok(STRIPE));
    }
    assert_eq!(bench.core.stats().ledger.total_bytes(), 8 * STRIPE);
    assert_eq!(bench.core.lanes.admitted_bytes(), 0);
    assert_eq!(bench.core.jobs.len(), 0);
}

#[test]
fn small_warm_ups_do_not_wait_for_the_delay_of_a_batch_and_share_batches() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    let begun = bench.clock.now();
    let jobs: Vec<Told> = (0..16)
        .map(|n| bench.range(RangeWork::Warm, n * STRIPE, 64 * KIB))
        .collect();
    let before = bench.device().overhead_bytes;
    while jobs.iter().any(|told| told.lock().is_empty()) {
        bench.go_on(Duration::from_millis(1));
        let took = bench.clock.now().since(begun);
        assert!(took < Duration::from_millis(20), "{took:?}");
    }
    assert!(jobs.iter().all(|told| told.lock()[..] == [Ok(64 * KIB)]));
    // A header page for each batch.
    let batches = (bench.device().overhead_bytes - before) / PAGE_BYTES as u64;
    assert!(batches <= 4, "{batches} batches for 16 files");
    // A reader's bytes wait for more, as ever.
    bench.get(200 * MIB, 4_096);
    bench.pass(Duration::from_millis(BATCH_DELAY_MS / 2));
    assert!(!bench.core.parts.disk.is_quiet());
}

#[test]
fn what_is_in_memory_alone_does_not_count_as_kept() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    media.borrow_mut().gone = true;
    let told = bench.range(RangeWork::Warm, 0, 2 * MIB);
    assert_eq!(bench.finish(&told), Ok(0), "the disk has vanished");
    for (work, bytes) in [(RangeWork::Check, 2 * MIB), (RangeWork::Kept, 0)] {
        let told = bench.range(work, 0, 2 * MIB);
        assert_eq!(told.lock()[..], [Ok(bytes)], "{work:?}");
    }
    let mut bench = Bench::new(64 * MIB, OBJECT);
    let told = bench.range(RangeWork::Warm, 0, 2 * MIB);
    assert_eq!(bench.finish(&told), Ok(2 * MIB));
    let told = bench.range(RangeWork::Kept, 0, 2 * MIB);
    assert_eq!(
        told.lock()[..],
        [Ok(2 * MIB)],
        "a node without disks keeps it in memory"
    );
}

#[test]
fn a_disk_that_stands_still_for_seconds_is_waited_for() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    media.borrow_mut().hold_writes = true;
    let told = bench.range(RangeWork::Warm, 0, STRIPE);
    for _ in 0..500 {
        bench.go_on(Duration::from_millis(10));
    }
    assert!(told.lock().is_empty());
    media.borrow_mut().hold_writes = false;
    assert_eq!(bench.finish(&told), Ok(STRIPE));
    assert_eq!(bench.core.stats().ledger.total_bytes(), STRIPE);
}

#[test]
fn what_waits_for_a_slow_disk_is_bounded_and_not_read_twice() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    media.borrow_mut().hold_writes = true;
    let jobs: Vec<Told> = (0..8)
        .map(|n| bench.range(RangeWork::Warm, n * STRIPE, STRIPE))
        .collect();
    for _ in 0..200 {
        bench.go_on(Duration::from_millis(5));
    }
    let read_bytes = bench.core.stats().ledger.total_bytes();
    assert_eq!(read_bytes, ARENA / WARM_ARENA_SHARE as u64);
    // Readers pass by meanwhile, with more than memory holds.
    let passing = 2 * ARENA;
    for n in 0..passing / MIB {
        bench.get(8 * STRIPE + n * MIB, MIB);
    }
    while jobs.iter().any(|told| told.lock().is_empty()) {
        media.borrow_mut().hold_writes = false;
        bench.core.turn(Budget::default());
        media.borrow_mut().hold_writes = true;
        bench.go_on(Duration::from_millis(10));
    }
    assert!(jobs.iter().all(|told| told.lock()[..] == [Ok(STRIPE)]));
    let stats = bench.core.stats();
    assert_eq!(stats.ledger.bytes(Reason::Evicted), 0);
    assert_eq!(stats.ledger.total_bytes(), 8 * STRIPE + passing);
    media.borrow_mut().hold_writes = false;
    bench.settle();
    let kept = bench.range(RangeWork::Kept, 7 * STRIPE, STRIPE);
    assert_eq!(kept.lock()[..], [Ok(STRIPE)]);
}

#[test]
fn what_a_warm_up_cannot_hand_to_the_disk_yet_is_not_evicted_for_readers() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    media.borrow_mut().hold_writes = true;
    // As much as may be on its way to disk is a reader's.
    let of_reader = ARENA / DISK_WRITE_SHARE as u64;
    for n in 0..of_reader / MIB {
        bench.get(8 * STRIPE + n * MIB, MIB);
    }
    let told = bench.range(RangeWork::Warm, 0, STRIPE);
    for _ in 0..20 {
        bench.go_on(Duration::from_millis(5));
    }
    for n in 0..2 * ARENA / MIB {
        // Read again and again, it stays in the main queue.
        (0..3).for_each(|_| bench.get(9 * STRIPE + n * MIB, MIB));
        bench.pass(Duration::from_millis(10));
    }
    media.borrow_mut().hold_writes = false;
    assert_eq!(bench.finish(&told), Ok(STRIPE));
    let total_bytes = bench.core.stats().ledger.total_bytes();
    assert_eq!(total_bytes, STRIPE + of_reader + 2 * ARENA);
}

#[test]
fn a_warm_up_that_ends_lets_others_have_its_room() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    media.borrow_mut().hold_writes = true;
    // More than there is room for, so that some end in the line and some with room.
    let first: Vec<Told> = (0..8)
        .map(|n| bench.range(RangeWork::Warm, n * STRIPE, STRIPE))
        .collect();
    for _ in 0..100 {
        bench.go_on(TIMEOUT / 100);
    }
    bench.pass(Duration::from_secs(1));
    assert!(
        first
            .iter()
            .all(|told| told.lock()[..] == [Err(ReadError::Deadline)])
    );
    media.borrow_mut().hold_writes = false;
    let told = bench.range(RangeWork::Warm, 9 * STRIPE, STRIPE);
    assert_eq!(bench.finish(&told), Ok(STRIPE));
    assert_eq!(bench.core.index.held_blocks(), 0);
}

#[test]
fn a_warm_up_of_a_node_without_disk_fills_memory() {
    let mut bench = Bench::new(64 * MIB, OBJECT);
    let told = bench.range(RangeWork::Warm, 5 * MIB, 3 * MIB + 5);
    assert_eq!(bench.finish(&told), Ok(3 * MIB + 5));
}

#[test]
fn readers_go_before_a_warm_up() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    let told = bench.range(RangeWork::Warm, 0, STRIPE);
    let outcome = bench.read(3 * STRIPE, 4096, 0);
    bench.turn();
    bench.serve_all();
    expect_bytes(&outcome, 3 * STRIPE, 4096);
    assert_eq!(bench.finish(&told), Ok(STRIPE));
}

#[test]
fn a_warm_up_of_what_the_origin_no_longer_has_fails() {
    let mut bench = Bench::new(64 * MIB, OBJECT);
    let told = bench.range(RangeWork::Warm, 0, MIB);
    bench.fail(OriginErrorKind::VersionChanged, 0);
    bench.turn();
    assert_eq!(told.lock()[..], [Err(ReadError::VersionChanged)]);
    let told = bench.range(RangeWork::Warm, 0, MIB);
    bench.fail(OriginErrorKind::Unavailable, 0);
    assert_eq!(bench.finish(&told), Ok(MIB), "it tries again");
}

#[test]
fn the_owner_is_told_to_warm_and_asked_what_it_holds() {
    let view = everyone();
    let mut bench = Bench::new(64 * MIB, 1 << 30);
    bench.view(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    for (work, answer) in [
        (RangeWork::Warm, 77),
        (RangeWork::Check, 5),
        (RangeWork::Kept, 4),
    ] {
        let told = bench.range(work, at, STRIPE);
        let op = bench.transport.0.borrow_mut().ops.pop_front();
        let Some(TransportOp::Call {
            tag,
            to,
            body,
            mut lease,
            class,
            ..
        }) = op
        else {
            panic!("a call is expected, not {op:?}")
        };
        assert_eq!((to.peer, class), (OTHERS[0], Class::WarmUp));
        match Call::decode(&body).unwrap() {
            Call::Range {
                work: asked,
                offset,
                ..
            } => assert_eq!((asked, offset), (work, at)),
            other => panic!("{other:?}"),
        }
        let bytes = CallAnswer::Cached { bytes: answer }.encode(4096).unwrap();
        lease.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        lease.truncate(bytes.len());
        bench.end(tag, lease, Ok(FetchStatus::Bytes), Vec::new());
        assert_eq!(told.lock()[..], [Ok(answer)]);
    }
    let told = bench.range(RangeWork::Warm, at, STRIPE);
    let op = bench.transport.0.borrow_mut().ops.pop_front();
    let Some(TransportOp::Call { tag, lease, .. }) = op else {
        panic!("a call is expected, not {op:?}")
    };
    bench.end(tag, lease, Err(TransportError::Unreachable), Vec::new());
    assert!(matches!(told.lock()[..], [Err(ReadError::Origin(_))]));
    assert_eq!(bench.core.jobs.len(), 0);
}

#[test]
fn why_an_owner_failed_is_told_as_it_is() {
    let view = everyone();
    let mut bench = Bench::new(64 * MIB, 1 << 30);
    bench.view(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let mut fail = |failure| {
        let told = bench.range(RangeWork::Warm, at, STRIPE);
        let op = bench.transport.0.borrow_mut().ops.pop_front();
        let Some(TransportOp::Call { tag, lease, .. }) = op else {
            panic!("a call is expected, not {op:?}")
        };
        bench.end(tag, lease, Ok(FetchStatus::Failed(failure)), Vec::new());
        told.lock()[0].clone().unwrap_err()
    };
    let denied = fail(PeerFailure::Origin(OriginErrorKind::Denied));
    assert!(
        matches!(&denied, ReadError::Origin(error) if error.kind == OriginErrorKind::Denied),
        "{denied}"
    );
    let changed = PeerFailure::Origin(OriginErrorKind::VersionChanged);
    assert_eq!(fail(changed), ReadError::VersionChanged);
    assert_eq!(fail(PeerFailure::Deadline), ReadError::Deadline);
    let error = fail(PeerFailure::Shutdown);
    assert!(
        matches!(&error, ReadError::Origin(error) if error.kind.is_transient()),
        "another member may do it: {error}"
    );
}

#[test]
fn a_peer_may_have_warmed_only_what_is_owned_here() {
    let view = everyone();
    let mut bench = Bench::new(64 * MIB, 1 << 30);
    bench.view(view.clone());
    let (mine, his) = (
        bench.stripe_of(&view, ME, 0),
        bench.stripe_of(&view, OTHERS[1], 0),
    );
    let warm = |bench: &Bench, offset| Call::Range {
        work: RangeWork::Warm,
        object: bench.object.clone(),
        offset,
        len_bytes: MIB as u32,
    };
    let call = warm(&bench, his);
    bench.call(1, &call, 4096);
    let owner = OTHERS[1];
    assert_eq!(bench.told().1, FetchStatus::NotOwner { owner });
    let call = warm(&bench, mine);
    bench.call(2, &call, 4096);
    bench.nobody_asked();
    bench.serve_all();
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.call_told(), CallAnswer::Cached { bytes: MIB });
}

#[test]
fn what_is_evicted_is_gone_here_and_at_every_member() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    bench.view(everyone());
    let call = Call::Range {
        work: RangeWork::Warm,
        object: bench.object.clone(),
        offset: bench.stripe_of(&everyone(), ME, 0),
        len_bytes: MIB as u32,
    };
    bench.call(1, &call, 4096);
    bench.serve_all();
    bench.settle();
    bench.pass(Duration::from_millis(20));
    assert_eq!(bench.call_told(), CallAnswer::Cached { bytes: MIB });
    let at = bench.stripe_of(&everyone(), ME, 0);
    let told = bench.range(RangeWork::Evict, at, STRIPE);
    for other in OTHERS.into_iter().rev() {
        let op = bench.transport.0.borrow_mut().ops.pop_front();
        let Some(TransportOp::Call {
            tag, to, mut lease, ..
        }) = op
        else {
            panic!("a call is expected, not {op:?}")
        };
        assert_eq!(to.peer, other);
        let bytes = CallAnswer::Cached { bytes: 10 }.encode(4096).unwrap();
        lease.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        lease.truncate(bytes.len());
        bench.end(tag, lease, Ok(FetchStatus::Bytes), Vec::new());
    }
    assert_eq!(told.lock()[..], [Ok(MIB + 30)]);
    let check = bench.range(RangeWork::Check, at, STRIPE);
    assert_eq!(check.lock()[..], [Ok(0)]);
}

#[test]
fn nonsense_is_refused_and_a_shutdown_ends_jobs() {
    let mut bench = Bench::new(64 * MIB, OBJECT);
    for (offset, len) in [(STRIPE - 1, 2), (OBJECT, 1), (5, 0), (u64::MAX, 1)] {
        let told = bench.range(RangeWork::Warm, offset, len);
        assert_eq!(told.lock()[..], [Err(ReadError::Invalid)], "{offset} {len}");
    }
    let told = bench.range(RangeWork::Warm, 0, STRIPE);
    bench.ring.push(Request::Shutdown).unwrap();
    bench.turn();
    assert_eq!(told.lock()[..], [Err(ReadError::Shutdown)]);
}

#[test]
fn a_warm_up_never_exceeds_the_origin_limit_and_a_reader_still_gets_through() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    bench.core.origin_ceiling = Ceiling::new(Some(10 * MIB));
    let started = bench.clock.now();
    let told = bench.range(RangeWork::Warm, 0, STRIPE);
    let mut asked = 0;
    let mut outcome = None;
    while told.lock().is_empty() {
        let gets: u64 = bench.gets().iter().map(|(_, len)| len).sum();
        asked += gets;
        let spent_s = bench.clock.now().since(started).as_secs_f64();
        let most = 10.0 * MIB as f64 * spent_s + 8.0 * MIB as f64;
        assert!(asked as f64 <= most, "{asked} after {spent_s} s");
        match gets {
            0 => bench.pass(Duration::from_millis(5)),
            _ => bench.serve(),
        }
        if spent_s > 0.5 && outcome.is_none() {
            outcome = Some(bench.read(3 * STRIPE, 4096, 0));
        }
    }
    let spent_s = bench.clock.now().since(started).as_secs_f64();
    assert!((0.8..3.0).contains(&spent_s), "{spent_s} s for 16 MiB");
    let wake_at = bench.core.turn(Budget::default()).wake_at;
    assert!(wake_at > bench.clock.now());
    expect_bytes(&outcome.unwrap(), 3 * STRIPE, 4096);
}

#[test]
fn what_peers_get_and_give_stays_below_the_peer_limit() {
    let view = everyone();
    let mut bench = Bench::new(64 * MIB, 1 << 30);
    bench.core.config.peer_limit = Some(MIB);
    bench.core.pull_ceiling = Ceiling::new(Some(MIB));
    bench.view(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let _outcome = bench.read(at, MIB, 4 * MIB);
    bench.turn();
    for second in 1..4 {
        assert_eq!(bench.transport.0.borrow().ops.len(), second);
        let wake_at = bench.core.turn(Budget::default()).wake_at;
        assert_eq!(wake_at, Time(second as u64 * 1_000_000_000));
        bench.pass(Duration::from_secs(1));
    }
}
