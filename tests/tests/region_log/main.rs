//! The region log against a plain model, over simulated devices that lose power, fail and change size.

mod churn;
mod crash;
mod faults;
mod model;
mod power;

use forebay_tests::disk::node::NodeConfig;
use forebay_tests::disk::ops::{Mix, Op};
use forebay_tests::disk::script::{Plan, Run};
use forebay_tests::sim::rng::SimRng;

const MIB: u64 = 1 << 20;

/// One device of 48 regions of 2 MiB, and blocks for three quarters of it.
fn plan(seed: u64) -> Plan {
    Plan {
        seed,
        devices: vec![(97 * MIB, 2 << 20, 4_096)],
        universe_bytes: 24 * MIB,
        node: NodeConfig::default(),
        keep_once: true,
        faulty: false,
    }
}

/// The seeds of a test: from `FOREBAY_DISK_SEED` on, or from 0.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = std::env::var("FOREBAY_DISK_SEED").map_or(0, |text| {
        text.parse().expect("FOREBAY_DISK_SEED is a number")
    });
    first..first + count
}

/// Carries `ops` random operations out.
fn play(run: &mut Run, mix: Mix, ops: usize, name: &str) -> Result<(), String> {
    let mut rng = SimRng::component(run.plan.seed, name, 0);
    let verbose = std::env::var_os("FOREBAY_DISK_VERBOSE").is_some();
    for number in 0..ops {
        let op: Op = mix.draw(&mut rng);
        if verbose {
            println!("{number}: {op:?}");
        }
        run.perform(op)
            .map_err(|wrong| format!("operation {number}, {op:?}: {wrong}"))?;
        if run.is_off() {
            return Ok(());
        }
    }
    Ok(())
}

/// Panics with what is needed to see it again.
#[track_caller]
fn must<T>(seed: u64, name: &str, result: Result<T, String>) -> T {
    result.unwrap_or_else(|wrong| {
        panic!(
            "seed {seed}: {wrong}\nreplay: FOREBAY_DISK_SEED={seed} cargo test -p forebay-tests \
             --test region_log {name}"
        )
    })
}
