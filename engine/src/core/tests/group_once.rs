//! What a former owner holds in part, a member that is back, bytes that are wrong twice: nothing is fetched twice that
//! need not be, and the reader gets right bytes.

use super::group::{OTHERS, everyone, placement};
use super::*;
use crate::arena::Share;
use crate::identity::Slot;
use crate::limits::{STRIPE_BYTES, SUB_BLOCK_BYTES};

const SUB: u64 = SUB_BLOCK_BYTES as u64;

/// Views after each of which the next of `OTHERS` owns everything, and at last this node.
fn bench_with_former_owners(owners: &[PeerId]) -> Bench {
    let view = |owner: PeerId| {
        let mut members: Vec<(PeerId, u32)> = OTHERS.iter().map(|peer| (*peer, 0)).collect();
        members.push((ME, 0));
        let its = members.iter_mut().find(|(peer, _)| *peer == owner);
        its.expect("a member").1 = 1;
        placement(&members)
    };
    let mut bench = Bench::grouped(view(owners[0]));
    for owner in owners[1..].iter().chain([&ME]) {
        bench.view(view(*owner));
    }
    bench
}

/// Where a stripe begins that the first of `OTHERS` owns, and for which this node does not stand in.
fn foreign_stripe(bench: &Bench, view: &Placement) -> u64 {
    let mut stripes = (0..64).map(|n| n * STRIPE_BYTES as u64);
    let is_one = |at: &u64| {
        let slot = Slot::of_stripe(bench.object.id, *at);
        let ranks: Vec<PeerId> = view.ranked(slot).map(|member| member.id).collect();
        ranks[0] == OTHERS[0] && !ranks.contains(&ME)
    };
    stripes.find(is_one).expect("one of 64")
}

fn part(asked: &super::group::Asked) -> (PeerId, u64, u64) {
    let PeerFetch {
        offset, len_bytes, ..
    } = asked.request;
    assert!(asked.request.cached_only);
    (asked.to, offset / SUB, u64::from(len_bytes).div_ceil(SUB))
}

#[test]
fn what_a_former_owner_holds_of_a_chunk_is_taken_and_only_the_rest_fetched() {
    let mut bench = bench_with_former_owners(&OTHERS[..1]);
    let outcome = bench.read(0, MIB, 0);
    bench.turn();
    let asked = bench.asked();
    assert_eq!(part(&asked), (OTHERS[0], 0, 16));
    let here = 0b1000_0000_0011_1000;
    bench.refuse(asked, Ok(FetchStatus::NotCached { here, before: None }));
    let runs = [bench.asked(), bench.asked()];
    bench.nobody_asked();
    assert_eq!(
        runs.each_ref().map(part),
        [(OTHERS[0], 3, 3), (OTHERS[0], 15, 1)]
    );
    // One GET for each run.
    assert_eq!(bench.gets(), [(0, 3 * SUB), (6 * SUB, 9 * SUB)]);
    for asked in runs {
        bench.give(asked, false);
    }
    bench.serve();
    bench.serve();
    expect_bytes(&outcome, 0, MIB);
    let stats = bench.core.stats();
    assert_eq!(stats.pulled_bytes, 4 * SUB);
    assert_eq!(stats.ledger.total_bytes(), 12 * SUB);
    // Sub-blocks from a run are pieces of their own: any part of them can be read, and nothing is in flight.
    let again = bench.read(4 * SUB + 7, SUB, 0);
    bench.turn();
    expect_bytes(&again, 4 * SUB + 7, SUB);
    assert_eq!(stats.memory_in_flight_bytes, 0);
    assert_eq!(stats.memory_used_bytes, MIB);
    assert_eq!(bench.core.pulls.len(), 0);
}

