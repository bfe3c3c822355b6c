//! A member that leaves, and those that take over from it.

use super::disk::{ARENA, OBJECT, media};
use super::group::{Asked, OTHERS, everyone, placement};
use super::*;
use crate::identity::{BlockId, Slot};
use crate::limits::{BLOCK_BYTES, STRIPE_BYTES};
use crate::wire::call::{Call, CallAnswer};

const SUB: u64 = 64 * KIB;
const STRIPE: u64 = STRIPE_BYTES as u64;

/// Everyone, this node without a weight.
fn leaving() -> Arc<Placement> {
    placement(&[(ME, 0), (OTHERS[0], 1), (OTHERS[1], 1), (OTHERS[2], 1)])
}

struct Offer {
    to: PeerId,
    block: BlockId,
    size_bytes: u64,
    subs: u64,
    tag: FetchTag,
    lease: Lease,
}

impl Bench {
    fn offers(&self) -> Vec<Offer> {
        let ops = std::mem::take(&mut self.transport.0.borrow_mut().ops);
        let offer = |op| match op {
            TransportOp::Call {
                tag,
                to,
                class: Class::WarmUp,
                body,
                lease,
                ..
            } => match Call::decode(&body) {
                Ok(Call::Take {
                    block,
                    size_bytes,
                    subs,
                }) => Offer {
                    to: to.peer,
                    block,
                    size_bytes,
                    subs,
                    tag,
                    lease,
                },
                other => panic!("an offer is expected, not {other:?}"),
            },
            other => panic!("an offer is expected, not {other:?}"),
        };
        ops.into_iter().map(offer).collect()
    }

    /// What it offered is not looked at, and never answered.
    pub(super) fn no_offers(&self) {
        drop(self.offers());
    }

    fn accept(&mut self, offer: Offer, subs: u64, took_bytes: u64, room: bool) {
        let answer = CallAnswer::Taken {
            subs,
            took_bytes,
            room,
        };
        let bytes = answer.encode(4096).unwrap();
        let Offer { tag, mut lease, .. } = offer;
        lease.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        lease.truncate(bytes.len());
        self.end(tag, lease, Ok(FetchStatus::Bytes), Vec::new());
    }

    /// Some member offers sub-blocks of a block.
    fn take(&mut self, handle: u64, offset: u64, size_bytes: u64, subs: u64) {
        let body = Call::Take {
            block: self.object.block(offset),
            size_bytes,
            subs,
        };
        let event = TransportEvent::Request {
            handle: RequestHandle(handle),
            peer: OTHERS[0],
            ask: PeerAsk::Call {
                body: body.encode(),
                room_bytes: 4096,
            },
            deadline: self.clock.now() + TIMEOUT,
        };
        self.transport.0.borrow_mut().events.push_back(event);
        self.turn();
    }

    /// Answers what is asked of the leaver until the oldest answer of this node's is there, and takes it.
    fn taken(&mut self, handle: u64) -> CallAnswer {
        for _ in 0..4_000 {
            let first = self.transport.0.borrow_mut().ops.pop_front();
            match first {
                Some(TransportOp::Answer {
                    handle: told,
                    status: FetchStatus::Bytes,
                    payload: Some(payload),
                }) => {
                    assert_eq!(told, RequestHandle(handle));
                    let answer = CallAnswer::decode(&payload.parts[0]).unwrap();
                    let event = TransportEvent::Answered {
                        handle: told,
                        payload: Some(payload),
                    };
                    self.transport.0.borrow_mut().events.push_back(event);
                    self.turn();
                    return answer;
                }
                Some(fetch @ TransportOp::Fetch { .. }) => {
                    self.transport.0.borrow_mut().ops.push_front(fetch);
                    let asked = self.asked_of_leaver();
                    self.give(asked, false);
                }
                None => self.pass(Duration::from_millis(5)),
                Some(other) => panic!("{other:?}"),
            }
        }
        panic!("it is never answered");
    }

    fn asked_of_leaver(&mut self) -> Asked {
        let asked = self.asked();
        assert_eq!(asked.to, OTHERS[0]);
        let request = &asked.request;
        assert!(request.cached_only && !request.forwarded);
        assert_ne!(request.class, Class::Demand);
        asked
    }

