//! One core's turn over its connections.
//!
//! How the two ends find each other is not in here: another thread connects by rdma_cm ([`crate::Cm`]), proves who the peer is
//! ([`crate::introduce`]), and brings the steps that [`RdmaTransport::offer`], [`RdmaTransport::accept`] and
//! [`RdmaTransport::begin`] take.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::Mapping;
use forebay_engine::ports::{
    Clock, FetchTag, Full, Payload, PeerCore, PeerId, Time, Transport, TransportError,
    TransportEvent, TransportOp,
};
use forebay_engine::ring::Doorbell;

use crate::asking::{Asking, Grant, is_valid};
use crate::connection::{Connection, Ended, Side};
use crate::limits::{COMPLETIONS_A_TURN, IDLE_FOR_ROOM_S, NEWS_PAUSE_MS, RECEIVES};
use crate::links::LinkRecord;
use crate::rail::RailConfig;
use crate::rails::{News, PortNews, Rails, gone};
use crate::serving::Serving;
use crate::status::{Completion, WorkFault, WorkKind};
use crate::wire::{ConnectionId, Wire, Work};
use crate::{ConnectSteps, PrepareStep, Verbs, VerbsError};

/// The engine's way to peers by RDMA, for one core. It never leaves that core's thread.
pub struct RdmaTransport {
    clock: Box<dyn Clock>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Connections to ask on, by whom: one for each rail at most.
    by_peer: BTreeMap<PeerCore, Vec<ConnectionId>>,
    last_id: ConnectionId,
    /// Connections that may have something to post, each once: those whose `is_dirty` is set.
    dirty: Vec<ConnectionId>,
    /// Before this no connection wants to be looked at though nothing came. It may be early, never late.
    due: Time,
    events: VecDeque<TransportEvent>,
    completions: Vec<Completion>,
    message: Vec<u8>,
    /// When this turn began.
    now: Time,
    /// Completions taken since the engine was last told that there is no more.
    taken: usize,
    /// The last turn stopped in the midst of completions.
    more: bool,
    credit_bytes: u32,
    /// Connections are tried out before anything is asked on them; those that are being, and whom they lead to.
    tries: bool,
    trying: BTreeMap<ConnectionId, PeerCore>,
    /// Connections that were tried out well since somebody asked.
    proven: Vec<ConnectionId>,
    /// Connections that ended since somebody asked, and why; none where nobody will ask.
    ended: Option<Vec<(ConnectionId, String)>>,
    /// When devices were last looked at for what they tell unasked.
    heard_at: Time,
    /// What became of ports since somebody asked, by the device's name.
    ports: Vec<(String, PortNews)>,
    /// Where the core tells that it is about to sleep; without it, it always may.
    doorbell: Option<Arc<Doorbell>>,
    // After the connections, which are made from them.
    rails: Rails,
}

