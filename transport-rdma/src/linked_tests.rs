//! A core's links, without a device: a script has the connections.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::endpoint::EndpointConfig;
use crate::inventory::Rail;
use crate::limits::RECEIVES;

const CORE: u16 = 1;

fn peer(n: u64) -> PeerCore {
    PeerCore {
        peer: PeerId(n),
        core: 0,
    }
}

/// Has connections as it is told to.
#[derive(Debug, Default)]
struct Script {
    last: u32,
    reached: Vec<PeerCore>,
    closed: Vec<ConnectionId>,
    ended: Vec<(ConnectionId, String)>,
    ports: Vec<(String, PortNews)>,
    down: Option<String>,
    lost: Vec<String>,
    devices: Vec<String>,
    /// Connections are tried out; those of which it has come out well.
    tries: bool,
    proven: Vec<ConnectionId>,
    full: bool,
    /// No place is free, but some could be made free.
    crowded: bool,
}

impl Script {
    fn id(&mut self) -> Result<ConnectionId, VerbsError> {
        if self.full {
            return Err(VerbsError::Unusable {
                object: "the script".into(),
                what: "it is full".into(),
            });
        }
        self.last += 1;
        Ok(ConnectionId(self.last))
    }
}

impl Transport for Script {
    fn submit(&mut self, _: TransportOp) -> Result<(), Full<TransportOp>> {
        Ok(())
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        None
    }

    fn cancel(&mut self, _: FetchTag) {}

    fn wake_at(&self) -> Time {
        Time::NEVER
    }
}

impl Connections for Script {
    fn offer(&mut self, _: &PrepareStep) -> Result<(ConnectionId, u32), VerbsError> {
        self.id().map(|id| (id, 70))
    }

    fn accept(
        &mut self,
        _: PeerId,
        _: &PrepareStep,
        _: &ConnectSteps,
    ) -> Result<(ConnectionId, u32, Grant), VerbsError> {
        self.id().map(|id| (id, 71, grant()))
    }

    fn begin(
        &mut self,
        _: ConnectionId,
        to: PeerCore,
        _: &ConnectSteps,
        _: Grant,
    ) -> Result<bool, VerbsError> {
        if !self.tries {
            self.reached.push(to);
        }
        Ok(!self.tries)
    }

    fn take_proven(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.proven)
    }

    fn close(&mut self, id: ConnectionId, why: &'static str) {
        self.closed.push(id);
        self.ended.push((id, format!("closed: {why}")));
    }

    fn record(&mut self, _: ConnectionId, _: Arc<LinkRecord>) {}

    fn lose(&mut self, device: &str) {
        self.lost.push(device.into());
    }

    fn add(&mut self, device: &RailConfig) -> bool {
        let is_new = !self.devices.contains(&device.device);
        self.devices.push(device.device.clone());
        is_new
    }

    fn reaches(&self, to: PeerCore) -> bool {
        self.reached.contains(&to)
    }

    fn lanes(&self, to: PeerCore) -> usize {
        usize::from(self.reached.contains(&to))
    }

    fn has_room(&self, _: &str) -> bool {
        !self.crowded
    }

    fn devices_to(&self, _: PeerCore) -> Vec<String> {
        vec!["dev0".into()]
    }

    fn under_way_bytes(&self, _: PeerCore) -> u64 {
        0
    }

    fn take_ended(&mut self) -> Vec<(ConnectionId, String)> {
        std::mem::take(&mut self.ended)
    }

    fn take_ports(&mut self) -> Vec<(String, PortNews)> {
        std::mem::take(&mut self.ports)
    }

    fn why_down(&self) -> Option<String> {
        self.down.clone()
    }
}