    fn is_done(&self) -> bool {
        let stats = self.core.stats().handover;
        (stats.cores_leaving, stats.cores_done) == (1, 1)
    }
}

/// A member that holds some of its stripes in memory alone: where they are, a sub-block each.
fn full() -> (Bench, Vec<u64>) {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let mine = |at: &u64| {
        let slot = Slot::of_stripe(bench.object.id, *at);
        view.owner(slot).unwrap().id == ME
    };
    let stripes: Vec<u64> = (0..64).map(|n| n * STRIPE).filter(mine).take(4).collect();
    for at in &stripes {
        bench.get(*at, SUB);
    }
    (bench, stripes)
}

#[test]
fn a_member_without_weight_offers_each_block_to_its_new_owner() {
    let (mut bench, stripes) = full();
    bench.nobody_asked();
    let view = leaving();
    bench.view(view.clone());
    let offers = bench.offers();
    assert_eq!(offers.len(), stripes.len());
    let stats = bench.core.stats().handover;
    assert_eq!((stats.left_blocks, stats.left_bytes), (4, 4 * SUB));
    for offer in offers {
        let at = offer.block.offset();
        assert!(stripes.contains(&at) && offer.subs == 1);
        assert_eq!(offer.size_bytes, at + BLOCK_BYTES as u64);
        let slot = Slot::of_stripe(bench.object.id, at);
        assert_eq!(offer.to, view.owner(slot).unwrap().id);
        assert!(!bench.is_done());
        bench.accept(offer, 1, SUB, true);
    }
    assert!(bench.is_done());
    bench.nobody_asked();
    let stats = bench.core.stats().handover;
    assert_eq!((stats.given_blocks, stats.given_bytes), (4, 4 * SUB));
    assert_eq!(
        (stats.left_bytes, stats.refused_blocks, stats.failures),
        (0, 0, 0)
    );
    // It still gives what it has.
    let request = PeerFetch {
        cached_only: true,
        ..bench.request(stripes[0], SUB)
    };
    bench.ask(5, request);
    let (_, status, bytes) = bench.told();
    assert_eq!(
        (status, bytes.unwrap().len() as u64),
        (FetchStatus::Bytes, SUB)
    );
}

#[test]
fn what_is_refused_for_want_of_room_is_told_and_not_asked_again() {
    let (mut bench, _) = full();
    bench.view(leaving());
    for (n, offer) in bench.offers().into_iter().enumerate() {
        match n {
            0 => bench.accept(offer, 0, 0, false),
            _ => bench.accept(offer, 1, 0, true),
        }
    }
    assert!(bench.is_done());
    let stats = bench.core.stats().handover;
    assert_eq!((stats.refused_blocks, stats.refused_bytes), (1, SUB));
    assert_eq!((stats.given_blocks, stats.left_blocks), (0, 0));
    bench.pass(Duration::from_secs(60));
    bench.nobody_asked();
}

/// An heir that is busy writing has no room for a moment.
#[test]
fn what_found_no_room_is_offered_again_while_others_find_some() {
    let (mut bench, _) = full();
    bench.view(leaving());
    for (n, offer) in bench.offers().into_iter().enumerate() {
        match n {
            0 => bench.accept(offer, 0, 0, false),
            _ => bench.accept(offer, 1, SUB, true),
        }
    }
    assert!(!bench.is_done());
    bench.pass(Duration::from_secs(2));
    for offer in bench.offers() {
        bench.accept(offer, 1, 0, true);
    }
    assert!(bench.is_done());
    assert_eq!(bench.core.stats().handover.refused_blocks, 0);
}

#[test]
fn an_offer_without_an_answer_is_made_again() {
    let (mut bench, _) = full();
    bench.view(leaving());
    for (n, offer) in bench.offers().into_iter().enumerate() {
        let Offer { tag, lease, .. } = offer;
        let result = match n {
            0 => Ok(FetchStatus::Busy),
            1 => Err(TransportError::Timeout),
            2 => Err(TransportError::Unreachable),
            _ => Ok(FetchStatus::NotOwner { owner: OTHERS[0] }),
        };
        bench.end(tag, lease, result, Vec::new());
    }
    assert!(!bench.is_done());
    assert_eq!(bench.core.stats().handover.failures, 4);
    bench.pass(Duration::from_secs(3));
    let offers = bench.offers();
    assert_eq!(offers.len(), 4);
    for offer in offers {
        bench.accept(offer, 1, SUB, true);
    }
    assert!(bench.is_done());
}

