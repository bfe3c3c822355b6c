//! What goes wrong on the target's side: failing operations, one that never ends, a namespace or the target that is gone.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::ports::{BlockDevice, DeviceError};
use forebay_nvme_spdk::{Loss, Namespace, OpenOptions, QueueError, QueueOptions};
use forebay_tests::devices::target::Mishap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::bench::{Bench, CAPACITY_BYTES, MIB, PATIENCE, open, open_with, target};

#[test]
fn a_failing_operation_is_one_failure() {
    let Some(target) = target("failing operations") else {
        return;
    };
    let mut bench = Bench::new(&open(&target.add("failing", CAPACITY_BYTES, 512).unwrap()));
    bench.write(0, 3, MIB as usize).unwrap();
    for (kind, error) in [("read", DeviceError::Media), ("write", DeviceError::Write)] {
        // SPDK itself tries again what may succeed.
        target
            .inject("failing", kind, Mishap::Failure, 1_000)
            .unwrap();
        let failed = match kind {
            "read" => bench.read(0, 4096).map(drop),
            _ => bench.write(2 * MIB, 4, 4096),
        };
        assert_eq!(failed, Err(error));
        target.heal("failing").unwrap();
    }
    assert_eq!(bench.read(0, 4096).unwrap(), [3; 4096]);
    bench.write(2 * MIB, 4, 4096).unwrap();
    bench.flush().unwrap();
    assert_eq!(bench.device.loss(), None);
    bench.assert_nothing_lent();
}

#[test]
fn a_command_that_never_ends_ends_the_controller() {
    let Some(target) = target("a hanging controller") else {
        return;
    };
    let options = OpenOptions {
        timeout: Duration::from_secs(1),
        ..OpenOptions::default()
    };
    let there = target.add("hanging", CAPACITY_BYTES, 512).unwrap();
    let namespace = open_with(&there, &options).unwrap();
    let mut bench = Bench::new(&namespace);
    bench.write(0, 3, 4096).unwrap();
    target.inject("hanging", "read", Mishap::Hang, 1).unwrap();
    let began = Instant::now();
    bench.begin_read(0, 4096);
    bench.begin_read(MIB, 4096);
    let ends = [bench.wait(), bench.wait()];
    assert!(began.elapsed() >= options.timeout || ends[0].is_ok());
    assert!(ends.contains(&Err(DeviceError::Gone)), "{ends:?}");
    assert!(began.elapsed() >= options.timeout);
    assert_eq!(namespace.loss(), Some(Loss::TimedOut(options.timeout)));
    assert!(
        bench.device.loss().unwrap().contains("1 s"),
        "{:?}",
        bench.device.loss()
    );
    assert_lost(&namespace, &mut bench);
    // What is opened anew is a new attachment.
    drop(bench);
    drop(namespace);
    target.heal("hanging").unwrap();
    assert_eq!(Bench::new(&open(&there)).read(0, 4096).unwrap(), [3; 4096]);
}

/// Everything ends as gone, at once, with its buffer; there is no new queue pair.
fn assert_lost(namespace: &Arc<Namespace>, bench: &mut Bench) {
    assert_eq!(bench.read(0, 4096), Err(DeviceError::Gone));
    assert_eq!(bench.write(0, 1, 4096), Err(DeviceError::Gone));
    assert_eq!(bench.flush(), Err(DeviceError::Gone));
    assert_eq!(bench.read(CAPACITY_BYTES, 4096), Err(DeviceError::Range));
    bench.assert_nothing_lent();
    let another = namespace.queue_pair(&bench.arena.mapping(), &QueueOptions::default());
    assert!(
        matches!(another, Err(QueueError::Lost { .. })),
        "{another:?}"
    );
}

