//! The core on a scripted origin and a clock that the test moves.

mod disk;
pub(super) mod fake_disk;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::arena::Lease;
use crate::client::{Answer, ReadRequest, Reply};
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::identity::{Bucket, ObjectVersion, Validator};
use crate::limits::OBJECT_BYTES_MAX;
use crate::ports::*;
use crate::ring::{CoreRing, Doorbell};
use crate::stats::Reason;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Default)]
struct TestClock(Rc<Cell<u64>>);

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time(self.0.get())
    }
}

struct TestRng(u64);

impl Rng for TestRng {
    fn next_u64(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

#[derive(Default)]
struct OriginScript {
    ops: VecDeque<OriginOp>,
    events: VecDeque<OriginEvent>,
    cancelled: Vec<OriginTag>,
}

#[derive(Clone, Default)]
struct TestOrigin(Rc<RefCell<OriginScript>>);

impl Origin for TestOrigin {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        self.0.borrow_mut().ops.push_back(op);
        Ok(())
    }
    fn poll(&mut self) -> Option<OriginEvent> {
        self.0.borrow_mut().events.pop_front()
    }
    fn cancel(&mut self, tag: OriginTag) {
        self.0.borrow_mut().cancelled.push(tag);
    }
}

fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

type Outcome = Arc<Mutex<Vec<Result<Vec<u8>, ReadError>>>>;

#[derive(Debug)]
struct TestReply(Outcome);

impl Reply for TestReply {
    fn data(self, bytes: &[u8]) {
        self.0.lock().push(Ok(bytes.to_vec()));
    }
    fn error(self, error: ReadError) {
        self.0.lock().push(Err(error));
    }
}

struct TestPlatform;

impl Platform for TestPlatform {
    type Device = NoDevice;
    type Transport = NoTransport;
    type Origin = TestOrigin;
    type Membership = Solo;
    type Clock = TestClock;
    type Rng = TestRng;
    type Reply = TestReply;
}

type TestMedia = Rc<RefCell<fake_disk::Media>>;

struct Bench {
    media: TestMedia,
    core: Core<TestPlatform>,
    clock: TestClock,
    origin: TestOrigin,
    ring: Arc<CoreRing<TestReply>>,
    object: Arc<ObjectVersion>,
}

impl Bench {
    fn new(arena_bytes: u64, object_bytes: u64) -> Self {
        Self::on(
            TestMedia::default(),
            Disk::absent(),
            arena_bytes,
            object_bytes,
        )
    }

    fn with_disk(media: &TestMedia, arena_bytes: u64, object_bytes: u64) -> Self {
        let disk = Disk::on(media.clone());
        Self::on(media.clone(), disk, arena_bytes, object_bytes)
    }

    fn on(media: TestMedia, disk: Disk<NoDevice>, arena_bytes: u64, object_bytes: u64) -> Self {
        let (clock, origin) = (TestClock::default(), TestOrigin::default());
        let ring = CoreRing::new(Doorbell::new(Waker::noop().clone()));
        let parts = Parts {
            disk,
            transport: NoTransport::default(),
            origin: origin.clone(),
            membership: Solo,
            clock: clock.clone(),
            rng: TestRng(0),
            arena: Arena::new(arena_bytes as usize).unwrap(),
            ring: ring.clone(),
        };
        let config = CoreConfig {
            core: 0,
            cores: 1,
            io_timeout: TIMEOUT,
        };
        let bucket = Arc::new(Bucket {
            endpoint: "http://test".into(),
            name: "bucket".into(),
        });
        let validator = Validator::ETag("\"v1\"".into());
        let object = Arc::new(ObjectVersion::new(
            bucket,
            "key".into(),
            validator,
            object_bytes,
        ));
        Self {
            media,
            core: Core::new(parts, config),
            clock,
            origin,
            ring,
            object,
        }
    }

    fn read(&self, offset: u64, len: u64, want: u64) -> Outcome {
        let outcome = Outcome::default();
        let submitted = self.clock.now();
        let request = ReadRequest {
            object: self.object.clone(),
            offset,
            len_bytes: len as u32,
            want_bytes: want as u32,
            submitted,
            deadline: submitted + TIMEOUT,
            answer: Answer::Whole(TestReply(outcome.clone())),
        };
        self.ring.push(Request::Read(request)).unwrap();
        outcome
    }

