use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// SplitMix64: draws ids.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        race::mix(self.0)
    }
}

fn member(id: u64, weight: u32) -> Member {
    Member {
        id: PeerId(id),
        weight,
        cores: 4,
        addresses: Arc::from([]),
    }
}

/// Weights of a group's members, one after the other.
const MIXED: [u32; 4] = [512, 1_024, 2_048, 4_096];
const EQUAL: [u32; 1] = [1_500];

fn group(count: usize, weights: &[u32], seed: u64) -> Vec<Member> {
    let mut draws = Draws(seed);
    let weights = weights.iter().cycle().take(count);
    weights
        .map(|&weight| member(draws.next(), weight))
        .collect()
}

fn placed(members: &[Member]) -> Placement {
    Placement::new(View::new(members.to_vec()))
}

fn owned(placement: &Placement, id: PeerId) -> u32 {
    let mut shares = placement.shares();
    shares
        .find(|(member, _)| member.id == id)
        .map_or(0, |(_, slots)| slots)
}

fn slots() -> impl Iterator<Item = Slot> {
    (0..SLOTS).map(Slot)
}

/// The largest distance of a member from its fair part: as a share of that, and in slots beyond 3 % or one slot,
/// whichever is more.
fn deviation(placement: &Placement) -> (f64, f64) {
    let total: f64 = placement
        .shares()
        .map(|(member, _)| f64::from(member.weight))
        .sum();
    let mut most = (0.0f64, f64::MIN);
    for (member, slots) in placement.shares() {
        let fair = f64::from(SLOTS) * f64::from(member.weight) / total;
        let off = (f64::from(slots) - fair).abs();
        most.0 = most.0.max(off / fair);
        most.1 = most.1.max(off - (fair * 0.03).max(1.0));
    }
    most
}

/// What moves against what must, summed over several changes of a view.
#[derive(Default)]
struct Moves {
    moved: u32,
    must: u32,
}

impl Moves {
    fn add(&mut self, before: &Placement, after: &Placement, must: u32) {
        self.moved += after.owner_changes(before);
        self.must += must;
    }

    fn ratio(&self) -> f64 {
        f64::from(self.moved) / f64::from(self.must)
    }
}

/// What happens when one member joins, is lost, or doubles its weight.
#[derive(Default)]
struct Changes {
    join: Moves,
    loss: Moves,
    weight: Moves,
    /// Slots of a lost member that went to their rank 2.
    followed: u32,
}

impl Changes {
    fn watch(&mut self, members: &[Member], weights: &[u32], seed: u64) {
        let before = placed(members);
        for (k, &weight) in weights.iter().enumerate() {
            let newcomer = member(seed << 32 | k as u64, weight);
            let mut joined = members.to_vec();
            joined.push(newcomer.clone());
            let after = placed(&joined);
            self.join.add(&before, &after, owned(&after, newcomer.id));

            let mut left = members.to_vec();
            let lost = left.remove((seed as usize + k) % members.len()).id;
            let after = placed(&left);
            self.loss.add(&before, &after, owned(&before, lost));
            self.followed += slots()
                .filter(|&slot| {
                    let mut ranked = before.ranked(slot).map(|member| member.id);
                    ranked.next() == Some(lost) && ranked.next() == after.owner(slot).map(|m| m.id)
                })
                .count() as u32;

            let mut changed = members.to_vec();
            let heavier = &mut changed[(seed as usize + k) % members.len()];
            heavier.weight *= 2;
            let id = heavier.id;
            let after = placed(&changed);
            let gained = owned(&after, id) - owned(&before, id);
            self.weight.add(&before, &after, gained);
        }
    }

    fn of(count: usize, weights: &[u32], seeds: u64) -> Self {
        let mut changes = Self::default();
        for seed in 1..=seeds {
            changes.watch(&group(count, weights, seed), weights, seed);
        }
        changes
    }

    fn most(&self) -> f64 {
        let ratios = [&self.join, &self.loss, &self.weight].map(Moves::ratio);
        ratios.into_iter().fold(0.0, f64::max)
    }

    fn follow(&self) -> f64 {
        f64::from(self.followed) / f64::from(self.loss.must)
    }
}

/// Half a slot comes on top of 3 % or one slot: limits are rounded, for each member at a place of its own.
#[test]
fn shares_are_fair() {
    for count in [2, 3, 10, 100, 1_000] {
        for seed in 0..3 {
            for weights in [&MIXED[..], &EQUAL[..]] {
                let placement = placed(&group(count, weights, seed));
                let (_, slots) = deviation(&placement);
                assert!(
                    slots <= 0.5,
                    "{count} members, seed {seed}: {slots} slots off"
                );
                let sum: u32 = placement.shares().map(|(_, slots)| slots).sum();
                assert_eq!(sum, SLOTS);
            }
        }
    }
}

