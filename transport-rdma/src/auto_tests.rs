use std::cell::RefCell;
use std::rc::Rc;

use forebay_engine::arena::{Arena, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{FetchStatus, PeerAsk, PeerId};

use super::*;

/// What the core takes at most before its disk and readers have their turn.
const TURN: usize = 64;

#[derive(Clone, Default)]
struct Now(Rc<RefCell<Time>>);

impl Clock for Now {
    fn now(&self) -> Time {
        *self.0.borrow()
    }
}

/// A transport that tells what a test says, then as many requests as anyone takes.
#[derive(Default)]
struct Script {
    events: VecDeque<TransportEvent>,
    /// Tags of all that was submitted, and the leases of those.
    taken: Vec<(FetchTag, Lease)>,
    cancelled: Vec<FetchTag>,
    endless: bool,
    /// It still reaches everybody when something has failed.
    is_wide: bool,
    told: u64,
    revived: bool,
    /// What it says of links instead of that they are there, and how often.
    readiness: Option<Readiness>,
    asked: u64,
}

impl Script {
    /// All that was submitted ends with its bytes.
    fn answers(&mut self) {
        for (tag, lease) in self.taken.drain(..) {
            self.events.push_back(TransportEvent::Fetched {
                tag,
                lease,
                result: Ok(FetchStatus::Bytes),
                len_bytes: 4_096,
                checksums: Vec::new(),
            });
        }
    }

    fn fails(&mut self, error: TransportError) {
        for (tag, lease) in self.taken.drain(..) {
            self.events.push_back(TransportEvent::Fetched {
                tag,
                lease,
                result: Err(error),
                len_bytes: 0,
                checksums: Vec::new(),
            });
        }
    }
}

impl Transport for Script {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        if let TransportOp::Fetch { tag, lease, .. } = op {
            self.taken.push((tag, lease));
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        self.told += u64::from(self.endless);
        self.endless.then(|| TransportEvent::Request {
            handle: RequestHandle(self.told),
            peer: PeerId(9),
            ask: PeerAsk::Call {
                body: Box::default(),
                room_bytes: 1,
            },
            deadline: Time::NEVER,
        })
    }

    fn cancel(&mut self, tag: FetchTag) {
        self.cancelled.push(tag);
    }
}

impl Linked for Script {
    fn reaches(&self, _to: PeerCore) -> bool {
        self.is_wide
    }

    fn prepare(&mut self, _to: PeerCore) -> Readiness {
        self.asked += 1;
        self.readiness.clone().unwrap_or(Readiness::Ready)
    }

    fn take_revival(&mut self) -> bool {
        std::mem::take(&mut self.revived)
    }
}

struct Bench {
    auto: Auto<Script, Script>,
    arena: Arena,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let now = Now::default();
        Self {
            auto: Auto::new(Script::default(), Script::default(), now.clone()),
            arena: Arena::new(1 << 20).unwrap(),
            now,
        }
    }

    fn fetch(&mut self, tag: u64, to: u64) {
        self.fetch_until(tag, to, Time::NEVER);
    }

    fn at_s(&self, seconds: u64) {
        self.now.0.replace(Time(0) + Duration::from_secs(seconds));
    }

    fn why_tcp(&self) -> Option<String> {
        match self.auto.paths().next() {
            Some((_, Path::Tcp(why))) => Some(why.clone()),
            _ => None,
        }
    }

    fn fetch_until(&mut self, tag: u64, to: u64, deadline: Time) {
        let (tag, lease) = (FetchTag(tag), self.arena.lease(4_096, Share::Demand));
        let op = TransportOp::Fetch {
            tag,
            to: PeerCore {
                peer: PeerId(to),
                core: 0,
            },
            request: PeerFetch {
                object: ObjectId(1),
                size_bytes: 1 << 20,
                offset: 0,
                len_bytes: 4_096,
                want_bytes: 4_096,
                class: Class::Demand,
                view: 1,
                cached_only: false,
                forwarded: false,
                verify: false,
            },
            lease: lease.expect("a lease"),
            deadline,
        };
        self.auto.submit(op).expect("to be taken");
    }

    /// Polls as often as a core does in so many turns; ends of fetches.
    fn ends(&mut self, turns: usize) -> Vec<(FetchTag, Result<FetchStatus, TransportError>)> {
        let mut ends = Vec::new();
        for _ in 0..turns * TURN {
            match self.auto.poll() {
                Some(TransportEvent::Fetched { tag, result, .. }) => ends.push((tag, result)),
                Some(_) => {}
                None => break,
            }
        }
        ends
    }
}

