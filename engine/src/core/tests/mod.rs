//! The core on a scripted origin and a clock that the test moves.

mod disk;
mod disk_faults;
mod group;
mod group_faults;
mod group_lines;
mod group_once;
mod handover;
mod hits;
mod jobs;
mod mem_device;
mod memory;
mod metadata_group;
mod origin;
mod outage;
mod stale;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use mem_device::MemDevice;
use parking_lot::Mutex;

use super::*;
use crate::arena::Lease;
use crate::client::{Answer, ReadRequest, Reply};
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::identity::{Bucket, ObjectVersion, Validator};
use crate::limits::OBJECT_BYTES_MAX;
use crate::placement::{Member, Placement, View};
use crate::ports::*;
use crate::ring::{CoreRing, Doorbell};
use crate::stats::Reason;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
const TIMEOUT: Duration = Duration::from_secs(30);

/// The time, and how often it was looked at.
#[derive(Clone, Default)]
struct TestClock(Rc<Cell<u64>>, Rc<Cell<u64>>);

impl Clock for TestClock {
    fn now(&self) -> Time {
        self.1.set(self.1.get() + 1);
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

#[derive(Default)]
struct TransportScript {
    ops: VecDeque<TransportOp>,
    events: VecDeque<TransportEvent>,
    full: bool,
}

#[derive(Clone, Default)]
struct TestTransport(Rc<RefCell<TransportScript>>);

impl Transport for TestTransport {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        let mut script = self.0.borrow_mut();
        if script.full {
            return Err(Full(op));
        }
        script.ops.push_back(op);
        Ok(())
    }
    fn poll(&mut self) -> Option<TransportEvent> {
        self.0.borrow_mut().events.pop_front()
    }
    fn cancel(&mut self, tag: FetchTag) {
        let mut script = self.0.borrow_mut();
        let named = |op: &TransportOp| {
            use TransportOp::{Call, Fetch};
            matches!(op, Fetch { tag: t, .. } | Call { tag: t, .. } if *t == tag)
        };
        if let Some(at) = script.ops.iter().position(named)
            && let Some(TransportOp::Fetch { lease, .. } | TransportOp::Call { lease, .. }) =
                script.ops.remove(at)
        {
            script.events.push_back(TransportEvent::Fetched {
                tag,
                lease,
                result: Err(TransportError::Cancelled),
                len_bytes: 0,
                checksums: Vec::new(),
            });
        }
    }
}

#[derive(Clone, Default)]
struct TestMembership(Rc<RefCell<VecDeque<Arc<Placement>>>>);

impl Membership for TestMembership {
    fn poll(&mut self) -> Option<Arc<Placement>> {
        self.0.borrow_mut().pop_front()
    }
}

/// This node, in a group.
const ME: PeerId = PeerId(1);

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
    type Device = MemDevice;
    type Transport = TestTransport;
    type Origin = TestOrigin;
    type Membership = TestMembership;
    type Clock = TestClock;
    type Rng = TestRng;
    type Reply = TestReply;
}

struct Bench {
    core: Core<TestPlatform>,
    clock: TestClock,
    origin: TestOrigin,
    transport: TestTransport,
    views: TestMembership,
    ring: Arc<CoreRing<TestReply>>,
    object: Arc<ObjectVersion>,
}

impl Bench {
    fn new(arena_bytes: u64, object_bytes: u64) -> Self {
        Self::on(Disk::absent(), arena_bytes, object_bytes)
    }

    fn on(disk: Disk<MemDevice>, arena_bytes: u64, object_bytes: u64) -> Self {
        let (clock, origin) = (TestClock::default(), TestOrigin::default());
        let (transport, views) = (TestTransport::default(), TestMembership::default());
        let ring = CoreRing::new(Doorbell::new(Waker::noop().clone()));
        let parts = Parts {
            disk,
            transport: transport.clone(),
            origin: origin.clone(),
            membership: views.clone(),
            clock: clock.clone(),
            rng: TestRng(0),
            arena: Arena::new(arena_bytes as usize).unwrap(),
            ring: ring.clone(),
        };
        let config = CoreConfig {
            core: 0,
            cores: 1,
            io_timeout: TIMEOUT,
            me: ME,
            keep_copies: false,
            attr_ttl: Duration::from_secs(1),
            negative_ttl: Duration::from_secs(1),
            stale_max: Duration::MAX,
            endpoint: None,
            origin_limit: None,
            peer_limit: None,
        };
        let object = object("key", object_bytes);
        Self {
            core: Core::new(parts, config),
            clock,
            origin,
            transport,
            views,
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

fn object(key: &str, size_bytes: u64) -> Arc<ObjectVersion> {
    let bucket = Arc::new(Bucket {
        endpoint: "http://test".into(),
        name: "bucket".into(),
    });
    let validator = Validator::ETag("\"v1\"".into());
    Arc::new(ObjectVersion::new(
        bucket,
        key.into(),
        validator,
        size_bytes,
    ))
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
