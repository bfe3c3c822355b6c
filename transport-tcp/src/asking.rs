//! Connections that this core asks on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::Lease;
use forebay_engine::ports::{
    Class, FetchStatus, FetchTag, Full, PeerCore, Time, TransportError, TransportEvent, TransportOp,
};
use forebay_engine::wire::header::{ANSWER_BYTES, Answer, Ask, Request};
use slab::Slab;

use crate::dial::{self, DialError};
use crate::limits::{GIVEN_UP_MS, IDLE_S, READ_BUDGET_BYTES, SWEEP_MS};
use crate::link::{Asked, Body, Link, Lost, NewAsk, State, Up, fits, pause};
use crate::links::LinkState;
use crate::outbox::{Frame, Owner};
use crate::serving::cost_bytes;
use crate::shared::{Dialled, Seat, Shared};
use crate::socket::{Buffer, Got, Socket, Which};
use crate::transport::Io;

/// All of them.
pub(crate) struct Asking {
    shared: Arc<Shared>,
    seat: Arc<Seat>,
    core: u16,
    links: Vec<Link>,
    by_peer: BTreeMap<PeerCore, usize>,
    asked: Slab<Asked>,
    tags: u64,
    deadlines: BTreeSet<(Time, usize)>,
    /// Links that wait for the end of a pause with something to ask.
    redials: BTreeSet<(Time, usize)>,
    sweep_at: Time,
    /// Connections that are there.
    up: usize,
}

/// Slots of a tag: the low bits say where, the others which of those that were there.
const TAG_SLOT_BITS: u32 = 24;

impl Asking {
    pub fn new(shared: Arc<Shared>, seat: Arc<Seat>, core: u16) -> Self {
        Self {
            shared,
            seat,
            core,
            links: Vec::new(),
            by_peer: BTreeMap::new(),
            asked: Slab::new(),
            tags: 0,
            deadlines: BTreeSet::new(),
            redials: BTreeSet::new(),
            sweep_at: Time::NEVER,
            up: 0,
        }
    }

    /// Whether no connection is there.
    pub fn is_empty(&self) -> bool {
        self.up == 0
    }

    pub fn socket(&mut self, at: usize) -> Option<&mut Socket> {
        match &mut self.links.get_mut(at)?.state {
            State::Up(up) => Some(&mut up.socket),
            _ => None,
        }
    }

    /// Starts a fetch or a call, or gives it back when the credit is used up.
    // By value: boxing would allocate for each operation.
    #[allow(clippy::result_large_err)]
    pub fn submit(&mut self, io: &mut Io, op: TransportOp) -> Result<(), Full<TransportOp>> {
        let (to, room_bytes) = match &op {
            TransportOp::Fetch { to, lease, .. } | TransportOp::Call { to, lease, .. } => {
                (*to, lease.len() as u32)
            }
            TransportOp::Answer { .. } => return Err(Full(op)),
        };
        let at = self.link(to);
        let link = &mut self.links[at];
        let cost_bytes = cost_bytes(room_bytes);
        if link.used_bytes + u64::from(cost_bytes) > link.credit_bytes() {
            return Err(Full(op));
        }
        if let State::Down {
            until,
            unreachable: true,
        } = link.state
            && io.now < until
        {
            refuse(io, op, TransportError::Unreachable);
            return Ok(());
        }
        self.start(io, at, op, cost_bytes);
        self.dial_if_needed(io, at);
        Ok(())
    }

    fn link(&mut self, to: PeerCore) -> usize {
        if let Some(at) = self.by_peer.get(&to) {
            return *at;
        }
        let at = self.links.len();
        let record = self.shared.record((to.peer, self.core, to.core, true));
        self.links.push(Link::new(to, record));
        self.by_peer.insert(to, at);
        at
    }

