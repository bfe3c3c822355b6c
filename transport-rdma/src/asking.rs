//! One connection that this core asks on: what is under way on it, and whose leases the peer may still write into.
//!
//! No device in here: the transport posts what [`Asking::next`] gives, and tells what arrives. So a model can go through every order of events.
//!
//! A request: queued -> sent -> (given up ->) answered. Its lease leaves in two ways only: with its answer, behind which the peer
//! writes no more, or by [`Asking::end`], for which the queue pair must have been destroyed.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use forebay_engine::arena::Lease;
use forebay_engine::limits::{CALL_BYTES_MAX, PAGE_BYTES, PEER_REQUEST_BYTES_MIN};
use forebay_engine::ports::{
    Class, FetchStatus, FetchTag, Full, Time, TransportError, TransportEvent, TransportOp,
};
use forebay_engine::wire::WireError;
use forebay_engine::wire::header::{Answer, Ask, Request};
use slab::Slab;

use crate::limits::{FLUSH_MS, SLOT_BYTES, TRIAL_BYTES, TRIAL_MS, TRIALS};
use crate::message::{
    CANCEL_TAG, Destination, TRIAL_TAG, decode_answer, encode_request, trial, tried,
};

/// Shows that a queue pair is destroyed: nothing that its peer has sent lands any more.
#[derive(Debug)]
pub struct Destroyed(());

impl Destroyed {
    /// For what destroys queue pairs, and for models of it.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// What the serving end has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Messages that may be on their way to it.
    pub messages: u16,
    /// Bytes of answers that may be under way.
    pub credit_bytes: u32,
}

/// Why a connection must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// What came is no answer.
    #[error("an answer is garbled: {0}")]
    Garbled(#[from] WireError),
    /// An answer to nothing.
    #[error("it answers what was not asked")]
    NotAsked,
    /// An answer that does not fit.
    #[error("an answer has another length than was asked for")]
    Length,
    /// Nothing came of trying it out.
    #[error("nothing comes back over it within {TRIAL_MS} ms")]
    NothingPasses,
    /// Short messages came, and no long one.
    #[error(
        "short messages pass, and a write of {TRIAL_BYTES} bytes does not within {TRIAL_MS} ms: the MTUs of ports and switches on the way differ, most likely"
    )]
    NothingLargePasses,
    /// A request that was given up is not answered.
    #[error("a request that was given up stays unanswered")]
    Silent,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Queued,
    Sent,
    /// Since when, and what the engine will be told.
    GivenUp(Time, TransportError),
    /// Its answer broke the protocol.
    Broke,
}

#[derive(Debug)]
struct Asked {
    name: FetchTag,
    tag: u64,
    lease: Lease,
    ask: Ask,
    body: Option<Box<[u8]>>,
    cost_bytes: u32,
    deadline: Time,
    state: State,
}

impl Asked {
    /// Messages that it consists of, without its cancel.
    fn messages(&self) -> usize {
        1 + self
            .body
            .as_ref()
            .map_or(0, |body| body.len().div_ceil(SLOT_BYTES))
    }

    fn fits(&self, answer: &Answer) -> bool {
        let len_bytes = self.lease.len();
        match self.ask {
            Ask::Fetch(_) => {
                answer.len_bytes as usize == len_bytes
                    && usize::from(answer.checksums) == len_bytes.div_ceil(PAGE_BYTES)
            }
            _ => answer.len_bytes as usize <= len_bytes && answer.checksums == 0,
        }
    }

    fn class(&self) -> Class {
        match self.ask {
            Ask::Fetch(fetch) => fetch.class,
            Ask::Call { class, .. } => class,
            Ask::Cancel => Class::Demand,
        }
    }
}

/// A connection that is tried out.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Where the peer is to write.
    to: Destination,
    sent: u16,
    answered: u16,
    until: Time,
}

/// A connection's requests.
#[derive(Debug)]
pub struct Asking {
    /// Until it is known to carry what is long.
    trial: Option<Trial>,
    grant: Grant,
    /// Key of the region that all leases lie in.
    key: u32,
    used_messages: usize,
    used_bytes: u64,
    asked: Slab<Asked>,
    numbers: u64,
    /// Not sent yet, by class.
    queues: [VecDeque<usize>; 3],
    /// Tags whose cancel is to be sent.
    cancels: VecDeque<u64>,
    /// Tags whose cancel was sent and is not answered.
    cancelled: BTreeSet<u64>,
    deadlines: BTreeSet<(Time, usize)>,
    /// When requests were given up that are not answered: the oldest first.
    given_up: BTreeSet<(Time, usize)>,
    used_at: Time,
}