fn grant() -> Grant {
    Grant {
        messages: RECEIVES,
        credit_bytes: 2 << 20,
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
    linked: LinkedTransport<Script>,
    shared: Arc<Shared>,
    now: Now,
}

impl Bench {
    fn new() -> Bench {
        let now = Now::default();
        let config = EndpointConfig {
            me: PeerId(1),
            rails: Vec::new(),
            serves: true,
            cores: 2,
            credit_bytes: 2 << 20,
        };
        let shared = Arc::new(Shared::new(config, now.clone()).unwrap());
        let doorbell = Doorbell::new(std::task::Waker::noop().clone());
        let seat = Seat::new(doorbell, None);
        shared.take_seat(CORE, seat.clone());
        let clock = Box::new(now.clone());
        let linked = LinkedTransport::over(Script::default(), shared.clone(), (CORE, seat), clock);
        Bench {
            linked,
            shared,
            now,
        }
    }

    fn wait(&self, span: Duration) {
        let later = (self.now.now() + span).0;
        self.now.0.store(later, Ordering::Relaxed);
    }

    /// Lets the control thread tell it something; what it is told.
    fn told(&mut self, what: impl IntoIterator<Item = ToCore>) -> Vec<ToControl> {
        what.into_iter()
            .for_each(|what| self.linked.seat.tell(what));
        assert!(self.linked.poll().is_none());
        self.heard()
    }

    /// What the control thread was told since this was last asked.
    fn heard(&self) -> Vec<ToControl> {
        std::iter::from_fn(|| self.shared.next()).collect()
    }

    fn wants(&self) -> usize {
        let heard = self.heard();
        let wants = heard
            .iter()
            .filter(|told| matches!(told, ToControl::Want { core: CORE, .. }));
        wants.count()
    }

    /// A connection to ask a peer on.
    fn asked(&mut self, by: u64, to: PeerCore) -> ConnectionId {
        let (by, prepare) = (CmId(by), PrepareStep::nothing("dev0"));
        let heard = self.told([ToCore::Offer { by, to, prepare }]);
        let [
            ToControl::Offered {
                offered: Ok((id, 70)),
                ..
            },
        ] = heard[..]
        else {
            panic!("nothing is offered");
        };
        let (connect, grant) = (ConnectSteps::nothing(), grant());
        let begin = ToCore::Begin {
            by,
            id,
            to,
            connect,
            grant,
        };
        let heard = self.told([begin]);
        assert!(matches!(
            heard[..],
            [ToControl::Begun { begun: Ok(()), .. }]
        ));
        id
    }

    /// A connection that a peer asks on.
    fn accepted(&mut self, by: u64, from: PeerCore) -> ConnectionId {
        let accept = ToCore::Accept {
            by: CmId(by),
            from,
            at: None,
            prepare: PrepareStep::nothing("dev0"),
            connect: ConnectSteps::nothing(),
        };
        let heard = self.told([accept]);
        let accepted = heard.iter().find_map(|told| match told {
            ToControl::Accepted {
                accepted: Ok((id, ..)),
                ..
            } => Some(*id),
            _ => None,
        });
        accepted.expect("it is accepted")
    }

    fn state(&self, peer: PeerCore, asks: bool) -> (LinkState, Option<String>) {
        let links = self.shared.links.status();
        let mut found = links
            .into_iter()
            .filter(|link| (link.peer, link.asks) == (peer, asks));
        let link = found.next().expect("a link");
        (link.state, link.last_error)
    }
}

/// Which of rdma_cm's connections are told to have ended.
fn ended(heard: &[ToControl]) -> Vec<CmId> {
    let ended = heard.iter().filter_map(|told| match told {
        ToControl::Ended { by } => Some(*by),
        _ => None,
    });
    ended.collect()
}

#[test]
fn a_link_is_wanted_once_and_used_when_it_is_there() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        assert_eq!(bench.linked.prepare(peer(2)), Readiness::Connecting);
    }
    assert_eq!(bench.wants(), 1);
    assert_eq!(bench.state(peer(2), true).0, LinkState::Connecting);
    let id = bench.asked(10, peer(2));
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Ready);
    assert_eq!(bench.state(peer(2), true).0, LinkState::Up);
    // It breaks: the thread is told, people are, and the next request wants another.
    bench.linked.transport.reached.clear();
    bench.linked.transport.ended.push((id, "it broke".into()));
    let heard = bench.told([]);
    assert_eq!(ended(&heard), [CmId(10)]);
    let broke = (LinkState::Down, Some("it broke".into()));
    assert_eq!(bench.state(peer(2), true), broke);
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Connecting);
    assert_eq!(bench.wants(), 1);
    // The thread says nothing at all: nobody waits for it for ever.
    bench.wait(Duration::from_millis(2 * INTRODUCE_MS));
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Connecting);
    assert_eq!(bench.wants(), 1);
}

