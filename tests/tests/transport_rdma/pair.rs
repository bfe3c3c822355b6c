//! A device to test on, and two transports on it that are connected both ways.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use forebay_cli::host::MonotonicClock;
use forebay_engine::arena::Arena;
use forebay_engine::ports::{PeerCore, PeerId, Time};
use forebay_engine::wire::hello::Key;
use forebay_transport_rdma::asking::Grant;
use forebay_transport_rdma::introduce::{Asker, Ends, Refused, Session, Tickets};
use forebay_transport_rdma::{
    Cm, CmEvent, CmId, ConnectSteps, ConnectionId, PrepareStep, RailConfig, RdmaTransport, Verbs,
};

pub const PEERS: [PeerId; 2] = [PeerId(1), PeerId(2)];
/// Longest wait for one thing; the tests' runner ends what takes longer as a whole.
pub const WAIT_MAX: Duration = Duration::from_secs(40);
/// Longest time that the kernel looks for an address or a route.
const LIMIT: Duration = Duration::from_secs(20);
const CREDIT_BYTES: u32 = 2 << 20;

/// One clock, so that both ends compare deadlines.
pub fn clock() -> MonotonicClock {
    static CLOCK: OnceLock<MonotonicClock> = OnceLock::new();
    *CLOCK.get_or_init(MonotonicClock::start)
}

/// The device that `FOREBAY_RDMA_DEVICE` names. Without that name the test is left out.
pub fn device() -> Option<(Verbs, RailConfig)> {
    let Ok(name) = std::env::var("FOREBAY_RDMA_DEVICE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_DEVICE names no RDMA device: the transport was not tried here (ci/softroce does, in a guest)"
        );
        return None;
    };
    let number = |variable: &str| match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number up to 255")),
        Err(_) => 1,
    };
    let (port, gid_index) = (
        number("FOREBAY_RDMA_PORT"),
        number("FOREBAY_RDMA_GID_INDEX"),
    );
    let verbs = Verbs::load().expect("libibverbs");
    Some((verbs, RailConfig::new(name, port, gid_index)))
}

/// A transport of one core over `arena`.
pub fn transport((verbs, config): &(Verbs, RailConfig), arena: &Arena) -> RdmaTransport {
    let (rails, arena) = (std::slice::from_ref(config), arena.mapping());
    RdmaTransport::new(verbs, rails, &arena, CREDIT_BYTES, Box::new(clock()))
        .expect("a transport on the device")
}

/// What the control threads of two members do: they make connections by rdma_cm, and let in who proves to be a peer.
pub struct Meeting {
    asker: Cm,
    acceptor: Cm,
    at: SocketAddr,
    tickets: Tickets,
    given: u128,
}

/// A connection between two cores.
pub struct Introduced {
    /// How either end calls it.
    pub ids: [ConnectionId; 2],
    by_cm: [CmId; 2],
}

/// What an asker learns when it is accepted.
pub struct Accepted {
    pub id: CmId,
    queue_pair: u32,
    private: Vec<u8>,
    pub connect: ConnectSteps,
}

/// What the asker has of a connection that is asked for.
pub struct Asked {
    pub id: ConnectionId,
    pub by_cm: CmId,
    number: u32,
}

impl Meeting {
    pub fn new((verbs, config): &(Verbs, RailConfig)) -> Meeting {
        let device = verbs.open(&config.device).expect("the device");
        let at = device.port_address(config.port, config.gid_index);
        let ip = at.expect("an address").gid.ip();
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        let mut acceptor = Cm::new().expect("librdmacm");
        let (_, at) = acceptor
            .listen(SocketAddr::new(ip, 0), 64)
            .expect("to listen");
        Meeting {
            asker: Cm::new().expect("librdmacm"),
            acceptor,
            at,
            tickets: Tickets::new(),
            given: 0,
        }
    }

    /// What the asker has after the acceptor gave it a ticket over TCP.
    pub fn invite(&mut self, from: PeerId, to: PeerId) -> Asker {
        self.given += 1;
        let session = || Session::new(&Key::new(b"the group's secret"), b"hello", b"welcome");
        let core = |peer| PeerCore { peer, core: 0 };
        let ends = Ends {
            asker: core(from),
            acceptor: core(to),
        };
        let random = self.given.to_le_bytes();
        // Its life has tests of its own; here it stands still.
        let ticket = self.tickets.issue(session(), ends, random, Time(0));
        Asker::new(session(), ticket.expect("a ticket"), ends)
    }

    /// Asks for a connection, with what `question` says of the queue pair.
    pub fn ask(
        &mut self,
        asker: &mut RdmaTransport,
        question: impl FnOnce(u32) -> Vec<u8>,
    ) -> Asked {
        let mut id = None;
        let make = |prepare: &PrepareStep| {
            let (made, number) = asker.offer(prepare).expect("an offer");
            id = Some(made);
            number
        };
        let (by_cm, number) = self.ask_with(make, question);
        let id = id.expect("an offer was made");
        Asked { id, by_cm, number }
    }

    /// The same with a queue pair of the test's own making, whose number `make` says.
    pub fn ask_with(
        &mut self,
        make: impl FnOnce(&PrepareStep) -> u32,
        question: impl FnOnce(u32) -> Vec<u8>,
    ) -> (CmId, u32) {
        let by_cm = self.asker.resolve_address(None, self.at, LIMIT);
        let by_cm = by_cm.expect("to look for the address");
        assert_eq!(event(&mut self.asker), CmEvent::AddressResolved(by_cm));
        self.asker.resolve_route(by_cm, LIMIT).expect("to look");
        assert_eq!(event(&mut self.asker), CmEvent::RouteResolved(by_cm));
        let prepare = self.asker.prepare_step(by_cm).expect("a step");
        let number = make(&prepare);
        let question = question(number);
        self.asker
            .connect(by_cm, number, &question)
            .expect("to ask");
        (by_cm, number)
    }

