//! Bytes while the origin does not answer this node: what it does for itself, and what it tells others.

use super::group::{OTHERS, everyone, placement};
use super::metadata_group::MS;
use super::*;

const SILENT: FetchStatus = FetchStatus::Failed(PeerFailure::Origin(OriginErrorKind::Unavailable));

impl Bench {
    /// A member of a group that has just found out that the origin does not answer it.
    fn cut_off() -> (Self, Arc<Placement>) {
        let view = everyone();
        let mut bench = Self::grouped(view.clone());
        bench.outage();
        bench.origin.0.borrow_mut().ops.clear();
        (bench, view)
    }
}

#[test]
fn an_owner_that_is_cut_off_sends_askers_on_at_once_and_gives_what_it_has() {
    let (mut bench, view) = Bench::cut_off();
    let at = bench.stripe_of(&view, ME, 0);
    bench.describe();
    bench.ask(1, bench.request(at, MIB));
    assert_eq!(bench.told(), (1, SILENT, None));
    // With the origin back it fetches, and what it has it gives even when that is gone again.
    bench.core.outages = Default::default();
    bench.ask(2, bench.request(at, MIB));
    bench.serve();
    assert_eq!(bench.told().1, FetchStatus::Bytes);
    bench.outage_again();
    bench.ask(3, bench.request(at, MIB));
    assert_eq!(bench.told().1, FetchStatus::Bytes);
}

#[test]
fn bytes_of_an_owner_that_is_refused_or_reads_elsewhere_come_from_others() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let slot = |at: u64| crate::identity::Slot::of_stripe(bench.object.id, at);
    let mut stripes = (0..64).map(|n| n * crate::limits::STRIPE_BYTES as u64);
    let of_others = |at: &u64| view.ranked(slot(*at)).all(|member| member.id != ME);
    let at = stripes.find(of_others).expect("one of 64");
    let ranks: Vec<PeerId> = view.ranked(slot(at)).map(|member| member.id).collect();
    for (n, failure) in [
        PeerFailure::Origin(OriginErrorKind::Denied),
        PeerFailure::Origin(OriginErrorKind::WrongRegion),
        PeerFailure::Elsewhere,
    ]
    .into_iter()
    .enumerate()
    {
        let at = at + n as u64 * MIB;
        let outcome = bench.read(at, MIB, 0);
        bench.turn();
        for rank in &ranks[..ranks.len() - 1] {
            let asked = bench.asked();
            assert_eq!(asked.to, *rank);
            bench.refuse(asked, Ok(FetchStatus::Failed(failure)));
        }
        let asked = bench.asked();
        bench.give(asked, false);
        expect_bytes(&outcome, at, MIB);
    }
    // Refused here too, it is told.
    let at = at + 3 * MIB;
    let outcome = bench.read(at, MIB, 0);
    bench.turn();
    for _ in &ranks {
        let asked = bench.asked();
        let denied = PeerFailure::Origin(OriginErrorKind::Denied);
        bench.refuse(asked, Ok(FetchStatus::Failed(denied)));
    }
    bench.fail(OriginErrorKind::Denied, 0);
    let outcome = outcome.lock();
    assert!(
        matches!(&outcome[..], [Err(ReadError::Origin(error))] if error.kind == OriginErrorKind::Denied),
        "{outcome:?}"
    );
}

#[test]
fn an_owner_gives_what_it_has_of_another_endpoint_and_fetches_nothing() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, ME, 0);
    bench.describe();
    bench.ask(1, bench.request(at, MIB));
    bench.serve();
    assert_eq!(bench.told().1, FetchStatus::Bytes);
    bench.core.config.endpoint = Some("http://another".into());
    bench.ask(2, bench.request(at, MIB));
    assert_eq!(bench.told().1, FetchStatus::Bytes);
    bench.ask(3, bench.request(at + MIB, MIB));
    let elsewhere = FetchStatus::Failed(PeerFailure::Elsewhere);
    assert_eq!(bench.told(), (3, elsewhere, None));
    assert_eq!(bench.gets(), []);
}

#[test]
fn readers_of_an_owner_that_is_cut_off_get_their_bytes_from_those_that_stand_for_it() {
    let (mut bench, view) = Bench::cut_off();
    let at = bench.stripe_of(&view, ME, 0);
    let outcome = bench.read(at, MIB, 0);
    bench.turn();
    let asked = bench.asked();
    assert!(OTHERS.contains(&asked.to) && asked.request.forwarded);
    bench.refuse(asked, Ok(SILENT));
    let asked = bench.asked();
    bench.give(asked, false);
    expect_bytes(&outcome, at, MIB);
    // When none of them reaches it either, the origin is waited for.
    let outcome = bench.read(at + MIB, MIB, 0);
    bench.turn();
    for _ in 0..2 {
        let asked = bench.asked();
        bench.refuse(asked, Ok(SILENT));
    }
    bench.nobody_asked();
    assert_eq!(bench.gets(), [(at + MIB, MIB)]);
    bench.fail(OriginErrorKind::Unavailable, 0);
    bench.pass(3 * Duration::from_secs(1));
    let is_get = |op: &OriginOp| matches!(op, OriginOp::Get(_));
    bench.origin.0.borrow_mut().ops.retain(is_get);
    bench.serve();
    expect_bytes(&outcome, at + MIB, MIB);
    let moved = bench.core.stats().ledger.bytes(Reason::RingMoved);
    assert_eq!(moved, MIB);
}

