//! `warmup`, `check` and `evict` in a group: from clients and from members, and what members' deaths do to them.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_tests::s3::{Class, Fault, Rule, When};
use serde_json::Value;

use super::cluster::{Cluster, SILENCE_MAX};
use super::owners::{Stored, owned_bytes};
use super::support::{COMMAND_TIMEOUT, Ended, Running, eventually, have_fuse, json, pattern};

const MIB: usize = 1 << 20;

/// Puts objects of these lengths below `dir`.
fn put(cluster: &Cluster, dir: &str, lengths: impl IntoIterator<Item = usize>) -> Vec<Stored> {
    let put = |(n, len): (usize, usize)| {
        let key = format!("{dir}/{}/{n}", n % 10);
        let bytes = pattern(len, n as u8);
        let etag = cluster.place.server.put("bucket", &key, bytes);
        Stored {
            key,
            etag,
            len_bytes: len as u64,
        }
    };
    lengths.into_iter().enumerate().map(put).collect()
}

fn total(objects: &[Stored]) -> u64 {
    objects.iter().map(|object| object.len_bytes).sum()
}

/// Runs a command with `--json`; how it ended, and what it printed.
#[track_caller]
fn told(cluster: &Cluster, args: &[&str]) -> (Ended, Value) {
    let ended = cluster.place.run(&[args, &["--json"]].concat());
    let value = json(&ended.text());
    (ended, value)
}

/// `check`: its status, and its summary.
#[track_caller]
fn checked(cluster: &Cluster, path: &str) -> (Option<i32>, Value) {
    let (ended, told) = told(cluster, &["check", path]);
    (ended.code, told["summary"].clone())
}

fn get_bytes(cluster: &Cluster) -> u64 {
    cluster.place.server.counters().body_bytes
}

/// What a member read from the origin, by `stats --group`.
fn origin_bytes(stats: &Value, node: &str) -> u64 {
    let rows = stats["members"].as_array().unwrap();
    let row = rows.iter().find(|row| row["node"] == node).unwrap();
    row["counts"]["origin"]["bytes"].as_u64().unwrap()
}

/// Three members of weights 1, 1 and 2.
fn uneven() -> Cluster {
    let cluster = Cluster::new(3);
    cluster.serve_all_with(|name| match name {
        "c" => &["--group-weight", "2"],
        _ => &["--group-weight", "1"],
    });
    cluster
}

