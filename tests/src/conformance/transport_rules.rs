//! The rules of the transport port, one function each.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_engine::errors::OriginErrorKind;
use forebay_engine::ports::{
    FetchStatus, FetchTag, Payload, PeerCore, PeerFailure, PeerId, RequestHandle, Time,
    TransportError,
};

use super::*;

pub(super) fn bytes_arrive_whole<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let cases = [
        (4_096, 0),
        (1, 0),
        (65_536, 4_096),
        (70_001, 13),
        ((1 << 20) - 64, 32),
    ];
    for (number, (len_bytes, start)) in (1..).zip(cases) {
        let deadline = bench.rig.now() + LONG;
        bench.fetch(0, number, len_bytes, deadline)?;
        let asked = bench.next_request()?;
        demand!(
            asked.end == 1 && asked.peer == bench.rig.peer(0),
            "the request came from {:?}",
            asked.peer
        );
        demand!(
            asked.request == request(number, len_bytes),
            "the request changed on the way: {:?}",
            asked.request
        );
        bench.answer_bytes(&asked, start)?;
        let fetched = bench.next_fetched()?;
        check_bytes(&fetched, number)?;
    }
    bench.finish()
}

pub(super) fn every_status_arrives<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let owner = PeerId(77);
    for status in [
        FetchStatus::NotCached {
            here: 0xa001,
            before: Some(owner),
        },
        FetchStatus::NotOwner { owner },
        FetchStatus::NeedName,
        FetchStatus::Busy,
        FetchStatus::Failed(PeerFailure::Checksum),
        FetchStatus::Failed(PeerFailure::Shutdown),
        FetchStatus::Failed(PeerFailure::Origin(OriginErrorKind::VersionChanged)),
        FetchStatus::Failed(PeerFailure::Origin(OriginErrorKind::Unavailable)),
    ] {
        let deadline = bench.rig.now() + LONG;
        bench.fetch(1, 3, 4_096, deadline)?;
        let asked = bench.next_request()?;
        bench.answer(asked.end, asked.handle, status, None)?;
        let fetched = bench.next_fetched()?;
        demand!(
            fetched.result == Ok(status),
            "{status:?} arrived as {:?}",
            fetched.result
        );
        demand!(
            fetched.checksums.is_empty(),
            "{status:?} came with checksums"
        );
    }
    bench.finish()
}

pub(super) fn check_late(fetched: &Fetched, deadline: Time) -> Verdict {
    demand!(
        fetched.result == Err(TransportError::Timeout),
        "silence ended as {:?}",
        fetched.result
    );
    let (at, latest) = (fetched.at, deadline + FLUSH_MAX);
    demand!(
        at >= deadline && at <= latest,
        "a fetch due at {deadline:?} ended at {at:?}"
    );
    Ok(())
}

pub(super) fn silence_ends_at_the_deadline<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let deadline = bench.rig.now() + Duration::from_millis(200);
    bench.fetch(0, 1, 4_096, deadline)?;
    let asked = bench.next_request()?;
    let fetched = bench.next_fetched()?;
    check_late(&fetched, deadline)?;
    drop(fetched);
    // The answer comes after all: it ends, and reaches no one.
    bench.answer_bytes(&asked, 0)?;
    bench.drain()?;
    demand!(bench.fetched.is_empty(), "a fetch ended a second time");
    bench.finish()
}

/// Answers that race the deadline, at many distances from it.
pub(super) fn a_late_answer_touches_no_returned_lease<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut kept = Vec::new();
    for number in 0..60 {
        let deadline = bench.rig.now() + Duration::from_micros(50 * number);
        bench.fetch(0, number, 4_096, deadline)?;
        while !bench.fetches.is_empty() {
            bench.pump()?;
            while let Some(asked) = bench.asked.pop() {
                bench.answer_bytes(&asked, 0)?;
            }
        }
        for mut fetched in std::mem::take(&mut bench.fetched) {
            if fetched.result.is_ok() {
                check_bytes(&fetched, number)?;
            }
            // The buffer is the asker's again, and is used for something else.
            fetched.lease.bytes_mut().fill(0x5a);
            kept.push(fetched.lease);
        }
    }
    for _ in 0..200 {
        bench.pump()?;
        while let Some(asked) = bench.asked.pop() {
            bench.answer_bytes(&asked, 0)?;
        }
    }
    bench.drain()?;
    let untouched = kept
        .iter()
        .all(|lease| lease.bytes().iter().all(|byte| *byte == 0x5a));
    demand!(
        untouched,
        "a late write landed in a lease that had gone back"
    );
    kept.clear();
    bench.finish()
}

pub(super) fn cancelled_fetches_end_once<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let deadline = bench.rig.now() + LONG;
    bench.rig.end(0).cancel(FetchTag(999_999));
    for number in 0..20 {
        let Some(tag) = bench.fetch(0, number, 4_096, deadline)? else {
            continue;
        };
        for _ in 0..number % 4 {
            bench.pump()?;
        }
        if number.is_multiple_of(3)
            && let Some(asked) = bench.asked.pop()
        {
            bench.answer_bytes(&asked, 0)?;
        }
        bench.rig.end(0).cancel(tag);
        bench.rig.end(0).cancel(tag);
        let fetched = match bench.fetched.pop() {
            Some(fetched) => fetched,
            None => bench.next_fetched()?,
        };
        match fetched.result {
            Ok(FetchStatus::Bytes) => check_bytes(&fetched, number)?,
            Err(TransportError::Cancelled) => {}
            other => return Err(format!("a cancelled fetch ended as {other:?}")),
        }
        bench.rig.end(0).cancel(tag);
    }
    bench.finish()
}

