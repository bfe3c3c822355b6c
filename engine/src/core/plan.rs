//! From a missing range to where each of its sub-blocks comes from: memory has it, something under
//! way brings it, the disk tier has it, or the origin.

use std::ops::Range;
use std::sync::Arc;

use super::Core;
use super::group::{self, Reach};
use super::index::{Mask, Promise, mask};
use super::read::Tier;
use crate::identity::{BlockId, ObjectVersion, Slot};
use crate::limits::{
    CHUNK_BYTES, STRIPE_BYTES, SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK, SUB_BLOCKS_PER_CHUNK,
};
use crate::ports::{Class, Platform, Time};
use crate::stats::Reason;

/// What is to be brought to memory.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub object: &'a Arc<ObjectVersion>,
    /// Bytes that are asked for, within one stripe.
    pub demand: Range<u64>,
    /// Where the bytes end that will be needed soon.
    pub want_end: u64,
    pub class: Class,
    pub deadline: Time,
    /// Set when the disk tier had the bytes and could not give them back: they come from the origin,
    /// and are booked so.
    pub lost: Option<Reason>,
    /// How far it may go for what is not here.
    pub reach: Reach,
    /// Its buffers are for a peer's request.
    pub for_peer: bool,
}

/// How a range is brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Planned {
    /// Some of it was on its way from the origin already.
    pub joined: bool,
    /// Some of it comes from another member.
    pub from_peer: bool,
    /// Some of it comes from the origin.
    pub from_origin: bool,
}

impl Planned {
    /// The farthest place that is waited for; none: nothing beyond the disk.
    pub fn tier(&self) -> Option<Tier> {
        match (self.from_origin, self.from_peer) {
            (true, _) => Some(Tier::Origin),
            (false, true) => Some(Tier::Group),
            (false, false) => None,
        }
    }
}

impl std::ops::BitOrAssign for Planned {
    fn bitor_assign(&mut self, other: Self) {
        self.joined |= other.joined;
        self.from_peer |= other.from_peer;
        self.from_origin |= other.from_origin;
    }
}

/// Where a sub-block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Memory,
    Promised,
    Disk,
    /// Another member, or the origin.
    Afar,
    /// The origin, whoever else may have it: what members sent was wrong twice.
    Origin,
}

/// Where the sub-blocks of one block are.
struct View {
    id: BlockId,
    present: Mask,
    promised: Mask,
    on_disk: Mask,
    distrusted: Mask,
}

impl View {
    fn source(&self, bit: Mask) -> Source {
        match () {
            () if self.promised & bit != 0 => Source::Promised,
            () if self.present & bit != 0 => Source::Memory,
            () if self.on_disk & bit != 0 => Source::Disk,
            () if self.distrusted & bit != 0 => Source::Origin,
            () => Source::Afar,
        }
    }
}

/// The block of a sub-block that is named by its number in the object, and its bit there.
pub(super) fn place(object: &ObjectVersion, sub: u64) -> (BlockId, Mask) {
    let index = (sub / SUB_BLOCKS_PER_BLOCK as u64) as u32;
    let object = object.id;
    let bit = mask((sub % SUB_BLOCKS_PER_BLOCK as u64) as usize, 1);
    (BlockId { object, index }, bit)
}

/// What is fetched as one piece from the start of the missing sub-blocks `missing` on: how many
/// sub-blocks and bytes. A whole chunk where one is missing and would be well filled.
pub(super) fn next_piece(object: &ObjectVersion, missing: &Range<u64>) -> (usize, usize) {
    let (id, _) = place(object, missing.start);
    let first_sub = (missing.start % SUB_BLOCKS_PER_BLOCK as u64) as usize;
    let left = object.block_len_bytes(id.index) - first_sub * SUB_BLOCK_BYTES;
    let chunk_len = CHUNK_BYTES.min(left);
    let chunk_subs = chunk_len.div_ceil(SUB_BLOCK_BYTES);
    let whole = first_sub.is_multiple_of(SUB_BLOCKS_PER_CHUNK)
        && (missing.end - missing.start) as usize >= chunk_subs
        && chunk_len > CHUNK_BYTES / 4 * 3;
    match whole {
        true => (chunk_subs, chunk_len),
        false => (1, SUB_BLOCK_BYTES.min(left)),
    }
}

impl<P: Platform> Core<P> {
    /// Sees to it that every sub-block of the demand is present or promised, and, where the end of
    /// the demand is missing, that what follows up to `want_end` comes along.
    pub(super) fn plan(&mut self, ask: &Ask<'_>) -> Planned {
        let sub_bytes = SUB_BLOCK_BYTES as u64;
        let start = ask.demand.start;
        let stripe_end = start - start % STRIPE_BYTES as u64 + STRIPE_BYTES as u64;
        let clip = |end: u64| {
            let end = end.min(ask.object.size_bytes).min(stripe_end);
            end.div_ceil(sub_bytes)
        };
        let demand_end = clip(ask.demand.end);
        let want_end = match ask.reach {
            Reach::Here => demand_end,
            Reach::From(_) | Reach::Group { .. } | Reach::Instead => {
                clip(ask.want_end.max(ask.demand.end))
            }
        };
        let mut planned = Planned::default();
        let mut run: Option<(u64, Source)> = None;
        let mut sub = start / sub_bytes;
        let mut view = self.view(ask, place(ask.object, sub).0);
        while sub < demand_end || (run.is_some() && sub < want_end) {
            let (id, bit) = place(ask.object, sub);
            if id != view.id {
                view = self.view(ask, id);
            }
            let source = view.source(bit);
            if source == Source::Promised && sub < demand_end {
                planned |= self.join(ask, id, bit);
            }
            if let Some((first, from)) = run
                && from != source
            {
                planned |= self.bring(ask, first..sub, from);
                run = None;
            }
            if run.is_none() && !matches!(source, Source::Memory | Source::Promised) {
                run = Some((sub, source));
            }
            sub += 1;
        }
        if let Some((first, from)) = run {
            planned |= self.bring(ask, first..sub, from);
        }
        planned
    }

