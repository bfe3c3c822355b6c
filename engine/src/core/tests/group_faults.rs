//! Peers that are silent, full, slow, without room; views that differ.

use super::disk::{ARENA, OBJECT, media};
use super::group::{OTHERS, everyone, placement};
use super::*;
use crate::identity::Slot;
use crate::limits::STRIPE_BYTES;

impl Bench {
    /// Where a stripe begins that this node does not stand for at all.
    fn foreign_stripe(&self, view: &Placement) -> (u64, Vec<PeerId>) {
        let stripes = (0..64).map(|n| n * STRIPE_BYTES as u64);
        let ranks = |at| -> Vec<PeerId> {
            let slot = Slot::of_stripe(self.object.id, at);
            view.ranked(slot).map(|member| member.id).collect()
        };
        let mut foreign = stripes.map(|at| (at, ranks(at)));
        foreign
            .find(|(_, ranks)| !ranks.contains(&ME))
            .expect("there is one")
    }

    fn set_full(&self, full: bool) {
        self.transport.0.borrow_mut().full = full;
    }
}

#[test]
fn what_a_member_that_left_was_asked_for_is_asked_of_the_one_that_owns_it_now() {
    let (view, gone) = (everyone(), OTHERS[0]);
    let mut bench = Bench::grouped(view.clone());
    let rest = placement(&[(ME, 1), (OTHERS[1], 1), (OTHERS[2], 1)]);
    let at = (0..256)
        .map(|n| n * STRIPE_BYTES as u64)
        .find(|at| {
            let slot = Slot::of_stripe(bench.object.id, *at);
            let owner = |view: &Placement| view.owner(slot).map(|member| member.id);
            owner(&view) == Some(gone) && owner(&rest) == Some(OTHERS[1])
        })
        .expect("one of 256");
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    assert_eq!(asked.to, gone);
    bench.view(rest);
    bench.refuse(asked, Err(TransportError::Cancelled));
    let asked = bench.asked();
    assert_eq!((asked.to, asked.request.forwarded), (OTHERS[1], false));
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
    assert!(bench.gets().is_empty());
}

#[test]
fn what_a_stand_in_had_from_the_origin_is_on_its_disk_when_it_becomes_the_owner() {
    let view = everyone();
    let mut bench = Bench::with_disk(&media(), ARENA, 1 << 30);
    bench.view(view.clone());
    bench.describe();
    let at = bench.stripe_of(&view, ME, 1);
    let request = PeerFetch {
        forwarded: true,
        ..bench.request(at, 64 << 10)
    };
    bench.ask(1, request);
    let asked = bench.asked();
    let gone = asked.to;
    bench.refuse(asked, Err(TransportError::Unreachable));
    bench.serve();
    assert_eq!(bench.told().1, FetchStatus::Bytes);
    bench.settle();
    bench.evict_all();
    let rest = [ME, OTHERS[0], OTHERS[1], OTHERS[2]].map(|id| (id, u32::from(id != gone)));
    bench.view(placement(&rest));
    bench.ask(2, bench.request(at, 64 << 10));
    bench.turn();
    assert!(bench.gets().is_empty(), "it is on disk");
    let (handle, status, _) = bench.told();
    assert_eq!((handle, status), (2, FetchStatus::Bytes));

    // Of what it does not stand for it keeps nothing.
    let (at, ranks) = bench.foreign_stripe(&view);
    bench.view(view);
    for _ in 0..2 {
        bench.read(at, 4096, 0);
        bench.turn();
        while !bench.transport.0.borrow().ops.is_empty() {
            let asked = bench.asked();
            assert!(ranks.contains(&asked.to));
            bench.refuse(asked, Err(TransportError::Unreachable));
        }
        assert_eq!(bench.gets(), [(at, 64 << 10)]);
        bench.serve();
        bench.settle();
        bench.evict_all();
    }
}

#[test]
fn silence_of_three_leaves_time_for_the_origin() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (at, _) = bench.foreign_stripe(&view);
    let started = bench.clock.now();
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    for _ in 0..3 {
        let asked = bench.asked();
        let wait = asked.deadline.since(bench.clock.now());
        bench.pass(wait);
        bench.refuse(asked, Err(TransportError::Timeout));
    }
    assert!(bench.clock.now().since(started) < TIMEOUT * 4 / 5);
    bench.serve();
    expect_bytes(&outcome, at, 4096);
    // Who was silent is asked again after a while, by one at a time.
    bench.pass(Duration::from_secs(4));
    bench.read(at + 2 * MIB, 4096, 0);
    bench.read(at + 3 * MIB, 4096, 0);
    bench.turn();
    let first = bench.asked();
    let second = bench.asked();
    assert_ne!(first.to, second.to, "one probe for each");
}