#[test]
fn another_owner_is_offered_what_the_first_one_has_gone_with() {
    let (mut bench, stripes) = full();
    bench.view(leaving());
    for offer in bench.offers() {
        bench.accept(offer, 1, SUB, true);
    }
    assert!(bench.is_done());
    bench.view(placement(&[(ME, 0), (OTHERS[2], 1)]));
    assert!(!bench.is_done());
    let offers = bench.offers();
    assert_eq!(offers.len(), stripes.len());
    assert!(offers.iter().all(|offer| offer.to == OTHERS[2]));
}

#[test]
fn what_a_member_has_that_left_before_it_answered_is_offered_again() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, 2 * STRIPE);
    for at in [0, STRIPE] {
        bench.get(at, SUB);
    }
    bench.settle();
    drop(bench);
    let mut bench = Bench::with_disk(&media, ARENA, 2 * STRIPE);
    bench.view(placement(&[(ME, 0), (OTHERS[0], 1)]));
    let late = bench.offers();
    assert_eq!(late.len(), 2);
    bench.view(placement(&[(ME, 0), (OTHERS[1], 1)]));
    // The first one's answers come after it has left.
    for offer in late {
        bench.accept(offer, 1, SUB, true);
    }
    assert!(!bench.is_done());
    for _ in 0..100 {
        for offer in bench.offers() {
            assert_eq!(offer.to, OTHERS[1]);
            bench.accept(offer, 1, SUB, true);
        }
        bench.pass(Duration::from_millis(100));
    }
    assert!(bench.is_done());
    assert_eq!(bench.core.stats().handover.given_bytes, 2 * SUB);
}

/// Another view began another pass, which asks again: what is said of the pass before counts for nothing.
#[test]
fn answers_of_the_view_before_are_not_counted_in_the_present_one() {
    let (mut bench, _) = full();
    bench.view(placement(&[(ME, 0), (OTHERS[0], 1)]));
    let mut late = bench.offers();
    bench.view(placement(&[(ME, 0), (OTHERS[0], 2)]));
    let offers = bench.offers();
    assert_eq!((late.len(), offers.len()), (4, 4));
    let Offer { tag, lease, .. } = late.pop().unwrap();
    bench.end(tag, lease, Err(TransportError::Timeout), Vec::new());
    bench.accept(late.pop().unwrap(), 1, SUB, true);
    for offer in late {
        bench.accept(offer, 0, 0, false);
    }
    let stats = bench.core.stats().handover;
    assert_eq!((stats.refused_blocks, stats.failures), (0, 0));
    assert_eq!((stats.left_blocks, stats.left_bytes), (4, 4 * SUB));
    assert_eq!(stats.given_bytes, SUB, "it went all the same");
    for offer in offers {
        bench.accept(offer, 1, 0, true);
    }
    assert!(bench.is_done());
    assert_eq!(bench.core.stats().handover.left_blocks, 0);
}

/// What a peer says is not added up without bounds.
#[test]
fn no_more_is_given_than_was_offered() {
    let (mut bench, _) = full();
    bench.view(leaving());
    for offer in bench.offers() {
        bench.accept(offer, 1, u64::MAX, true);
    }
    assert!(bench.is_done());
    assert_eq!(bench.core.stats().handover.given_bytes, 4 * SUB);
}

/// It lies behind where the pass looked, and the others lacked nothing of what was offered.
#[test]
fn what_the_origin_gave_during_a_pass_is_offered() {
    let (mut bench, stripes) = full();
    let outcome = bench.read(stripes[0] + 8 * SUB, SUB, 0);
    bench.turn();
    bench.view(leaving());
    let offers = bench.offers();
    assert_eq!(offers.len(), 4);
    bench.serve();
    expect_bytes(&outcome, stripes[0] + 8 * SUB, SUB);
    for offer in offers {
        bench.accept(offer, 1, 0, true);
    }
    assert!(!bench.is_done());
    bench.pass(Duration::from_secs(1));
    let offers = bench.offers();
    assert!(offers.iter().any(|offer| offer.subs == 1 | 1 << 8));
    for offer in offers {
        let subs = offer.subs;
        bench.accept(offer, subs, 0, true);
    }
    assert!(bench.is_done());
}

