//! The core in a group: whom it asks, what it answers, and what comes of silence.

use super::*;
use crate::checksum::BlockSeed;
use crate::identity::Slot;
use crate::limits::{PAGE_BYTES, STRIPE_BYTES};
use crate::wire::call::Call;

pub(super) const OTHERS: [PeerId; 3] = [PeerId(2), PeerId(3), PeerId(4)];
const FAR: Time = Time(u64::MAX / 2);

pub(super) fn placement(members: &[(PeerId, u32)]) -> Arc<Placement> {
    let members = members.iter().map(|(id, weight)| Member {
        id: *id,
        weight: *weight,
        cores: 1,
        addresses: Arc::new([]),
    });
    Arc::new(Placement::new(View::new(members.collect())))
}

pub(super) fn everyone() -> Arc<Placement> {
    placement(&[(ME, 1), (OTHERS[0], 1), (OTHERS[1], 1), (OTHERS[2], 1)])
}

/// What a fetch at a peer was, with what answers it.
pub(super) struct Asked {
    pub to: PeerId,
    pub request: PeerFetch,
    tag: FetchTag,
    lease: Lease,
    pub deadline: Time,
}

impl Bench {
    pub(super) fn grouped(view: Arc<Placement>) -> Self {
        let mut bench = Self::new(64 * MIB, 1 << 30);
        bench.view(view);
        bench
    }

    pub(super) fn view(&mut self, view: Arc<Placement>) {
        self.views.0.borrow_mut().push_back(view);
        self.turn();
    }

    /// Where a stripe begins of which `rank` in the view is `who`.
    pub(super) fn stripe_of(&self, view: &Placement, who: PeerId, rank: usize) -> u64 {
        let mut stripes = (0..64).map(|n| n * STRIPE_BYTES as u64);
        let is_his = |at: &u64| {
            let slot = Slot::of_stripe(self.object.id, *at);
            view.ranked(slot).nth(rank).map(|member| member.id) == Some(who)
        };
        stripes.find(is_his).expect("he has one of 64")
    }

    pub(super) fn asked(&self) -> Asked {
        match self.transport.0.borrow_mut().ops.pop_front() {
            Some(TransportOp::Fetch {
                tag,
                to,
                request,
                lease,
                deadline,
            }) => Asked {
                to: to.peer,
                request,
                tag,
                lease,
                deadline,
            },
            other => panic!("a fetch is expected, not {other:?}"),
        }
    }

    pub(super) fn nobody_asked(&self) {
        let script = self.transport.0.borrow();
        assert!(script.ops.is_empty(), "{:?}", script.ops);
    }

    pub(super) fn give(&mut self, asked: Asked, spoil: bool) {
        let Asked { request, lease, .. } = asked;
        let mut lease = filled(lease, request.offset);
        let block = self.object.block(request.offset);
        let first = (request.offset - block.offset()) as usize / PAGE_BYTES;
        let checksums = BlockSeed::of(block).checksums(first as u32, lease.bytes());
        if spoil {
            lease.bytes_mut()[77] ^= 1;
        }
        self.end(asked.tag, lease, Ok(FetchStatus::Bytes), checksums.to_vec());
    }

    pub(super) fn refuse(&mut self, asked: Asked, result: Result<FetchStatus, TransportError>) {
        self.end(asked.tag, asked.lease, result, Vec::new());
    }

    pub(super) fn end(
        &mut self,
        tag: FetchTag,
        lease: Lease,
        result: Result<FetchStatus, TransportError>,
        checksums: Vec<u32>,
    ) {
        let len_bytes = match result {
            Ok(FetchStatus::Bytes) => lease.len() as u32,
            _ => 0,
        };
        let event = TransportEvent::Fetched {
            tag,
            lease,
            result,
            len_bytes,
            checksums,
        };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
    }

    /// A peer asks; its handle is `handle`.
    pub(super) fn ask(&mut self, handle: u64, request: PeerFetch) {
        let event = TransportEvent::Request {
            handle: RequestHandle(handle),
            peer: OTHERS[0],
            ask: PeerAsk::Fetch(request),
            deadline: self.clock.now() + TIMEOUT,
        };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
    }