#[test]
fn a_target_that_dies_under_load_ends_every_operation() {
    let Some(mut target) = target("a target that dies") else {
        return;
    };
    let namespace = open(&target.add("dying", CAPACITY_BYTES, 512).unwrap());
    let mut bench = Bench::new(&namespace);
    target.inject("dying", "all", Mishap::Hang, 1_000).unwrap();
    for n in 0..8 {
        bench.begin_write(n * MIB / 2, 1, MIB as usize / 2);
        bench.begin_read(n * MIB / 2, 4096);
    }
    target.kill().unwrap();
    for _ in 0..16 {
        assert_eq!(bench.wait(), Err(DeviceError::Gone));
    }
    assert!(bench.device.nap().is_none(), "nothing is left to wait for");
    assert!(namespace.loss().is_some());
    assert_lost(&namespace, &mut bench);
}

#[test]
fn a_core_that_sleeps_is_told_of_a_target_that_dies() {
    let Some(mut target) = target("a target that dies at rest") else {
        return;
    };
    let namespace = open(&target.add("resting", CAPACITY_BYTES, 512).unwrap());
    let mut bench = Bench::new(&namespace);
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    bench.device.signal_at(event.as_fd()).unwrap();
    bench.write(0, 1, 4096).unwrap();
    assert_eq!(bench.device.nap(), None, "an idle device asks for nothing");
    target.kill().unwrap();
    let timeout = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&event, PollFlags::IN)];
    assert_eq!(
        poll(&mut fds, Some(&timeout)).unwrap(),
        1,
        "nobody woke the sleeper"
    );
    assert_eq!(namespace.loss(), Some(Loss::Removed));
    assert_lost(&namespace, &mut bench);
}

/// Until an operation ends as gone.
fn until_gone(bench: &mut Bench) {
    let last = Instant::now() + PATIENCE;
    while bench.read(0, 4096) != Err(DeviceError::Gone) {
        assert!(Instant::now() < last, "reads go on");
    }
}

#[test]
fn a_namespace_that_is_taken_away_in_use_is_gone() {
    let Some(target) = target("a namespace that is taken away") else {
        return;
    };
    let namespace = open(&target.add("taken", CAPACITY_BYTES, 512).unwrap());
    let mut bench = Bench::new(&namespace);
    bench.write(0, 1, 4096).unwrap();
    target.take_namespace("taken").unwrap();
    until_gone(&mut bench);
    bench.assert_nothing_lent();
    drop(bench);
    drop(namespace);
    let error = open_with(&target.transport_id("taken"), &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("has no namespace"), "{error}");
}

#[test]
fn a_subsystem_that_is_deleted_in_use_is_gone() {
    let Some(target) = target("a subsystem that is deleted") else {
        return;
    };
    let namespace = open(&target.add("deleted", CAPACITY_BYTES, 512).unwrap());
    let mut bench = Bench::new(&namespace);
    bench.write(0, 1, 4096).unwrap();
    target.remove("deleted").unwrap();
    until_gone(&mut bench);
    assert_lost(&namespace, &mut bench);
}

/// What is under way when a queue pair is dropped ends, or is given up with its connection.
#[test]
fn a_queue_pair_dropped_under_load_gives_its_buffers_back() {
    let Some(target) = target("dropping under load") else {
        return;
    };
    let namespace = open(&target.add("dropped", CAPACITY_BYTES, 512).unwrap());
    for hangs in [false, true] {
        let mut bench = Bench::new(&namespace);
        if hangs {
            target
                .inject("dropped", "write", Mishap::Hang, 1_000)
                .unwrap();
        }
        for n in 0..8 {
            bench.begin_write(n * MIB / 2, 1, MIB as usize / 2);
        }
        let Bench {
            mut arena, device, ..
        } = bench;
        let began = Instant::now();
        drop(device);
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        arena.reclaim();
        assert_eq!(arena.free_bytes(), arena.capacity_bytes(), "hangs: {hangs}");
        if !hangs {
            assert_eq!(Bench::new(&namespace).read(0, 4096).unwrap(), [1; 4096]);
        }
    }
}
