//! Connections that peers ask this core on.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::limits::{CHUNK_BYTES, PAYLOAD_PARTS_MAX, PEER_REQUEST_BYTES_MIN};
use forebay_engine::ports::{
    Class, FetchStatus, Payload, PeerAsk, PeerCore, PeerFailure, PeerId, RequestHandle,
    TransportEvent,
};
use forebay_engine::wire::WireError;
use forebay_engine::wire::header::{Answer, Ask, CHECKSUMS_MAX, REQUEST_BYTES, Request};
use slab::Slab;

use crate::limits::READ_BUDGET_BYTES;
use crate::links::{LinkRecord, LinkState};
use crate::outbox::{Frame, Outbox, Owner};
use crate::socket::{Buffer, Got, Socket, Which};
use crate::transport::Io;

/// A peer's request that this core has not answered.
#[derive(Debug)]
struct Open {
    number: u64,
    connection: usize,
    tag: u64,
    class: Class,
    cost_bytes: u32,
}

#[derive(Debug)]
struct Guest {
    from: PeerId,
    socket: Socket,
    buffer: Buffer,
    outbox: Outbox,
    /// Credit in use: requests that came and whose answers have not left.
    lent_bytes: u64,
    record: Arc<LinkRecord>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Serving {
    guests: Slab<Guest>,
    open: Slab<Open>,
    numbers: u64,
    credit_bytes: u32,
}

/// Why a peer's connection is closed.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it breaks the protocol: {0}")]
    Protocol(#[from] WireError),
    #[error("it breaks the protocol: it asks for more than it was granted")]
    Credit,
}

/// Slots of a handle: the low bits say where, the others which of those that were there.
const HANDLE_SLOT_BITS: u32 = 24;
/// What the others can hold, but for the highest bit, which tells transports of one node apart. It begins anew after days at a million
/// requests a second.
const HANDLE_NUMBERS: u64 = (1 << (63 - HANDLE_SLOT_BITS)) - 1;

impl Serving {
    pub fn new(credit_bytes: u32) -> Self {
        Self {
            guests: Slab::new(),
            open: Slab::new(),
            numbers: 0,
            credit_bytes,
        }
    }