/// A member that leaves, all of whose blocks are with others, and one of whose readers waits for the origin.
fn given_but_for_a_read() -> (Bench, u64, Outcome) {
    let (mut bench, stripes) = full();
    let at = stripes[0] + 8 * SUB;
    let outcome = bench.read(at, SUB, 0);
    bench.turn();
    bench.view(leaving());
    for offer in bench.offers() {
        bench.accept(offer, 1, SUB, true);
    }
    (bench, at, outcome)
}

impl Bench {
    /// Has its offers accepted, all of which are known, until nothing is offered for `span`, or it is done.
    fn hand_over(&mut self, span: Duration) {
        let end = self.clock.now() + span;
        while !self.is_done() && self.clock.now() < end {
            for offer in self.offers() {
                let subs = offer.subs;
                self.accept(offer, subs, 0, true);
            }
            self.pass(Duration::from_millis(10));
        }
    }
}

/// The moment at which one wants to move: the origin does not answer, and readers try again and again.
#[test]
fn a_get_that_hangs_holds_nobody_up() {
    let (mut bench, at, _) = given_but_for_a_read();
    assert!(!bench.is_done(), "it may bring something");
    let began = bench.clock.now();
    let mut turns = 0;
    while !bench.is_done() {
        // It fails, and is retried: at the origin is one at most times.
        if turns % 20 == 19 && !bench.gets().is_empty() {
            bench.fail(OriginErrorKind::ShortBody, 0);
            drop(bench.read(at, SUB, 0));
        }
        bench.hand_over(Duration::from_millis(20));
        turns += 1;
        assert!(bench.clock.now().since(began) < TIMEOUT, "it never ends");
    }
    assert!(bench.core.fills.len() > 0, "readers still wait");
}

/// A pass costs a look at every entry: while nothing comes they grow rarer.
#[test]
fn passes_that_give_nothing_grow_rarer() {
    let (mut bench, _, outcome) = given_but_for_a_read();
    let mut passes = 0;
    while !bench.is_done() {
        let offers = bench.offers();
        passes += usize::from(!offers.is_empty());
        for offer in offers {
            bench.accept(offer, 1, 0, true);
        }
        bench.pass(Duration::from_millis(10));
    }
    assert!((2..=8).contains(&passes), "{passes}");
    assert!(outcome.lock().is_empty());
}

/// The mirror: one that brings something late causes one more pass.
#[test]
fn what_a_slow_get_brings_is_offered() {
    let (mut bench, at, outcome) = given_but_for_a_read();
    bench.hand_over(Duration::from_millis(500));
    assert!(!bench.is_done());
    bench.serve();
    expect_bytes(&outcome, at, SUB);
    let mut offered = 0;
    while !bench.is_done() {
        for offer in bench.offers() {
            offered |= offer.subs;
            let subs = offer.subs;
            bench.accept(offer, subs, 0, true);
        }
        bench.pass(Duration::from_millis(10));
    }
    assert_eq!(offered & 1 << 8, 1 << 8);
}

#[test]
fn who_leaves_while_it_takes_over_is_not_done() {
    let mut bench = Bench::grouped(placement(&[(ME, 1), (OTHERS[0], 0)]));
    bench.take(1, 0, BLOCK_BYTES as u64, 1);
    let asked = bench.asked_of_leaver();
    bench.view(placement(&[(ME, 0), (OTHERS[0], 0), (OTHERS[1], 1)]));
    bench.pass(Duration::from_secs(1));
    assert!(!bench.is_done(), "it has nothing, but will have");
    bench.give(asked, false);
    let mut offered = 0;
    for _ in 0..200 {
        let op = bench.transport.0.borrow_mut().ops.pop_front();
        match op {
            Some(call @ TransportOp::Call { .. }) => {
                bench.transport.0.borrow_mut().ops.push_front(call);
                for offer in bench.offers() {
                    assert_eq!(offer.to, OTHERS[1]);
                    offered += 1;
                    bench.accept(offer, 1, SUB, true);
                }
            }
            Some(TransportOp::Answer {
                handle, payload, ..
            }) => {
                let event = TransportEvent::Answered { handle, payload };
                bench.transport.0.borrow_mut().events.push_back(event);
                bench.turn();
            }
            Some(other) => panic!("{other:?}"),
            None => bench.pass(Duration::from_millis(20)),
        }
    }
    assert!(offered > 0, "what it took over goes on");
    assert!(bench.is_done());
}

