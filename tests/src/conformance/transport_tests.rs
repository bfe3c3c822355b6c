use std::collections::VecDeque;

use forebay_engine::ports::{Clock, NoTransport};

use super::*;
use crate::sim::clock::SimClock;
use crate::sim::network::{NetFaults, NetProfile, SimNetwork, SimTransport};

fn profile() -> NetProfile {
    NetProfile {
        link_bytes_per_s: None,
        delay: (Duration::from_micros(5), Duration::from_micros(400)),
        credits: 32,
        flush: Duration::from_micros(300),
        faults: NetFaults::default(),
        returns_unflushed: false,
    }
}

/// How an adapter is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    No,
    LosesAnEnd,
    LosesAnAnswered,
    GarblesBytes,
    DropsChecksums,
    SwapsLeases,
    MixesUpStatuses,
    HidesWrongAnswers,
    IgnoresCancelAndDeadline,
}

struct BrokenTransport {
    inner: SimTransport,
    how: Broken,
    events: u64,
    spare: Option<Lease>,
    held: VecDeque<TransportEvent>,
}

impl Transport for BrokenTransport {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        match (self.how, op) {
            (
                Broken::IgnoresCancelAndDeadline,
                TransportOp::Fetch {
                    tag,
                    to,
                    request,
                    lease,
                    ..
                },
            ) => self.inner.submit(TransportOp::Fetch {
                tag,
                to,
                request,
                lease,
                deadline: Time::NEVER,
            }),
            (_, op) => self.inner.submit(op),
        }
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        if let Some(event) = self.held.pop_front() {
            return Some(event);
        }
        let event = self.inner.poll()?;
        self.events += 1;
        let some = self.events.is_multiple_of(3);
        match (self.how, event) {
            (Broken::LosesAnEnd, TransportEvent::Fetched { .. }) if some => None,
            (Broken::LosesAnAnswered, TransportEvent::Answered { .. }) if some => None,
            (
                Broken::GarblesBytes,
                TransportEvent::Fetched {
                    tag,
                    mut lease,
                    result,
                    len_bytes,
                    checksums,
                },
            ) => {
                lease.bytes_mut()[0] ^= 1;
                Some(TransportEvent::Fetched {
                    tag,
                    lease,
                    result,
                    len_bytes,
                    checksums,
                })
            }
            (
                Broken::DropsChecksums,
                TransportEvent::Fetched {
                    tag,
                    lease,
                    result,
                    len_bytes,
                    ..
                },
            ) => Some(TransportEvent::Fetched {
                tag,
                lease,
                result,
                len_bytes,
                checksums: Vec::new(),
            }),
            (
                Broken::SwapsLeases,
                TransportEvent::Fetched {
                    tag,
                    lease,
                    result,
                    len_bytes,
                    checksums,
                },
            ) => {
                let other = self.spare.replace(lease)?;
                Some(TransportEvent::Fetched {
                    tag,
                    lease: other,
                    result,
                    len_bytes,
                    checksums,
                })
            }
            (
                Broken::MixesUpStatuses,
                TransportEvent::Fetched {
                    tag,
                    lease,
                    result,
                    len_bytes,
                    checksums,
                },
            ) => {
                let result = result.map(|status| match status {
                    FetchStatus::NotOwner { .. } => FetchStatus::Busy,
                    other => other,
                });
                Some(TransportEvent::Fetched {
                    tag,
                    lease,
                    result,
                    len_bytes,
                    checksums,
                })
            }
            (
                Broken::HidesWrongAnswers,
                TransportEvent::Fetched {
                    tag,
                    lease,
                    result: Err(TransportError::Protocol),
                    len_bytes,
                    checksums,
                },
            ) => Some(TransportEvent::Fetched {
                tag,
                lease,
                result: Ok(FetchStatus::Failed(PeerFailure::Invalid)),
                len_bytes,
                checksums,
            }),
            (_, event) => Some(event),
        }
    }

    fn cancel(&mut self, tag: FetchTag) {
        if self.how != Broken::IgnoresCancelAndDeadline {
            self.inner.cancel(tag);
        }
    }
}

struct SimRig {
    clock: SimClock,
    network: SimNetwork,
    ends: [BrokenTransport; 2],
}

