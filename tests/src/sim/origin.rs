//! One core's client of the simulated object store: latency, bandwidth, faults.
//!
//! An operation draws its fate when it is submitted and lives through it in steps of virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::Lease;
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::identity::ObjectVersion;
use forebay_engine::limits::SUB_BLOCK_BYTES;
use forebay_engine::ports::{
    Clock, Full, GetOp, HeadOp, ListOp, Origin, OriginEvent, OriginOp, OriginTag, Time,
};

use super::bucket;
use super::clock::SimClock;
use super::rng::SimRng;
use super::schedule::{EventKey, Schedule};
use super::seat::CORE_NUMBERS_PER_NODE;
use super::store::{Fate, OriginDefect, OriginProfile, OriginStore};
use super::trace::Trace;

enum Kind {
    Get(Get),
    Head(HeadOp),
    List(ListOp),
}

struct Get {
    object: Arc<ObjectVersion>,
    offset: u64,
    len_bytes: u64,
    empty: VecDeque<Lease>,
    sent_bytes: u64,
    bytes_per_s: u64,
    /// When the bytes of the lease that is being filled began to flow.
    flowing_since: Option<Time>,
}

struct Active {
    kind: Kind,
    fate: Fate,
    next: Option<EventKey>,
    deadline: EventKey,
    cancelling: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The answer's head arrives, or the next lease is full.
    Next(OriginTag),
    /// The body ends early.
    Break(OriginTag),
    Cancelled(OriginTag),
    Deadline(OriginTag),
}

struct Side {
    core: usize,
    clock: SimClock,
    rng: SimRng,
    profile: OriginProfile,
    store: Rc<RefCell<OriginStore>>,
    trace: Trace,
    active: BTreeMap<OriginTag, Active>,
    steps: Schedule<Step>,
    ready: VecDeque<OriginEvent>,
}

/// One core's client of the simulated service.
#[derive(Clone)]
pub struct SimOrigin(Rc<RefCell<Side>>);

impl fmt::Debug for SimOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimOrigin")
            .field("core", &self.0.borrow().core)
            .finish_non_exhaustive()
    }
}

impl SimOrigin {
    /// The client of `core`.
    pub fn new(
        core: usize,
        seed: u64,
        clock: SimClock,
        profile: OriginProfile,
        store: Rc<RefCell<OriginStore>>,
        trace: Trace,
    ) -> Self {
        Self(Rc::new(RefCell::new(Side {
            core,
            clock,
            rng: SimRng::component(seed, "origin", core as u64),
            profile,
            store,
            trace,
            active: BTreeMap::new(),
            steps: Schedule::default(),
            ready: VecDeque::new(),
        })))
    }

    /// When a poll will find something next; none when nothing is under way.
    pub fn next_at(&self) -> Option<Time> {
        let side = self.0.borrow();
        if side.ready.is_empty() {
            side.steps.next_at()
        } else {
            Some(side.clock.now())
        }
    }

    /// Bytes that the service has sent and nobody has polled: those of a process that dies.
    pub fn unpolled_bytes(&self) -> u64 {
        let side = self.0.borrow();
        let bytes = side.ready.iter().map(|event| match event {
            OriginEvent::Filled { lease, .. } => lease.len() as u64,
            OriginEvent::GetDone { wasted_bytes, .. } => *wasted_bytes,
            _ => 0,
        });
        bytes.sum()
    }

    /// Operations under way, those that ended but were not polled included.
    pub fn under_way(&self) -> usize {
        let side = self.0.borrow();
        side.active.len() + side.ready.len()
    }
}

impl Origin for SimOrigin {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        self.0.borrow_mut().submit(op)
    }

    fn poll(&mut self) -> Option<OriginEvent> {
        let mut side = self.0.borrow_mut();
        side.advance();
        let event = side.ready.pop_front()?;
        let at = side.clock.now();
        side.trace.event(
            at,
            format_args!("core {} polls {}", side.core, describe(&event)),
        );
        Some(event)
    }

    fn cancel(&mut self, tag: OriginTag) {
        let mut side = self.0.borrow_mut();
        let side = &mut *side;
        if let Some(active) = side.active.get_mut(&tag)
            && !active.cancelling
        {
            active.cancelling = true;
            let at = side.clock.now() + Duration::from_micros(side.rng.below(2_000));
            side.steps.push(at, Step::Cancelled(tag));
        }
    }
}

