//! What every transport must do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_engine::arena::{Arena, Frozen, Lease, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::{
    Class, FetchStatus, FetchTag, Full, Payload, PeerAsk, PeerCore, PeerFailure, PeerFetch, PeerId,
    RequestHandle, Time, Transport, TransportError, TransportEvent, TransportOp,
};

use super::{Verdict, demand};
use crate::sim::rng::SimRng;

const ARENA_BYTES: usize = 64 << 20;
/// Pumps after which something that has not happened counts as lost.
const PUMPS_MAX: usize = 100_000;
/// Fetches after which a transport that is never full counts as unbounded.
const FILL_OPS_MAX: usize = 1_000;
/// Time that a connection may take to be flushed.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);
/// A deadline that nothing in the suite reaches.
const LONG: Duration = Duration::from_secs(3_600);

/// Two ends of a transport under test.
pub trait TransportRig {
    /// The adapter.
    type Transport: Transport;
    /// All leases and payloads of the bench will be of this arena: devices register it. Called once, before all else.
    fn use_arena(&mut self, _arena: &Arena) {}
    /// End 0 or end 1.
    fn end(&mut self, end: usize) -> &mut Self::Transport;
    /// How the other end names this one.
    fn peer(&self, end: usize) -> PeerId;
    /// The clock that deadlines are measured by.
    fn now(&self) -> Time;
    /// Lets some time pass, so that something may happen.
    fn pump(&mut self);
    /// Whether an end that is given an answer which fits no request tells the asker so, as `Failed(Invalid)`, instead of
    /// letting the asker find out. So for one that writes into the asker's memory itself (RDMA).
    fn refuses_wrong_answers(&self) -> bool {
        false
    }
    /// Writes into leases that had gone back, where the adapter can tell.
    fn stray_writes(&self) -> u64 {
        0
    }
}

/// A fetch that ended.
#[derive(Debug)]
struct Fetched {
    tag: FetchTag,
    lease: Lease,
    result: Result<FetchStatus, TransportError>,
    len_bytes: u32,
    checksums: Vec<u32>,
    at: Time,
}

/// A call that arrived.
#[derive(Debug)]
struct Called {
    end: usize,
    handle: RequestHandle,
    peer: PeerId,
    body: Box<[u8]>,
    room_bytes: u32,
}

/// A fetch that arrived.
#[derive(Debug)]
struct Asked {
    end: usize,
    handle: RequestHandle,
    peer: PeerId,
    request: PeerFetch,
}

struct Bench<R> {
    rig: R,
    arena: Arena,
    tags: u64,
    /// Fetches under way: the buffer's address and length.
    fetches: BTreeMap<FetchTag, (usize, usize)>,
    /// Those of them that are calls.
    calls: BTreeSet<FetchTag>,
    /// Answers under way, by end and handle: the payload's address, if there is one.
    answers: Vec<(usize, RequestHandle, Option<usize>)>,
    fetched: Vec<Fetched>,
    asked: Vec<Asked>,
    called: Vec<Called>,
}

fn address(bytes: &[u8]) -> (usize, usize) {
    (bytes.as_ptr() as usize, bytes.len())
}

fn pattern(number: u64, len_bytes: usize) -> Vec<u8> {
    let mut rng = SimRng::new(number);
    (0..len_bytes.div_ceil(8))
        .flat_map(|_| rng.bits().to_le_bytes())
        .take(len_bytes)
        .collect()
}

fn request(number: u64, len_bytes: usize) -> PeerFetch {
    PeerFetch {
        object: ObjectId(u128::from(number) << 64 | 7),
        size_bytes: number << 33 | 5,
        offset: number * PAGE_BYTES as u64,
        len_bytes: len_bytes as u32,
        want_bytes: len_bytes as u32 * 2,
        class: [Class::Demand, Class::Prefetch, Class::WarmUp][(number % 3) as usize],
        view: number ^ 0x5555,
        cached_only: number.is_multiple_of(2),
        forwarded: number.is_multiple_of(5),
        verify: number.is_multiple_of(7),
    }
}

