//! The thread's states, without a device: a script does what rdma_cm does.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::ports::{Clock, PeerId};
use forebay_engine::ring::Doorbell;
use forebay_engine::wire::hello::Key;
use parking_lot::Mutex;

use super::*;
use crate::endpoint::EndpointConfig;
use crate::introduce::Tickets;
use crate::inventory::Rail;
use crate::limits::RECEIVES;
use crate::seat::Seat;
use crate::{CmPlace, ConnectionId};

const ME: PeerId = PeerId(1);
const PEER: PeerCore = PeerCore {
    peer: PeerId(2),
    core: 3,
};
const GRANT: Grant = Grant {
    messages: RECEIVES,
    credit_bytes: 2 << 20,
};
/// The entry that the kernel's connection manager chooses.
const KERNELS_GID: u8 = 0;
const OWN_PAIR: u32 = 70;
const PEERS_PAIR: u32 = 71;

/// Does nothing but remember what it was told.
#[derive(Default)]
struct Script {
    last: u64,
    events: VecDeque<Result<CmEvent, ()>>,
    said: Vec<String>,
    /// Private data of the last question or reply.
    private: Vec<u8>,
    closed: Vec<CmId>,
    no_device: bool,
    wake: Option<rustix::fd::OwnedFd>,
}

fn refused() -> VerbsError {
    VerbsError::Unusable {
        object: "the script".into(),
        what: "it has no device".into(),
    }
}

impl Script {
    fn id(&mut self) -> CmId {
        self.last += 1;
        CmId(self.last)
    }

    fn say(&mut self, what: &str, id: CmId) -> Result<(), VerbsError> {
        self.said.push(format!("{what} {}", id.0));
        Ok(())
    }
}

impl Connector for Script {
    fn listen(&mut self, at: SocketAddr, _: i32) -> Result<(CmId, SocketAddr), VerbsError> {
        match self.no_device {
            true => Err(refused()),
            false => Ok((self.id(), SocketAddr::new(at.ip(), 4_000))),
        }
    }

    fn resolve_address(
        &mut self,
        _: std::net::IpAddr,
        _: SocketAddr,
        _: Duration,
    ) -> Result<CmId, VerbsError> {
        Ok(self.id())
    }

    fn resolve_route(&mut self, id: CmId, _: Duration) -> Result<(), VerbsError> {
        self.say("route", id)
    }

    fn place(&self, _: CmId) -> Result<CmPlace, VerbsError> {
        Ok(CmPlace {
            device: "dev0".into(),
            port: 1,
        })
    }

    fn peer(&self, _: CmId) -> Option<std::net::IpAddr> {
        Some([10, 0, 0, 2].into())
    }

    fn prepare_step(&mut self, _: CmId) -> Result<PrepareStep, VerbsError> {
        Ok(PrepareStep::nothing("dev0"))
    }

    fn connect_steps(&mut self, _: CmId) -> Result<ConnectSteps, VerbsError> {
        Ok(ConnectSteps::nothing_by(KERNELS_GID))
    }

    fn connect(&mut self, id: CmId, _: u32, private: &[u8]) -> Result<(), VerbsError> {
        self.private = private.to_vec();
        self.say("connect", id)
    }

    fn accept(&mut self, id: CmId, _: u32, private: &[u8]) -> Result<(), VerbsError> {
        self.private = private.to_vec();
        self.say("accept", id)
    }

    fn reject(&mut self, id: CmId, private: &[u8]) -> Result<(), VerbsError> {
        self.private = private.to_vec();
        self.closed.push(id);
        self.say("reject", id)
    }

    fn establish(&mut self, id: CmId) -> Result<(), VerbsError> {
        self.say("establish", id)
    }

    fn disconnect(&mut self, id: CmId) -> Result<(), VerbsError> {
        self.say("disconnect", id)
    }

    fn close(&mut self, id: CmId) {
        self.closed.push(id);
    }

