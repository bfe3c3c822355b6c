//! One connection that a peer asks this core on: its requests, and the answers that are to be written into its memory.
//!
//! No device in here, as in `asking`. Each message of the peer is answered once: a request by its answer, a cancel after it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_engine::limits::{CHUNK_BYTES, PAGE_BYTES, PAYLOAD_PARTS_MAX, PEER_REQUEST_BYTES_MIN};
use forebay_engine::ports::{
    Class, FetchStatus, Payload, PeerAsk, PeerFailure, PeerId, RequestHandle, Time, TransportEvent,
};
use forebay_engine::wire::WireError;
use forebay_engine::wire::header::{Answer, Ask, Request};

use crate::limits::{SLOT_BYTES, TRIAL_BYTES, TRIALS};
use crate::message::{
    CANCEL_TAG, Destination, TRIAL_TAG, cancelled, decode_request, encode_answer, trial, tried,
};

/// Why a peer's connection must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// What came is no request.
    #[error("a request is garbled: {0}")]
    Garbled(#[from] WireError),
    /// More than was granted.
    #[error("it asks for more than it was granted")]
    Credit,
    /// More trials than there are.
    #[error("it tries the connection out again and again")]
    Trial,
    /// Two requests of one tag.
    #[error("it uses the tag of a request that is not answered")]
    Tag,
}

#[derive(Debug)]
struct Open {
    tag: u64,
    class: Class,
    destination: Destination,
    is_fetch: bool,
    cost_bytes: u32,
}

impl Open {
    /// Whether `payload` is an answer to it. What is not would cost the asker the whole connection.
    fn fits(&self, payload: Option<&Payload>) -> bool {
        let (len_bytes, checksums, parts) = payload.map_or((0, 0, 0), |payload| {
            let (checksums, parts) = (payload.checksums.len(), payload.parts.len());
            (payload.len_bytes(), checksums, parts)
        });
        let room_bytes = (self.destination.len_bytes as usize).min(CHUNK_BYTES);
        let right = match self.is_fetch {
            true => len_bytes == room_bytes && checksums == len_bytes.div_ceil(PAGE_BYTES),
            false => len_bytes <= room_bytes && checksums == 0,
        };
        right && parts <= PAYLOAD_PARTS_MAX
    }
}

/// A call whose question is coming.
#[derive(Debug)]
struct Coming {
    request: Request,
    destination: Destination,
    body: Vec<u8>,
}

/// What is written before an answer's message.
#[derive(Clone, Copy, Debug)]
pub enum Written<'a> {
    /// What was asked for.
    Payload(&'a Payload),
    /// A trial's bytes, whatever they are.
    Trial,
}

#[derive(Debug)]
struct Reply {
    answer: Answer,
    destination: Option<Destination>,
    payload: Option<Payload>,
    handle: Option<RequestHandle>,
    cost_bytes: u32,
    is_trial: bool,
}

/// An answer that was posted and is not known to have left.
#[derive(Debug)]
struct Posted {
    work: u64,
    handle: Option<RequestHandle>,
    payload: Option<Payload>,
}

/// A peer's requests.
#[derive(Debug)]
pub struct Serving {
    from: PeerId,
    credit_bytes: u32,
    lent_bytes: u64,
    open: BTreeMap<RequestHandle, Open>,
    by_tag: BTreeMap<u64, RequestHandle>,
    coming: Option<Coming>,
    replies: [VecDeque<Reply>; 3],
    posted: VecDeque<Posted>,
    message: Vec<u8>,
    /// Messages of trials that came.
    trials: u16,
}

impl Serving {
    /// A connection on which nothing was asked.
    pub fn new(from: PeerId, credit_bytes: u32) -> Self {
        Self {
            from,
            credit_bytes,
            lent_bytes: 0,
            open: BTreeMap::new(),
            by_tag: BTreeMap::new(),
            coming: None,
            replies: Default::default(),
            posted: VecDeque::new(),
            message: Vec::with_capacity(SLOT_BYTES),
            trials: 0,
        }
    }

