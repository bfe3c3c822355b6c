//! Two ways as one: queue pairs that come, break and come back, over TCP that is always there. Both are simulated networks.

use std::cell::Cell;
use std::rc::Rc;

use forebay_engine::ports::Clock;
use forebay_transport_rdma::auto::{Auto, Linked, PROBE_PAUSE, Path, Readiness};

use super::*;
use crate::sim::clock::SimClock;
use crate::sim::network::{NetFaults, NetProfile, SimNetwork, SimTransport};

/// Which links have queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pairs {
    All,
    None,
    Connecting,
    /// There and not there, request by request.
    Some(u64),
}

struct Verbs {
    inner: SimTransport,
    pairs: Rc<Cell<Pairs>>,
}

impl Linked for Verbs {
    // Links of one connection.
    fn reaches(&self, _to: PeerCore) -> bool {
        false
    }

    fn prepare(&mut self, _to: PeerCore) -> Readiness {
        match self.pairs.get() {
            Pairs::All => Readiness::Ready,
            Pairs::None => Readiness::Unavailable("no device".into()),
            Pairs::Connecting => Readiness::Connecting,
            Pairs::Some(count) => {
                self.pairs.set(Pairs::Some(count + 1));
                match count.is_multiple_of(3) {
                    true => Readiness::Ready,
                    false => Readiness::Connecting,
                }
            }
        }
    }
}

impl Transport for Verbs {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        self.inner.submit(op)
    }
    fn poll(&mut self) -> Option<TransportEvent> {
        self.inner.poll()
    }
    fn cancel(&mut self, tag: FetchTag) {
        self.inner.cancel(tag);
    }
    fn wake_at(&self) -> Time {
        self.inner.wake_at()
    }
}

struct AutoRig {
    clock: SimClock,
    verbs: SimNetwork,
    tcp: SimNetwork,
    pairs: Rc<Cell<Pairs>>,
    ends: [Auto<Verbs, SimTransport>; 2],
}

impl TransportRig for AutoRig {
    type Transport = Auto<Verbs, SimTransport>;
    fn end(&mut self, end: usize) -> &mut Self::Transport {
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
        let next = [self.verbs.next_at(), self.tcp.next_at(), Some(soon)];
        self.clock
            .advance_to(next.into_iter().flatten().min().unwrap_or(soon));
    }
    fn stray_writes(&self) -> u64 {
        self.verbs.stray_writes() + self.tcp.stray_writes()
    }
}

fn profile(faults: NetFaults) -> NetProfile {
    NetProfile {
        link_bytes_per_s: None,
        delay: (Duration::from_micros(5), Duration::from_micros(400)),
        credits: 32,
        flush: Duration::from_micros(300),
        faults,
        returns_unflushed: false,
    }
}

fn core_of(peer: u64) -> PeerCore {
    PeerCore {
        peer: PeerId(peer),
        core: 0,
    }
}

fn rig(pairs: Pairs, faults: NetFaults, seed: u64) -> AutoRig {
    let clock = SimClock::default();
    let verbs = SimNetwork::new(profile(faults.clone()), clock.clone(), seed);
    let tcp = SimNetwork::new(profile(NetFaults::default()), clock.clone(), seed + 1);
    let pairs = Rc::new(Cell::new(pairs));
    let ends = [1, 2].map(|peer| {
        let one = Verbs {
            inner: verbs.join(core_of(peer)),
            pairs: pairs.clone(),
        };
        Auto::new(one, tcp.join(core_of(peer)), clock.clone())
    });
    AutoRig {
        clock,
        verbs,
        tcp,
        pairs,
        ends,
    }
}

fn calm(pairs: Pairs) -> AutoRig {
    rig(pairs, NetFaults::default(), 3)
}

fn path(bench: &Bench<AutoRig>) -> Path {
    let (to, path) = bench.rig.ends[0].paths().next().expect("a link was used");
    assert_eq!(to, core_of(2));
    path.clone()
}

/// One fetch that must bring its bytes, however it goes.
fn fetch_one(bench: &mut Bench<AutoRig>, number: u64) {
    let deadline = bench.rig.now() + LONG;
    bench.fetch(0, number, 70_000, deadline).unwrap();
    let asked = bench.next_request().unwrap();
    bench.answer_bytes(&asked, 0).unwrap();
    check_bytes(&bench.next_fetched().unwrap(), number).unwrap();
}

#[test]
fn two_ways_as_one_conform_whichever_there_is() {
    for pairs in [Pairs::All, Pairs::None, Pairs::Connecting, Pairs::Some(0)] {
        suite(|| calm(pairs)).unwrap_or_else(|error| panic!("{pairs:?}: {error}"));
    }
}

#[test]
fn operations_end_whatever_happens_to_queue_pairs() {
    for seed in 0..20 {
        let faults = NetFaults {
            reset: 200,
            lost: 50,
            garbled: 100,
            late: 50,
            full: 200,
            flipped: 0,
        };
        every_operation_ends(rig(Pairs::Some(seed), faults, seed), seed).unwrap();
    }
}

