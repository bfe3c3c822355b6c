//! The rules for calls.

use forebay_engine::limits::{CALL_BYTES_MAX, CHUNK_BYTES};

use super::*;

impl<R: TransportRig> Bench<R> {
    /// Asks the other end something; none when the transport is full, after the checks that it must pass.
    fn call(
        &mut self,
        end: usize,
        body: &[u8],
        room_bytes: usize,
        deadline: Time,
    ) -> Result<Option<FetchTag>, String> {
        self.tags += 1;
        let tag = FetchTag(self.tags);
        let lease = self.lease(room_bytes)?;
        let at = address(lease.bytes());
        let to = PeerCore {
            peer: self.rig.peer(1 - end),
            core: 0,
        };
        let op = TransportOp::Call {
            tag,
            to,
            class: Class::Demand,
            body: body.into(),
            lease,
            deadline,
        };
        match self.rig.end(end).submit(op) {
            Ok(()) => {
                self.fetches.insert(tag, at);
                self.calls.insert(tag);
                Ok(Some(tag))
            }
            Err(Full(TransportOp::Call {
                tag: back,
                body: what,
                lease,
                ..
            })) => {
                demand!(
                    back == tag && *what == *body && address(lease.bytes()) == at,
                    "Full gave back another call than {tag:?}"
                );
                Ok(None)
            }
            Err(Full(other)) => Err(format!("Full gave back {other:?} instead of {tag:?}")),
        }
    }

    fn next_called(&mut self) -> Result<Called, String> {
        self.until("a call arrives", |bench| !bench.called.is_empty())?;
        Ok(self.called.remove(0))
    }

    fn answer_call(&mut self, called: &Called, bytes: &[u8]) -> Verdict {
        let payload = Payload {
            parts: vec![self.frozen(bytes)?],
            checksums: Vec::new(),
        };
        let status = FetchStatus::Bytes;
        self.answer(called.end, called.handle, status, Some(payload))
    }
}

fn check_answer(fetched: &Fetched, bytes: &[u8]) -> Verdict {
    demand!(
        fetched.result == Ok(FetchStatus::Bytes),
        "a call ended as {:?}",
        fetched.result
    );
    let len_bytes = fetched.len_bytes as usize;
    demand!(
        fetched.lease.bytes()[..len_bytes] == *bytes,
        "an answer of {} bytes arrived as {len_bytes} others",
        bytes.len()
    );
    demand!(fetched.checksums.is_empty(), "a call brought checksums");
    Ok(())
}

pub(super) fn calls_arrive_whole<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let deadline = bench.rig.now() + LONG;
    // Bytes of the question, of the room for the answer, and of the answer.
    let cases = [
        (1, 4_096, 1),
        (100, 1, 1),
        (CALL_BYTES_MAX, 65_536, 65_536),
        (CALL_BYTES_MAX - 1, CHUNK_BYTES, 700_001),
        (17, CHUNK_BYTES, CHUNK_BYTES),
    ];
    for (number, (body_bytes, room_bytes, answer_bytes)) in (1..).zip(cases) {
        let body = pattern(number, body_bytes);
        bench.call(0, &body, room_bytes, deadline)?;
        let called = bench.next_called()?;
        demand!(
            called.end == 1 && called.peer == bench.rig.peer(0) && *called.body == *body,
            "the question of {body_bytes} bytes changed on the way"
        );
        demand!(
            called.room_bytes as usize == room_bytes,
            "a room of {room_bytes} bytes arrived as {}",
            called.room_bytes
        );
        let answer = pattern(number + 100, answer_bytes);
        bench.answer_call(&called, &answer)?;
        check_answer(&bench.next_fetched()?, &answer)?;
    }
    for status in [FetchStatus::NeedName, FetchStatus::Busy] {
        bench.call(1, &[1, 2], 4_096, deadline)?;
        let called = bench.next_called()?;
        bench.answer(called.end, called.handle, status, None)?;
        let fetched = bench.next_fetched()?;
        demand!(
            fetched.result == Ok(status),
            "{status:?} arrived as {:?}",
            fetched.result
        );
    }
    let deadline = bench.rig.now() + Duration::from_millis(50);
    bench.call(0, b"silence", 4_096, deadline)?;
    check_late(&bench.next_fetched()?, deadline)?;
    bench.finish()
}

pub(super) fn wrong_answers_to_calls_are_no_answers<R: TransportRig>(rig: R) -> Verdict {
    let mut bench = Bench::new(rig)?;
    // Bytes and checksums of answers to a call with room for 4,096.
    for (len_bytes, sums) in [(4_097, 0), (65_536, 0), (4_096, 1)] {
        let deadline = bench.rig.now() + LONG;
        bench.call(0, b"question", 4_096, deadline)?;
        let called = bench.next_called()?;
        let payload = Payload {
            parts: vec![bench.frozen(&pattern(1, len_bytes))?],
            checksums: vec![0; sums],
        };
        bench.answer(called.end, called.handle, FetchStatus::Bytes, Some(payload))?;
        let fetched = bench.next_fetched()?;
        let answer = format!("an answer of {len_bytes} bytes and {sums} checksums");
        bench.check_no_answer(&fetched, &answer)?;
    }
    bench.finish()
}

/// Both kinds both ways on the same connections: each answer reaches what asked for it.
pub(super) fn calls_and_fetches_mix<R: TransportRig>(rig: R, seed: u64) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut rng = SimRng::component(seed, "transport suite", 2);
    let deadline = bench.rig.now() + LONG;
    let mut fetches: BTreeMap<FetchTag, u64> = BTreeMap::new();
    let mut calls: BTreeMap<FetchTag, Vec<u8>> = BTreeMap::new();
    for number in 0..200 {
        let end = rng.below(2) as usize;
        if rng.chance(500) {
            let len_bytes = rng.between(1, 20_000) as usize;
            let tag = bench.fetch(end, number, len_bytes, deadline)?;
            fetches.extend(tag.map(|tag| (tag, number)));
        } else {
            let body = pattern(number, rng.between(1, CALL_BYTES_MAX as u64) as usize);
            let tag = bench.call(end, &body, body.len(), deadline)?;
            calls.extend(tag.map(|tag| (tag, body)));
        }
        while rng.chance(500) {
            bench.pump()?;
        }
        if rng.chance(300) {
            answer_some(&mut bench)?;
        }
    }
    for _ in 0..PUMPS_MAX {
        answer_some(&mut bench)?;
        if bench.fetches.is_empty() {
            break;
        }
        bench.pump()?;
    }
    bench.drain()?;
    for fetched in std::mem::take(&mut bench.fetched) {
        match calls.remove(&fetched.tag) {
            Some(body) => check_answer(&fetched, &body)?,
            None => check_bytes(&fetched, fetches.remove(&fetched.tag).unwrap_or(u64::MAX))?,
        }
    }
    demand!(
        calls.is_empty() && fetches.is_empty(),
        "calls went missing: {:?}, fetches: {:?}",
        calls.keys(),
        fetches.keys()
    );
    bench.finish()
}

/// Answers fetches with their bytes, and calls with their question.
fn answer_some<R: TransportRig>(bench: &mut Bench<R>) -> Verdict {
    while let Some(asked) = bench.asked.pop() {
        bench.answer_bytes(&asked, 0)?;
    }
    while let Some(called) = bench.called.pop() {
        let body = called.body.clone();
        bench.answer_call(&called, &body)?;
    }
    Ok(())
}
