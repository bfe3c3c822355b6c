//! Members whose disks fail, or lose their place.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::cluster::{Cluster, GROUP, put_objects, read_objects};
use super::support::{eventually, have_fuse, pattern};

const MIB: usize = 1 << 20;

/// The file that holds a member's cache.
fn blocks_of(cluster: &Cluster, name: &str) -> PathBuf {
    let cache = cluster.place.dir(&format!("cache-{name}"));
    cache.join(GROUP).join(name).join("blocks")
}

/// Everything but the superblock becomes zeros, under the daemon.
fn wipe(cluster: &Cluster, name: &str) {
    let file = File::options()
        .write(true)
        .open(blocks_of(cluster, name))
        .unwrap();
    let len_bytes = file.metadata().unwrap().len();
    file.set_len(MIB as u64).unwrap();
    file.set_len(len_bytes).unwrap();
}

/// A member's row in what a member knows.
fn row(status: &Value, name: &str) -> Value {
    let members = status["group"]["members"].as_array().unwrap();
    let row = members.iter().find(|member| member["node"] == name);
    row.unwrap_or_else(|| panic!("no {name} in {status}"))
        .clone()
}

fn disk(cluster: &Cluster, name: &str) -> Value {
    cluster.json(&format!("serve:{GROUP}/{name}"))["disks"][0].clone()
}

/// Reads them all, each from another region than the one before.
fn read_across(dir: &Path) {
    for first in 0..STRIDE {
        for n in (first..OBJECTS).step_by(STRIDE) {
            let got = fs::read(dir.join(format!("o-{n}"))).unwrap();
            assert!(got == pattern(LEN, (n as u8).wrapping_add(1)), "o-{n}");
        }
    }
}

/// So many that a third of them are three times as many faults as a disk is forgiven.
const OBJECTS: usize = 600;
const LEN: usize = 128 << 10;
/// Regions have 2 MiB, and a member owns a third of the objects.
const STRIDE: usize = 61;

/// What a member cannot keep any more is owned by others, unless its weight was given; and nothing is wrong.
#[test]
fn a_member_whose_disk_is_retired_has_a_smaller_share() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    put_objects(&cluster.place, "o", &[LEN; OBJECTS]);
    // Small caches have small regions; they keep them when they grow.
    cluster.serve_all_with(|_| &["--cache-size", "64MiB"]);
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &[LEN; OBJECTS]);
    cluster.unmount("m");
    for name in ["a", "b", "c"] {
        cluster.place.run(&["stop", &format!("g/{name}")]).ok();
    }
    let large = ["--cache-size", "4GiB", "--memory", "64MiB"];
    let given = [&large[..], &["--group-weight", "3"]].concat();
    cluster.serve_all_with(|name| if name == "c" { &given } else { &large });
    let weight = |name| row(&cluster.json("serve:g/a"), name)["weight"].clone();
    assert_eq!(["a", "b", "c"].map(weight), [3, 3, 3].map(Value::from));

    let failing = ["b", "c"];
    for name in failing {
        eventually("what it held is found again", || {
            let disk = disk(&cluster, name);
            disk["state"] == "serving" && disk["cached_bytes"].as_u64() > Some(10 << 20)
        });
    }
    failing.iter().for_each(|name| wipe(&cluster, name));
    eventually("the disks are retired", || {
        let path = cluster.mount_client(&[]);
        read_across(&path);
        cluster.unmount("m");
        failing.map(|name| disk(&cluster, name)["state"].clone()) == ["retired", "retired"]
    });
    eventually("the weight follows the disk", || weight("b") == 1);
    eventually(
        "others are told that its memory is what holds something",
        || {
            let capacity = row(&cluster.json("serve:g/a"), "b")["capacity_bytes"].as_u64();
            capacity.is_some_and(|bytes| bytes > 0 && bytes < 64 << 20)
        },
    );
    // Given is given, and said.
    eventually("it sees that nothing new is kept", || {
        cluster.json("serve:g/c")["group"]["disks_out"].is_object()
    });
    let status = cluster.json("serve:g/c");
    assert_eq!(row(&status, "c")["weight"], 3, "{status}");
    let out = &status["group"]["disks_out"];
    assert_eq!(
        (&out["given"], &out["weight"]),
        (&true.into(), &3.into()),
        "{status}"
    );
    for (name, part) in [
        ("b", "this member's weight falls from 3 to 1"),
        ("c", "--group-weight 3 is as it was given"),
    ] {
        let serve = format!("serve:{GROUP}/{name}");
        let text = cluster.place.run(&["status", &serve]).ok().text();
        assert!(text.contains(part), "no {part:?} in {text}");
        let log = cluster.place.log();
        assert!(log.contains("WARN") && log.contains(part), "{log}");
    }
    let told = cluster.json("serve:g/a")["group"]["disks_out"].clone();
    assert_eq!(told, Value::Null, "its disk works");
    let args = ["stats", "--group", "serve:g/a", "--json"];
    let stats = super::support::json(&cluster.place.run(&args).ok().text());
    let disks = &stats["total"]["disk"];
    assert_eq!(disks["devices_failed"], 2, "{stats}");
    let capacity = disks["capacity_bytes"].as_u64().unwrap();
    assert!(capacity < 4 << 30, "{stats}");
    let path = cluster.mount_client(&[]);
    read_across(&path);
    cluster.unmount("m");
}