#[test]
fn a_stand_in_does_not_wait_long_for_a_silent_owner() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.describe();
    let at = bench.stripe_of(&view, ME, 1);
    let request = PeerFetch {
        forwarded: true,
        ..bench.request(at, 64 << 10)
    };
    bench.ask(1, request);
    let asked = bench.asked();
    assert!(asked.deadline.since(bench.clock.now()) <= TIMEOUT / 15);
    // Nor for whom it names: with views that differ that may be who asked here.
    let owner = OTHERS.into_iter().find(|peer| *peer != asked.to).unwrap();
    bench.refuse(asked, Ok(FetchStatus::NotOwner { owner }));
    let asked = bench.asked();
    assert_eq!((asked.to, asked.request.forwarded), (owner, true));
    assert!(asked.deadline.since(bench.clock.now()) <= TIMEOUT / 15);
}

#[test]
fn what_waits_for_a_peer_that_turns_out_silent_goes_on_to_the_next() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (at, ranks) = bench.foreign_stripe(&view);
    bench.read(at, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    assert_eq!(asked.to, ranks[0]);
    bench.set_full(true);
    let outcome = bench.read(at + MIB, 4096, 0);
    bench.turn();
    bench.set_full(false);
    bench.refuse(asked, Err(TransportError::Timeout));
    let next = [bench.asked(), bench.asked()];
    assert!(next.iter().all(|asked| asked.to == ranks[1]));
    for asked in next {
        bench.give(asked, false);
    }
    expect_bytes(&outcome, at + MIB, 4096);
}

#[test]
fn room_that_comes_without_news_is_found() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    bench.set_full(true);
    bench.read(at, 4096, 0);
    bench.turn();
    bench.nobody_asked();
    let wake_at = bench.core.turn(Budget::default()).wake_at;
    assert!(wake_at <= bench.clock.now() + Duration::from_millis(20));
    bench.set_full(false);
    bench.pass(Duration::from_millis(20));
    assert_eq!(bench.asked().to, OTHERS[0]);
}

#[test]
fn a_prefetch_without_room_at_the_owner_is_dropped_and_troubles_nobody_else() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    for status in [
        FetchStatus::Busy,
        FetchStatus::Failed(PeerFailure::Deadline),
    ] {
        let request = Request::Prefetch(PrefetchRequest {
            object: bench.object.clone(),
            offset: at,
            len_bytes: MIB as u32,
            deadline: bench.clock.now() + TIMEOUT,
        });
        bench.ring.push(request).unwrap();
        bench.turn();
        let asked = bench.asked();
        bench.refuse(asked, Ok(status));
        bench.pass(Duration::from_secs(5));
        bench.nobody_asked();
        assert!(bench.gets().is_empty());
    }
    assert_eq!(bench.core.pulls.len(), 0);
    assert_eq!(bench.core.index.len(), 0);
}

#[test]
fn an_owner_that_waits_for_the_origin_is_asked_again_and_nobody_else() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    for _ in 0..3 {
        bench.pass(Duration::from_secs(5));
        let asked = bench.asked();
        assert_eq!((asked.to, asked.request.forwarded), (OTHERS[0], false));
        let status = FetchStatus::Failed(PeerFailure::Deadline);
        bench.refuse(asked, Ok(status));
    }
    bench.pass(Duration::from_secs(2));
    let asked = bench.asked();
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
    assert!(bench.gets().is_empty());
}

#[test]
fn who_leaves_the_view_is_not_waited_for() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let (at, ranks) = bench.foreign_stripe(&view);
    let outcome = bench.read(at, 4096, 0);
    bench.turn();
    let rest: Vec<(PeerId, u32)> = [ME, OTHERS[0], OTHERS[1], OTHERS[2]]
        .into_iter()
        .filter(|peer| *peer != ranks[0])
        .map(|peer| (peer, 1))
        .collect();
    bench.view(placement(&rest));
    let asked = bench.asked();
    assert_ne!(asked.to, ranks[0]);
    bench.give(asked, false);
    expect_bytes(&outcome, at, 4096);
}

