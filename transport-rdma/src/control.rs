//! The thread that makes connections: reads the events of rdma_cm, asks cores for their ends, and lets nobody in but
//! who was proven over TCP.
//!
//! | asking | waits for |
//! |---|---|
//! | `inviting` | the peer's offer, over TCP |
//! | `Step::Address`, `Step::Route` | the kernel |
//! | `Step::Offer` | this node's core: its queue pair |
//! | `Step::Answer` | the peer: that it accepts |
//! | `Step::Begin` | this node's core: that it is connected |
//!
//! | being asked | waits for |
//! |---|---|
//! | `Step::Accept` | this node's core: its queue pair |
//! | `Step::Establish` | the peer: that it knows |
//!
//! Whatever takes longer than [`INTRODUCE_MS`] in all is given up.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::limits::LOG_EVERY_S;
use forebay_engine::ports::{PeerCore, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::asking::Grant;
use crate::connector::Connector;
use crate::endpoint::{Invite, NoOffer, Shared, Told};
use crate::introduce::{Asker, Ends, Guest, Offer, Refused, Session};
use crate::limits::{BACKLOG, HELD_S, INTRODUCE_MS, LISTEN_PAUSE_MS, RESOLVE_MS};
use crate::seat::{ToControl, ToCore};
use crate::ways::{Whose, way};
use crate::{CmEvent, CmId, ConnectSteps, ConnectionId, PrepareStep, VerbsError};

const RESOLVE: Duration = Duration::from_millis(RESOLVE_MS);
const INTRODUCE: Duration = Duration::from_millis(INTRODUCE_MS);
const LISTEN_PAUSE: Duration = Duration::from_millis(LISTEN_PAUSE_MS);

#[derive(Debug)]
enum Step {
    Address,
    Route,
    Offer,
    Answer { number: u32 },
    Begin,
    Accept(Guest),
    Establish,
}

/// A connection that is being made.
#[derive(Debug)]
struct Making {
    step: Step,
    /// This node's core.
    core: u16,
    peer: PeerCore,
    /// Of one that this node asks for: which, where it goes, and its proof.
    lane: Option<(Lane, IpAddr)>,
    asker: Option<Asker>,
    /// This node's end, once the core has made it.
    id: Option<ConnectionId>,
    until: Time,
}

/// A core that waits for a peer's offer.
#[derive(Debug)]
struct Inviting {
    until: Time,
    /// Devices by which it reaches the peer already.
    without: Vec<String>,
}

/// A connection that is there.
#[derive(Debug)]
struct Made {
    core: u16,
    id: ConnectionId,
    /// Of one that this node asks on: which, and where it goes.
    lane: Option<(Lane, IpAddr)>,
    since: Time,
}

/// A rail, and what listens at it.
#[derive(Debug)]
struct Listening {
    at: SocketAddr,
    now: Option<CmId>,
    /// The last error, told once.
    told: Option<String>,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Over,
    /// The thread is told to stop.
    Stop,
    /// There is no rdma_cm any more.
    Broken,
}

pub(crate) struct Control<C> {
    cm: C,
    shared: Arc<Shared>,
    invite: Invite,
    inviting: BTreeMap<(u16, PeerCore), Inviting>,
    making: BTreeMap<CmId, Making>,
    made: BTreeMap<CmId, Made>,
    /// How often a link was made or tried: each time by another pair of addresses, since one that could be made need not carry.
    attempts: BTreeMap<Lane, usize>,
    listening: Vec<Listening>,
    listen_at: Time,
    /// Whether peers are told where: not of a node that only takes. It listens to hear of devices that go away.
    serves: bool,
    /// When a refusal was last said.
    refused_at: Option<Time>,
}

/// One of a core's connections to another: beside those by these devices.
type Lane = (u16, PeerCore, Vec<String>);

/// Events that are taken before everything else has its turn.
const EVENTS_A_TURN: usize = 256;

/// Links whose attempts are counted.
const ATTEMPTS_MAX: usize = 4_096;

impl<C: Connector> Control<C> {
    pub fn new(cm: C, shared: Arc<Shared>, invite: Invite, serves: bool) -> Self {
        let mut control = Control {
            cm,
            shared,
            invite,
            inviting: BTreeMap::new(),
            making: BTreeMap::new(),
            made: BTreeMap::new(),
            attempts: BTreeMap::new(),
            listening: Vec::new(),
            listen_at: Time(0),
            serves,
            refused_at: None,
        };
        control.take_rails();
        control
    }

    /// Addresses that are to be listened at.
    fn take_rails(&mut self) {
        for rail in self.shared.rails() {
            if !self.listening.iter().any(|one| one.at.ip() == rail.ip) {
                self.listening.push(Listening {
                    at: SocketAddr::new(rail.ip, 0),
                    now: None,
                    told: None,
                });
            }
        }
        self.listen_at = Time(0);
    }

    /// Until it is told to stop.
    pub fn run(mut self) {
        loop {
            self.wait();
            match self.turn() {
                Turn::Over => {}
                Turn::Stop => return,
                Turn::Broken => return self.refuse_all(),
            }
        }
    }

    /// Does all that there is to do.
    fn turn(&mut self) -> Turn {
        while let Some(told) = self.shared.next() {
            if let ToControl::Stop = told {
                return Turn::Stop;
            }
            self.told(told);
        }
        // Bounded: a flood of strangers must not keep this thread from what it is told.
        for _ in 0..EVENTS_A_TURN {
            match self.cm.next_event() {
                Ok(Some(event)) => self.happened(event),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("RDMA: no connection can be made any more: {error}");
                    return Turn::Broken;
                }
            }
        }
        self.sweep();
        self.listen();
        self.shared.write_due();
        Turn::Over
    }

    /// Tells every core that wants a connection that there will be none, until it is told to stop.
    fn refuse_all(&mut self) {
        self.shared.listening.lock().clear();
        loop {
            for at in std::mem::take(&mut self.inviting).into_keys() {
                self.unavailable(at.0, at.1, "rdma_cm broke: see the log");
            }
            let making = std::mem::take(&mut self.making);
            for (by, made) in making {
                self.end(by, made, "rdma_cm broke: see the log".into());
            }
            match self.shared.next() {
                Some(ToControl::Stop) => return,
                Some(ToControl::Want { core, to, .. }) => {
                    self.unavailable(core, to, "rdma_cm broke: see the log");
                }
                Some(ToControl::Offered { core, offered, .. }) => {
                    self.orphan(core, offered.map(|(id, _)| id));
                }
                Some(ToControl::Accepted { core, accepted, .. }) => {
                    self.orphan(core, accepted.map(|(id, ..)| id));
                }
                Some(_) => {}
                None => self.wait_for_word(),
            }
        }
    }

    fn wait(&self) {
        let now = self.shared.clock.now();
        let ends = self.making.values().map(|making| making.until);
        let ends = ends.chain(self.inviting.values().map(|inviting| inviting.until));
        let listen = (self.listening.iter().any(|one| one.now.is_none())).then_some(self.listen_at);
        let until = ends.chain(listen).chain(self.shared.due_at()).min();
        let timeout = until.map(|until| {
            let span = until.since(now);
            Timespec {
                tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: span.subsec_nanos().into(),
            }
        });
        let wake = self.shared.wake();
        let mut fds = [
            PollFd::new(wake, PollFlags::IN),
            PollFd::from_borrowed_fd(self.cm.fd(), PollFlags::IN),
        ];
        // Interrupted or not: everything is looked at.
        let _ = poll(&mut fds, timeout.as_ref());
        self.drain();
    }

    fn wait_for_word(&self) {
        let _ = poll(&mut [PollFd::new(self.shared.wake(), PollFlags::IN)], None);
        self.drain();
    }

    fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.shared.wake(), &mut count);
    }

    /// Listens at the rails where nothing listens.
    pub fn listen(&mut self) {
        let now = self.shared.clock.now();
        let missing = self.listening.iter().any(|one| one.now.is_none());
        if !missing || now < self.listen_at {
            return;
        }
        self.listen_at = now + LISTEN_PAUSE;
        for one in self.listening.iter_mut().filter(|one| one.now.is_none()) {
            match self.cm.listen(one.at, BACKLOG) {
                Ok((id, at)) => {
                    (one.now, one.told) = (Some(id), None);
                    if self.serves {
                        tracing::info!("RDMA: listening at {}", one.at.ip());
                        self.shared.listening.lock().push(at);
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if one.told.as_ref() != Some(&text) {
                        tracing::warn!(
                            "RDMA: no device can be used by {} now: {text}",
                            one.at.ip()
                        );
                        one.told = Some(text);
                    }
                }
            }
        }
    }

    fn told(&mut self, told: ToControl) {
        match told {
            ToControl::Stop => {}
            ToControl::Rails => self.take_rails(),
            ToControl::Want { core, to, without } => self.want(core, to, without),
            ToControl::Invited { ends, invited } => self.invited(ends, invited),
            ToControl::Offered { core, by, offered } => self.offered(core, by, offered),
            ToControl::Accepted { core, by, accepted } => self.accepted(core, by, accepted),
            ToControl::Begun { by, begun } => self.begun(by, begun),
            ToControl::Ended { by } => {
                if let Some(made) = self.made.remove(&by) {
                    self.held(&made);
                    // The peer may know already.
                    let _ = self.cm.disconnect(by);
                    self.cm.close(by);
                } else if let Some(making) = self.making.remove(&by) {
                    self.end(by, making, "this node's queue pair broke".into());
                }
            }
        }
    }

    fn tell(&self, core: u16, what: ToCore) {
        if let Some(seat) = self.shared.seat(core) {
            seat.tell(what);
        }
    }

    fn unavailable(&self, core: u16, to: PeerCore, why: impl Into<NoOffer>) {
        let why = why.into();
        self.tell(core, ToCore::Unavailable { to, why });
    }

    /// Gives up a connection that is being made.
    fn end(&mut self, by: CmId, making: Making, why: String) {
        self.cm.close(by);
        if let Some(id) = making.id {
            let why = "it was not made in the end";
            self.tell(making.core, ToCore::Close { id, why });
        }
        match making.asker {
            Some(_) => self.unavailable(making.core, making.peer, why),
            None => tracing::debug!(peer = making.peer.peer.0, "RDMA: not connected: {why}"),
        }
    }

    fn fail(&mut self, by: CmId, why: impl Into<String>) {
        match self.making.remove(&by) {
            Some(making) => self.end(by, making, why.into()),
            None => self.cm.close(by),
        }
    }

    fn want(&mut self, core: u16, to: PeerCore, without: Vec<String>) {
        let until = self.shared.clock.now() + INTRODUCE;
        let inviting = Inviting { until, without };
        if self.inviting.insert((core, to), inviting).is_none() {
            let peer = self.shared.me;
            let asker = PeerCore { peer, core };
            let acceptor = to;
            let ends = Ends { asker, acceptor };
            (self.invite)(ends, Told::new(self.shared.clone(), ends));
        }
    }

    fn invited(&mut self, ends: Ends, invited: Result<(Session, Offer), NoOffer>) {
        let (core, to) = (ends.asker.core, ends.acceptor);
        // Too late, or twice.
        let Some(Inviting { until, without }) = self.inviting.remove(&(core, to)) else {
            return;
        };
        let node = self.shared.seat(core).and_then(|seat| seat.node);
        let others = self.made.values().filter_map(|made| made.lane.as_ref());
        let others = others.filter(|((by, other, _), _)| (*by, *other) == (core, to));
        let taken = others.map(|(_, at)| *at).collect();
        let whose = Whose {
            core,
            node,
            without,
            taken,
        };
        let begun = invited.and_then(|(session, offer)| {
            if self.attempts.len() >= ATTEMPTS_MAX {
                self.attempts.pop_first();
            }
            let lane = (core, to, whose.without.clone());
            let attempt = self.attempts.entry(lane.clone()).or_default();
            let (from, at) = way(&self.shared.rails_up(), &offer.at, &whose, *attempt)
                .ok_or("it has no address by RDMA of a family that this node has")?;
            *attempt += 1;
            let by = self
                .cm
                .resolve_address(from, at, RESOLVE)
                .map_err(|error| format!("{from} to {}: {error}", at.ip()))?;
            Ok((by, (lane, at.ip()), Asker::new(session, offer.ticket, ends)))
        });
        match begun {
            Ok((by, lane, asker)) => {
                let making = Making {
                    step: Step::Address,
                    lane: Some(lane),
                    core,
                    peer: to,
                    asker: Some(asker),
                    id: None,
                    until,
                };
                self.making.insert(by, making);
            }
            Err(why) => self.unavailable(core, to, why),
        }
    }

    /// The core's end of a connection to ask on.
    fn offered(&mut self, core: u16, by: CmId, offered: Result<(ConnectionId, u32), String>) {
        let Some(making) = self.making.get_mut(&by) else {
            return self.orphan(core, offered.map(|(id, _)| id));
        };
        let (id, number) = match offered {
            Ok(offered) => offered,
            Err(why) => return self.fail(by, why),
        };
        making.id = Some(id);
        let (Step::Offer, Some(asker)) = (&making.step, &making.asker) else {
            return self.fail(by, "the core answered what was not asked");
        };
        let question = asker.question(number);
        making.step = Step::Answer { number };
        if let Err(error) = self.cm.connect(by, number, &question) {
            self.fail(by, error.to_string());
        }
    }

    /// What a core made for a connection that was given up meanwhile.
    fn orphan(&self, core: u16, id: Result<ConnectionId, String>) {
        if let Ok(id) = id {
            let why = "it was given up before";
            self.tell(core, ToCore::Close { id, why });
        }
    }

    fn accepted(
        &mut self,
        core: u16,
        by: CmId,
        accepted: Result<(ConnectionId, u32, Grant), String>,
    ) {
        let Some(making) = self.making.get_mut(&by) else {
            return self.orphan(core, accepted.map(|(id, ..)| id));
        };
        let (id, number, grant) = match accepted {
            Ok(accepted) => accepted,
            Err(why) => {
                let peer = making.peer.peer.0;
                let now = self.shared.clock.now();
                let every = Duration::from_secs(LOG_EVERY_S);
                if self.refused_at.is_none_or(|at| now.since(at) >= every) {
                    self.refused_at = Some(now);
                    tracing::warn!(peer, "RDMA: a peer is refused, and takes TCP: {why}");
                }
                self.making.remove(&by);
                let _ = self.cm.reject(by, &[Refused::Core.code()]);
                return;
            }
        };
        making.id = Some(id);
        let Step::Accept(guest) = &making.step else {
            return self.fail(by, "the core answered what was not asked");
        };
        let reply = guest.reply(number, grant);
        making.step = Step::Establish;
        if let Err(error) = self.cm.accept(by, number, &reply) {
            self.fail(by, error.to_string());
        }
    }

    fn begun(&mut self, by: CmId, begun: Result<(), String>) {
        let begun = begun.and_then(|()| self.cm.establish(by).map_err(|error| error.to_string()));
        match begun {
            Ok(()) => self.is_made(by),
            Err(why) => self.fail(by, why),
        }
    }

    fn is_made(&mut self, by: CmId) {
        let Some(making) = self.making.remove(&by) else {
            return;
        };
        match making.id {
            Some(id) => {
                let made = Made {
                    core: making.core,
                    id,
                    lane: making.lane,
                    since: self.shared.clock.now(),
                };
                self.made.insert(by, made);
            }
            None => self.end(by, making, "it was never made".into()),
        }
    }

    fn happened(&mut self, event: CmEvent) {
        match event {
            CmEvent::AddressResolved(by) => {
                if let Some(making) = self.making.get_mut(&by) {
                    making.step = Step::Route;
                    if let Err(error) = self.cm.resolve_route(by, RESOLVE) {
                        self.fail(by, error.to_string());
                    }
                }
            }
            CmEvent::RouteResolved(by) => self.routed(by),
            CmEvent::Requested {
                id,
                queue_pair,
                private,
                ..
            } => self.requested(id, queue_pair, &private),
            CmEvent::Accepted {
                id,
                queue_pair,
                private,
            } => self.answered(id, queue_pair, &private),
            CmEvent::Rejected {
                id,
                reason,
                private,
            } => {
                let why = match Refused::of(&private) {
                    Some(refused) => format!("it refuses: {refused}"),
                    None => format!("it refuses (rdma_cm's reason {reason})"),
                };
                self.gone(id, "the peer refused it in the end", why);
            }
            CmEvent::Established(by) => self.is_made(by),
            CmEvent::Failed { id, what, errno } => {
                let error = std::io::Error::from_raw_os_error(errno);
                self.gone(id, "the connection failed", format!("{what} ({error})"));
            }
            CmEvent::Disconnected(id) => self.gone(id, "the peer ended it", "it ended it".into()),
            CmEvent::DeviceRemoved(id) => {
                if let Ok(place) = self.cm.place(id) {
                    self.lost(&place.device);
                }
                let why = "the RDMA device was removed";
                self.gone(id, why, why.into());
            }
        }
    }

    /// The kernel waits until every core has closed a device that goes away.
    fn lost(&self, device: &str) {
        for seat in self.shared.seats() {
            let device = device.to_owned();
            seat.tell(ToCore::Lost { device });
        }
    }

    /// A connection, or what listens, is of no more use.
    fn gone(&mut self, by: CmId, made: &'static str, making: String) {
        if let Some(listening) = self.listening.iter_mut().find(|one| one.now == Some(by)) {
            listening.now = None;
            let ip = listening.at.ip();
            tracing::warn!("RDMA: peers do not reach {ip} any more: {made}");
            self.shared.listening.lock().retain(|at| at.ip() != ip);
            self.cm.close(by);
        } else if let Some(ended) = self.made.remove(&by) {
            self.held(&ended);
            let (core, id) = (ended.core, ended.id);
            self.tell(core, ToCore::Close { id, why: made });
            self.cm.close(by);
        } else {
            self.fail(by, making);
        }
    }

    fn routed(&mut self, by: CmId) {
        let prepare = self.cm.prepare_step(by);
        let Some(making) = self.making.get_mut(&by) else {
            return;
        };
        match prepare {
            Ok(prepare) => {
                making.step = Step::Offer;
                let (core, to) = (making.core, making.peer);
                self.tell(core, ToCore::Offer { by, to, prepare });
            }
            Err(error) => self.fail(by, error.to_string()),
        }
    }

    /// Somebody asks for a connection: nothing is made before the proof was looked at.
    fn requested(&mut self, by: CmId, queue_pair: u32, private: &[u8]) {
        let now = self.shared.clock.now();
        let taken = self.shared.tickets.lock().take(private, queue_pair, now);
        let let_in = taken.and_then(|guest| {
            let Ends { asker, acceptor } = guest.ends();
            let steps = self.steps(by).map_err(|error| {
                tracing::warn!("RDMA: a peer is refused: {error}");
                Refused::Core
            })?;
            let seat = self.shared.seat(acceptor.core).ok_or(Refused::Core)?;
            Ok((guest, asker, acceptor.core, steps, seat))
        });
        match let_in {
            Ok((guest, from, core, (prepare, connect), seat)) => {
                let making = Making {
                    step: Step::Accept(guest),
                    lane: None,
                    core,
                    peer: from,
                    asker: None,
                    id: None,
                    until: now + INTRODUCE,
                };
                self.making.insert(by, making);
                seat.tell(ToCore::Accept {
                    by,
                    from,
                    at: self.cm.peer(by),
                    prepare,
                    connect,
                });
            }
            Err(refused) => {
                tracing::debug!("RDMA: somebody is refused: {refused}");
                let _ = self.cm.reject(by, &[refused.code()]);
            }
        }
    }

    fn steps(&mut self, by: CmId) -> Result<(PrepareStep, ConnectSteps), VerbsError> {
        let prepare = self.cm.prepare_step(by)?;
        let connect = self.connect_steps(by, prepare.device())?;
        Ok((prepare, connect))
    }

    /// How to connect by a device, with packets marked and from the GID that its rail wants.
    fn connect_steps(&mut self, by: CmId, device: &str) -> Result<ConnectSteps, VerbsError> {
        let steps = self.cm.connect_steps(by)?;
        let Some(rail) = self.shared.rail_of(device) else {
            return Ok(steps);
        };
        let steps = match (rail.forces_gid, steps.gid_index()) {
            (true, Some(_)) => steps.by_gid(rail.gid_index),
            (_, took) => {
                self.shared.gid_taken(&rail, took);
                steps
            }
        };
        Ok(steps.marked(rail.marking))
    }

    /// The peer accepts: only one that proves who it is may write into this node's memory.
    fn answered(&mut self, by: CmId, queue_pair: u32, private: &[u8]) {
        let place = self.cm.place(by);
        let connect = place.and_then(|place| self.connect_steps(by, &place.device));
        let Some(making) = self.making.get_mut(&by) else {
            return self.cm.close(by);
        };
        let (Step::Answer { number }, Some(asker), Some(id)) =
            (&making.step, &making.asker, making.id)
        else {
            return self.fail(by, "it accepts what was not asked");
        };
        let checked = asker
            .check(private, *number, queue_pair)
            .map_err(|refused| format!("its answer is not believed: {refused}"))
            .and_then(|grant| Ok((grant, connect.map_err(|error| error.to_string())?)));
        match checked {
            Ok((grant, connect)) => {
                making.step = Step::Begin;
                let (core, to) = (making.core, making.peer);
                let begin = ToCore::Begin {
                    by,
                    id,
                    to,
                    connect,
                    grant,
                };
                self.tell(core, begin);
            }
            Err(why) => self.fail(by, why),
        }
    }

    /// A connection is gone. One that held is made the same way again: it was idle, or what broke it was not its way.
    fn held(&mut self, made: &Made) {
        let now = self.shared.clock.now();
        if let Some((lane, _)) = &made.lane
            && now.since(made.since) >= Duration::from_secs(HELD_S)
            && let Some(attempts) = self.attempts.get_mut(lane)
        {
            *attempts = attempts.saturating_sub(1);
        }
    }

    /// Gives up what takes too long.
    fn sweep(&mut self) {
        let now = self.shared.clock.now();
        let late = self.inviting.iter();
        let late = late.filter(|(_, inviting)| inviting.until <= now);
        for (core, to) in late.map(|(link, _)| *link).collect::<Vec<_>>() {
            self.inviting.remove(&(core, to));
            self.unavailable(core, to, "it did not say in time how it is reached");
        }
        let late = self.making.iter().filter(|(_, making)| making.until <= now);
        for by in late.map(|(by, _)| *by).collect::<Vec<_>>() {
            let step = self.making.get(&by).map(|making| making.step.name());
            let step = step.unwrap_or_default();
            self.fail(
                by,
                format!("not connected within {INTRODUCE_MS} ms: {step}"),
            );
        }
    }
}

impl Step {
    fn name(&self) -> &'static str {
        match self {
            Step::Address => "its address is not found",
            Step::Route => "no route is found",
            Step::Offer | Step::Begin | Step::Accept(_) => "this node's core is busy",
            Step::Answer { .. } | Step::Establish => "the peer does not answer",
        }
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