pub(super) fn a_full_transport_gives_the_fetch_back<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let deadline = bench.rig.now() + LONG;
    let mut full_at = None;
    for number in 0..FILL_OPS_MAX as u64 {
        if bench.fetch(0, number, 4_096, deadline)?.is_none() {
            full_at = Some(number);
            break;
        }
    }
    let mut left = bench.fetches.len();
    while left > 0 {
        let asked = bench.next_request()?;
        bench.answer_bytes(&asked, 0)?;
        left -= 1;
    }
    bench.drain()?;
    for fetched in std::mem::take(&mut bench.fetched) {
        demand!(
            fetched.result == Ok(FetchStatus::Bytes),
            "a fetch ended as {:?}",
            fetched.result
        );
    }
    if let Some(number) = full_at {
        let again = bench.fetch(0, number, 4_096, deadline)?;
        demand!(
            again.is_some(),
            "the transport is still full when nothing is under way"
        );
        let asked = bench.next_request()?;
        bench.answer_bytes(&asked, 0)?;
        let fetched = bench.next_fetched()?;
        check_bytes(&fetched, number)?;
    }
    bench.finish()
}

pub(super) fn answers_to_nobody_end<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let nobody = Asked {
        end: 1,
        handle: RequestHandle(424_242),
        peer: PeerId(0),
        request: request(1, 4_096),
    };
    bench.answer_bytes(&nobody, 0)?;
    bench.answer(
        0,
        RequestHandle(424_243),
        FetchStatus::NotCached {
            here: 0,
            before: None,
        },
        None,
    )?;
    let deadline = bench.rig.now() + LONG;
    bench.fetch(0, 5, 4_096, deadline)?;
    let asked = bench.next_request()?;
    bench.answer_bytes(&asked, 0)?;
    bench.answer_bytes(&asked, 0)?;
    bench.drain()?;
    demand!(
        bench.fetched.len() == 1,
        "two answers gave {} ends",
        bench.fetched.len()
    );
    bench.finish()
}

pub(super) fn wrong_answers_are_no_answers<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let len_bytes = 8_192;
    // Length and checksums of the payload.
    let cases = [
        Some((4_096, 1)),
        Some((len_bytes + 4_096, 3)),
        Some((len_bytes, 7)),
        Some((len_bytes, 0)),
        None,
    ];
    for case in cases {
        let deadline = bench.rig.now() + LONG;
        bench.fetch(0, 1, len_bytes, deadline)?;
        let asked = bench.next_request()?;
        let payload = match case {
            Some((len, sums)) => Some(Payload {
                parts: vec![bench.frozen(&pattern(1, len))?],
                checksums: vec![0; sums],
            }),
            None => None,
        };
        bench.answer(asked.end, asked.handle, FetchStatus::Bytes, payload)?;
        let fetched = bench.next_fetched()?;
        bench.check_no_answer(&fetched, &format!("an answer with payload {case:?}"))?;
    }
    bench.finish()
}

pub(super) fn an_unknown_peer_is_unreachable<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let deadline = bench.rig.now() + LONG;
    let nobody = PeerCore {
        peer: PeerId(31_337),
        core: 0,
    };
    bench.fetch_from(0, nobody, 1, 4_096, deadline)?;
    let fetched = bench.next_fetched()?;
    demand!(
        fetched.result == Err(TransportError::Unreachable),
        "nobody answered with {:?}",
        fetched.result
    );
    drop(fetched);
    bench.finish()
}

pub(super) fn many_fetches_both_ways<R: TransportRig>(rig: R, seed: u64) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut rng = SimRng::component(seed, "transport suite", 0);
    let deadline = bench.rig.now() + LONG;
    let mut numbers: BTreeMap<FetchTag, u64> = BTreeMap::new();
    for number in 0..300 {
        let len_bytes = rng.between(1, 20_000) as usize;
        if let Some(tag) = bench.fetch(rng.below(2) as usize, number, len_bytes, deadline)? {
            numbers.insert(tag, number);
        }
        if rng.chance(600) {
            bench.pump()?;
        }
        while !bench.asked.is_empty() && rng.chance(800) {
            let at = rng.below(bench.asked.len() as u64) as usize;
            let asked = bench.asked.swap_remove(at);
            bench.answer_bytes(&asked, rng.below(100) as usize)?;
        }
        for fetched in std::mem::take(&mut bench.fetched) {
            check_bytes(&fetched, numbers.remove(&fetched.tag).unwrap_or(u64::MAX))?;
        }
    }
    answer_the_rest(&mut bench)?;
    for fetched in std::mem::take(&mut bench.fetched) {
        check_bytes(&fetched, numbers.remove(&fetched.tag).unwrap_or(u64::MAX))?;
    }
    demand!(
        numbers.is_empty(),
        "fetches went missing: {:?}",
        numbers.keys()
    );
    bench.finish()
}

pub(super) fn answer_the_rest<R: TransportRig>(bench: &mut Bench<R>) -> Verdict {
    for _ in 0..PUMPS_MAX {
        while let Some(asked) = bench.asked.pop() {
            bench.answer_bytes(&asked, 0)?;
        }
        if bench.fetches.is_empty() && bench.answers.is_empty() {
            return Ok(());
        }
        bench.pump()?;
    }
    Err(format!("fetches never end: {:?}", bench.fetches.keys()))
}