/// Slots of a tag: the low bits say where, those above which of those that were there.
const TAG_SLOT_BITS: u32 = 16;
const TAG_NUMBERS: u64 = (1 << (62 - TAG_SLOT_BITS)) - 1;

impl Asking {
    /// A connection on which nothing was asked.
    pub fn new(grant: Grant, key: u32, now: Time) -> Self {
        Self {
            trial: None,
            grant,
            key,
            used_messages: 0,
            used_bytes: 0,
            asked: Slab::new(),
            numbers: 0,
            queues: Default::default(),
            cancels: VecDeque::new(),
            cancelled: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            given_up: BTreeSet::new(),
            used_at: now,
        }
    }

    /// Tries the connection out before anything is asked on it: the peer is to write [`TRIAL_BYTES`] to `address`, which
    /// lie in the region of `key`, and may hold anything.
    pub fn try_out(&mut self, address: u64, key: u32, now: Time) {
        self.trial = Some(Trial {
            to: Destination {
                address,
                key,
                len_bytes: TRIAL_BYTES as u32,
            },
            sent: 0,
            answered: 0,
            until: now + Duration::from_millis(TRIAL_MS),
        });
        self.used_messages += usize::from(TRIALS);
    }

    /// Whether that is under way.
    pub fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// The next message of the trial; false when all are sent.
    fn next_trial(&mut self, send: impl FnOnce(&[u8])) -> bool {
        let Some(under_way) = self.trial.as_mut().filter(|trial| trial.sent < TRIALS) else {
            return false;
        };
        let is_large = under_way.sent > 0;
        under_way.sent += 1;
        let (bytes, len) = encode_request(&trial(is_large), is_large.then_some(under_way.to));
        send(&bytes[..len]);
        true
    }

    /// A message of the trial is answered, in their order.
    fn tried(&mut self, answer: &Answer) -> Result<(), Broken> {
        let trial = self.trial.as_mut().ok_or(Broken::NotAsked)?;
        let is_large = trial.answered > 0;
        if trial.answered >= trial.sent || *answer != tried(is_large) {
            return Err(Broken::NotAsked);
        }
        trial.answered += 1;
        self.used_messages -= 1;
        if trial.answered == TRIALS {
            self.trial = None;
        }
        Ok(())
    }

    /// Takes a fetch or call, or gives it back when what was granted is used up.
    ///
    /// # Errors
    /// [`Full`] with the operation, untouched.
    #[allow(clippy::result_large_err)]
    pub fn ask(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        let body_bytes = match &op {
            TransportOp::Call { body, .. } => body.len(),
            _ => 0,
        };
        let (TransportOp::Fetch { lease, .. } | TransportOp::Call { lease, .. }) = &op else {
            return Err(Full(op));
        };
        // With its cancel.
        let messages = 2 + body_bytes.div_ceil(SLOT_BYTES);
        let cost_bytes = lease.len().max(PEER_REQUEST_BYTES_MIN) as u32;
        let used_bytes = self.used_bytes + u64::from(cost_bytes);
        if self.used_messages + messages > usize::from(self.grant.messages)
            || used_bytes > u64::from(self.grant.credit_bytes)
        {
            return Err(Full(op));
        }
        let Some((name, ask, body, lease, deadline)) = parts(op) else {
            return Ok(());
        };
        self.used_messages += messages;
        self.used_bytes = used_bytes;
        self.numbers = (self.numbers + 1) & TAG_NUMBERS;
        let slot = self.asked.vacant_key();
        let asked = Asked {
            name,
            tag: self.numbers << TAG_SLOT_BITS | slot as u64,
            lease,
            ask,
            body,
            cost_bytes,
            deadline,
            state: State::Queued,
        };
        self.queues[asked.class() as usize].push_back(slot);
        self.deadlines.insert((deadline, slot));
        self.asked.insert(asked);
        Ok(())
    }

