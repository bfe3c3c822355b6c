//! A simulated network between cores: delays, resets, partitions, credits, garbled answers, and
//! remote writes that land late.
//!
//! It behaves as verbs do: an answer is a remote write into the asker's lease. A fetch that is given
//! up keeps its lease until its connection is flushed, and only then does the lease go back; a write
//! that would land later is dropped with the connection.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::arena::Lease;
use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::{
    Clock, FetchStatus, FetchTag, Full, Payload, PeerAsk, PeerCore, PeerFetch, PeerId,
    RequestHandle, Time, Transport, TransportError, TransportEvent, TransportOp,
};

use super::clock::SimClock;
use super::rng::SimRng;
use super::schedule::{EventKey, Schedule};
use super::trace::Trace;

/// How the network behaves. Chances are per mille of the messages.
#[derive(Clone, Debug)]
pub struct NetProfile {
    /// Time of one message: from, to.
    pub delay: (Duration, Duration),
    /// Fetches that one core may have under way at one peer.
    pub credits: usize,
    /// What a host sends and what it receives, each, bytes a second; none: any amount at once.
    pub link_bytes_per_s: Option<u64>,
    /// Time to flush a connection.
    pub flush: Duration,
    /// What goes wrong.
    pub faults: NetFaults,
    /// A deliberate defect: leases go back at the deadline, before the connection is flushed.
    pub returns_unflushed: bool,
}

impl Default for NetProfile {
    /// Fair weather.
    fn default() -> Self {
        Self {
            delay: (Duration::from_micros(20), Duration::from_micros(500)),
            credits: 16,
            link_bytes_per_s: None,
            flush: Duration::from_micros(200),
            faults: NetFaults::default(),
            returns_unflushed: false,
        }
    }
}

/// What goes wrong, each per mille of the messages.
#[derive(Clone, Debug, Default)]
pub struct NetFaults {
    /// The connection is reset.
    pub reset: u32,
    /// The message is never seen again.
    pub lost: u32,
    /// The answer breaks the protocol.
    pub garbled: u32,
    /// A thousand times the delay.
    pub late: u32,
    /// `Full`, while other fetches are under way.
    pub full: u32,
    /// One bit of an answer's bytes is wrong, and only its checksums tell.
    pub flipped: u32,
}

/// A core of one process of a member: what is for an earlier process reaches none that comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    at: PeerCore,
    life: u64,
}

/// Names a fetch in the whole network.
type FetchKey = (End, FetchTag);

/// What is asked.
#[derive(Clone)]
enum Question {
    Fetch(PeerFetch),
    Call(Box<[u8]>),
}

struct Fetch {
    peer: PeerCore,
    question: Question,
    lease: Lease,
    expires: Time,
    deadline: EventKey,
    /// Why it will end, once its connection is flushed.
    ending: Option<TransportError>,
}

enum Happening {
    Arrives(FetchKey),
    Lands(Landing),
    GivenUp(FetchKey, TransportError),
    /// The connection broke, unless its other end is a host that is off.
    Broken(FetchKey, TransportError),
    Flushed(FetchKey),
}

struct Landing {
    server: End,
    handle: RequestHandle,
    asker: Option<FetchKey>,
    status: FetchStatus,
    payload: Option<Payload>,
}

/// A host's line.
#[derive(Clone, Copy, Default)]
struct Line {
    sent_bytes: u64,
    received_bytes: u64,
    /// What is to be sent, and what is to come, waits until then.
    sends_until: Time,
    receives_until: Time,
}

struct Inbox {
    life: u64,
    events: VecDeque<TransportEvent>,
}