    /// Puts a request into its link's outbox.
    fn start(&mut self, io: &mut Io, at: usize, op: TransportOp, cost_bytes: u32) {
        let slot = self.asked.vacant_key();
        self.tags += 1;
        let tag = self.tags << TAG_SLOT_BITS | slot as u64;
        let new = match NewAsk::of(op) {
            Ok(new) => new,
            Err(Some((name, lease))) => return refuse_invalid(io, name, lease),
            Err(None) => return,
        };
        let remaining_us = new.deadline.since(io.now).as_micros();
        let request = Request {
            tag,
            remaining_us: u32::try_from(remaining_us).unwrap_or(u32::MAX),
            ask: new.ask,
        };
        let link = &mut self.links[at];
        let mut head = link.outbox.head();
        head.extend_from_slice(&request.encode());
        head.extend_from_slice(new.body.as_deref().unwrap_or_default());
        let owner = Owner::Request(tag);
        let payload = None;
        link.outbox.push(
            new.class,
            Frame {
                owner,
                head,
                payload,
            },
        );
        link.used_bytes += u64::from(cost_bytes);
        self.deadlines.insert((new.deadline, slot));
        self.asked.insert(Asked {
            name: new.name,
            tag,
            link: at,
            len_bytes: new.lease.len() as u32,
            lease: Some(new.lease),
            is_fetch: new.is_fetch,
            cost_bytes,
            deadline: new.deadline,
        });
        self.soil(io, at);
    }

    fn soil(&mut self, io: &mut Io, at: usize) {
        if let Some(socket) = self.socket(at) {
            io.soil(socket, Which::Asking(at));
        }
    }

    /// Makes a connection, now or at the end of the pause.
    fn dial_if_needed(&mut self, io: &mut Io, at: usize) {
        let link = &mut self.links[at];
        let State::Down { until, .. } = link.state else {
            return;
        };
        if link.outbox.is_empty() {
            return;
        }
        if io.now < until {
            self.redials.insert((until, at));
            return;
        }
        link.state = State::Dialling;
        link.record.set(LinkState::Connecting, None);
        let dial = dial::for_core(self.shared.clone(), self.seat.clone(), self.core, link.to);
        self.shared.runtime.spawn(dial);
    }

    /// A connection is there, or cannot be had.
    pub fn dialled(&mut self, io: &mut Io, to: PeerCore, result: Result<Dialled, DialError>) {
        let Some(at) = self.by_peer.get(&to).copied() else {
            return;
        };
        let connected = result
            .map_err(|error| error.to_string())
            .and_then(|dialled| {
                let which = Which::Asking(at);
                let socket = Socket::new(dialled.stream, &io.epoll, which)
                    .map_err(|error| error.to_string())?;
                Ok((socket, dialled.credit_bytes))
            });
        match connected {
            Ok((socket, credit_bytes)) => {
                self.up += 1;
                let link = &mut self.links[at];
                link.record.set(LinkState::Up, None);
                link.state = State::Up(Box::new(Up {
                    socket,
                    buffer: Buffer::default(),
                    body: None,
                    credit_bytes: credit_bytes.into(),
                    answered: false,
                    used_at: io.now,
                }));
                self.soil(io, at);
                self.sweep_at = self.sweep_at.min(io.now + Duration::from_secs(IDLE_S));
            }
            Err(error) => self.down(io, at, TransportError::Unreachable, true, Some(error)),
        }
    }

    /// Ends all requests of a link, and pauses it.
    fn down(
        &mut self,
        io: &mut Io,
        at: usize,
        error: TransportError,
        unreachable: bool,
        why: Option<String>,
    ) {
        let link = &mut self.links[at];
        self.up -= usize::from(matches!(link.state, State::Up(_)));
        let answered = matches!(&link.state, State::Up(up) if up.answered);
        if answered {
            link.failures = 0;
        }
        let mut until = io.now;
        if !answered || error == TransportError::Protocol {
            link.failures = link.failures.saturating_add(1);
            until = io.now + pause(link.failures, io.now, at);
        }
        link.state = State::Down { until, unreachable };
        link.outbox.take_all();
        link.used_bytes = 0;
        link.given_up = None;
        link.record.set(LinkState::Down, why);
        let slots: Vec<usize> = self
            .asked
            .iter()
            .filter(|(_, asked)| asked.link == at)
            .map(|(slot, _)| slot)
            .collect();
        for slot in slots {
            let asked = self.asked.remove(slot);
            self.deadlines.remove(&(asked.deadline, slot));
            if let Some(lease) = asked.lease {
                io.events
                    .push_back(ended(asked.name, lease, Err(error), 0, Vec::new()));
            }
        }
    }

