//! Every order in which requests, answers, deadlines, cancels and the end of a connection can come, gone through: does a write land in a lease that has gone back?
//!
//! Two requests on one connection. A step is anything that can happen next; states that were seen are not entered again.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use forebay_engine::arena::{Arena, Share};
use forebay_engine::identity::ObjectId;
use forebay_engine::ports::{
    Class, FetchStatus, FetchTag, Payload, PeerCore, PeerFetch, PeerId, RequestHandle, Time,
    TransportError, TransportEvent, TransportOp,
};

use super::Serving;
use crate::asking::{Asking, Broken, Destroyed, Grant};
use crate::limits::FLUSH_MS;
use crate::message::{CANCEL_TAG, decode_answer, decode_request};

const CREDIT_BYTES: u32 = 1 << 20;
const DEADLINE: Time = Time(1_000_000);

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The asker's next message leaves.
    Send,
    /// A message reaches the peer.
    Arrive,
    /// The peer's core answers its first or last open request.
    AnswerFirst,
    AnswerLast,
    /// An answer is posted: the write, then the message.
    Post,
    /// What was posted is done at the asker: a write lands, or a message is received.
    Land,
    /// The peer learns that its posted work is complete.
    Complete,
    /// The first request's time is over.
    Deadline,
    /// The engine cancels the second one.
    Cancel,
    /// The peer was silent for too long.
    Silence,
    /// The queue pair reports an error.
    Fail,
    /// It is destroyed.
    Destroy,
}

const STEPS: [Step; 12] = [
    Step::Send,
    Step::Arrive,
    Step::AnswerFirst,
    Step::AnswerLast,
    Step::Post,
    Step::Land,
    Step::Complete,
    Step::Deadline,
    Step::Cancel,
    Step::Silence,
    Step::Fail,
    Step::Destroy,
];

/// Whether the rule holds that leases come back after the queue pair is destroyed, or is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leases {
    AfterDestroy,
    /// Defect: with the error.
    AtFailure,
}

#[derive(Debug)]
enum OnWire {
    Write(u64),
    Message(Vec<u8>),
}

struct Model {
    leases: Leases,
    asking: Option<Asking>,
    failed: bool,
    destroyed: bool,
    to_peer: VecDeque<Vec<u8>>,
    serving: Serving,
    open: Vec<RequestHandle>,
    handles: u64,
    works: u64,
    to_asker: VecDeque<OnWire>,
    arena: Arena,
    /// Addresses of leases that are lent.
    lent: BTreeSet<u64>,
    ended: Vec<(FetchTag, Result<FetchStatus, TransportError>)>,
    answered: Vec<RequestHandle>,
    given: usize,
    now: Time,
    cancelled: bool,
    wrong: Option<String>,
}

fn fetch(number: u64) -> PeerFetch {
    PeerFetch {
        object: ObjectId(1),
        size_bytes: 1 << 20,
        offset: number << 12,
        len_bytes: 4_096,
        want_bytes: 4_096,
        class: [Class::Demand, Class::WarmUp][number as usize],
        view: 1,
        cached_only: false,
        forwarded: false,
        verify: false,
    }
}

impl Model {
    fn new(leases: Leases) -> Self {
        let grant = Grant {
            messages: 6,
            credit_bytes: CREDIT_BYTES,
        };
        let mut model = Self {
            leases,
            asking: Some(Asking::new(grant, 7, Time(0))),
            failed: false,
            destroyed: false,
            to_peer: VecDeque::new(),
            serving: Serving::new(PeerId(1), CREDIT_BYTES),
            open: Vec::new(),
            handles: 0,
            works: 0,
            to_asker: VecDeque::new(),
            arena: Arena::new(1 << 20).unwrap(),
            lent: BTreeSet::new(),
            ended: Vec::new(),
            answered: Vec::new(),
            given: 0,
            now: Time(0),
            cancelled: false,
            wrong: None,
        };
        for number in 0..2 {
            let lease = model.arena.lease(4_096, Share::Demand).unwrap();
            model.lent.insert(lease.bytes().as_ptr() as u64);
            let op = TransportOp::Fetch {
                tag: FetchTag(number),
                to: PeerCore {
                    peer: PeerId(2),
                    core: 0,
                },
                request: fetch(number),
                lease,
                deadline: [DEADLINE, Time::NEVER][number as usize],
            };
            model.asking.as_mut().unwrap().ask(op).unwrap();
        }
        model
    }