#[test]
fn a_member_that_takes_this_node_for_the_owner_is_believed_when_the_view_comes() {
    let before = placement(&[(OTHERS[0], 1)]);
    let after = placement(&[(OTHERS[0], 0), (ME, 1)]);
    let mut bench = Bench::grouped(before);
    let outcome = bench.read(0, 4096, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(asked, Ok(FetchStatus::NotOwner { owner: ME }));
    assert!(bench.gets().is_empty(), "not to the origin at once");
    bench.view(after);
    bench.pass(Duration::from_secs(1));
    let asked = bench.asked();
    assert!(asked.request.cached_only, "it asks who owned it before");
    bench.refuse(
        asked,
        Ok(FetchStatus::NotCached {
            here: 0,
            before: None,
        }),
    );
    bench.serve();
    expect_bytes(&outcome, 0, 4096);
}

#[test]
fn the_same_view_again_is_no_earlier_one() {
    let before = placement(&[(OTHERS[0], 1)]);
    let after = placement(&[(OTHERS[0], 1), (ME, 1000)]);
    let mut bench = Bench::grouped(before);
    for _ in 0..20 {
        bench.view(after.clone());
    }
    let at = bench.stripe_of(&after, ME, 0);
    bench.read(at, 4096, 0);
    bench.turn();
    assert_eq!(bench.asked().to, OTHERS[0]);
}

/// A core in a group that owns everything, with 8 MiB on disk and nothing in memory.
fn owner_with_disk() -> Bench {
    let mut bench = Bench::with_disk(&media(), ARENA, OBJECT);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0), (OTHERS[1], 0)]));
    bench.describe();
    for at in 0..8 {
        bench.get(at * MIB, MIB);
    }
    bench.settle();
    bench.evict_all();
    bench
}

#[test]
fn what_is_on_disk_does_not_wait_for_an_origin_that_hangs() {
    let mut bench = owner_with_disk();
    for handle in 0..64 {
        let request = bench.request((12 + handle * 32) * MIB % OBJECT, MIB);
        bench.ask(100 + handle, request);
    }
    let misses: Vec<Outcome> = (1..40)
        .map(|n| bench.read(8 * MIB + n * MIB, MIB, 0))
        .collect();
    bench.turn();
    let on_disk = bench.read(MIB, MIB, 0);
    bench.turn();
    bench.settle();
    expect_bytes(&on_disk, MIB, MIB);
    let request = bench.request(2 * MIB, MIB);
    bench.ask(1, request);
    bench.settle();
    let (handle, status, _) = bench.told();
    assert_eq!((handle, status), (1, FetchStatus::Bytes));
    assert!(misses.iter().all(|outcome| outcome.lock().is_empty()));
}

#[test]
fn a_peer_that_takes_nothing_does_not_keep_others_from_being_served() {
    let mut bench = Bench::new(64 * MIB, 1 << 30);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0), (OTHERS[1], 0)]));
    bench.describe();
    let warm = bench.read(0, MIB, 0);
    bench.serve_all();
    expect_bytes(&warm, 0, MIB);
    for handle in 0..40 {
        // Small answers from a large buffer count as what they hold.
        let request = bench.request(handle % 16 * 4096, 4096);
        bench.ask(handle, request);
    }
    let lent = bench.transport.0.borrow().ops.len();
    assert!(lent < 12, "{lent} answers hold a MiB each");
    let event = TransportEvent::Request {
        handle: RequestHandle(99),
        peer: OTHERS[1],
        ask: PeerAsk::Fetch(bench.request(0, 4096)),
        deadline: bench.clock.now() + TIMEOUT,
    };
    bench.transport.0.borrow_mut().events.push_back(event);
    bench.turn();
    let script = bench.transport.0.borrow();
    let Some(TransportOp::Answer { handle, status, .. }) = script.ops.back() else {
        panic!("an answer is expected")
    };
    assert_eq!((handle.0, *status), (99, FetchStatus::Bytes));
}

#[test]
fn a_peer_that_needs_bytes_goes_before_one_that_reads_ahead() {
    let mut bench = Bench::new(16 * MIB, 1 << 30);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0)]));
    bench.describe();
    for n in 0..12 {
        let request = PeerFetch {
            class: Class::Prefetch,
            ..bench.request(n * 16 * MIB, MIB)
        };
        bench.ask(n, request);
    }
    let request = bench.request(40 * 16 * MIB, 64 << 10);
    bench.ask(99, request);
    let mut order = Vec::new();
    while order.last() != Some(&99) {
        bench.serve();
        while !bench.transport.0.borrow().ops.is_empty() {
            order.push(bench.told().0);
        }
    }
    assert!(order.len() < 8, "{order:?}");
}

#[test]
fn there_is_another_turn_after_the_transport_got_something() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    bench.set_full(true);
    bench.read(at, 4096, 0);
    bench.turn();
    bench.set_full(false);
    let later = bench.clock.now() + Duration::from_millis(20);
    bench.clock.0.set(later.0);
    assert!(bench.core.turn(Budget::default()).progressed);
    assert_eq!(bench.transport.0.borrow().ops.len(), 1);
}