impl TransportRig for SimRig {
    type Transport = BrokenTransport;
    fn end(&mut self, end: usize) -> &mut BrokenTransport {
        &mut self.ends[end]
    }
    fn peer(&self, end: usize) -> PeerId {
        PeerId(end as u64 + 1)
    }
    fn now(&self) -> Time {
        self.clock.now()
    }
    fn pump(&mut self) {
        let soon = self.clock.now() + Duration::from_millis(1);
        self.clock
            .advance_to(self.network.next_at().map_or(soon, |next| next.min(soon)));
    }
    fn stray_writes(&self) -> u64 {
        self.network.stray_writes()
    }
}

fn rig_of(how: Broken, profile: NetProfile, seed: u64) -> SimRig {
    let clock = SimClock::default();
    let network = SimNetwork::new(profile, clock.clone(), seed);
    let ends = [1, 2].map(|peer| BrokenTransport {
        inner: network.join(PeerCore {
            peer: PeerId(peer),
            core: 0,
        }),
        how,
        events: 0,
        spare: None,
        held: VecDeque::new(),
    });
    SimRig {
        clock,
        network,
        ends,
    }
}

#[test]
fn the_simulated_transport_conforms() {
    for seed in 0..5 {
        suite(|| rig_of(Broken::No, profile(), seed)).unwrap();
    }
}

#[test]
fn each_broken_transport_is_caught() {
    for how in [
        Broken::LosesAnEnd,
        Broken::LosesAnAnswered,
        Broken::GarblesBytes,
        Broken::DropsChecksums,
        Broken::SwapsLeases,
        Broken::MixesUpStatuses,
        Broken::HidesWrongAnswers,
        Broken::IgnoresCancelAndDeadline,
    ] {
        let verdict = suite(|| rig_of(how, profile(), 3));
        assert!(verdict.is_err(), "{how:?} went unseen");
    }
}

#[test]
fn a_lease_that_goes_back_before_the_flush_is_caught() {
    let profile = NetProfile {
        returns_unflushed: true,
        ..profile()
    };
    let verdict = suite(|| rig_of(Broken::No, profile.clone(), 3)).unwrap_err();
    assert!(verdict.contains("late write"), "{verdict}");
}

#[test]
fn operations_end_on_a_network_with_every_fault() {
    for seed in 0..20 {
        let faults = NetFaults {
            reset: 50,
            lost: 50,
            garbled: 50,
            late: 50,
            full: 200,
            flipped: 0,
        };
        let profile = NetProfile {
            faults,
            ..profile()
        };
        every_operation_ends(rig_of(Broken::No, profile, seed), seed).unwrap();
    }
}

#[test]
fn a_partition_in_either_direction_ends_at_the_deadline_and_heals() {
    for (from, to) in [(1, 2), (2, 1)] {
        let rig = rig_of(Broken::No, profile(), 9);
        let network = rig.network.clone();
        let mut bench = Bench::new(rig).unwrap();
        network.partition(PeerId(from), PeerId(to), true);
        let deadline = bench.rig.now() + Duration::from_millis(100);
        bench.fetch(0, 1, 4_096, deadline).unwrap();
        while bench.fetched.is_empty() {
            bench.pump().unwrap();
            while let Some(asked) = bench.asked.pop() {
                bench.answer_bytes(&asked, 0).unwrap();
            }
        }
        check_late(&bench.next_fetched().unwrap(), deadline).unwrap();
        network.partition(PeerId(from), PeerId(to), false);
        let deadline = bench.rig.now() + LONG;
        bench.fetch(0, 2, 4_096, deadline).unwrap();
        let asked = bench.next_request().unwrap();
        bench.answer_bytes(&asked, 0).unwrap();
        check_bytes(&bench.next_fetched().unwrap(), 2).unwrap();
        bench.finish().unwrap();
    }
}

struct Alone(SimClock, [NoTransport; 2]);

impl TransportRig for Alone {
    type Transport = NoTransport;
    fn end(&mut self, end: usize) -> &mut NoTransport {
        &mut self.1[end]
    }
    fn peer(&self, end: usize) -> PeerId {
        PeerId(end as u64 + 1)
    }
    fn now(&self) -> Time {
        self.0.now()
    }
    fn pump(&mut self) {
        self.0.advance_to(self.0.now() + Duration::from_micros(1));
    }
}

#[test]
fn operations_end_without_a_transport() {
    let alone = || {
        Alone(
            SimClock::default(),
            [NoTransport::default(), NoTransport::default()],
        )
    };
    every_operation_ends(alone(), 1).unwrap();
    an_unknown_peer_is_unreachable(alone()).unwrap();
    assert!(suite(alone).is_err(), "nobody answers");
}
