//! Sequences of operations, drawn and shrunk, on devices without faults.

use forebay_tests::disk::media::{Platter, claims};
use forebay_tests::disk::node::NodeConfig;
use forebay_tests::disk::ops::{End, Mix, Op};
use forebay_tests::disk::script::{Plan, Run};
use forebay_tests::sim::rng::SimRng;
use proptest::prelude::*;

use super::{MIB, must, plan, play, seeds};

#[test]
fn below_capacity_everything_is_found_through_orderly_restarts() {
    for seed in seeds(6) {
        let name = "below_capacity";
        let mut run = must(seed, name, Run::new(plan(seed)));
        for cores in [1, 1, 2, 3] {
            must(seed, name, play(&mut run, Mix::default(), 60, name));
            must(seed, name, run.read_everything());
            must(seed, name, run.restart(End::Orderly, cores));
        }
        let (tally, stats) = must(seed, name, run.finish());
        assert_eq!(tally.lost_pages, 0, "seed {seed}: {stats:?}");
        assert!(
            tally.hits > 100 && tally.recovered_pages > 1_000,
            "{tally:?}"
        );
        assert_eq!(stats.devices[0].entries_evicted, 0);
    }
}

/// The checkers can fail.
#[test]
fn a_byte_that_rots_unseen_is_seen() {
    let mut run = Run::new(plan(1)).expect("a run");
    for block in 0..8 {
        let keep = Op::Keep {
            block,
            from: 0,
            len: 63,
        };
        run.perform(keep).expect("it is kept");
    }
    run.rest().expect("all is right");
    let bay = run.bays[0].clone();
    let (region, entry) = claims(&Platter::of(&bay, false))
        .into_iter()
        .find_map(|region| Some((region.header.region, region.entries.first()?.0)))
        .expect("something was written");
    let at = bay.geometry.offset_bytes(region) + u64::from(entry.region_page) * 4_096;
    bay.media.borrow_mut().rot(at, bay.sector_bytes);
    let read = run.read_everything().expect_err("a reader misses it");
    assert!(read.contains("Checksum"), "{read}");
    let restart = run
        .restart(End::Killed, 1)
        .expect_err("the media are wrong");
    assert!(restart.contains("wrong byte"), "{restart}");
}

#[test]
fn random_lives_agree_with_the_model() {
    let mut hits = 0;
    let mut lost = 0;
    for seed in seeds(12) {
        let name = "random_lives";
        let mut rng = SimRng::component(seed, "lives", 0);
        let sector = *rng.pick(&[512, 4_096, 4_096]);
        let devices = (0..rng.between(1, 3)).map(|_| (rng.between(60, 100) * MIB, 2 << 20, sector));
        let plan = Plan {
            devices: devices.collect(),
            universe_bytes: rng.between(20, 400) * MIB,
            node: NodeConfig {
                cores: rng.between(1, 3) as usize,
                queue_depth: *rng.pick(&[2, 8, 64]),
                denied: *rng.pick(&[0, 0, 200]),
                ..NodeConfig::default()
            },
            keep_once: rng.chance(500),
            ..plan(seed)
        };
        let mix = Mix {
            restarts: 15,
            resizes: 5,
            allowances: 10,
            forgets: 10,
            pins: 20,
        };
        let mut run = must(seed, name, Run::new(plan));
        must(seed, name, play(&mut run, mix, 200, name));
        let (tally, _) = must(seed, name, run.finish());
        hits += tally.hits;
        lost += tally.lost_pages;
    }
    assert!(hits > 500 && lost > 50, "{hits} hits, {lost} lost");
}

fn op() -> impl Strategy<Value = Op> {
    let end = prop_oneof![Just(End::Orderly), Just(End::Killed), Just(End::PowerCut)];
    prop_oneof![
        8 => (any::<u16>(), any::<u8>(), any::<u8>())
            .prop_map(|(block, from, len)| Op::Keep { block, from, len }),
        4 => (any::<u16>(), any::<u16>(), any::<u16>())
            .prop_map(|(block, page, len)| Op::Read { block, page, len }),
        1 => any::<u16>().prop_map(Op::Touch),
        1 => any::<u16>().prop_map(Op::Forget),
        1 => any::<u16>().prop_map(Op::Pin),
        1 => any::<u16>().prop_map(Op::Unpin),
        1 => any::<u16>().prop_map(Op::Pass),
        1 => Just(Op::Rest),
        1 => (end, any::<u8>()).prop_map(|(end, cores)| Op::Restart { end, cores }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_agrees_with_the_model(
        seed in 0u64..1_000,
        keep_once in any::<bool>(),
        ops in proptest::collection::vec(op(), 1..80),
    ) {
        let plan = Plan { keep_once, ..plan(seed) };
        let go = || -> Result<(), String> {
            let mut run = Run::new(plan)?;
            for op in &ops {
                run.perform(*op)?;
            }
            run.finish().map(drop)
        };
        prop_assert_eq!(go(), Ok(()));
    }
}
