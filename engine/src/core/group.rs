//! The group as this core sees it: whose a stripe is, who is asked for what is missing, who does not answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::retry;
use crate::identity::Slot;
use crate::limits::{EARLIER_OWNERS_MAX, EARLIER_VIEWS_MAX, RANKS};
use crate::placement::{Placement, View};
use crate::ports::{PeerCore, PeerId, Rng, Time};

/// How far a miss may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// Memory and disk, and what is on its way from disk or origin.
    Here,
    /// That, and one member that leaves: its bytes are taken over, by id alone.
    From(PeerId),
    /// Other members, and the origin.
    Group {
        /// For a peer who was passed over, or passed on: as if this node owned the range.
        forwarded: bool,
    },
    /// The origin alone: the owner asks, because it does not reach it.
    Instead,
}

impl Reach {
    /// That of this node's own readers.
    pub const READER: Self = Self::Group { forwarded: false };
}

/// How a peer is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// As the owner.
    AsOwner,
    /// In the owner's stead.
    Forwarded,
    /// For what it holds only: an earlier owner.
    CachedOnly,
}

/// One member to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub peer: PeerId,
    pub how: How,
}

const STEPS_MAX: usize = RANKS + EARLIER_OWNERS_MAX;

/// Whom to ask, one after the other; after the last comes the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    steps: [Option<Step>; STEPS_MAX],
    len: usize,
    at: usize,
}

impl Route {
    fn push(&mut self, peer: PeerId, how: How) {
        if self.len < STEPS_MAX && !self.names(peer) {
            self.steps[self.len] = Some(Step { peer, how });
            self.len += 1;
        }
    }

    fn names(&self, peer: PeerId) -> bool {
        self.steps.iter().flatten().any(|step| step.peer == peer)
    }

    /// One member, for what it holds.
    pub fn from(peer: PeerId) -> Self {
        let mut route = Self::default();
        route.push(peer, How::CachedOnly);
        route
    }

    /// Whom to ask now; nobody: the origin.
    pub fn step(&self) -> Option<Step> {
        self.steps[..self.len].get(self.at).copied().flatten()
    }

    /// How many are left to ask, the present one included.
    pub fn left(&self) -> usize {
        self.len.saturating_sub(self.at)
    }

    /// The present one did not help.
    pub fn next(&mut self) {
        self.at += 1;
    }

    /// The present one names another.
    pub fn redirect(&mut self, owner: PeerId) {
        let how = How::Forwarded;
        if let Some(step) = self.steps[..self.len].get_mut(self.at) {
            *step = Some(Step { peer: owner, how });
        }
    }

    /// One that owned the range before another that was asked for what it holds: it is asked the last.
    pub fn add_earlier(&mut self, peer: PeerId) {
        let steps = self.steps.iter().flatten();
        let earlier = steps.filter(|step| step.how == How::CachedOnly).count();
        if earlier < EARLIER_OWNERS_MAX {
            self.push(peer, How::CachedOnly);
        }
    }

    /// Those whom `asked` does not name.
    pub fn without(&self, asked: &Self) -> Self {
        let mut route = Self::default();
        let steps = self.steps.iter().flatten();
        for step in steps.filter(|step| !asked.names(step.peer)) {
            route.push(step.peer, step.how);
        }
        route
    }

    /// Nobody but the origin is left.
    pub fn end(&mut self) {
        self.at = self.len;
    }
}

/// A peer that did not answer.
#[derive(Clone, Copy, Debug)]
struct Silent {
    failures: u32,
    /// It is passed over until then.
    until: Time,
    /// It said no, or could not be reached: heard from again, it is back. One that let a request run into its
    /// deadline may be heard all the while and hear nothing.
    refused: bool,
    /// Someone finds out whether it still is.
    is_probed: bool,
}

/// What this core knows of its group.
#[derive(Debug)]
pub(super) struct Group {
    me: PeerId,
    current: Option<Arc<Placement>>,
    /// The latest first.
    earlier: VecDeque<Arc<Placement>>,
    silent: BTreeMap<PeerId, Silent>,
}

