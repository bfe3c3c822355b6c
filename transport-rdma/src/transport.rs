//! One core's turn over its connections.
//!
//! How the two ends find each other is not in here: another thread connects by rdma_cm ([`crate::Cm`]), proves who the peer is
//! ([`crate::introduce`]), and brings the steps that [`RdmaTransport::offer`], [`RdmaTransport::accept`] and
//! [`RdmaTransport::begin`] take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};

use forebay_engine::arena::Arena;
use forebay_engine::ports::{
    Clock, FetchTag, Full, PeerCore, PeerId, Time, Transport, TransportError, TransportEvent,
    TransportOp,
};

use crate::asking::{Asking, Grant, is_valid};
use crate::connection::{Connection, Ended, Side};
use crate::limits::{COMPLETIONS_A_TURN, RECEIVES};
use crate::rail::{Rail, RailConfig};
use crate::serving::Serving;
use crate::status::{Completion, WorkFault, WorkKind};
use crate::wire::{ConnectionId, Wire, Work};
use crate::{ConnectSteps, PrepareStep, Verbs, VerbsError};

/// The engine's way to peers by RDMA, for one core. It never leaves that core's thread.
pub struct RdmaTransport {
    clock: Box<dyn Clock>,
    connections: BTreeMap<ConnectionId, Connection>,
    by_peer: BTreeMap<PeerCore, ConnectionId>,
    last_id: ConnectionId,
    /// Connections with something to post.
    dirty: BTreeSet<ConnectionId>,
    events: VecDeque<TransportEvent>,
    completions: Vec<Completion>,
    message: Vec<u8>,
    /// When this turn began.
    now: Time,
    /// Completions taken since the engine was last told that there is no more.
    taken: usize,
    /// The channel will tell of the next completion.
    armed: bool,
    /// The last turn stopped in the midst of completions.
    more: bool,
    /// The completion queue is of no more use, and with it the device.
    broken: bool,
    credit_bytes: u32,
    // After the connections, which are made from it.
    rail: Rail,
}

impl fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaTransport")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl RdmaTransport {
    /// Opens the device and registers `arena`, of which all leases and payloads must be. Each peer that asks may
    /// have `credit_bytes` of answers under way.
    ///
    /// # Errors
    /// What the device or its limits do not allow.
    pub fn new(
        verbs: &Verbs,
        config: &RailConfig,
        arena: &Arena,
        credit_bytes: u32,
        clock: Box<dyn Clock>,
    ) -> Result<RdmaTransport, VerbsError> {
        Ok(RdmaTransport {
            rail: Rail::open(verbs, config, arena)?,
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            last_id: ConnectionId(0),
            dirty: BTreeSet::new(),
            events: VecDeque::new(),
            completions: Vec::new(),
            message: Vec::new(),
            now: clock.now(),
            taken: 0,
            armed: false,
            more: false,
            broken: false,
            credit_bytes,
            clock,
        })
    }

    /// Makes this core's end of a connection to ask on, and says the number of its queue pair. The peer is let do nothing until
    /// [`RdmaTransport::begin`].
    pub fn offer(&mut self, prepare: &PrepareStep) -> Result<(ConnectionId, u32), VerbsError> {
        let (id, wire) = self.wire(prepare)?;
        let number = wire.queue_pair();
        let connection = Connection::new(wire, Side::Offered);
        self.connections.insert(id, connection);
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
        let (id, wire) = self.wire(prepare)?;
        wire.connect(connect)?;
        let number = wire.queue_pair();
        let grant = Grant {
            messages: RECEIVES,
            credit_bytes: self.credit_bytes,
        };
        let side = Side::Serving(Serving::new(from, self.credit_bytes));
        self.connections.insert(id, Connection::new(wire, side));
        Ok((id, number, grant))
    }

    /// Connects what was offered, now that the peer has accepted and proven to be `to`: only now it may write into
    /// this core's arena. Requests to `to` go this way from now on.
    ///
    /// # Errors
    /// The connection is closed then.
    pub fn begin(
        &mut self,
        id: ConnectionId,
        to: PeerCore,
        connect: &ConnectSteps,
        grant: Grant,
    ) -> Result<(), VerbsError> {
        let key = self.rail.arena.remote_key();
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
        let wire = &connection.wire;
        let connected = wire.connect(connect).and_then(|()| wire.let_write());
        if let Err(error) = connected {
            self.end(id, &Ended::Closed);
            return Err(error);
        }
        connection.side = Side::Asking(Asking::new(grant, key, now));
        if let Some(before) = self.by_peer.insert(to, id) {
            self.end(before, &Ended::Closed);
        }
        Ok(())
    }

    /// Ends a connection. What is under way on it ends as `Unreachable`, once nothing can be written any more.
    pub fn close(&mut self, id: ConnectionId) {
        self.now = self.clock.now();
        self.end(id, &Ended::Closed);
    }

    /// Whether requests to a peer's core go this way now.
    pub fn reaches(&self, to: PeerCore) -> bool {
        self.by_peer.contains_key(&to)
    }

    /// Connections that are there, also those that are being ended.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Readable when a completion came after [`Transport::poll`] had none: the core's thread waits for it too.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.rail.channel.as_fd()
    }

    fn wire(&mut self, prepare: &PrepareStep) -> Result<(ConnectionId, Wire), VerbsError> {
        if self.broken {
            return Err(VerbsError::Unusable {
                object: "this core's RDMA".into(),
                what: "its completion queue broke: start again".into(),
            });
        }
        if self.connections.len() >= self.rail.connections_max {
            return Err(VerbsError::Unusable {
                object: "this core's RDMA".into(),
                what: format!("it has {} connections already", self.connections.len()),
            });
        }
        // Bounded: there are far more numbers than connections.
        let mut id = self.last_id.after();
        while self.connections.contains_key(&id) {
            id = id.after();
        }
        self.last_id = id;
        Ok((id, Wire::new(&self.rail, id, prepare)?))
    }

    /// Takes completions, looks at deadlines, posts. Whether anything came.
    fn turn(&mut self) -> bool {
        self.now = self.clock.now();
        let mut completions = mem::take(&mut self.completions);
        completions.clear();
        if let Err(error) = self.look(&mut completions) {
            self.give_up(&error);
        }
        let came = completions.len();
        for completion in completions.drain(..) {
            self.completed(&completion);
        }
        self.completions = completions;
        self.taken += came;
        self.tick();
        self.flush();
        self.reap();
        came > 0
    }

    /// Nothing is told of work any more: all connections end.
    fn give_up(&mut self, error: &VerbsError) {
        tracing::error!("RDMA is given up on this core: {error}");
        self.broken = true;
        let all: Vec<_> = self.connections.keys().copied().collect();
        for id in all {
            self.end(id, &Ended::Nonsense);
        }
    }

    fn look(&self, completions: &mut Vec<Completion>) -> Result<(), VerbsError> {
        if self.broken {
            return Ok(());
        }
        let queue = &self.rail.queue;
        queue.poll(|completion| completions.push(completion))?;
        Ok(())
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
                    .map(|event| events.extend(event))
            }
            _ => Err(Ended::Nonsense),
        };
        match taken {
            // Room came free, or an answer is due.
            Ok(()) => _ = self.dirty.insert(id),
            Err(why) => self.end(id, &why),
        }
    }

    /// Gives up what is over its deadline.
    fn tick(&mut self) {
        let mut broken = Vec::new();
        for (id, connection) in &mut self.connections {
            if connection.wire.has_failed() || connection.wake_at() > self.now {
                continue;
            }
            if let Side::Asking(asking) = &mut connection.side {
                let events = &mut self.events;
                if let Err(why) = asking.tick(self.now, |event| events.push_back(event)) {
                    broken.push((*id, why));
                }
                self.dirty.insert(*id);
            }
        }
        for (id, why) in broken {
            self.end(id, &Ended::Broken(why));
        }
    }

    fn flush(&mut self) {
        for id in mem::take(&mut self.dirty) {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            if connection.wire.has_failed() {
                continue;
            }
            if let Err(why) = connection.flush(&self.rail, self.now) {
                self.end(id, &why);
            }
        }
    }

    /// Begins to end a connection: no request goes there any more, and its queue pair goes into error.
    fn end(&mut self, id: ConnectionId, why: &Ended) {
        self.by_peer.retain(|_, other| *other != id);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.wire.has_failed() {
            return;
        }
        match why {
            Ended::Closed | Ended::Work(WorkFault::Flushed) => {
                tracing::debug!(connection = id.0, "RDMA connection ends: {why}");
            }
            _ => tracing::warn!(connection = id.0, "RDMA connection ends: {why}"),
        }
        connection.wire.fail(self.now);
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
        if self.broken {
            return false;
        }
        let armed = self.rail.channel.take_events().and_then(|told| {
            if self.armed && told == 0 {
                return Ok(false);
            }
            self.rail.queue.arm().map(|()| true)
        });
        match armed {
            Ok(false) => return false,
            Ok(true) => self.armed = true,
            Err(error) => self.give_up(&error),
        }
        // What completed before it was armed makes no event.
        self.turn()
    }

    fn has_taken_enough(&self) -> bool {
        self.taken >= COMPLETIONS_A_TURN
    }
}

