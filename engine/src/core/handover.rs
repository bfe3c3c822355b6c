//! A member that leaves: its weight is 0, and what it holds goes to those who own it now.
//!
//! ```text
//! weight 0 -> count -> memory, hot on disk, rest: offer each block to its owner -> done
//!               ^        | given: noted with its entries     | failed, or something came meanwhile
//!               |        | no room there: refused            |
//!               +--------+------------- rest ----------------+        another view: from the beginning
//! ```
//!
//! An offer is a call; the owner then fetches what it lacks from here (`core::takeover`). Nothing is dropped here: until
//! this member ends, it serves what it has. Which blocks were given is noted in the disk index, so a pass over what was
//! given already costs a look at each entry. What is in memory alone is offered again in each pass, at the price
//! of a question. What a GET brings during a pass causes one more; one that brings nothing is waited for a moment only.
//! `docs/decisions/0023-leaving.md` has the reasons.

mod arrivals;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::index::{Index, Mask, StableMap};
use super::takeover::bytes_of;
use super::{Core, Tagged};
use crate::disk::Held;
use crate::identity::{BlockId, Slot};
use crate::limits::{
    BLOCK_BYTES, HANDOVER_BYTES_MAX, HANDOVER_CALLS_MAX, HANDOVER_LIMITED_S, PAGE_BYTES,
    SUB_BLOCK_BYTES,
};
use crate::ports::{
    FetchStatus, FetchTag, PeerFailure, PeerId, Platform, Time, Transport, TransportError,
};
use crate::stats::HandoverStats;
use crate::wire::call::{Call, CallAnswer};
use arrivals::Arrivals;

/// What a pass is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Finding out how much it is.
    Counting(Where),
    Giving(Part),
    /// All was offered, not all is answered.
    Ending,
    /// The next pass begins then.
    Resting(Time),
    Done,
}

/// What goes first: what is lost with memory, then what is read most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Memory,
    Hot,
    Rest,
}

/// Whose entries are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Disk,
    Memory,
}

/// A block that was offered.
#[derive(Clone, Copy, Debug)]
struct Offer {
    block: BlockId,
    subs: Mask,
    block_bytes: usize,
    to: PeerId,
    /// The view that it was made in.
    view: u64,
}

impl Offer {
    fn bytes(&self) -> u64 {
        bytes_of(self.subs, self.block_bytes)
    }
}

/// What this core holds of a block.
#[derive(Clone, Copy, Debug)]
struct Holding {
    subs: Mask,
    /// Of those, what is in memory alone.
    memory_only: Mask,
    block_bytes: usize,
    is_hot: bool,
    given_to: u16,
}

/// How offering a block went.
enum Offered {
    Yes,
    /// There is nothing to offer, or nobody to offer it to now.
    No,
    /// There is no room for one more question now.
    Later,
}

/// Handing over, while this member leaves.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// The view that all of it is for.
    view: u64,
    is_leaving: bool,
    stage: Stage,
    /// Where the look through the entries goes on; nowhere: all were looked at.
    at: Option<u32>,
    /// Blocks that were found and not offered yet.
    found: VecDeque<BlockId>,
    offers: StableMap<u64, Offer>,
    offered_bytes: u64,
    /// What was without room is tried again then.
    retry_at: Option<Time>,
    /// Members that something was given to, by the numbers that entries are marked with.
    heirs: BTreeMap<u16, PeerId>,
    last_number: u16,
    /// Of this pass.
    failed: u64,
    given_bytes: u64,
    arrivals: Arrivals,
    /// Passes before this one that gave nothing, in a row.
    idle_passes: u32,
    /// Since when GETs are waited for that have brought nothing since.
    awaits_fills_since: Option<Time>,
    /// Blocks and bytes counted so far.
    counted: (u64, u64),
    was_counted: bool,
    stats: HandoverStats,
}