#[test]
fn without_an_heir_nothing_is_offered_and_it_is_not_done() {
    let (mut bench, _) = full();
    bench.view(placement(&[(ME, 0), (OTHERS[0], 0)]));
    bench.pass(Duration::from_secs(5));
    bench.nobody_asked();
    let stats = bench.core.stats().handover;
    assert!(!bench.is_done());
    assert_eq!((stats.cores_without_heir, stats.left_blocks), (1, 4));
    // A weight is found again.
    bench.view(leaving());
    assert_eq!(bench.offers().len(), 4);
}

#[test]
fn a_member_that_stays_after_all_stops_offering() {
    let (mut bench, _) = full();
    bench.view(leaving());
    bench.view(everyone());
    assert!(bench.offers().is_empty(), "they are cancelled");
    assert_eq!(bench.core.stats().handover.cores_leaving, 0);
    bench.pass(Duration::from_secs(5));
    bench.nobody_asked();
}

/// Blocks that are read often are offered first, and are found again among the rest.
#[test]
fn what_is_offered_is_not_offered_again_before_it_is_answered() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, 2 * STRIPE);
    for _ in 0..3 {
        for at in [0, STRIPE] {
            bench.get(at, SUB);
        }
        bench.settle();
    }
    bench.view(placement(&[(ME, 0), (OTHERS[0], 1)]));
    let offers = bench.offers();
    let blocks: Vec<BlockId> = offers.iter().map(|offer| offer.block).collect();
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    for offer in offers {
        let subs = offer.subs;
        bench.accept(offer, subs, SUB, true);
    }
    assert!(bench.is_done());
    let stats = bench.core.stats().handover;
    assert_eq!((stats.given_blocks, stats.given_bytes), (2, 2 * SUB));
}

#[test]
fn what_lies_on_disk_is_offered_without_a_name_and_once() {
    let media = media();
    let short = SUB + 5_000;
    let object_bytes = 2 * STRIPE + short;
    let mut bench = Bench::with_disk(&media, ARENA, object_bytes);
    for at in [0, STRIPE, 2 * STRIPE] {
        bench.get(at, SUB);
    }
    bench.get(2 * STRIPE + SUB, 5_000);
    bench.settle();
    drop(bench);
    let mut bench = Bench::with_disk(&media, ARENA, object_bytes);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 1)]));
    bench.nobody_asked();
    bench.view(placement(&[(ME, 0), (OTHERS[0], 1)]));
    let mut offers = bench.offers();
    offers.sort_by_key(|offer| offer.block.index);
    let told: Vec<_> = offers.iter().map(|o| (o.size_bytes, o.subs)).collect();
    let block = BLOCK_BYTES as u64;
    let expected = [(block, 1), (STRIPE + block, 1), (object_bytes, 3)];
    assert_eq!(told, expected);
    assert_eq!(bench.core.stats().handover.left_bytes, 2 * SUB + short);
    for offer in offers {
        let subs = offer.subs;
        bench.accept(offer, subs, SUB, true);
    }
    assert!(bench.is_done());
    // Another view, the same heir: nothing to do.
    bench.view(placement(&[(ME, 0), (OTHERS[0], 2)]));
    assert!(bench.is_done());
    bench.nobody_asked();
    // He went, and came back without it.
    bench.view(placement(&[(ME, 0), (OTHERS[1], 1)]));
    assert_eq!(bench.offers().len(), 3);
    // What is given without a name is what was written.
    let request = PeerFetch {
        cached_only: true,
        size_bytes: STRIPE + block,
        ..bench.request(STRIPE, SUB)
    };
    bench.ask(7, request);
    let (_, status, bytes) = bench.told();
    assert_eq!(status, FetchStatus::Bytes);
    assert!(
        bytes
            .unwrap()
            .iter()
            .zip(STRIPE..)
            .all(|(byte, at)| *byte == byte_at(at))
    );
}

