//! How two cores that proved each other over TCP find each other's queue pair, and nobody else does (decision 25).
//!
//! | over | from | what |
//! |---|---|---|
//! | TCP | acceptor | [`Offer`]: a ticket, and where its cores listen by rdma_cm |
//! | rdma_cm | asker | [`Asker::question`]: the ticket, and a proof over it, both cores and the number of its queue pair |
//! | rdma_cm | acceptor | [`Guest::reply`]: what it grants, and a proof over that and both queue pairs; or one byte of a [`Refused`] |
//!
//! Proofs are keyed by the TCP connection on which the ticket was given ([`Session`]), so they hold for it alone. A ticket
//! lets in once, for [`TICKET_LIFE`]. No clock, no randomness, no device in here.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use forebay_engine::limits::PEER_CREDIT_BYTES_MIN;
use forebay_engine::ports::{PeerCore, Time};
use forebay_engine::wire::hello::{Key, PROOF_BYTES, Role};

use crate::asking::Grant;
use crate::limits::{
    OFFER_ADDRESSES_MAX, PRIVATE_BYTES_MAX, RECEIVES, REQUEST_MESSAGES_MAX, TICKET_BYTES,
    TICKET_LIFE_MS, TICKETS_MAX,
};

/// How long a ticket lets in.
pub const TICKET_LIFE: Duration = Duration::from_millis(TICKET_LIFE_MS);
/// Bytes of a question: ticket 16, proof 32.
pub const QUESTION_BYTES: usize = TICKET_BYTES + PROOF_BYTES;
/// Bytes of a reply: credit 4, messages 2, proof 32.
pub const REPLY_BYTES: usize = 4 + 2 + PROOF_BYTES;
/// Bytes of one address in an offer: 16, IPv4 mapped into IPv6, and the port 2.
const ADDRESS_BYTES: usize = 18;

const _: () = assert!(TICKET_BYTES + 1 + OFFER_ADDRESSES_MAX * ADDRESS_BYTES <= u8::MAX as usize);
const _: () = assert!(QUESTION_BYTES <= PRIVATE_BYTES_MAX && REPLY_BYTES <= PRIVATE_BYTES_MAX);

/// Why somebody is not let in, or what came is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// Not in the form of this protocol.
    #[error("not understood")]
    Garbled,
    /// No such ticket is open.
    #[error("the ticket was never given, was used, or is too old: ask for another")]
    Ticket,
    /// The proof does not hold.
    #[error(
        "the proof does not hold: it is not who was given the ticket, or comes over another queue pair"
    )]
    Proof,
    /// Too many tickets are open.
    #[error("too many are being introduced: try again later")]
    Busy,
    /// The core that is asked for has no RDMA, or no room for another connection.
    #[error("its core takes no connection: see `rdma` in its `forebay status` and its log")]
    Core,
}

const REFUSALS: [(u8, Refused); 5] = [
    (1, Refused::Garbled),
    (2, Refused::Ticket),
    (3, Refused::Proof),
    (4, Refused::Busy),
    (5, Refused::Core),
];

impl Refused {
    /// As it travels with a rejection.
    pub fn code(self) -> u8 {
        let found = REFUSALS.iter().find(|(_, refused)| *refused == self);
        found.map_or(0, |(code, _)| *code)
    }

    /// What a rejection says; none when a machine refused, not a program of ours.
    pub fn of(private: &[u8]) -> Option<Refused> {
        let code = private.first()?;
        let found = REFUSALS.iter().find(|(known, _)| known == code);
        found.map(|(_, refused)| *refused)
    }
}

/// What only the two ends of one proven TCP connection know. Printed, it shows nothing.
#[derive(Clone)]
pub struct Session([u8; 32]);

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    /// Of a connection that began with these two whole messages, in a group with this key.
    pub fn new(key: &Key, hello: &[u8], welcome: &[u8]) -> Self {
        // No hello begins so: this is no proof of a connection.
        let hello = [b"forebay introduces\0".as_slice(), hello].concat();
        Self(key.proof(Role::Dialer, &hello, welcome))
    }

    fn hash(&self, role: Role, said: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(match role {
            Role::Dialer => b"rdma asker   ",
            Role::Acceptor => b"rdma acceptor",
        });
        // All parts have fixed lengths for a role.
        for part in said {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// The two cores that are introduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Who asks.
    pub asker: PeerCore,
    /// Who is asked.
    pub acceptor: PeerCore,
}

impl Ends {
    fn encode(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        for (place, end) in bytes.chunks_exact_mut(10).zip([self.asker, self.acceptor]) {
            place[..8].copy_from_slice(&end.peer.0.to_le_bytes());
            place[8..].copy_from_slice(&end.core.to_le_bytes());
        }
        bytes
    }
}

/// Lets in once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub [u8; TICKET_BYTES]);

/// What the acceptor says over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The ticket.
    pub ticket: Ticket,
    /// Where it listens by rdma_cm, one for each rail.
    pub at: Vec<SocketAddr>,
}

