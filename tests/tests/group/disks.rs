//! Caches on disk that lose their place, or have another's.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::cluster::{Cluster, GROUP};
use super::support::eventually;

/// The file that holds a member's cache.
fn blocks_of(cluster: &Cluster, name: &str) -> PathBuf {
    let cache = cluster.place.dir(&format!("cache-{name}"));
    cache.join(GROUP).join(name).join("blocks")
}

fn disk(cluster: &Cluster, name: &str) -> Value {
    cluster.json(&format!("serve:{GROUP}/{name}"))["disks"][0].clone()
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