    /// Takes a message. `handle` names the request if this completes one.
    ///
    /// # Errors
    /// Why the connection must be ended.
    pub fn received(
        &mut self,
        bytes: &[u8],
        handle: RequestHandle,
        now: Time,
    ) -> Result<Option<TransportEvent>, Breach> {
        if let Some(mut coming) = self.coming.take() {
            let whole = match coming.request.ask {
                Ask::Call { body_bytes, .. } => body_bytes as usize,
                _ => 0,
            };
            coming.body.extend_from_slice(bytes);
            if bytes.is_empty() || coming.body.len() > whole {
                return Err(WireError::Limit("length").into());
            }
            if coming.body.len() < whole {
                self.coming = Some(coming);
                return Ok(None);
            }
            let body = Some(coming.body.into_boxed_slice());
            return Ok(Some(self.open(
                coming.request,
                coming.destination,
                body,
                handle,
                now,
            )));
        }
        let (request, destination) = decode_request(bytes)?;
        if request.tag & CANCEL_TAG != 0 {
            return Err(WireError::Unknown("tag").into());
        }
        if request.tag & TRIAL_TAG != 0 {
            return self.try_out(&request, destination).map(|()| None);
        }
        let room = match request.ask {
            Ask::Cancel => {
                if destination.is_some() {
                    return Err(WireError::Unknown("request").into());
                }
                self.cancel(request.tag);
                return Ok(None);
            }
            Ask::Fetch(fetch) => fetch.len_bytes,
            Ask::Call { room_bytes, .. } => room_bytes,
        };
        let destination = destination
            .filter(|destination| destination.len_bytes == room)
            .ok_or(WireError::Limit("destination"))?;
        if self.by_tag.contains_key(&request.tag) {
            return Err(Breach::Tag);
        }
        self.lent_bytes += u64::from(cost_bytes(room));
        if self.lent_bytes > u64::from(self.credit_bytes) {
            return Err(Breach::Credit);
        }
        if matches!(request.ask, Ask::Call { .. }) {
            self.coming = Some(Coming {
                request,
                destination,
                body: Vec::new(),
            });
            return Ok(None);
        }
        Ok(Some(self.open(request, destination, None, handle, now)))
    }

    /// The asker tries the connection out.
    fn try_out(
        &mut self,
        request: &Request,
        destination: Option<Destination>,
    ) -> Result<(), Breach> {
        let is_large = destination.is_some();
        let right = destination.is_none_or(|to| to.len_bytes as usize == TRIAL_BYTES);
        if *request != trial(is_large) || !right {
            return Err(WireError::Unknown("trial").into());
        }
        // Nothing else bounds them.
        self.trials += 1;
        if self.trials > TRIALS {
            return Err(Breach::Trial);
        }
        self.replies[Class::Demand as usize].push_back(Reply {
            answer: tried(is_large),
            destination,
            payload: None,
            handle: None,
            cost_bytes: 0,
            is_trial: true,
        });
        Ok(())
    }

    fn open(
        &mut self,
        request: Request,
        destination: Destination,
        body: Option<Box<[u8]>>,
        handle: RequestHandle,
        now: Time,
    ) -> TransportEvent {
        let (class, ask) = match request.ask {
            Ask::Fetch(fetch) => (fetch.class, PeerAsk::Fetch(fetch)),
            Ask::Call {
                class, room_bytes, ..
            } => {
                let body = body.unwrap_or_default();
                (class, PeerAsk::Call { body, room_bytes })
            }
            Ask::Cancel => unreachable!("cancels are never opened"),
        };
        let open = Open {
            tag: request.tag,
            class,
            destination,
            is_fetch: matches!(request.ask, Ask::Fetch(_)),
            cost_bytes: cost_bytes(destination.len_bytes),
        };
        self.by_tag.insert(open.tag, handle);
        self.open.insert(handle, open);
        TransportEvent::Request {
            handle,
            peer: self.from,
            ask,
            deadline: now + Duration::from_micros(request.remaining_us.into()),
        }
    }

    /// The asker gave a request up: it gets a short answer, and the core's goes nowhere.
    fn cancel(&mut self, tag: u64) {
        if let Some(handle) = self.by_tag.get(&tag).copied() {
            let status = FetchStatus::Failed(PeerFailure::Deadline);
            let Some(open) = self.close(handle) else {
                return;
            };
            self.reply(&open, None, status, None);
        }
        // In the line of the request's own answer, which may wait there still: behind it.
        let class = self.class_of(tag);
        self.replies[class].push_back(Reply {
            answer: cancelled(tag),
            destination: None,
            payload: None,
            handle: None,
            cost_bytes: 0,
            is_trial: false,
        });
    }

    /// Where the answer to a tag waits.
    fn class_of(&self, tag: u64) -> usize {
        let waits = |queue: &VecDeque<Reply>| queue.iter().any(|reply| reply.answer.tag == tag);
        self.replies.iter().position(waits).unwrap_or(0)
    }

    fn close(&mut self, handle: RequestHandle) -> Option<Open> {
        let open = self.open.remove(&handle)?;
        self.by_tag.remove(&open.tag);
        Some(open)
    }