struct Net {
    clock: SimClock,
    rng: SimRng,
    profile: NetProfile,
    trace: Trace,
    lives: u64,
    inboxes: BTreeMap<PeerCore, Inbox>,
    fetches: BTreeMap<FetchKey, Fetch>,
    asked: BTreeMap<(PeerCore, RequestHandle), FetchKey>,
    partitions: BTreeSet<(PeerId, PeerId)>,
    /// Hosts that do not even refuse.
    silent: BTreeSet<PeerId>,
    /// Members that let nobody in and are let in by nobody: of another version, with another secret.
    refused: BTreeSet<PeerId>,
    /// Hosts whose lines are so many times slower, for what they receive.
    slow: BTreeMap<PeerId, u32>,
    lines: BTreeMap<PeerId, Line>,
    /// Whose inboxes got something, where lines have a speed.
    touched: Vec<PeerId>,
    plan: Schedule<Happening>,
    handles: u64,
    unflushed: BTreeSet<FetchKey>,
    stray_writes: u64,
}

/// The network; clones are the same one.
#[derive(Clone)]
pub struct SimNetwork(Rc<RefCell<Net>>);

/// One core's end of the network; clones are the same one.
#[derive(Clone)]
pub struct SimTransport {
    net: Rc<RefCell<Net>>,
    me: End,
}

impl fmt::Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimNetwork").finish_non_exhaustive()
    }
}

impl fmt::Debug for SimTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimTransport")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl SimNetwork {
    /// A network without members.
    pub fn new(profile: NetProfile, clock: SimClock, seed: u64) -> Self {
        Self(Rc::new(RefCell::new(Net {
            clock,
            rng: SimRng::component(seed, "network", 0),
            profile,
            trace: Trace::default(),
            lives: 0,
            inboxes: BTreeMap::new(),
            fetches: BTreeMap::new(),
            asked: BTreeMap::new(),
            partitions: BTreeSet::new(),
            silent: BTreeSet::new(),
            refused: BTreeSet::new(),
            slow: BTreeMap::new(),
            lines: BTreeMap::new(),
            touched: Vec::new(),
            plan: Schedule::default(),
            handles: 0,
            unflushed: BTreeSet::new(),
            stray_writes: 0,
        })))
    }

    /// The network tells `trace` what is asked and answered.
    pub fn traced(self, trace: Trace) -> Self {
        self.0.borrow_mut().trace = trace;
        self
    }

    /// A new core of a member, or one that starts again: what was under way to or from the old one is gone.
    pub fn join(&self, me: PeerCore) -> SimTransport {
        self.leave(me);
        let mut net = self.0.borrow_mut();
        net.silent.remove(&me.peer);
        // What is sent again to a host that is back finds its connection broken.
        net.break_off(me);
        net.lives += 1;
        let life = net.lives;
        let events = VecDeque::new();
        net.inboxes.insert(me, Inbox { life, events });
        SimTransport {
            net: self.0.clone(),
            me: End { at: me, life },
        }
    }

    /// A core is gone with its process. Who waits for it finds its connection broken.
    pub fn leave(&self, gone: PeerCore) {
        let mut net = self.0.borrow_mut();
        let net = &mut *net;
        if net.inboxes.remove(&gone).is_none() {
            return;
        }
        let its: Vec<FetchKey> = net.fetches.keys().copied().collect();
        for key in its.into_iter().filter(|(end, _)| end.at == gone) {
            if let Some(fetch) = net.fetches.remove(&key) {
                net.plan.remove(fetch.deadline);
            }
        }
        net.asked.retain(|(server, _), _| *server != gone);
        net.break_off(gone);
    }

    /// A host is off, or on again: while it is off nothing is heard from it, not even that connections break.
    pub fn set_silent(&self, host: PeerId, silent: bool) {
        let mut net = self.0.borrow_mut();
        match silent {
            true => net.silent.insert(host),
            false => net.silent.remove(&host),
        };
    }

    /// A member refuses all others and is refused by them, from now on or not any more.
    pub fn set_refused(&self, member: PeerId, refused: bool) {
        let mut net = self.0.borrow_mut();
        match refused {
            true => net.refused.insert(member),
            false => net.refused.remove(&member),
        };
    }

    /// What a host receives takes so many times as long.
    pub fn slow_down(&self, host: PeerId, times: u32) {
        self.0.borrow_mut().slow.insert(host, times);
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&self) {
        let mut net = self.0.borrow_mut();
        net.refused.clear();
        net.slow.clear();
        net.profile.faults = NetFaults::default();
        net.partitions.clear();
    }

    /// Bytes of answers that a host sent and received up to now, where lines have a speed.
    pub fn load(&self, host: PeerId) -> (u64, u64) {
        let line = self.0.borrow().lines.get(&host).copied();
        let line = line.unwrap_or_default();
        (line.sent_bytes, line.received_bytes)
    }

    /// Who got something since the last call, where lines have a speed.
    pub(super) fn take_touched(&self) -> Vec<PeerId> {
        std::mem::take(&mut self.0.borrow_mut().touched)
    }

    /// Lets everything happen that is due.
    pub fn advance(&self) {
        self.0.borrow_mut().advance();
    }

    /// Cuts, or mends, all that travels from `from` to `to`.
    pub fn partition(&self, from: PeerId, to: PeerId, cut: bool) {
        let mut net = self.0.borrow_mut();
        if cut {
            net.partitions.insert((from, to))
        } else {
            net.partitions.remove(&(from, to))
        };
    }

    /// When something happens next; none when nothing is under way.
    pub fn next_at(&self) -> Option<Time> {
        self.0.borrow().plan.next_at()
    }

    /// Remote writes that would have landed in a lease after it went back. Always 0, but for a
    /// deliberate defect.
    pub fn stray_writes(&self) -> u64 {
        self.0.borrow().stray_writes
    }
}