impl Group {
    pub fn new(me: PeerId) -> Self {
        Self {
            me,
            current: None,
            earlier: VecDeque::new(),
            silent: BTreeMap::new(),
        }
    }

    /// A new view is in force.
    pub fn adopt(&mut self, placement: Arc<Placement>) {
        if self.digest() == placement.view().digest() && self.current.is_some() {
            self.current = Some(placement);
            return;
        }
        if let Some(old) = self.current.replace(placement) {
            self.earlier.push_front(old);
            self.earlier.truncate(EARLIER_VIEWS_MAX);
        }
        let view = self.current.as_ref().map(|placement| placement.view());
        self.silent
            .retain(|peer, _| view.is_some_and(|view| view.member(*peer).is_some()));
    }

    /// The view in force; none on a node of its own.
    pub fn view(&self) -> Option<&View> {
        self.current.as_ref().map(|placement| placement.view())
    }

    /// Identifies the view on the wire.
    pub fn digest(&self) -> u64 {
        self.view().map_or(0, View::digest)
    }

    /// Who owns a slot; nobody when there is no group.
    pub fn owner(&self, slot: Slot) -> Option<PeerId> {
        let placement = self.current.as_ref()?;
        placement.owner(slot).map(|member| member.id)
    }

    /// Whether this node is a member of weight 0: it owns nothing, and hands over what it has.
    pub fn is_leaving(&self) -> bool {
        let me = self.view().and_then(|view| view.member(self.me));
        me.is_some_and(|member| member.weight == 0)
    }

    /// Whether this node owns a slot. A node of its own owns everything.
    pub fn owns(&self, slot: Slot) -> bool {
        self.owner(slot).is_none_or(|owner| owner == self.me)
    }

    /// Whether a slot is another's who does not answer: what is read for it is read in its stead.
    pub fn is_passed_over(&self, now: Time, slot: Slot) -> bool {
        let owner = self.owner(slot).filter(|owner| *owner != self.me);
        owner.is_some_and(|owner| !self.answers(now, owner))
    }

    /// Whether this node stands for a slot: owns it, or is asked when its owner does not answer.
    pub fn stands_for(&self, slot: Slot) -> bool {
        let Some(placement) = &self.current else {
            return true;
        };
        placement.ranked(slot).any(|member| member.id == self.me)
    }

    /// Whether a peer is a member.
    pub fn knows(&self, peer: PeerId) -> bool {
        self.view().is_some_and(|view| view.member(peer).is_some())
    }

    /// The core of `peer` that a slot belongs to, if the peer is still a member.
    pub fn core_of(&self, peer: PeerId, slot: Slot) -> Option<PeerCore> {
        let member = self.view()?.member(peer)?;
        let core = slot.core(usize::from(member.cores.max(1))) as u16;
        Some(PeerCore { peer, core })
    }

    /// Whom to ask for missing bytes of a slot.
    pub fn route(&self, now: Time, slot: Slot, forwarded: bool) -> Route {
        let mut route = Route::default();
        let Some(placement) = &self.current else {
            return route;
        };
        for (rank, member) in placement.ranked(slot).enumerate() {
            if member.id == self.me {
                self.add_earlier(&mut route, now, slot);
                return route;
            }
            let how = if rank == 0 {
                How::AsOwner
            } else {
                How::Forwarded
            };
            if self.answers(now, member.id) && (rank == 0 || !forwarded) {
                route.push(member.id, how);
            }
        }
        if forwarded {
            self.add_earlier(&mut route, now, slot);
        }
        route
    }

    /// Whom to ask of a slot when this node does not reach the origin: whoever else stands for it.
    pub fn around(&self, now: Time, slot: Slot) -> Route {
        let mut route = Route::default();
        let ranked = self.current.iter().flat_map(|view| view.ranked(slot));
        for (rank, member) in ranked.enumerate() {
            let how = if rank == 0 {
                How::AsOwner
            } else {
                How::Forwarded
            };
            if member.id != self.me && self.answers(now, member.id) {
                route.push(member.id, how);
            }
        }
        self.add_earlier(&mut route, now, slot);
        route
    }