    fn turn(&mut self) {
        while self.core.turn(Budget::default()).progressed {}
    }

    fn pass(&mut self, span: Duration) {
        self.clock
            .0
            .set(self.clock.0.get() + span.as_nanos() as u64);
        self.turn();
    }

    fn gets(&self) -> Vec<(u64, u64)> {
        let script = self.origin.0.borrow();
        script
            .ops
            .iter()
            .map(|op| match op {
                OriginOp::Get(get) => (get.offset, get.len_bytes()),
                _ => panic!("only GETs are expected"),
            })
            .collect()
    }

    fn next_get(&self) -> GetOp {
        match self.origin.0.borrow_mut().ops.pop_front() {
            Some(OriginOp::Get(get)) => get,
            other => panic!("a GET is expected, not {other:?}"),
        }
    }

    fn push(&self, event: OriginEvent) {
        self.origin.0.borrow_mut().events.push_back(event);
    }

    /// Answers the oldest GET whole.
    fn serve(&mut self) {
        let get = self.next_get();
        let (mut at, tag) = (get.offset, get.tag);
        for lease in get.leases {
            let len = lease.len() as u64;
            self.push(OriginEvent::Filled {
                tag,
                lease: filled(lease, at),
            });
            at += len;
        }
        self.push(OriginEvent::GetDone {
            tag,
            result: Ok(()),
            unfilled: Vec::new(),
            wasted_bytes: 0,
        });
        self.turn();
    }

    /// Fails the oldest GET, after `wasted_bytes` of its body.
    fn fail(&mut self, kind: OriginErrorKind, wasted_bytes: u64) {
        let get = self.next_get();
        let result = Err(OriginError::new(kind, "scripted"));
        self.push(OriginEvent::GetDone {
            tag: get.tag,
            result,
            unfilled: get.leases,
            wasted_bytes,
        });
        self.turn();
    }

    fn serve_all(&mut self) {
        self.turn();
        while !self.gets().is_empty() {
            self.serve();
        }
    }
}

fn filled(mut lease: Lease, at: u64) -> Lease {
    for (byte, offset) in lease.bytes_mut().iter_mut().zip(at..) {
        *byte = byte_at(offset);
    }
    lease
}

fn expect_bytes(outcome: &Outcome, offset: u64, len: u64) {
    let outcomes = outcome.lock();
    assert_eq!(outcomes.len(), 1, "one answer for each read");
    let bytes = outcomes[0].as_ref().expect("the read succeeds");
    assert_eq!(bytes.len() as u64, len);
    let wrong = bytes
        .iter()
        .zip(offset..)
        .position(|(byte, at)| *byte != byte_at(at));
    assert_eq!(wrong, None, "the first wrong byte");
}

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
fn reads_across_blocks_and_pieces_are_put_together() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let warm = bench.read(4 * MIB - 64 * KIB, KIB, 0);
    bench.serve_all();
    expect_bytes(&warm, 4 * MIB - 64 * KIB, KIB);
    let outcome = bench.read(4 * MIB - 300 * KIB - 7, 700 * KIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, 4 * MIB - 300 * KIB - 7, 700 * KIB);
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
fn a_spoiled_page_is_fetched_again_and_never_served() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let warm = bench.read(0, MIB, 0);
    bench.serve_all();
    expect_bytes(&warm, 0, MIB);
    assert!(bench.core.index.corrupt(bench.object.block(0)));
    let outcome = bench.read(0, 4 * KIB, 0);
    bench.turn();
    assert_eq!(bench.gets().len(), 1);
    bench.serve();
    expect_bytes(&outcome, 0, 4 * KIB);
    let stats = bench.core.stats();
    assert_eq!(
        (
            stats.checksum_failures,
            stats.ledger.bytes(Reason::Checksum)
        ),
        (1, 64 * KIB)
    );
}

#[test]
fn a_cache_smaller_than_the_object_evicts_and_says_so() {
    let mut bench = Bench::new(16 * MIB, 64 * MIB);
    for pass in 0..2 {
        for n in 0..64 {
            let outcome = bench.read(n * MIB, MIB, 0);
            bench.serve_all();
            expect_bytes(&outcome, n * MIB, MIB);
        }
        assert_eq!(
            bench.core.stats().ledger.bytes(Reason::Cold),
            64 * MIB,
            "pass {pass}"
        );
    }
    let stats = bench.core.stats();
    assert!(stats.ledger.bytes(Reason::Evicted) >= 48 * MIB && stats.evictions > 0);
    assert!(stats.memory_used_bytes <= stats.memory_bytes);
}