#[test]
fn a_thousandth_of_the_weight_is_a_thousandth_of_the_slots() {
    let mut members = group(20, &[1_000_000], 1);
    members.extend(group(10, &[1_000], 2));
    let (_, slots) = deviation(&placed(&members));
    assert!(slots <= 0.5, "{slots} slots off");
}

#[test]
fn few_members_move_what_they_must() {
    for count in [3, 4, 10, 30] {
        for weights in [&MIXED[..], &EQUAL[..]] {
            let changes = Changes::of(count, weights, 3);
            let (moved, follow) = (changes.most(), changes.follow());
            assert!(moved <= 1.03, "{count} members: {moved} of what must");
            assert!(follow >= 0.99, "{count} members: {follow} followed");
        }
    }
}

#[test]
fn a_hundred_members_move_little_more_than_they_must() {
    for weights in [&MIXED[..], &EQUAL[..]] {
        let changes = Changes::of(100, weights, 3);
        let (moved, follow) = (changes.most(), changes.follow());
        assert!(moved <= 1.15, "{moved} of what must");
        assert!(follow >= 0.99, "{follow} followed");
    }
}

/// See the decision record: with 65 slots each, to be fair and to move little exclude each other.
#[test]
fn a_thousand_members_move_a_few_times_what_they_must() {
    for weights in [&MIXED[..], &EQUAL[..]] {
        let changes = Changes::of(1_000, weights, 1);
        let (moved, follow) = (changes.most(), changes.follow());
        assert!(moved <= 6.0, "{moved} of what must");
        assert!(follow >= 0.95, "{follow} followed");
    }
}

/// Each of ten members leaves and returns: each time its slots move away and back, and nothing else to speak of.
#[test]
fn a_rolling_restart_moves_each_slot_away_and_back() {
    let members = group(10, &MIXED, 5);
    let whole = placed(&members);
    let mut moves = Moves::default();
    for at in 0..members.len() {
        let mut left = members.clone();
        let gone = left.remove(at).id;
        let without = placed(&left);
        moves.add(&whole, &without, owned(&whole, gone));
        let returned = placed(&members);
        moves.add(&without, &returned, owned(&whole, gone));
        assert_eq!(returned.owner_changes(&whole), 0);
    }
    assert_eq!(moves.must, 2 * SLOTS);
    assert!(moves.ratio() <= 1.03, "{} of what must", moves.ratio());
}

/// Slots map onto a member's cores by contiguous ranges: what it owns spreads over them.
#[test]
fn a_members_slots_spread_over_its_cores() {
    let placement = placed(&group(100, &EQUAL, 9));
    for (member, owned) in placement.shares() {
        let mut by_core = [0u32; 4];
        for slot in slots().filter(|&slot| placement.owner(slot).map(|m| m.id) == Some(member.id)) {
            by_core[slot.core(4)] += 1;
        }
        let most = f64::from(4 * by_core.into_iter().max().unwrap()) / f64::from(owned);
        assert!(most < 1.35, "{by_core:?}");
    }
}

/// Two versions of Forebay in one group must place alike: these values may change only with the wire's version.
#[test]
fn golden() {
    let few = placed(&[
        member(1, 100),
        member(2, 200),
        member(3, 0),
        member(0xfeed_f00d, 700),
    ]);
    let many = placed(&group(100, &MIXED, 42));
    let most = placed(&group(1_000, &MIXED, 42));
    let sample = |placement: &Placement| [0, 1, 12_345, 65_535].map(|slot| placement.table[slot]);
    let all = |placement: &Placement| {
        let mut hasher = blake3::Hasher::new();
        for place in placement.table.iter().flatten() {
            hasher.update(&place.to_le_bytes());
        }
        hasher.finalize().to_hex()[..16].to_string()
    };
    assert_eq!(few.view.digest(), 0x672e_7ef5_65c5_160b);
    assert_eq!(sample(&few), [[3, 1, 0], [3, 1, 0], [3, 0, 1], [1, 3, 0]]);
    assert_eq!(
        sample(&many),
        [[41, 85, 75], [76, 57, 71], [96, 88, 14], [43, 26, 77]]
    );
    assert_eq!(
        [&few, &many, &most].map(all),
        ["14ed63b5ef139de1", "8205338a7b4ec199", "63d349f02765c90a"]
    );
}

/// The table is built off the hot path, but a view's change waits for it. The bound is for a machine
/// that is busy with other tests; 65 ms of CPU time were measured.
#[test]
fn a_thousand_members_are_placed_soon() {
    let members = group(1_000, &MIXED, 1);
    let once = |_| {
        let started = Instant::now();
        placed(&members);
        started.elapsed()
    };
    let best = (0..5).map(once).min().unwrap();
    println!("1,000 members placed in {best:?}");
    if cfg!(debug_assertions) {
        println!("SKIPPED: the bound on time holds for optimised builds only");
    } else {
        assert!(best < Duration::from_secs(1), "took {best:?}");
    }
}