    fn lose(&mut self, io: &mut Io, at: usize, lost: &Lost) {
        let error = match lost {
            Lost::Protocol(_) => TransportError::Protocol,
            _ => TransportError::Unreachable,
        };
        if error == TransportError::Protocol {
            let peer = self.links[at].to.peer.0;
            tracing::warn!(peer, "a connection to a peer is closed: {lost}");
        }
        let why = match lost {
            Lost::Idle => None,
            lost => Some(lost.to_string()),
        };
        self.down(io, at, error, false, why);
    }

    /// Writes what waits for a peer.
    pub fn flush(&mut self, io: &mut Io, at: usize) {
        let Some(link) = self.links.get_mut(at) else {
            return;
        };
        let State::Up(up) = &mut link.state else {
            return;
        };
        match link.outbox.write(&mut up.socket, |_, _| {}) {
            Ok(bytes) => {
                link.record.add_sent(bytes);
                up.used_at = io.now;
            }
            Err(error) => self.lose(io, at, &error.into()),
        }
    }

    /// Takes what a peer sent. True when there is more.
    pub fn read(&mut self, io: &mut Io, at: usize) -> bool {
        let mut read_bytes = 0;
        while read_bytes < READ_BUDGET_BYTES {
            let got = self.receive(io, at).map_err(Lost::from).and_then(|got| {
                self.parse(io, at)?;
                Ok(got)
            });
            match got {
                Err(lost) => {
                    if self.socket(at).is_some() {
                        self.lose(io, at, &lost);
                    }
                    return false;
                }
                Ok(Got::All(bytes)) => {
                    io.read_bytes += bytes;
                    if let State::Up(up) = &mut self.links[at].state {
                        up.buffer.rest(&mut io.spare);
                    }
                    return false;
                }
                Ok(Got::More(bytes)) => {
                    read_bytes += bytes.max(1);
                    io.read_bytes += bytes;
                }
            }
        }
        true
    }

    /// One read: the bytes of an answer that has begun go straight into its lease.
    fn receive(&mut self, io: &mut Io, at: usize) -> io::Result<Got> {
        let link = &mut self.links[at];
        let State::Up(up) = &mut link.state else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        up.buffer.make_room(&mut io.spare);
        let straight = match &mut up.body {
            Some(body) if up.buffer.bytes().is_empty() => {
                let lease = self
                    .asked
                    .get_mut(body.slot)
                    .and_then(|it| it.lease.as_mut());
                lease.map(|lease| (&mut lease.bytes_mut()[body.got_bytes..body.len_bytes], body))
            }
            _ => None,
        };
        let got = match straight {
            Some((first, body)) => {
                let room = first.len();
                let got = up.socket.receive(Some(first), &mut up.buffer)?;
                let (Got::All(bytes) | Got::More(bytes)) = got;
                body.got_bytes += bytes.min(room);
                got
            }
            None => up.socket.receive(None, &mut up.buffer)?,
        };
        let (Got::All(bytes) | Got::More(bytes)) = got;
        link.record.add_received(bytes);
        Ok(got)
    }