    /// Lets in who asks, or refuses: then nothing is made.
    pub fn judge(&mut self, acceptor: &mut RdmaTransport) -> Result<(ConnectionId, CmId), Refused> {
        let mut made = None;
        let by_cm = self.judge_with(|from, prepare, connect| {
            let accepted = acceptor.accept(from, prepare, connect);
            let (id, number, grant) = accepted.expect("to be accepted");
            made = Some(id);
            (number, grant)
        })?;
        Ok((made.expect("it was accepted"), by_cm))
    }

    /// The same with a queue pair of the test's own making.
    pub fn judge_with(
        &mut self,
        make: impl FnOnce(PeerId, &PrepareStep, &ConnectSteps) -> (u32, Grant),
    ) -> Result<CmId, Refused> {
        let CmEvent::Requested {
            id: by_cm,
            queue_pair,
            private,
            ..
        } = event(&mut self.acceptor)
        else {
            panic!("nobody asks");
        };
        let guest = match self.tickets.take(&private, queue_pair, Time(1)) {
            Ok(guest) => guest,
            Err(refused) => {
                let rejected = self.acceptor.reject(by_cm, &[refused.code()]);
                rejected.expect("to refuse");
                return Err(refused);
            }
        };
        let prepare = self.acceptor.prepare_step(by_cm).expect("a step");
        let connect = self.acceptor.connect_steps(by_cm).expect("steps");
        let from = guest.ends().asker.peer;
        let (number, grant) = make(from, &prepare, &connect);
        let reply = guest.reply(number, grant);
        self.acceptor
            .accept(by_cm, number, &reply)
            .expect("to accept");
        Ok(by_cm)
    }

    /// What the asker learns when it is refused; its end is closed.
    pub fn refused(&mut self, asker: &mut RdmaTransport, asked: &Asked) -> Option<Refused> {
        let CmEvent::Rejected { id, private, .. } = event(&mut self.asker) else {
            panic!("not refused");
        };
        assert_eq!(id, asked.by_cm);
        self.asker.close(id);
        asker.close(asked.id, "refused");
        Refused::of(&private)
    }

    /// Lets `asker` ask `acceptor`, which is `to` and calls it `from`.
    pub fn introduce(
        &mut self,
        asker: &mut RdmaTransport,
        from: PeerId,
        acceptor: &mut RdmaTransport,
        to: PeerId,
    ) -> Introduced {
        let invited = self.invite(from, to);
        let asked = self.ask(asker, |number| invited.question(number).to_vec());
        let (other, by_other) = self.judge(acceptor).expect("to be let in");
        self.begin(asker, to, &invited, &asked);
        assert_eq!(self.established(), by_other);
        Introduced {
            ids: [asked.id, other],
            by_cm: [asked.by_cm, by_other],
        }
    }

    /// The asker's end of what was accepted.
    pub fn begin(&mut self, asker: &mut RdmaTransport, to: PeerId, invited: &Asker, asked: &Asked) {
        let accepted = self.accepted();
        assert_eq!(accepted.id, asked.by_cm);
        self.begin_by(asker, to, invited, asked, &accepted);
    }

    /// The same, with what came when it was accepted.
    pub fn begin_by(
        &mut self,
        asker: &mut RdmaTransport,
        to: PeerId,
        invited: &Asker,
        asked: &Asked,
        accepted: &Accepted,
    ) {
        let grant = invited.check(&accepted.private, asked.number, accepted.queue_pair);
        let to = PeerCore { peer: to, core: 0 };
        asker
            .begin(asked.id, to, &accepted.connect, grant.expect("a proof"))
            .expect("to begin");
        self.establish(asked.by_cm);
    }

    /// What an asker learns when it is accepted.
    pub fn accepted(&mut self) -> Accepted {
        let CmEvent::Accepted {
            id,
            queue_pair,
            private,
        } = event(&mut self.asker)
        else {
            panic!("not accepted");
        };
        Accepted {
            id,
            queue_pair,
            private,
            connect: self.asker.connect_steps(id).expect("steps"),
        }
    }

    /// Tells the acceptor that the asker is connected.
    pub fn establish(&mut self, by_cm: CmId) {
        self.asker.establish(by_cm).expect("to establish");
    }

    /// Waits until the acceptor knows of one; which.
    pub fn established(&mut self) -> CmId {
        match event(&mut self.acceptor) {
            CmEvent::Established(id) => id,
            other => panic!("not established: {other:?}"),
        }
    }

    /// Ends what rdma_cm has of a connection; its queue pairs are ended by their cores.
    pub fn part(&mut self, introduced: &Introduced) {
        let [id, other] = introduced.by_cm;
        self.asker.disconnect(id).expect("to disconnect");
        assert_eq!(event(&mut self.acceptor), CmEvent::Disconnected(other));
        self.acceptor.close(other);
        self.asker.close(id);
    }
}

/// The next event of rdma_cm.
fn event(cm: &mut Cm) -> CmEvent {
    let begun = Instant::now();
    loop {
        if let Some(event) = cm.next_event().expect("events") {
            return event;
        }
        assert!(begun.elapsed() < WAIT_MAX, "rdma_cm tells nothing");
        rest();
    }
}

pub fn rest() {
    std::thread::sleep(Duration::from_micros(20));
}