/// A pass after one that failed in part begins so much later;
const REST_FAILED: Duration = Duration::from_secs(1);
/// one after something came meanwhile, twice as much later for each in a row that gave nothing, up to the above,
const REST: Duration = Duration::from_millis(50);
/// and what found no room for its question is tried again.
const RETRY: Duration = Duration::from_millis(20);
/// Entries looked at together, and in one turn at most.
const LOOK: u32 = 64;
const LOOKS_MAX: u32 = 1_024;

impl Handover {
    /// When it goes on by itself.
    pub fn wake_at(&self) -> Time {
        match self.stage {
            Stage::Resting(until) => until,
            Stage::Giving(_) => self.retry_at.unwrap_or(Time::NEVER),
            _ => Time::NEVER,
        }
    }

    fn begin(&mut self, arrivals: Arrivals) {
        self.stage = Stage::Counting(Where::Disk);
        self.at = Some(0);
        self.found.clear();
        (self.failed, self.given_bytes, self.arrivals) = (0, 0, arrivals);
        self.counted = (0, 0);
        self.stats.refused_blocks = 0;
        self.stats.refused_bytes = 0;
    }

    fn end_counting(&mut self, of: Where) {
        self.at = Some(0);
        self.stage = match of {
            Where::Disk => Stage::Counting(Where::Memory),
            Where::Memory => {
                (self.stats.left_blocks, self.stats.left_bytes) = self.counted;
                self.was_counted = true;
                Stage::Giving(Part::Memory)
            }
        };
    }

    /// Whether entries with this mark lie with someone who is still there.
    fn is_given(&self, number: u16) -> bool {
        self.heirs.contains_key(&number)
    }

    /// The mark of a member; 0, which marks nothing, when there are no numbers left.
    fn number_of(&mut self, heir: PeerId) -> u16 {
        let known = self.heirs.iter().find(|(_, known)| **known == heir);
        if let Some((number, _)) = known {
            return *number;
        }
        let Some(next) = self.last_number.checked_add(1) else {
            return 0;
        };
        self.last_number = next;
        self.heirs.insert(next, heir);
        next
    }

    fn answered(&mut self, offer: &Offer) {
        self.stats.left_blocks = self.stats.left_blocks.saturating_sub(1);
        self.stats.left_bytes = self.stats.left_bytes.saturating_sub(offer.bytes());
    }

    fn fail(&mut self) {
        self.failed += 1;
        self.stats.failures += 1;
    }
}

impl Index {
    /// Adds what is in memory of a block to what is on disk.
    fn add_to(&self, block: BlockId, held: &mut Held) -> Mask {
        let Some(key) = self.find(block) else {
            return 0;
        };
        let block = self.block(key);
        for piece in block.pieces() {
            let end = piece.first_page as usize * PAGE_BYTES + piece.bytes.len();
            if !end.is_multiple_of(SUB_BLOCK_BYTES) {
                held.len_bytes = Some(end as u32);
            }
        }
        let memory_only = block.present & !held.subs;
        held.subs |= block.present;
        memory_only
    }
}

impl<P: Platform> Core<P> {
    /// Goes on with handing over, when this member leaves. Returns whether something was done.
    pub(super) fn go_on_leaving(&mut self, now: Time) -> bool {
        if self.shutting_down || !self.follow_weight() || self.parts.disk.is_recovering() {
            return false;
        }
        match self.handover.stage {
            Stage::Idle | Stage::Done => false,
            Stage::Resting(until) if until > now => false,
            Stage::Resting(_) => {
                self.handover.begin(self.arrivals());
                true
            }
            Stage::Counting(of) => {
                self.count_some(of);
                true
            }
            Stage::Giving(part) => self.give(now, part),
            Stage::Ending if self.handover.offers.is_empty() => {
                self.end_pass(now);
                true
            }
            Stage::Ending => false,
        }
    }