#[test]
fn a_new_owner_fetches_what_it_lacks_from_the_leaver_alone_and_keeps_it() {
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, OBJECT);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0)]));
    bench.get(3 * MIB, SUB);
    bench.settle();
    let before = bench.core.stats().ledger.total_bytes();
    // A block with a hole of two sub-blocks, of which one is here.
    let subs = !(1 << 40);
    bench.take(9, 0, BLOCK_BYTES as u64, subs);
    let took_bytes = 62 * SUB;
    let whole = CallAnswer::Taken {
        subs,
        took_bytes,
        room: true,
    };
    assert_eq!(bench.taken(9), whole);
    assert_eq!(bench.core.stats().takeover.taken_bytes, took_bytes);
    assert_eq!(bench.core.takes.len(), 0);
    assert_eq!(bench.core.lanes.admitted_bytes(), 0);
    bench.evict_all();
    bench.get(0, MIB);
    bench.get(MIB, MIB);
    assert_eq!(bench.core.stats().ledger.total_bytes(), before);
    // Again: it costs nothing.
    bench.take(10, 0, BLOCK_BYTES as u64, subs);
    let nothing = CallAnswer::Taken {
        subs,
        took_bytes: 0,
        room: true,
    };
    assert_eq!(bench.taken(10), nothing);
}

#[test]
fn an_objects_end_is_taken_over_whole() {
    let media = media();
    let object_bytes = 9 * MIB + 12_345;
    let mut bench = Bench::with_disk(&media, ARENA, object_bytes);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0)]));
    bench.take(1, 8 * MIB, object_bytes, 0x1_ffff);
    let whole = CallAnswer::Taken {
        subs: 0x1_ffff,
        took_bytes: MIB + 12_345,
        room: true,
    };
    assert_eq!(bench.taken(1), whole);
    bench.evict_all();
    bench.get(9 * MIB, 12_345);
    assert_eq!(bench.core.stats().ledger.total_bytes(), 0);
}

#[test]
fn the_origin_is_never_asked_for_what_the_leaver_does_not_have_after_all() {
    let mut bench = Bench::grouped(placement(&[(ME, 1), (OTHERS[0], 0), (OTHERS[1], 0)]));
    bench.take(1, 0, BLOCK_BYTES as u64, 0b11);
    let asked = bench.asked_of_leaver();
    // Someone who knows the name waits for the same bytes.
    let outcome = bench.read(0, SUB, 0);
    bench.turn();
    bench.refuse(
        asked,
        Ok(FetchStatus::NotCached {
            here: 0,
            before: Some(OTHERS[1]),
        }),
    );
    let (mut gets, mut answer) = (0, None);
    for _ in 0..20 {
        let op = bench.transport.0.borrow_mut().ops.pop_front();
        match op {
            Some(fetch @ TransportOp::Fetch { .. }) => {
                bench.transport.0.borrow_mut().ops.push_front(fetch);
                let asked = bench.asked_of_leaver();
                bench.refuse(
                    asked,
                    Ok(FetchStatus::NotCached {
                        here: 0,
                        before: None,
                    }),
                );
            }
            Some(TransportOp::Answer { payload, .. }) => {
                answer = Some(CallAnswer::decode(&payload.unwrap().parts[0]).unwrap());
            }
            Some(other) => panic!("{other:?}"),
            None if bench.gets().is_empty() => bench.pass(Duration::from_millis(10)),
            None => {
                gets += bench.gets().len();
                bench.serve();
            }
        }
    }
    expect_bytes(&outcome, 0, SUB);
    assert_eq!(gets, 1, "the reader's own");
    let Some(CallAnswer::Taken {
        subs, room: true, ..
    }) = answer
    else {
        panic!("{answer:?}")
    };
    assert_eq!(subs & 2, 0);
    assert_eq!(bench.core.takes.len(), 0);
}

