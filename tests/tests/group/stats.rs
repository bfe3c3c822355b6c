//! `stats --group`: every member's counters, and who does not answer.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::cluster::{Cluster, put_objects, read_objects};
use super::support::{have_fuse, send};

const MIB: usize = 1 << 20;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn the_groups_counters_are_its_members_and_the_silent_are_named() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let lengths = [3 * MIB, 5 * MIB, 100_000, 20 * MIB];
    let bytes = put_objects(&cluster.place, "o", &lengths);
    cluster.serve_all();
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &lengths);
    let group = |name: &str| {
        json(
            &cluster
                .place
                .run(&["stats", "--group", name, "--json"])
                .ok()
                .text(),
        )
    };

    // From the client: its own reads are a row, the last one.
    let told = group("m");
    let rows = told["members"].as_array().unwrap();
    let nodes: Vec<&str> = rows
        .iter()
        .map(|row| row["node"].as_str().unwrap())
        .collect();
    assert_eq!(nodes, ["a", "b", "c", "client"]);
    assert_eq!(
        (&rows[3]["role"], &rows[3]["this"]),
        (&"client".into(), &true.into())
    );
    let sum = |pointer: &str| -> u64 {
        rows.iter()
            .map(|row| row["counts"].pointer(pointer).unwrap().as_u64().unwrap())
            .sum()
    };
    for pointer in [
        "/reads/answered",
        "/tiers/group/hits",
        "/origin/bytes",
        "/peers/received_bytes",
        "/peers/served_bytes",
        "/disk/filled_bytes",
        "/disk/capacity_bytes",
    ] {
        assert_eq!(
            told["total"].pointer(pointer).unwrap(),
            sum(pointer),
            "{pointer}"
        );
    }
    assert_eq!(
        sum("/origin/bytes"),
        cluster.place.server.counters().body_bytes
    );
    assert_eq!(sum("/reads/bytes"), bytes);
    assert_eq!(sum("/peers/received_bytes"), sum("/peers/served_bytes"));
    assert!(
        told["total"]["disk"]["write_amplification"]
            .as_f64()
            .unwrap()
            > 1.0,
        "{told}"
    );

    // From a member: the client, which listens nowhere, is not known.
    assert_eq!(group("serve:g/a")["members"].as_array().unwrap().len(), 3);

    // One is dead, one stands still: both are named, and nothing waits long.
    let pid = cluster.status("c").unwrap().pid;
    cluster.kill("b");
    send(pid, Signal::STOP);
    let asked = Instant::now();
    let told = group("serve:g/a");
    let took = asked.elapsed();
    let rows = told["members"].as_array().unwrap();
    assert!(rows[0]["counts"].is_object(), "{told}");
    let why = |n: usize| {
        rows[n]["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{told}"))
    };
    assert!(why(1).contains("cannot connect"), "{told}");
    assert!(why(2).contains("no answer"), "{told}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    let text = cluster
        .place
        .run(&["stats", "--group", "serve:g/a"])
        .ok()
        .text();
    for part in [
        "1 of 3 answered",
        "b did not answer: ",
        "c did not answer: ",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    // What asks nobody else does not wait for them.
    for args in [
        ["status", "serve:g/a"],
        ["stats", "serve:g/a"],
        ["status", "m"],
        ["stats", "m"],
    ] {
        let asked = Instant::now();
        cluster.place.run(&args).ok();
        let took = asked.elapsed();
        assert!(
            took < Duration::from_millis(2_500),
            "{args:?} took {took:?}"
        );
    }
    send(pid, Signal::CONT);
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_node_on_its_own_has_no_group() {
    if !have_fuse() {
        return;
    }
    let place = super::support::Place::new();
    place.mount("m");
    place
        .run(&["stats", "--group", "m"])
        .failed(&["is in no group"]);
    place.run(&["umount", "m"]).ok();
}
