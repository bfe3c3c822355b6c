//! One connection's queue pair and slots: posts what its rules say, and counts what is under way.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_engine::ports::{Payload, Time};

use crate::asking::Destroyed;
use crate::limits::{
    DESTROY_PAUSE_MS, DRAIN_MS, RECEIVES, SEND_SLOTS, SENDS, SLOT_BYTES, TRIAL_BYTES,
    UNSIGNALLED_MAX,
};
use crate::message::Destination;
use crate::rail::Rail;
use crate::{
    Access, Batch, ConnectSteps, MemoryRegion, PostError, PrepareStep, QueuePair, RemoteSlice,
    VerbsError,
};

/// Names a connection of one core; not used again while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u32);

/// Numbers of connections fit above those of work, below the mark of receives.
const ID_BITS: u32 = 23;
const NUMBER_BITS: u32 = 40;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const RECEIVE: u64 = 1 << 63;

impl ConnectionId {
    pub(crate) fn after(self) -> ConnectionId {
        ConnectionId(((self.0 + 1) & ((1 << ID_BITS) - 1)).max(1))
    }

    /// The number `n` of this connection, as completions and handles carry it.
    pub(crate) fn join(self, n: u64) -> u64 {
        u64::from(self.0) << NUMBER_BITS | n & NUMBER_MASK
    }

    pub(crate) fn of(joined: u64) -> ConnectionId {
        ConnectionId(((joined & !RECEIVE) >> NUMBER_BITS) as u32)
    }
}

/// What a completion's number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A receive, by its slot.
    Receive(usize),
    /// A send or write, by the low bits of its number.
    Send(u64),
}

impl Work {
    pub fn of(joined: u64) -> Work {
        match joined & RECEIVE {
            0 => Work::Send(joined & NUMBER_MASK),
            _ => Work::Receive((joined & NUMBER_MASK) as usize),
        }
    }
}

pub(crate) struct Wire {
    // Before the slots: destroyed first.
    pair: QueuePair,
    /// `RECEIVES` slots for what comes, then `SEND_SLOTS` for what goes. Peers cannot reach them.
    slots: MemoryRegion,
    id: ConnectionId,
    batch: Batch,
    /// Number of the last work that was gathered, and of the last that is known to be done.
    sent: u64,
    done: u64,
    unsignalled: u64,
    /// Work numbers that hold send slots, in the slots' order, and how many ever did.
    held: VecDeque<u64>,
    slots_held: usize,
    /// Receives posted and not come back.
    receives: usize,
    /// Since when it is in error.
    failed: Option<Time>,
    /// The device did not destroy it; when that is tried again.
    destroy_at: Option<Time>,
}

impl Wire {
    /// A queue pair of the rail, not connected, with its receives posted.
    pub fn new(rail: &Rail, id: ConnectionId, prepare: &PrepareStep) -> Result<Wire, VerbsError> {
        let pair = rail.queue_pair(prepare)?;
        let count = usize::from(RECEIVES) + SEND_SLOTS;
        let slots = MemoryRegion::new(&rail.domain, count * SLOT_BYTES, Access::LOCAL)?;
        let mut wire = Wire {
            pair,
            slots,
            id,
            batch: Batch::default(),
            sent: 0,
            done: 0,
            unsignalled: 0,
            held: VecDeque::new(),
            slots_held: 0,
            receives: 0,
            failed: None,
            destroy_at: None,
        };
        for slot in 0..usize::from(RECEIVES) {
            wire.post_receive(slot)
                .map_err(|error| VerbsError::Unusable {
                    object: format!("queue pair {}", wire.pair.number()),
                    what: format!("takes no receive: {error}"),
                })?;
        }
        Ok(wire)
    }

    /// The number of its queue pair.
    pub fn queue_pair(&self) -> u32 {
        self.pair.number()
    }

    /// Whether its queue pair is the one that an event is of.
    pub fn is_at(&self, address: u64) -> bool {
        self.pair.is_at(address)
    }

    pub fn connect(&self, steps: &ConnectSteps) -> Result<(), VerbsError> {
        self.pair.connect_by(steps)
    }

    /// Lets the peer write into the arena; only after it has proven who it is.
    pub fn let_write(&self) -> Result<(), VerbsError> {
        self.pair.allow(Access {
            remote_write: true,
            ..Access::LOCAL
        })
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), PostError> {
        let to = self.slots.slice(slot * SLOT_BYTES, SLOT_BYTES)?;
        self.pair
            .post_receive(RECEIVE | self.id.join(slot as u64), to)?;
        self.receives += 1;
        Ok(())
    }

    /// A receive has come back, filled or not.
    pub fn came_back(&mut self) {
        self.receives = self.receives.saturating_sub(1);
    }

    /// Copies a message out of its slot, and posts the slot again. The copy is what is checked: a peer that goes on
    /// sending cannot change it. Slot and length are what the device says.
    pub fn take_message(
        &mut self,
        slot: usize,
        len_bytes: usize,
        message: &mut Vec<u8>,
    ) -> Result<(), PostError> {
        if slot >= usize::from(RECEIVES) || len_bytes > SLOT_BYTES {
            return Err(PostError::OutsideRegion {
                offset_bytes: slot.saturating_mul(SLOT_BYTES),
                len_bytes,
                region_bytes: usize::from(RECEIVES) * SLOT_BYTES,
            });
        }
        message.resize(len_bytes, 0);
        self.slots.read_at(slot * SLOT_BYTES, message)?;
        self.post_receive(slot)
    }

    /// Pieces of work that may be gathered now.
    pub fn room(&self) -> usize {
        (u64::from(SENDS) - (self.sent - self.done)) as usize
    }

