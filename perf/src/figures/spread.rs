//! `spread`: 10,000 files of one stripe each are warmed up in a group of three whose weights are 1 : 1 : 2. What lies on
//! each member's disk afterwards, as a share of all, against the share that its weight says.

use anyhow::{Context, Result, ensure};
use forebay_tests::harness::Held;

use crate::group::{Group, Plan};
use crate::load::Rng;
use crate::run::Run;
use crate::samples::{Part, Samples, Target};

const FILES: u64 = 10_000;
/// 50 to 150 KiB, so 100 on average: 1 GB.
const FILE_BYTES_MIN: u64 = 50 << 10;
const FILE_BYTES_SPREAD: u64 = 100 << 10;
const WEIGHTS: [u32; 3] = [1, 1, 2];
const MEMORY: &str = "256MiB";
/// All would fit any of them.
const CACHE: &str = "2GiB";
/// A member may be off its share by so much.
const TARGET_PERCENT: f64 = 5.0;

/// Shares of the three members, each 0 to 1.
type Shares = [f64; 3];

/// One warm-up.
struct Spread {
    ring: Shares,
    stripes: Shares,
    bytes: Shares,
}

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    let spreads: Vec<Spread> = (0..run.repetitions())
        .map(|repetition| warm_up(run, repetition))
        .collect::<Result<_>>()?;
    let part = |name, target, of: fn(&Spread) -> &Shares| {
        let off = Samples::new(spreads.iter().map(|spread| worst_off(of(spread))).collect());
        let last = spreads.last().map(|spread| words(of(spread)));
        Part {
            name,
            measured: off.median(),
            target,
            detail: format!(
                "percent that the worst member is off its share, {:.2} to {:.2}; the last time the three had {} %",
                off.min(),
                off.max(),
                last.unwrap_or_default()
            ),
        }
    };
    let target = Target::AtMost(TARGET_PERCENT);
    Ok(vec![
        part("bytes-off-percent", target, |spread| &spread.bytes),
        part("stripes-off-percent", target, |spread| &spread.stripes),
        part("ring-off-percent", Target::None, |spread| &spread.ring),
    ])
}

fn warm_up(run: &Run, repetition: usize) -> Result<Spread> {
    let objects = objects(run.amount(FILES), repetition as u64);
    // Other names each time, and so another ring.
    let nodes = ["a", "b", "c"].map(|letter| format!("{letter}{repetition}"));
    let plans: Vec<Plan<'_>> = nodes
        .iter()
        .zip(WEIGHTS)
        .map(|(node, weight)| Plan {
            node: node.clone(),
            memory: MEMORY,
            cache: Some(CACHE),
            weight,
        })
        .collect();
    let mut group = Group::start(run.scratch()?, &objects, &plans)?;
    let ring = ring(&group, &nodes)?;
    group.warm_up()?;
    // In order, so that everything is on disk.
    group.stop()?;
    let held = nodes.each_ref().map(|node| group.held_by(node));
    let [a, b, c] = held;
    let held = [a?, b?, c?];
    check_all_held(&held, &objects)?;
    let shares = |of: fn(&Held) -> u64| shares_of(held.each_ref().map(of));
    let spread = Spread {
        ring,
        stripes: shares(|held| held.objects),
        bytes: shares(|held| held.bytes),
    };
    println!(
        "  of bytes {} %, of stripes {} %, of the ring {} %",
        words(&spread.bytes),
        words(&spread.stripes),
        words(&spread.ring)
    );
    Ok(spread)
}

fn objects(files: u64, seed: u64) -> Vec<(String, u64)> {
    let mut rng = Rng::of(seed, 0);
    (0..files)
        .map(|n| {
            let bytes = FILE_BYTES_MIN + rng.next() % FILE_BYTES_SPREAD;
            (format!("{seed}/{n:05}.bin"), bytes)
        })
        .collect()
}

/// What each of the members owns of the ring, as they see it.
fn ring(group: &Group, nodes: &[String; 3]) -> Result<Shares> {
    let members = group.members()?;
    let mut shares = [0.0; 3];
    for (share, node) in shares.iter_mut().zip(nodes) {
        let member = members.iter().find(|member| member.node == *node);
        *share = member
            .with_context(|| format!("no member {node}"))?
            .ring_share;
    }
    Ok(shares)
}

/// Each file is at one member, whole.
fn check_all_held(held: &[Held; 3], objects: &[(String, u64)]) -> Result<()> {
    let all = Held {
        objects: objects.len() as u64,
        bytes: objects.iter().map(|(_, bytes)| bytes).sum(),
    };
    let found = Held {
        objects: held.iter().map(|held| held.objects).sum(),
        bytes: held.iter().map(|held| held.bytes).sum(),
    };
    ensure!(
        found == all,
        "the members hold {found:?}, not {all:?}: not a measurement of a spread"
    );
    Ok(())
}

fn shares_of(parts: [u64; 3]) -> Shares {
    let all: u64 = parts.iter().sum();
    parts.map(|part| part as f64 / all.max(1) as f64)
}

/// How far the worst member is off what its weight says, in percent of that.
fn worst_off(shares: &Shares) -> f64 {
    let weights: u32 = WEIGHTS.iter().sum();
    let off = shares.iter().zip(WEIGHTS).map(|(share, weight)| {
        let fair = f64::from(weight) / f64::from(weights);
        100.0 * (share / fair - 1.0).abs()
    });
    off.fold(0.0, f64::max)
}

fn words(shares: &Shares) -> String {
    shares
        .map(|share| format!("{:.2}", 100.0 * share))
        .join(" : ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_member_counts_by_its_own_share() {
        assert_eq!(worst_off(&shares_of([250, 250, 500])), 0.0);
        let off = worst_off(&shares_of([240, 250, 510]));
        assert!((off - 4.0).abs() < 1e-9, "{off}");
        let off = worst_off(&shares_of([250, 210, 540]));
        assert!((off - 16.0).abs() < 1e-9, "{off}");
    }

    #[test]
    fn sizes_are_of_one_stripe_and_the_same_for_a_seed() {
        let sizes = objects(100, 3);
        let stripe_bytes = forebay_engine::limits::STRIPE_BYTES as u64;
        assert!(sizes.iter().all(|(_, bytes)| *bytes < stripe_bytes));
        assert_eq!(sizes, objects(100, 3));
        assert_ne!(sizes, objects(100, 4));
    }
}
