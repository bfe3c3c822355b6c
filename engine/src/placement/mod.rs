//! Which member owns which slot.
//!
//! A [`View`] is the set of serving members at one moment; a [`Placement`] is the table that follows from it:
//! for each of [`SLOTS`] slots the first [`RANKS`] members, best first. It is built off the hot path, in integers
//! only, so every node of a group computes the same table from the same view (`docs/decisions/0020-placement.md`).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::identity::Slot;
use crate::limits::{MEMBERS_MAX, RANKS, SLOTS};

mod balance;
mod race;
#[cfg(test)]
mod tests;

/// A member of the group, stable across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// One serving member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub id: PeerId,
    /// Share of the ring, relative to the others'; 0 owns nothing, and hands over what it has.
    pub weight: u32,
    /// Engine cores: slots map onto them by contiguous ranges.
    pub cores: u16,
    /// Where peers connect to, one address for each rail; not empty.
    pub addresses: Arc<[SocketAddr]>,
}

/// The serving members at one moment, and what identifies that set.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct View {
    digest: u64,
    members: Vec<Member>,
}

impl View {
    /// A view of `members`, in any order. Of several with one id the heaviest counts, of more than
    /// [`MEMBERS_MAX`] those with the lowest ids; a member has one core at least.
    pub fn new(mut members: Vec<Member>) -> Self {
        for member in &mut members {
            member.cores = member.cores.max(1);
        }
        members.sort_by(|a, b| {
            let rest = |member: &Member| (member.weight, member.cores);
            let heaviest = rest(b).cmp(&rest(a));
            let order = a.id.cmp(&b.id).then(heaviest);
            order.then_with(|| a.addresses.cmp(&b.addresses))
        });
        members.dedup_by_key(|member| member.id);
        members.truncate(MEMBERS_MAX);
        let digest = digest(&members);
        Self { digest, members }
    }

    /// Identifies what placement follows from: ids, weights and core counts. Travels on the wire.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Sorted by id.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// One member.
    pub fn member(&self, id: PeerId) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&id, |member| member.id);
        at.ok().map(|at| &self.members[at])
    }
}

fn digest(members: &[Member]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("forebay view v1");
    for member in members {
        hasher.update(&member.id.0.to_le_bytes());
        hasher.update(&member.weight.to_le_bytes());
        hasher.update(&member.cores.to_le_bytes());
    }
    let mut first = [0u8; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// Who owns each slot in one view.
#[derive(Debug)]
pub struct Placement {
    view: View,
    /// For each slot the places in `view.members` of its members by rank; `NOBODY` where there are fewer.
    table: Box<[[u16; RANKS]]>,
}

const NOBODY: u16 = u16::MAX;

impl Placement {
    /// The table of a view.
    pub fn new(view: View) -> Self {
        let race = race::Race::new(&view.members);
        let table = balance::ranks(&view.members, &race);
        Self { view, table }
    }

    /// What it follows from.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The members that stand for a slot, best first: its owner, and who is asked when that does not answer.
    /// Nobody when no member has a weight.
    pub fn ranked(&self, slot: Slot) -> impl Iterator<Item = &Member> {
        let places = self.table[slot.0 as usize];
        places
            .into_iter()
            .filter_map(|place| self.view.members.get(usize::from(place)))
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: Slot) -> Option<&Member> {
        self.ranked(slot).next()
    }

    /// Each member, in the order of ids, and the number of slots that it owns.
    pub fn shares(&self) -> impl Iterator<Item = (&Member, u32)> {
        let mut owned = vec![0u32; self.view.members.len()];
        for [owner, ..] in &self.table {
            if let Some(count) = owned.get_mut(usize::from(*owner)) {
                *count += 1;
            }
        }
        self.view.members.iter().zip(owned)
    }

    /// The number of slots that have another owner here than in `other`.
    pub fn owner_changes(&self, other: &Placement) -> u32 {
        let owner = |placement: &Placement, slot| placement.owner(slot).map(|member| member.id);
        let changed =
            (0..SLOTS).filter(|&slot| owner(self, Slot(slot)) != owner(other, Slot(slot)));
        changed.count() as u32
    }
}