impl SimTransport {
    /// Whether a poll will find something.
    pub fn is_ready(&self) -> bool {
        let net = self.net.borrow();
        let inbox = net.inboxes.get(&self.me.at);
        inbox.is_some_and(|inbox| inbox.life == self.me.life && !inbox.events.is_empty())
    }

    /// Leases of this core that the network holds.
    pub fn under_way(&self) -> usize {
        let net = self.net.borrow();
        net.fetches.keys().filter(|key| key.0 == self.me).count()
    }
}

impl Transport for SimTransport {
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        let mut net = self.net.borrow_mut();
        match op {
            TransportOp::Fetch {
                tag,
                to,
                request,
                lease,
                deadline,
            } => {
                if !net.has_credit(self.me, to) {
                    return Err(Full(TransportOp::Fetch {
                        tag,
                        to,
                        request,
                        lease,
                        deadline,
                    }));
                }
                let question = Question::Fetch(request);
                net.ask((self.me, tag), to, question, lease, deadline);
            }
            TransportOp::Call {
                tag,
                to,
                class,
                body,
                lease,
                deadline,
            } => {
                if !net.has_credit(self.me, to) {
                    return Err(Full(TransportOp::Call {
                        tag,
                        to,
                        class,
                        body,
                        lease,
                        deadline,
                    }));
                }
                net.ask((self.me, tag), to, Question::Call(body), lease, deadline);
            }
            TransportOp::Answer {
                handle,
                status,
                payload,
            } => {
                let asker = net.asked.remove(&(self.me.at, handle));
                net.tell(self.me.at, format_args!("answers {} {status:?}", handle.0));
                let landing = Landing {
                    server: self.me,
                    handle,
                    asker,
                    status,
                    payload,
                };
                let len = landing.payload.as_ref().map_or(0, Payload::len_bytes);
                let at = net.landing(self.me.at.peer, asker, len as u64);
                net.plan.push(at, Happening::Lands(landing));
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        let mut net = self.net.borrow_mut();
        net.advance();
        let life = self.me.life;
        let inbox = net.inboxes.get_mut(&self.me.at)?;
        if inbox.life != life {
            return None;
        }
        inbox.events.pop_front()
    }

    fn cancel(&mut self, tag: FetchTag) {
        let mut net = self.net.borrow_mut();
        let key = (self.me, tag);
        if net.fetches.contains_key(&key) {
            let now = net.clock.now();
            net.plan
                .push(now, Happening::GivenUp(key, TransportError::Cancelled));
        }
    }
}

impl Net {
    fn tell(&self, who: PeerCore, what: fmt::Arguments<'_>) {
        let (peer, core) = (who.peer.0, who.core);
        let at = self.clock.now();
        self.trace
            .event(at, format_args!("peer {peer}/{core} {what}"));
    }

