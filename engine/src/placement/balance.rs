//! Evening out: who owns more or less than its part gives or takes what costs least.
//!
//! The race leaves each member some slots off its fair part, by the square root of it. Members have a price, 0 at
//! first, that is added to their costs, and a slot belongs to the rival with the lowest sum. One with too many slots
//! raises its price until it has no more than its upper limit; then one with too few lowers it until it has its
//! lower limit. Nobody within its limits does anything: what a member does depends on little, so little
//! changes with a view.

use std::collections::VecDeque;

use crate::limits::{RANKS, SLOTS};

use super::race::{COST_UNIT_BITS, Race, mix};
use super::{Member, NOBODY};

/// A member may be off its fair part by one part in so many,
const TOLERANCE_SHARE: u64 = 33;
/// but always by so many slots; half a slot comes on top, by which limits are rounded.
const TOLERANCE_SLOTS: u64 = 1;
/// Bids for each member after which evening out ends wherever it stands. Not reached but by design for views
/// that cannot be even.
const BIDS_PER_MEMBER_MAX: usize = 200;

/// Slots in units of 2^-16.
const PART_BITS: u32 = 16;
const PART: u64 = 1 << PART_BITS;

/// How many slots a member should have.
#[derive(Clone, Copy, Debug)]
struct Limits {
    lower: u32,
    upper: u32,
    /// The least change of a price: about a third of what one slot more or less takes. Without it two
    /// members would bid one slot up between them by next to nothing for ever.
    bid_min: i64,
}

impl Limits {
    fn new(member: &Member, total: u128) -> Self {
        let fair = (u128::from(member.weight) << (16 + PART_BITS)) / total.max(1);
        let fair = fair as u64;
        let tolerance = (fair / TOLERANCE_SHARE).max(TOLERANCE_SLOTS * PART);
        // Each member rounds at a place of its own: else all limits would jump in one view.
        let rounding = mix(member.id.0 ^ 0x6c69_6d69_7473) % PART;
        let upper = (fair + tolerance + rounding - PART / 2) >> PART_BITS;
        let lower = (fair + rounding + PART / 2 - 1).saturating_sub(tolerance) >> PART_BITS;
        Self {
            lower: lower as u32,
            upper: upper as u32,
            bid_min: (7 << (COST_UNIT_BITS - 4)) / ((fair >> PART_BITS) as i64 + 1),
        }
    }
}

/// What a slot would cost more elsewhere.
type Margin = (i64, u16);

/// An assignment of slots under way.
struct Balance<'a> {
    race: &'a Race,
    limits: Vec<Limits>,
    /// By member.
    price: Vec<i64>,
    /// No price is lower.
    price_min: i64,
    load: Vec<u32>,
    /// What each member won at some time; it may have lost it since, or won it twice.
    won: Vec<Vec<u16>>,
    /// By slot.
    owner: Vec<u16>,
    /// The owner's cost, without its price.
    cost: Vec<i64>,
    margins: Vec<Margin>,
}

/// The members of each slot, best first.
pub(super) fn ranks(members: &[Member], race: &Race) -> Box<[[u16; RANKS]]> {
    if members.iter().all(|member| member.weight == 0) {
        return vec![[NOBODY; RANKS]; SLOTS as usize].into();
    }
    let mut balance = Balance::new(members, race);
    balance.even_out(members.len() as u16, Balance::give);
    balance.even_out(members.len() as u16, Balance::take);
    (0..=u16::MAX).map(|slot| balance.ranked(slot)).collect()
}

impl<'a> Balance<'a> {
    fn new(members: &[Member], race: &'a Race) -> Self {
        let total = members.iter().map(|member| u128::from(member.weight)).sum();
        let limits = members.iter().map(|member| Limits::new(member, total));
        let mut balance = Self {
            race,
            limits: limits.collect(),
            price: vec![0; members.len()],
            price_min: 0,
            load: vec![0; members.len()],
            won: vec![Vec::new(); members.len()],
            owner: vec![NOBODY; SLOTS as usize],
            cost: vec![0; SLOTS as usize],
            margins: Vec::new(),
        };
        for slot in 0..=u16::MAX {
            if let Some((_, place, cost)) = balance.best(slot, NOBODY) {
                balance.assign(slot, place, cost);
            }
        }
        balance
    }

