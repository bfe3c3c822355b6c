//! Bytes through a group: right, and from the origin once.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cluster::{Cluster, GROUP, SILENCE_MAX, put_objects, read_objects, store_objects};
use super::owners::owned_bytes;
use super::support::{have_fuse, send};

const MIB: usize = 1 << 20;

/// Whole and broken lengths; 50 MiB in all.
const LENGTHS: [usize; 12] = [
    1,
    4096,
    100_000,
    MIB,
    2 * MIB + 1,
    3 * MIB,
    4 * MIB - 1,
    5 * MIB,
    6 * MIB + 77,
    8 * MIB,
    9 * MIB,
    12 * MIB,
];

#[test]
fn a_client_of_three_members_reads_every_byte_right_and_the_origin_gives_each_once() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all();
    let path = cluster.mount_client(&[]);
    cluster.place.server.reset_counters();
    read_objects(&path, "o", &LENGTHS);
    let cold = cluster.place.server.counters();
    assert!(
        cold.body_bytes as f64 <= 1.01 * total as f64,
        "{} of {total}",
        cold.body_bytes
    );
    assert!(cold.unique_bytes >= total, "all of it was read");

    // Another mount, with empty memory: all of it is in the group.
    cluster.place.run(&["umount", "m"]).ok();
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    let warm = cluster.place.server.counters();
    assert_eq!(
        warm.body_bytes, cold.body_bytes,
        "nothing was read from the origin again"
    );
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_with_a_mount_shares_what_it_reads() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    let path = cluster.serve_all_and_mount("b");
    read_objects(&path, "o", &LENGTHS);
    let bytes = cluster.place.server.counters().body_bytes;
    assert!(bytes as f64 <= 1.01 * total as f64, "{bytes} of {total}");
    let status = cluster.json("m");
    assert_eq!(status["group"]["role"], "member");
    assert_eq!(status["group"]["members"].as_array().unwrap().len(), 2);
    cluster.place.run(&["umount", "m"]).ok();
    cluster.until_members(&["a"]);
}

#[test]
fn a_killed_member_costs_what_it_held_and_no_error() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let objects = store_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all();
    let owned = owned_bytes(&cluster, "a", &objects);
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    let mut before = cluster.place.server.counters().body_bytes;
    let mut read_again = || {
        // With empty memory, so that the members are asked for everything.
        cluster.place.run(&["umount", "m"]).ok();
        let path = cluster.mount_client(&[]);
        read_objects(&path, "o", &LENGTHS);
        let now = cluster.place.server.counters().body_bytes;
        now - std::mem::replace(&mut before, now)
    };
    assert_eq!(read_again(), 0, "all of it is at the members");
    cluster.kill("b");
    let killed = Instant::now();
    assert_eq!(read_again(), owned["b"], "what it owned, of {owned:?}");
    cluster.until_members(&["a", "c"]);
    let took = killed.elapsed();
    assert!(
        took > Duration::from_secs(7) && took < SILENCE_MAX,
        "gone after {took:?}"
    );
    assert_eq!(read_again(), 0, "the stand-ins own it now");
    cluster.serve("b", &[]);
    cluster.until_members(&["a", "b", "c"]);
    assert_eq!(read_again(), 0, "it has it on its disk, or the others do");
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_that_restarts_brings_its_cache_back_and_a_stopped_one_costs_no_error() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all();
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    let cold = cluster.place.server.counters().body_bytes;
    for name in ["a", "b", "c"] {
        cluster
            .place
            .run(&["stop", &format!("{GROUP}/{name}")])
            .ok();
        cluster.serve(name, &[]);
        cluster.until_members(&["a", "b", "c"]);
    }
    cluster.place.run(&["umount", "m"]).ok();
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    let again = cluster.place.server.counters().body_bytes - cold;
    assert_eq!(again, 0, "a rolling restart costs nothing");

    cluster.place.run(&["umount", "m"]).ok();
    let path = cluster.mount_client(&["--io-timeout", "10s"]);
    let pid = cluster.status("b").unwrap().pid;
    send(pid, Signal::STOP);
    read_objects(&path, "o", &LENGTHS);
    send(pid, Signal::CONT);
    cluster.until_members(&["a", "b", "c"]);
    read_objects(&path, "o", &LENGTHS);
    cluster.place.run(&["umount", "m"]).ok();
}