    pub(super) fn request(&self, offset: u64, len: u64) -> PeerFetch {
        PeerFetch {
            object: self.object.id,
            size_bytes: self.object.size_bytes,
            offset,
            len_bytes: len as u32,
            want_bytes: len as u32,
            class: Class::Demand,
            view: 0,
            cached_only: false,
            forwarded: false,
            verify: false,
        }
    }

    pub(super) fn describe(&mut self) {
        let event = TransportEvent::Request {
            handle: RequestHandle(1 << 40),
            peer: OTHERS[0],
            ask: PeerAsk::Call {
                body: Call::Describe(self.object.clone()).encode(),
                room_bytes: 4096,
            },
            deadline: FAR,
        };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
        assert_eq!(self.told(), (1 << 40, FetchStatus::Bytes, None));
    }

    /// The oldest answer to a peer; of bytes, where they begin is checked by the caller.
    pub(super) fn told(&mut self) -> (u64, FetchStatus, Option<Vec<u8>>) {
        let op = self.transport.0.borrow_mut().ops.pop_front();
        let Some(TransportOp::Answer {
            handle,
            status,
            payload,
        }) = op
        else {
            panic!("an answer is expected, not {op:?}")
        };
        let bytes = payload.as_ref().and_then(|payload| {
            let whole: Vec<u8> = payload
                .parts
                .iter()
                .flat_map(|part| part.to_vec())
                .collect();
            (!payload.checksums.is_empty()).then_some(whole)
        });
        let event = TransportEvent::Answered { handle, payload };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
        (handle.0, status, bytes)
    }

    pub(super) fn nothing_told(&self) {
        self.nobody_asked();
    }
}

fn right(bytes: &[u8], offset: u64) -> bool {
    bytes
        .iter()
        .zip(offset..)
        .all(|(byte, at)| *byte == byte_at(at))
}

#[test]
fn a_reader_is_served_by_the_owner_and_the_origin_is_not_asked() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[1], 0);
    let outcome = bench.read(at + 5, 10_000, 10_000);
    bench.turn();
    let asked = bench.asked();
    assert_eq!(asked.to, OTHERS[1]);
    let request = asked.request;
    assert_eq!((request.offset, request.len_bytes), (at, 64 << 10));
    assert!(!request.cached_only && !request.forwarded && !request.verify);
    assert_eq!(request.view, view.view().digest());
    bench.give(asked, false);
    expect_bytes(&outcome, at + 5, 10_000);
    bench.nobody_asked();
    assert!(bench.gets().is_empty());
    let stats = bench.core.stats();
    assert_eq!((stats.group_hits, stats.misses), (1, 0));
    assert_eq!(stats.pulled_bytes, 64 << 10);
    assert_eq!(stats.ledger.total_bytes(), 0);
    // Again: from memory.
    let again = bench.read(at + 5, 10_000, 0);
    bench.turn();
    expect_bytes(&again, at + 5, 10_000);
    bench.nobody_asked();
}

#[test]
fn two_readers_share_one_pull_and_prefetches_become_urgent() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let first = bench.read(at, MIB, 2 * MIB);
    let second = bench.read(at + MIB, 4096, 0);
    bench.turn();
    let [one, two] = [bench.asked(), bench.asked()];
    bench.nobody_asked();
    assert_eq!(
        (one.request.len_bytes, two.request.len_bytes),
        (1 << 20, 1 << 20)
    );
    assert_eq!(one.request.want_bytes, 2 << 20);
    bench.give(two, false);
    bench.give(one, false);
    expect_bytes(&first, at, MIB);
    expect_bytes(&second, at + MIB, 4096);
}