    /// The next request or cancel, message by message, each at most [`SLOT_BYTES`]. False when there is none, or when it has more messages than `room`.
    pub fn next(&mut self, room: usize, now: Time, mut send: impl FnMut(&[u8])) -> bool {
        if room == 0 {
            return false;
        }
        if self.next_trial(&mut send) {
            return true;
        }
        if let Some(tag) = self.cancels.pop_front() {
            self.cancelled.insert(tag);
            let (remaining_us, ask) = (0, Ask::Cancel);
            let cancel = Request {
                tag,
                remaining_us,
                ask,
            };
            let (bytes, len) = encode_request(&cancel, None);
            send(&bytes[..len]);
            return true;
        }
        let Some(class) = self.queues.iter().position(|queue| !queue.is_empty()) else {
            return false;
        };
        let Some(asked) = self.queues[class]
            .front()
            .and_then(|slot| self.asked.get_mut(*slot))
        else {
            return false;
        };
        if asked.messages() > room {
            return false;
        }
        self.queues[class].pop_front();
        let remaining_us = asked.deadline.since(now).as_micros();
        let request = Request {
            tag: asked.tag,
            remaining_us: u32::try_from(remaining_us).unwrap_or(u32::MAX),
            ask: asked.ask,
        };
        let destination = Destination {
            address: asked.lease.bytes().as_ptr() as u64,
            key: self.key,
            len_bytes: asked.lease.len() as u32,
        };
        let (bytes, len) = encode_request(&request, Some(destination));
        send(&bytes[..len]);
        for part in asked.body.iter().flat_map(|body| body.chunks(SLOT_BYTES)) {
            send(part);
        }
        asked.state = State::Sent;
        self.used_at = now;
        true
    }

    /// Takes an answer. None for what only frees a message.
    ///
    /// # Errors
    /// Why the connection must be ended.
    pub fn received(&mut self, bytes: &[u8], now: Time) -> Result<Option<TransportEvent>, Broken> {
        let (answer, checksums) = decode_answer(bytes)?;
        if answer.tag & TRIAL_TAG != 0 {
            return self.tried(&answer).map(|()| None);
        }
        if answer.tag & CANCEL_TAG != 0 {
            // The answer to the request itself came before.
            let tag = answer.tag & !CANCEL_TAG;
            if self.slot_of(tag).is_ok() || !self.cancelled.remove(&tag) {
                return Err(Broken::NotAsked);
            }
            self.used_messages -= 1;
            return Ok(None);
        }
        let slot = self.slot_of(answer.tag)?;
        let asked = &mut self.asked[slot];
        if asked.state == State::Queued {
            return Err(Broken::NotAsked);
        }
        if answer.status == FetchStatus::Bytes && !asked.fits(&answer) {
            asked.state = State::Broke;
            return Err(Broken::Length);
        }
        self.used_at = now;
        Ok(Some(self.answered(slot, answer, checksums)))
    }

    fn slot_of(&self, tag: u64) -> Result<usize, Broken> {
        let slot = (tag & ((1 << TAG_SLOT_BITS) - 1)) as usize;
        let found = self.asked.get(slot).filter(|asked| asked.tag == tag);
        found.map(|_| slot).ok_or(Broken::NotAsked)
    }

    fn answered(&mut self, slot: usize, answer: Answer, checksums: Vec<u32>) -> TransportEvent {
        let asked = self.take(slot);
        let (result, len_bytes, checksums) = match asked.state {
            State::GivenUp(_, error) => (Err(error), 0, Vec::new()),
            _ => (Ok(answer.status), answer.len_bytes, checksums),
        };
        TransportEvent::Fetched {
            tag: asked.name,
            lease: asked.lease,
            result,
            len_bytes,
            checksums,
        }
    }

    /// Takes a request out, with what it used.
    fn take(&mut self, slot: usize) -> Asked {
        let asked = self.asked.remove(slot);
        self.deadlines.remove(&(asked.deadline, slot));
        if let State::GivenUp(since, _) = asked.state {
            self.given_up.remove(&(since, slot));
        }
        self.used_bytes -= u64::from(asked.cost_bytes);
        self.used_messages -= asked.messages();
        // Its cancel stays under way when it was sent, and is not needed when it was not.
        if let Some(at) = self.cancels.iter().position(|tag| *tag == asked.tag) {
            self.cancels.remove(at);
        }
        if !self.cancelled.contains(&asked.tag) {
            self.used_messages -= 1;
        }
        asked
    }

    /// Gives a request up. What was not sent ends at once.
    pub fn cancel(&mut self, name: FetchTag, now: Time) -> Option<TransportEvent> {
        // Cancelling is rare and requests are few: no table by name is kept for it.
        let (slot, _) = self.asked.iter().find(|(_, asked)| asked.name == name)?;
        self.give_up(slot, TransportError::Cancelled, now)
    }

    fn give_up(&mut self, slot: usize, error: TransportError, now: Time) -> Option<TransportEvent> {
        let asked = self.asked.get_mut(slot)?;
        match asked.state {
            State::Sent => {
                asked.state = State::GivenUp(now, error);
                self.deadlines.remove(&(asked.deadline, slot));
                self.given_up.insert((now, slot));
                self.cancels.push_back(asked.tag);
                None
            }
            State::Queued => {
                let asked = self.take(slot);
                self.queues[asked.class() as usize].retain(|queued| *queued != slot);
                Some(ended(asked, error))
            }
            State::GivenUp(..) | State::Broke => None,
        }
    }