    fn parse(&mut self, io: &mut Io, at: usize) -> Result<(), Lost> {
        loop {
            let State::Up(up) = &mut self.links[at].state else {
                return Ok(());
            };
            let Some(body) = &mut up.body else {
                match self.begin(at)? {
                    true => continue,
                    false => return Ok(()),
                }
            };
            let bytes = up.buffer.bytes();
            let bytes = &bytes[..bytes.len().min(body.len_bytes - body.got_bytes)];
            let lease = self
                .asked
                .get_mut(body.slot)
                .and_then(|it| it.lease.as_mut());
            if let Some(lease) = lease {
                let end = body.got_bytes + bytes.len();
                lease.bytes_mut()[body.got_bytes..end].copy_from_slice(bytes);
            }
            let taken = bytes.len();
            body.got_bytes += taken;
            up.buffer.consume(taken);
            if body.got_bytes < body.len_bytes {
                return Ok(());
            }
            if let Some(body) = up.body.take() {
                up.answered = true;
                up.used_at = io.now;
                self.complete(io, at, body);
            }
        }
    }

    /// Reads the header of the next answer. False when it is not all there.
    fn begin(&mut self, at: usize) -> Result<bool, Lost> {
        let State::Up(up) = &mut self.links[at].state else {
            return Ok(false);
        };
        let Some((head, rest)) = up.buffer.bytes().split_first_chunk::<ANSWER_BYTES>() else {
            return Ok(false);
        };
        let answer = Answer::decode(head).map_err(|_| Lost::Protocol("a header is garbled"))?;
        let checksums_bytes = 4 * usize::from(answer.checksums);
        let Some(checksums) = rest.get(..checksums_bytes) else {
            return Ok(false);
        };
        let slot = (answer.tag & ((1 << TAG_SLOT_BITS) - 1)) as usize;
        let asked = self
            .asked
            .get(slot)
            .filter(|asked| asked.tag == answer.tag && asked.link == at)
            .ok_or(Lost::Protocol("it answers what was not asked"))?;
        if answer.status == FetchStatus::Bytes && !fits(asked, &answer) {
            return Err(Lost::Protocol(
                "an answer has another length than was asked for",
            ));
        }
        let (words, _) = checksums.as_chunks::<4>();
        let checksums = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        up.body = Some(Body {
            slot,
            status: answer.status,
            len_bytes: answer.len_bytes as usize,
            got_bytes: 0,
            checksums,
        });
        up.buffer.consume(ANSWER_BYTES + checksums_bytes);
        Ok(true)
    }

    fn complete(&mut self, io: &mut Io, at: usize, body: Body) {
        let asked = self.asked.remove(body.slot);
        let link = &mut self.links[at];
        link.used_bytes -= u64::from(asked.cost_bytes);
        link.failures = 0;
        match asked.lease {
            Some(lease) => {
                self.deadlines.remove(&(asked.deadline, body.slot));
                let len_bytes = body.len_bytes as u32;
                let result = Ok(body.status);
                io.events
                    .push_back(ended(asked.name, lease, result, len_bytes, body.checksums));
            }
            None => {
                link.given_up = link
                    .given_up
                    .map(|(_, count)| (io.now, count - 1))
                    .filter(|(_, count)| *count > 0);
            }
        }
    }

    pub fn cancel(&mut self, io: &mut Io, name: FetchTag) {
        // Cancelling is rare: no table by name is kept for it.
        let found = self.asked.iter().find(|(_, asked)| asked.name == name);
        if let Some((slot, _)) = found {
            self.give_up(io, slot, TransportError::Cancelled);
        }
    }

