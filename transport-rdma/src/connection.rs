//! One connection: its rules at either end, over its queue pair.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::ports::{RequestHandle, Time, TransportEvent};

use crate::PostError;
use crate::asking::{Asking, Broken, Destroyed};
use crate::limits::{IDLE_S, IDLE_SERVING_S};
use crate::links::LinkRecord;
use crate::rail::Rail;
use crate::serving::{Breach, Serving, Written};
use crate::status::WorkFault;
use crate::wire::{ConnectionId, Wire};

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("the peer broke the protocol: {0}")]
    Broken(#[from] Broken),
    #[error("the peer broke the protocol: {0}")]
    Breach(#[from] Breach),
    #[error("work failed: {0}")]
    Work(#[from] WorkFault),
    #[error("work could not be posted: {0}")]
    Post(#[from] PostError),
    #[error("a completion that makes no sense")]
    Nonsense,
    #[error("the device says that the queue pair is in error")]
    InError,
    #[error("it was tried out in vain: {0}")]
    Tried(Broken),
    #[error("closed: {0}")]
    Closed(&'static str),
}

/// Which end this core is.
pub(crate) enum Side {
    /// Its queue pair is made and waits for the peer's address.
    Offered,
    Asking(Asking),
    Serving(Serving),
}

pub(crate) struct Connection {
    pub wire: Wire,
    pub side: Side,
    /// Which of the core's rails it goes by.
    pub rail: usize,
    /// When it last carried something.
    pub used_at: Time,
    /// What `status` shows of it.
    pub record: Option<Arc<LinkRecord>>,
    /// It is among those that may have something to post.
    pub is_dirty: bool,
    /// Number of the last request of the peer.
    requests: u64,
}

impl Connection {
    pub fn new(wire: Wire, side: Side, rail: usize, now: Time) -> Connection {
        Connection {
            wire,
            side,
            rail,
            used_at: now,
            record: None,
            is_dirty: false,
            requests: 0,
        }
    }

    /// Whether nothing is under way on it.
    pub fn is_idle(&self) -> bool {
        match &self.side {
            Side::Offered => false,
            Side::Asking(asking) => asking.is_idle(),
            Side::Serving(serving) => serving.under_way() == 0 && !serving.has_replies(),
        }
    }

    /// When it is closed if it carries nothing until then.
    pub fn idle_at(&self) -> Time {
        let after_s = match &self.side {
            Side::Offered => return Time::NEVER,
            Side::Asking(_) => IDLE_S,
            Side::Serving(_) => IDLE_SERVING_S,
        };
        match self.is_idle() {
            true => self.used_at + Duration::from_secs(after_s),
            false => Time::NEVER,
        }
    }

    /// Takes a message of the peer, which lies in a slot.
    pub fn received(
        &mut self,
        id: ConnectionId,
        slot: usize,
        len_bytes: usize,
        now: Time,
        message: &mut Vec<u8>,
    ) -> Result<Option<TransportEvent>, Ended> {
        self.used_at = now;
        // Posted again before the peer can learn that it was used.
        self.wire.take_message(slot, len_bytes, message)?;
        match &mut self.side {
            Side::Offered => Err(Ended::Nonsense),
            Side::Asking(asking) => Ok(asking.received(message, now)?),
            Side::Serving(serving) => {
                let handle = RequestHandle(id.join(self.requests));
                let event = serving.received(message, handle, now)?;
                self.requests += u64::from(event.is_some());
                Ok(event)
            }
        }
    }

    /// Work up to one number is done.
    pub fn completed(&mut self, low: u64, tell: impl FnMut(TransportEvent)) -> Result<(), Ended> {
        let work = self.wire.completed(low).ok_or(Ended::Nonsense)?;
        if let Side::Serving(serving) = &mut self.side {
            serving.completed(work, tell);
        }
        Ok(())
    }

    /// Posts all that there is to post and room for.
    pub fn flush(&mut self, rail: &Rail, now: Time) -> Result<(), Ended> {
        let (wire, side) = (&mut self.wire, &mut self.side);
        let mut posted = Ok(());
        match side {
            Side::Offered => {}
            Side::Asking(asking) => {
                while posted.is_ok()
                    && asking.next(wire.messages_room(), now, |message| {
                        if posted.is_ok() {
                            posted = wire.send(message).map(|_| ());
                        }
                    })
                {}
            }
            Side::Serving(serving) => {
                let works_max =
                    forebay_engine::limits::PAYLOAD_PARTS_MAX.div_ceil(rail.elements as usize) + 1;
                while posted.is_ok()
                    && wire.room() >= works_max
                    && wire.messages_room() > 0
                    && serving.next(|written, message| {
                        let written = match written {
                            Some((Written::Payload(payload), to)) => wire.write(rail, payload, to),
                            Some((Written::Trial, to)) => wire.write_trial(rail, to),
                            None => Ok(()),
                        };
                        match written.and_then(|()| wire.send(message)) {
                            Ok(work) => work,
                            Err(error) => {
                                posted = Err(error);
                                u64::MAX
                            }
                        }
                    })
                {}
            }
        }
        posted?;
        Ok(wire.ring()?)
    }

    /// Its requests and answers end, now that its queue pair is destroyed.
    pub fn end(side: Side, destroyed: Destroyed, mut tell: impl FnMut(TransportEvent)) {
        match side {
            Side::Offered => {}
            Side::Asking(asking) => asking.end(destroyed).into_iter().for_each(tell),
            Side::Serving(serving) => serving.end(destroyed, &mut tell),
        }
    }

    /// When it wants to be looked at though nothing came.
    pub fn wake_at(&self) -> Time {
        match (self.wire.drained_at(), &self.side) {
            (Some(at), _) => at,
            (None, Side::Asking(asking)) => asking.wake_at().min(self.idle_at()),
            (None, _) => self.idle_at(),
        }
    }
}