#[test]
fn why_there_is_no_link_is_told_once() {
    let mut bench = Bench::new();
    bench.linked.prepare(peer(2));
    assert_eq!(bench.wants(), 1);
    let (to, why) = (peer(2), String::from("it has no RDMA"));
    bench.told([ToCore::Unavailable {
        to,
        why: why.clone().into(),
    }]);
    assert_eq!(
        bench.state(peer(2), true),
        (LinkState::Down, Some(why.clone()))
    );
    assert_eq!(bench.linked.prepare(to), Readiness::Unavailable(why));
    assert_eq!(bench.wants(), 0);
    assert_eq!(bench.linked.prepare(to), Readiness::Connecting);
    assert_eq!(bench.wants(), 1);
    let why = NoOffer {
        lacks: true,
        ..NoOffer::from("it has no RDMA")
    };
    bench.told([ToCore::Unavailable { to, why }]);
    let lacking = Readiness::Lacking("it has no RDMA".into());
    assert_eq!(bench.linked.prepare(to), lacking);
}

#[test]
fn failures_of_links_that_nobody_asks_for_are_forgotten() {
    let mut bench = Bench::new();
    bench.linked.prepare(peer(1));
    for n in 0..2 * FAILED_MAX as u64 {
        let (to, why) = (peer(10 + n), String::from("no"));
        bench.told([ToCore::Unavailable {
            to,
            why: why.into(),
        }]);
    }
    assert!(bench.linked.wanted.len() <= FAILED_MAX + 1);
    // The one that is being made is not among them.
    bench.heard();
    assert_eq!(bench.linked.prepare(peer(1)), Readiness::Connecting);
    assert_eq!(bench.wants(), 0);
}

#[test]
fn a_peer_that_comes_again_has_its_first_connection_closed() {
    let mut bench = Bench::new();
    let asks = bench.asked(10, peer(2));
    let first = bench.accepted(11, peer(2));
    let other = bench.accepted(12, peer(3));
    let second = bench.accepted(13, peer(2));
    assert_eq!(bench.linked.transport.closed, [first]);
    assert!(![asks, other].contains(&first) && second != first);
    // Its place is taken: that the first one ended is nothing that people need to know.
    assert_eq!(bench.state(peer(2), false).0, LinkState::Up);
    // One that is refused changes nothing.
    bench.linked.transport.full = true;
    let accept = ToCore::Accept {
        by: CmId(14),
        from: peer(4),
        at: None,
        prepare: PrepareStep::nothing("dev0"),
        connect: ConnectSteps::nothing(),
    };
    let heard = bench.told([accept]);
    let refused = |told: &ToControl| matches!(told, ToControl::Accepted { accepted: Err(why), .. } if why.contains("full"));
    assert!(heard.iter().any(refused));
    assert_eq!(bench.linked.known.len(), 3);
}