#[test]
fn a_queue_pair_that_breaks_fails_no_read() {
    let faults = NetFaults {
        reset: 1_000,
        ..NetFaults::default()
    };
    let mut bench = Bench::new(rig(Pairs::All, faults, 5)).unwrap();
    fetch_one(&mut bench, 1);
    let Path::Tcp(why) = path(&bench) else {
        panic!("the link has a queue pair still");
    };
    assert!(why.contains("broke: unreachable"), "{why}");
    bench.finish().unwrap();
}

#[test]
fn a_peer_that_answers_no_more_over_its_queue_pair_is_asked_again_over_tcp() {
    let mut bench = Bench::new(calm(Pairs::All)).unwrap();
    let deadline = bench.rig.now() + LONG;
    bench.fetch(0, 1, 70_000, deadline).unwrap();
    let over_verbs = bench.next_request().unwrap();
    assert_eq!(path(&bench), Path::Verbs);
    // In the middle of the read: the request is there, and its queue pair gone.
    bench.rig.verbs.leave(core_of(2));
    let over_tcp = bench.next_request().unwrap();
    assert_eq!(over_tcp.request, over_verbs.request);
    assert_ne!(over_tcp.handle, over_verbs.handle);
    bench.answer_bytes(&over_tcp, 0).unwrap();
    check_bytes(&bench.next_fetched().unwrap(), 1).unwrap();
    assert!(bench.fetched.is_empty(), "it ended once");
    bench.finish().unwrap();
}

#[test]
fn a_broken_link_is_left_alone_for_a_while_and_tried_again() {
    let mut bench = Bench::new(calm(Pairs::All)).unwrap();
    fetch_one(&mut bench, 1);
    assert_eq!(path(&bench), Path::Verbs);
    bench.rig.verbs.set_refused(PeerId(2), true);
    fetch_one(&mut bench, 2);
    assert!(matches!(path(&bench), Path::Tcp(_)));
    bench.rig.verbs.set_refused(PeerId(2), false);
    let broke = bench.rig.now();
    while bench.rig.now().since(broke) < PROBE_PAUSE - Duration::from_secs(1) {
        fetch_one(&mut bench, 3);
        assert!(matches!(path(&bench), Path::Tcp(_)), "tried too early");
        bench
            .rig
            .clock
            .advance_to(bench.rig.now() + Duration::from_millis(500));
    }
    bench.rig.clock.advance_to(broke + PROBE_PAUSE);
    fetch_one(&mut bench, 4);
    assert_eq!(path(&bench), Path::Verbs);
    bench.finish().unwrap();
}

#[test]
fn without_a_device_the_reason_is_told_and_nobody_waits() {
    let mut bench = Bench::new(calm(Pairs::None)).unwrap();
    fetch_one(&mut bench, 1);
    assert_eq!(path(&bench), Path::Tcp("no device".into()));
    bench.rig.pairs.set(Pairs::All);
    bench.rig.clock.advance_to(bench.rig.now() + PROBE_PAUSE);
    fetch_one(&mut bench, 2);
    assert_eq!(path(&bench), Path::Verbs);
    bench.finish().unwrap();
}

#[test]
fn what_waits_for_tcp_is_cancelled_and_ends_at_its_deadline() {
    for cancel in [false, true] {
        let faults = NetFaults {
            reset: 1_000,
            ..NetFaults::default()
        };
        let mut bench = Bench::new(rig(Pairs::All, faults, 5)).unwrap();
        // TCP takes no more: its credits are used up by requests that nobody answers.
        bench.rig.pairs.set(Pairs::Connecting);
        let deadline = bench.rig.now() + LONG;
        while bench.fetch(0, 7, 4_096, deadline).unwrap().is_some() {}
        bench.rig.pairs.set(Pairs::All);
        let soon = bench.rig.now() + Duration::from_millis(50);
        let tag = bench
            .fetch(0, 1, 4_096, soon)
            .unwrap()
            .expect("queue pairs have room");
        bench
            .until("the queue pair breaks", |bench| path(bench) != Path::Verbs)
            .unwrap();
        assert!(bench.fetched.is_empty(), "it waits");
        if cancel {
            bench.rig.ends[0].cancel(tag);
        }
        let fetched = bench.next_fetched().unwrap();
        assert_eq!(fetched.tag, tag);
        let expected = match cancel {
            true => TransportError::Cancelled,
            false => TransportError::Timeout,
        };
        assert_eq!(fetched.result, Err(expected));
        assert!(cancel || fetched.at >= soon);
        drop(fetched);
        while let Some(asked) = bench.asked.pop() {
            bench.answer_bytes(&asked, 0).unwrap();
        }
        bench.finish().unwrap();
    }
}
