//! Devices at fault: right bytes or a miss, and everything ends.

use std::time::Duration;

use forebay_engine::disk::DeviceState;
use forebay_tests::disk::node::NodeConfig;
use forebay_tests::disk::ops::Mix;
use forebay_tests::disk::script::{Plan, Run};
use forebay_tests::sim::device::DeviceFaults;
use forebay_tests::sim::rng::SimRng;

use super::{MIB, must, plan, play, seeds};

fn faulty(seed: u64, faults: DeviceFaults) -> Plan {
    let mut rng = SimRng::component(seed, "faulty", 0);
    Plan {
        universe_bytes: rng.between(20, 200) * MIB,
        node: NodeConfig {
            cores: rng.between(1, 2) as usize,
            read_timeout: Duration::from_millis(20),
            faults,
            ..NodeConfig::default()
        },
        faulty: true,
        ..plan(seed)
    }
}

fn mix() -> Mix {
    Mix {
        restarts: 10,
        forgets: 5,
        pins: 5,
        ..Mix::default()
    }
}

/// Plays several seeds with `faults`; says what they came to.
fn storms(name: &str, faults: DeviceFaults, mix: Mix) -> (u64, [u64; 4], u64) {
    let (mut hits, mut misses, mut retired) = (0, [0; 4], 0);
    for seed in seeds(6) {
        let mut run = must(seed, name, Run::new(faulty(seed, faults.clone())));
        must(seed, name, play(&mut run, mix, 120, name));
        let states = run.stats().devices;
        retired += states
            .iter()
            .filter(|device| {
                let stopped = matches!(
                    device.state,
                    DeviceState::Retired(_) | DeviceState::ReadOnly(_)
                );
                stopped && device.write_errors + device.read_errors > 0
            })
            .count() as u64;
        let (tally, _) = must(seed, name, run.finish());
        hits += tally.hits;
        for (all, some) in misses.iter_mut().zip(tally.misses) {
            *all += some;
        }
    }
    println!("{name}: {hits} hits, misses {misses:?}, {retired} retired");
    (hits, misses, retired)
}

#[test]
fn latent_errors() {
    let faults = DeviceFaults {
        latent_error: 2,
        ..DeviceFaults::default()
    };
    let (hits, misses, _) = storms("latent_errors", faults, mix());
    assert!(hits > 50 && misses[2] > 5);
}

#[test]
fn flipped_bits() {
    let faults = DeviceFaults {
        bit_flip: 2,
        ..DeviceFaults::default()
    };
    let (hits, misses, _) = storms("flipped_bits", faults, mix());
    assert!(hits > 50 && misses[1] > 5);
}

#[test]
fn misdirected_writes() {
    let faults = DeviceFaults {
        misdirected_write: 20,
        ..DeviceFaults::default()
    };
    let (hits, misses, _) = storms("misdirected_writes", faults, mix());
    assert!(hits > 50 && misses[1] > 0);
}

#[test]
fn torn_writes() {
    let faults = DeviceFaults {
        torn_write: 30,
        ..DeviceFaults::default()
    };
    let (hits, ..) = storms("torn_writes", faults, mix());
    assert!(hits > 50);
}

#[test]
fn slow_operations() {
    let faults = DeviceFaults {
        slow: 100,
        ..DeviceFaults::default()
    };
    let (hits, misses, _) = storms("slow_operations", faults, mix());
    assert!(hits > 50 && misses[3] > 5);
}

#[test]
fn a_device_that_is_full_of_work() {
    let faults = DeviceFaults {
        full: 500,
        ..DeviceFaults::default()
    };
    let (hits, ..) = storms("full_of_work", faults, mix());
    assert!(hits > 50);
}

#[test]
fn everything_at_once() {
    let faults = DeviceFaults {
        latent_error: 1,
        torn_write: 5,
        bit_flip: 1,
        misdirected_write: 5,
        slow: 20,
        vanish: 0,
        full: 100,
    };
    let (hits, misses, _) = storms("everything_at_once", faults, mix());
    assert!(hits > 50 && misses.iter().sum::<u64>() > 20);
}

#[test]
fn a_bad_device_is_given_up_and_says_so() {
    let faults = DeviceFaults {
        torn_write: 700,
        latent_error: 100,
        ..DeviceFaults::default()
    };
    let never = Mix {
        restarts: 0,
        ..mix()
    };
    let (.., retired) = storms("a_bad_device", faults, never);
    assert!(retired >= 3, "{retired} of 6 retired");
}

#[test]
fn a_device_that_vanishes() {
    let faults = DeviceFaults {
        vanish: 5,
        ..DeviceFaults::default()
    };
    let never = Mix {
        restarts: 0,
        ..mix()
    };
    let (.., retired) = storms("vanishes", faults, never);
    assert!(retired >= 3, "{retired} of 6 retired");
}

/// Fills the device, changes it by `change`, goes on, changes it back.
fn hindered(name: &str, change: fn(&Run, bool)) -> Vec<DeviceState> {
    let mut states = Vec::new();
    for seed in seeds(6) {
        let mut plan = faulty(seed, DeviceFaults::default());
        plan.node.read_timeout = Duration::from_secs(1);
        let mut run = must(seed, name, Run::new(plan));
        let never = Mix::default();
        must(seed, name, play(&mut run, never, 40, name));
        must(seed, name, run.rest());
        let before = run.tally().hits;
        change(&run, true);
        must(seed, name, play(&mut run, never, 60, "hindered"));
        must(seed, name, run.rest());
        must(seed, name, run.read_everything());
        assert!(
            run.tally().hits > before,
            "seed {seed}: reads go on while writes fail: {:?}",
            run.stats()
        );
        assert_eq!(run.tally().misses[1..], [0; 3], "seed {seed}");
        states.extend(run.stats().devices.into_iter().map(|device| device.state));
        change(&run, false);
        // What was written half is written again, or is not there.
        must(
            seed,
            name,
            run.restart(forebay_tests::disk::ops::End::Orderly, 2),
        );
        must(seed, name, play(&mut run, never, 40, "afterwards"));
        must(seed, name, run.read_everything());
        assert_eq!(run.stats().devices[0].state, DeviceState::Serving);
        must(seed, name, run.finish());
    }
    states
}

#[test]
fn a_full_disk_makes_the_log_smaller() {
    let states = hindered("a_full_disk", |run, on| {
        run.bays[0].media.borrow_mut().set_full(on);
    });
    assert!(
        states
            .iter()
            .all(|state| !matches!(state, DeviceState::Retired(_))),
        "{states:?}"
    );
}

#[test]
fn a_disk_turned_read_only_still_reads() {
    let states = hindered("read_only", |run, on| {
        run.bays[0].media.borrow_mut().set_read_only(on);
    });
    assert!(
        states
            .iter()
            .any(|state| matches!(state, DeviceState::ReadOnly(_))),
        "{states:?}"
    );
}
