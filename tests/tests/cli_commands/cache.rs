//! `forebay cache`, and places that cannot be a cache's.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use serde_json::Value;

use super::disk::{MIB, log_of, mount, umount};
use super::support::{Place, have_fuse, json, pattern};

#[test]
fn each_of_several_caches_is_a_line_of_json() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", pattern(20 * MIB, 8));
    let dirs = [place.dir("c1"), place.dir("c2")];
    let path = mount(&place, "c1:c2", &[]);
    fs::read(path.join("x")).unwrap();
    umount(&place);
    assert!(
        !place.log().contains("blocks.new") && place.log().contains("made a cache"),
        "{}",
        place.log()
    );
    let lines = |args: &[&str], count: usize| {
        let text = place.run(&[&["cache"], args].concat()).ok().text();
        let lines: Vec<Value> = text.lines().map(json).collect();
        assert_eq!(lines.len(), count, "{text}");
        lines
    };
    for command in ["inspect", "verify"] {
        let both = lines(&[command, "--json", "c1", "c2"], 2);
        for (line, dir) in both.iter().zip(&dirs) {
            assert!(log_of(dir).ends_with(line["path"].as_str().unwrap()));
            assert_eq!(line["kind"], "cache");
        }
        lines(&[command, "--json", "c1"], 1);
    }
    let text = place.run(&["cache", "inspect", "--json", "--entries", "c1", "c2"]);
    let text = text.ok().text();
    let kinds: Vec<Value> = text
        .lines()
        .map(|line| json(line)["kind"].clone())
        .collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "cache").count(), 2);
    assert!(kinds.iter().any(|kind| kind == "entry") && kinds.last().unwrap() == "cache");
}

#[test]
fn a_damaged_region_header_is_told() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(20 * MIB, 9);
    place.server.put("bucket", "x", bytes.clone());
    let cache = place.dir("c");
    let path = mount(&place, "c", &[]);
    fs::read(path.join("x")).unwrap();
    umount(&place);
    let regions = place.run(&["cache", "inspect", "c", "--regions", "--json"]);
    let regions = regions.ok().text();
    let mut all = regions.lines().map(json);
    let used = all.find(|line| line["kind"] == "region" && line["entries"] != 0);
    let number = used.unwrap()["region"].as_u64().unwrap();
    let summary = json(regions.lines().last().unwrap());
    let at = (1 << 20) + number * summary["region_bytes"].as_u64().unwrap();
    let log = File::options()
        .read(true)
        .write(true)
        .open(log_of(&cache))
        .unwrap();
    let mut magic = [0; 8];
    log.read_exact_at(&mut magic, at).unwrap();
    assert_eq!(&magic, b"FBregion");
    log.write_all_at(b"X", at + 100).unwrap();
    let told = format!("region {number}: its header is damaged");
    let verified = place.run(&["cache", "verify", "c"]).failed(&["S3 again"]);
    assert!(verified.text().contains(&told), "{}", verified.text());
    let report = json(&place.run(&["cache", "verify", "c", "--json"]).text());
    assert_eq!(report["damaged_regions"], 1);
    let inspected = place.run(&["cache", "inspect", "c"]).ok().text();
    assert!(inspected.contains(&told), "{inspected}");
    assert!(inspected.contains("damaged"), "{inspected}");
    // What lay there comes from S3, and the region is used again.
    let path = mount(&place, "c", &[]);
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    umount(&place);
}

#[test]
fn a_damaged_batch_header_is_told_and_costs_its_batch_alone() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(20 * MIB, 9);
    place.server.put("bucket", "x", bytes.clone());
    let cache = place.dir("c");
    let path = mount(&place, "c", &[]);
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    umount(&place);
    let regions = place.run(&["cache", "inspect", "c", "--regions", "--json"]);
    let regions = regions.ok().text();
    let open: Vec<_> = regions
        .lines()
        .map(json)
        .filter(|line| line["kind"] == "region" && line["state"] == "open")
        .collect();
    let largest = open.iter().max_by_key(|line| line["entries"].as_u64());
    let number = largest.unwrap()["region"].as_u64().unwrap();
    let summary = json(regions.lines().last().unwrap());
    let at = (1 << 20) + number * summary["region_bytes"].as_u64().unwrap() + 4096;
    let log = File::options()
        .read(true)
        .write(true)
        .open(log_of(&cache))
        .unwrap();
    let mut magic = [0; 7];
    log.read_exact_at(&mut magic, at).unwrap();
    assert_eq!(&magic, b"FBbatch");
    log.write_all_at(b"X", at + 100).unwrap();
    let told = format!("region {number}: the batch at page 1 has a damaged header");
    for command in ["verify", "inspect"] {
        let ended = place.run(&["cache", command, "c"]);
        assert_eq!(ended.code, Some(i32::from(command == "verify")));
        assert!(ended.text().contains(&told), "{}", ended.text());
    }
    let path = mount(&place, "c", &[]);
    let status = place.run(&["status", "m"]).ok().text();
    assert!(
        status.contains("1 damaged batches found at start"),
        "{status}"
    );
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    umount(&place);
    place.run(&["cache", "verify", "c"]).ok();
}

#[test]
fn places_that_do_not_go_together_are_told_as_such() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let cache = place.dir("c");
    place.dir("c/in");
    place.dir("m2");
    std::os::unix::fs::symlink(&cache, place.dir("links").join("c")).unwrap();
    let refused = |at: &str, cache: &str, parts: &[&str]| {
        let args = ["mount", "s3://bucket", at, "--cache-dir", cache];
        place.run(&args).failed(parts);
    };
    refused("c/in", "c", &["lies in the cache directory", "c/in"]);
    refused("c/in", "links/c", &["lies in the cache directory"]);
    refused("links/c", "c/in", &["would cover the cache directory"]);
    refused("c", "m2/../c", &["is also the cache directory"]);
    refused("m2", "c:links/c", &["the same place", "links/c"]);
    refused("m2", "c:c/../c", &["the same place"]);
    assert!(!cache.join("default").join("blocks").exists());
    place
        .run(&["cache", "format", "c", "--cache-size", "64MiB"])
        .ok();
    fs::write(log_of(&cache), "blocks").unwrap();
    let says = ["no Forebay cache, or was cut off", "6 bytes", "--force"];
    for command in ["inspect", "verify"] {
        place.run(&["cache", command, "c"]).failed(&says);
    }
    place
        .run(&["cache", "format", "--force", "c", "--cache-size", "64MiB"])
        .ok();
    place.run(&["cache", "inspect", "c"]).ok();
}
