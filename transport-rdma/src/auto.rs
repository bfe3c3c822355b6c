//! One way to peers made of two: queue pairs where a link has them, TCP where it has not (yet, or any more).
//!
//! There is no device in here: both ways are [`Transport`]s, so that the simulator and the conformance suite run this code as it is.
//!
//! What a queue pair fails with [`TransportError::Unreachable`] is asked again over TCP with what is left of its time, in the same lease;
//! the engine does not notice. The link then stays on TCP for [`PROBE_PAUSE`] (twice as long each time that it breaks soon again), and is
//! introduced anew when the next request comes. So is asked again what gets no answer while nothing long comes over its link at all.
//! A peer that breaks the protocol is not asked again: the engine goes elsewhere.

mod link;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use forebay_engine::arena::Lease;
use forebay_engine::ports::{
    Class, Clock, FetchStatus, FetchTag, Full, PeerCore, PeerFetch, RequestHandle, Time, Transport,
    TransportError, TransportEvent, TransportOp,
};

pub use link::{GOOD, PROBE_PAUSE_MAX, Path};
use link::{LONG_BYTES, Link, doubt_at};

/// A link that broke stays on TCP for so long.
pub const PROBE_PAUSE: Duration = Duration::from_secs(10);

/// So often requests are looked through for those.
const DOUBT_LOOK: Duration = Duration::from_millis(100);

/// The other end has no RDMA at all: as long as it runs that stays so, most likely.
pub const LACKING_PAUSE: Duration = Duration::from_secs(60);

/// A link that carried nothing for so long is forgotten: members come and go, each with a new number.
pub const LINK_KEPT: Duration = Duration::from_secs(600);

/// Marks the requests that came over queue pairs. Transports leave the highest bit of a handle alone.
const OVER_VERBS: u64 = 1 << 63;

const NOT_TRIED: &str = "not tried yet";
/// Why a link takes TCP at first.
pub const BEING_MADE: &str = "the queue pair is being made";

/// Whether requests to a core can go over a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// They can.
    Ready,
    /// The queue pair is being made.
    Connecting,
    /// They cannot, and why: for people.
    Unavailable(String),
    /// The same, because the other end has no RDMA.
    Lacking(String),
    /// The same: a queue pair was made, but carries nothing.
    Useless(String),
}

/// A transport whose links have to be made first.
pub trait Linked: Transport {
    /// Whether requests to that core can go this way now; begins to make the link if there is none.
    fn prepare(&mut self, to: PeerCore) -> Readiness;

    /// Whether requests to that core can still go this way: of several connections one has broken.
    fn reaches(&self, to: PeerCore) -> bool;
    /// Whether links that take TCP are worth trying at once, since this was last asked: a port came up, say.
    fn take_revival(&mut self) -> bool {
        false
    }
}

/// A request that is with the queue pairs, and what asking it again takes.
#[derive(Debug)]
struct Again {
    to: PeerCore,
    ask: What,
    deadline: Time,
    cancelled: bool,
    /// When it was asked, and of which of the link's times it is.
    asked_at: Time,
    generation: u64,
    /// When it is doubted that an answer comes; then whether that was so.
    doubt_at: Time,
    doubted: bool,
}

#[derive(Debug)]
enum What {
    Fetch(PeerFetch),
    Call(Class, Box<[u8]>),
}

/// Queue pairs and TCP as one.
pub struct Auto<V, T> {
    verbs: V,
    tcp: T,
    clock: Box<dyn Clock>,
    links: BTreeMap<PeerCore, Link>,
    /// When links were last looked through for those to forget.
    swept_at: Time,
    /// When requests are next looked through for those to be doubted.
    doubt_at: Time,
    /// Whose turn it is to be polled first: a busy one must not keep the other from its work.
    tcp_first: bool,
    over_verbs: BTreeMap<FetchTag, Again>,
    /// Failed by a queue pair, not yet taken by TCP.
    waiting: VecDeque<(FetchTag, Again, Lease)>,
    watch: Option<Watch>,
}

/// Told of each link whose way changes.
pub type Watch = Box<dyn FnMut(PeerCore, &Path)>;