impl fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaTransport")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl RdmaTransport {
    /// Opens the devices and registers with each the `arena` of which all leases and payloads must be. Each peer that asks
    /// may have `credit_bytes` of answers under way. A device that cannot be opened now is tried again when a connection
    /// wants it.
    ///
    /// # Errors
    /// What the last device or its limits do not allow, when none can be opened.
    pub fn new(
        verbs: &Verbs,
        rails: &[RailConfig],
        arena: &Mapping,
        credit_bytes: u32,
        clock: Box<dyn Clock>,
    ) -> Result<RdmaTransport, VerbsError> {
        let now = clock.now();
        let rails = Rails::open(verbs, rails, arena, now)?;
        let down = (0..rails.len()).filter_map(|at| news_of_down(&rails, at));
        let ports = down.collect();
        Ok(RdmaTransport {
            rails,
            tries: false,
            trying: BTreeMap::new(),
            proven: Vec::new(),
            ended: None,
            heard_at: now,
            ports,
            doorbell: None,
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            last_id: ConnectionId(0),
            dirty: Vec::new(),
            due: Time::NEVER,
            events: VecDeque::new(),
            completions: Vec::new(),
            message: Vec::new(),
            now,
            taken: 0,
            more: false,
            credit_bytes,
            clock,
        })
    }

    /// Opens one more device, unless it is there. False when it is. It is used once it is open, which another thread sees to.
    pub fn add(&mut self, device: &RailConfig) -> bool {
        if self.rails.position(&device.device).is_some() {
            return false;
        }
        let now = self.clock.now();
        self.rails.add(device, self.doorbell.as_ref(), now);
        true
    }

    /// Completion queues are armed only while the core says at `doorbell` that it is about to sleep: one that spins or
    /// works asks no device to interrupt it.
    pub fn armed_for_sleep(mut self, doorbell: Arc<Doorbell>) -> RdmaTransport {
        self.doorbell = Some(doorbell);
        self
    }

    /// Makes this core's end of a connection to ask on, and says the number of its queue pair. The peer is let do nothing until
    /// [`RdmaTransport::begin`].
    pub fn offer(&mut self, prepare: &PrepareStep) -> Result<(ConnectionId, u32), VerbsError> {
        let (id, rail, wire) = self.wire(prepare)?;
        let number = wire.queue_pair();
        self.adopt(
            id,
            Connection::new(wire, Side::Offered, rail, self.clock.now()),
        );
        Ok((id, number))
    }

    /// Makes this core's end of a connection that `from`, which was proven, asks on: the number of its queue pair, and what
    /// is granted. It is ready for requests.
    pub fn accept(
        &mut self,
        from: PeerId,
        prepare: &PrepareStep,
        connect: &ConnectSteps,
    ) -> Result<(ConnectionId, u32, Grant), VerbsError> {
        let (id, rail, wire) = self.wire(prepare)?;
        wire.connect(connect)?;
        let number = wire.queue_pair();
        let grant = Grant {
            messages: RECEIVES,
            credit_bytes: self.credit_bytes,
        };
        let side = Side::Serving(Serving::new(from, self.credit_bytes));
        self.adopt(id, Connection::new(wire, side, rail, self.clock.now()));
        Ok((id, number, grant))
    }

    /// Connects what was offered, now that the peer has accepted and proven to be `to`: only now it may write into
    /// this core's arena. Requests to `to` go this way from now on, or once it was tried out. Whether they do now.
    ///
    /// # Errors
    /// The connection is closed then.
    pub fn begin(
        &mut self,
        id: ConnectionId,
        to: PeerCore,
        connect: &ConnectSteps,
        grant: Grant,
    ) -> Result<bool, VerbsError> {
        let now = self.clock.now();
        let offered = self.connections.get_mut(&id).filter(|connection| {
            matches!(connection.side, Side::Offered) && !connection.wire.has_failed()
        });
        let Some(connection) = offered else {
            return Err(VerbsError::Unusable {
                object: format!("connection {}", id.0),
                what: "it is closed, or in use: offer another".into(),
            });
        };
        let rail = self.rails.usable(connection.rail);
        let keys = rail.map(|rail| (rail.arena.remote_key(), rail.trial.remote(0)));
        let (key, trial) = keys.ok_or_else(gone)?;
        let wire = &connection.wire;
        let connected = wire.connect(connect).and_then(|()| wire.let_write());
        if let Err(error) = connected {
            self.end(id, &Ended::Closed("it could not be connected"));
            return Err(error);
        }
        let mut asking = Asking::new(grant, key, now);
        if self.tries {
            asking.try_out(trial.address, trial.key, now);
        }
        connection.side = Side::Asking(asking);
        self.due = self.due.min(connection.wake_at());
        if self.tries {
            self.trying.insert(id, to);
            self.touch(id);
            return Ok(false);
        }
        self.ask_by(id, to);
        Ok(true)
    }

    /// Requests to `to` go by a connection from now on.
    fn ask_by(&mut self, id: ConnectionId, to: PeerCore) {
        let Some(at) = self.connections.get(&id).map(|connection| connection.rail) else {
            return;
        };
        let connections = &self.connections;
        let same_rail = |other: &ConnectionId| connections.get(other).is_some_and(|c| c.rail == at);
        let lanes = self.by_peer.entry(to).or_default();
        let before = lanes.iter().copied().find(same_rail);
        lanes.push(id);
        if let Some(before) = before {
            self.end(before, &Ended::Closed("another has taken its place"));
        }
    }

    /// A connection's trial may be over.
    fn may_be_proven(&mut self, id: ConnectionId) {
        let side = self.connections.get(&id).map(|connection| &connection.side);
        if matches!(side, Some(Side::Asking(asking)) if !asking.is_trying())
            && let Some(to) = self.trying.remove(&id)
        {
            self.ask_by(id, to);
            self.proven.push(id);
        }
    }

    /// Connections that were tried out well since this was last called.
    pub fn take_proven(&mut self) -> Vec<ConnectionId> {
        mem::take(&mut self.proven)
    }

    /// From now on connections are tried out before anything is asked on them: whether they carry what is long.
    pub fn trying_out(mut self) -> RdmaTransport {
        self.tries = true;
        self
    }

    /// Ends a connection. What is under way on it ends as `Unreachable`, once nothing can be written any more.
    pub fn close(&mut self, id: ConnectionId, why: &'static str) {
        self.now = self.clock.now();
        self.end(id, &Ended::Closed(why));
    }

    /// Where bytes of a connection are counted from now on.
    pub fn record(&mut self, id: ConnectionId, record: Arc<LinkRecord>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.record = Some(record);
        }
    }

    /// Remembers from now on which connections end, for [`RdmaTransport::take_ended`].
    pub fn telling_ends(mut self) -> RdmaTransport {
        self.ended = Some(Vec::new());
        self
    }

    /// Connections that ended, whoever ended them, and why, since this was last called.
    pub fn take_ended(&mut self) -> Vec<(ConnectionId, String)> {
        self.ended.as_mut().map(mem::take).unwrap_or_default()
    }

    /// What became of ports since this was last called, by the device's name.
    pub(crate) fn take_ports(&mut self) -> Vec<(String, PortNews)> {
        mem::take(&mut self.ports)
    }

    /// Why no connection can be made now; none when it may be tried.
    pub fn why_down(&self) -> Option<String> {
        self.rails.why_down()
    }

    /// Ends all connections of a device, then closes it: the kernel waits for that when a device is removed. It is opened
    /// again when a connection wants it.
    pub fn lose(&mut self, device: &str) {
        self.now = self.clock.now();
        if let Some(at) = self.rails.position(device) {
            self.give_up(at, &gone());
            self.close_rails();
        }
    }

    /// Whether requests to a peer's core go this way now.
    pub fn reaches(&self, to: PeerCore) -> bool {
        self.by_peer.contains_key(&to)
    }

    /// Connections by which requests to a peer's core go now.
    pub fn lanes(&self, to: PeerCore) -> usize {
        self.by_peer.get(&to).map_or(0, Vec::len)
    }

    /// Devices by which requests to a peer's core go now.
    pub fn devices_to(&self, to: PeerCore) -> Vec<String> {
        let lanes = self.by_peer.get(&to).into_iter().flatten();
        let lanes = lanes.filter_map(|id| self.connections.get(id));
        lanes
            .map(|connection| self.rails.device(connection.rail).to_owned())
            .collect()
    }

    /// Bytes of answers of a peer's core that are under way.
    pub fn under_way_bytes(&self, to: PeerCore) -> u64 {
        let lanes = self.by_peer.get(&to).into_iter().flatten();
        lanes.map(|id| self.lane_bytes(*id)).sum()
    }

    fn lane_bytes(&self, id: ConnectionId) -> u64 {
        match self.connections.get(&id).map(|connection| &connection.side) {
            Some(Side::Asking(asking)) => asking.under_way_bytes(),
            _ => 0,
        }
    }

    /// Asks by the connection that has the fewest bytes under way, or by another when that one takes no more.
    #[allow(clippy::result_large_err)]
    fn ask(&mut self, to: PeerCore, op: TransportOp) -> Result<(), Full<TransportOp>> {
        let lanes = self.by_peer.get(&to).map_or(&[][..], Vec::as_slice);
        let least = (0..lanes.len()).min_by_key(|at| self.lane_bytes(lanes[*at]));
        let Some(least) = least else {
            self.events
                .extend(unreachable(op, TransportError::Unreachable));
            return Ok(());
        };
        let mut left = op;
        for at in least..least + lanes.len() {
            let id = lanes[at % lanes.len()];
            let connection = self.connections.get_mut(&id);
            let Some(Side::Asking(asking)) = connection.map(|found| &mut found.side) else {
                continue;
            };
            match asking.ask(left) {
                Ok(()) => {
                    self.touch(id);
                    return Ok(());
                }
                Err(Full(op)) => left = op,
            }
        }
        Err(Full(left))
    }

    /// Takes a new connection in.
    fn adopt(&mut self, id: ConnectionId, connection: Connection) {
        self.due = self.due.min(connection.wake_at());
        self.connections.insert(id, connection);
    }

    /// A connection may have something to post, and want to be looked at at another time than before.
    fn touch(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(id);
        }
    }

    /// Connections that are there, also those that are being ended.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Readable when a completion came after [`Transport::poll`] had none: the core's thread waits for it too.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.rails.as_fd()
    }

    /// The rail by which a connection goes, a free number, and its queue pair.
    fn wire(&mut self, prepare: &PrepareStep) -> Result<(ConnectionId, usize, Wire), VerbsError> {
        let device = prepare.device();
        let unusable = |what: String| VerbsError::Unusable {
            object: format!("RDMA device {device} on this core"),
            what,
        };
        let Some(at) = self.rails.position(device) else {
            return Err(unusable("it is none of this member's rails".into()));
        };
        let now = self.clock.now();
        let wanted = self.rails.wanted(at, self.doorbell.as_ref(), now);
        let connections_max = match wanted.map(|rail| rail.connections_max) {
            Ok(connections_max) => connections_max,
            Err(error) => {
                // It may just have been opened again.
                self.ports.extend(news_of_down(&self.rails, at));
                return Err(error);
            }
        };
        let here = |connection: &Connection| connection.rail == at;
        let count = self
            .connections
            .values()
            .filter(|other| here(other))
            .count();
        if count >= connections_max {
            self.make_room(at);
            return Err(unusable(format!("it has {count} connections already")));
        }
        // Bounded: there are far more numbers than connections.
        let mut id = self.last_id.after();
        while self.connections.contains_key(&id) {
            id = id.after();
        }
        self.last_id = id;
        let rail = self.rails.usable(at).ok_or_else(gone)?;
        match Wire::new(rail, id, prepare) {
            Ok(wire) => Ok((id, at, wire)),
            Err(error) => {
                // What the kernel says of a device that was removed.
                if error.is_io() {
                    self.give_up(at, &error);
                    self.close_rails();
                }
                Err(error)
            }
        }
    }

    /// Whether a device takes one more connection without another having to go.
    pub fn has_room(&self, device: &str) -> bool {
        let Some(at) = self.rails.position(device) else {
            return false;
        };
        let here = self.connections.values().filter(|other| other.rail == at);
        let count = here.count();
        // One that is closed is opened again for who wants it.
        (self.rails.usable(at)).is_none_or(|rail| count < rail.connections_max)
    }

    /// Ends the connection by a rail that has carried nothing for the longest time, whoever asks on it.
    fn make_room(&mut self, rail: usize) {
        self.now = self.clock.now();
        let long_ago = |connection: &Connection| {
            let since = self.now.since(connection.used_at);
            since >= Duration::from_secs(IDLE_FOR_ROOM_S) && connection.is_idle()
        };
        let oldest = self.connections.iter().filter(|(_, connection)| {
            connection.rail == rail
                && !matches!(connection.side, Side::Offered)
                && !connection.wire.has_failed()
                && long_ago(connection)
        });
        let oldest = oldest.min_by_key(|(_, connection)| connection.used_at);
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.end(id, &Ended::Closed("another needs its place"));
        }
    }

    /// Posts, takes completions, looks at deadlines, posts. Whether anything came.
    fn turn(&mut self) -> bool {
        self.now = self.clock.now();
        // What the engine handed in since the last turn: it does not wait for a look at devices.
        self.flush();
        let mut completions = mem::take(&mut self.completions);
        completions.clear();
        for at in 0..self.rails.len() {
            if let Err(error) = self.rails.look(at, &mut completions) {
                self.give_up(at, &error);
            }
        }
        let came = completions.len();
        for completion in completions.drain(..) {
            self.completed(&completion);
        }
        self.completions = completions;
        self.taken += came;
        if self.now.since(self.heard_at) >= Duration::from_millis(NEWS_PAUSE_MS) {
            self.hear();
        }
        if self.due <= self.now {
            self.tick();
        }
        self.flush();
        if self.due <= self.now {
            self.reap();
            let times = self.connections.values().map(Connection::wake_at);
            self.due = times.min().unwrap_or(Time::NEVER);
        }
        if self.rails.has_broken() {
            self.close_rails();
        }
        came > 0
    }

    /// Nothing is told any more of work by a rail: its connections end.
    fn give_up(&mut self, at: usize, error: &VerbsError) {
        if !self.rails.give_up(at, error) {
            return;
        }
        self.end_all(at, "its device broke, or was removed");
    }

    /// Ends all connections by a rail.
    fn end_all(&mut self, at: usize, why: &'static str) {
        let all = self.connections.iter();
        let all: Vec<_> = all
            .filter(|(_, connection)| connection.rail == at)
            .map(|(id, _)| *id)
            .collect();
        for id in all {
            self.end(id, &Ended::Closed(why));
        }
    }

    /// Takes what devices tell unasked. Whether there was something.
    fn hear(&mut self) -> bool {
        self.heard_at = self.now;
        let mut all = match self.rails.is_opening() {
            true => self.rails.take_opened(self.now),
            false => Vec::new(),
        };
        if self.rails.has_news() || self.rails.look_at() <= self.now {
            all.extend(self.rails.news(self.now));
        } else if all.is_empty() {
            return false;
        }
        for news in all {
            match news {
                News::InError { address } => {
                    let mut all = self.connections.iter();
                    let found = all.find(|(_, connection)| connection.wire.is_at(address));
                    if let Some(id) = found.map(|(id, _)| *id) {
                        self.end(id, &Ended::InError);
                    }
                }
                News::Down { at, why } => {
                    self.end_all(at, "its port went down");
                    let name = self.rails.device(at).to_owned();
                    self.ports.push((name, PortNews::Down(why)));
                }
                News::Moved { at } => self.end_all(at, "its port has another address"),
                News::Up { at } => {
                    let name = self.rails.device(at).to_owned();
                    self.ports.push((name, PortNews::Up));
                }
                News::Broken { at, why } => self.give_up(at, &why),
            }
        }
        true
    }

    /// Closes devices that are of no more use, once nothing is made from them any more.
    fn close_rails(&mut self) {
        let connections = &self.connections;
        let in_use = |at| connections.values().any(|other| other.rail == at);
        let were_down = self.rails.close(self.now, in_use);
        let closed = were_down.into_iter().map(|name| (name, PortNews::Closed));
        self.ports.extend(closed);
    }

    fn completed(&mut self, completion: &Completion) {
        let id = ConnectionId::of(completion.work);
        // One that is destroyed may have left completions behind.
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let work = Work::of(completion.work);
        if let Work::Receive(_) = work {
            connection.wire.came_back();
        }
        if connection.wire.has_failed() {
            // It may have been its last.
            self.due = self.due.min(connection.wake_at());
            return;
        }
        let events = &mut self.events;
        let taken = match (work, completion.outcome) {
            (_, Err(fault)) => Err(Ended::Work(fault)),
            (Work::Send(low), Ok(done)) if done.kind != WorkKind::Receive => {
                connection.completed(low, |event| events.push_back(event))
            }
            (Work::Receive(slot), Ok(done)) if done.kind == WorkKind::Receive => {
                let len_bytes = done.len_bytes as usize;
                connection
                    .received(id, slot, len_bytes, self.now, &mut self.message)
                    .map(|event| {
                        if let (Some(record), Some(event)) = (&connection.record, &event) {
                            record.add_received(bytes_of(event));
                        }
                        events.extend(event);
                    })
            }
            _ => Err(Ended::Nonsense),
        };
        match taken {
            // Room came free, or an answer is due.
            Ok(()) => {
                self.touch(id);
                if !self.trying.is_empty() {
                    self.may_be_proven(id);
                }
            }
            Err(why) => self.end(id, &why),
        }
    }

    /// Gives up what is over its deadline.
    fn tick(&mut self) {
        let (mut broken, mut touched) = (Vec::new(), Vec::new());
        for (id, connection) in &mut self.connections {
            if connection.wire.has_failed() || connection.wake_at() > self.now {
                continue;
            }
            if connection.idle_at() <= self.now {
                broken.push((*id, Ended::Closed("idle")));
                continue;
            }
            if let Side::Asking(asking) = &mut connection.side {
                let events = &mut self.events;
                match asking.tick(self.now, |event| events.push_back(event)) {
                    Ok(()) => {}
                    Err(why) if asking.is_trying() => broken.push((*id, Ended::Tried(why))),
                    Err(why) => broken.push((*id, Ended::Broken(why))),
                }
                touched.push(*id);
            }
        }
        touched.into_iter().for_each(|id| self.touch(id));
        for (id, why) in broken {
            self.end(id, &why);
        }
    }

    fn flush(&mut self) {
        let mut dirty = mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            connection.is_dirty = false;
            if connection.wire.has_failed() {
                continue;
            }
            // Where it is to be closed, its connections have failed.
            let Some(rail) = self.rails.usable(connection.rail) else {
                continue;
            };
            let posted = connection.flush(rail, self.now);
            self.due = self.due.min(connection.wake_at());
            if let Err(why) = posted {
                self.end(id, &why);
            }
        }
        // Its room is kept; what was touched meanwhile has its turn in the next one.
        mem::swap(&mut self.dirty, &mut dirty);
        self.dirty.append(&mut dirty);
    }

    /// Begins to end a connection: no request goes there any more, and its queue pair goes into error.
    fn end(&mut self, id: ConnectionId, why: &Ended) {
        self.by_peer.retain(|_, lanes| {
            lanes.retain(|other| *other != id);
            !lanes.is_empty()
        });
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.wire.has_failed() {
            return;
        }
        match why {
            Ended::Closed(_) | Ended::Work(WorkFault::Flushed) => {
                tracing::debug!(connection = id.0, "RDMA connection ends: {why}");
            }
            _ => tracing::warn!(connection = id.0, "RDMA connection ends: {why}"),
        }
        connection.wire.fail(self.now);
        self.trying.remove(&id);
        self.due = self.due.min(connection.wake_at());
        if let Some(ended) = &mut self.ended {
            ended.push((id, why.to_string()));
        }
    }

    /// Destroys what is drained, and only then lets go of its leases.
    fn reap(&mut self) {
        let now = self.now;
        let drained = |connection: &Connection| {
            let at = connection.wire.drained_at();
            at.is_some_and(|at| at <= now)
        };
        let due = self.connections.iter().filter(|entry| drained(entry.1));
        let due: Vec<_> = due.map(|(id, _)| *id).collect();
        for id in due {
            let Some(connection) = self.connections.remove(&id) else {
                continue;
            };
            let events = &mut self.events;
            if let Some(left) = destroy(id, connection, now, |event| events.push_back(event)) {
                self.connections.insert(id, left);
            }
        }
    }

    /// Before the core sleeps: asks to be woken. Whether something came in between.
    fn rest(&mut self) -> bool {
        if self.doorbell.as_ref().is_some_and(|bell| !bell.is_asleep()) {
            return false;
        }
        // Before the core sleeps: its descriptor stays readable as long as there is some.
        let mut again = self.hear();
        for at in 0..self.rails.len() {
            match self.rails.arm(at, !self.connections.is_empty()) {
                Ok(armed) => again |= armed,
                Err(error) => {
                    self.give_up(at, &error);
                    again = true;
                }
            }
        }
        // What completed before it was armed makes no event.
        again && self.turn()
    }

    fn has_taken_enough(&self) -> bool {
        self.taken >= COMPLETIONS_A_TURN
    }
}