#[test]
fn a_client_warms_members_by_their_weights_and_every_byte_once() {
    if !have_fuse() {
        return;
    }
    let cluster = uneven();
    let objects = put(&cluster, "d", (0..1_200).map(|n| 4_096 + n * 83));
    cluster.mount_client(&[]);
    assert_eq!(checked(&cluster, "m").0, Some(1), "nothing is cached");
    let (ended, warmed) = told(&cluster, &["warmup", "m", "-p", "16"]);
    ended.ok();
    assert_eq!(warmed["jobs"][0]["full"], 1_200, "{warmed}");
    assert_eq!(get_bytes(&cluster), total(&objects), "each byte once");

    // Every file at its owner, and the owners' parts of the ring within 5 % of their weights.
    let owned = owned_bytes(&cluster, "a", &objects);
    let (ended, stats) = told(&cluster, &["stats", "--group", "m"]);
    ended.ok();
    for (node, bytes) in &owned {
        assert_eq!(origin_bytes(&stats, node), *bytes, "{node} of {owned:?}");
    }
    let status = cluster.json("m");
    for member in status["group"]["members"].as_array().unwrap() {
        let fair = member["weight"].as_f64().unwrap() / 4.0;
        let share = member["ring_share"].as_f64().unwrap();
        assert!((share / fair - 1.0).abs() < 0.05, "{member}");
    }

    let (code, summary) = checked(&cluster, "m");
    assert_eq!((code, &summary["full"]), (Some(0), &1_200.into()));
    let path = cluster.place.dir("m");
    for n in [0, 599, 1_199] {
        let bytes = fs::read(path.join(&objects[n].key)).unwrap();
        assert!(bytes == pattern(objects[n].len_bytes as usize, n as u8));
    }
    assert_eq!(get_bytes(&cluster), total(&objects), "reads cost nothing");
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_warms_checks_and_evicts_for_the_whole_group() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let objects = put(&cluster, "d", (0..20).map(|n| MIB + n * 100_000));
    let wide = cluster
        .place
        .server
        .put("bucket", "wide", pattern(50 * MIB, 7));
    let path = cluster.serve_all_and_mount("c");
    let list: String = objects[..5]
        .iter()
        .map(|object| format!("m/{}\n", object.key))
        .collect();
    fs::write(path.with_file_name("list"), list).unwrap();
    let (ended, warmed) = told(&cluster, &["warmup", "--listfile", "list"]);
    ended.ok();
    assert_eq!(warmed["jobs"][0]["full"], 5, "{warmed}");
    assert_eq!(get_bytes(&cluster), total(&objects[..5]));

    // A part of a file: read by a reader, so partial.
    let mut start = [0; 4_096];
    std::io::Read::read_exact(&mut fs::File::open(path.join("wide")).unwrap(), &mut start).unwrap();
    assert!(start[..] == pattern(4_096, 7), "{wide}");
    let text = cluster.place.run(&["check", "m"]);
    assert_eq!(text.code, Some(1), "{}", text.stderr);
    for line in ["0 ", "1 ", "2 "] {
        let found = text.text().lines().any(|found| found.starts_with(line));
        assert!(found, "{line:?} in {}", text.text());
    }
    let (_, summary) = checked(&cluster, "m");
    let counted = ["full", "partial", "none"].map(|state| summary[state].as_u64().unwrap());
    assert_eq!(counted, [5, 1, 15], "{summary}");

    told(&cluster, &["warmup", "m"]).0.ok();
    assert_eq!(checked(&cluster, "m").0, Some(0));
    let before = get_bytes(&cluster);
    let (ended, evicted) = told(&cluster, &["evict", "m/wide"]);
    ended.ok();
    let dropped = evicted["dropped_bytes"].as_u64().unwrap();
    assert!(dropped >= 50 * MIB as u64, "{evicted}");
    assert_eq!(checked(&cluster, "m/wide").1["none"], 1);
    assert_eq!(checked(&cluster, "m/d").0, Some(0), "nothing else is gone");
    assert!(fs::read(path.join("wide")).unwrap() == pattern(50 * MIB, 7));
    let again = get_bytes(&cluster) - before;
    assert_eq!(again, 50 * MIB as u64, "no member had any of it");
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn names_that_a_client_warms_cost_no_later_reader_anything() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let objects = put(&cluster, "d", [1_000; 60]);
    cluster.serve_all();
    let ttl = ["--entry-ttl", "1h"];
    let path = cluster.mount_client(&ttl);
    let text = cluster.place.run(&["warmup", "m", "--metadata-only"]).ok();
    assert!(text.text().contains("attributes of 60 files"), "{text:?}");
    let look = |path: &PathBuf| {
        // As `find` does: a directory is listed before its names are looked at.
        let listed = |dir: &str| fs::read_dir(path.join(dir)).unwrap().count();
        assert_eq!((listed(""), listed("d")), (1, 10));
        assert!((0..10).all(|dir| listed(&format!("d/{dir}")) == 6));
        for object in &objects {
            assert_eq!(fs::metadata(path.join(&object.key)).unwrap().len(), 1_000);
        }
    };
    let before = cluster.place.server.counters();
    look(&path);
    // Another client asks the members, which remember whole listings.
    cluster.place.run(&["umount", "m"]).ok();
    let path = cluster.mount_client(&ttl);
    look(&path);
    let after = cluster.place.server.counters();
    for class in [Class::Head, Class::List, Class::Get] {
        let asked = after.requests(class) - before.requests(class);
        // The second mount looks at its source once, before it is one.
        let at_mount = u64::from(class == Class::List);
        assert!(asked <= at_mount, "{asked} {class:?}");
    }
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_job_in_the_background_is_followed_stopped_and_goes_on() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    let objects = put(&cluster, "d", [2 * MIB; 30]);
    cluster.serve_all();
    cluster.mount_client(&[]);
    let faults = cluster.place.server.faults();
    faults.set_delay(Class::Get, Duration::from_millis(500));
    let started = cluster
        .place
        .run(&["warmup", "m", "--background", "-p", "1"]);
    let id = started.ok().text().trim().to_owned();
    let report = || {
        let ended = cluster.place.run(&["warmup", "--status", &id, "--json"]);
        json(&ended.text())
    };
    eventually("it gets on", || {
        report()["bytes_done"].as_u64().unwrap() > 0
    });
    assert_eq!(report()["state"], "running");
    cluster.place.run(&["warmup", "--stop", &id]).ok();
    assert_eq!(report()["state"], "stopped");
    faults.set_delay(Class::Get, Duration::ZERO);
    // What was under way at the members comes to its end.
    let (ended, warmed) = told(&cluster, &["warmup", "m"]);
    ended.ok();
    assert_eq!(warmed["jobs"][0]["full"], 30, "{warmed}");
    assert_eq!(get_bytes(&cluster), total(&objects), "no byte twice");
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_killed_in_the_midst_of_a_warm_up_is_told_and_the_next_one_mends_it() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let objects = put(&cluster, "d", [MIB; 90]);
    cluster.serve_all();
    let owned = owned_bytes(&cluster, "a", &objects);
    cluster.mount_client(&[]);
    let faults = cluster.place.server.faults();
    faults.set_delay(Class::Get, Duration::from_millis(300));
    let mut command = cluster.place.command(&["warmup", "m", "-p", "1", "--json"]);
    let warmup = Running::start(&mut command);
    eventually("a third is there", || {
        get_bytes(&cluster) > total(&objects) / 3
    });
    let killed = Instant::now();
    cluster.kill("b");
    faults.set_delay(Class::Get, Duration::ZERO);
    let ended = warmup.wait(COMMAND_TIMEOUT + SILENCE_MAX);
    // What the dead member had is gone: the look at the end finds that, unless it died with nothing.
    let outcome = json(&ended.text());
    let failed = outcome["failed"].as_u64().unwrap();
    assert_eq!(ended.code, Some(i32::from(failed > 0)), "{outcome}");
    let failures = outcome["failures"].as_array().unwrap();
    assert_eq!(failures.len() as u64, failed, "{outcome}");
    for failure in failures {
        let reason = failure["reason"].as_str().unwrap();
        assert!(reason.contains("not kept"), "{failure}");
    }
    assert!(killed.elapsed() < COMMAND_TIMEOUT, "{:?}", killed.elapsed());
    cluster.until_members(&["a", "c"]);
    told(&cluster, &["warmup", "m"]).0.ok();
    assert_eq!(checked(&cluster, "m").0, Some(0));
    // Twice at most what the killed member owned, and nothing else.
    let extra = get_bytes(&cluster) - total(&objects);
    assert!(extra <= owned["b"], "{extra} beyond {owned:?}");
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn objects_that_fail_at_their_owner_are_listed_at_the_client() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let objects = put(&cluster, "d", [300_000; 12]);
    cluster.serve_all();
    cluster.mount_client(&[]);
    let (denied, gone) = (&objects[3].key, &objects[5].key);
    let faults = cluster.place.server.faults();
    let on = |key: &str, when, fault| Rule {
        class: Some(Class::Get),
        path_part: key.into(),
        when,
        fault,
    };
    faults.add(on(denied, When::Always, Fault::Status(403)));
    // Deleted after it was listed: what its owner asks for is no longer there.
    faults.add(on(gone, When::Always, Fault::Status(404)));
    let (ended, warmed) = told(&cluster, &["warmup", "m"]);
    let ended = ended.failed(&["2 paths failed", denied, gone]);
    assert!(ended.stderr.contains("denied"), "{}", ended.stderr);
    assert_eq!(
        (&warmed["failed"], &warmed["jobs"][0]["full"]),
        (&2.into(), &10.into())
    );
    faults.clear();
    told(&cluster, &["warmup", "m"]).0.ok();
    assert_eq!(get_bytes(&cluster), total(&objects));
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_client_with_disks_keeps_what_it_reads_through_the_group() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    let objects = put(&cluster, "d", [MIB; 20]);
    cluster.serve_all();
    let cache = cluster.place.dir("client-cache");
    let disk = [
        "--cache-dir",
        cache.to_str().unwrap(),
        "--cache-size",
        "256MiB",
        "--free-space-ratio",
        "0",
    ];
    let path = cluster.mount_client(&disk);
    told(&cluster, &["warmup", "m"]).0.ok();
    let read = |path: &PathBuf| {
        for (n, object) in objects.iter().enumerate() {
            assert!(fs::read(path.join(&object.key)).unwrap() == pattern(MIB, n as u8));
        }
    };
    let stats = || json(&cluster.place.run(&["stats", "m", "--json"]).ok().text());
    read(&path);
    assert_eq!(stats()["peers"]["received_bytes"], total(&objects));
    cluster.place.run(&["umount", "m"]).ok();

    let path = cluster.mount_client(&disk);
    read(&path);
    let again = stats();
    assert_eq!(again["peers"]["received_bytes"], 0, "{again}");
    assert!(
        again["tiers"]["disk"]["hits"].as_u64().unwrap() > 0,
        "{again}"
    );
    assert_eq!(get_bytes(&cluster), total(&objects));
    cluster.place.run(&["umount", "m"]).ok();
}