/// All that is cached is lost at the next start: who looks hears of it before.
#[test]
fn a_cache_that_loses_its_place_is_told_of_while_it_serves() {
    let cluster = Cluster::new(1);
    cluster.serve("a", &["--group-weight", "1"]);
    let trouble = || {
        let disk = disk(&cluster, "a");
        assert_eq!(disk["state"], "serving");
        disk["misplaced"].as_str().unwrap().to_owned()
    };
    let cache = cluster.place.dir("cache-a");
    let away = cache.with_file_name("away");
    assert_eq!(trouble(), "");
    fs::rename(&cache, &away).unwrap();
    eventually("it is told that it was moved", || {
        trouble().contains("Put it back")
    });
    fs::rename(&away, &cache).unwrap();
    eventually("it is in its place again", || trouble().is_empty());
    fs::remove_dir_all(&cache).unwrap();
    eventually("it is told that it was removed", || {
        trouble().contains("was removed")
    });
    let text = cluster.place.run(&["status", "serve:g/a"]).ok().text();
    let log = cluster.place.log();
    let blocks = blocks_of(&cluster, "a");
    let said = format!("{} was removed while it is used", blocks.display());
    assert!(text.contains(&said), "{text}");
    assert!(log.contains("WARN") && log.contains(&said), "{log}");
}

/// A name says whose the bytes are; a file that was copied says another.
#[test]
fn the_cache_of_another_node_is_refused_wherever_it_lies() {
    let cluster = Cluster::new(2);
    let [theirs, own] = ["a", "b"].map(|name| blocks_of(&cluster, name));
    for name in ["a", "b"] {
        cluster.serve(name, &[]);
        cluster.place.run(&["stop", &format!("g/{name}")]).ok();
    }
    fs::copy(&theirs, &own).unwrap();
    let serve = |more: &[&str]| cluster.place.run(&cluster.serve_args("b", more));
    serve(&[]).failed(&[
        "is the cache of g/a",
        "this node is g/b",
        "--format",
        "g/a/blocks",
    ]);
    assert_eq!(
        fs::metadata(&own).unwrap().len(),
        fs::metadata(&theirs).unwrap().len()
    );
    // Where it came from it is as it was.
    cluster.serve("a", &[]);
    serve(&["--format"]).ok();
    cluster.until_members(&["a", "b"]);
    cluster.place.run(&["stop", "g/b"]).ok();
    serve(&[]).ok();
}
