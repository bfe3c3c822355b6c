//! Nodes that read from another S3 endpoint than the others, or whose credentials S3 does not take: they are named, and
//! nobody gets wrong bytes or errors for it.

use std::fs;

use forebay_tests::s3::{EmbeddedS3, Options};

use super::cluster::{Cluster, GROUP, put_objects, read_objects};
use super::support::{COMMAND_TIMEOUT, Running, eventually, have_fuse};

/// Small ones, so that every member owns some names and bytes.
const LENGTHS: [usize; 24] = [64 << 10; 24];

#[test]
fn a_client_of_another_endpoint_gets_the_bytes_of_its_own() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    let other = EmbeddedS3::start(Options::default()).unwrap();
    for n in 0..LENGTHS.len() {
        let key = format!("o-{n}");
        cluster.place.server.put("bucket", &key, "staging");
        other.put("bucket", &key, format!("production {n}"));
    }
    cluster
        .place
        .server
        .put("bucket", "only-staging", "staging");
    cluster.serve_all();
    let path = cluster.place.dir("m");
    let (peers, endpoint) = (cluster.peers(), other.endpoint());
    let args = [
        &[
            "mount",
            "s3://bucket",
            "m",
            "--node-id",
            "client",
            "--no-sharing",
        ][..],
        &[
            "--cache-group",
            GROUP,
            "--peers",
            &peers,
            "--endpoint",
            &endpoint,
        ],
    ];
    let mounted = cluster.place.run(&args.concat()).ok();
    assert_eq!(fs::read_dir(&path).unwrap().count(), LENGTHS.len());
    for n in 0..LENGTHS.len() {
        let text = fs::read_to_string(path.join(format!("o-{n}"))).unwrap();
        assert_eq!(text, format!("production {n}"));
    }
    assert!(!path.join("only-staging").exists());
    // Both sides say so, with both endpoints.
    let ours = cluster.place.server.endpoint();
    let status = cluster.place.run(&["status", "m"]).ok().text();
    for text in [&mounted.stderr, &status] {
        for part in ["a reads from another S3 endpoint", &endpoint, &ours] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    let asked = |name| cluster.json(name)["group"]["asked_elsewhere"].as_u64();
    let both = ["serve:g/a", "serve:g/b"].map(asked);
    assert!(both.iter().flatten().sum::<u64>() > 0, "{both:?}");
    let log = cluster.place.log();
    assert!(
        log.contains("a node of the group reads from another S3 endpoint"),
        "{log}"
    );
    cluster.unmount("m");
}

#[test]
fn what_s3_refuses_one_member_the_others_bring() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    put_objects(&cluster.place, "o", &LENGTHS);
    // Without a source nothing is looked at when it starts.
    let mut args = cluster.serve_args("a", &[]);
    args.retain(|arg| arg != "s3://bucket");
    let mut refused = cluster.command("a", &args);
    refused.env("AWS_SECRET_ACCESS_KEY", "wrong");
    Running::start(&mut refused).wait(COMMAND_TIMEOUT).ok();
    cluster.serve("b", &[]);
    cluster.until_members(&["a", "b"]);
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    assert_eq!(fs::read_dir(&path).unwrap().count(), LENGTHS.len());
    let why = |name: &str| cluster.json(name)["s3_refusal"]["error"].to_string();
    assert!(why("serve:g/a").contains("403"), "{}", why("serve:g/a"));
    assert_eq!([why("serve:g/b"), why("m")], ["null", "null"]);
    let text = cluster.place.run(&["status", "serve:g/a"]).ok().text();
    assert!(text.contains("refuses this node for"), "{text}");
    cluster.unmount("m");
}

#[test]
fn a_client_that_no_member_answers_says_so() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(1);
    put_objects(&cluster.place, "o", &LENGTHS[..1]);
    let path = cluster.place.dir("m");
    let peers = format!("{}:7440", cluster.address("a"));
    let args = [
        "mount",
        "s3://bucket",
        "m",
        "--no-sharing",
        "--peers",
        &peers,
    ];
    let mounted = cluster.place.run(&args).ok();
    let said = format!("no member of the group answers ({peers}: ");
    assert!(mounted.stderr.contains(&said), "{}", mounted.stderr);
    let twice = format!("{peers}: {peers}");
    assert!(!mounted.stderr.contains(&twice), "{}", mounted.stderr);
    let status = || cluster.place.run(&["status", "m"]).ok().text();
    eventually("the status says so", || status().contains(&said));
    read_objects(&path, "o", &LENGTHS[..1]);
    cluster.unmount("m");
}