    /// Messages that may be gathered now, whatever their length.
    pub fn messages_room(&self) -> usize {
        self.room().min(SEND_SLOTS - self.held.len())
    }

    /// Work up to this number, of which the low bits are known, is done. The number in full; none when no such work
    /// is under way, whatever the device says.
    pub fn completed(&mut self, low: u64) -> Option<u64> {
        self.done = done_up_to(self.done, self.sent, low)?;
        while self.held.pop_front_if(|work| *work <= self.done).is_some() {}
        Some(self.done)
    }

    fn number(&mut self) -> u64 {
        self.sent += 1;
        self.unsignalled += 1;
        self.id.join(self.sent)
    }

    fn gathered(&mut self) {
        if self.unsignalled >= UNSIGNALLED_MAX {
            self.batch.signal_last();
            self.unsignalled = 0;
        }
    }

    /// Gathers a message; its work's number.
    pub fn send(&mut self, message: &[u8]) -> Result<u64, PostError> {
        let work = self.number();
        if message.len() <= self.pair.inline_bytes() {
            self.batch.send_inline(work, message);
        } else {
            let slot = usize::from(RECEIVES) + self.slots_held % SEND_SLOTS;
            self.slots.write_at(slot * SLOT_BYTES, message)?;
            self.batch
                .send_at(work, &self.slots, slot * SLOT_BYTES, message.len())?;
            self.slots_held += 1;
            self.held.push_back(self.sent);
        }
        self.gathered();
        Ok(self.sent)
    }

    /// Gathers the writes of a payload.
    pub fn write(
        &mut self,
        rail: &Rail,
        payload: &Payload,
        to: Destination,
    ) -> Result<(), PostError> {
        let mut at = to.address;
        for parts in payload.parts.chunks(rail.elements as usize) {
            let work = self.number();
            let target = RemoteSlice {
                address: at,
                key: to.key,
            };
            let parts = parts.iter().map(|part| &**part);
            at += parts.clone().map(|part| part.len() as u64).sum::<u64>();
            self.batch.write(work, &rail.arena, parts, target)?;
            self.gathered();
        }
        Ok(())
    }

    /// Gathers the write of a trial's bytes.
    pub fn write_trial(&mut self, rail: &Rail, to: Destination) -> Result<(), PostError> {
        let work = self.number();
        let target = RemoteSlice {
            address: to.address,
            key: to.key,
        };
        self.batch
            .write_at(work, &rail.trial, (0, TRIAL_BYTES), target)?;
        self.gathered();
        Ok(())
    }

    /// Posts what was gathered. The last of it is signalled, so that a queue that falls silent is known to be done.
    pub fn ring(&mut self) -> Result<(), PostError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.batch.signal_last();
        self.unsignalled = 0;
        self.pair.post_batch(&mut self.batch)
    }

    /// Puts it into error. From now on nothing is posted: SoftRoCE never gives back what is posted after this.
    pub fn fail(&mut self, now: Time) {
        if self.failed.is_none() {
            self.failed = Some(now);
            if let Err(error) = self.pair.fail() {
                // The device may be gone; destroying it ends it as well.
                tracing::debug!("{error}");
            }
        }
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// When it may be destroyed at the latest; none while it works.
    pub fn drained_at(&self) -> Option<Time> {
        let latest = self.failed? + Duration::from_millis(DRAIN_MS);
        let drained = if self.receives == 0 { Time(0) } else { latest };
        Some(self.destroy_at.unwrap_or(drained))
    }

    /// Destroys the queue pair, then its slots.
    ///
    /// # Errors
    /// Itself, and the device's reason: the peer may still write. It may be tried again after a pause.
    pub fn destroy(mut self, now: Time) -> Result<Destroyed, Box<(Wire, VerbsError)>> {
        match self.pair.destroy() {
            Ok(destroyed) => Ok(destroyed),
            Err(left) => {
                let (pair, why) = *left;
                self.pair = pair;
                self.destroy_at = Some(now + Duration::from_millis(DESTROY_PAUSE_MS));
                Err(Box::new((self, why)))
            }
        }
    }
}

/// The number whose low bits are `low`, if it lies above `done` and not above `sent`.
fn done_up_to(done: u64, sent: u64, low: u64) -> Option<u64> {
    let further = low.wrapping_sub(done) & NUMBER_MASK;
    (1..=sent - done)
        .contains(&further)
        .then_some(done + further)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_connections_and_work_come_apart_again() {
        let last = ConnectionId((1 << ID_BITS) - 1);
        for id in [ConnectionId(1), ConnectionId(77), last] {
            for n in [0, 1, 127, NUMBER_MASK] {
                let joined = id.join(n);
                assert_eq!(ConnectionId::of(joined), id);
                assert_eq!(Work::of(joined), Work::Send(n));
                assert_eq!(ConnectionId::of(RECEIVE | joined), id);
                assert_eq!(Work::of(RECEIVE | joined), Work::Receive(n as usize));
            }
        }
        assert_eq!(last.after(), ConnectionId(1));
        assert_eq!(ConnectionId(1).after(), ConnectionId(2));
    }

    #[test]
    fn only_work_that_is_under_way_is_taken_as_done() {
        assert_eq!(done_up_to(5, 9, 6), Some(6));
        assert_eq!(done_up_to(5, 9, 9), Some(9));
        // Told twice, long ago, never posted.
        for low in [5, 4, 0, 10, NUMBER_MASK] {
            assert_eq!(done_up_to(5, 9, low), None, "{low}");
        }
        let high = 7 << NUMBER_BITS;
        assert_eq!(done_up_to(high - 2, high + 3, 1), Some(high + 1));
        assert_eq!(done_up_to(high - 2, high + 3, 4), None);
        assert_eq!(done_up_to(0, 0, 0), None);
    }
}
