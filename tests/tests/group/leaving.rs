//! Members that leave with everything: by `forebay drain`, and by the weight 0 from their start.

use rustix::process::Signal;
use serde_json::Value;

use super::cluster::{Cluster, GROUP, put_objects, read_objects};
use super::support::{COMMAND_TIMEOUT, Running, eventually, have_fuse, is_running, json, send};

const MIB: usize = 1 << 20;

/// 27 MiB and a little in all, in objects of one stripe each.
const LENGTHS: [usize; 14] = [
    1,
    4096,
    65_536,
    100_000,
    MIB,
    MIB + 1,
    2 * MIB,
    2 * MIB + 77,
    3 * MIB,
    3 * MIB + 65_536,
    3 * MIB,
    4 * MIB,
    4 * MIB - 1,
    4 * MIB + 4096,
];

/// A group that has read everything once.
fn warm_cluster(members: u8) -> Cluster {
    let cluster = Cluster::new(members);
    put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all();
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    cluster
}

/// Reads everything through a client with an empty memory; what the origin gave for it.
fn read_again(cluster: &Cluster) -> u64 {
    let before = cluster.place.server.counters().body_bytes;
    cluster.place.run(&["umount", "m"]).ok();
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    cluster.place.server.counters().body_bytes - before
}

fn report(cluster: &Cluster, args: &[&str]) -> Value {
    let args = [&["drain", "--json"], args].concat();
    let text = cluster.place.run(&args).ok().text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn a_member_that_drains_is_gone_and_no_byte_is_read_again() {
    if !have_fuse() {
        return;
    }
    let cluster = warm_cluster(3);
    let pid = cluster.status("b").unwrap().pid;
    let report = report(&cluster, &["g/b"]);
    assert!(!is_running(pid), "the command ended before the member");
    assert_eq!(report["state"], "done", "{report}");
    assert_eq!(report["refused_blocks"], 0, "{report}");
    assert!(report["given_bytes"].as_u64() <= report["bytes"].as_u64());
    cluster.until_members(&["a", "c"]);
    // How it ended is told to who names it, and to nobody who could mean one that runs.
    let unnamed = cluster.place.run(&["drain", "--status"]);
    unnamed.failed(&["name one of them", "serve:g/a", "serve:g/c"]);
    cluster.place.run(&["drain", "--status", "g/b"]).ok();
    assert_eq!(read_again(&cluster), 0);
    // The last one has nobody to hand over to.
    cluster.place.run(&["drain", "serve:g/c"]).ok();
    cluster.until_members(&["a"]);
    assert_eq!(read_again(&cluster), 0);
    let alone = cluster.place.run(&["drain", GROUP]);
    alone.failed(&["no other member", "forebay stop"]);
    assert_eq!(read_again(&cluster), 0, "it is still there");
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_that_starts_without_weight_hands_its_old_cache_over_and_ends() {
    if !have_fuse() {
        return;
    }
    let cluster = warm_cluster(3);
    cluster.place.run(&["stop", "g/b"]).ok();
    cluster.until_members(&["a", "c"]);
    let mut args = cluster.serve_args("b", &["--group-weight", "0"]);
    args.retain(|arg| arg != "--background");
    cluster.place.run(&args).ok();
    cluster.until_members(&["a", "c"]);
    assert_eq!(read_again(&cluster), 0);
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn what_finds_no_room_is_said() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    put_objects(&cluster.place, "o", &LENGTHS);
    let mut small = cluster.serve_args("a", &[]);
    let size = small.iter().position(|arg| arg == "256MiB").unwrap();
    small[size] = "24MiB".into();
    cluster.place.run(&small).ok();
    cluster.serve("b", &["--group-weight", "1000"]);
    cluster.until_members(&["a", "b"]);
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    let drained = cluster.place.run(&["drain", "g/b"]);
    drained.failed(&["found no room", "from S3 again"]);
    cluster.until_members(&["a"]);
    let again = read_again(&cluster);
    assert!(again > 0 && again < 27 << 20, "{again}");
    cluster.place.run(&["umount", "m"]).ok();
}

/// Starts member `b` of two again, over the same cache.
#[track_caller]
fn restart(cluster: &Cluster, more: &[&str]) {
    cluster.place.run(&["stop", "g/b"]).ok();
    cluster.until_members(&["a"]);
    cluster.serve("b", more);
    cluster.until_members(&["a", "b"]);
}

#[test]
fn a_drain_goes_on_by_itself_is_shown_and_can_be_stopped() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all_with(|_| &["--group-weight", "2"]);
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    // From now on so slow that all of this is over before the drain.
    restart(&cluster, &["--group-weight", "2", "--peer-limit", "256KiB"]);
    let text = cluster
        .place
        .run(&["drain", "g/b", "--background"])
        .ok()
        .text();
    assert!(text.contains("forebay drain --status serve:g/b"), "{text}");
    eventually("others see how much is left", || {
        let group = &cluster.json("serve:g/a")["group"];
        let members = group["members"].as_array().unwrap();
        members.iter().any(|member| {
            member["node"] == "b"
                && member["weight"] == 0
                && member["left_bytes"].as_u64().is_some_and(|left| left > 0)
        })
    });
    let running = report(&cluster, &["--status", "g/b"]);
    assert_eq!(running["state"], "running", "{running}");
    let text = cluster.place.run(&["status", "serve:g/b"]).ok().text();
    assert!(text.contains("drain") && text.contains("running"), "{text}");
    let stopped = report(&cluster, &["--stop", "g/b"]);
    assert_eq!(stopped["state"], "stopped", "{stopped}");
    cluster
        .place
        .run(&["drain", "--stop", "g/b"])
        .failed(&["no drain is under way"]);
    eventually("it has its weight again", || {
        let group = &cluster.json("serve:g/a")["group"];
        let members = group["members"].as_array().unwrap();
        members.iter().any(|member| {
            let is_back = member["node"] == "b" && member["weight"] == 2;
            assert!(!is_back || member["left_bytes"].is_null(), "{member}");
            is_back
        })
    });
    let text = cluster.place.run(&["status", "serve:g/b"]).ok().text();
    assert!(
        text.contains("stopped") && !text.contains(" left"),
        "{text}"
    );
    restart(&cluster, &["--group-weight", "2"]);
    assert_eq!(read_again(&cluster), 0);
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn how_a_drain_ended_is_told_when_its_member_has_gone() {
    if !have_fuse() {
        return;
    }
    let cluster = warm_cluster(2);
    let pid = cluster.status("b").unwrap().pid;
    cluster.place.run(&["drain", "g/b", "--background"]).ok();
    eventually("it has ended", || !is_running(pid));
    let ended = report(&cluster, &["--status", "g/b"]);
    assert_eq!(
        (&ended["state"], &ended["name"]),
        (&"done".into(), &"serve:g/b".into())
    );
    assert!(ended["given_bytes"].as_u64() > Some(0), "{ended}");
    let status = cluster.place.run(&["drain", "--status", "serve:g/b"]).ok();
    assert!(
        status.text().contains("it has left the group"),
        "{}",
        status.text()
    );
    // Its next life knows nothing of that.
    cluster.serve("b", &[]);
    assert_eq!(report(&cluster, &["--status", "g/b"])["state"], "none");
    cluster.place.run(&["stop", "g/b"]).ok();
    cluster
        .place
        .run(&["drain", "--status", "g/b"])
        .failed(&["no member g/b runs here"]);
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_drain_whose_member_is_ended_meanwhile_says_what_is_left() {
    if !have_fuse() {
        return;
    }
    let cluster = warm_cluster(2);
    restart(&cluster, &["--peer-limit", "256KiB"]);
    let pid = cluster.status("b").unwrap().pid;
    let drain = Running::start(&mut cluster.place.command(&["drain", "g/b"]));
    eventually("it has begun", || {
        cluster.json("serve:g/b")["group"]["drain"]["state"] == "running"
    });
    cluster.place.run(&["stop", "g/b"]).ok();
    let ended = drain.wait(COMMAND_TIMEOUT);
    assert!(!is_running(pid));
    ended.failed(&["ended before it had handed over", "start it again"]);
    assert_eq!(report(&cluster, &["--status", "g/b"])["state"], "ended");
    cluster.place.run(&["umount", "m"]).ok();
}

/// A process that does nothing until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        send(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        send(self.0, Signal::CONT);
    }
}

#[test]
fn a_member_that_hangs_is_not_asked_when_another_one_is_named() {
    let cluster = Cluster::new(2);
    cluster.serve_all();
    let _stopped = Stopped::new(cluster.status("a").unwrap().pid);
    for args in [
        &["drain", "--status", "g/b"][..],
        &["status", "serve:g/b"],
        &["stop", "g/b"],
    ] {
        let ended = cluster.place.run(args).ok();
        assert_eq!(ended.stderr, "", "{args:?}");
    }
}

#[test]
fn a_mount_that_drains_goes_on_and_only_takes() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve("a", &[]);
    let (listen, peers) = (format!("{}:7440", cluster.address("b")), cluster.peers());
    let path = cluster.place.dir("m");
    let cache = cluster.place.dir("cache-b");
    let args = [
        "mount",
        "s3://bucket",
        "m",
        "--node-id",
        "b",
        "--cache-group",
        GROUP,
    ];
    let group = ["--listen", &listen, "--peers", &peers, "--attr-ttl", "1h"];
    let disk = [
        "--cache-dir",
        cache.to_str().unwrap(),
        "--cache-size",
        "256MiB",
        "--free-space-ratio",
        "0",
    ];
    cluster
        .place
        .run(&[&args[..], &group[..], &disk[..]].concat())
        .ok();
    read_objects(&path, "o", &LENGTHS);
    let cold = cluster.place.server.counters().body_bytes;
    let text = cluster.place.run(&["drain", "m"]).ok().text();
    assert!(text.contains("takes only"), "{text}");
    let status = cluster.json("m");
    assert_eq!(status["group"]["drain"]["state"], "done");
    // It is shown once, as mount and as member, by itself and by others.
    let listed = json(&cluster.place.run(&["status", "--json"]).ok().text());
    let mounts = listed.as_array().unwrap().iter();
    let ours = mounts.filter(|entry| entry["mount_point"] == path.to_str().unwrap());
    assert_eq!(ours.count(), 1, "{listed}");
    for by in ["m", "serve:g/a"] {
        let status = cluster.json(by);
        let members = status["group"]["members"].as_array().unwrap().iter();
        let nodes: Vec<&str> = members
            .filter_map(|member| member["node"].as_str())
            .collect();
        assert_eq!(
            nodes.iter().filter(|node| **node == "b").count(),
            1,
            "{nodes:?}"
        );
    }
    read_objects(&path, "o", &LENGTHS);
    cluster.place.run(&["umount", "m"]).ok();
    // All of it is at the other one.
    let path = cluster.mount_client(&[]);
    read_objects(&path, "o", &LENGTHS);
    assert_eq!(cluster.place.server.counters().body_bytes, cold);
    cluster.place.run(&["umount", "m"]).ok();
}
