//! From a missing range to fills: what is present, what is promised, what must be asked for.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::super::Core;
use super::super::index::{Filling, Mask, mask};
use super::{Fill, FillKey, Part, State};
use crate::identity::{BlockId, ObjectVersion};
use crate::limits::{
    CHUNK_BYTES, FILLS_PER_CORE_MAX, STRIPE_BYTES, SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK,
    SUB_BLOCKS_PER_CHUNK,
};
use crate::ports::{Class, Platform, Time};
use crate::stats::Reason;

impl<P: Platform> Core<P> {
    /// Sees to it that every sub-block of `demand` is present or promised, and, where the end of
    /// `demand` is missing, that what follows up to `want_end` comes with the same GET. Returns
    /// whether some of it was promised already.
    pub(in crate::core) fn plan(
        &mut self,
        object: &Arc<ObjectVersion>,
        demand: Range<u64>,
        want_end: u64,
        class: Class,
        deadline: Time,
    ) -> bool {
        let sub_bytes = SUB_BLOCK_BYTES as u64;
        let stripe_end = demand.start - demand.start % STRIPE_BYTES as u64 + STRIPE_BYTES as u64;
        let clip = |end: u64| {
            end.min(object.size_bytes)
                .min(stripe_end)
                .div_ceil(sub_bytes)
        };
        let (demand_end, want_end) = (clip(demand.end), clip(want_end.max(demand.end)));
        let mut joined = false;
        let mut run: Option<u64> = None;
        let mut sub = demand.start / sub_bytes;
        while sub < demand_end || (run.is_some() && sub < want_end) {
            let promised = self.promised(object, sub);
            if let Some(by) = promised
                && sub < demand_end
            {
                joined |= self.join(by, class, deadline);
            }
            let missing = promised.is_none() && !self.is_present(object, sub);
            match (missing, run) {
                (true, None) => run = Some(sub),
                (false, Some(start)) => {
                    self.add_fills(object, start..sub, &demand, class, deadline);
                    run = None;
                }
                _ => {}
            }
            sub += 1;
        }
        if let Some(start) = run {
            self.add_fills(object, start..sub, &demand, class, deadline);
        }
        joined
    }

    fn place(&self, object: &ObjectVersion, sub: u64) -> (BlockId, Mask) {
        let index = (sub / SUB_BLOCKS_PER_BLOCK as u64) as u32;
        let bit = mask((sub % SUB_BLOCKS_PER_BLOCK as u64) as usize, 1);
        (
            BlockId {
                object: object.id,
                index,
            },
            bit,
        )
    }

    fn is_present(&self, object: &ObjectVersion, sub: u64) -> bool {
        let (block, bit) = self.place(object, sub);
        self.index
            .find(block)
            .is_some_and(|key| self.index.block(key).present & bit != 0)
    }

    fn promised(&self, object: &ObjectVersion, sub: u64) -> Option<FillKey> {
        let (block, bit) = self.place(object, sub);
        let block = self.index.block(self.index.find(block)?);
        block
            .fills
            .iter()
            .find(|filling| filling.brings & bit != 0)
            .map(|filling| filling.fill)
    }

    /// Someone else needs what a fill brings: it lives as long as the newcomer may wait, and is as
    /// urgent as the newcomer is.
    fn join(&mut self, key: FillKey, class: Class, deadline: Time) -> bool {
        let Some(fill) = self.fills.get(key) else {
            return false;
        };
        fill.deadline = fill.deadline.max(deadline);
        if class == Class::Demand && fill.class != Class::Demand {
            fill.class = Class::Demand;
            if matches!(fill.state, State::Queued) {
                self.fills.demand.push_back(key);
            }
        }
        true
    }

    /// Makes fills of the missing sub-blocks `run`, each at most one GET long.
    fn add_fills(
        &mut self,
        object: &Arc<ObjectVersion>,
        run: Range<u64>,
        demand: &Range<u64>,
        class: Class,
        deadline: Time,
    ) {
        let mut sub = run.start;
        while sub < run.end {
            // What nobody waits for must not stand before what somebody does.
            let asked = sub * (SUB_BLOCK_BYTES as u64) < demand.end;
            let class = if asked { class } else { Class::Prefetch };
            if class != Class::Demand && self.fills.len() >= FILLS_PER_CORE_MAX {
                self.stats.prefetch_dropped += 1;
                return;
            }
            let key = FillKey {
                slot: self.fills.all.vacant_key(),
                id: self.next_id(),
            };
            let mut parts = VecDeque::new();
            let mut bytes = 0;
            while sub < run.end && (bytes == 0 || bytes + CHUNK_BYTES <= self.get_bytes_max) {
                let part = self.promise(object, sub..run.end, demand, class, key);
                sub += part.subs as u64;
                bytes += part.len_bytes;
                parts.push_back(part);
            }
            let object = object.clone();
            let fill = Fill {
                id: key.id,
                object,
                parts,
                class,
                deadline,
                attempt: 0,
                state: State::Queued,
            };
            self.fills.all.insert(fill);
            self.fills.enqueue(key, class);
        }
    }

    /// The next part of a fill: a whole chunk where one is missing and would be well filled.
    fn promise(
        &mut self,
        object: &Arc<ObjectVersion>,
        missing: Range<u64>,
        demand: &Range<u64>,
        class: Class,
        fill: FillKey,
    ) -> Part {
        let (id, _) = self.place(object, missing.start);
        let block_len = object.block_len_bytes(id.index);
        let first_sub = (missing.start % SUB_BLOCKS_PER_BLOCK as u64) as usize;
        let start = first_sub * SUB_BLOCK_BYTES;
        let chunk_len = CHUNK_BYTES.min(block_len - start);
        let chunk_subs = chunk_len.div_ceil(SUB_BLOCK_BYTES);
        let whole = first_sub.is_multiple_of(SUB_BLOCKS_PER_CHUNK)
            && (missing.end - missing.start) as usize >= chunk_subs
            && chunk_len > CHUNK_BYTES / 4 * 3;
        let (subs, len_bytes) = if whole {
            (chunk_subs, chunk_len)
        } else {
            (1, SUB_BLOCK_BYTES.min(block_len - start))
        };
        let offset = id.offset() + start as u64;
        let key = self.index.find_or_insert(id);
        let block = self.index.block_mut(key);
        let brings = mask(first_sub, subs);
        let asked = class == Class::Demand
            && offset < demand.end
            && demand.start < offset + len_bytes as u64;
        let reason = match () {
            () if block.spoiled & brings != 0 => Reason::Checksum,
            () if block.was_evicted => Reason::Evicted,
            () if asked => Reason::Cold,
            () => Reason::Prefetch,
        };
        block.in_flight |= brings;
        match block.fills.iter_mut().find(|filling| filling.fill == fill) {
            Some(filling) => filling.brings |= brings,
            None => block.fills.push(Filling { fill, brings }),
        }
        Part {
            block: key,
            first_sub,
            subs,
            offset,
            len_bytes,
            reason,
        }
    }
}
