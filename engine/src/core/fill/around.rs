//! Fills when the origin does not answer: what someone waits for is asked of members that may reach it.

use std::sync::Arc;

use super::super::Core;
use super::super::group::Reach;
use super::super::index::{BlockKey, Mask, Promise};
use super::super::plan::Ask;
use super::super::read::ReadKey;
use super::super::timers::Due;
use super::{FillKey, State};
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::identity::{Bucket, Slot};
use crate::limits::SUB_BLOCK_BYTES;
use crate::ports::{Class, Platform, Time};

impl<P: Platform> Core<P> {
    /// It is known from now on that an origin does not answer.
    pub(in crate::core) fn fill_around(&mut self, now: Time, bucket: &Arc<Bucket>) {
        let waits = |fill: &super::Fill| {
            let is_waited_for = fill.class == Class::Demand && !fill.is_last_resort;
            is_waited_for && fill.object.bucket == *bucket
        };
        let all = self.fills.all.iter();
        let keys: Vec<FillKey> = all
            .filter(|(_, fill)| waits(fill))
            .map(|(slot, fill)| FillKey { slot, id: fill.id })
            .collect();
        for key in keys {
            match self.fills.get(key).map(|fill| &fill.state) {
                // Its end comes back here.
                Some(State::Running { .. }) => self.fill_due(key),
                Some(State::Queued | State::BackingOff { .. }) => self.ask_around(now, key),
                None => {}
            }
        }
    }

    /// Puts pulls in the place of a fill that is not running. Peers that wait for it are told: they go on themselves.
    pub(super) fn ask_around(&mut self, now: Time, key: FillKey) {
        let Some(fill) = self.fills.get(key) else {
            return;
        };
        fill.is_last_resort = true;
        let missing: Vec<(BlockKey, Mask)> = fill
            .parts
            .iter()
            .map(|part| (part.block, part.mask()))
            .collect();
        let (Some(first), Some(last)) = (fill.parts.front(), fill.parts.back()) else {
            return;
        };
        let bytes = first.offset..last.offset + last.len_bytes as u64;
        let slot = Slot::of_stripe(fill.object.id, first.offset);
        self.turn_peers_away(&missing);
        let route = self.group.around(now, slot);
        if route.step().is_none() || self.shutting_down {
            return;
        }
        let fill = self.fills.all.remove(key.slot);
        if let State::BackingOff { until } = fill.state {
            self.timers.clear(until, Due::Fill(key));
        }
        for (block, mask) in missing {
            self.index.unpromise(block, Promise::Fill(key), mask);
        }
        let ask = Ask {
            object: &fill.object,
            demand: bytes.clone(),
            want_end: bytes.end,
            class: fill.class,
            deadline: fill.deadline,
            lost: None,
            reach: Reach::READER,
            for_peer: fill.for_peer,
        };
        let sub_bytes = SUB_BLOCK_BYTES as u64;
        let run = bytes.start / sub_bytes..bytes.end.div_ceil(sub_bytes);
        self.add_pulls(&ask, run, route);
    }

    /// Peers that wait for some of these sub-blocks are told that they will not come from here.
    fn turn_peers_away(&mut self, missing: &[(BlockKey, Mask)]) {
        let waiters = missing.iter().flat_map(|(block, of)| {
            let waiters = self.index.block(*block).waiters.iter();
            waiters.filter(|waiter| waiter.needs & *of != 0)
        });
        let is_peers = |key: &ReadKey| {
            let read = self.reads.get(key.slot).filter(|read| read.id == key.id);
            read.is_some_and(|read| read.reader.is_peer())
        };
        let keys: Vec<ReadKey> = waiters.map(|waiter| waiter.read).filter(is_peers).collect();
        for key in keys {
            if let Some(read) = self.unpark(key, None) {
                let kind = OriginErrorKind::Unavailable;
                let error = OriginError::new(kind, "the origin does not answer this member");
                self.refuse(read, ReadError::Origin(error));
            }
        }
    }
}