    fn next_event(&mut self) -> Result<Option<CmEvent>, VerbsError> {
        match self.events.pop_front() {
            None => Ok(None),
            Some(Ok(event)) => Ok(Some(event)),
            Some(Err(())) => Err(refused()),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_ref().expect("nobody waits here").as_fd()
    }
}

#[derive(Clone, Default)]
struct Now(Arc<AtomicU64>);

impl Clock for Now {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

struct Bench {
    control: Control<Script>,
    now: Now,
    seat: Arc<Seat>,
    invited: Arc<Mutex<Vec<(Ends, Told)>>>,
    /// The peer's.
    tickets: Tickets,
}

fn want(to: PeerCore) -> ToControl {
    ToControl::Want {
        core: 0,
        to,
        without: Vec::new(),
    }
}

fn session() -> Session {
    Session::new(&Key::new(b"secret"), b"hello", b"welcome")
}

impl Bench {
    fn new() -> Bench {
        let now = Now::default();
        let config = EndpointConfig {
            me: ME,
            rails: vec![Rail {
                device: "dev0".into(),
                port: 1,
                gid_index: 1,
                gid: None,
                forces_gid: false,
                ip: [10, 0, 0, 1].into(),
                node: None,
                marking: Default::default(),
            }],
            serves: true,
            cores: 2,
            credit_bytes: 1 << 20,
        };
        let shared = Arc::new(Shared::new(config, now.clone()).unwrap());
        let doorbell = Doorbell::new(std::task::Waker::noop().clone());
        let seat = Seat::new(doorbell, None);
        shared.take_seat(0, seat.clone());
        let invited: Arc<Mutex<Vec<(Ends, Told)>>> = Arc::default();
        let asked = invited.clone();
        let invite: Invite = Box::new(move |ends, told| asked.lock().push((ends, told)));
        let mut control = Control::new(Script::default(), shared, invite, true);
        control.listen();
        Bench {
            control,
            now,
            seat,
            invited,
            tickets: Tickets::new(),
        }
    }

    fn shared(&self) -> Arc<Shared> {
        self.control.shared.clone()
    }

    fn wait(&self, span: Duration) {
        let micros_or_nanos = (self.now.now() + span).0;
        self.now.0.store(micros_or_nanos, Ordering::Relaxed);
    }

    /// A turn with this told by cores, and this by rdma_cm; what the core is told.
    fn turn(
        &mut self,
        told: impl IntoIterator<Item = ToControl>,
        events: impl IntoIterator<Item = CmEvent>,
    ) -> Vec<ToCore> {
        told.into_iter().for_each(|told| self.shared().tell(told));
        let events = events.into_iter().map(Ok);
        self.control.cm.events.extend(events);
        assert_eq!(self.control.turn(), Turn::Over);
        std::iter::from_fn(|| self.seat.arrivals.pop()).collect()
    }

    /// Lets core 0 want a connection, up to the peer's offer over TCP; the ends and rdma_cm's name for it.
    fn invited(&mut self) -> (CmId, Ends) {
        assert!(self.turn([want(PEER)], []).is_empty());
        let (ends, told) = self
            .invited
            .lock()
            .pop()
            .expect("an invitation is asked for");
        let now = self.now.now();
        let ticket = self.tickets.issue(session(), ends, [9; 16], now);
        let at = vec![SocketAddr::from(([10, 0, 0, 2], 5_000))];
        let ticket = ticket.unwrap();
        told.tell(Ok::<_, String>((session(), Offer { ticket, at })));
        assert!(self.turn([], []).is_empty());
        (CmId(self.control.cm.last), ends)
    }

    /// Up to the question; the connection's number at the core.
    fn asked(&mut self) -> (CmId, ConnectionId) {
        let (by, ends) = self.invited();
        assert_eq!(ends.acceptor, PEER);
        let told = self.turn(
            [],
            [CmEvent::AddressResolved(by), CmEvent::RouteResolved(by)],
        );
        assert!(matches!(told[..], [ToCore::Offer { to: PEER, .. }]));
        let id = ConnectionId(5);
        let offered = Ok((id, OWN_PAIR));
        let core = 0;
        assert!(
            self.turn([ToControl::Offered { core, by, offered }], [])
                .is_empty()
        );
        (by, id)
    }