    /// Takes note of another view. Whether this member leaves.
    fn follow_weight(&mut self) -> bool {
        let view = self.group.digest();
        if self.handover.view == view {
            return self.handover.is_leaving;
        }
        let leaves = self.group.is_leaving();
        self.handover.view = view;
        let left = std::mem::replace(&mut self.handover.is_leaving, leaves);
        match (left, leaves) {
            (false, false) => return false,
            (true, false) => {
                self.end_handover();
                return false;
            }
            (false, true) => {
                // What others were given earlier they may have lost since.
                self.handover.heirs.clear();
                self.handover.stats = HandoverStats::default();
                self.handover.was_counted = false;
                self.handover.idle_passes = 0;
                self.handover.awaits_fills_since = None;
            }
            (true, true) => {
                let group = &self.group;
                self.handover.heirs.retain(|_, heir| group.knows(*heir));
            }
        }
        self.handover.begin(self.arrivals());
        true
    }

    fn holding(&self, block: BlockId) -> Option<Holding> {
        let mut held = self.parts.disk.held(block);
        let memory_only = self.index.add_to(block, &mut held);
        (held.subs != 0).then_some(Holding {
            subs: held.subs,
            memory_only,
            block_bytes: held.len_bytes.map_or(BLOCK_BYTES, |len| len as usize),
            is_hot: held.is_hot,
            given_to: held.given_to,
        })
    }

    /// Looks for blocks among the next entries, of the disk index or of memory. False when there are no more.
    fn find_some(&mut self, of: Where) -> bool {
        let Handover { at, found, .. } = &mut self.handover;
        let Some(from) = *at else {
            return false;
        };
        let add = |block| found.push_back(block);
        *at = match of {
            Where::Memory => self.index.blocks_from(from as usize, LOOK as usize, add),
            Where::Disk => {
                let next = self.parts.disk.blocks_from(from, LOOK, add);
                next.map(|next| next as usize)
            }
        }
        .and_then(|next| u32::try_from(next).ok());
        true
    }

    /// Counts what is not given yet: blocks that are on disk, and those that are in memory alone.
    fn count_some(&mut self, of: Where) {
        for _ in 0..LOOKS_MAX / LOOK {
            if !self.find_some(of) {
                return self.handover.end_counting(of);
            }
            while let Some(block) = self.handover.found.pop_front() {
                let Some(holding) = self.holding(block) else {
                    continue;
                };
                let (here, given) = match of {
                    Where::Disk => {
                        let noted = self.handover.is_given(holding.given_to);
                        (true, noted && holding.memory_only == 0)
                    }
                    Where::Memory => (holding.memory_only == holding.subs, false),
                };
                if here && !given {
                    self.handover.counted.0 += 1;
                    self.handover.counted.1 += bytes_of(holding.subs, holding.block_bytes);
                }
            }
        }
    }

    /// Offers blocks, as far as may be under way at a time.
    fn give(&mut self, now: Time, part: Part) -> bool {
        let (mut some, mut looked) = (false, 0);
        self.handover.retry_at = None;
        while self.may_offer() {
            let Some(block) = self.handover.found.pop_front() else {
                if looked >= LOOKS_MAX {
                    return true;
                }
                looked += LOOK;
                let of = match part {
                    Part::Memory => Where::Memory,
                    Part::Hot | Part::Rest => Where::Disk,
                };
                if !self.find_some(of) {
                    self.next_part(part);
                    return true;
                }
                continue;
            };
            match self.offer(now, part, block) {
                Offered::Yes => some = true,
                Offered::No => {}
                Offered::Later => {
                    self.handover.found.push_front(block);
                    self.handover.retry_at = Some(now + RETRY);
                    return some;
                }
            }
        }
        some
    }

    fn may_offer(&self) -> bool {
        let passing = self
            .config
            .peer_limit
            .map_or(u64::MAX, |rate| rate.saturating_mul(HANDOVER_LIMITED_S));
        let bytes_max = passing.clamp(1, HANDOVER_BYTES_MAX as u64);
        let offers = &self.handover.offers;
        // One at least, however little passes.
        offers.is_empty()
            || (offers.len() < HANDOVER_CALLS_MAX && self.handover.offered_bytes < bytes_max)
    }

