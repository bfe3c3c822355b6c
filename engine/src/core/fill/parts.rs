//! Cutting what is missing into fills, and fills into parts.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::Core;
use super::super::index::{Promise, mask};
use super::super::plan::{Ask, next_piece, place};
use super::{Fill, FillKey, Part, State};
use crate::identity::Slot;
use crate::limits::{CHUNK_BYTES, FILLS_PER_CORE_MAX, SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK};
use crate::ports::{Class, Platform};
use crate::stats::Reason;

impl<P: Platform> Core<P> {
    /// Someone else needs what a fill brings.
    pub(in crate::core) fn join_fill(&mut self, key: FillKey, ask: &Ask<'_>) -> bool {
        let Some(fill) = self.fills.get(key) else {
            return false;
        };
        fill.deadline = fill.deadline.max(ask.deadline);
        // A peer does not wait for buffers that only this node's readers may take.
        fill.for_peer |= ask.for_peer;
        if ask.class == Class::Demand && fill.class != Class::Demand {
            fill.class = Class::Demand;
            if matches!(fill.state, State::Queued) {
                self.fills.demand.push_back(key);
            }
        }
        true
    }

    /// Makes fills of the missing sub-blocks `run`, each at most one GET long.
    pub(in crate::core) fn add_fills(&mut self, ask: &Ask<'_>, run: Range<u64>) {
        // Then others were asked before.
        let is_last_resort = self.outages.is_known(&ask.object.bucket);
        let slot = Slot::of_stripe(ask.object.id, run.start * SUB_BLOCK_BYTES as u64);
        // The owner may have it, or may have had it when it went.
        let instead = self.group.is_passed_over(self.now, slot);
        let lost = ask.lost.or(instead.then_some(Reason::RingMoved));
        let mut sub = run.start;
        while sub < run.end {
            // What nobody waits for must not stand before what somebody does.
            let asked = sub * (SUB_BLOCK_BYTES as u64) < ask.demand.end;
            let class = match ask.class {
                Class::Demand if !asked => Class::Prefetch,
                class => class,
            };
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
                let part = self.promise_part(ask, lost, sub..run.end, class, key);
                sub += part.subs as u64;
                bytes += part.len_bytes;
                parts.push_back(part);
            }
            let fill = Fill {
                id: key.id,
                object: ask.object.clone(),
                parts,
                class,
                deadline: ask.deadline,
                for_peer: ask.for_peer,
                is_last_resort,
                attempt: 0,
                state: State::Queued,
            };
            self.fills.all.insert(fill);
            self.fills.enqueue(key, class);
        }
    }

    /// The next part of a fill.
    fn promise_part(
        &mut self,
        ask: &Ask<'_>,
        lost: Option<Reason>,
        missing: Range<u64>,
        class: Class,
        fill: FillKey,
    ) -> Part {
        let (id, _) = place(ask.object, missing.start);
        let (subs, len_bytes) = next_piece(ask.object, &missing);
        let first_sub = (missing.start % SUB_BLOCKS_PER_BLOCK as u64) as usize;
        let offset = missing.start * SUB_BLOCK_BYTES as u64;
        let asked = class == Class::Demand
            && offset < ask.demand.end
            && ask.demand.start < offset + len_bytes as u64;
        let brings = mask(first_sub, subs);
        let block = self.index.find_or_insert(id);
        let entry = self.index.block(block);
        let (spoiled, evicted) = (entry.spoiled & brings != 0, entry.was_evicted);
        let reason = match lost {
            Some(reason) => reason,
            None if spoiled => Reason::Checksum,
            None if self.was_evicted(ask.object, id, evicted) => Reason::Evicted,
            None if asked => Reason::Cold,
            None => Reason::Prefetch,
        };
        self.index.promise(block, Promise::Fill(fill), brings);
        Part {
            block,
            first_sub,
            subs,
            offset,
            len_bytes,
            reason,
        }
    }
}