#[test]
fn what_a_busy_member_is_asked_is_asked_of_others_in_a_new_view_too() {
    let (mut bench, view) = Bench::cut_off();
    let [a, b, c] = OTHERS.map(|other| (other, 1));
    let larger = placement(&[(ME, 1), a, b, c, (PeerId(5), 1)]);
    let mine = |at: &u64| {
        let slot = crate::identity::Slot::of_stripe(bench.object.id, *at);
        [&view, &larger].map(|view| view.owner(slot).unwrap().id) == [ME, ME]
    };
    let mut stripes = (0..64).map(|n| n * crate::limits::STRIPE_BYTES as u64);
    let at = stripes.find(mine).expect("one of 64");
    let outcome = bench.read(at, MIB, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(asked, Ok(FetchStatus::Busy));
    bench.view(larger);
    for _ in 0..100 {
        if bench.transport.0.borrow().ops.is_empty() {
            bench.pass(10 * MS);
        }
    }
    let asked = bench.asked();
    assert!(asked.request.forwarded);
    bench.give(asked, false);
    expect_bytes(&outcome, at, MIB);
}

#[test]
fn what_waits_for_the_origin_when_it_is_found_silent_is_asked_of_others() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, ME, 0);
    bench.describe();
    let outcome = bench.read(at, MIB, 0);
    bench.turn();
    bench.ask(7, bench.request(at, MIB));
    let gets = bench.gets().len();
    assert!(gets >= 1);
    for _ in 0..100 {
        if bench.transport.0.borrow().ops.is_empty() {
            bench.fail_all();
            bench.pass(50 * MS);
        }
    }
    // The peer goes on itself; this node's reader is served by others.
    let asked = bench.asked();
    assert!(asked.request.forwarded);
    assert_eq!(bench.told(), (7, SILENT, None));
    bench.give(asked, false);
    expect_bytes(&outcome, at, MIB);
}

#[test]
fn a_stand_in_that_the_owner_asks_does_not_ask_it_in_turn() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let stripes = (0..256).map(|n| n * crate::limits::STRIPE_BYTES as u64);
    let slot = |at| crate::identity::Slot::of_stripe(bench.object.id, at);
    let ranks = |at| -> Vec<PeerId> { view.ranked(slot(at)).map(|member| member.id).collect() };
    let mut stripes = stripes.filter(|at| ranks(*at)[..2] == [OTHERS[0], ME]);
    let at = stripes.next().expect("one of them");
    bench.describe();
    // The bench's asker is the owner.
    let request = PeerFetch {
        forwarded: true,
        ..bench.request(at, MIB)
    };
    bench.ask(1, request);
    bench.nobody_asked();
    assert_eq!(bench.gets(), [(at, MIB)]);
    bench.serve();
    assert_eq!(bench.told().1, FetchStatus::Bytes);
}

/// A member that joined asks earlier owners first; none of them has anything.
#[test]
fn members_that_have_nothing_to_give_cost_nothing_of_the_limit() {
    let mut bench = Bench::new(64 * MIB, 1 << 30);
    bench.core.pull_ceiling = crate::core::limit::Ceiling::new(Some(1 << 10));
    bench.view(placement(&[(OTHERS[0], 1)]));
    let both = placement(&[(ME, 1), (OTHERS[0], 1)]);
    bench.view(both.clone());
    let at = bench.stripe_of(&both, ME, 0);
    let outcome = bench.read(at, MIB, 8 * MIB);
    bench.turn();
    let mut declined = 0;
    while !bench.transport.0.borrow().ops.is_empty() {
        let asked = bench.asked();
        assert!(asked.request.cached_only);
        let status = FetchStatus::NotCached {
            here: 0,
            before: None,
        };
        bench.refuse(asked, Ok(status));
        declined += 1;
    }
    // At a KiB a second one that came would have held up the next for a quarter of an hour.
    assert_eq!(declined, 8);
    bench.serve_all();
    expect_bytes(&outcome, at, MIB);
    assert_eq!(bench.clock.now(), Time(0));
}

#[test]
fn who_asks_for_what_is_not_here_does_not_wait_for_what_may_be_given() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    bench.core.serve_ceiling = crate::core::limit::Ceiling::new(Some(1 << 10));
    bench.core.serve_ceiling.spend(Time(0), MIB);
    let at = bench.stripe_of(&view, ME, 0);
    let probe = |bench: &Bench, at| PeerFetch {
        cached_only: true,
        ..bench.request(at, MIB)
    };
    bench.ask(1, probe(&bench, at));
    assert!(matches!(
        bench.told(),
        (1, FetchStatus::NotCached { here: 0, .. }, None)
    ));
    // What is here waits its turn.
    let outcome = bench.read(at, MIB, 0);
    bench.serve_all();
    expect_bytes(&outcome, at, MIB);
    bench.ask(2, probe(&bench, at));
    bench.nothing_told();
}
