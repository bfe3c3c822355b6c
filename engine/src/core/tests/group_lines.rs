//! Peers that ask for more than they are given, or give up what they asked for: nobody tells this node.

use super::group::{OTHERS, placement};
use super::limit::Ceiling;
use super::*;
use crate::client::RangeWork;
use crate::limits::{BLOCK_BYTES, PEER_LINE_MAX, SERVE_ARENA_SHARE};
use crate::wire::call::Call;

/// Later than any node waits: the longest that fits a request.
const LONGEST: Duration = Duration::from_micros(u32::MAX as u64);

impl Bench {
    /// An owner of all with 64 KiB in memory, and two peers.
    fn owner() -> Self {
        let mut bench = Self::grouped(placement(&[(ME, 1), (OTHERS[0], 0), (OTHERS[1], 0)]));
        bench.describe();
        bench.get(0, 64 * KIB);
        bench
    }

    /// A peer asks, and will wait for ever; nobody has a turn yet.
    fn asks(&self, peer: PeerId, handle: u64, ask: PeerAsk) {
        let event = TransportEvent::Request {
            handle: RequestHandle(handle),
            peer,
            ask,
            deadline: self.clock.now() + LONGEST,
        };
        self.transport.0.borrow_mut().events.push_back(event);
    }

    fn asks_bytes(&self, peer: PeerId, handle: u64) {
        let fetch = PeerAsk::Fetch(self.request(0, 4096));
        self.asks(peer, handle, fetch);
    }

    /// Who was told what by now.
    fn all_told(&mut self) -> Vec<(u64, FetchStatus)> {
        let mut told = Vec::new();
        while !self.transport.0.borrow().ops.is_empty() {
            let (handle, status, _) = self.told();
            told.push((handle, status));
        }
        told
    }
}

#[test]
fn what_a_peer_asks_and_gives_up_in_a_loop_is_bounded() {
    let mut bench = Bench::owner();
    bench.core.serve_ceiling = Ceiling::new(Some(MIB));
    let too_many = 1_000;
    // The first is answered, and holds up the others.
    let count = (1 + PEER_LINE_MAX + too_many) as u64;
    (0..count).for_each(|handle| bench.asks_bytes(OTHERS[0], handle));
    bench.turn();
    let told = bench.all_told();
    assert_eq!(told[0], (0, FetchStatus::Bytes));
    assert_eq!(told.len(), 1 + too_many);
    assert!(
        told[1..]
            .iter()
            .all(|(_, status)| *status == FetchStatus::Busy)
    );
    // What another asks does not stand behind all that.
    bench.asks_bytes(OTHERS[1], count);
    bench.turn();
    bench.pass(Duration::from_millis(20));
    let told = bench.all_told();
    assert!(told.contains(&(count, FetchStatus::Bytes)), "{told:?}");
}

#[test]
fn nothing_of_a_peer_keeps_its_place_for_longer_than_this_node_waits() {
    let mut bench = Bench::owner();
    let bucket = bench.object.bucket.clone();
    let key = "asked".into();
    let calls = [
        Call::Head {
            bucket,
            key,
            max_age_ms: 0,
        },
        Call::Take {
            block: bench.object.block(0),
            size_bytes: BLOCK_BYTES as u64,
            subs: 0b10,
        },
    ];
    for (handle, call) in (1..).zip(calls) {
        let body = call.encode();
        let ask = PeerAsk::Call {
            body,
            room_bytes: 4096,
        };
        bench.asks(OTHERS[0], handle, ask);
    }
    let hangs = PeerAsk::Fetch(bench.request(MIB, 4096));
    bench.asks(OTHERS[0], 3, hangs);
    bench.turn();
    assert_eq!(bench.core.takes.len(), 1);
    // The leaver says nothing, nor does the origin.
    let mut told = Vec::new();
    let began = bench.clock.now();
    while bench.clock.now().since(began) < TIMEOUT {
        bench.pass(Duration::from_millis(500));
        let ops = std::mem::take(&mut bench.transport.0.borrow_mut().ops);
        told.extend(ops.into_iter().filter_map(|op| match op {
            TransportOp::Answer { handle, .. } => Some(handle.0),
            _ => None,
        }));
    }
    told.sort_unstable();
    assert_eq!(told, [1, 2, 3]);
    assert_eq!(bench.core.takes.len(), 0);
}

impl Bench {
    /// Turns whenever the core asks for it, and at no other time, until `span` has passed.
    fn sleep(&mut self, span: Duration) {
        let end = self.clock.now() + span;
        loop {
            let turn = self.core.turn(Budget::default());
            if turn.progressed {
                continue;
            }
            if turn.wake_at >= end {
                break;
            }
            assert!(turn.wake_at > self.clock.now(), "it never sleeps");
            self.clock.0.set(turn.wake_at.0);
        }
        self.clock.0.set(end.0);
    }

    /// Asks what nobody waits for yet.
    fn warms(&self, peer: PeerId, handle: u64) {
        let mut fetch = self.request(0, 4096);
        fetch.class = Class::WarmUp;
        self.asks(peer, handle, PeerAsk::Fetch(fetch));
    }
}

