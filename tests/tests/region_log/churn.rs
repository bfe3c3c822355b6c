//! Ten times the device's size: nothing leaks, and what is held stays within its bounds.

use std::time::Duration;

use forebay_engine::limits::DISK_ENTRY_BYTES;
use forebay_tests::disk::node::NodeConfig;
use forebay_tests::disk::ops::{End, Op};
use forebay_tests::disk::script::{Plan, Run};
use forebay_tests::disk::universe::Universe;
use forebay_tests::sim::rng::SimRng;

use super::{MIB, must, plan, seeds};

#[test]
fn churn_of_ten_times_the_device() {
    for seed in seeds(3) {
        let name = "churn";
        let mut rng = SimRng::component(seed, name, 0);
        let plan = Plan {
            devices: vec![(49 * MIB, 2 << 20, 4_096)],
            universe_bytes: 300 * MIB,
            node: NodeConfig {
                cores: 1 + seed as usize % 2,
                // Batches close by their length, not by their age.
                arena_bytes: 96 << 20,
                write_bytes_max: 24 << 20,
                ..NodeConfig::default()
            },
            ..plan(seed)
        };
        let device_bytes = 48 * MIB;
        let mut run = must(seed, name, Run::new(plan));
        let mut rounds = 0;
        while run.tally().kept_bytes < 10 * device_bytes {
            rounds += 1;
            assert!(rounds < 20_000, "{:?}", run.tally());
            let block = rng.bits() as u16;
            let keep = Op::Keep {
                block,
                from: 0,
                len: 63,
            };
            must(seed, name, run.perform(keep));
            if rng.chance(300) {
                let page = rng.below(1_024) as u16;
                let read = Op::Read {
                    block: rng.bits() as u16,
                    page,
                    len: 16,
                };
                must(seed, name, run.perform(read));
            }
            if rng.chance(20) {
                must(seed, name, run.rest());
            }
            if rng.chance(5) {
                let end = *rng.pick(&[End::Orderly, End::Killed]);
                let cores = run.node().config().cores;
                must(seed, name, run.restart(end, cores));
            }
        }
        must(seed, name, run.rest());
        let stats = run.stats();
        let device = &stats.devices[0];
        println!(
            "seed {seed}: live {} of {} used MiB, fragmentation {:.2}, write amplification {:.2}, {} refused MiB, {device:?}",
            device.live_bytes / MIB,
            device.used_bytes / MIB,
            device.fragmentation(),
            device.write_amplification(),
            run.tally().refused_bytes / MIB,
        );
        assert!(
            device.used_bytes >= device_bytes / 2,
            "the log uses its room: {device:?}"
        );
        assert!(device.fragmentation() < 0.5, "{device:?}");
        must(seed, name, run.finish());
    }
}

/// An index full of entries of one page each.
#[test]
fn an_entry_takes_at_most_64_bytes_of_memory() {
    let name = "an_entry_takes";
    let entries_max = 4_000;
    let plan = Plan {
        universe_bytes: 0,
        node: NodeConfig {
            entries_max,
            ..NodeConfig::default()
        },
        ..plan(1)
    };
    let universe = Universe::new(1, (0..6_000).map(|number| 1 + number % 4_096));
    let mut run = must(1, name, Run::with_universe(plan, universe));
    for block in 0..6_000 {
        let keep = Op::Keep {
            block,
            from: 0,
            len: 0,
        };
        must(1, name, run.perform(keep));
        if block % 256 == 0 {
            must(1, name, run.pass(Duration::from_millis(200)));
        }
    }
    must(1, name, run.rest());
    let stats = run.stats();
    let entries = stats.devices[0].entries;
    println!("{entries} entries, {} bytes", stats.index_bytes);
    assert!(entries > entries_max as u64 * 8 / 10, "{stats:?}");
    assert!(stats.index_bytes <= entries_max as u64 * DISK_ENTRY_BYTES as u64);
    must(1, name, run.finish());
}