#[test]
fn the_rest_goes_on_along_the_route_before_the_origin_is_asked() {
    let mut bench = bench_with_former_owners(&OTHERS[..2]);
    let outcome = bench.read(0, MIB, 0);
    bench.turn();
    let asked = bench.asked();
    assert_eq!(part(&asked), (OTHERS[1], 0, 16));
    bench.refuse(
        asked,
        Ok(FetchStatus::NotCached {
            here: 0x00ff,
            before: None,
        }),
    );
    let [first, rest] = [bench.asked(), bench.asked()];
    let mut parts = [part(&first), part(&rest)];
    parts.sort();
    assert_eq!(parts, [(OTHERS[0], 8, 8), (OTHERS[1], 0, 8)]);
    assert!(bench.gets().is_empty());
    for asked in [first, rest] {
        match asked.to == OTHERS[1] {
            true => bench.give(asked, false),
            // The lowest bit is the run's first.
            false => bench.refuse(
                asked,
                Ok(FetchStatus::NotCached {
                    here: 0b11,
                    before: None,
                }),
            ),
        }
    }
    let asked = bench.asked();
    assert_eq!(part(&asked), (OTHERS[0], 8, 2));
    bench.give(asked, false);
    assert_eq!(bench.gets(), [(10 * SUB, 6 * SUB)]);
    bench.serve();
    expect_bytes(&outcome, 0, MIB);
}

#[test]
fn a_cold_chunk_is_one_get_and_who_contradicts_itself_is_not_asked_for_ever() {
    for here in [0, 0xffff] {
        let mut bench = bench_with_former_owners(&OTHERS[..1]);
        let outcome = bench.read(0, MIB, 0);
        bench.turn();
        let asked = bench.asked();
        bench.refuse(asked, Ok(FetchStatus::NotCached { here, before: None }));
        bench.nobody_asked();
        assert_eq!(bench.gets(), [(0, MIB)]);
        bench.serve();
        expect_bytes(&outcome, 0, MIB);
    }
}

#[test]
fn a_short_last_chunk_is_taken_in_parts_too() {
    let mut bench = bench_with_former_owners(&OTHERS[..1]);
    let len = 15 * SUB - 100;
    bench.object = object("short", 4 * MIB + len);
    let outcome = bench.read(4 * MIB, len, 0);
    bench.turn();
    let asked = bench.asked();
    bench.refuse(
        asked,
        Ok(FetchStatus::NotCached {
            here: 0x7000,
            before: None,
        }),
    );
    let asked = bench.asked();
    let request = asked.request;
    assert_eq!(request.offset, 4 * MIB + 12 * SUB);
    assert_eq!(u64::from(request.len_bytes), 3 * SUB - 100);
    bench.give(asked, false);
    assert_eq!(bench.gets(), [(4 * MIB, 12 * SUB)]);
    bench.serve();
    expect_bytes(&outcome, 4 * MIB, len);
}

#[test]
fn a_run_comes_in_sub_blocks_where_there_is_no_room_for_it_as_a_whole() {
    let mut bench = bench_with_former_owners(&OTHERS[..1]);
    let outcome = bench.read(0, MIB, 0);
    bench.turn();
    let asked = bench.asked();
    let arena = &mut bench.core.parts.arena;
    let mut held = Vec::new();
    while let Ok(lease) = arena.lease(MIB as usize, Share::Demand) {
        held.push(arena.freeze(lease));
    }
    let here = 0x0f0f;
    bench.refuse(asked, Ok(FetchStatus::NotCached { here, before: None }));
    // The one buffer that has come back is cut for the GETs, and has room for just the rest.
    assert_eq!(bench.gets(), [(4 * SUB, 4 * SUB), (12 * SUB, 4 * SUB)]);
    for sub in (0..4).chain(8..12) {
        let asked = bench.asked();
        assert_eq!(part(&asked), (OTHERS[0], sub, 1));
        bench.give(asked, false);
    }
    bench.serve_all();
    expect_bytes(&outcome, 0, MIB);
}

#[test]
fn a_former_owner_tells_which_sub_blocks_it_has_or_will_have_from_the_origin() {
    let mut bench = Bench::grouped(placement(&[(ME, 1), (OTHERS[0], 0)]));
    for sub in [2, 5] {
        bench.read(sub * SUB, SUB, 0);
    }
    bench.serve_all();
    bench.read(7 * SUB, SUB, 0);
    bench.turn();
    bench.view(placement(&[(ME, 0), (OTHERS[0], 1)]));
    // What comes from another member is not here: who asks may be the one it comes from.
    bench.read(9 * SUB, SUB, 0);
    bench.turn();
    let pull = bench.asked();
    let only = |bench: &Bench, first: u64, subs: u64| PeerFetch {
        cached_only: true,
        ..bench.request(first * SUB, subs * SUB)
    };
    let here = |bits: &[u32]| {
        let here = bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        FetchStatus::NotCached { here, before: None }
    };
    for (handle, first, subs, bits) in [
        (1, 0, 16, &[2, 5, 7][..]),
        (2, 2, 4, &[0, 3]),
        (3, 8, 3, &[]),
    ] {
        let request = only(&bench, first, subs);
        bench.ask(handle, request);
        assert_eq!(bench.told(), (handle, here(bits), None));
    }
    // A range that begins within a sub-block: the first bit is that of the sub-block.
    let request = PeerFetch {
        offset: SUB + 4096,
        len_bytes: 2 * SUB as u32,
        ..only(&bench, 0, 1)
    };
    bench.ask(4, request);
    assert_eq!(bench.told(), (4, here(&[1]), None));
    bench.refuse(pull, Ok(FetchStatus::Busy));
}