impl<R: TransportRig> Bench<R> {
    fn new(mut rig: R) -> Result<Self, String> {
        let arena = Arena::new(ARENA_BYTES).map_err(|error| format!("no arena: {error}"))?;
        rig.use_arena(&arena);
        let (fetches, answers) = (BTreeMap::new(), Vec::new());
        Ok(Self {
            rig,
            arena,
            tags: 0,
            fetches,
            answers,
            fetched: Vec::new(),
            asked: Vec::new(),
            calls: BTreeSet::new(),
            called: Vec::new(),
        })
    }

    fn lease(&mut self, len_bytes: usize) -> Result<Lease, String> {
        self.arena
            .lease(len_bytes, Share::Demand)
            .map_err(|denied| format!("no lease: {denied:?}"))
    }

    fn frozen(&mut self, bytes: &[u8]) -> Result<Frozen, String> {
        let mut lease = self.lease(bytes.len())?;
        lease.bytes_mut().copy_from_slice(bytes);
        Ok(self.arena.freeze(lease))
    }

    /// Asks the other end; false when the transport is full, after the checks that it must pass.
    fn fetch(
        &mut self,
        end: usize,
        number: u64,
        len_bytes: usize,
        deadline: Time,
    ) -> Result<Option<FetchTag>, String> {
        let to = PeerCore {
            peer: self.rig.peer(1 - end),
            core: 0,
        };
        self.fetch_from(end, to, number, len_bytes, deadline)
    }

    fn fetch_from(
        &mut self,
        end: usize,
        to: PeerCore,
        number: u64,
        len_bytes: usize,
        deadline: Time,
    ) -> Result<Option<FetchTag>, String> {
        self.tags += 1;
        let tag = FetchTag(self.tags);
        let mut lease = self.lease(len_bytes)?;
        lease.bytes_mut().fill(0x11);
        let at = address(lease.bytes());
        let request = request(number, len_bytes);
        match self.rig.end(end).submit(TransportOp::Fetch {
            tag,
            to,
            request,
            lease,
            deadline,
        }) {
            Ok(()) => {
                self.fetches.insert(tag, at);
                Ok(Some(tag))
            }
            Err(Full(TransportOp::Fetch {
                tag: back,
                to: whom,
                request: what,
                lease,
                deadline: when,
            })) => {
                let same = back == tag && whom == to && what == request && when == deadline;
                demand!(
                    same && address(lease.bytes()) == at,
                    "Full gave back another fetch than {tag:?}"
                );
                demand!(
                    lease.bytes().iter().all(|byte| *byte == 0x11),
                    "Full wrote into the lease of {tag:?}"
                );
                Ok(None)
            }
            Err(Full(other)) => Err(format!("Full gave back {other:?} instead of {tag:?}")),
        }
    }

    fn answer(
        &mut self,
        end: usize,
        handle: RequestHandle,
        status: FetchStatus,
        payload: Option<Payload>,
    ) -> Verdict {
        let at = payload.as_ref().map(|payload| address(&payload.parts[0]).0);
        let mut op = TransportOp::Answer {
            handle,
            status,
            payload,
        };
        for _ in 0..PUMPS_MAX {
            match self.rig.end(end).submit(op) {
                Ok(()) => {
                    self.answers.push((end, handle, at));
                    return Ok(());
                }
                Err(Full(back)) => op = back,
            }
            self.pump()?;
        }
        Err("the transport stays full for answers".into())
    }

    /// Answers with a buffer that holds the right bytes from `start` on.
    fn answer_bytes(&mut self, asked: &Asked, start: usize) -> Verdict {
        let number = asked.request.offset / PAGE_BYTES as u64;
        let len = asked.request.len_bytes as usize;
        let mut bytes = vec![0xee; start];
        bytes.extend(pattern(number, len));
        bytes.extend([0xee; 9]);
        let bytes = self.frozen(&bytes)?;
        // In two parts where it can be: they arrive as one.
        let middle = start + len / 2;
        let parts = [start..middle, middle..start + len].into_iter();
        let payload = Payload {
            parts: parts
                .filter(|part| !part.is_empty())
                .map(|part| bytes.slice(part))
                .collect(),
            checksums: (0..len.div_ceil(PAGE_BYTES) as u32)
                .map(|page| page ^ number as u32)
                .collect(),
        };
        self.answer(asked.end, asked.handle, FetchStatus::Bytes, Some(payload))
    }