fn describe(event: &OriginEvent) -> String {
    match event {
        OriginEvent::Filled { tag, lease } => format!("filled {} len {}", tag.0, lease.len()),
        OriginEvent::Progress { tag } => format!("progress {}", tag.0),
        OriginEvent::GetDone {
            tag,
            result,
            unfilled,
            wasted_bytes,
        } => {
            let result = result.as_ref().map_err(|error| error.kind);
            format!(
                "get-done {} {result:?} unfilled {} wasted {wasted_bytes}",
                tag.0,
                unfilled.len()
            )
        }
        OriginEvent::Head { tag, result } => {
            format!(
                "head {} {:?}",
                tag.0,
                result
                    .as_ref()
                    .map(|meta| meta.size_bytes)
                    .map_err(|e| e.kind)
            )
        }
        OriginEvent::List { tag, result } => {
            let entries = result.as_ref().map(|page| page.entries.len());
            format!("list {} {:?}", tag.0, entries.map_err(|e| e.kind))
        }
    }
}

impl Side {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        self.advance();
        let now = self.clock.now();
        let under_way = self.active.len();
        let faults_on = self.store.borrow().faults_on;
        let busy = faults_on && under_way > 0 && self.rng.chance(self.profile.faults.full);
        if busy || under_way >= self.profile.ops_max {
            self.trace
                .event(now, format_args!("core {} origin full", self.core));
            return Err(Full(op));
        }
        let (tag, deadline, len_bytes) = match &op {
            OriginOp::Get(get) => (get.tag, get.deadline, get.len_bytes()),
            OriginOp::Head(head) => (head.tag, head.deadline, 0),
            OriginOp::List(list) => (list.tag, list.deadline, 0),
        };
        assert!(
            !self.active.contains_key(&tag),
            "core {} reuses tag {}",
            self.core,
            tag.0
        );
        let (drawn, latency) = self.draw_fate(faults_on, len_bytes);
        let forced = self
            .store
            .borrow()
            .forced
            .filter(|(_, all)| *all || len_bytes > 0);
        let fate = forced.map_or(drawn, |(fate, _)| fate);
        let node = self.core / CORE_NUMBERS_PER_NODE;
        let is_cut_off = self.store.borrow().cut_off.contains(&node);
        let fate = if is_cut_off { Fate::Hang(0) } else { fate };
        self.trace.event(
            now,
            format_args!(
                "core {} submits {} until {} {fate:?}",
                self.core,
                describe_op(&op),
                deadline.0
            ),
        );
        let kind = match op {
            OriginOp::Get(get) => Kind::Get(self.accept_get(get)),
            OriginOp::Head(head) => Kind::Head(head),
            OriginOp::List(list) => Kind::List(list),
        };
        // A hang at byte 0 never even answers.
        let next = (!matches!(fate, Fate::Hang(0)))
            .then(|| self.steps.push(now + latency, Step::Next(tag)));
        let deadline = self.steps.push(deadline.max(now), Step::Deadline(tag));
        self.active.insert(
            tag,
            Active {
                kind,
                fate,
                next,
                deadline,
                cancelling: false,
            },
        );
        Ok(())
    }

    fn accept_get(&mut self, get: GetOp) -> Get {
        let len_bytes = get.len_bytes();
        let inside = get
            .offset
            .checked_add(len_bytes)
            .is_some_and(|end| end <= get.object.size_bytes);
        assert!(
            len_bytes > 0 && inside,
            "GET {} is empty or beyond its object",
            get.tag.0
        );
        let (slowest, fastest) = self.profile.bytes_per_s;
        Get {
            object: get.object,
            offset: get.offset,
            len_bytes,
            empty: get.leases.into(),
            sent_bytes: 0,
            bytes_per_s: self.rng.between(slowest, fastest).max(1),
            flowing_since: None,
        }
    }

    fn draw_fate(&mut self, faults_on: bool, len_bytes: u64) -> (Fate, Duration) {
        let (shortest, longest) = self.profile.latency;
        let nanos = self
            .rng
            .between(shortest.as_nanos() as u64, longest.as_nanos() as u64);
        let latency = Duration::from_nanos(nanos);
        if !faults_on {
            return (Fate::Whole, latency);
        }
        let faults = &self.profile.faults;
        let mut fate = Fate::Whole;
        let somewhere = self.rng.below(len_bytes + 1);
        let from_start = self.rng.chance(500);
        let at = if from_start { 0 } else { somewhere };
        for (chance, candidate) in [
            (faults.throttled, Fate::Fail(OriginErrorKind::Throttled, 0)),
            (
                faults.unavailable,
                Fate::Fail(OriginErrorKind::Unavailable, at),
            ),
            (
                faults.short,
                Fate::Fail(OriginErrorKind::ShortBody, somewhere),
            ),
            (faults.hang, Fate::Hang(at)),
            (faults.denied, Fate::Fail(OriginErrorKind::Denied, 0)),
        ] {
            if self.rng.chance(chance) {
                fate = candidate;
            }
        }
        let slow = self.rng.chance(faults.slow);
        (fate, if slow { latency * 100 } else { latency })
    }

    /// Lives through all steps that are due.
    fn advance(&mut self) {
        let now = self.clock.now();
        while let Some((at, step)) = self.steps.pop_due(now) {
            match step {
                Step::Next(tag) => self.next(tag, at),
                Step::Break(tag) => self.break_off(tag),
                Step::Cancelled(tag) => self.end(tag, OriginErrorKind::Cancelled, at),
                Step::Deadline(tag) => self.end(tag, OriginErrorKind::Timeout, at),
            }
        }
    }

    fn next(&mut self, tag: OriginTag, at: Time) {
        let Some(active) = self.active.get_mut(&tag) else {
            return;
        };
        active.next = None;
        match &active.kind {
            Kind::Get(_) => self.next_of_get(tag, at),
            Kind::Head(_) | Kind::List(_) => self.answer_metadata(tag, at),
        }
    }

    fn answer_metadata(&mut self, tag: OriginTag, at: Time) {
        let Some(active) = self.active.get(&tag) else {
            return;
        };
        match active.fate {
            Fate::Hang(_) => return,
            Fate::Fail(kind, _) => return self.end(tag, kind, at),
            Fate::Whole => {}
        }
        let Some(active) = self.forget(tag) else {
            return;
        };
        let store = self.store.borrow();
        let event = match active.kind {
            Kind::Head(head) => {
                let found = store
                    .bucket
                    .current(&head.key)
                    .map(|generation| generation.meta());
                OriginEvent::Head {
                    tag,
                    result: found.ok_or_else(|| error(OriginErrorKind::NotFound)),
                }
            }
            Kind::List(list) => {
                let known = list.request.bucket == store.bucket.bucket;
                let page = known.then(|| store.bucket.list(&list.request));
                OriginEvent::List {
                    tag,
                    result: page.ok_or_else(|| error(OriginErrorKind::NoSuchBucket)),
                }
            }
            Kind::Get(_) => return,
        };
        drop(store);
        self.ready.push_back(event);
    }

    /// The head of a GET's answer arrives, or its next lease is full.
    fn next_of_get(&mut self, tag: OriginTag, at: Time) {
        let Some(Active {
            kind: Kind::Get(get),
            fate,
            ..
        }) = self.active.get(&tag)
        else {
            return;
        };
        let fate = *fate;
        if get.flowing_since.is_none() {
            if let Fate::Fail(kind, 0) = fate {
                return self.end(tag, kind, at);
            }
            if let Err(kind) = self.check_version(tag) {
                return self.end(tag, kind, at);
            }
            self.store.borrow_mut().bodies += 1;
        } else {
            self.fill_next(tag);
        }
        let Some(Active {
            kind: Kind::Get(get),
            next,
            ..
        }) = self.active.get_mut(&tag)
        else {
            return;
        };
        get.flowing_since = Some(at);
        let Some(lease) = get.empty.front() else {
            return self.finish(tag, Ok(()), 0);
        };
        let whole = get.sent_bytes + lease.len() as u64;
        let (until, at_limit) = match fate {
            Fate::Fail(_, limit) | Fate::Hang(limit) if limit < whole => (limit, true),
            _ => (whole, false),
        };
        let arrives = at + flow_time(until - get.sent_bytes, get.bytes_per_s);
        *next = match (at_limit, fate) {
            (true, Fate::Hang(_)) => None,
            (true, _) => Some(self.steps.push(arrives, Step::Break(tag))),
            (false, _) => Some(self.steps.push(arrives, Step::Next(tag))),
        };
    }

    /// The connection breaks in the middle of the body.
    fn break_off(&mut self, tag: OriginTag) {
        let Some(Active {
            kind: Kind::Get(get),
            fate,
            ..
        }) = self.active.get(&tag)
        else {
            return;
        };
        let Fate::Fail(kind, limit) = *fate else {
            return;
        };
        let wasted = limit - get.sent_bytes;
        let at = get.offset + get.sent_bytes;
        let now = self.clock.now();
        self.store.borrow_mut().send(now, &get.object, at, wasted);
        self.finish(tag, Err(error(kind)), wasted);
    }

    /// A superseded version fails; half of the servers ignore If-Match and send some bytes first.
    fn check_version(&mut self, tag: OriginTag) -> Result<(), OriginErrorKind> {
        let Some(Active {
            kind: Kind::Get(get),
            ..
        }) = self.active.get(&tag)
        else {
            return Ok(());
        };
        let store = self.store.borrow();
        match store.bucket.current(&get.object.key) {
            Some(current) if current.version.id == get.object.id => Ok(()),
            _ => Err(OriginErrorKind::VersionChanged),
        }
    }

    fn fill_next(&mut self, tag: OriginTag) {
        let Some(Active {
            kind: Kind::Get(get),
            ..
        }) = self.active.get_mut(&tag)
        else {
            return;
        };
        let Some(mut lease) = get.empty.pop_front() else {
            return;
        };
        let at = get.offset + get.sent_bytes;
        bucket::fill(&get.object, at, lease.bytes_mut());
        let len_bytes = lease.len() as u64;
        let mut store = self.store.borrow_mut();
        store.send(self.clock.now(), &get.object, at, len_bytes);
        if store.take_defect(OriginDefect::WrongByte) {
            // In the first and the last byte, so that any reader of the lease meets it or its page.
            lease.bytes_mut()[0] ^= 1;
            let last = lease.len() - 1;
            lease.bytes_mut()[last] ^= 2;
        }
        if store.take_defect(OriginDefect::UnbookedBytes) {
            store.sent_bytes += 1;
        }
        get.sent_bytes += len_bytes;
        self.ready.push_back(OriginEvent::Filled { tag, lease });
    }

    /// Ends an operation early.
    fn end(&mut self, tag: OriginTag, kind: OriginErrorKind, at: Time) {
        let Some(active) = self.active.get(&tag) else {
            return;
        };
        if kind == OriginErrorKind::Denied {
            self.store.borrow_mut().denied_at = Some(at);
        }
        let mut wasted = 0;
        if let Kind::Get(get) = &active.kind
            && let (Some(since), Some(lease)) = (get.flowing_since, get.empty.front())
        {
            // What flowed into the lease that will not be filled.
            let limit = match active.fate {
                Fate::Hang(limit) | Fate::Fail(_, limit) => limit.saturating_sub(get.sent_bytes),
                Fate::Whole => u64::MAX,
            };
            let nanos = at.since(since).as_nanos();
            let flowed = (nanos * u128::from(get.bytes_per_s) / 1_000_000_000) as u64;
            wasted = flowed.min(lease.len() as u64 - 1).min(limit);
            let from = get.offset + get.sent_bytes;
            let mut store = self.store.borrow_mut();
            store.send(at, &get.object, from, wasted);
        } else if let Kind::Get(get) = &active.kind
            && kind == OriginErrorKind::VersionChanged
            && self.rng.chance(500)
        {
            wasted = self.rng.below(get.len_bytes.min(SUB_BLOCK_BYTES as u64));
            let mut store = self.store.borrow_mut();
            store.send(at, &get.object, get.offset, wasted);
        }
        match active.kind {
            Kind::Get(_) => self.finish(tag, Err(error(kind)), wasted),
            Kind::Head(_) => {
                self.forget(tag);
                self.ready.push_back(OriginEvent::Head {
                    tag,
                    result: Err(error(kind)),
                });
            }
            Kind::List(_) => {
                self.forget(tag);
                self.ready.push_back(OriginEvent::List {
                    tag,
                    result: Err(error(kind)),
                });
            }
        }
    }

    fn finish(&mut self, tag: OriginTag, result: Result<(), OriginError>, wasted_bytes: u64) {
        let Some(Active {
            kind: Kind::Get(get),
            ..
        }) = self.forget(tag)
        else {
            return;
        };
        let mut unfilled: Vec<Lease> = get.empty.into();
        let mut store = self.store.borrow_mut();
        if !unfilled.is_empty() && store.take_defect(OriginDefect::LeakedLease) {
            store.leaked.extend(unfilled.pop());
        }
        drop(store);
        self.ready.push_back(OriginEvent::GetDone {
            tag,
            result,
            unfilled,
            wasted_bytes,
        });
    }

    fn forget(&mut self, tag: OriginTag) -> Option<Active> {
        let active = self.active.remove(&tag)?;
        self.steps.remove(active.deadline);
        if let Some(next) = active.next {
            self.steps.remove(next);
        }
        Some(active)
    }
}

fn flow_time(len_bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos((u128::from(len_bytes) * 1_000_000_000 / u128::from(bytes_per_s)) as u64)
}

fn error(kind: OriginErrorKind) -> OriginError {
    OriginError::new(kind, "simulated")
}

fn describe_op(op: &OriginOp) -> String {
    match op {
        OriginOp::Get(get) => {
            let (key, len) = (&get.object.key, get.len_bytes());
            format!(
                "get {} {key} at {} len {len} leases {}",
                get.tag.0,
                get.offset,
                get.leases.len()
            )
        }
        OriginOp::Head(head) => format!("head {} {}", head.tag.0, head.key),
        OriginOp::List(list) => format!("list {} {:?}", list.tag.0, list.request.prefix),
    }
}