#[test]
fn three_ranks_are_tried_and_then_the_origin() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    // A stripe in whose ranks this node is not.
    let stripes = (0..64).map(|n| n * STRIPE_BYTES as u64);
    let slot = |at| Slot::of_stripe(bench.object.id, at);
    let ranks = |at| -> Vec<PeerId> { view.ranked(slot(at)).map(|member| member.id).collect() };
    let at = stripes
        .into_iter()
        .find(|at| !ranks(*at).contains(&ME))
        .unwrap();
    let ranks = ranks(at);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    for (rank, peer) in ranks.iter().enumerate() {
        let asked = bench.asked();
        assert_eq!((asked.to, asked.request.forwarded), (*peer, rank > 0));
        assert!(asked.deadline < bench.clock.now() + TIMEOUT);
        bench.refuse(asked, Err(TransportError::Unreachable));
    }
    assert_eq!(bench.gets(), [(at, 64 << 10)]);
    bench.serve();
    expect_bytes(&outcome, at, 4096);
    assert_eq!(bench.core.stats().misses, 1);
    // They are passed over at once now.
    let next = bench.read(at + MIB, 4096, 0);
    bench.turn();
    bench.nobody_asked();
    bench.serve();
    expect_bytes(&next, at + MIB, 4096);
    // After a while the owner is asked again.
    bench.pass(Duration::from_secs(4));
    bench.read(at + 2 * MIB, 4096, 0);
    bench.turn();
    assert_eq!(bench.asked().to, ranks[0]);
}

#[test]
fn a_member_that_does_not_own_names_the_one_that_does_and_no_loop_comes_of_it() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    let owner = OTHERS[2];
    bench.refuse(asked, Ok(FetchStatus::NotOwner { owner }));
    let asked = bench.asked();
    assert_eq!((asked.to, asked.request.forwarded), (owner, true));
    // It names another one: the next rank is asked, or the origin, but nobody twice.
    let owner = OTHERS[0];
    bench.refuse(asked, Ok(FetchStatus::NotOwner { owner }));
    while !bench.transport.0.borrow().ops.is_empty() {
        let asked = bench.asked();
        assert_ne!(asked.to, OTHERS[0]);
        bench.refuse(asked, Err(TransportError::Timeout));
    }
    bench.serve();
    expect_bytes(&outcome, at, 4096);
}

#[test]
fn an_owner_that_still_names_one_that_has_left_is_asked_in_its_stead() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let owner = PeerId(77);
    let mut waits = 0;
    let asked = loop {
        let asked = bench.asked();
        assert_eq!(asked.to, OTHERS[0], "the next in line would read it again");
        if asked.request.forwarded {
            break asked;
        }
        waits += 1;
        assert!(waits < 10, "it is asked the same for ever");
        bench.refuse(asked, Ok(FetchStatus::NotOwner { owner }));
        bench.pass(Duration::from_secs(1));
    };
    assert!(waits > 1, "the view on its way is waited for first");
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
    assert!(bench.gets().is_empty());
}

#[test]
fn a_name_is_told_when_it_is_asked_for() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(asked, Ok(FetchStatus::NeedName));
    let op = bench.transport.0.borrow_mut().ops.pop_front();
    let Some(TransportOp::Call {
        tag,
        to,
        body,
        mut lease,
        ..
    }) = op
    else {
        panic!("a description is expected, not {op:?}")
    };
    assert_eq!(to.peer, OTHERS[0]);
    let told = Call::decode(&body).unwrap();
    let expected = Call::Describe(bench.object.clone());
    assert_eq!(told, expected);
    lease.truncate(1);
    bench.end(tag, lease, Ok(FetchStatus::Bytes), Vec::new());
    let asked = bench.asked();
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
}

#[test]
fn an_owner_too_busy_to_learn_a_name_has_answered_and_is_asked_again() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(asked, Ok(FetchStatus::NeedName));
    let op = bench.transport.0.borrow_mut().ops.pop_front();
    let Some(TransportOp::Call { tag, lease, .. }) = op else {
        panic!("a description is expected, not {op:?}")
    };
    bench.end(tag, lease, Ok(FetchStatus::Busy), Vec::new());
    bench.nobody_asked();
    bench.pass(Duration::from_secs(2));
    let asked = bench.asked();
    assert_eq!(asked.to, OTHERS[0]);
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
    assert_eq!(bench.core.stats().peer_failures, 0);
}

#[test]
fn bytes_that_went_wrong_on_the_way_are_asked_for_again_and_never_served() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.give(asked, true);
    let asked = bench.asked();
    assert!(asked.request.verify, "the owner is to look at its own");
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
    assert_eq!(bench.core.stats().checksum_failures, 1);
}