    /// Tells whoever looks that this core has no connections any more.
    pub fn close(&self) {
        for (_, guest) in &self.guests {
            guest.record.set(LinkState::Down, None);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    pub fn len(&self) -> usize {
        self.guests.len()
    }

    pub fn accept(
        &mut self,
        io: &mut Io,
        from: PeerCore,
        stream: TcpStream,
        record: Arc<LinkRecord>,
    ) -> io::Result<()> {
        let entry = self.guests.vacant_entry();
        let which = Which::Serving(entry.key());
        let socket = Socket::new(stream, &io.epoll, which)?;
        record.set(LinkState::Up, None);
        entry.insert(Guest {
            from: from.peer,
            socket,
            buffer: Buffer::default(),
            outbox: Outbox::default(),
            lent_bytes: 0,
            record,
        });
        Ok(())
    }

    pub fn socket(&mut self, at: usize) -> Option<&mut Socket> {
        self.guests.get_mut(at).map(|guest| &mut guest.socket)
    }

    /// Takes what a peer sent. True when there is more.
    pub fn read(&mut self, io: &mut Io, at: usize) -> bool {
        let mut read_bytes = 0;
        while read_bytes < READ_BUDGET_BYTES {
            let Some(guest) = self.guests.get_mut(at) else {
                return false;
            };
            guest.buffer.make_room(&mut io.spare);
            let got = guest.socket.receive(None, &mut guest.buffer);
            let parsed = got.map_err(Lost::from).and_then(|got| {
                self.parse(io, at)?;
                Ok(got)
            });
            match parsed {
                Err(lost) => {
                    self.lose(io, at, &lost);
                    return false;
                }
                Ok(Got::All(bytes)) => {
                    io.read_bytes += bytes;
                    self.received(at, bytes);
                    if let Some(guest) = self.guests.get_mut(at) {
                        guest.buffer.rest(&mut io.spare);
                    }
                    return false;
                }
                Ok(Got::More(bytes)) => {
                    self.received(at, bytes);
                    read_bytes += bytes.max(1);
                    io.read_bytes += bytes;
                }
            }
        }
        true
    }

    fn received(&self, at: usize, bytes: usize) {
        if let Some(guest) = self.guests.get(at) {
            guest.record.add_received(bytes);
        }
    }

    fn parse(&mut self, io: &mut Io, at: usize) -> Result<(), Lost> {
        while let Some(guest) = self.guests.get_mut(at) {
            let Some((head, rest)) = guest.buffer.bytes().split_first_chunk::<REQUEST_BYTES>()
            else {
                break;
            };
            let request = Request::decode(head)?;
            let (class, asked_bytes, ask, body_bytes) = match request.ask {
                Ask::Cancel => {
                    guest.buffer.consume(REQUEST_BYTES);
                    self.cancel(io, at, request.tag);
                    continue;
                }
                Ask::Fetch(fetch) => (fetch.class, fetch.len_bytes, PeerAsk::Fetch(fetch), 0),
                Ask::Call {
                    class,
                    body_bytes,
                    room_bytes,
                } => {
                    let Some(body) = rest.get(..body_bytes as usize) else {
                        break;
                    };
                    let body = body.into();
                    let ask = PeerAsk::Call { body, room_bytes };
                    (class, room_bytes, ask, body_bytes as usize)
                }
            };
            guest.buffer.consume(REQUEST_BYTES + body_bytes);
            let cost_bytes = cost_bytes(asked_bytes);
            guest.lent_bytes += u64::from(cost_bytes);
            if guest.lent_bytes > u64::from(self.credit_bytes) {
                return Err(Lost::Credit);
            }
            let peer = guest.from;
            let number = self.next_number();
            let slot = self.open.insert(Open {
                number,
                connection: at,
                tag: request.tag,
                class,
                cost_bytes,
            });
            io.events.push_back(TransportEvent::Request {
                handle: handle_of(number, slot),
                peer,
                ask,
                deadline: io.now + Duration::from_micros(request.remaining_us.into()),
            });
        }
        Ok(())
    }

    fn next_number(&mut self) -> u64 {
        self.numbers = (self.numbers + 1) & HANDLE_NUMBERS;
        self.numbers
    }

    /// The asker gave a request up: it gets a short answer now, ahead of all others, and the core's answer goes nowhere,
    /// also when it waits here already.
    fn cancel(&mut self, io: &mut Io, at: usize, tag: u64) {
        let found = self
            .open
            .iter()
            .find(|(_, open)| open.connection == at && open.tag == tag);
        let cost_bytes = match found {
            Some((slot, _)) => {
                let open = self.open.remove(slot);
                let handle = handle_of(open.number, slot);
                io.events.push_back(TransportEvent::GivenUp { handle });
                open.cost_bytes
            }
            None => {
                let guest = self.guests.get_mut(at);
                let Some(frame) = guest.and_then(|guest| guest.outbox.take_answer(tag)) else {
                    return;
                };
                let Owner::Answer {
                    handle, cost_bytes, ..
                } = frame.owner
                else {
                    return;
                };
                let payload = frame.payload;
                io.events
                    .push_back(TransportEvent::Answered { handle, payload });
                cost_bytes
            }
        };
        let given_up = Open {
            number: 0,
            connection: at,
            tag,
            class: Class::Demand,
            cost_bytes,
        };
        let status = FetchStatus::Failed(PeerFailure::Deadline);
        self.push(io, &given_up, Owner::GivenUp(cost_bytes), status, None);
    }

    /// Answers a request; one that nobody waits for any more ends at once.
    pub fn answer(
        &mut self,
        io: &mut Io,
        handle: RequestHandle,
        status: FetchStatus,
        payload: Option<Payload>,
    ) {
        let (number, slot) = parts_of(handle);
        if self.open.get(slot).is_none_or(|open| open.number != number) {
            io.events
                .push_back(TransportEvent::Answered { handle, payload });
            return;
        }
        let open = self.open.remove(slot);
        let owner = Owner::Answer {
            handle,
            tag: open.tag,
            cost_bytes: open.cost_bytes,
        };
        self.push(io, &open, owner, status, payload);
    }

    fn push(
        &mut self,
        io: &mut Io,
        open: &Open,
        owner: Owner,
        status: FetchStatus,
        payload: Option<Payload>,
    ) {
        let Some(guest) = self.guests.get_mut(open.connection) else {
            return;
        };
        let (status, payload, unsent) = sendable(status, payload);
        let owner = match (owner, unsent) {
            (
                Owner::Answer {
                    handle, cost_bytes, ..
                },
                Some(unsent),
            ) => {
                let payload = Some(unsent);
                io.events
                    .push_back(TransportEvent::Answered { handle, payload });
                Owner::GivenUp(cost_bytes)
            }
            (owner, _) => owner,
        };
        let mut head = guest.outbox.head();
        let answer = Answer {
            tag: open.tag,
            status,
            len_bytes: payload.as_ref().map_or(0, Payload::len_bytes) as u32,
            checksums: payload
                .as_ref()
                .map_or(0, |payload| payload.checksums.len()) as u16,
        };
        head.extend_from_slice(&answer.encode());
        for checksum in payload.iter().flat_map(|payload| &payload.checksums) {
            head.extend_from_slice(&checksum.to_le_bytes());
        }
        let frame = Frame {
            owner,
            head,
            payload,
        };
        guest.outbox.push(open.class, frame);
        io.soil(&mut guest.socket, Which::Serving(open.connection));
    }

    /// Writes what waits for a peer.
    pub fn flush(&mut self, io: &mut Io, at: usize) {
        let Some(guest) = self.guests.get_mut(at) else {
            return;
        };
        let (events, lent_bytes) = (&mut io.events, &mut guest.lent_bytes);
        let written = guest.outbox.write(&mut guest.socket, |owner, payload| {
            if let Owner::Answer { cost_bytes, .. } | Owner::GivenUp(cost_bytes) = owner {
                *lent_bytes -= u64::from(cost_bytes);
            }
            if let Owner::Answer { handle, .. } = owner {
                events.push_back(TransportEvent::Answered { handle, payload });
            }
        });
        match written {
            Ok(bytes) => guest.record.add_sent(bytes),
            Err(error) => self.lose(io, at, &error.into()),
        }
    }

    /// Closes a connection. Answers on their way end; those that are still to come will find nobody.
    fn lose(&mut self, io: &mut Io, at: usize, why: &Lost) {
        let Some(mut guest) = self.guests.try_remove(at) else {
            return;
        };
        let ended = matches!(why, Lost::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof);
        let error = (!ended).then(|| why.to_string());
        if matches!(why, Lost::Protocol(_) | Lost::Credit) {
            tracing::warn!(peer = guest.from.0, "a peer's connection is closed: {why}");
        }
        guest.record.set(LinkState::Down, error);
        self.open.retain(|slot, open| {
            if open.connection != at {
                return true;
            }
            let handle = handle_of(open.number, slot);
            io.events.push_back(TransportEvent::GivenUp { handle });
            false
        });
        for frame in guest.outbox.take_all() {
            if let Owner::Answer { handle, .. } = frame.owner {
                let payload = frame.payload;
                io.events
                    .push_back(TransportEvent::Answered { handle, payload });
            }
        }
    }
}

fn handle_of(number: u64, slot: usize) -> RequestHandle {
    RequestHandle(number << HANDLE_SLOT_BITS | slot as u64)
}

/// Number and slot.
fn parts_of(handle: RequestHandle) -> (u64, usize) {
    let slot = handle.0 & ((1 << HANDLE_SLOT_BITS) - 1);
    (handle.0 >> HANDLE_SLOT_BITS, slot as usize)
}

/// What a request counts for of its connection's credit.
pub(crate) fn cost_bytes(asked_bytes: u32) -> u32 {
    asked_bytes.max(PEER_REQUEST_BYTES_MIN as u32)
}

/// What can be sent of an answer: bytes only with the status that says so, and within the protocol's bounds.
/// Last, the payload that is not sent.
fn sendable(
    status: FetchStatus,
    payload: Option<Payload>,
) -> (FetchStatus, Option<Payload>, Option<Payload>) {
    if status != FetchStatus::Bytes {
        return (status, None, payload);
    }
    let fits = payload.as_ref().is_none_or(|payload| {
        payload.len_bytes() <= CHUNK_BYTES
            && payload.checksums.len() <= CHECKSUMS_MAX
            && payload.parts.len() <= PAYLOAD_PARTS_MAX
    });
    match fits {
        true => (status, payload, None),
        false => (FetchStatus::Failed(PeerFailure::Invalid), None, payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_give_back_their_parts_also_when_numbers_begin_anew() {
        let last = HANDLE_NUMBERS;
        for number in [1, 77, last - 1, last, (last + 1) & HANDLE_NUMBERS] {
            for slot in [0, 5, (1 << HANDLE_SLOT_BITS) - 1] {
                let handle = handle_of(number, slot);
                assert_eq!(parts_of(handle), (number, slot));
                assert_eq!(handle.0 >> 63, 0, "the highest bit is not ours");
            }
        }
        let mut serving = Serving::new(1 << 20);
        serving.numbers = last;
        assert_eq!(serving.next_number(), 0);
        assert_eq!(serving.next_number(), 1);
    }
}