    /// Gives up what is over its deadline; events of what ends by that.
    ///
    /// # Errors
    /// When the peer keeps a lease that was given up: the connection must be ended.
    pub fn tick(&mut self, now: Time, mut tell: impl FnMut(TransportEvent)) -> Result<(), Broken> {
        while let Some((deadline, slot)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            if let Some(event) = self.give_up(slot, TransportError::Timeout, now) {
                tell(event);
            }
        }
        if let Some(trial) = self.trial.filter(|trial| trial.until <= now) {
            return Err(match trial.answered {
                0 => Broken::NothingPasses,
                _ => Broken::NothingLargePasses,
            });
        }
        match self.given_up.first() {
            Some((since, _)) if *since + Duration::from_millis(FLUSH_MS) <= now => {
                Err(Broken::Silent)
            }
            _ => Ok(()),
        }
    }

    /// When [`Asking::tick`] has something to do.
    pub fn wake_at(&self) -> Time {
        let first = |times: &BTreeSet<(Time, usize)>| times.first().map(|(time, _)| *time);
        let silent = first(&self.given_up).map(|since| since + Duration::from_millis(FLUSH_MS));
        let deadline = first(&self.deadlines).unwrap_or(Time::NEVER);
        let trial = self.trial.map_or(Time::NEVER, |trial| trial.until);
        deadline.min(silent.unwrap_or(Time::NEVER)).min(trial)
    }

    /// Bytes of answers that are under way, as they are counted against what was granted.
    pub fn under_way_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Whether anything is under way.
    pub fn is_idle(&self) -> bool {
        let nothing = self.asked.is_empty() && self.cancelled.is_empty() && self.cancels.is_empty();
        nothing && self.trial.is_none()
    }

    /// When it last carried something.
    pub fn used_at(&self) -> Time {
        self.used_at
    }

    /// Requests whose leases it holds.
    pub fn under_way(&self) -> usize {
        self.asked.len()
    }

    /// States and messages, for models: addresses left out.
    #[cfg(test)]
    pub(crate) fn outline(&self) -> String {
        let asked: Vec<_> = self
            .asked
            .iter()
            .map(|(_, asked)| (asked.tag, &asked.state))
            .collect();
        format!(
            "{asked:?} {:?} {:?} {}",
            self.cancels, self.cancelled, self.used_messages
        )
    }

    /// Messages and bytes in use.
    #[cfg(test)]
    pub(crate) fn used(&self) -> (usize, u64) {
        (self.used_messages, self.used_bytes)
    }

    /// All requests end, now that nothing can be written into their leases any more.
    pub fn end(mut self, _destroyed: Destroyed) -> Vec<TransportEvent> {
        let slots: Vec<usize> = self.asked.iter().map(|(slot, _)| slot).collect();
        let ends = slots.into_iter().map(|slot| {
            let asked = self.asked.remove(slot);
            let error = match asked.state {
                State::GivenUp(_, error) => error,
                State::Broke => TransportError::Protocol,
                State::Queued | State::Sent => TransportError::Unreachable,
            };
            ended(asked, error)
        });
        ends.collect()
    }
}

fn ended(asked: Asked, error: TransportError) -> TransportEvent {
    TransportEvent::Fetched {
        tag: asked.name,
        lease: asked.lease,
        result: Err(error),
        len_bytes: 0,
        checksums: Vec::new(),
    }
}

type Parts = (FetchTag, Ask, Option<Box<[u8]>>, Lease, Time);

fn parts(op: TransportOp) -> Option<Parts> {
    match op {
        TransportOp::Fetch {
            tag,
            request,
            lease,
            deadline,
            ..
        } => Some((tag, Ask::Fetch(request), None, lease, deadline)),
        TransportOp::Call {
            tag,
            class,
            body,
            lease,
            deadline,
            ..
        } => {
            let ask = Ask::Call {
                class,
                body_bytes: body.len() as u32,
                room_bytes: lease.len() as u32,
            };
            Some((tag, ask, Some(body), lease, deadline))
        }
        TransportOp::Answer { .. } => None,
    }
}

/// Whether the protocol has a form for a request; else it must be refused before [`Asking::ask`].
pub fn is_valid(op: &TransportOp) -> bool {
    match op {
        TransportOp::Fetch { request, lease, .. } => request.len_bytes as usize == lease.len(),
        TransportOp::Call { body, .. } => (1..=CALL_BYTES_MAX).contains(&body.len()),
        TransportOp::Answer { .. } => false,
    }
}