#[test]
fn what_the_origin_will_not_give_the_owner_is_not_asked_for_again() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    let failure = PeerFailure::Origin(OriginErrorKind::VersionChanged);
    bench.refuse(asked, Ok(FetchStatus::Failed(failure)));
    assert_eq!(outcome.lock()[..], [Err(ReadError::VersionChanged)]);
    bench.nobody_asked();
    assert!(bench.gets().is_empty());
}

#[test]
fn a_busy_owner_is_asked_again_later() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(asked, Ok(FetchStatus::Busy));
    bench.nobody_asked();
    bench.pass(Duration::from_secs(2));
    let asked = bench.asked();
    assert_eq!(asked.to, OTHERS[0]);
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
}

#[test]
fn an_owner_brings_what_a_peer_asks_for_once_for_all() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, ME, 0);
    let request = bench.request(at, 64 << 10);
    bench.ask(1, request);
    assert_eq!(bench.told(), (1, FetchStatus::NeedName, None));
    bench.describe();
    bench.ask(2, request);
    bench.ask(3, request);
    let own = bench.read(at + 100, 50, 0);
    bench.turn();
    bench.nothing_told();
    assert_eq!(bench.gets(), [(at, 64 << 10)]);
    bench.serve();
    expect_bytes(&own, at + 100, 50);
    for handle in [2, 3] {
        let (told, status, bytes) = bench.told();
        assert_eq!((told, status), (handle, FetchStatus::Bytes));
        assert!(right(&bytes.unwrap(), at));
    }
    let stats = bench.core.stats();
    assert_eq!((stats.serves, stats.served_bytes), (2, 128 << 10));
    assert_eq!(stats.reads, 1, "peers' requests are no reads of this node");
    assert!(bench.core.serving.is_quiet());
    assert_eq!(bench.core.lanes.admitted_bytes(), 0);
}

#[test]
fn what_a_requester_began_goes_on_without_it() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, ME, 0);
    bench.describe();
    let request = bench.request(at, 64 << 10);
    let event = TransportEvent::Request {
        handle: RequestHandle(1),
        peer: OTHERS[0],
        ask: PeerAsk::Fetch(request),
        deadline: bench.clock.now() + Duration::from_millis(50),
    };
    bench.transport.0.borrow_mut().events.push_back(event);
    bench.turn();
    bench.pass(Duration::from_millis(60));
    let late = FetchStatus::Failed(PeerFailure::Deadline);
    assert_eq!(bench.told(), (1, late, None));
    bench.ask(2, request);
    assert_eq!(bench.gets().len(), 1);
    bench.serve();
    assert_eq!(bench.told().1, FetchStatus::Bytes);
}

#[test]
fn who_does_not_own_gives_what_is_here_and_names_the_owner_for_the_rest() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.describe();
    let owner = OTHERS[0];
    let at = bench.stripe_of(&view, owner, 0);
    let request = bench.request(at, 64 << 10);
    bench.ask(1, request);
    let not_owner = FetchStatus::NotOwner { owner };
    assert_eq!(bench.told(), (1, not_owner, None));
    let only = PeerFetch {
        cached_only: true,
        ..request
    };
    bench.ask(2, only);
    assert_eq!(
        bench.told(),
        (
            2,
            FetchStatus::NotCached {
                here: 0,
                before: None
            },
            None
        )
    );
    // What this node itself waits for from a peer nobody waits for here: that would be a ring.
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.ask(3, only);
    assert_eq!(
        bench.told(),
        (
            3,
            FetchStatus::NotCached {
                here: 0,
                before: None
            },
            None
        )
    );
    bench.ask(4, request);
    assert_eq!(bench.told(), (4, not_owner, None));
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
    for (handle, request) in [(5, request), (6, only)] {
        bench.ask(handle, request);
        let (told, status, bytes) = bench.told();
        assert_eq!((told, status), (handle, FetchStatus::Bytes));
        assert!(right(&bytes.unwrap(), at));
    }
    assert!(bench.gets().is_empty());
}