    /// Owners in earlier views that are members still: what they hold need not be read again.
    fn add_earlier(&self, route: &mut Route, now: Time, slot: Slot) {
        let mut added = 0;
        for placement in &self.earlier {
            let Some(owner) = placement.owner(slot).map(|member| member.id) else {
                continue;
            };
            let here = self.core_of(owner, slot).is_some();
            if owner == self.me || !here || route.names(owner) || !self.answers(now, owner) {
                continue;
            }
            route.push(owner, How::CachedOnly);
            added += 1;
            if added == EARLIER_OWNERS_MAX {
                return;
            }
        }
    }

    /// Who owned a slot before this node, to be named to `asker`.
    pub fn owner_before(&self, slot: Slot, asker: PeerId) -> Option<PeerId> {
        let owners = self.earlier.iter().filter_map(|view| view.owner(slot));
        let mut owners = owners.map(|member| member.id);
        owners.find(|owner| *owner != self.me && *owner != asker && self.knows(*owner))
    }

    /// Whether a peer is not known to be silent.
    pub fn answers(&self, now: Time, peer: PeerId) -> bool {
        self.silent
            .get(&peer)
            .is_none_or(|silent| silent.until <= now)
    }

    /// A request goes to a peer. To one that was silent it is a probe: nobody else asks it until the probe's end.
    pub fn asks(&mut self, now: Time, peer: PeerId, until: Time) {
        if let Some(silent) = self.silent.get_mut(&peer)
            && silent.until <= now
        {
            silent.until = until;
            silent.is_probed = true;
        }
    }

    /// What went to a peer was given up: it found nothing out, and the next one may.
    pub fn given_up(&mut self, now: Time, peer: PeerId) {
        if let Some(silent) = self.silent.get_mut(&peer)
            && std::mem::take(&mut silent.is_probed)
        {
            silent.until = now;
        }
    }

    /// A peer did not answer, at all or in time: it is passed over for a while.
    pub fn failed(&mut self, now: Time, peer: PeerId, in_time: bool, rng: &mut impl Rng) {
        let silent = self.silent.entry(peer).or_insert(Silent {
            failures: 0,
            until: now,
            refused: in_time,
            is_probed: false,
        });
        silent.refused = in_time;
        silent.is_probed = false;
        // Requests that were under way together fail together: that counts once.
        let pause = match in_time {
            true => retry::backoff(silent.failures + 1, rng).max(SILENCE_MIN),
            // Waiting for silence costs more than a refused connection.
            false => SILENCE_LONG,
        };
        if silent.until <= now + pause {
            silent.failures += 1;
            silent.until = now + pause;
        }
    }

    /// A peer asked for something. That ends a silence that began with a refusal: it has started again.
    pub fn heard(&mut self, peer: PeerId) {
        if self.silent.get(&peer).is_some_and(|silent| silent.refused) {
            self.silent.remove(&peer);
        }
    }

    /// A peer answered.
    pub fn answered(&mut self, peer: PeerId) {
        if !self.silent.is_empty() {
            self.silent.remove(&peer);
        }
    }
}