#[test]
fn fills_that_wait_for_memory_never_wait_for_each_other() {
    let mut bench = Bench::new(16 * MIB, 64 * MIB);
    // Every block caches a little, and every block is promised more than the arena holds.
    let warm: Vec<_> = (0..16).map(|n| bench.read(n * 4 * MIB, MIB, 0)).collect();
    bench.serve_all();
    assert!(warm.iter().all(|outcome| outcome.lock()[0].is_ok()));
    let rest: Vec<_> = (0..16)
        .map(|n| bench.read(n * 4 * MIB + MIB, MIB, 0))
        .collect();
    bench.serve_all();
    for (n, outcome) in (0..).zip(&rest) {
        expect_bytes(outcome, n * 4 * MIB + MIB, MIB);
    }
}

#[test]
fn a_dropped_prefetch_promises_nothing() {
    let mut bench = Bench::new(16 * MIB, 256 * MIB);
    for n in 0..16 {
        let request = PrefetchRequest {
            object: bench.object.clone(),
            offset: n * 16 * MIB,
            len_bytes: 16 * MIB as u32,
            deadline: bench.clock.now() + TIMEOUT,
        };
        bench.ring.push(Request::Prefetch(request)).unwrap();
    }
    bench.serve_all();
    assert!(bench.core.stats().prefetch_dropped > 0);
    assert_eq!(bench.core.fills.len(), 0);
    let outcome = bench.read(255 * MIB, MIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, 255 * MIB, MIB);
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
            deadline: bench.clock.now() + TIMEOUT,
            reply: Box::new(move |result| answers.lock().push(result.map_err(|error| error.kind))),
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
fn shutdown_answers_everything_and_gives_every_buffer_back() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let outcome = bench.read(0, MIB, 16 * MIB);
    bench.turn();
    bench.ring.push(Request::Shutdown).unwrap();
    let late = bench.read(0, MIB, 0);
    bench.turn();
    assert_eq!(*outcome.lock(), [Err(ReadError::Shutdown)]);
    assert_eq!(*late.lock(), [Err(ReadError::Shutdown)]);
    assert!(!bench.core.is_quiet(), "the GETs have not ended");
    while !bench.gets().is_empty() {
        bench.fail(OriginErrorKind::Cancelled, 0);
    }
    assert!(bench.core.is_quiet());
    assert_eq!(bench.core.arena().in_flight_bytes(), 0);
}

#[test]
fn what_was_read_ahead_outlives_a_scan_until_it_is_read() {
    let mut bench = Bench::new(64 * MIB, 512 * MIB);
    // A hot set fills the main queue, so that the small queue is held to its tenth.
    for _ in 0..3 {
        for n in 0..40 {
            bench.read(n * MIB, MIB, 0);
            bench.serve_all();
        }
    }
    let request = PrefetchRequest {
        object: bench.object.clone(),
        offset: 256 * MIB,
        len_bytes: 8 * MIB as u32,
        deadline: bench.clock.now() + TIMEOUT,
    };
    bench.ring.push(Request::Prefetch(request)).unwrap();
    bench.serve_all();
    for n in 100..130 {
        bench.read(n * MIB, MIB, 0);
        bench.serve_all();
    }
    let gets = bench.core.stats().gets;
    for n in 256..264 {
        bench.read(n * MIB, MIB, 0);
        bench.serve_all();
    }
    assert_eq!(
        bench.core.stats().gets,
        gets,
        "nothing that was read ahead is fetched again"
    );
}