    fn next_part(&mut self, part: Part) {
        let next = match part {
            Part::Memory => Stage::Giving(Part::Hot),
            Part::Hot => Stage::Giving(Part::Rest),
            Part::Rest => Stage::Ending,
        };
        (self.handover.stage, self.handover.at) = (next, Some(0));
    }

    /// Offers a block to whoever owns it.
    fn offer(&mut self, now: Time, part: Part, block: BlockId) -> Offered {
        let Some(holding) = self.holding(block) else {
            return Offered::No;
        };
        let passes = match part {
            Part::Memory => holding.memory_only == 0,
            Part::Hot if !holding.is_hot => true,
            Part::Hot | Part::Rest => self.handover.is_given(holding.given_to),
        };
        // Its answer will say. What more has come meanwhile is offered in another pass.
        let is_under_way = |offer: &Offer| offer.block == block && offer.view == self.handover.view;
        if passes || self.handover.offers.values().any(is_under_way) {
            return Offered::No;
        }
        let slot = Slot::of_stripe(block.object, block.offset());
        let owner = self.group.owner(slot);
        let owner = owner.filter(|owner| self.group.answers(now, *owner));
        let Some(to) = owner.and_then(|owner| self.group.core_of(owner, slot)) else {
            self.handover.fail();
            return Offered::No;
        };
        let offer = Offer {
            block,
            subs: holding.subs,
            block_bytes: holding.block_bytes,
            to: to.peer,
            view: self.handover.view,
        };
        let call = Call::Take {
            block,
            size_bytes: block.offset() + holding.block_bytes as u64,
            subs: holding.subs,
        };
        let deadline = now + self.config.io_timeout;
        let Some(tag) = self.call_member(to, &call, deadline, Tagged::Offer) else {
            return Offered::Later;
        };
        self.group.asks(now, to.peer, deadline);
        self.handover.offered_bytes += offer.bytes();
        self.handover.offers.insert(tag.0, offer);
        Offered::Yes
    }

    /// The owner of a block answered, or did not.
    pub(super) fn offer_answered(
        &mut self,
        now: Time,
        tag: FetchTag,
        outcome: Result<(FetchStatus, &[u8]), TransportError>,
    ) {
        let Some(offer) = self.handover.offers.remove(&tag.0) else {
            return;
        };
        self.handover.offered_bytes -= offer.bytes();
        if self.shutting_down || !self.handover.is_leaving {
            return;
        }
        let answer = match outcome {
            Ok((status, bytes)) => {
                self.group.answered(offer.to);
                Some((status, CallAnswer::decode(bytes)))
            }
            Err(error) => {
                if error == TransportError::Unreachable {
                    self.stats.peer_failures += 1;
                    self.pass_over(now, offer.to, true);
                }
                None
            }
        };
        // Of another view: the present pass offers the block itself, and what it counts is left alone.
        let is_late = offer.view != self.handover.view;
        match answer {
            Some((
                FetchStatus::Bytes,
                Ok(CallAnswer::Taken {
                    subs,
                    took_bytes,
                    room,
                }),
            )) => match is_late {
                true => drop(self.went(&offer, took_bytes)),
                false => self.taken(&offer, subs, took_bytes, room),
            },
            _ if is_late => {}
            // It does not know the question: it is of an older version.
            Some((FetchStatus::Failed(PeerFailure::Invalid), _)) => {
                self.refused(&offer, offer.subs)
            }
            _ => self.handover.fail(),
        }
    }

