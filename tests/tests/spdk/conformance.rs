//! The device port's suite, bare and under the wrappers; several cores on one namespace.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use forebay_cli::host::MonotonicClock;
use forebay_tests::conformance::block_device::{every_operation_ends, suite};
use forebay_tests::devices::counting::{Counters, CountingDevice};
use forebay_tests::devices::delayed::{Delay, DelayedDevice, Delays};
use forebay_tests::devices::faulty::{Faults, FaultyDevice};

use crate::bench::{Bench, CAPACITY_BYTES, open, target};
use crate::rig::SpdkRig;

#[test]
fn a_namespace_conforms_with_either_sector_size() {
    let Some(target) = target("conformance") else {
        return;
    };
    for sector_bytes in [512, 4096] {
        let name = format!("s{sector_bytes}");
        let namespace = open(&target.add(&name, CAPACITY_BYTES, sector_bytes).unwrap());
        assert_eq!(namespace.geometry().sector_bytes, sector_bytes);
        assert_eq!(namespace.geometry().capacity_bytes, CAPACITY_BYTES);
        for depth in [1, 8, 128] {
            if let Err(broken) = suite(|| SpdkRig::new(&namespace, depth, |device| device)) {
                panic!("{} with depth {depth}: {broken}", namespace.address());
            }
        }
        every_operation_ends(SpdkRig::new(&namespace, 32, |device| device), 3).unwrap();
    }
}

#[test]
fn a_namespace_conforms_under_every_wrapper() {
    let Some(target) = target("conformance under wrappers") else {
        return;
    };
    let namespace = open(&target.add("wrapped", CAPACITY_BYTES, 4096).unwrap());
    let (faults, delays, counters) = (Faults::new(1), Delays::new(1), Counters::default());
    delays.set(Delay::long_tail(Duration::from_micros(20)));
    let clock = MonotonicClock::start();
    let make = || {
        let (faults, delays, counters) = (faults.clone(), delays.clone(), counters.clone());
        SpdkRig::new(&namespace, 64, move |device| {
            let delayed = DelayedDevice::new(device, clock, delays.clone());
            CountingDevice::new(FaultyDevice::new(delayed, faults.clone()), counters.clone())
        })
    };
    suite(make).unwrap();
    assert!(delays.slow() > 0, "nothing was slow");
    faults.defects(|defects| {
        defects.unreadable.push(0..CAPACITY_BYTES / 2);
        // What cannot be written does not heal what cannot be read.
        defects.unwritable.push(0..CAPACITY_BYTES / 4);
    });
    every_operation_ends(make(), 5).unwrap();
    let delivered = faults.delivered();
    assert!(
        delivered.unreadable > 0 && delivered.unwritable > 0,
        "{delivered:?}"
    );
    faults.defects(|defects| defects.gone = true);
    every_operation_ends(make(), 6).unwrap();
}

#[test]
fn two_cores_have_a_queue_pair_each() {
    const ROUNDS: u64 = 50;
    let Some(target) = target("two cores on a namespace") else {
        return;
    };
    let namespace = open(&target.add("cores", CAPACITY_BYTES, 512).unwrap());
    let barrier = Arc::new(Barrier::new(2));
    let core = |number: u64| {
        let (namespace, barrier) = (namespace.clone(), barrier.clone());
        std::thread::spawn(move || {
            let mut bench = Bench::new(&namespace);
            for round in 0..ROUNDS {
                let at = |number: u64| (round % 16 * 2 + number) * (64 << 10);
                let byte = |number: u64| (round * 2 + number) as u8;
                bench.write(at(number), byte(number), 64 << 10).unwrap();
                barrier.wait();
                let theirs = bench.read(at(1 - number), 64 << 10).unwrap();
                assert!(theirs.iter().all(|have| *have == byte(1 - number)));
                barrier.wait();
            }
            bench.flush().unwrap();
            bench.assert_nothing_lent();
        })
    };
    for core in [core(0), core(1)] {
        core.join().unwrap();
    }
}