    fn tell_question(&self, (from, tag): FetchKey, peer: PeerCore, question: &Question) {
        let (tag, to, core) = (tag.0, peer.peer.0, peer.core);
        match question {
            Question::Fetch(fetch) => {
                let PeerFetch {
                    offset, len_bytes, ..
                } = fetch;
                let how = match (fetch.cached_only, fetch.forwarded) {
                    (true, _) => "cached only",
                    (false, true) => "forwarded",
                    (false, false) => "as owner",
                };
                let text = format_args!(
                    "asks {to}/{core} {how} fetch {tag} {:?} at {offset} len {len_bytes}",
                    fetch.object
                );
                self.tell(from.at, text);
            }
            Question::Call(body) => {
                let len = body.len();
                self.tell(
                    from.at,
                    format_args!("asks {to}/{core} call {tag} of {len}"),
                );
            }
        }
    }

    fn push(&mut self, to: PeerCore, life: Option<u64>, event: TransportEvent) {
        if let Some(inbox) = self.inboxes.get_mut(&to)
            && life.is_none_or(|life| life == inbox.life)
        {
            inbox.events.push_back(event);
            if self.profile.link_bytes_per_s.is_some() {
                self.touched.push(to.peer);
            }
        }
    }

    /// Whoever waits for a core finds its connection broken.
    fn break_off(&mut self, gone: PeerCore) {
        let to_it = |fetch: &Fetch| fetch.peer == gone && fetch.ending.is_none();
        if !self.fetches.values().any(to_it) {
            return;
        }
        let at = self.arrival();
        for (key, _) in self.fetches.iter().filter(|(_, fetch)| to_it(fetch)) {
            let broken = Happening::Broken(*key, TransportError::Unreachable);
            self.plan.push(at, broken);
        }
    }

    fn is_cut(&self, from: PeerId, to: PeerId) -> bool {
        self.partitions.contains(&(from, to))
            || self.silent.contains(&from)
            || self.silent.contains(&to)
    }

    fn has_credit(&mut self, me: End, peer: PeerCore) -> bool {
        let mine = (me, FetchTag(0))..=(me, FetchTag(u64::MAX));
        let mine = self.fetches.range(mine);
        let under_way = mine.filter(|(_, fetch)| fetch.peer == peer).count();
        let busy = under_way > 0 && self.rng.chance(self.profile.faults.full);
        under_way < self.profile.credits && !busy
    }

    fn arrival(&mut self) -> Time {
        let (shortest, longest) = self.profile.delay;
        let nanos = self
            .rng
            .between(shortest.as_nanos() as u64, longest.as_nanos() as u64);
        let late = if self.rng.chance(self.profile.faults.late) {
            1_000
        } else {
            1
        };
        self.clock.now() + Duration::from_nanos(nanos) * late
    }

    /// When an answer is there.
    fn landing(&mut self, from: PeerId, asker: Option<FetchKey>, len_bytes: u64) -> Time {
        let (now, at) = (self.clock.now(), self.arrival());
        let times = asker.and_then(|key| self.slow.get(&key.0.at.peer));
        let delay = at.since(now) * times.copied().unwrap_or(1);
        let (Some(each_s), Some((to, _))) = (self.profile.link_bytes_per_s, asker) else {
            return now + delay;
        };
        // Through the one line, then through the other, which may begin as soon as the first byte is there.
        let took = Duration::from_secs_f64(len_bytes as f64 / each_s as f64);
        let line = self.lines.entry(from).or_default();
        let begins = line.sends_until.max(now);
        line.sends_until = begins + took;
        line.sent_bytes += len_bytes;
        let line = self.lines.entry(to.at.peer).or_default();
        let begins = line.receives_until.max(begins + delay);
        line.receives_until = begins + took;
        line.received_bytes += len_bytes;
        line.receives_until
    }