impl<V, T> fmt::Debug for Auto<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auto")
            .field("links", &self.links)
            .field("over_verbs", &self.over_verbs.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<V: Linked, T: Transport> Auto<V, T> {
    /// Queue pairs where `verbs` has them, else `tcp`. Both are polled by this one only.
    pub fn new(verbs: V, tcp: T, clock: impl Clock + 'static) -> Self {
        Self {
            verbs,
            tcp,
            swept_at: clock.now(),
            doubt_at: Time::NEVER,
            tcp_first: false,
            clock: Box::new(clock),
            links: BTreeMap::new(),
            over_verbs: BTreeMap::new(),
            waiting: VecDeque::new(),
            watch: None,
        }
    }

    /// Tells `watch` of each link whose way changes.
    pub fn watched(mut self, watch: Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Each link that was used, and which way it takes.
    pub fn paths(&self) -> impl Iterator<Item = (PeerCore, &Path)> {
        self.links.iter().map(|(to, link)| (*to, &link.path))
    }

    /// Whether the next request to a core goes over a queue pair.
    fn by_verbs(&mut self, to: PeerCore) -> bool {
        let now = self.clock.now();
        self.sweep(now);
        if self.verbs.take_revival() {
            for link in self.links.values_mut() {
                (link.not_before, link.failures) = (now, 0);
            }
        }
        let link = self.links.entry(to).or_insert_with(|| Link {
            path: Path::Tcp(NOT_TRIED.into()),
            not_before: now,
            used_at: now,
            failures: 0,
            since: None,
            generation: 0,
            long_at: now,
        });
        link.used_at = now;
        if now < link.not_before {
            return false;
        }
        let path = match self.verbs.prepare(to) {
            Readiness::Ready => Path::Verbs,
            // What kept it on TCP before may do so again.
            Readiness::Connecting => match &link.path {
                Path::Tcp(why) if why != NOT_TRIED => Path::Tcp(why.clone()),
                _ => Path::Tcp(BEING_MADE.into()),
            },
            Readiness::Unavailable(why) => {
                link.not_before = now + PROBE_PAUSE;
                Path::Tcp(why)
            }
            Readiness::Lacking(why) => {
                link.not_before = now + LACKING_PAUSE;
                Path::Tcp(why)
            }
            Readiness::Useless(why) => link.fail(&why, now),
        };
        let ready = path == Path::Verbs;
        self.turn_to(to, path);
        ready
    }

    fn turn_to(&mut self, to: PeerCore, path: Path) {
        let Some(link) = self.links.get_mut(&to) else {
            return;
        };
        if link.path != path {
            let by_verbs = path == Path::Verbs;
            link.generation += u64::from(link.path == Path::Verbs);
            link.since = by_verbs.then(|| self.clock.now());
            link.path = path;
            if let Some(watch) = &mut self.watch {
                watch(to, &link.path);
            }
        }
    }

    /// Forgets links of long ago, every now and then.
    fn sweep(&mut self, now: Time) {
        if now.since(self.swept_at) >= LINK_KEPT / 2 {
            self.swept_at = now;
            self.links
                .retain(|_, link| now.since(link.used_at) < LINK_KEPT);
        }
    }

    fn broke(&mut self, to: PeerCore, why: &str) {
        let now = self.clock.now();
        if let Some(link) = self.links.get_mut(&to) {
            let path = link.fail(why, now);
            self.turn_to(to, path);
        }
    }

    /// Whether a request was asked over queue pairs that the link still has, as far as is known.
    fn is_present(&self, again: &Again) -> bool {
        let link = self.links.get(&again.to);
        link.is_some_and(|link| link.generation == again.generation)
    }

    /// Half of a request's time is over, and nothing long has come over its link: it is taken back, to be asked over TCP. A peer that is
    /// merely slow answers others meanwhile, or that it is taken back.
    fn doubt(&mut self) {
        let now = self.clock.now();
        if now < self.doubt_at {
            return;
        }
        let mut next = Time::NEVER;
        for (tag, again) in &mut self.over_verbs {
            if now < again.doubt_at || again.cancelled {
                next = next.min(again.doubt_at);
                continue;
            }
            let long_at = self
                .links
                .get(&again.to)
                .map_or(Time(0), |link| link.long_at);
            if long_at > again.asked_at {
                // It carries: once more half of what is left.
                again.asked_at = now;
                again.doubt_at = doubt_at(now, again.deadline);
                next = next.min(again.doubt_at);
                continue;
            }
            (again.doubted, again.doubt_at) = (true, Time::NEVER);
            self.verbs.cancel(*tag);
        }
        self.doubt_at = next.max(now + DOUBT_LOOK);
    }

    /// What a queue pair did for a request, as far as it tells of the link. Whether the request goes to TCP.
    fn judge(
        &mut self,
        again: &Again,
        result: Result<FetchStatus, TransportError>,
        len_bytes: u32,
    ) -> bool {
        let now = self.clock.now();
        let error = match result {
            Ok(_) => {
                if len_bytes >= LONG_BYTES
                    && let Some(link) = self.links.get_mut(&again.to)
                {
                    link.long_at = now;
                }
                return false;
            }
            Err(error) => error,
        };
        let is_gone = error == TransportError::Unreachable || again.doubted;
        let broke = match error {
            TransportError::Protocol => true,
            _ => is_gone && !self.verbs.reaches(again.to),
        };
        if broke && self.is_present(again) {
            match again.doubted {
                true => self.broke(
                    again.to,
                    "the queue pair broke: nothing long came over it in time",
                ),
                false => self.broke(again.to, &format!("the queue pair broke: {error}")),
            }
        }
        // Doubted, it was taken back by nobody but this.
        is_gone && error != TransportError::Protocol && now < again.deadline
    }

    /// A request is with the queue pairs.
    fn keep(&mut self, tag: FetchTag, mut again: Again) {
        let now = self.clock.now();
        again.asked_at = now;
        again.generation = self.links.get(&again.to).map_or(0, |link| link.generation);
        // How long a call takes is its own affair: a warm-up waits for disks.
        if matches!(again.ask, What::Fetch(_)) {
            again.doubt_at = doubt_at(now, again.deadline);
            self.doubt_at = self.doubt_at.min(again.doubt_at);
        }
        self.over_verbs.insert(tag, again);
    }

    /// A queue pair ended a request. None when it is asked again over TCP.
    fn ended(&mut self, event: TransportEvent) -> Option<TransportEvent> {
        let TransportEvent::Fetched {
            tag,
            lease,
            mut result,
            len_bytes,
            checksums,
        } = event
        else {
            return Some(event);
        };
        if let Some(again) = self.over_verbs.remove(&tag) {
            let asked_again = self.judge(&again, result, len_bytes);
            if result == Err(TransportError::Unreachable) && again.cancelled {
                // TCP could still reach it: nothing is held against the peer.
                result = Err(TransportError::Cancelled);
            } else if asked_again && !again.cancelled {
                self.waiting.push_back((tag, again, lease));
                return None;
            } else if again.doubted && !again.cancelled && result == Err(TransportError::Cancelled)
            {
                result = Err(TransportError::Timeout);
            }
        }
        Some(TransportEvent::Fetched {
            tag,
            lease,
            result,
            len_bytes,
            checksums,
        })
    }

    fn poll_verbs(&mut self) -> Option<TransportEvent> {
        while let Some(event) = self.verbs.poll() {
            if let Some(event) = self.ended(event) {
                return Some(marked(event));
            }
        }
        None
    }

    /// What waits goes first: it leaves with TCP's turn, which is its poll.
    fn poll_tcp(&mut self) -> Option<TransportEvent> {
        self.ask_again().or_else(|| self.tcp.poll())
    }

    /// Asks over TCP what queue pairs have failed, as far as it takes them; one whose time is over ends.
    fn ask_again(&mut self) -> Option<TransportEvent> {
        let mut full = Vec::new();
        for _ in 0..self.waiting.len() {
            let (tag, again, lease) = self.waiting.pop_front()?;
            let late = self.clock.now() >= again.deadline;
            if again.cancelled || late {
                let error = match again.cancelled {
                    true => TransportError::Cancelled,
                    false => TransportError::Timeout,
                };
                return Some(TransportEvent::Fetched {
                    tag,
                    lease,
                    result: Err(error),
                    len_bytes: 0,
                    checksums: Vec::new(),
                });
            }
            let to = again.to;
            if full.contains(&to) {
                self.waiting.push_back((tag, again, lease));
                continue;
            }
            let op = operation(tag, again, lease);
            if let Err(Full(op)) = self.tcp.submit(op)
                && let Some(parts) = parts(op)
            {
                full.push(to);
                self.waiting.push_back(parts);
            }
        }
        None
    }
}

fn operation(tag: FetchTag, again: Again, lease: Lease) -> TransportOp {
    let Again { to, deadline, .. } = again;
    match again.ask {
        What::Fetch(request) => TransportOp::Fetch {
            tag,
            to,
            request,
            lease,
            deadline,
        },
        What::Call(class, body) => TransportOp::Call {
            tag,
            to,
            class,
            body,
            lease,
            deadline,
        },
    }
}

/// The opposite of [`operation`]; none for an answer.
fn parts(op: TransportOp) -> Option<(FetchTag, Again, Lease)> {
    let (tag, to, ask, lease, deadline) = match op {
        TransportOp::Fetch {
            tag,
            to,
            request,
            lease,
            deadline,
        } => (tag, to, What::Fetch(request), lease, deadline),
        TransportOp::Call {
            tag,
            to,
            class,
            body,
            lease,
            deadline,
        } => (tag, to, What::Call(class, body), lease, deadline),
        TransportOp::Answer { .. } => return None,
    };
    let again = Again {
        to,
        ask,
        deadline,
        cancelled: false,
        asked_at: Time(0),
        generation: 0,
        doubt_at: Time::NEVER,
        doubted: false,
    };
    Some((tag, again, lease))
}

/// What is asked, kept while a queue pair has it.
fn kept(op: &TransportOp) -> Option<(FetchTag, Again)> {
    let (tag, to, ask, deadline) = match op {
        TransportOp::Fetch {
            tag,
            to,
            request,
            deadline,
            ..
        } => (*tag, *to, What::Fetch(*request), *deadline),
        TransportOp::Call {
            tag,
            to,
            class,
            body,
            deadline,
            ..
        } => (*tag, *to, What::Call(*class, body.clone()), *deadline),
        TransportOp::Answer { .. } => return None,
    };
    let again = Again {
        to,
        ask,
        deadline,
        cancelled: false,
        asked_at: Time(0),
        generation: 0,
        doubt_at: Time::NEVER,
        doubted: false,
    };
    Some((tag, again))
}

fn marked(event: TransportEvent) -> TransportEvent {
    match event {
        TransportEvent::Request {
            handle,
            peer,
            ask,
            deadline,
        } => TransportEvent::Request {
            handle: RequestHandle(handle.0 | OVER_VERBS),
            peer,
            ask,
            deadline,
        },
        TransportEvent::GivenUp { handle } => TransportEvent::GivenUp {
            handle: RequestHandle(handle.0 | OVER_VERBS),
        },
        TransportEvent::Answered { handle, payload } => TransportEvent::Answered {
            handle: RequestHandle(handle.0 | OVER_VERBS),
            payload,
        },
        event @ TransportEvent::Fetched { .. } => event,
    }
}

fn remarked(op: TransportOp) -> TransportOp {
    match op {
        TransportOp::Answer {
            handle,
            status,
            payload,
        } => TransportOp::Answer {
            handle: RequestHandle(handle.0 | OVER_VERBS),
            status,
            payload,
        },
        op => op,
    }
}

impl<V: Linked, T: Transport> Transport for Auto<V, T> {
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        let op = match op {
            TransportOp::Answer {
                handle,
                status,
                payload,
            } if handle.0 & OVER_VERBS != 0 => {
                let bare = RequestHandle(handle.0 & !OVER_VERBS);
                let answer = TransportOp::Answer {
                    handle: bare,
                    status,
                    payload,
                };
                return self
                    .verbs
                    .submit(answer)
                    .map_err(|Full(op)| Full(remarked(op)));
            }
            op => op,
        };
        let Some((tag, again)) = kept(&op) else {
            return self.tcp.submit(op);
        };
        if !self.by_verbs(again.to) {
            return self.tcp.submit(op);
        }
        self.verbs.submit(op)?;
        self.keep(tag, again);
        Ok(())
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        self.tcp_first = !self.tcp_first;
        if !self.over_verbs.is_empty() {
            self.doubt();
        }
        if self.tcp_first
            && let Some(event) = self.poll_tcp()
        {
            return Some(event);
        }
        let event = self.poll_verbs();
        // Also when TCP was first and had nothing: what queue pairs have just failed goes to it now.
        if event.is_none() && (!self.tcp_first || !self.waiting.is_empty()) {
            return self.poll_tcp();
        }
        event
    }

    fn cancel(&mut self, tag: FetchTag) {
        if let Some(again) = self.over_verbs.get_mut(&tag) {
            again.cancelled = true;
            return self.verbs.cancel(tag);
        }
        for (waiting, again, _) in &mut self.waiting {
            if *waiting == tag {
                again.cancelled = true;
                return;
            }
        }
        self.tcp.cancel(tag);
    }

    fn wake_at(&self) -> Time {
        let waiting = self
            .waiting
            .iter()
            .map(|(_, again, _)| match again.cancelled {
                true => self.clock.now(),
                false => again.deadline,
            });
        let doubt = (!self.over_verbs.is_empty()).then_some(self.doubt_at);
        let own = waiting.chain(doubt).min().unwrap_or(Time::NEVER);
        own.min(self.verbs.wake_at()).min(self.tcp.wake_at())
    }
}

#[cfg(test)]
#[path = "auto_tests.rs"]
mod tests;
