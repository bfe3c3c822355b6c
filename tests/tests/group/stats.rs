//! `stats --group`: every member's counters, and who does not answer.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::cluster::{Cluster, put_objects, read_objects};
use super::support::{COMMAND_TIMEOUT, Place, Running, have_fuse, json, send};

const MIB: usize = 1 << 20;

#[track_caller]
fn group_stats(cluster: &Cluster, name: &str) -> Value {
    let args = ["stats", "--group", name, "--json"];
    json(&cluster.place.run(&args).ok().text())
}

#[test]
fn the_groups_counters_are_those_of_its_members() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let lengths = [3 * MIB, 5 * MIB, 100_000, 20 * MIB];
    let bytes = put_objects(&cluster.place, "o", &lengths);
    cluster.serve_all();
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &lengths);

    // From the client: its own reads are a row, the last one.
    let told = group_stats(&cluster, "m");
    let rows = told["members"].as_array().unwrap();
    let name = |row: &Value| row["node"].as_str().unwrap().to_owned();
    let nodes: Vec<String> = rows.iter().map(name).collect();
    assert_eq!(nodes, ["a", "b", "c", "client"]);
    let last = (&rows[3]["role"], &rows[3]["this"]);
    assert_eq!(last, (&"client".into(), &true.into()));
    let number = |value: &Value, pointer: &str| value.pointer(pointer).unwrap().as_u64().unwrap();
    let sum = |pointer| -> u64 {
        let all = rows.iter().map(|row| number(&row["counts"], pointer));
        all.sum()
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
        assert_eq!(number(&told["total"], pointer), sum(pointer), "{pointer}");
    }
    let from_origin = cluster.place.server.counters().body_bytes;
    assert_eq!(sum("/origin/bytes"), from_origin);
    assert_eq!(sum("/reads/bytes"), bytes);
    assert_eq!(sum("/peers/received_bytes"), sum("/peers/served_bytes"));
    let amplification = &told["total"]["disk"]["write_amplification"];
    assert!(amplification.as_f64().unwrap() > 1.0, "{told}");

    // A member's own row in `status` is as of now.
    let status = cluster.json("serve:g/a");
    let disks = status["disks"].as_array().unwrap();
    let cached = disks
        .iter()
        .map(|disk| disk["cached_bytes"].as_u64().unwrap());
    let members = status["group"]["members"].as_array().unwrap();
    let own = members
        .iter()
        .find(|member| member["this"] == true)
        .unwrap();
    assert_eq!(own["cached_bytes"], cached.sum::<u64>(), "{status}");

    // From a member: the client, which listens nowhere, is not known.
    let told = group_stats(&cluster, "serve:g/a");
    assert_eq!(told["members"].as_array().unwrap().len(), 3);
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn members_that_do_not_answer_are_named_and_hold_nothing_up() {
    let cluster = Cluster::new(3);
    cluster.serve_all();
    let pid = cluster.status("c").unwrap().pid;
    cluster.kill("b");
    send(pid, Signal::STOP);
    let asked = Instant::now();
    let args = ["stats", "--group", "serve:g/a", "--json"];
    // Both at once: in ten seconds the two are no members any more.
    let [for_people, for_programs] =
        [&args[..3], &args[..]].map(|args| Running::start(&mut cluster.place.command(args)));
    let told = json(&for_programs.wait(COMMAND_TIMEOUT).ok().text());
    let text = for_people.wait(COMMAND_TIMEOUT).ok().text();
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
    for part in [
        "1 of 3 answered",
        "b did not answer: ",
        "c did not answer: ",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    // What asks nobody else does not wait for them.
    for command in ["status", "stats"] {
        let asked = Instant::now();
        cluster.place.run(&[command, "serve:g/a"]).ok();
        let took = asked.elapsed();
        assert!(took < Duration::from_millis(2_500), "{command}: {took:?}");
    }
    send(pid, Signal::CONT);
}

#[test]
fn a_node_on_its_own_has_no_group() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.mount("m");
    let ended = place.run(&["stats", "--group", "m"]);
    ended.failed(&["is in no group"]);
    place.run(&["umount", "m"]).ok();
}