    fn ask(
        &mut self,
        key: FetchKey,
        peer: PeerCore,
        question: Question,
        lease: Lease,
        deadline: Time,
    ) {
        self.tell_question(key, peer, &question);
        let at = self.arrival();
        let refused = [key.0.at.peer, peer.peer]
            .iter()
            .any(|end| self.refused.contains(end));
        let first = match self.inboxes.contains_key(&peer) && !refused {
            true => Happening::Arrives(key),
            false => Happening::Broken(key, TransportError::Unreachable),
        };
        self.plan.push(at, first);
        let expires = deadline.max(self.clock.now());
        let deadline = self
            .plan
            .push(expires, Happening::GivenUp(key, TransportError::Timeout));
        self.fetches.insert(
            key,
            Fetch {
                peer,
                question,
                lease,
                expires,
                deadline,
                ending: None,
            },
        );
    }

    fn advance(&mut self) {
        let now = self.clock.now();
        while let Some((at, happening)) = self.plan.pop_due(now) {
            match happening {
                Happening::Arrives(key) => self.arrive(key, at),
                Happening::Lands(landing) => self.land(landing, at),
                Happening::GivenUp(key, error) => self.give_up(key, error, at),
                Happening::Broken(key, error) => {
                    let to = self.fetches.get(&key).map(|fetch| fetch.peer.peer);
                    if to.is_some_and(|to| !self.is_cut(key.0.at.peer, to)) {
                        self.give_up(key, error, at);
                    }
                }
                Happening::Flushed(key) => self.flushed(key),
            }
        }
    }

    fn arrive(&mut self, key: FetchKey, at: Time) {
        let Some(fetch) = self.fetches.get(&key) else {
            return;
        };
        let (peer, deadline, question) = (fetch.peer, fetch.expires, fetch.question.clone());
        let room_bytes = fetch.lease.len() as u32;
        if self.rng.chance(self.profile.faults.reset) {
            return self.reset(key.0, peer, at);
        }
        if self.is_cut(key.0.at.peer, peer.peer) || self.rng.chance(self.profile.faults.lost) {
            return;
        }
        self.handles += 1;
        let handle = RequestHandle(self.handles);
        self.asked.insert((peer, handle), key);
        let event = TransportEvent::Request {
            handle,
            peer: key.0.at.peer,
            ask: match question {
                Question::Fetch(request) => PeerAsk::Fetch(request),
                Question::Call(body) => PeerAsk::Call { body, room_bytes },
            },
            deadline,
        };
        self.push(peer, None, event);
    }

    /// An answer arrives: the write into the lease, then the word that it is there.
    fn land(&mut self, landing: Landing, at: Time) {
        let Landing {
            server,
            handle,
            asker,
            status,
            payload,
        } = landing;
        if let Some(key) = asker {
            let cut = self.is_cut(server.at.peer, key.0.at.peer);
            let lost = self.rng.chance(self.profile.faults.lost);
            let garbled = self.rng.chance(self.profile.faults.garbled);
            if !cut && !lost {
                self.write(key, status, payload.as_ref(), garbled, at);
            }
        }
        let event = TransportEvent::Answered { handle, payload };
        self.push(server.at, Some(server.life), event);
    }