#[test]
fn busy_queue_pairs_leave_tcp_its_turns() {
    let mut bench = Bench::new();
    // One fails and waits for TCP, one was TCP's from the beginning and ends there.
    bench.fetch(1, 2);
    bench.auto.verbs.fails(TransportError::Unreachable);
    bench.auto.verbs.endless = true;
    let lease = bench.arena.lease(4_096, Share::Demand).unwrap();
    bench.auto.tcp.taken.push((FetchTag(2), lease));
    bench.auto.tcp.fails(TransportError::Timeout);
    let ends = bench.ends(2);
    assert_eq!(ends, [(FetchTag(2), Err(TransportError::Timeout))]);
    let asked: Vec<_> = bench.auto.tcp.taken.iter().map(|taken| taken.0).collect();
    assert_eq!(asked, [FetchTag(1)], "what waits for TCP is asked there");
}

#[test]
fn a_busy_tcp_leaves_queue_pairs_their_turns() {
    let mut bench = Bench::new();
    bench.auto.tcp.endless = true;
    bench.fetch(1, 2);
    bench.auto.verbs.fails(TransportError::Protocol);
    let ends = bench.ends(2);
    assert_eq!(ends, [(FetchTag(1), Err(TransportError::Protocol))]);
    // And what they fail goes to TCP, however much that has to tell.
    bench.now.0.replace(Time(0) + PROBE_PAUSE);
    bench.fetch(3, 2);
    bench.auto.verbs.fails(TransportError::Unreachable);
    assert_eq!(bench.ends(2), []);
    assert_eq!(bench.auto.tcp.taken.len(), 1);
}

#[test]
fn what_was_cancelled_ends_as_cancelled_when_its_queue_pair_breaks() {
    let mut bench = Bench::new();
    bench.fetch(1, 2);
    bench.auto.cancel(FetchTag(1));
    assert_eq!(bench.auto.verbs.cancelled, [FetchTag(1)]);
    bench.auto.verbs.fails(TransportError::Unreachable);
    let ends = bench.ends(1);
    assert_eq!(ends, [(FetchTag(1), Err(TransportError::Cancelled))]);
    assert!(bench.auto.tcp.taken.is_empty(), "nobody wants it any more");
    // The queue pair broke all the same.
    let path = bench.auto.paths().next().map(|(_, path)| path.clone());
    assert!(matches!(path, Some(Path::Tcp(_))), "{path:?}");
}

#[test]
fn what_queue_pairs_fail_is_asked_of_tcp_at_once() {
    for polled_before in [0, 1] {
        let mut bench = Bench::new();
        for _ in 0..polled_before {
            assert!(bench.auto.poll().is_none());
        }
        bench.fetch(1, 2);
        bench.auto.verbs.fails(TransportError::Unreachable);
        assert!(bench.auto.poll().is_none());
        assert_eq!(bench.auto.tcp.taken.len(), 1, "it sleeps until a deadline");
    }
}

#[test]
fn who_has_no_rdma_is_asked_for_it_more_rarely_than_who_cannot_be_reached() {
    let why = || String::from("a reason");
    for (readiness, asked) in [
        (Readiness::Unavailable(why()), 12),
        (Readiness::Lacking(why()), 2),
    ] {
        let mut bench = Bench::new();
        bench.auto.verbs.readiness = Some(readiness.clone());
        // For two minutes, a request each second.
        for n in 0..120 {
            bench.now.0.replace(Time(0) + Duration::from_secs(n));
            bench.fetch(n, 2);
        }
        assert_eq!(bench.auto.verbs.asked, asked, "{readiness:?}");
        let path = bench.auto.paths().next().map(|(_, path)| path.clone());
        assert_eq!(path, Some(Path::Tcp(why())));
    }
}

#[test]
fn a_port_that_comes_up_has_its_links_tried_at_once() {
    let mut bench = Bench::new();
    bench.fetch(1, 2);
    bench.auto.verbs.fails(TransportError::Unreachable);
    assert!(bench.auto.poll().is_none());
    bench.auto.tcp.taken.clear();
    bench.fetch(2, 2);
    assert_eq!(bench.auto.tcp.taken.len(), 1, "the link has broken");
    bench.auto.verbs.revived = true;
    bench.fetch(3, 2);
    assert_eq!(bench.auto.verbs.taken.len(), 1, "nothing speaks against it");
    // Once: what breaks after that waits as ever.
    bench.auto.verbs.fails(TransportError::Unreachable);
    assert!(bench.auto.poll().is_none());
    bench.fetch(4, 2);
    assert!(bench.auto.verbs.taken.is_empty());
}