#[test]
fn while_ports_are_down_nobody_is_asked_and_when_one_is_up_links_are_tried() {
    let mut bench = Bench::new();
    let (to, why) = (peer(2), String::from("it has no RDMA"));
    bench.told([ToCore::Unavailable {
        to,
        why: why.into(),
    }]);
    let down = |why: &str| PortNews::Down(why.into());
    let transport = &mut bench.linked.transport;
    transport.down = Some("dev0: down".into());
    transport
        .ports
        .push(("dev0".into(), down("its port 1 is down")));
    bench.told([]);
    let unavailable = Readiness::Unavailable("dev0: down".into());
    for n in 2..5 {
        assert_eq!(bench.linked.prepare(peer(n)), unavailable);
    }
    assert_eq!(bench.wants(), 0);
    assert!(!bench.linked.take_revival());
    bench.linked.transport.down = None;
    bench
        .linked
        .transport
        .ports
        .push(("dev0".into(), PortNews::Up));
    bench.told([]);
    assert!(bench.linked.take_revival() && !bench.linked.take_revival());
    // Also one that could not be made before.
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Connecting);
    assert_eq!(bench.wants(), 1);
}

#[test]
fn a_link_is_used_once_it_was_tried_out_and_said_to_be_useless_when_in_vain() {
    let mut bench = Bench::new();
    bench.linked.transport.tries = true;
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Connecting);
    bench.heard();
    let id = bench.asked(10, peer(2));
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Connecting);
    assert_eq!(bench.state(peer(2), true).0, LinkState::Connecting);
    bench.linked.transport.proven.push(id);
    bench.linked.transport.reached.push(peer(2));
    bench.told([]);
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Ready);
    assert_eq!(bench.state(peer(2), true).0, LinkState::Up);
    // Another, in vain. It is told once, and the connection's end as ever.
    assert_eq!(bench.linked.prepare(peer(3)), Readiness::Connecting);
    bench.heard();
    let id = bench.asked(11, peer(3));
    let why = String::from("nothing long passes");
    bench.linked.transport.ended.push((id, why.clone()));
    assert_eq!(ended(&bench.told([])), [CmId(11)]);
    assert_eq!(
        bench.state(peer(3), true),
        (LinkState::Down, Some(why.clone()))
    );
    assert_eq!(
        bench.linked.prepare(peer(3)),
        Readiness::Useless(why.clone())
    );
    assert_eq!(bench.linked.prepare(peer(3)), Readiness::Connecting);
    bench.heard();
    // A second one by another rail: the first carries on.
    let id = bench.asked(12, peer(2));
    bench.linked.transport.ended.push((id, why));
    bench.told([]);
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Ready);
}

/// It began without a rail: one that is found later is used at once.
#[test]
fn a_device_that_is_found_later_is_opened_once_and_links_are_tried_by_it() {
    let mut bench = Bench::new();
    bench.linked.rails = 0;
    let (to, why) = (peer(2), String::from("no way"));
    let why = why.into();
    bench.told([ToCore::Unavailable { to, why }]);
    let rail = |device: &str, last: u8| Rail {
        device: device.into(),
        port: 1,
        gid_index: 3,
        gid: None,
        forces_gid: false,
        ip: IpAddr::from([10, 0, 0, last]),
        node: None,
        marking: Default::default(),
    };
    let first = [rail("dev0", 1)];
    assert_eq!(bench.shared.add_rails(&first), first);
    let heard = bench.told([]);
    assert!(matches!(heard[..], [ToControl::Rails]), "listened at");
    assert_eq!(
        (bench.linked.rails, &bench.linked.transport.devices[..]),
        (1, &["dev0".to_owned()][..])
    );
    assert!(bench.linked.take_revival());
    assert_eq!(bench.linked.prepare(to), Readiness::Connecting);
    // Told again nothing happens.
    assert_eq!(bench.shared.add_rails(&first), []);
    assert!(bench.wants() == 1 && bench.linked.seat.arrivals.is_empty());
    // A second one beside it; the first address is now another device's.
    let second = [rail("dev1", 2), rail("dev2", 1)];
    assert_eq!(bench.shared.add_rails(&second).len(), 2);
    bench.told([]);
    assert_eq!(bench.linked.rails, 3);
    assert_eq!(bench.shared.rails(), [second[1].clone(), second[0].clone()]);
}