#[test]
fn odd_views_are_placed_too() {
    let nobody = placed(&[]);
    assert_eq!(slots().filter_map(|slot| nobody.owner(slot)).count(), 0);
    let idle = placed(&[member(1, 0), member(2, 0)]);
    assert_eq!(slots().filter_map(|slot| idle.owner(slot)).count(), 0);
    assert_eq!(idle.owner_changes(&nobody), 0);

    let alone = placed(&[member(1, 0), member(2, u32::MAX), member(3, 0)]);
    assert!(slots().all(|slot| alone.ranked(slot).map(|m| m.id).eq([PeerId(2)])));

    let giants = placed(&[
        member(u64::MAX, u32::MAX),
        member(0, u32::MAX),
        member(7, 1),
    ]);
    assert!(deviation(&giants).1 <= 0.5);
    assert!(slots().all(|slot| giants.ranked(slot).count() == 3));

    let mut one_giant = group(999, &[1], 3);
    one_giant.push(member(1, u32::MAX));
    let one_giant = placed(&one_giant);
    assert!(deviation(&one_giant).1 <= 0.5);
    assert!(slots().all(|slot| one_giant.ranked(slot).count() == 3));
}

#[test]
fn a_view_holds_at_most_so_many_members() {
    let view = View::new(group(MEMBERS_MAX + 100, &EQUAL, 3));
    assert_eq!(view.members().len(), MEMBERS_MAX);
    let placement = Placement::new(view);
    assert!(deviation(&placement).1 <= 0.5);
}

#[test]
fn of_two_with_one_id_the_heavier_counts() {
    let light = Member {
        cores: 0,
        ..member(1, 5)
    };
    for members in [[member(1, 9), light.clone()], [light.clone(), member(1, 9)]] {
        let view = View::new(members.to_vec());
        assert_eq!(view.members().len(), 1);
        assert_eq!(view.member(PeerId(1)).map(|member| member.weight), Some(9));
    }
    assert_eq!(View::new(vec![light]).members()[0].cores, 1);
}

#[test]
fn an_address_is_no_part_of_a_digest() {
    let address: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    let moved = Member {
        addresses: Arc::from([address]),
        ..member(1, 5)
    };
    let digest = |member: Member| View::new(vec![member]).digest();
    assert_eq!(digest(moved), digest(member(1, 5)));
    assert_ne!(digest(member(1, 6)), digest(member(1, 5)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_order_of_members_does_not_matter(
        weights in proptest::collection::vec(0u32..5_000, 1..40),
        seed: u64,
        shuffle: u64,
    ) {
        let members = group(weights.len(), &weights, seed);
        let mut shuffled = members.clone();
        let mut draws = Draws(shuffle);
        shuffled.sort_by_cached_key(|_| draws.next());
        let (one, other) = (placed(&members), placed(&shuffled));
        prop_assert_eq!(one.view.digest(), other.view.digest());
        prop_assert_eq!(&one.table, &other.table);
    }

    #[test]
    fn ranks_are_distinct_and_have_weight(
        weights in proptest::collection::vec(prop_oneof![Just(0u32), 1u32..100, Just(u32::MAX)], 0..50),
        seed: u64,
    ) {
        let members = group(weights.len(), &weights, seed);
        let placement = placed(&members);
        let racing = members.iter().filter(|member| member.weight > 0).count();
        for slot in slots() {
            let mut ids: Vec<PeerId> = placement.ranked(slot).map(|member| member.id).collect();
            prop_assert!(placement.ranked(slot).all(|member| member.weight > 0));
            prop_assert_eq!(ids.len(), racing.min(RANKS));
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len(), racing.min(RANKS));
        }
    }

    /// Scaled weights are rounded elsewhere, which may tip a slot or two.
    #[test]
    fn only_ratios_of_weights_matter(
        weights in proptest::collection::vec(1u32..5_000, 1..20),
        seed: u64,
        factor in 2u32..1_000,
    ) {
        let members = group(weights.len(), &weights, seed);
        let mut scaled = members.clone();
        for member in &mut scaled {
            member.weight *= factor;
        }
        prop_assert!(placed(&members).owner_changes(&placed(&scaled)) <= 16);
    }
}

/// The figures of the decision record.
#[test]
#[ignore = "prints figures"]
fn figures() {
    for count in [3, 10, 30, 100, 300, 1_000, 4_096] {
        for (name, weights) in [("mixed", &MIXED[..]), ("equal", &EQUAL[..])] {
            let seeds = if count > 1_000 { 1 } else { 5 };
            let started = Instant::now();
            let (share, slots) = deviation(&placed(&group(count, weights, 1)));
            let build = started.elapsed();
            let changes = Changes::of(count, weights, seeds);
            println!(
                "{count:5} {name}: off {:.2} % ({slots:+.2} slots beyond the greater of 3 % and one), join {:.3}, loss {:.3}, \
                 weight {:.3}, rank 2 followed {:.4}, built in {build:.1?}",
                share * 100.0,
                changes.join.ratio(),
                changes.loss.ratio(),
                changes.weight.ratio(),
                changes.follow(),
            );
        }
    }
}