#[test]
fn nothing_goes_for_what_is_offered() {
    // Without disks: memory is filled by what readers fetched.
    let mut bench = Bench::grouped(placement(&[(ME, 1), (OTHERS[0], 0)]));
    for n in 0..50 {
        bench.get(n * MIB, MIB);
    }
    bench.take(1, STRIPE * 40, STRIPE * 40 + BLOCK_BYTES as u64, u64::MAX);
    let none = CallAnswer::Taken {
        subs: 0,
        took_bytes: 0,
        room: false,
    };
    assert_eq!(bench.taken(1), none);
    assert_eq!(bench.core.stats().takeover.refused_blocks, 1);
    // With a disk: as many blocks as it has room for, and what was there before stays.
    let media = media();
    let mut bench = Bench::with_disk(&media, ARENA, 1 << 30);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0)]));
    let mut taken = 0;
    for n in 0..60 {
        let at = n * BLOCK_BYTES as u64;
        bench.take(n, at, at + BLOCK_BYTES as u64, u64::MAX);
        match bench.taken(n) {
            CallAnswer::Taken { subs: u64::MAX, .. } => taken += 1,
            other => assert_eq!(other, none),
        }
    }
    assert!((30..48).contains(&taken), "{taken} of 48 at most");
    let device = bench.device();
    assert_eq!((device.entries_evicted, device.regions_reclaimed), (0, 0));
}

/// A core with a disk whose writes hang, and a leaver's blocks: how many of `blocks` it takes in before it says that
/// there is no room.
fn takes_in(media: &super::disk::TestMedia, blocks: u64) -> (Bench, u64) {
    let mut bench = Bench::with_disk(media, 8 * ARENA, 1 << 30);
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0)]));
    for n in 0..blocks {
        let at = n * BLOCK_BYTES as u64;
        bench.take(n, at, at + BLOCK_BYTES as u64, u64::MAX);
        loop {
            let op = bench.transport.0.borrow_mut().ops.pop_front();
            match op {
                None => break,
                Some(fetch @ TransportOp::Fetch { .. }) => {
                    bench.transport.0.borrow_mut().ops.push_front(fetch);
                    let asked = bench.asked_of_leaver();
                    bench.give(asked, false);
                }
                Some(TransportOp::Answer { payload, .. }) => {
                    let answer = CallAnswer::decode(&payload.unwrap().parts[0]).unwrap();
                    let none = CallAnswer::Taken {
                        subs: 0,
                        took_bytes: 0,
                        room: false,
                    };
                    assert_eq!(answer, none);
                    return (bench, n);
                }
                Some(other) => panic!("{other:?}"),
            }
        }
    }
    (bench, blocks)
}

#[test]
fn what_is_on_its_way_to_disk_takes_room_once() {
    // As many as fit between writes that end at once: see above.
    let (_, taken) = takes_in(&media(), 60);
    assert!(taken >= 30, "{taken}");
}

#[test]
fn what_a_slow_disk_has_no_room_for_is_not_checked_again_and_again() {
    let media = media();
    media.borrow_mut().hold_writes = true;
    // More than may be on its way to disk.
    let (mut bench, taken) = takes_in(&media, 8);
    assert_eq!(taken, 8);
    let refused = bench.device().fills_dropped;
    assert!(refused > 0);
    bench.pass(Duration::from_millis(10));
    for _ in 0..100 {
        bench.pass(Duration::from_millis(10));
    }
    assert_eq!(bench.device().fills_dropped, refused);
    media.borrow_mut().hold_writes = false;
    for _ in 0..1_000 {
        bench.pass(Duration::from_millis(10));
    }
    assert_eq!(bench.core.takes.len(), 0);
    assert_eq!(bench.core.stats().takeover.taken_blocks, 8);
}

#[test]
fn what_a_new_owner_is_not_to_take_is_said() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let theirs = bench.stripe_of(&view, OTHERS[1], 0);
    bench.take(1, theirs, theirs + SUB, 1);
    let owner = OTHERS[1];
    assert_eq!(bench.told(), (1, FetchStatus::NotOwner { owner }, None));
    let mine = bench.stripe_of(&view, ME, 0);
    bench.take(2, mine, mine + SUB, 1);
    bench.ring.push(Request::Shutdown).unwrap();
    bench.turn();
    let failed = FetchStatus::Failed(PeerFailure::Shutdown);
    let asked = bench.transport.0.borrow_mut().ops.pop_front();
    let Some(TransportOp::Answer { handle, status, .. }) = asked else {
        panic!("{asked:?}")
    };
    assert_eq!((handle, status), (RequestHandle(2), failed));
}
