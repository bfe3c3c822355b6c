//! What jobs leave behind of names in a group: with those who own them, for other mounts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::cluster::Cluster;
use super::pressure::WITHOUT_ORIGIN;
use super::support::{have_fuse, pattern};

fn put(cluster: &Cluster, key: &str, n: usize) {
    let server = &cluster.place.server;
    server.put("bucket", key, pattern(1_000 + n, n as u8));
}

#[track_caller]
fn read(path: &Path, key: &str, n: usize) {
    let bytes = fs::read(path.join(key)).unwrap();
    assert!(bytes == pattern(1_000 + n, n as u8), "{key}");
}

/// One client warms, another one has looked at nothing: it is told by members, by name and by directory.
#[test]
fn what_one_mount_warmed_another_one_finds_without_s3() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    let files: Vec<String> = (0..60)
        .map(|n| format!("d/e/{}/{}/{n}", n % 4, n % 3))
        .collect();
    for (n, key) in files.iter().enumerate() {
        put(&cluster, key, n);
    }
    put(&cluster, "apart/one/file", 100);
    put(&cluster, "apart/other/not-warmed", 101);
    cluster.serve_all_with(|_| &WITHOUT_ORIGIN);
    cluster.mount_as("x", &WITHOUT_ORIGIN);
    let other = cluster.mount_as("y", &WITHOUT_ORIGIN);
    // A version that was looked at before, and is not what will be warmed.
    read(&other, &files[7], 7);
    put(&cluster, &files[7], 70);
    cluster
        .place
        .run(&["warmup", "x/d/e", "x/apart/one/file"])
        .ok();
    cluster.unmount("y");
    let other = cluster.mount_as("y", &WITHOUT_ORIGIN);
    cluster.place.server.stop();
    std::thread::sleep(Duration::from_millis(1_200));
    read(&other, "apart/one/file", 100);
    for (n, key) in files.iter().enumerate() {
        read(&other, key, if n == 7 { 70 } else { n });
    }
    let listed = fs::read_dir(other.join("d/e/1/2")).unwrap().count();
    assert_eq!(
        listed,
        files.iter().filter(|f| f.starts_with("d/e/1/2/")).count()
    );
    for client in ["x", "y"] {
        cluster.unmount(client);
    }
}

/// Names are believed for an hour by the mounts and by their owners.
#[test]
fn what_owners_remember_is_too_old_after_a_check() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    for n in 0..20 {
        put(&cluster, &format!("d/{n}"), n);
    }
    cluster.serve_all();
    let path = cluster.mount_as("x", &["--attr-ttl", "1h", "--entry-ttl", "1h"]);
    for n in 0..20 {
        read(&path, &format!("d/{n}"), n);
    }
    assert_eq!(fs::read_dir(path.join("d")).unwrap().count(), 20);
    for n in 0..20 {
        put(&cluster, &format!("d/{n}"), 100 + n);
    }
    put(&cluster, "d/new", 7);
    cluster.place.run(&["check", "x/d"]).failed(&[]);
    // By its listing first, as `ls -l` does it.
    let listed = fs::read_dir(path.join("d")).unwrap();
    let lengths = listed.map(|entry| entry.unwrap().metadata().unwrap().len());
    assert!(lengths.min() > Some(1_006));
    for n in 0..20 {
        read(&path, &format!("d/{n}"), 100 + n);
    }
    read(&path, "d/new", 7);
    cluster.unmount("x");
}