/// Destroys a connection's queue pair, and ends what was under way. Where the device refuses, it stays as it is, to be
/// tried again: the peer may still write into its leases.
fn destroy(
    id: ConnectionId,
    connection: Connection,
    now: Time,
    tell: impl FnMut(TransportEvent),
) -> Option<Connection> {
    let (wire, side) = connection.take_apart();
    match wire.destroy(now) {
        Ok(destroyed) => {
            Connection::end(side, destroyed, tell);
            None
        }
        Err(left) => {
            let (wire, error) = *left;
            tracing::warn!(connection = id.0, "its buffers cannot be used: {error}");
            Some(Connection::new(wire, side))
        }
    }
}

impl Drop for RdmaTransport {
    fn drop(&mut self) {
        for (id, connection) in mem::take(&mut self.connections) {
            if let Some(left) = destroy(id, connection, self.now, drop) {
                // Nobody is left to try again. What its peer may write into stays mapped, and nobody else's.
                let (_, side) = left.take_apart();
                mem::forget(side);
            }
        }
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
                let side = self.connections.get_mut(&id).map(|found| &mut found.side);
                let left = match side {
                    Some(Side::Serving(serving)) => serving.answer(handle, status, payload),
                    _ => Err(payload),
                };
                match left {
                    Ok(()) => _ = self.dirty.insert(id),
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
        let id = self.by_peer.get(&to).copied();
        let connection = id.and_then(|id| self.connections.get_mut(&id));
        let Some((id, Side::Asking(asking))) = id.zip(connection.map(|found| &mut found.side))
        else {
            self.events
                .extend(unreachable(op, TransportError::Unreachable));
            return Ok(());
        };
        asking.ask(op)?;
        self.dirty.insert(id);
        Ok(())
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
                self.dirty.insert(*id);
            }
        }
    }

    fn wake_at(&self) -> Time {
        let blind = !self.armed && !self.broken;
        if self.more || blind || !self.events.is_empty() || !self.dirty.is_empty() {
            return self.now;
        }
        let times = self.connections.values().map(Connection::wake_at);
        times.min().unwrap_or(Time::NEVER)
    }
}