#[test]
fn a_former_owner_tells_what_its_disk_holds() {
    let mut bench = Bench::with_disk(
        &super::disk::media(),
        super::disk::ARENA,
        super::disk::OBJECT,
    );
    bench.view(placement(&[(ME, 1), (OTHERS[0], 0)]));
    bench.get(12 * MIB + 3 * SUB, SUB);
    bench.settle();
    bench.evict_all();
    bench.view(placement(&[(ME, 0), (OTHERS[0], 1)]));
    let request = PeerFetch {
        cached_only: true,
        ..bench.request(12 * MIB, MIB)
    };
    bench.ask(1, request);
    bench.settle();
    let status = FetchStatus::NotCached {
        here: 0b1000,
        before: None,
    };
    assert_eq!(bench.told(), (1, status, None));
}

#[test]
fn a_newcomer_asks_also_whom_a_former_owner_names_and_goes_in_no_circle() {
    for before in [OTHERS[1], OTHERS[0], ME, PeerId(77)] {
        // This node has seen one view before its own.
        let mut bench = bench_with_former_owners(&OTHERS[..1]);
        let outcome = bench.read(0, MIB, 0);
        bench.turn();
        let asked = bench.asked();
        let (here, named) = (0b1, Some(before));
        bench.refuse(
            asked,
            Ok(FetchStatus::NotCached {
                here,
                before: named,
            }),
        );
        let mut others = 0;
        while !bench.transport.0.borrow().ops.is_empty() {
            let asked = bench.asked();
            if part(&asked) == (OTHERS[0], 0, 1) {
                bench.give(asked, false);
                continue;
            }
            assert_eq!(part(&asked), (OTHERS[1], 1, 15));
            others += 1;
            let (here, before) = (0, Some(OTHERS[0]));
            bench.refuse(asked, Ok(FetchStatus::NotCached { here, before }));
        }
        assert_eq!(others, usize::from(before == OTHERS[1]));
        bench.nobody_asked();
        assert_eq!(bench.gets(), [(SUB, 15 * SUB)]);
        bench.serve();
        expect_bytes(&outcome, 0, MIB);
    }
}

#[test]
fn a_former_owner_names_the_one_before_it_unless_that_asks_or_has_left() {
    let only = |owner: PeerId, members: &[PeerId]| {
        let weight = |peer: &PeerId| (*peer, u32::from(*peer == owner));
        placement(&members.iter().map(weight).collect::<Vec<_>>())
    };
    let all = [ME, OTHERS[0], OTHERS[1], OTHERS[2]];
    for (first, members, expected) in [
        (OTHERS[1], &all[..], Some(OTHERS[1])),
        // Who asks here is always this one.
        (OTHERS[0], &all[..], None),
        (OTHERS[1], &[ME, OTHERS[0], OTHERS[2]], None),
    ] {
        let mut bench = Bench::grouped(only(first, &all));
        bench.view(only(ME, &all));
        bench.view(only(OTHERS[2], members));
        let request = PeerFetch {
            cached_only: true,
            ..bench.request(0, MIB)
        };
        bench.ask(1, request);
        let status = FetchStatus::NotCached {
            here: 0,
            before: expected,
        };
        assert_eq!(bench.told(), (1, status, None));
    }
}