#[test]
fn a_stand_in_asks_the_owner_before_the_origin() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.describe();
    let at = bench.stripe_of(&view, ME, 1);
    let owner = view.owner(Slot::of_stripe(bench.object.id, at)).unwrap().id;
    let request = PeerFetch {
        forwarded: true,
        ..bench.request(at, 64 << 10)
    };
    bench.ask(1, request);
    let asked = bench.asked();
    assert_eq!((asked.to, asked.request.forwarded), (owner, false));
    bench.refuse(asked, Err(TransportError::Unreachable));
    assert_eq!(bench.gets(), [(at, 64 << 10)]);
    bench.serve();
    assert_eq!(bench.told().1, FetchStatus::Bytes);
    // From now on the owner is passed over: what is read in its stead is booked so, also what nobody waits for yet.
    let request = PeerFetch {
        forwarded: true,
        ..bench.request(at + MIB, 64 << 10)
    };
    bench.ask(2, request);
    bench.nobody_asked();
    assert_eq!(bench.gets(), [(at + MIB, 64 << 10)]);
    bench.serve();
    assert_eq!(bench.told().1, FetchStatus::Bytes);
    let moved = bench.core.stats().ledger.bytes(Reason::RingMoved);
    assert_eq!(moved, 2 * (64 << 10));
}