    fn view(&self, ask: &Ask<'_>, id: BlockId) -> View {
        let block = self.index.find(id).map(|key| self.index.block(key));
        let (present, promised) = block.map_or((0, 0), |block| (block.present, block.in_flight));
        let distrusted = block.map_or(0, |block| block.distrusted);
        let on_disk = match ask.lost {
            Some(_) => 0,
            None => self.on_disk(id, ask.object.block_len_bytes(id.index)),
        };
        View {
            id,
            present,
            promised,
            on_disk,
            distrusted,
        }
    }

    /// The sub-blocks of a block that are on disk.
    pub(super) fn on_disk(&self, id: BlockId, block_bytes: usize) -> Mask {
        match self.parts.disk.is_present() {
            true => self.parts.disk.present(id, block_bytes as u32),
            false => 0,
        }
    }

    /// Someone else needs what is promised already: the promise lives as long as the newcomer may
    /// wait, and is as urgent as the newcomer is.
    fn join(&mut self, ask: &Ask<'_>, id: BlockId, bit: Mask) -> Planned {
        let promise = self.index.find(id).and_then(|key| {
            let fills = &self.index.block(key).fills;
            let filling = fills.iter().find(|filling| filling.brings & bit != 0)?;
            Some(filling.by)
        });
        match promise {
            Some(Promise::Fill(key)) => {
                let joined = self.join_fill(key, ask);
                Planned {
                    joined,
                    from_origin: joined,
                    ..Planned::default()
                }
            }
            Some(Promise::Pull(key)) => {
                self.join_pull(key, ask);
                Planned {
                    joined: true,
                    from_peer: true,
                    from_origin: false,
                }
            }
            Some(Promise::Load(key)) => {
                self.join_load(key, ask);
                Planned::default()
            }
            None => Planned::default(),
        }
    }

    /// Sets the missing sub-blocks `run` on their way.
    fn bring(&mut self, ask: &Ask<'_>, run: Range<u64>, from: Source) -> Planned {
        let asked = run.start * (SUB_BLOCK_BYTES as u64) < ask.demand.end;
        let planned = match from {
            Source::Disk => self.add_loads(ask, run),
            Source::Origin if matches!(ask.reach, Reach::Group { .. } | Reach::Instead) => {
                self.add_fills(ask, run);
                Planned {
                    from_origin: true,
                    ..Planned::default()
                }
            }
            _ => self.bring_from_afar(ask, run),
        };
        match asked {
            true => planned,
            false => Planned::default(),
        }
    }

    /// Sets sub-blocks that are not on this node on their way: from a member that may have them, else from
    /// the origin.
    pub(super) fn bring_from_afar(&mut self, ask: &Ask<'_>, run: Range<u64>) -> Planned {
        let forwarded = match ask.reach {
            Reach::Group { forwarded } => forwarded,
            Reach::From(peer) => {
                self.add_pulls(ask, run, group::Route::from(peer));
                return Planned {
                    from_peer: true,
                    ..Planned::default()
                };
            }
            Reach::Instead => {
                self.add_fills(ask, run);
                return Planned {
                    from_origin: true,
                    ..Planned::default()
                };
            }
            Reach::Here => {
                debug_assert!(false, "who may not go farther asks only for what is here");
                return Planned::default();
            }
        };
        let slot = Slot::of_stripe(ask.object.id, run.start * SUB_BLOCK_BYTES as u64);
        let route = self.bytes_route(ask.object, slot, forwarded);
        let from_peer = route.step().is_some();
        match from_peer {
            true => self.add_pulls(ask, run, route),
            false => self.add_fills(ask, run),
        }
        Planned {
            joined: false,
            from_peer,
            from_origin: !from_peer,
        }
    }

    /// Whom to ask for missing bytes of an object.
    pub(super) fn bytes_route(
        &self,
        object: &ObjectVersion,
        slot: Slot,
        forwarded: bool,
    ) -> group::Route {
        match self.outages.is_known(&object.bucket) {
            true => self.group.around(self.now, slot),
            false => self.group.route(self.now, slot, forwarded),
        }
    }

    /// Whether the origin is asked for bytes that this node held not long ago.
    pub(super) fn was_evicted(
        &self,
        object: &ObjectVersion,
        id: BlockId,
        from_memory: bool,
    ) -> bool {
        let disk = &self.parts.disk;
        if !disk.is_present() {
            return from_memory;
        }
        // What memory evicted is on disk as a rule; a block of which the disk still has a part was
        // never here as a whole.
        disk.was_evicted(id)
            || (from_memory && self.on_disk(id, object.block_len_bytes(id.index)) == 0)
    }
}