    /// Answers a request.
    ///
    /// # Errors
    /// The payload, when nobody waits for the answer any more.
    pub fn answer(
        &mut self,
        handle: RequestHandle,
        status: FetchStatus,
        payload: Option<Payload>,
    ) -> Result<(), Option<Payload>> {
        let Some(open) = self.close(handle) else {
            return Err(payload);
        };
        self.reply(&open, Some(handle), status, payload);
        Ok(())
    }

    fn reply(
        &mut self,
        open: &Open,
        handle: Option<RequestHandle>,
        status: FetchStatus,
        payload: Option<Payload>,
    ) {
        let fits = status == FetchStatus::Bytes && open.fits(payload.as_ref());
        let status = match (status, fits) {
            (FetchStatus::Bytes, false) => FetchStatus::Failed(PeerFailure::Invalid),
            (status, _) => status,
        };
        let sent = payload.as_ref().filter(|_| fits);
        let answer = Answer {
            tag: open.tag,
            status,
            len_bytes: sent.map_or(0, |payload| payload.len_bytes() as u32),
            checksums: sent.map_or(0, |payload| payload.checksums.len() as u16),
        };
        self.replies[open.class as usize].push_back(Reply {
            answer,
            destination: fits.then_some(open.destination),
            payload,
            handle,
            cost_bytes: open.cost_bytes,
            is_trial: false,
        });
    }

    /// The next answer: `post` is given what is to be written and where, if anything, and the message that follows it, and says which
    /// work request will complete last. False when there is none.
    pub fn next(
        &mut self,
        post: impl FnOnce(Option<(Written<'_>, Destination)>, &[u8]) -> u64,
    ) -> bool {
        let Some(reply) = self.replies.iter_mut().find_map(VecDeque::pop_front) else {
            return false;
        };
        let payload = reply
            .payload
            .as_ref()
            .filter(|_| reply.destination.is_some());
        let checksums = payload.map_or(&[][..], |payload| &payload.checksums);
        encode_answer(&reply.answer, checksums, &mut self.message);
        let written = match payload {
            Some(payload) if payload.parts.is_empty() => None,
            Some(payload) => Some(Written::Payload(payload)),
            None => reply.is_trial.then_some(Written::Trial),
        };
        let written = written.zip(reply.destination);
        let work = post(written, &self.message);
        // Now, not when it completes: the asker may have the answer before this side knows that it left.
        self.lent_bytes -= u64::from(reply.cost_bytes);
        self.posted.push_back(Posted {
            work,
            handle: reply.handle,
            payload: reply.payload,
        });
        true
    }

    /// Work requests up to `work` have completed, and nothing reads their payloads any more: queue pairs complete in order.
    pub fn completed(&mut self, work: u64, mut tell: impl FnMut(TransportEvent)) {
        while let Some(posted) = self.posted.pop_front_if(|posted| posted.work <= work) {
            if let Some(handle) = posted.handle {
                let payload = posted.payload;
                tell(TransportEvent::Answered { handle, payload });
            }
        }
    }

    /// Requests that are not answered.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// Whether answers wait to be posted.
    pub fn has_replies(&self) -> bool {
        self.replies.iter().any(|queue| !queue.is_empty())
    }

    /// States and messages, for models: addresses left out.
    #[cfg(test)]
    fn outline(&self) -> String {
        let replies = self.replies.iter().flatten().map(|reply| reply.answer);
        format!(
            "{:?} {:?} {} {}",
            self.by_tag.keys(),
            replies.collect::<Vec<_>>(),
            self.posted.len(),
            self.lent_bytes
        )
    }

    /// The connection is gone, with its queue pair: what was to be answered ends.
    pub fn end(self, _destroyed: crate::asking::Destroyed, mut tell: impl FnMut(TransportEvent)) {
        let waiting = self.replies.into_iter().flatten();
        let waiting = waiting.map(|reply| (reply.handle, reply.payload));
        let posted = self.posted.into_iter();
        for (handle, payload) in posted
            .map(|posted| (posted.handle, posted.payload))
            .chain(waiting)
        {
            if let Some(handle) = handle {
                tell(TransportEvent::Answered { handle, payload });
            }
        }
    }
}

fn cost_bytes(asked_bytes: u32) -> u32 {
    asked_bytes.max(PEER_REQUEST_BYTES_MIN as u32)
}

#[cfg(test)]
#[path = "late_writes.rs"]
mod late_writes;

#[cfg(test)]
#[path = "trial_tests.rs"]
mod trial_tests;