/// What people are told of a device whose port was down when it was opened.
fn news_of_down(rails: &Rails, at: usize) -> Option<(String, PortNews)> {
    let why = rails.down(at)?.to_owned();
    Some((rails.device(at).to_owned(), PortNews::Down(why)))
}

/// Destroys a connection's queue pair, and ends what was under way. Where the device refuses, it stays as it is, to be
/// tried again: the peer may still write into its leases.
fn destroy(
    id: ConnectionId,
    connection: Connection,
    now: Time,
    tell: impl FnMut(TransportEvent),
) -> Option<Connection> {
    let Connection {
        wire,
        side,
        rail,
        used_at,
        ..
    } = connection;
    match wire.destroy(now) {
        Ok(destroyed) => {
            Connection::end(side, destroyed, tell);
            None
        }
        Err(left) => {
            let (wire, error) = *left;
            tracing::warn!(connection = id.0, "its buffers cannot be used: {error}");
            Some(Connection::new(wire, side, rail, used_at))
        }
    }
}

impl Drop for RdmaTransport {
    fn drop(&mut self) {
        for (id, connection) in mem::take(&mut self.connections) {
            if let Some(left) = destroy(id, connection, self.now, drop) {
                // Nobody is left to try again. What its peer may write into stays mapped, and nobody else's.
                mem::forget(left.side);
            }
        }
    }
}