    fn tell(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Fetched {
                tag, lease, result, ..
            } => {
                let address = lease.bytes().as_ptr() as u64;
                if !self.lent.remove(&address) {
                    self.wrong = Some(format!("{tag:?} came back twice"));
                }
                self.ended.push((tag, result));
            }
            TransportEvent::Answered { handle, .. } => self.answered.push(handle),
            TransportEvent::Request { handle, .. } => self.open.push(handle),
            TransportEvent::GivenUp { .. } => {}
        }
    }

    fn broken(&mut self, broken: Broken) {
        if broken != Broken::Silent {
            self.wrong = Some(format!("an honest peer broke the protocol: {broken}"));
        }
        self.fail();
    }

    fn fail(&mut self) {
        self.failed = true;
        if self.leases == Leases::AtFailure {
            self.give_leases_back();
        }
    }

    fn give_leases_back(&mut self) {
        let asking = self.asking.take();
        for event in asking
            .map(|asking| asking.end(Destroyed::new()))
            .into_iter()
            .flatten()
        {
            self.tell(event);
        }
    }

    /// Lets something happen; false when it cannot.
    fn step(&mut self, step: Step) -> bool {
        let now = self.now;
        match step {
            Step::Send => self.send(),
            Step::Arrive => {
                let Some(message) = self.to_peer.pop_front() else {
                    return false;
                };
                self.handles += 1;
                let handle = RequestHandle(self.handles);
                match self.serving.received(&message, handle, now) {
                    Ok(event) => event.into_iter().for_each(|event| self.tell(event)),
                    Err(breach) => self.wrong = Some(format!("an honest asker: {breach}")),
                }
                true
            }
            Step::AnswerFirst => !self.open.is_empty() && self.answer(0),
            Step::AnswerLast => self.open.len() > 1 && self.answer(1),
            Step::Post => self.post(),
            Step::Land => self.land(),
            Step::Complete => {
                let before = self.answered.len();
                let mut events = Vec::new();
                self.serving
                    .completed(self.works, |event| events.push(event));
                events.into_iter().for_each(|event| self.tell(event));
                self.answered.len() > before
            }
            Step::Deadline => self.now < DEADLINE && self.tick(DEADLINE),
            Step::Silence => {
                let at = DEADLINE + Duration::from_millis(FLUSH_MS + 1);
                self.now == DEADLINE && self.tick(at)
            }
            Step::Cancel => {
                if self.cancelled || self.failed {
                    return false;
                }
                self.cancelled = true;
                let asking = self.asking.as_mut();
                let event = asking.and_then(|asking| asking.cancel(FetchTag(1), now));
                event.into_iter().for_each(|event| self.tell(event));
                true
            }
            Step::Fail => {
                let can = !self.failed;
                if can {
                    self.fail();
                }
                can
            }
            Step::Destroy => {
                let can = self.failed && !self.destroyed;
                if can {
                    self.destroyed = true;
                    self.to_asker.clear();
                    self.to_peer.clear();
                    self.give_leases_back();
                }
                can
            }
        }
    }

    fn send(&mut self) -> bool {
        if self.failed {
            return false;
        }
        let (now, to_peer) = (self.now, &mut self.to_peer);
        self.asking
            .as_mut()
            .is_some_and(|asking| asking.next(9, now, |bytes| to_peer.push_back(bytes.to_vec())))
    }

    fn answer(&mut self, at: usize) -> bool {
        let handle = self.open.remove(at);
        let lease = self.arena.lease(4_096, Share::Serve).unwrap();
        let payload = Payload {
            parts: vec![self.arena.freeze(lease)],
            checksums: vec![9],
        };
        self.given += 1;
        if let Err(payload) = self
            .serving
            .answer(handle, FetchStatus::Bytes, Some(payload))
        {
            self.tell(TransportEvent::Answered { handle, payload });
        }
        true
    }

    fn post(&mut self) -> bool {
        let (works, to_asker) = (&mut self.works, &mut self.to_asker);
        let destroyed = self.destroyed;
        self.serving.next(|written, message| {
            *works += 1;
            if destroyed {
                return *works;
            }
            if let Some((_, destination)) = written {
                to_asker.push_back(OnWire::Write(destination.address));
            }
            to_asker.push_back(OnWire::Message(message.to_vec()));
            *works
        })
    }

    fn land(&mut self) -> bool {
        let Some(next) = self.to_asker.pop_front() else {
            return false;
        };
        match next {
            OnWire::Write(address) => {
                if !self.lent.contains(&address) {
                    self.wrong = Some("a write landed in a lease that had gone back".into());
                }
            }
            // In the error state receives are flushed, not filled.
            OnWire::Message(_) if self.failed => {}
            OnWire::Message(bytes) => {
                let now = self.now;
                let asking = self.asking.as_mut().expect("alive until it fails");
                match asking.received(&bytes, now) {
                    Ok(event) => event.into_iter().for_each(|event| self.tell(event)),
                    Err(broken) => self.broken(broken),
                }
            }
        }
        true
    }

    fn tick(&mut self, now: Time) -> bool {
        self.now = now;
        if self.failed {
            return true;
        }
        let mut events = Vec::new();
        let asking = self.asking.as_mut().expect("alive until it fails");
        let result = asking.tick(now, |event| events.push(event));
        events.into_iter().for_each(|event| self.tell(event));
        if let Err(broken) = result {
            self.broken(broken);
        }
        true
    }

    /// Everything that the future depends on.
    fn signature(&self) -> String {
        let asked = self.asking.as_ref().map(|asking| asking.outline());
        let to_peer: Vec<_> = self
            .to_peer
            .iter()
            .map(|bytes| {
                let (request, _) = decode_request(bytes).unwrap();
                (request.tag, bytes.len())
            })
            .collect();
        let to_asker: Vec<_> = self
            .to_asker
            .iter()
            .map(|item| match item {
                OnWire::Write(address) => (0, *address),
                OnWire::Message(bytes) => {
                    let (answer, _) = decode_answer(bytes).unwrap();
                    (
                        1 + u64::from(answer.status == FetchStatus::Bytes),
                        answer.tag,
                    )
                }
            })
            .collect();
        format!(
            "{asked:?} {to_peer:?} {to_asker:?} {} {:?} {:?} {:?} {} {} {} {} {}",
            self.serving.outline(),
            self.open.len(),
            self.ended,
            self.lent.len(),
            self.failed,
            self.destroyed,
            self.now.0,
            self.cancelled,
            self.answered.len(),
        )
    }

    /// What must hold when nothing can happen any more.
    fn check_end(&self) -> Result<(), String> {
        let mut tags: Vec<_> = self.ended.iter().map(|(tag, _)| tag.0).collect();
        tags.sort_unstable();
        if tags != [0, 1] {
            return Err(format!("requests ended: {:?}", self.ended));
        }
        if !self.lent.is_empty() {
            return Err("a lease did not come back".into());
        }
        if self.answered.len() != self.given {
            return Err(format!(
                "{} of {} answers ended",
                self.answered.len(),
                self.given
            ));
        }
        match &self.asking {
            Some(asking) if !asking.is_idle() || asking.used() != (0, 0) => {
                Err(format!("not idle: {asking:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// Goes through every order; how many different states there were.
fn explore(leases: Leases) -> Result<usize, String> {
    let mut seen = BTreeSet::new();
    let mut paths: Vec<Vec<Step>> = vec![Vec::new()];
    let replay = |path: &[Step]| {
        let mut model = Model::new(leases);
        for step in path {
            assert!(model.step(*step), "steps repeat");
        }
        model
    };
    while let Some(path) = paths.pop() {
        let mut stuck = true;
        for step in STEPS {
            let mut model = replay(&path);
            if !model.step(step) {
                continue;
            }
            // A failure or silence may come at any time, or never.
            stuck &= matches!(
                step,
                Step::Fail | Step::Cancel | Step::Deadline | Step::Silence
            );
            let path = [&path[..], &[step]].concat();
            if let Some(wrong) = model.wrong {
                return Err(format!("{wrong}: {path:?}"));
            }
            if seen.insert(model.signature()) {
                paths.push(path);
            }
        }
        if stuck {
            let model = replay(&path);
            model
                .check_end()
                .map_err(|wrong| format!("{wrong}: {path:?}"))?;
        }
    }
    Ok(seen.len())
}

#[test]
fn no_order_of_events_lets_a_write_land_in_a_lease_that_went_back() {
    let states = explore(Leases::AfterDestroy).unwrap();
    assert!(
        states > 1_000,
        "{states} states are too few to mean anything"
    );
}

#[test]
fn leases_that_come_back_before_the_queue_pair_is_destroyed_are_written_into() {
    let wrong = explore(Leases::AtFailure).unwrap_err();
    assert!(wrong.contains("a write landed"), "{wrong}");
}

#[test]
fn the_answer_to_a_cancel_is_marked() {
    let mut model = Model::new(Leases::AfterDestroy);
    for step in [
        Step::Send,
        Step::Cancel,
        Step::Arrive,
        Step::Deadline,
        Step::Send,
    ] {
        assert!(model.step(step), "{step:?}");
    }
    let bytes = model.to_peer.back().unwrap();
    let (request, destination) = decode_request(bytes).unwrap();
    assert!(destination.is_none() && request.tag & CANCEL_TAG == 0);
}
