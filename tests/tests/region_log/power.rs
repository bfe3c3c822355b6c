//! The power fails: at random moments, and at every write of a script.

use forebay_tests::disk::node::NodeConfig;
use forebay_tests::disk::ops::{End, Mix};
use forebay_tests::disk::script::{Plan, Run};
use forebay_tests::sim::rng::SimRng;

use super::{MIB, must, plan, play, seeds};

fn mix() -> Mix {
    Mix {
        forgets: 5,
        pins: 30,
        ..Mix::default()
    }
}

#[test]
fn random_cuts_over_several_generations() {
    let mut cuts = 0;
    for seed in seeds(12) {
        let name = "random_cuts";
        let mut rng = SimRng::component(seed, "cuts", 0);
        let plan = Plan {
            devices: vec![(rng.between(40, 80) * MIB, 2 << 20, *rng.pick(&[512, 4_096]))],
            universe_bytes: rng.between(30, 200) * MIB,
            node: NodeConfig {
                cores: rng.between(1, 3) as usize,
                ..NodeConfig::default()
            },
            ..plan(seed)
        };
        let mut run = must(seed, name, Run::new(plan));
        for generation in 0..6 {
            let writes = run.bays[0].media.borrow().writes();
            let at = writes + rng.between(1, 120);
            run.bays[0].media.borrow_mut().fail_power_at_write(at);
            let part = format!("{name} {generation}");
            must(seed, name, play(&mut run, mix(), 60, &part));
            cuts += u64::from(run.is_off());
            let cores = rng.between(1, 3) as usize;
            must(seed, name, run.restart(End::PowerCut, cores));
            must(seed, name, run.read_everything());
        }
        must(seed, name, run.finish());
    }
    assert!(cuts > 25, "{cuts} cuts in the middle of writing");
}

/// A small device under pressure: regions are sealed, reclaimed and opened again within the script.
fn pressed(seed: u64) -> Plan {
    Plan {
        devices: vec![(21 * MIB, 2 << 20, 4_096)],
        universe_bytes: 40 * MIB,
        ..plan(seed)
    }
}

#[test]
fn a_cut_at_every_write_of_a_script() {
    let name = "a_cut_at_every_write";
    for seed in seeds(1) {
        // As long as it takes for regions to be reclaimed.
        let mut run = must(seed, name, Run::new(pressed(seed)));
        let mut parts = 0;
        while reclaimed(&run) < 4 {
            parts += 1;
            assert!(parts < 60, "nothing is ever reclaimed: {:?}", run.stats());
            must(seed, name, part(&mut run, parts));
        }
        let script = |run: &mut Run| (1..=parts).try_for_each(|number| part(run, number));
        let writes = run.bays[0].media.borrow().writes();
        println!("seed {seed}: {writes} writes in {parts} parts");
        for at in 1..=writes {
            let mut run = must(seed, name, Run::new(pressed(seed)));
            run.bays[0].media.borrow_mut().fail_power_at_write(at);
            let after = script(&mut run)
                .and_then(|()| run.restart(End::PowerCut, 1 + at as usize % 2))
                .and_then(|()| run.read_everything())
                .and_then(|()| play(&mut run, mix(), 10, "after the cut"))
                .and_then(|()| run.restart(End::PowerCut, 1))
                .and_then(|()| run.finish());
            must(
                seed,
                name,
                after.map_err(|wrong| format!("cut at write {at}: {wrong}")),
            );
        }
    }
}

/// One part of the script.
fn part(run: &mut Run, number: u64) -> Result<(), String> {
    play(run, mix(), 10, &format!("part {number}"))
}

fn reclaimed(run: &Run) -> u64 {
    let devices = run.stats().devices;
    devices.iter().map(|device| device.regions_reclaimed).sum()
}