impl Offer {
    /// The message. Addresses beyond [`OFFER_ADDRESSES_MAX`] are left out.
    pub fn encode(&self) -> Vec<u8> {
        let at = &self.at[..self.at.len().min(OFFER_ADDRESSES_MAX)];
        let mut bytes = self.ticket.0.to_vec();
        bytes.push(at.len() as u8);
        for address in at {
            let ip = match address.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            bytes.extend(ip.octets());
            bytes.extend(address.port().to_le_bytes());
        }
        bytes
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Refused::Garbled`].
    pub fn decode(bytes: &[u8]) -> Result<Offer, Refused> {
        let (ticket, rest) = bytes.split_first_chunk().ok_or(Refused::Garbled)?;
        let (count, rest) = rest.split_first().ok_or(Refused::Garbled)?;
        let (addresses, left) = rest.as_chunks::<ADDRESS_BYTES>();
        let whole = left.is_empty() && addresses.len() == usize::from(*count);
        if !whole || !(1..=OFFER_ADDRESSES_MAX).contains(&addresses.len()) {
            return Err(Refused::Garbled);
        }
        let at = addresses.iter().map(|address| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&address[..16]);
            let ip = Ipv6Addr::from(ip);
            let port = u16::from_le_bytes([address[16], address[17]]);
            let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
            SocketAddr::new(ip, port)
        });
        Ok(Offer {
            ticket: Ticket(*ticket),
            at: at.collect(),
        })
    }
}

/// Bytes before an offer, as it travels: 0 or the code of a refusal, and the length of the offer.
pub const HEAD_BYTES: usize = 2;

/// What the acceptor says over TCP, in whole.
pub fn answer(offer: &Result<Offer, Refused>) -> Vec<u8> {
    match offer {
        Ok(offer) => {
            let offer = offer.encode();
            [&[0, offer.len() as u8], &*offer].concat()
        }
        Err(refused) => vec![refused.code(), 0],
    }
}

/// How many bytes of an offer follow.
///
/// # Errors
/// That there is none, and why.
pub fn offer_bytes(head: [u8; HEAD_BYTES]) -> Result<usize, Refused> {
    match head {
        [0, len] if len > 0 => Ok(len.into()),
        [0, _] => Err(Refused::Garbled),
        refused => Err(Refused::of(&refused).unwrap_or(Refused::Garbled)),
    }
}

/// What both say after the ticket.
fn asked(ticket: Ticket, ends: Ends, queue_pair: u32) -> [u8; TICKET_BYTES + 20 + 4] {
    let mut bytes = [0; TICKET_BYTES + 20 + 4];
    bytes[..TICKET_BYTES].copy_from_slice(&ticket.0);
    bytes[TICKET_BYTES..TICKET_BYTES + 20].copy_from_slice(&ends.encode());
    bytes[TICKET_BYTES + 20..].copy_from_slice(&queue_pair.to_le_bytes());
    bytes
}

/// What a reply grants, and over which queue pair, as it is proven.
fn granted(queue_pair: u32, grant: Grant) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..4].copy_from_slice(&queue_pair.to_le_bytes());
    bytes[4..8].copy_from_slice(&grant.credit_bytes.to_le_bytes());
    bytes[8..].copy_from_slice(&grant.messages.to_le_bytes());
    bytes
}

/// The first `N` bytes of what came along; the network adds zeros, and nothing else may follow.
fn first<const N: usize>(private: &[u8]) -> Result<[u8; N], Refused> {
    let (bytes, rest) = private.split_first_chunk().ok_or(Refused::Garbled)?;
    match rest.iter().all(|byte| *byte == 0) {
        true => Ok(*bytes),
        false => Err(Refused::Garbled),
    }
}

/// The end that asks: it has been given a ticket.
#[derive(Clone, Debug)]
pub struct Asker {
    session: Session,
    ticket: Ticket,
    ends: Ends,
}

impl Asker {
    /// With a ticket that came over the TCP connection of `session`.
    pub fn new(session: Session, ticket: Ticket, ends: Ends) -> Self {
        Self {
            session,
            ticket,
            ends,
        }
    }

    /// What goes along with the question for a connection to its queue pair.
    pub fn question(&self, queue_pair: u32) -> [u8; QUESTION_BYTES] {
        let asked = asked(self.ticket, self.ends, queue_pair);
        let proof = self.session.hash(Role::Dialer, &[&asked]);
        let mut bytes = [0; QUESTION_BYTES];
        bytes[..TICKET_BYTES].copy_from_slice(&self.ticket.0);
        bytes[TICKET_BYTES..].copy_from_slice(proof.as_bytes());
        bytes
    }

    /// What is granted, if the reply is of who gave the ticket. `queue_pair` is this end's, `peers` is that of the
    /// connection that was accepted.
    ///
    /// # Errors
    /// Why it is not believed: the connection must be given up.
    pub fn check(&self, reply: &[u8], queue_pair: u32, peers: u32) -> Result<Grant, Refused> {
        let reply: [u8; REPLY_BYTES] = first(reply)?;
        let (head, proof) = reply.split_first_chunk::<6>().ok_or(Refused::Garbled)?;
        let proof: [u8; PROOF_BYTES] = proof.try_into().map_err(|_| Refused::Garbled)?;
        let grant = Grant {
            credit_bytes: u32::from_le_bytes([head[0], head[1], head[2], head[3]]),
            messages: u16::from_le_bytes([head[4], head[5]]),
        };
        let asked = asked(self.ticket, self.ends, queue_pair);
        let told = granted(peers, grant);
        // Hashes compare in the same time whatever they are.
        if self.session.hash(Role::Acceptor, &[&asked, &told]) != blake3::Hash::from_bytes(proof) {
            return Err(Refused::Proof);
        }
        // Enough for the largest request, and no more than there are receives for the answers.
        let messages = REQUEST_MESSAGES_MAX as u16 + 1..=RECEIVES;
        if !messages.contains(&grant.messages)
            || (grant.credit_bytes as usize) < PEER_CREDIT_BYTES_MIN
        {
            return Err(Refused::Garbled);
        }
        Ok(grant)
    }
}

#[derive(Debug)]
struct Issued {
    session: Session,
    ends: Ends,
    until: Time,
}

/// The tickets that an acceptor has given and that were not used.
#[derive(Debug, Default)]
pub struct Tickets {
    issued: BTreeMap<Ticket, Issued>,
    /// In the order of their ends; some may be used already.
    by_end: VecDeque<(Time, Ticket)>,
}

impl Tickets {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tickets that are open.
    pub fn open(&self) -> usize {
        self.issued.len()
    }

    /// A ticket for who is at the other end of a proven TCP connection. `random` must be so, and is the ticket.
    ///
    /// # Errors
    /// [`Refused::Busy`] when [`TICKETS_MAX`] are open.
    pub fn issue(
        &mut self,
        session: Session,
        ends: Ends,
        random: [u8; TICKET_BYTES],
        now: Time,
    ) -> Result<Ticket, Refused> {
        self.expire(now);
        let ticket = Ticket(random);
        if self.issued.len() >= TICKETS_MAX || self.issued.contains_key(&ticket) {
            return Err(Refused::Busy);
        }
        let until = now + TICKET_LIFE;
        let issued = Issued {
            session,
            ends,
            until,
        };
        self.issued.insert(ticket, issued);
        self.by_end.push_back((until, ticket));
        Ok(ticket)
    }

    /// Who asks for a connection, by what came along, from the queue pair that the network names. Its ticket is used up;
    /// one with a wrong proof stays, so that a stranger who saw it does not keep its owner out.
    ///
    /// # Errors
    /// Why it is to be rejected, before anything is made for it.
    pub fn take(&mut self, question: &[u8], queue_pair: u32, now: Time) -> Result<Guest, Refused> {
        let question: [u8; QUESTION_BYTES] = first(question)?;
        let (ticket, proof) = question.split_first_chunk().ok_or(Refused::Garbled)?;
        let proof: [u8; PROOF_BYTES] = proof.try_into().map_err(|_| Refused::Garbled)?;
        let ticket = Ticket(*ticket);
        self.expire(now);
        let issued = self.issued.get(&ticket).ok_or(Refused::Ticket)?;
        let asked = asked(ticket, issued.ends, queue_pair);
        if issued.session.hash(Role::Dialer, &[&asked]) != blake3::Hash::from_bytes(proof) {
            return Err(Refused::Proof);
        }
        let issued = self.issued.remove(&ticket).ok_or(Refused::Ticket)?;
        Ok(Guest {
            session: issued.session,
            ends: issued.ends,
            asked,
        })
    }

    fn expire(&mut self, now: Time) {
        while let Some((_, ticket)) = self.by_end.pop_front_if(|(until, _)| *until <= now) {
            // A ticket of the same bytes is not issued while one is here, unless that was used.
            if self
                .issued
                .get(&ticket)
                .is_some_and(|issued| issued.until <= now)
            {
                self.issued.remove(&ticket);
            }
        }
    }
}

/// Who has been let in.
#[derive(Debug)]
pub struct Guest {
    session: Session,
    ends: Ends,
    asked: [u8; TICKET_BYTES + 20 + 4],
}

impl Guest {
    /// Between which cores the connection is.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// What goes along when the connection is accepted with this end's queue pair.
    pub fn reply(&self, queue_pair: u32, grant: Grant) -> [u8; REPLY_BYTES] {
        let told = granted(queue_pair, grant);
        let proof = self.session.hash(Role::Acceptor, &[&self.asked, &told]);
        let mut bytes = [0; REPLY_BYTES];
        bytes[..6].copy_from_slice(&told[4..]);
        bytes[6..].copy_from_slice(proof.as_bytes());
        bytes
    }
}

#[cfg(test)]
#[path = "introduce_tests.rs"]
mod tests;