/// Bytes that an event brought.
fn bytes_of(event: &TransportEvent) -> usize {
    match event {
        TransportEvent::Fetched {
            result: Ok(_),
            len_bytes,
            ..
        } => *len_bytes as usize,
        _ => 0,
    }
}

fn unreachable(op: TransportOp, error: TransportError) -> Option<TransportEvent> {
    match op {
        TransportOp::Fetch { tag, lease, .. } | TransportOp::Call { tag, lease, .. } => {
            Some(TransportEvent::Fetched {
                tag,
                lease,
                result: Err(error),
                len_bytes: 0,
                checksums: Vec::new(),
            })
        }
        TransportOp::Answer { .. } => None,
    }
}

impl Transport for RdmaTransport {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        let to = match op {
            TransportOp::Answer {
                handle,
                status,
                payload,
            } => {
                let id = ConnectionId::of(handle.0);
                let found = self.connections.get_mut(&id);
                let sent_bytes = payload.as_ref().map_or(0, Payload::len_bytes);
                if let Some(record) = found.as_ref().and_then(|found| found.record.as_ref()) {
                    record.add_sent(sent_bytes);
                }
                let left = match found.map(|found| &mut found.side) {
                    Some(Side::Serving(serving)) => serving.answer(handle, status, payload),
                    _ => Err(payload),
                };
                match left {
                    Ok(()) => self.touch(id),
                    Err(payload) => self
                        .events
                        .push_back(TransportEvent::Answered { handle, payload }),
                }
                return Ok(());
            }
            TransportOp::Fetch { to, .. } | TransportOp::Call { to, .. } => to,
        };
        if !is_valid(&op) {
            self.events
                .extend(unreachable(op, TransportError::Protocol));
            return Ok(());
        }
        self.ask(to, op)
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            // What is left is taken before the core sleeps: `wake_at` says now.
            if self.has_taken_enough() {
                break;
            }
            if !self.turn() && self.events.is_empty() && !self.rest() && self.events.is_empty() {
                break;
            }
        }
        self.more = self.has_taken_enough();
        self.taken = 0;
        None
    }

    fn cancel(&mut self, tag: FetchTag) {
        self.now = self.clock.now();
        for (id, connection) in &mut self.connections {
            if connection.wire.has_failed() {
                continue;
            }
            if let Side::Asking(asking) = &mut connection.side {
                self.events.extend(asking.cancel(tag, self.now));
                if !mem::replace(&mut connection.is_dirty, true) {
                    self.dirty.push(*id);
                }
            }
        }
    }

    fn wake_at(&self) -> Time {
        let blind = !self.connections.is_empty() && self.rails.is_blind();
        if self.more || blind || !self.events.is_empty() || !self.dirty.is_empty() {
            return self.now;
        }
        self.due.min(self.rails.look_at())
    }
}