#[test]
fn links_of_members_that_are_gone_are_forgotten() {
    let mut bench = Bench::new();
    let step = Duration::from_secs(5);
    for peer in 0..1_000 {
        bench.now.0.replace(Time(0) + step * peer);
        bench.fetch(u64::from(peer), u64::from(peer));
        bench.auto.verbs.taken.clear();
        bench.auto.over_verbs.clear();
        // One that is used all along.
        bench.fetch(u64::from(peer) + 10_000, 5_000);
        bench.auto.verbs.taken.clear();
        bench.auto.over_verbs.clear();
    }
    let (links, one) = (bench.auto.links.len(), LINK_KEPT.as_secs() / step.as_secs());
    assert!(links as u64 <= 2 * one, "{links} links");
    let used = bench.auto.paths().find(|(to, _)| to.peer == PeerId(5_000));
    assert_eq!(used.map(|(_, path)| path), Some(&Path::Verbs));
}

#[test]
fn a_link_that_has_lost_one_of_several_connections_stays() {
    for is_wide in [true, false] {
        let mut bench = Bench::new();
        bench.auto.verbs.is_wide = is_wide;
        bench.fetch(1, 7);
        bench.auto.verbs.fails(TransportError::Unreachable);
        assert_eq!(bench.ends(1), [], "it is asked again over TCP");
        assert_eq!(bench.auto.tcp.taken.len(), 1);
        let over_verbs = bench.auto.paths().any(|(_, path)| *path == Path::Verbs);
        assert_eq!(over_verbs, is_wide);
        bench.fetch(2, 7);
        assert_eq!(bench.auto.verbs.taken.len(), usize::from(is_wide));
        // Who breaks the protocol is not asked that way again for a while.
        bench.auto.verbs.fails(TransportError::Protocol);
        bench.ends(1);
        let over_verbs = bench.auto.paths().any(|(_, path)| *path == Path::Verbs);
        assert!(!over_verbs);
    }
}

/// Seconds after which a link is tried again, by a request each second.
fn tried_at(bench: &mut Bench, end_s: u64, mut fails: impl FnMut(&mut Bench)) -> Vec<u64> {
    let mut tried = Vec::new();
    for second in 0..end_s {
        bench.at_s(second);
        let before = bench.auto.verbs.asked;
        bench.fetch(second, 2);
        if bench.auto.verbs.asked > before {
            tried.push(second);
            fails(bench);
            assert!(bench.auto.poll().is_none());
        }
        bench.auto.tcp.taken.clear();
    }
    tried
}

#[test]
fn a_link_that_breaks_again_and_again_is_tried_more_and_more_rarely() {
    let expected = [0, 10, 30, 70, 150, 310, 470, 630];
    let mut bench = Bench::new();
    let tried = tried_at(&mut bench, 700, |bench| {
        bench.auto.verbs.fails(TransportError::Unreachable);
    });
    assert_eq!(tried, expected);
    let why = bench.why_tcp().unwrap();
    assert!(
        why.contains("(8 times in a row: it is tried again after 160 s)"),
        "{why}"
    );
    // The same of one that is made and carries nothing; the first time nothing is said of times.
    let mut bench = Bench::new();
    bench.auto.verbs.readiness = Some(Readiness::Useless("nothing long passes".into()));
    let mut told = Vec::new();
    let tried = tried_at(&mut bench, 700, |bench| told.extend(bench.why_tcp()));
    assert_eq!(tried, expected);
    assert_eq!(told[0], "nothing long passes");
    assert!(
        told[1].starts_with("nothing long passes (2 times in a row"),
        "{}",
        told[1]
    );
}

#[test]
fn a_link_that_held_for_a_while_begins_anew_with_short_pauses() {
    let mut bench = Bench::new();
    for second in [0, 10, 30] {
        bench.at_s(second);
        bench.fetch(second, 2);
        bench.auto.verbs.fails(TransportError::Unreachable);
        assert!(bench.auto.poll().is_none());
    }
    // Not tried before it is time, then it holds.
    for (second, by_verbs) in [(69, 0), (70, 1), (70 + GOOD.as_secs(), 1)] {
        bench.at_s(second);
        bench.fetch(second, 2);
        assert_eq!(bench.auto.verbs.taken.len(), by_verbs, "at {second} s");
        bench.auto.verbs.answers();
        bench.ends(1);
    }
    bench.fetch(999, 2);
    bench.auto.verbs.fails(TransportError::Unreachable);
    bench.ends(1);
    assert!(!bench.why_tcp().unwrap().contains("in a row"));
    bench.at_s(70 + GOOD.as_secs() + PROBE_PAUSE.as_secs());
    bench.fetch(1_000, 2);
    assert_eq!(bench.auto.verbs.taken.len(), 1);
}