    /// The best rival of a slot but for one: sum of cost and price, place, cost. Of equals the first place.
    fn best(&self, slot: u16, but: u16) -> Option<(i64, u16, i64)> {
        let mut best: Option<(i64, u16, i64)> = None;
        for rival in self.race.rivals(slot) {
            let (cost, place) = (rival.cost(), rival.place());
            if best.is_some_and(|(sum, _, _)| sum < cost + self.price_min) {
                break;
            }
            let entry = (cost + self.price[usize::from(place)], place, cost);
            if place != but && best.is_none_or(|best| entry < best) {
                best = Some(entry);
            }
        }
        best
    }

    fn assign(&mut self, slot: u16, place: u16, cost: i64) {
        let before = std::mem::replace(&mut self.owner[usize::from(slot)], place);
        if before != NOBODY {
            self.load[usize::from(before)] -= 1;
        }
        self.cost[usize::from(slot)] = cost;
        self.load[usize::from(place)] += 1;
        self.won[usize::from(place)].push(slot);
    }

    /// Lets members bid until none wants to, each one after the other, who is hit by another's bid again.
    fn even_out(&mut self, members: u16, bid: fn(&mut Self, u16, &mut VecDeque<u16>)) {
        let mut bidders: VecDeque<u16> = (0..members).collect();
        for _ in 0..BIDS_PER_MEMBER_MAX * usize::from(members) {
            let Some(place) = bidders.pop_front() else {
                return;
            };
            bid(self, place, &mut bidders);
        }
    }

    /// Raises the price of a member with too many slots, until they have left.
    fn give(&mut self, place: u16, bidders: &mut VecDeque<u16>) {
        let at = usize::from(place);
        let excess = self.load[at].saturating_sub(self.limits[at].upper) as usize;
        if excess == 0 {
            return;
        }
        let mut won = std::mem::take(&mut self.won[at]);
        won.retain(|&slot| self.owner[usize::from(slot)] == place);
        won.sort_unstable();
        won.dedup();
        let mut margins = std::mem::take(&mut self.margins);
        margins.clear();
        margins.extend(won.iter().filter_map(|&slot| {
            let (other, _, _) = self.best(slot, place)?;
            Some((other - self.cost[usize::from(slot)], slot))
        }));
        self.won[at] = won;
        if let Some(margin) = cheapest(&mut margins, excess) {
            for &(_, slot) in &margins[..excess] {
                if let Some((_, other, cost)) = self.best(slot, place) {
                    self.assign(slot, other, cost);
                    bidders.push_back(other);
                }
            }
            self.price[at] = margin + self.limits[at].bid_min;
        }
        self.margins = margins;
    }

    /// Lowers the price of a member with too few slots, until others' have come.
    fn take(&mut self, place: u16, bidders: &mut VecDeque<u16>) {
        let at = usize::from(place);
        let need = self.limits[at].lower.saturating_sub(self.load[at]) as usize;
        if need == 0 {
            return;
        }
        let mut margins = std::mem::take(&mut self.margins);
        margins.clear();
        let race = self.race;
        margins.extend(race.runs(place).iter().filter_map(|&(slot, cost)| {
            let owner = self.owner[usize::from(slot)];
            let asked = self.cost[usize::from(slot)] + self.price[usize::from(owner)];
            (owner != place).then_some((i64::from(cost) - asked, slot))
        }));
        if let Some(margin) = cheapest(&mut margins, need) {
            for &(_, slot) in &margins[..need] {
                let mut rivals = race.rivals(slot).iter();
                if let Some(own) = rivals.find(|rival| rival.place() == place) {
                    bidders.push_back(self.owner[usize::from(slot)]);
                    self.assign(slot, place, own.cost());
                }
            }
            self.price[at] = -margin - self.limits[at].bid_min;
            self.price_min = self.price_min.min(self.price[at]);
        }
        self.margins = margins;
    }

    /// A slot's owner, then those that would follow.
    fn ranked(&self, slot: u16) -> [u16; RANKS] {
        let mut best = [(i64::MAX, NOBODY); RANKS];
        let owner = self.owner[usize::from(slot)];
        for rival in self.race.rivals(slot) {
            let place = rival.place();
            let sum = rival.cost() + self.price[usize::from(place)];
            let mut entry = (if place == owner { i64::MIN } else { sum }, place);
            for kept in &mut best {
                if entry < *kept {
                    std::mem::swap(kept, &mut entry);
                }
            }
        }
        best.map(|(_, place)| place)
    }
}

/// Moves the `count` cheapest to the front; the margin of the last of them.
fn cheapest(margins: &mut [Margin], count: usize) -> Option<i64> {
    if count > margins.len() {
        return None;
    }
    let (_, last, _) = margins.select_nth_unstable(count.checked_sub(1)?);
    Some(last.0)
}