#[test]
fn checking_ahead_hides_no_wrong_page() {
    let mut bench = Bench::new(64 * MIB, 64 * MIB);
    let read_to_the_fourth = |bench: &mut Bench| {
        for n in 2..4 {
            let outcome = bench.read(n * MIB, MIB, 0);
            bench.serve_all();
            expect_bytes(&outcome, n * MIB, MIB);
        }
    };
    bench.read(4 * MIB, MIB, 0);
    bench.serve_all();
    let block = bench.object.block(4 * MIB);
    // Wrong before the check: the read finds it.
    assert!(bench.core.index.corrupt(block));
    read_to_the_fourth(&mut bench);
    let mended = bench.read(4 * MIB, MIB, 0);
    bench.serve_all();
    expect_bytes(&mended, 4 * MIB, MIB);
    assert_eq!(bench.core.stats().checksum_failures, 1);
    // Wrong after the check, which by then no longer counts.
    read_to_the_fourth(&mut bench);
    assert!(bench.core.index.corrupt(block));
    bench.pass(Duration::from_millis(2));
    let late = bench.read(4 * MIB, MIB, 0);
    bench.serve_all();
    expect_bytes(&late, 4 * MIB, MIB);
    assert_eq!(bench.core.stats().checksum_failures, 2);
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
fn sizes_that_no_origin_has_are_refused_and_not_walked() {
    for size in [OBJECT_BYTES_MAX + 1, i64::MAX as u64, u64::MAX] {
        let mut bench = Bench::new(16 * MIB, size);
        for offset in [OBJECT_BYTES_MAX - 10, 1 << 54, size - 20] {
            let outcome = bench.read(offset, 20, 0);
            bench.turn();
            assert_eq!(
                *outcome.lock(),
                [Err(ReadError::Invalid)],
                "{size} {offset}"
            );
        }
        let request = PrefetchRequest {
            object: bench.object.clone(),
            offset: 1 << 54,
            len_bytes: 16 * MIB as u32,
            deadline: bench.clock.now() + TIMEOUT,
        };
        bench.ring.push(Request::Prefetch(request)).unwrap();
        let near = bench.read(MIB, KIB, 0);
        bench.serve_all();
        expect_bytes(&near, MIB, KIB);
    }
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
fn one_pass_in_small_reads_is_no_hit_and_two_are() {
    for (step, start) in [(4 * KIB, 0), (100 * KIB + 7, 0), (KIB, 3)] {
        let mut bench = Bench::new(64 * MIB, 4 * MIB);
        let pass = |bench: &mut Bench| {
            for n in 0..30 {
                bench.read(start + n * step, step, 0);
                bench.serve_all();
            }
        };
        pass(&mut bench);
        let key = bench.core.index.find(bench.object.block(0)).unwrap();
        assert_eq!(bench.core.index.hits(key), 0, "step {step}");
        pass(&mut bench);
        assert!(bench.core.index.hits(key) > 0, "step {step}");
    }
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
        if !bench.gets().is_empty() {
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

#[test]
fn more_readers_than_the_arena_holds_get_on_without_fetching_twice() {
    let mut bench = Bench::new(16 * MIB, 512 * MIB);
    // Each needs bytes of two blocks; all of them together four times the arena.
    let outcomes: Vec<_> = (0..64)
        .map(|n| bench.read((n + 1) * 4 * MIB - MIB / 2 - 7, MIB, 0))
        .collect();
    bench.turn();
    let mut served = 0;
    while !bench.gets().is_empty() {
        bench.serve();
        served += 1;
        assert!(served < 10_000, "readers evict each other's bytes");
    }
    for (n, outcome) in (0..).zip(&outcomes) {
        expect_bytes(outcome, (n + 1) * 4 * MIB - MIB / 2 - 7, MIB);
    }
    let touched = 64 * 18 * 64 * KIB;
    let origin = bench.core.stats().ledger.total_bytes();
    assert!(
        origin <= touched,
        "{origin} origin bytes for {touched} that were needed"
    );
    assert_eq!(bench.core.admitted_bytes, 0);
}

#[test]
fn reads_that_wait_for_room_keep_their_deadline() {
    let mut bench = Bench::new(16 * MIB, 512 * MIB);
    let outcomes: Vec<_> = (0..40).map(|n| bench.read(n * 4 * MIB, MIB, 0)).collect();
    bench.turn();
    assert!(!bench.core.waiting_room.is_empty());
    bench.pass(TIMEOUT);
    assert!(
        outcomes
            .iter()
            .all(|outcome| *outcome.lock() == [Err(ReadError::Deadline)])
    );
    assert_eq!(bench.core.admitted_bytes, 0);
    while !bench.gets().is_empty() {
        bench.fail(OriginErrorKind::Cancelled, 0);
    }
    let outcome = bench.read(0, MIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, 0, MIB);
    assert!(bench.core.waiting_room.is_empty());
}