    /// Counts what a block's owner fetched, by what it said. None when it owns the block no more: it may have gone by now.
    fn went(&mut self, offer: &Offer, took_bytes: u64) -> Option<u64> {
        let slot = Slot::of_stripe(offer.block.object, offer.block.offset());
        if self.group.owner(slot) != Some(offer.to) {
            return None;
        }
        let took_bytes = took_bytes.min(offer.bytes());
        let stats = &mut self.handover.stats;
        stats.given_blocks += u64::from(took_bytes > 0);
        stats.given_bytes += took_bytes;
        Some(took_bytes)
    }

    fn taken(&mut self, offer: &Offer, subs: Mask, took_bytes: u64, room: bool) {
        let Some(took_bytes) = self.went(offer, took_bytes) else {
            return self.handover.fail();
        };
        self.handover.given_bytes += took_bytes;
        let missing = offer.subs & !subs;
        if missing == 0 {
            let number = self.handover.number_of(offer.to);
            // Only what was offered: more may have come meanwhile.
            if self.parts.disk.held(offer.block).subs & !offer.subs == 0 {
                self.parts.disk.set_given(offer.block, number);
            }
            return self.handover.answered(offer);
        }
        let still = self.holding(offer.block).map_or(0, |holding| holding.subs) & missing;
        match (still, room) {
            (0, _) => self.handover.answered(offer),
            (still, false) => self.refused(offer, still),
            (_, true) => self.handover.fail(),
        }
    }

    fn refused(&mut self, offer: &Offer, missing: Mask) {
        self.handover.answered(offer);
        let stats = &mut self.handover.stats;
        stats.refused_blocks += 1;
        stats.refused_bytes += bytes_of(missing, offer.block_bytes);
    }

    /// Everything was offered once, and all answers are there.
    fn end_pass(&mut self, now: Time) {
        let (before, after) = (self.handover.arrivals, self.arrivals());
        // From the origin: nobody else may have it, and it may lie behind where the pass looked.
        let was_filled = before.filled != after.filled;
        let awaits_fills = self.awaits_fills(now, was_filled);
        let handover = &mut self.handover;
        let gave = handover.given_bytes > 0;
        let came = was_filled || before.insertions != after.insertions && gave;
        handover.idle_passes = match gave {
            true => 0,
            false => handover.idle_passes.saturating_add(1),
        };
        // Room that is short in a burst is there a moment later: refused for good is what a whole pass brings to nobody.
        let may_fit = handover.stats.refused_blocks > 0 && gave;
        handover.stage = if handover.failed > 0 || may_fit {
            Stage::Resting(now + REST_FAILED)
        } else if self.takes.len() > 0 || came || awaits_fills {
            // What this member takes over from one that leaves as well is to go on to others.
            let rest = REST * (1 << handover.idle_passes.saturating_sub(1).min(8));
            Stage::Resting(now + rest.min(REST_FAILED))
        } else {
            (handover.stats.left_blocks, handover.stats.left_bytes) = (0, 0);
            Stage::Done
        };
    }

    /// Stops handing over: this member stays, or ends. What is under way ends soon.
    pub(super) fn end_handover(&mut self) {
        self.handover.stage = Stage::Idle;
        self.handover.found.clear();
        (
            self.handover.stats.left_blocks,
            self.handover.stats.left_bytes,
        ) = (0, 0);
        let mut tags: Vec<u64> = self.handover.offers.keys().copied().collect();
        tags.sort_unstable();
        for tag in tags {
            self.parts.transport.cancel(FetchTag(tag));
        }
    }

    /// How far it is.
    pub(super) fn handover_stats(&self) -> HandoverStats {
        let handover = &self.handover;
        let leaving = u64::from(handover.is_leaving);
        let heir = self.group.owner(Slot(0));
        HandoverStats {
            cores_leaving: leaving,
            cores_counted: leaving * u64::from(handover.was_counted),
            cores_done: leaving * u64::from(handover.stage == Stage::Done),
            cores_without_heir: leaving * u64::from(heir.is_none()),
            ..handover.stats
        }
    }
}