    fn write(
        &mut self,
        key: FetchKey,
        status: FetchStatus,
        payload: Option<&Payload>,
        garbled: bool,
        at: Time,
    ) {
        if self.unflushed.contains(&key) && status == FetchStatus::Bytes {
            self.stray_writes += 1;
        }
        let Some(fetch) = self.fetches.get_mut(&key) else {
            return;
        };
        let is_fetch = matches!(fetch.question, Question::Fetch(_));
        let room_bytes = fetch.lease.len();
        let fits = |payload: &&Payload| {
            let (len, pages) = (payload.len_bytes(), room_bytes.div_ceil(PAGE_BYTES));
            match is_fetch {
                true => len == room_bytes && payload.checksums.len() == pages,
                false => len <= room_bytes && payload.checksums.is_empty(),
            }
        };
        let whole = match (status, payload) {
            (FetchStatus::Bytes, payload) => payload.filter(fits).map(Some),
            (_, None) => Some(None),
            (_, Some(_)) => None,
        };
        let Some(payload) = whole.filter(|_| !garbled) else {
            return self.give_up(key, TransportError::Protocol, at);
        };
        let mut len_bytes = 0;
        for part in payload.iter().flat_map(|payload| &payload.parts) {
            fetch.lease.bytes_mut()[len_bytes..len_bytes + part.len()].copy_from_slice(part);
            len_bytes += part.len();
        }
        if is_fetch && len_bytes > 0 && self.rng.chance(self.profile.faults.flipped) {
            let at = self.rng.below(len_bytes as u64) as usize;
            fetch.lease.bytes_mut()[at] ^= 1 << self.rng.below(8);
        }
        if fetch.ending.is_some() {
            return; // Landed while the connection was being flushed; the lease was still lent.
        }
        let checksums = payload.map(|payload| payload.checksums.clone());
        self.end(key, Ok(status), len_bytes, checksums.unwrap_or_default());
    }

    /// A fetch will not be answered any more. Its connection is flushed before the lease goes back,
    /// and unless it was cancelled the other fetches on that connection go down with it.
    fn give_up(&mut self, key: FetchKey, error: TransportError, at: Time) {
        let Some(fetch) = self
            .fetches
            .get_mut(&key)
            .filter(|fetch| fetch.ending.is_none())
        else {
            return;
        };
        let peer = fetch.peer;
        if self.profile.returns_unflushed {
            self.unflushed.insert(key);
            return self.end(key, Err(error), 0, Vec::new());
        }
        fetch.ending = Some(error);
        self.plan
            .push(at + self.profile.flush, Happening::Flushed(key));
        self.tell_given_up(key, peer);
        if error != TransportError::Cancelled {
            self.reset(key.0, peer, at);
        }
    }

    /// Who was asked hears that nobody waits, unless it has answered, or is cut off.
    fn tell_given_up(&mut self, key: FetchKey, peer: PeerCore) {
        if self.is_cut(key.0.at.peer, peer.peer) {
            return;
        }
        let asked = self.asked.iter().find(|(_, asked)| **asked == key);
        if let Some((_, handle)) = asked.map(|(asked, _)| *asked) {
            self.push(peer, None, TransportEvent::GivenUp { handle });
        }
    }

    fn reset(&mut self, from: End, to: PeerCore, at: Time) {
        for (key, fetch) in &mut self.fetches {
            if key.0 == from && fetch.peer == to && fetch.ending.is_none() {
                fetch.ending = Some(TransportError::Unreachable);
                self.plan
                    .push(at + self.profile.flush, Happening::Flushed(*key));
            }
        }
    }

    fn flushed(&mut self, key: FetchKey) {
        if let Some(error) = self.fetches.get(&key).and_then(|fetch| fetch.ending) {
            self.end(key, Err(error), 0, Vec::new());
        }
    }

    fn end(
        &mut self,
        key: FetchKey,
        result: Result<FetchStatus, TransportError>,
        len_bytes: usize,
        checksums: Vec<u32>,
    ) {
        let Some(fetch) = self.fetches.remove(&key) else {
            return;
        };
        self.plan.remove(fetch.deadline);
        self.tell(key.0.at, format_args!("fetch {} ends {result:?}", key.1.0));
        let event = TransportEvent::Fetched {
            tag: key.1,
            lease: fetch.lease,
            result,
            len_bytes: len_bytes as u32,
            checksums,
        };
        self.push(key.0.at, Some(key.0.life), event);
    }
}