#[test]
fn a_core_that_ends_gives_up_its_seat_and_its_connections() {
    let mut bench = Bench::new();
    bench.asked(10, peer(2));
    bench.accepted(11, peer(2));
    let device = String::from("dev0");
    bench.told([ToCore::Lost { device }]);
    assert_eq!(bench.linked.transport.lost, ["dev0"]);
    bench.heard();
    let Bench { linked, shared, .. } = bench;
    assert!(shared.seat(CORE).is_some());
    drop(linked);
    assert!(shared.seat(CORE).is_none());
    let heard: Vec<_> = std::iter::from_fn(|| shared.next()).collect();
    let mut ended = ended(&heard);
    ended.sort_unstable();
    assert_eq!(ended, [CmId(10), CmId(11)]);
}

/// Asks for a MiB more than is under way.
fn much(bench: &mut Bench, to: PeerCore) {
    bench.linked.widen(to, 1 << 20);
}

#[test]
fn a_link_that_is_asked_for_much_wants_one_connection_by_each_further_device() {
    let mut bench = Bench::new();
    bench.linked.rails = 2;
    much(&mut bench, peer(2));
    assert_eq!(bench.wants(), 0, "the first one is not its affair");
    bench.asked(7, peer(2));
    bench.linked.widen(peer(2), (1 << 20) - 1);
    assert_eq!(bench.wants(), 0, "little is asked for");
    much(&mut bench, peer(2));
    much(&mut bench, peer(2));
    let heard = bench.heard();
    let [
        ToControl::Want {
            core: CORE,
            without,
            ..
        },
    ] = &heard[..]
    else {
        panic!("{} are wanted", heard.len());
    };
    assert_eq!(without, &["dev0"]);

    // It cannot be made: the link stays as it is, and is not tried again for a while.
    let why = NoOffer::from("no route".to_owned());
    bench.told([ToCore::Unavailable { to: peer(2), why }]);
    assert_eq!(bench.state(peer(2), true).0, LinkState::Up);
    assert_eq!(bench.linked.prepare(peer(2)), Readiness::Ready);
    much(&mut bench, peer(2));
    assert_eq!(bench.wants(), 0);
    bench.wait(Duration::from_secs(STRIPE_PAUSE_S));
    much(&mut bench, peer(2));
    assert_eq!(bench.wants(), 1);
    // With one device there is nothing to want.
    bench.linked.wanted.clear();
    bench.linked.rails = 1;
    much(&mut bench, peer(2));
    assert_eq!(bench.wants(), 0);
}

#[test]
fn a_links_second_connection_takes_no_others_place() {
    let mut bench = Bench::new();
    bench.asked(7, peer(2));
    bench.linked.transport.crowded = true;
    let offer = |by, to| ToCore::Offer {
        by: CmId(by),
        to,
        prepare: PrepareStep::nothing("dev0"),
    };
    let heard = bench.told([offer(8, peer(2))]);
    assert!(matches!(
        heard[..],
        [ToControl::Offered {
            offered: Err(_),
            ..
        }]
    ));
    // A first one does.
    let heard = bench.told([offer(9, peer(3))]);
    assert!(matches!(
        heard[..],
        [ToControl::Offered { offered: Ok(_), .. }]
    ));
}

#[test]
fn a_link_whose_connection_ends_while_another_is_made_is_not_up() {
    let mut bench = Bench::new();
    let id = bench.asked(7, peer(2));
    let (by, to, prepare) = (CmId(8), peer(2), PrepareStep::nothing("dev1"));
    bench.told([ToCore::Offer { by, to, prepare }]);
    bench.linked.transport.ended.push((id, "it broke".into()));
    bench.told([]);
    assert_eq!(bench.state(peer(2), true).0, LinkState::Connecting);
}