#[test]
fn a_member_that_refused_is_asked_again_as_soon_as_it_is_heard() {
    let view = everyone();
    let shutdown = Ok(FetchStatus::Failed(PeerFailure::Shutdown));
    for (end, is_back) in [
        (shutdown, true),
        (Err(TransportError::Unreachable), true),
        (Err(TransportError::Timeout), false),
    ] {
        for by_call in [false, true] {
            let mut bench = Bench::grouped(view.clone());
            let at = foreign_stripe(&bench, &view);
            bench.read(at, 4096, 0);
            bench.turn();
            let asked = bench.asked();
            assert_eq!(asked.to, OTHERS[0]);
            bench.refuse(asked, end);
            let next = bench.asked();
            bench.give(next, false);
            let asks_it = |bench: &mut Bench, n: u64| {
                bench.read(at + n * MIB, 4096, 0);
                bench.turn();
                let asked = bench.asked();
                let to = asked.to;
                bench.give(asked, false);
                to == OTHERS[0]
            };
            assert!(!asks_it(&mut bench, 1));
            match by_call {
                true => bench.describe(),
                false => {
                    let request = PeerFetch {
                        cached_only: true,
                        ..bench.request(at + 9 * MIB, 4096)
                    };
                    bench.ask(1, request);
                    bench.told();
                }
            }
            assert_eq!(asks_it(&mut bench, 2), is_back, "{end:?}, {by_call}");
        }
    }
}

#[test]
fn bytes_that_are_wrong_twice_come_from_the_origin() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0);
    // Their neighbours are right.
    let warm = bench.read(at + SUB, SUB, 0);
    bench.turn();
    let asked = bench.asked();
    bench.give(asked, false);
    expect_bytes(&warm, at + SUB, SUB);
    let outcome = bench.read(at, 2 * SUB, 0);
    bench.turn();
    for verify in [false, true] {
        let asked = bench.asked();
        assert_eq!((asked.request.offset, asked.request.verify), (at, verify));
        bench.give(asked, true);
    }
    bench.nobody_asked();
    assert_eq!(bench.gets(), [(at, SUB)]);
    assert!(outcome.lock().is_empty());
    bench.serve();
    expect_bytes(&outcome, at, 2 * SUB);
    let stats = bench.core.stats();
    assert_eq!(stats.ledger.bytes(Reason::Checksum), SUB);
    assert_eq!((stats.checksum_failures, stats.read_errors), (2, 0));
    // What the origin sent is right: should it go wrong here, the owner is asked first again.
    assert!(bench.core.index.corrupt(bench.object.block(at)));
    let again = bench.read(at, SUB, 0);
    bench.turn();
    let asked = bench.asked();
    bench.give(asked, false);
    expect_bytes(&again, at, SUB);
}

#[test]
fn every_sub_block_of_a_read_may_be_wrong_twice() {
    let view = everyone();
    let mut bench = Bench::grouped(view.clone());
    let at = bench.stripe_of(&view, OTHERS[0], 0) + SUB;
    // From within a chunk into the next: sub-blocks of their own.
    let outcome = bench.read(at + 5, MIB - 10, 0);
    bench.turn();
    while !bench.transport.0.borrow().ops.is_empty() {
        let asked = bench.asked();
        bench.give(asked, true);
    }
    bench.serve_all();
    expect_bytes(&outcome, at + 5, MIB - 10);
    assert_eq!(bench.core.stats().ledger.total_bytes(), MIB);
}

#[test]
fn an_answer_is_put_together_in_the_tables_of_one_that_has_left() {
    let mut bench = Bench::grouped(placement(&[(ME, 1), (OTHERS[0], 0)]));
    bench.describe();
    let warm = bench.read(0, MIB, 0);
    bench.serve_all();
    expect_bytes(&warm, 0, MIB);
    let tables = |bench: &Bench| {
        let script = bench.transport.0.borrow();
        let Some(TransportOp::Answer { payload, .. }) = script.ops.front() else {
            panic!("an answer is expected")
        };
        let payload = payload.as_ref().expect("bytes");
        (payload.parts.as_ptr(), payload.checksums.as_ptr())
    };
    let mut seen = Vec::new();
    for handle in 1..4 {
        let request = bench.request(0, MIB);
        bench.ask(handle, request);
        seen.push(tables(&bench));
        let (_, status, bytes) = bench.told();
        assert_eq!(status, FetchStatus::Bytes);
        assert_eq!(bytes.map(|bytes| bytes.len() as u64), Some(MIB));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[1], seen[2]);
}