    fn pump(&mut self) -> Verdict {
        self.rig.pump();
        for end in 0..2 {
            while let Some(event) = self.rig.end(end).poll() {
                self.take(end, event)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, end: usize, event: TransportEvent) -> Verdict {
        match event {
            TransportEvent::Fetched {
                tag,
                lease,
                result,
                len_bytes,
                checksums,
            } => {
                let Some(lent) = self.fetches.remove(&tag) else {
                    return Err(format!("{tag:?} ended twice, or was never accepted"));
                };
                demand!(
                    lent == address(lease.bytes()),
                    "{tag:?} came back with another lease than it was lent"
                );
                let is_call = self.calls.remove(&tag);
                let expected = match result {
                    Ok(FetchStatus::Bytes) if is_call => 0..=lease.len() as u32,
                    Ok(FetchStatus::Bytes) => lease.len() as u32..=lease.len() as u32,
                    _ => 0..=0,
                };
                demand!(
                    expected.contains(&len_bytes),
                    "{tag:?} ended as {result:?} with {len_bytes} bytes"
                );
                self.fetched.push(Fetched {
                    tag,
                    lease,
                    result,
                    len_bytes,
                    checksums,
                    at: self.rig.now(),
                });
            }
            TransportEvent::Request {
                handle,
                peer,
                ask,
                deadline: _,
            } => match ask {
                PeerAsk::Fetch(request) => self.asked.push(Asked {
                    end,
                    handle,
                    peer,
                    request,
                }),
                PeerAsk::Call { body, room_bytes } => self.called.push(Called {
                    end,
                    handle,
                    peer,
                    body,
                    room_bytes,
                }),
            },
            // The answer is owed all the same.
            TransportEvent::GivenUp { .. } => {}
            TransportEvent::Answered { handle, payload } => {
                let at = payload.as_ref().map(|payload| address(&payload.parts[0]).0);
                let found = self
                    .answers
                    .iter()
                    .position(|open| *open == (end, handle, at));
                let Some(found) = found else {
                    return Err(format!(
                        "the answer to {handle:?} ended twice, or with another payload"
                    ));
                };
                self.answers.swap_remove(found);
            }
        }
        Ok(())
    }

    /// Pumps until `goal`.
    fn until(&mut self, what: &str, goal: impl Fn(&Self) -> bool) -> Verdict {
        for _ in 0..PUMPS_MAX {
            if goal(self) {
                return Ok(());
            }
            self.pump()?;
        }
        Err(format!("never happened: {what}"))
    }

    fn drain(&mut self) -> Verdict {
        self.until("every fetch and answer ends", |bench| {
            bench.fetches.is_empty() && bench.answers.is_empty()
        })
    }

    fn next_request(&mut self) -> Result<Asked, String> {
        self.until("a request arrives", |bench| !bench.asked.is_empty())?;
        Ok(self.asked.remove(0))
    }

    fn next_fetched(&mut self) -> Result<Fetched, String> {
        self.until("a fetch ends", |bench| !bench.fetched.is_empty())?;
        Ok(self.fetched.remove(0))
    }

    /// Checks that an answer which fits no request was not taken for one.
    fn check_no_answer(&self, fetched: &Fetched, answer: &str) -> Verdict {
        let refused = Ok(FetchStatus::Failed(PeerFailure::Invalid));
        demand!(
            fetched.result.is_err()
                || self.rig.refuses_wrong_answers() && fetched.result == refused,
            "{answer} was taken as {:?}",
            fetched.result
        );
        Ok(())
    }

    /// Nothing is owed any more, and nothing was written where it must not be.
    fn finish(mut self) -> Verdict {
        self.drain()?;
        self.fetched.clear();
        self.arena.reclaim();
        let (free, all) = (self.arena.free_bytes(), self.arena.capacity_bytes());
        demand!(
            free == all,
            "{} bytes of buffers did not come back",
            all - free
        );
        demand!(
            self.rig.stray_writes() == 0,
            "a late write landed in a lease that had gone back"
        );
        Ok(())
    }
}

fn check_bytes(fetched: &Fetched, number: u64) -> Verdict {
    let len = fetched.lease.len();
    demand!(
        fetched.result == Ok(FetchStatus::Bytes),
        "a fetch ended as {:?}",
        fetched.result
    );
    demand!(
        fetched.lease.bytes() == pattern(number, len),
        "{:?} got other bytes than were sent",
        fetched.tag
    );
    let sums: Vec<u32> = (0..len.div_ceil(PAGE_BYTES) as u32)
        .map(|page| page ^ number as u32)
        .collect();
    demand!(
        *fetched.checksums == *sums,
        "the checksums changed on the way"
    );
    Ok(())
}

/// Every rule, on transports that `make` makes and that have no faults.
///
/// # Errors
/// The first rule that is broken.
pub fn suite<R: TransportRig>(mut make: impl FnMut() -> R) -> Verdict {
    bytes_arrive_whole(make())?;
    every_status_arrives(make())?;
    silence_ends_at_the_deadline(make())?;
    a_late_answer_touches_no_returned_lease(make())?;
    cancelled_fetches_end_once(make())?;
    a_full_transport_gives_the_fetch_back(make())?;
    answers_to_nobody_end(make())?;
    wrong_answers_are_no_answers(make())?;
    an_unknown_peer_is_unreachable(make())?;
    calls_arrive_whole(make())?;
    wrong_answers_to_calls_are_no_answers(make())?;
    for seed in 0..2 {
        calls_and_fetches_mix(make(), seed)?;
    }
    for seed in 0..4 {
        many_fetches_both_ways(make(), seed)?;
    }
    Ok(())
}

/// The rules that hold with faults too: every fetch and every answer ends once, in time, with its
/// buffer; bytes that arrive are right; no returned lease is written to.
///
/// # Errors
/// How they are broken.
pub fn every_operation_ends<R: TransportRig>(rig: R, seed: u64) -> Verdict {
    let mut bench = Bench::new(rig)?;
    let mut rng = SimRng::component(seed, "transport suite", 1);
    let mut due: BTreeMap<FetchTag, (u64, Time)> = BTreeMap::new();
    let mut outcomes = BTreeSet::new();
    for number in 0..400 {
        let deadline = bench.rig.now() + Duration::from_micros(rng.below(20_000));
        if let Some(tag) = bench.fetch(rng.below(2) as usize, number, 4_096, deadline)? {
            due.insert(tag, (number, deadline));
        }
        bench.pump()?;
        while !bench.asked.is_empty() && rng.chance(700) {
            let at = rng.below(bench.asked.len() as u64) as usize;
            let asked = bench.asked.swap_remove(at);
            bench.answer_bytes(&asked, 0)?;
        }
        for fetched in std::mem::take(&mut bench.fetched) {
            let (number, deadline) = due.remove(&fetched.tag).unwrap_or_default();
            demand!(
                fetched.at <= deadline + FLUSH_MAX,
                "a fetch due at {deadline:?} ended at {:?}",
                fetched.at
            );
            outcomes.insert(format!("{:?}", fetched.result));
            if fetched.result.is_ok() {
                check_bytes(&fetched, number)?;
            }
        }
    }
    answer_the_rest(&mut bench)?;
    bench.finish()
}

#[path = "transport_rules.rs"]
mod rules;
use rules::*;

#[path = "transport_calls.rs"]
mod call_rules;
use call_rules::*;

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "transport_auto_tests.rs"]
mod auto_tests;