/// A peer that refused is not asked again before.
const SILENCE_MIN: Duration = Duration::from_millis(100);
/// One that let a request run into its deadline is not asked again before.
const SILENCE_LONG: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SLOTS;
    use crate::placement::Member;

    struct Low;

    impl Rng for Low {
        fn next_u64(&mut self) -> u64 {
            0
        }
    }

    fn placement(ids: &[(u64, u32)]) -> Arc<Placement> {
        let members = ids.iter().map(|(id, weight)| Member {
            id: PeerId(*id),
            weight: *weight,
            cores: 2,
            addresses: Arc::new([]),
        });
        Arc::new(Placement::new(View::new(members.collect())))
    }

    fn ranked(placement: &Placement, slot: Slot) -> Vec<PeerId> {
        placement.ranked(slot).map(|member| member.id).collect()
    }

    fn steps(mut route: Route) -> Vec<(u64, How)> {
        let mut steps = Vec::new();
        while let Some(step) = route.step() {
            steps.push((step.peer.0, step.how));
            route.next();
        }
        steps
    }

    #[test]
    fn a_node_of_its_own_owns_all_and_asks_nobody() {
        let group = Group::new(PeerId(1));
        assert!(group.owns(Slot(5)) && group.digest() == 0);
        assert_eq!(steps(group.route(Time(0), Slot(5), false)), []);
    }

    #[test]
    fn an_asker_tries_three_ranks_and_passes_over_who_is_silent() {
        let table = placement(&[(1, 1), (2, 1), (3, 1), (4, 1)]);
        let mut group = Group::new(PeerId(77));
        group.adopt(table.clone());
        let slot = Slot(99);
        let [first, second, third] = ranked(&table, slot)[..] else {
            panic!("three ranks")
        };
        let route = group.route(Time(0), slot, false);
        let forwarded = How::Forwarded;
        let all = [
            (first.0, How::AsOwner),
            (second.0, forwarded),
            (third.0, forwarded),
        ];
        assert_eq!(steps(route), all);
        group.failed(Time(0), first, true, &mut Low);
        assert_eq!(steps(group.route(Time(1), slot, false)), all[1..]);
        // A stand-in that is no member asks the owner only, and not when that is silent.
        assert_eq!(steps(group.route(Time(1), slot, true)), []);
        assert_eq!(steps(group.route(Time(200_000_000), slot, false)), all);
        assert_eq!(steps(group.route(Time(200_000_000), slot, true)), all[..1]);
        group.failed(Time(200_000_000), first, true, &mut Low);
        group.answered(first);
        assert_eq!(steps(group.route(Time(200_000_000), slot, false)), all);
    }

    #[test]
    fn who_refused_and_is_heard_again_is_back_but_not_who_was_silent() {
        let table = placement(&[(1, 1), (2, 1)]);
        let mut group = Group::new(PeerId(77));
        group.adopt(table.clone());
        let slot = Slot(99);
        let owner = ranked(&table, slot)[0];
        let asks_owner = |group: &Group, now| {
            let route = steps(group.route(now, slot, false));
            route.first() == Some(&(owner.0, How::AsOwner))
        };
        group.failed(Time(0), owner, true, &mut Low);
        assert!(!asks_owner(&group, Time(1)));
        group.heard(owner);
        assert!(asks_owner(&group, Time(1)));
        group.failed(Time(2), owner, false, &mut Low);
        group.heard(owner);
        assert!(!asks_owner(&group, Time(3)));
        // A refusal after it does not make an answer of it.
        group.answered(owner);
        assert!(asks_owner(&group, Time(3)));
    }

    #[test]
    fn an_owner_asks_earlier_owners_that_are_still_there() {
        let views = [
            placement(&[(1, 1), (2, 1)]),
            placement(&[(1, 1), (2, 1), (3, 1)]),
            placement(&[(1, 0), (2, 1), (3, 1)]),
        ];
        let mut asked = [0; 3];
        for slot in (0..SLOTS).step_by(97).map(Slot) {
            let mut group = Group::new(PeerId(3));
            views.iter().for_each(|view| group.adopt(view.clone()));
            let owners: Vec<u64> = views.iter().map(|v| v.owner(slot).unwrap().id.0).collect();
            if owners[2] != 3 {
                continue;
            }
            let route = steps(group.route(Time(0), slot, false));
            assert!(route.iter().all(|(_, how)| *how == How::CachedOnly));
            let mut expected = vec![owners[1], owners[0]];
            expected.dedup();
            expected.retain(|owner| *owner != 3);
            let route: Vec<u64> = route.iter().map(|(peer, _)| *peer).collect();
            assert_eq!(route, expected, "{owners:?}");
            asked[route.len()] += 1;
        }
        assert!(asked[0] + asked[1] > 0 && asked[1] > 0, "{asked:?}");
    }

    #[test]
    fn who_left_the_group_is_not_asked() {
        let mut group = Group::new(PeerId(2));
        group.adopt(placement(&[(1, 1), (2, 1)]));
        group.adopt(placement(&[(2, 1)]));
        for slot in (0..SLOTS).step_by(101).map(Slot) {
            assert_eq!(steps(group.route(Time(0), slot, false)), []);
        }
    }
}