/// A port was down for a moment: its requests end late, when the link has left them behind.
#[test]
fn requests_of_what_a_link_was_say_nothing_of_what_it_is() {
    let mut bench = Bench::new();
    bench.fetch(1, 2);
    let late: Vec<_> = bench.auto.verbs.taken.drain(..).collect();
    bench.auto.verbs.readiness = Some(Readiness::Connecting);
    bench.fetch(2, 2);
    bench.auto.verbs.taken = late;
    bench.auto.verbs.fails(TransportError::Unreachable);
    assert_eq!(bench.ends(1), [], "it is asked again over TCP");
    assert_eq!(bench.auto.tcp.taken.len(), 2);
    bench.auto.verbs.readiness = None;
    bench.fetch(3, 2);
    assert_eq!(bench.auto.verbs.taken.len(), 1, "the new one is used");
    // What is asked by that one counts.
    bench.auto.verbs.fails(TransportError::Unreachable);
    bench.ends(1);
    bench.fetch(4, 2);
    assert!(bench.auto.verbs.taken.is_empty());
}

const DEADLINE: Time = Time(8_000_000_000);

#[test]
fn what_gets_no_answer_in_half_of_its_time_is_asked_over_tcp_where_nothing_long_comes() {
    let mut bench = Bench::new();
    bench.fetch_until(1, 2, DEADLINE);
    assert!(
        bench.auto.wake_at() <= Time(4_000_000_000),
        "it looks in time"
    );
    bench.at_s(3);
    assert_eq!(bench.ends(1), []);
    assert!(bench.auto.verbs.cancelled.is_empty());
    bench.at_s(4);
    assert_eq!(bench.ends(1), []);
    assert_eq!(bench.auto.verbs.cancelled, [FetchTag(1)]);
    // Nobody answers that it is taken back either: the queue pair is ended, and the link is on TCP.
    bench.auto.verbs.fails(TransportError::Cancelled);
    assert_eq!(bench.ends(1), []);
    assert_eq!(bench.auto.tcp.taken.len(), 1);
    assert!(bench.why_tcp().is_some());
    bench.auto.tcp.answers();
    assert_eq!(bench.ends(1), [(FetchTag(1), Ok(FetchStatus::Bytes))]);
    // One that the peer gives back at once leaves the link as it is.
    let mut bench = Bench::new();
    bench.auto.verbs.is_wide = true;
    bench.fetch_until(1, 2, DEADLINE);
    bench.at_s(4);
    bench.ends(1);
    bench.auto.verbs.fails(TransportError::Cancelled);
    assert_eq!(bench.ends(1), []);
    assert_eq!((bench.auto.tcp.taken.len(), bench.why_tcp()), (1, None));
}

#[test]
fn a_peer_that_is_slow_while_long_answers_come_is_waited_for() {
    let mut bench = Bench::new();
    bench.auto.verbs.is_wide = true;
    bench.fetch_until(1, 2, DEADLINE);
    let slow = bench.auto.verbs.taken.pop();
    bench.at_s(2);
    bench.fetch_until(2, 2, DEADLINE);
    bench.auto.verbs.answers();
    assert_eq!(bench.ends(1).len(), 1);
    bench.at_s(4);
    assert_eq!(bench.ends(1), []);
    assert!(bench.auto.verbs.cancelled.is_empty());
    // Half of what is left, and nothing came since.
    bench.at_s(6);
    assert_eq!(bench.ends(1), []);
    assert_eq!(bench.auto.verbs.cancelled, [FetchTag(1)]);
    // Too late for TCP: it is late, not cancelled by anybody.
    bench.auto.verbs.taken.extend(slow);
    bench.at_s(8);
    bench.auto.verbs.fails(TransportError::Cancelled);
    assert_eq!(bench.ends(1), [(FetchTag(1), Err(TransportError::Timeout))]);
}

#[test]
fn what_the_engine_cancels_is_not_asked_again_though_it_was_doubted() {
    let mut bench = Bench::new();
    bench.auto.verbs.is_wide = true;
    bench.fetch_until(1, 2, DEADLINE);
    bench.at_s(4);
    bench.ends(1);
    bench.auto.cancel(FetchTag(1));
    bench.auto.verbs.fails(TransportError::Cancelled);
    let ends = bench.ends(1);
    assert_eq!(ends, [(FetchTag(1), Err(TransportError::Cancelled))]);
    assert!(bench.auto.tcp.taken.is_empty());
}