    /// Ends a request before its answer came. What has been sent keeps its credit until the answer to it came too.
    fn give_up(&mut self, io: &mut Io, slot: usize, error: TransportError) {
        let Some(asked) = self.asked.get_mut(slot) else {
            return;
        };
        let Some(lease) = asked.lease.take() else {
            return;
        };
        self.deadlines.remove(&(asked.deadline, slot));
        io.events
            .push_back(ended(asked.name, lease, Err(error), 0, Vec::new()));
        let (at, tag) = (asked.link, asked.tag);
        let link = &mut self.links[at];
        if link.outbox.take_request(tag).is_some() {
            link.used_bytes -= u64::from(asked.cost_bytes);
            self.asked.remove(slot);
            return;
        }
        let (since, count) = link.given_up.unwrap_or((io.now, 0));
        link.given_up = Some((since, count + 1));
        self.sweep_at = self
            .sweep_at
            .min(io.now + Duration::from_millis(GIVEN_UP_MS));
        let mut head = link.outbox.head();
        let ask = Ask::Cancel;
        let remaining_us = 0;
        let cancel = Request {
            tag,
            remaining_us,
            ask,
        };
        head.extend_from_slice(&cancel.encode());
        let frame = Frame {
            owner: Owner::Nobody,
            head,
            payload: None,
        };
        link.outbox.push(Class::Demand, frame);
        self.soil(io, at);
    }

    /// Looks at deadlines, pauses and limits.
    pub fn tick(&mut self, io: &mut Io) {
        while let Some((deadline, slot)) = self.deadlines.first().copied()
            && deadline <= io.now
        {
            self.deadlines.pop_first();
            self.give_up(io, slot, TransportError::Timeout);
        }
        while let Some((until, at)) = self.redials.first().copied()
            && until <= io.now
        {
            self.redials.pop_first();
            self.dial_if_needed(io, at);
        }
        if self.sweep_at <= io.now {
            self.sweep(io);
        }
    }

    fn sweep(&mut self, io: &mut Io) {
        let mut next = Time::NEVER;
        for at in 0..self.links.len() {
            let link = &self.links[at];
            let State::Up(state) = &link.state else {
                continue;
            };
            let silent_at = link.given_up.map_or(Time::NEVER, |(since, _)| {
                since + Duration::from_millis(GIVEN_UP_MS)
            });
            let idle_at = state.used_at + Duration::from_secs(IDLE_S);
            if silent_at <= io.now {
                self.lose(io, at, &Lost::Silent);
            } else if link.used_bytes == 0 && idle_at <= io.now {
                self.lose(io, at, &Lost::Idle);
            } else {
                next = next.min(silent_at).min(idle_at);
            }
        }
        self.sweep_at = next.max(io.now + Duration::from_millis(SWEEP_MS));
    }

    /// Tells whoever looks that this core has no connections any more.
    pub fn close(&self) {
        for link in &self.links {
            link.record.set(LinkState::Down, None);
        }
    }

    /// When something must be looked at though no connection says anything.
    pub fn wake_at(&self) -> Time {
        let first = |times: &BTreeSet<(Time, usize)>| times.first().map(|(time, _)| *time);
        let (deadline, redial) = (first(&self.deadlines), first(&self.redials));
        let next = deadline
            .unwrap_or(Time::NEVER)
            .min(redial.unwrap_or(Time::NEVER));
        next.min(self.sweep_at)
    }
}

fn ended(
    tag: FetchTag,
    lease: Lease,
    result: Result<FetchStatus, TransportError>,
    len_bytes: u32,
    checksums: Vec<u32>,
) -> TransportEvent {
    TransportEvent::Fetched {
        tag,
        lease,
        result,
        len_bytes,
        checksums,
    }
}

/// Ends an operation without asking.
fn refuse(io: &mut Io, op: TransportOp, error: TransportError) {
    if let TransportOp::Fetch { tag, lease, .. } | TransportOp::Call { tag, lease, .. } = op {
        io.events
            .push_back(ended(tag, lease, Err(error), 0, Vec::new()));
    }
}

/// No such request can be sent: the engine's own mistake, or a name or token longer than the protocol carries.
fn refuse_invalid(io: &mut Io, tag: FetchTag, lease: Lease) {
    tracing::debug!("a request that the protocol has no form for");
    let error = Err(TransportError::Protocol);
    io.events.push_back(ended(tag, lease, error, 0, Vec::new()));
}