/// The asker is to hear of it before it takes silence for death.
#[test]
fn who_is_never_next_is_told_when_its_time_is_over() {
    let mut bench = Bench::owner();
    bench.core.serve_ceiling = Ceiling::new(Some(4096));
    bench.warms(OTHERS[1], 1);
    bench.turn();
    assert_eq!(bench.all_told(), [(1, FetchStatus::Bytes)]);
    // From here on someone urgent is always waiting, of one peer or the other.
    let (late, patient) = (2, 3);
    bench.asks_bytes(OTHERS[0], 100);
    bench.warms(OTHERS[1], late);
    let mut told = Vec::new();
    for second in 0..24 {
        bench.asks_bytes(OTHERS[0], 200 + second);
        bench.asks_bytes(OTHERS[1], 300 + second);
        bench.sleep(Duration::from_secs(1));
        told.extend(bench.all_told());
    }
    assert!(told.iter().all(|(_, status)| *status == FetchStatus::Bytes));
    assert!(told.len() > 20 && !told.contains(&(late, FetchStatus::Bytes)));
    // One that came later stays in line.
    bench.warms(OTHERS[1], patient);
    bench.sleep(TIMEOUT - Duration::from_secs(24));
    let told = bench.all_told();
    let over = FetchStatus::Failed(PeerFailure::Deadline);
    assert!(told.contains(&(late, over)), "{told:?}");
    assert!(told.iter().all(|(handle, _)| *handle != patient));
}

/// Nothing but the time that passes wakes this member: no answer of its leaves.
#[test]
fn who_waits_for_what_is_lent_is_told_when_its_time_is_over() {
    let mut bench = Bench::owner();
    bench.get(0, MIB);
    // As much as one peer is lent, and one more.
    let lent = 64 * MIB / SERVE_ARENA_SHARE as u64 / 2;
    let count = lent / MIB + 2;
    for handle in 0..count {
        let fetch = PeerAsk::Fetch(bench.request(0, MIB));
        bench.asks(OTHERS[0], handle, fetch);
    }
    bench.sleep(TIMEOUT / 2);
    let answered = |bench: &Bench| bench.transport.0.borrow().ops.len() as u64;
    assert_eq!(answered(&bench), count - 1);
    bench.sleep(TIMEOUT / 2);
    assert_eq!(answered(&bench), count);
    let last = bench.transport.0.borrow_mut().ops.pop_back();
    let Some(TransportOp::Answer { handle, status, .. }) = last else {
        panic!("an answer is expected, not {last:?}");
    };
    assert_eq!(handle, RequestHandle(count - 1));
    assert_eq!(status, FetchStatus::Failed(PeerFailure::Deadline));
    assert!(bench.core.stats().serve_errors == 1 && !bench.core.serving.are_queued());
}

impl Bench {
    /// A peer asks that a range be warmed, or gives that up.
    fn warms_range(&self, handle: u64, offset: u64, len: u64) {
        let call = Call::Range {
            work: RangeWork::Warm,
            object: self.object.clone(),
            offset,
            len_bytes: len as u32,
        };
        let body = call.encode();
        let room_bytes = 4096;
        self.asks(OTHERS[0], handle, PeerAsk::Call { body, room_bytes });
    }

    fn gives_up(&self, handle: u64) {
        let handle = RequestHandle(handle);
        let event = TransportEvent::GivenUp { handle };
        self.transport.0.borrow_mut().events.push_back(event);
    }
}

/// It has minutes left by its deadline, and others may need its place.
#[test]
fn what_a_peer_gives_up_leaves_its_place_at_once() {
    let mut bench = Bench::owner();
    let over = FetchStatus::Failed(PeerFailure::Deadline);
    bench.warms_range(1, MIB, 2 * MIB);
    bench.turn();
    assert_eq!(bench.core.jobs.len(), 1);
    bench.gives_up(1);
    // Somebody else's, long answered or never asked.
    bench.gives_up(77);
    bench.turn();
    assert_eq!(bench.all_told(), [(1, over)]);
    assert!(bench.core.jobs.len() == 0);
    // What was under way comes, and nothing else is asked.
    bench.serve_all();
    assert!(bench.core.reads.is_empty());
    let body = Call::Take {
        block: bench.object.block(0),
        size_bytes: BLOCK_BYTES as u64,
        subs: 0b10,
    };
    let ask = PeerAsk::Call {
        body: body.encode(),
        room_bytes: 4096,
    };
    bench.asks(OTHERS[0], 2, ask);
    bench.turn();
    assert_eq!(bench.core.takes.len(), 1);
    let asked = bench.transport.0.borrow_mut().ops.pop_front();
    assert!(
        matches!(asked, Some(TransportOp::Fetch { .. })),
        "{asked:?}"
    );
    bench.gives_up(2);
    bench.turn();
    assert_eq!(bench.core.takes.len(), 0);
}

#[test]
fn what_waits_for_room_for_nobody_is_not_fetched() {
    let mut bench = Bench::owner();
    let many = 40;
    for n in 1..=many {
        bench.warms_range(n, n * MIB, MIB);
    }
    bench.turn();
    assert!(bench.core.lanes.someone_waits(), "not all have room");
    (1..=many).for_each(|n| bench.gives_up(n));
    bench.turn();
    bench.all_told();
    let mut gets = 0;
    while !bench.gets().is_empty() {
        bench.serve();
        gets += 1;
    }
    assert!(gets < many / 2, "{gets}");
    assert!(bench.core.reads.is_empty() && !bench.core.lanes.someone_waits());
}