    /// What the peer replies to the question that was asked last.
    fn reply(&mut self) -> Vec<u8> {
        let question = self.control.cm.private.clone();
        let guest = self.tickets.take(&question, OWN_PAIR, self.now.now());
        guest.unwrap().reply(PEERS_PAIR, GRANT).to_vec()
    }
}

fn accepted(id: CmId, private: Vec<u8>) -> CmEvent {
    CmEvent::Accepted {
        id,
        queue_pair: PEERS_PAIR,
        private,
    }
}

fn why(told: &[ToCore]) -> &str {
    let unavailable = told.iter().find_map(|told| match told {
        ToCore::Unavailable { to: PEER, why } => Some(&why.why),
        _ => None,
    });
    unavailable.expect("the core is told that there is none")
}

fn closes(told: &[ToCore], id: ConnectionId) -> bool {
    let is_it = |told: &ToCore| matches!(told, ToCore::Close { id: closed, .. } if *closed == id);
    told.iter().any(is_it)
}

#[test]
fn a_connection_is_made_step_by_step_and_ended_by_either_side() {
    for by_peer in [true, false] {
        let mut bench = Bench::new();
        let (by, id) = bench.asked();
        let reply = bench.reply();
        let told = bench.turn([], [accepted(by, reply)]);
        assert!(matches!(told[..], [ToCore::Begin { grant: GRANT, .. }]));
        assert!(
            bench
                .turn([ToControl::Begun { by, begun: Ok(()) }], [])
                .is_empty()
        );
        let said = format!("route {0},connect {0},establish {0}", by.0);
        assert_eq!(bench.control.cm.said.join(","), said);
        assert_eq!(
            (bench.control.making.len(), bench.control.made.len()),
            (0, 1)
        );
        if by_peer {
            let told = bench.turn([], [CmEvent::Disconnected(by)]);
            assert!(closes(&told, id));
        } else {
            assert!(bench.turn([ToControl::Ended { by }], []).is_empty());
            assert_eq!(
                bench.control.cm.said.last(),
                Some(&format!("disconnect {}", by.0))
            );
        }
        assert_eq!(bench.control.cm.closed, [by]);
        assert!(bench.control.made.is_empty());
    }
}

#[test]
fn who_answers_without_the_proof_is_given_nothing() {
    let mut bench = Bench::new();
    let (by, id) = bench.asked();
    let mut reply = bench.reply();
    reply[10] ^= 1;
    let told = bench.turn([], [accepted(by, reply)]);
    assert!(why(&told).contains("not believed"), "{}", why(&told));
    assert!(closes(&told, id) && !told.iter().any(|told| matches!(told, ToCore::Begin { .. })));
    assert_eq!(bench.control.cm.closed, [by]);
}

#[test]
fn what_takes_too_long_is_given_up_at_every_step() {
    // Nobody answers over TCP.
    let mut bench = Bench::new();
    bench.turn([want(PEER)], []);
    bench.wait(INTRODUCE);
    let told = bench.turn([], []);
    assert!(why(&told).contains("did not say in time"));
    // Rdma_cm finds nothing.
    let mut bench = Bench::new();
    let (by, _) = bench.invited();
    bench.wait(INTRODUCE);
    let told = bench.turn([], []);
    assert!(
        why(&told).contains("its address is not found"),
        "{}",
        why(&told)
    );
    assert_eq!(bench.control.cm.closed, [by]);
    // The peer says nothing: what the core has made is closed.
    let mut bench = Bench::new();
    let (by, id) = bench.asked();
    bench.wait(INTRODUCE - Duration::from_millis(1));
    assert!(bench.turn([], []).is_empty());
    bench.wait(Duration::from_millis(1));
    let told = bench.turn([], []);
    assert!(
        why(&told).contains("the peer does not answer"),
        "{}",
        why(&told)
    );
    assert!(closes(&told, id));
    assert_eq!(bench.control.cm.closed, [by]);
    // What a core makes for one that was given up is closed too.
    let late = ConnectionId(6);
    let offered = Ok((late, OWN_PAIR));
    let core = 0;
    let told = bench.turn([ToControl::Offered { core, by, offered }], []);
    assert!(closes(&told, late));
    let accepted = Ok((late, OWN_PAIR, GRANT));
    let told = bench.turn([ToControl::Accepted { core, by, accepted }], []);
    assert!(closes(&told, late));
}

#[test]
fn a_peer_that_is_wanted_twice_is_invited_once() {
    let mut bench = Bench::new();
    bench.turn([want(PEER), want(PEER)], []);
    assert_eq!(bench.invited.lock().len(), 1);
    // An answer that comes twice, or late, makes no second connection.
    let (ends, told) = bench.invited.lock().pop().unwrap();
    told.tell(Err("no"));
    assert_eq!(why(&bench.turn([], [])), "no");
    let late = Told::new(bench.shared(), ends);
    late.tell(Err("again"));
    assert!(bench.turn([], []).is_empty());
}

/// A stranger's or guest's request.
fn requested(bench: &Bench, id: u64, private: Vec<u8>) -> CmEvent {
    CmEvent::Requested {
        listener: bench.control.listening[0].now.unwrap(),
        id: CmId(id),
        queue_pair: PEERS_PAIR,
        private,
    }
}

/// What a peer that was proven over TCP asks with.
fn question(bench: &Bench, n: u8) -> Vec<u8> {
    let ends = Ends {
        asker: PEER,
        acceptor: PeerCore { peer: ME, core: 0 },
    };
    let now = bench.now.now();
    let ticket = bench
        .shared()
        .tickets
        .lock()
        .issue(session(), ends, [n; 16], now);
    Asker::new(session(), ticket.unwrap(), ends)
        .question(PEERS_PAIR)
        .into()
}

#[test]
fn strangers_are_rejected_before_any_core_hears_of_them() {
    let mut bench = Bench::new();
    let right = question(&bench, 1);
    for (n, (private, code)) in [
        (vec![], Refused::Garbled),
        (vec![7; 47], Refused::Garbled),
        (vec![7; 48], Refused::Ticket),
        ([&right[..16], &[0; 32]].concat(), Refused::Proof),
    ]
    .into_iter()
    .enumerate()
    {
        let event = requested(&bench, 100 + n as u64, private);
        assert!(bench.turn([], [event]).is_empty());
        assert_eq!(bench.control.cm.private, [code.code()]);
        assert_eq!(bench.control.cm.closed.last(), Some(&CmId(100 + n as u64)));
    }
    // Who has the ticket is let in, once.
    let event = requested(&bench, 200, right.clone());
    let told = bench.turn([], [event]);
    assert!(matches!(told[..], [ToCore::Accept { from: PEER, .. }]));
    let event = requested(&bench, 201, right);
    assert!(bench.turn([], [event]).is_empty());
    assert_eq!(bench.control.cm.private, [Refused::Ticket.code()]);
}

/// Of both sides: who asks, and who is asked.
#[test]
fn packets_have_the_gid_that_a_flag_names_and_else_the_kernels() {
    for (forces_gid, index) in [(true, 1), (false, KERNELS_GID)] {
        let mut bench = Bench::new();
        let mut rail = bench.shared().rails();
        // Another port makes it another rail.
        (rail[0].forces_gid, rail[0].port) = (forces_gid, 2);
        bench.shared().add_rails(&rail);
        assert!(matches!(bench.turn([], [])[..], [ToCore::Devices(_)]));
        let (by, _) = bench.asked();
        let reply = bench.reply();
        let told = bench.turn([], [accepted(by, reply)]);
        let [ToCore::Begin { connect, .. }] = &told[..] else {
            panic!("it does not begin");
        };
        assert_eq!(connect.gid_index(), Some(index));
        let event = requested(&bench, 100, question(&bench, 1));
        let told = bench.turn([], [event]);
        let [ToCore::Accept { connect, .. }] = &told[..] else {
            panic!("it is not accepted");
        };
        assert_eq!(connect.gid_index(), Some(index));
    }
}

#[test]
fn an_address_that_is_found_later_is_listened_at() {
    let mut bench = Bench::new();
    let mut second = bench.shared().rails();
    second[0].device = "dev1".into();
    second[0].ip = [10, 0, 1, 1].into();
    bench.shared().add_rails(&second);
    bench.turn([], []);
    let at: Vec<String> = bench
        .shared()
        .listening
        .lock()
        .iter()
        .map(|at| at.ip().to_string())
        .collect();
    assert_eq!(at, ["10.0.0.1", "10.0.1.1"]);
}

#[test]
fn who_is_let_in_is_established_or_told_that_the_core_refuses() {
    let mut bench = Bench::new();
    let event = requested(&bench, 100, question(&bench, 1));
    bench.turn([], [event]);
    let (by, core, id) = (CmId(100), 0, ConnectionId(8));
    let accepted = Ok((id, OWN_PAIR, GRANT));
    bench.turn([ToControl::Accepted { core, by, accepted }], []);
    assert_eq!(bench.control.cm.said, ["accept 100"]);
    bench.turn([], [CmEvent::Established(by)]);
    assert_eq!(bench.control.made.len(), 1);
    // One that the core has no room for.
    for n in [101, 102] {
        bench.wait(Duration::from_secs(1));
        let event = requested(&bench, n, question(&bench, n as u8));
        bench.turn([], [event]);
        let (by, accepted) = (CmId(n), Err("no room".into()));
        bench.turn([ToControl::Accepted { core, by, accepted }], []);
        assert_eq!(bench.control.cm.private, [Refused::Core.code()]);
    }
    assert!(bench.control.making.is_empty());
    // People are told of the first, and not of the next within a minute.
    assert_eq!(
        bench.control.refused_at,
        Some(Time(0) + Duration::from_secs(1))
    );
}

#[test]
fn a_device_that_goes_is_told_to_cores_and_listened_at_again_when_it_is_back() {
    let mut bench = Bench::new();
    assert_eq!(bench.shared().listening.lock().len(), 1);
    let listener = bench.control.listening[0].now.unwrap();
    bench.control.cm.no_device = true;
    let told = bench.turn([], [CmEvent::DeviceRemoved(listener)]);
    assert!(matches!(&told[..], [ToCore::Lost { device }] if device == "dev0"));
    assert!(bench.shared().listening.lock().is_empty());
    for _ in 0..3 {
        bench.wait(LISTEN_PAUSE);
        bench.turn([], []);
    }
    assert!(bench.control.listening[0].told.is_some());
    bench.control.cm.no_device = false;
    bench.turn([], []);
    assert!(bench.shared().listening.lock().is_empty(), "not at once");
    bench.wait(LISTEN_PAUSE);
    bench.turn([], []);
    assert_eq!(bench.shared().listening.lock().len(), 1);
    assert!(bench.control.listening[0].told.is_none());
}

#[test]
fn when_rdma_cm_breaks_everybody_is_told() {
    let mut bench = Bench::new();
    let (_, id) = bench.asked();
    bench.control.cm.events.push_back(Err(()));
    assert_eq!(bench.control.turn(), Turn::Broken);
    let shared = bench.shared();
    let other = PeerCore { core: 9, ..PEER };
    shared.tell(want(other));
    shared.tell(ToControl::Stop);
    bench.control.refuse_all();
    let told: Vec<_> = std::iter::from_fn(|| bench.seat.arrivals.pop()).collect();
    assert!(why(&told).contains("rdma_cm broke"));
    assert!(closes(&told, id));
    let is_other = |told: &ToCore| matches!(told, ToCore::Unavailable { to, .. } if *to == other);
    assert!(told.iter().any(is_other), "also who wants one later");
    assert!(shared.listening.lock().is_empty());
}
