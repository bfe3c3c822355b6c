//! `forebay status` and `forebay stats`.

use std::fs;
use std::time::Duration;

use forebay_tests::s3::{Class, Fault, Rule};
use serde_json::Value;

use super::support::{COMMAND_TIMEOUT, Place, Running, have_fuse, json, pattern};

#[test]
fn what_was_read_is_what_is_told() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(5 << 20, 7);
    place.server.put("bucket", "dir/file", bytes.clone());
    place.server.put("bucket", "bad//key", "x");
    let path = place.mount("m");
    assert!(fs::read(path.join("dir/file")).unwrap() == bytes);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 2, "`bad` and `dir`");
    let _ = fs::read_dir(path.join("bad")).map(Iterator::count);

    let stats = json(&place.run(&["stats", "m", "--json"]).ok().text());
    let number = |pointer: &str| {
        stats
            .pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("{pointer}: {stats}"))
    };
    let counters = place.server.counters();
    assert_eq!(
        number("/origin/bytes"),
        counters.body_bytes,
        "our bytes are the origin's"
    );
    let reasons = stats["origin"]["bytes_by_reason"].as_object().unwrap();
    assert_eq!(
        reasons.values().filter_map(Value::as_u64).sum::<u64>(),
        counters.body_bytes
    );
    assert_eq!(number("/origin/gets"), counters.requests["get"]);
    assert!(number("/reads/bytes") >= 5 << 20);
    assert_eq!(number("/reads/errors"), 0);
    assert_eq!(
        number("/tiers/memory/hits") + number("/tiers/origin/hits"),
        number("/reads/answered")
    );
    assert_eq!(
        number("/latency/hit/count") + number("/latency/miss/count"),
        number("/reads/answered")
    );
    assert!(number("/namespace/inodes") >= 3);
    assert_eq!(number("/namespace/left_out/empty_component"), 1, "{stats}");

    let table = place.run(&["stats"]).ok().text();
    assert!(
        table.contains("ORIGIN") && table.contains("empty component 1"),
        "{table}"
    );

    let status = json(&place.run(&["status", "m", "--json"]).ok().text());
    assert_eq!(status["state"], "mounted");
    assert_eq!(status["source"], "s3://bucket/");
    assert_eq!(status["mount_point"], path.to_str().unwrap());
    assert_eq!(status["memory"]["limit_bytes"], 128 << 20);
    assert_eq!(status["pid"], place.pid_of(&path).unwrap());
    assert!(
        status["memory"]["cached_bytes"].as_u64().unwrap() >= 5 << 20,
        "{status}"
    );
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn one_of_several_mounts_has_to_be_named() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let paths = [place.mount("m1"), place.mount("m2")];
    place.run(&["stats"]).failed(&["2 mounts", "/m1", "/m2"]);
    place.run(&["stats", "m2"]).ok();
    let listed = json(&place.run(&["status", "--json"]).ok().text());
    let ours = |mount: &&Value| {
        paths
            .iter()
            .any(|path| mount["mount_point"] == path.to_str().unwrap())
    };
    assert_eq!(
        listed.as_array().unwrap().iter().filter(ours).count(),
        2,
        "{listed}"
    );
    let table = place.run(&["status"]).ok().text();
    assert!(
        table.contains("/m1") && table.contains("/m2") && table.contains("MOUNT POINT"),
        "{table}"
    );
    place.kill(&paths[0]);
    let ended = place.run(&["status"]).failed(&["does not work"]);
    let table = ended.text();
    assert!(table.contains("killed"), "{table}");
    place
        .run(&["stats", "m1"])
        .failed(&["was killed", "forebay umount"]);
    paths
        .iter()
        .for_each(|path| drop(place.run(&["umount", path.to_str().unwrap()]).ok()));
    paths.iter().for_each(|path| place.assert_clean(path));
}

#[test]
fn live_lines_until_the_mount_ends() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", pattern(1 << 20, 9));
    let path = place.mount("m");
    let live = Running::start(&mut place.command(&["stats", "m", "--interval", "100ms", "--json"]));
    let table = Running::start(&mut place.command(&["stats", "m", "--interval", "100ms"]));
    fs::read(path.join("x")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    place.run(&["umount", "m"]).ok();
    let live = live.wait(COMMAND_TIMEOUT).ok();
    let lines: Vec<Value> = live.text().lines().map(json).collect();
    assert!(!lines.is_empty(), "{}", live.stderr);
    assert!(lines.last().unwrap()["reads"]["answered"].as_u64().unwrap() > 0);
    let table = table.wait(COMMAND_TIMEOUT).ok();
    assert!(
        table.text().lines().next().unwrap().contains("reads/s"),
        "{}",
        table.text()
    );
    place.assert_clean(&path);
}

#[test]
fn failed_attempts_are_told_although_a_retry_mended_them() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", pattern(1 << 20, 3));
    let path = place.mount("m");
    let errors = || {
        let stats = json(&place.run(&["stats", "m", "--json"]).ok().text());
        (
            stats["origin"]["errors"].as_u64(),
            stats["reads"]["errors"].as_u64(),
        )
    };
    assert!(fs::metadata(path.join("missing")).is_err());
    assert_eq!(errors(), (Some(0), Some(0)), "a missing name is no failure");
    place
        .server
        .faults()
        .add(Rule::times(Class::Get, 1, Fault::Status(500)));
    assert!(fs::read(path.join("x")).unwrap() == pattern(1 << 20, 3));
    assert_eq!(errors(), (Some(1), Some(0)));
    let table = place.run(&["stats"]).ok().text();
    assert!(table.contains("failed attempts 1,"), "{table}");
}