#[test]
fn a_new_owner_asks_the_one_before_and_waits_for_what_is_on_its_way_there() {
    let before = placement(&[(OTHERS[0], 1), (OTHERS[1], 1)]);
    let after = placement(&[(ME, 1), (OTHERS[0], 1), (OTHERS[1], 1)]);
    let mut bench = Bench::grouped(before.clone());
    bench.view(after.clone());
    let at = bench.stripe_of(&after, ME, 0);
    let old = before
        .owner(Slot::of_stripe(bench.object.id, at))
        .unwrap()
        .id;
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    assert_eq!((asked.to, asked.request.cached_only), (old, true));
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
    assert!(bench.gets().is_empty());
    // Not there either: the origin.
    let outcome = bench.read(at + MIB, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(
        asked,
        Ok(FetchStatus::NotCached {
            here: 0,
            before: None,
        }),
    );
    assert_eq!(bench.gets(), [(at + MIB, 64 << 10)]);
    bench.serve();
    expect_bytes(&outcome, at + MIB, 4096);
    assert_eq!(bench.core.stats().ledger.bytes(Reason::Cold), 64 << 10);
    // Silent: the origin, and the ledger says why.
    let outcome = bench.read(at + 2 * MIB, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(asked, Err(TransportError::Timeout));
    bench.serve();
    expect_bytes(&outcome, at + 2 * MIB, 4096);
    assert_eq!(bench.core.stats().ledger.bytes(Reason::RingMoved), 64 << 10);
}

#[test]
fn an_earlier_owner_lets_the_new_one_join_its_get() {
    let before = placement(&[(ME, 1), (OTHERS[0], 1)]);
    let after = placement(&[(ME, 1), (OTHERS[0], 1), (OTHERS[1], 4)]);
    let mut bench = Bench::grouped(before.clone());
    let stripes = (0..64).map(|n| n * STRIPE_BYTES as u64);
    let owns = |view: &Placement, at: u64, who: PeerId| {
        view.owner(Slot::of_stripe(bench.object.id, at)).unwrap().id == who
    };
    let mut moved = stripes.filter(|at| owns(&before, *at, ME) && owns(&after, *at, OTHERS[1]));
    let at = moved.next().unwrap();
    let own = bench.read(at, 4096, 0);
    bench.turn();
    bench.view(after);
    let request = PeerFetch {
        cached_only: true,
        ..bench.request(at, 64 << 10)
    };
    bench.ask(1, request);
    bench.nothing_told();
    bench.serve();
    expect_bytes(&own, at, 4096);
    let (_, status, bytes) = bench.told();
    assert_eq!(status, FetchStatus::Bytes);
    assert!(right(&bytes.unwrap(), at));
}

#[test]
fn nonsense_from_a_peer_is_refused() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.describe();
    let at = bench.stripe_of(&view, ME, 0);
    let good = bench.request(at, 64 << 10);
    let size_bytes = good.size_bytes;
    let bad = [
        PeerFetch {
            offset: at + 1,
            ..good
        },
        PeerFetch {
            len_bytes: 0,
            ..good
        },
        PeerFetch {
            len_bytes: 5000,
            ..good
        },
        PeerFetch {
            len_bytes: (1 << 20) + 4096,
            ..good
        },
        PeerFetch {
            len_bytes: u32::MAX,
            ..good
        },
        PeerFetch {
            offset: u64::MAX - 4095,
            ..good
        },
        PeerFetch {
            offset: size_bytes,
            ..good
        },
        PeerFetch {
            offset: at + 4 * MIB - 4096,
            len_bytes: 8192,
            ..good
        },
        PeerFetch {
            size_bytes: u64::MAX,
            ..good
        },
        PeerFetch {
            size_bytes: 0,
            ..good
        },
    ];
    for (handle, request) in (1..).zip(bad) {
        bench.ask(handle, request);
        let (told, status, bytes) = bench.told();
        let invalid = FetchStatus::Failed(PeerFailure::Invalid);
        assert_eq!((told, bytes), (handle, None), "{request:?}");
        // A stripe that another owns is another matter, when nothing else is wrong.
        assert!(
            status == invalid || matches!(status, FetchStatus::NotOwner { .. }),
            "{request:?}: {status:?}"
        );
    }
    let event = TransportEvent::Request {
        handle: RequestHandle(99),
        peer: OTHERS[0],
        ask: PeerAsk::Call {
            body: Box::new([0xff; 40]),
            room_bytes: 0,
        },
        deadline: FAR,
    };
    bench.transport.0.borrow_mut().events.push_back(event);
    bench.turn();
    let invalid = FetchStatus::Failed(PeerFailure::Invalid);
    assert_eq!(bench.told(), (99, invalid, None));
}

#[test]
fn before_the_first_view_peers_are_told_to_come_again() {
    let mut bench = Bench::new(64 * MIB, 1 << 30);
    let request = bench.request(0, 4096);
    bench.ask(1, request);
    assert_eq!(bench.told(), (1, FetchStatus::Busy, None));
}

#[test]
fn what_is_lent_to_slow_peers_is_bounded_and_readers_go_on() {
    let view = placement(&[(ME, 1)]);
    let mut bench = Bench::grouped(view);
    bench.describe();
    let warm = bench.read(0, MIB, 0);
    bench.serve_all();
    expect_bytes(&warm, 0, MIB);
    for handle in 0..64 {
        let request = bench.request(0, MIB);
        bench.ask(handle, request);
    }
    let lent = bench.transport.0.borrow().ops.len();
    assert!((8..=17).contains(&lent), "{lent} MiB of 64 are lent");
    for round in 1..6 {
        let outcome = bench.read(round * 16 * MIB, 8 * MIB, 0).clone();
        drop(outcome);
        let outcome = bench.read(round * 16 * MIB, MIB, 0);
        bench.serve_all_gets();
        expect_bytes(&outcome, round * 16 * MIB, MIB);
    }
    for handle in 0..64 {
        assert_eq!(bench.told().0, handle);
    }
    assert!(bench.core.serving.is_quiet());
}

#[test]
fn a_shutdown_answers_readers_and_peers() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.describe();
    let mine = bench.stripe_of(&view, ME, 0);
    let his = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(his, 4096, 0);
    bench.turn();
    let request = bench.request(mine, 64 << 10);
    bench.ask(1, request);
    bench.ring.push(Request::Shutdown).unwrap();
    bench.turn();
    assert_eq!(outcome.lock()[..], [Err(ReadError::Shutdown)]);
    let told = bench.told();
    assert_eq!(told.1, FetchStatus::Failed(PeerFailure::Shutdown));
    let get = bench.next_get();
    bench.push(OriginEvent::GetDone {
        tag: get.tag,
        result: Err(OriginError::new(OriginErrorKind::Cancelled, "scripted")),
        unfilled: get.leases,
        wasted_bytes: 0,
    });
    bench.turn();
    assert!(bench.core.is_quiet());
}

impl Bench {
    fn serve_all_gets(&mut self) {
        self.turn();
        while !self.origin.0.borrow().ops.is_empty() {
            self.serve();
        }
    }
}
