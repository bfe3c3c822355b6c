//! Networks that fail: members and clients in namespaces of their own, whose packets vanish without a word.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_tests::harness::{HERE, Namespaces};

use super::cluster::{Cluster, put_objects, read_objects};
use super::support::{eventually, have_fuse};

const MIB: usize = 1 << 20;

/// 30 MiB in a few stripes, and so many small files that every member owns some.
const LENGTHS: [usize; 32] = {
    let mut lengths = [64 << 10; 32];
    lengths[0] = 4096;
    lengths[1] = MIB;
    lengths[2] = 2 * MIB + 1;
    lengths[3] = 3 * MIB;
    lengths[4] = 4 * MIB - 1;
    lengths[5] = 7 * MIB;
    lengths[6] = 12 * MIB;
    lengths
};

/// Long enough for a busy machine; a silent member costs a quarter of it.
const IO_TIMEOUT: [&str; 2] = ["--io-timeout", "8s"];
/// A quarter of this is enough to find out that an address leads nowhere, and to ask at the other.
/// The origin is behind the cable that is pulled: names must not be asked for again.
const PATIENT: [&str; 4] = ["--io-timeout", "20s", "--negative-ttl", "1h"];
/// Reading all while members are silent may take so long: each is asked again every three seconds, and waited for
/// two.
const READ_ALL_MAX: Duration = Duration::from_secs(30);

/// Reads all, and returns what it cost at the origin.
#[track_caller]
fn read_all(cluster: &Cluster, path: &Path) -> u64 {
    let before = cluster.place.server.counters().body_bytes;
    let began = Instant::now();
    read_objects(path, "o", &LENGTHS);
    let took = began.elapsed();
    assert!(took < READ_ALL_MAX, "it took {took:?}");
    cluster.place.server.counters().body_bytes - before
}

/// Three members that hold all objects among them. Returns the objects' bytes.
fn warm(cluster: &Cluster, more: &[&str]) -> u64 {
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all_with(|_| more);
    let path = cluster.mount_as("w", &[]);
    let cost = read_all(cluster, &path);
    assert!(
        cost >= total && cost as f64 <= 1.01 * total as f64,
        "{cost} of {total}"
    );
    cluster.unmount("w");
    total
}

/// Why a client's connection to a member was down last.
fn trouble(cluster: &Cluster, client: &str, member: &str) -> Option<String> {
    let status = cluster.json(client);
    let links = status["group"]["links"].as_array()?;
    let link = links.iter().find(|link| link["peer"] == member)?;
    link["last_error"].as_str().map(str::to_owned)
}

/// The owner is alive, and only this client does not reach it, or does not hear it: the others stand in, and get its
/// bytes from it.
#[test]
fn a_client_cut_off_from_an_owner_reads_through_the_others() {
    if !have_fuse() {
        return;
    }
    let Some(cluster) = Cluster::apart(3, &["x"], 1) else {
        return;
    };
    warm(&cluster, &[]);
    let spaces = cluster.spaces();
    type Cut = fn(&Namespaces) -> anyhow::Result<()>;
    let ways: [(&str, Cut, Cut); 3] = [
        (
            "asks in vain",
            |net| net.cut("x", "b"),
            |net| net.mend("x", "b"),
        ),
        (
            "hears nothing",
            |net| net.cut("b", "x"),
            |net| net.mend("b", "x"),
        ),
        (
            "neither",
            |net| net.part("x", "b"),
            |net| net.join("x", "b"),
        ),
    ];
    for (way, cut, mend) in ways {
        let path = cluster.mount_as("x", &IO_TIMEOUT);
        cut(spaces).unwrap();
        let began = Instant::now();
        let cost = read_all(&cluster, &path);
        // What is under way when it falls silent, and a probe now and then: not each of the forty ranges that are its.
        let failures = cluster.stat("x", "/peers/failures");
        let failures_max = 10 + began.elapsed().as_secs() / 2;
        assert!(
            failures <= failures_max,
            "{way}: {failures} times it was asked in vain"
        );
        assert_eq!(cost, 0, "{way}: what the others have or get was read again");
        assert!(
            trouble(&cluster, "x", "b").is_some(),
            "{way}: the cut was not met"
        );
        mend(spaces).unwrap();
        cluster.unmount("x");
    }
    cluster.until_members(&["a", "b", "c"]);
}

/// Whether one host can connect to the member on another.
fn reaches(cluster: &Cluster, from: &str, to: &str) -> bool {
    let mut connect = Command::new("timeout");
    let address = cluster.spaces().address(to, 0);
    let socket = format!(": </dev/tcp/{address}/7440");
    connect
        .args(["2", "bash", "-c", &socket])
        .stderr(Stdio::null());
    cluster
        .spaces()
        .on(from, &connect)
        .status()
        .unwrap()
        .success()
}

/// Two members that do not hear each other, in either direction, and a third that hears both: who serves is agreed
/// upon, through the third.
#[test]
fn members_that_both_hear_a_third_stay_one_group() {
    let Some(cluster) = Cluster::apart(3, &[], 1) else {
        return;
    };
    cluster.serve_all();
    let view = |name: &str| cluster.status(name).and_then(|status| status.group?.view);
    let before = view("a");
    cluster.spaces().part("a", "b").unwrap();
    assert!(!reaches(&cluster, "a", "b") && reaches(&cluster, "a", "c"));
    let cut = Instant::now();
    // Half as long again as it takes to lose a member.
    while cut.elapsed() < Duration::from_secs(15) {
        for name in ["a", "b", "c"] {
            assert_eq!(view(name), before, "{name} after {:?}", cut.elapsed());
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// A member and a client on one side, two members and a client on the other.
#[test]
fn both_sides_of_a_full_partition_go_on_and_end_in_one_cache() {
    if !have_fuse() {
        return;
    }
    let Some(cluster) = Cluster::apart(3, &["x", "y"], 1) else {
        return;
    };
    let total = warm(&cluster, &[]);
    let spaces = cluster.spaces();
    let (few, many) = (
        cluster.mount_as("x", &IO_TIMEOUT),
        cluster.mount_as("y", &IO_TIMEOUT),
    );
    let pairs = ["a", "c", "y"].map(|many| ["b", "x"].map(|few| (few, many)));
    let pairs = pairs.as_flattened();
    pairs
        .iter()
        .for_each(|(one, other)| spaces.part(one, other).unwrap());

    // Each side has from the origin what the other holds: all of it once, together.
    let before = cluster.place.server.counters().body_bytes;
    std::thread::scope(|scope| {
        scope.spawn(|| read_objects(&few, "o", &LENGTHS));
        scope.spawn(|| read_objects(&many, "o", &LENGTHS));
    });
    let cost = cluster.place.server.counters().body_bytes - before;
    assert!(
        cost > 0 && cost as f64 <= 1.01 * total as f64,
        "{cost} of {total}"
    );

    // The views differ for a while: each side takes the other for gone, and has all that it needs.
    cluster.until_members_of(&["b"], &["b"]);
    cluster.until_members_of(&["a", "c"], &["a", "c"]);
    eventually("the clients have heard of it", || {
        let seen = |client: &str| {
            cluster.json(client)["group"]["members"]
                .as_array()
                .map(Vec::len)
        };
        (seen("x"), seen("y")) == (Some(1), Some(2))
    });
    for client in ["x", "y"] {
        cluster.unmount(client);
        let path = cluster.mount_as(client, &IO_TIMEOUT);
        assert_eq!(
            read_all(&cluster, &path),
            0,
            "{client}: its side had it all"
        );
    }

    pairs
        .iter()
        .for_each(|(one, other)| spaces.join(one, other).unwrap());
    cluster.until_members(&["a", "b", "c"]);
    for client in ["x", "y"] {
        cluster.unmount(client);
        let path = cluster.mount_as(client, &[]);
        assert_eq!(
            read_all(&cluster, &path),
            0,
            "{client}: all of it is in the group"
        );
        cluster.unmount(client);
    }
}

/// Whoever is asked through a cable that is pulled is asked by the other one, and stays a member.
#[test]
fn a_rail_that_fails_leaves_the_other() {
    if !have_fuse() {
        return;
    }
    let Some(cluster) = Cluster::apart(3, &["x"], 2) else {
        return;
    };
    warm(&cluster, &PATIENT);
    let status = cluster.json("serve:g/a");
    for member in status["group"]["members"].as_array().unwrap() {
        assert_eq!(member["addresses"].as_array().unwrap().len(), 2, "{member}");
    }
    let path = cluster.mount_as("x", &PATIENT);
    let spaces = cluster.spaces();
    spaces.plug("b", 0, false).unwrap();
    let pulled = Instant::now();
    assert_eq!(read_all(&cluster, &path), 0);
    while pulled.elapsed() < Duration::from_secs(15) {
        cluster.assert_members(&["a", "b", "c"]);
        std::thread::sleep(Duration::from_millis(250));
    }
    // One that comes now knows only addresses; those of the first rail lead nowhere for b.
    cluster.unmount("x");
    let path = cluster.mount_as("x", &PATIENT);
    assert_eq!(read_all(&cluster, &path), 0);
    let received = |client: &str, member: &str| {
        let status = cluster.json(client);
        let links = status["group"]["links"].as_array().unwrap();
        let of = links.iter().filter(|link| link["peer"] == member);
        of.map(|link| link["received_bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(
        received("x", "b") > 64 << 10,
        "b was asked by its other address"
    );
    spaces.plug("b", 0, true).unwrap();
    cluster.until_members(&["a", "b", "c"]);
    // A client whose own first cable is pulled reaches nobody by it: bytes and views come by the other.
    spaces.plug("x", 0, false).unwrap();
    assert_eq!(read_all(&cluster, &path), 0);
    let second: Vec<String> = ["a", "b", "c"]
        .map(|member| format!("{}:7440", spaces.address(member, 1)))
        .into();
    eventually("views come by the other cable", || {
        let asking = &cluster.json("x")["group"]["asking"];
        second.iter().any(|address| asking == address.as_str())
    });
    spaces.plug("x", 0, true).unwrap();
    cluster.unmount("x");
}

/// Nothing that is sent to the origin arrives. What is cached is served; the rest fails by the deadline, and comes when
/// the origin is back.
#[test]
fn an_origin_that_vanishes_is_waited_for_until_the_deadline() {
    if !have_fuse() {
        return;
    }
    let Some(cluster) = Cluster::apart(3, &["x", "y"], 1) else {
        return;
    };
    warm(&cluster, &super::pressure::WITHOUT_ORIGIN);
    super::pressure::without_origin(
        &cluster,
        &LENGTHS,
        || {
            ["a", "b", "c", "x", "y"]
                .iter()
                .for_each(|host| cluster.spaces().cut(host, HERE).unwrap())
        },
        || {
            ["a", "b", "c", "x", "y"]
                .iter()
                .for_each(|host| cluster.spaces().mend(host, HERE).unwrap())
        },
    );
}

/// One member alone does not reach S3, and nothing comes back to it: its share of names and bytes is had through those
/// that do, for readers everywhere, its own included.
#[test]
fn a_member_that_alone_is_cut_off_from_the_origin_is_stood_in_for() {
    if !have_fuse() {
        return;
    }
    let Some(cluster) = Cluster::apart(3, &["x"], 1) else {
        return;
    };
    const FLAGS: [&str; 4] = ["--io-timeout", "8s", "--attr-ttl", "1s"];
    warm(&cluster, &FLAGS);
    let path = cluster.mount_as("x", &FLAGS);
    read_objects(&path, "o", &LENGTHS);
    let before = cluster.place.server.counters().body_bytes;
    cluster.spaces().cut("b", HERE).unwrap();
    // New objects, of which nobody knows anything, and a new version of one that everybody knows.
    let total = put_objects(&cluster.place, "new", &LENGTHS);
    let began = Instant::now();
    read_objects(&path, "new", &LENGTHS);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60), "it took {took:?}");
    let cost = cluster.place.server.counters().body_bytes - before;
    assert!(
        cost >= total && cost as f64 <= 1.2 * total as f64,
        "{cost} of {total}"
    );
    // Nobody has to find out any more, and what is there is not fetched again.
    cluster.unmount("x");
    let path = cluster.mount_as("x", &FLAGS);
    let began = Instant::now();
    read_objects(&path, "new", &LENGTHS);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "it took {took:?}");
    assert_eq!(cluster.place.server.counters().body_bytes - before, cost);
    cluster.place.server.put("bucket", "new-3", vec![7; 1_000]);
    eventually("the new version is seen", || {
        std::fs::read(path.join("new-3")).is_ok_and(|bytes| bytes == [7; 1_000])
    });
    let silent = |who: &str| cluster.json(who)["s3_silent_seconds"].as_f64();
    assert!(silent("serve:g/b") > Some(0.0) && silent("serve:g/a") == Some(0.0));
    cluster.spaces().mend("b", HERE).unwrap();
    eventually("b finds out that S3 answers it", || {
        silent("serve:g/b") == Some(0.0)
    });
    cluster.unmount("x");
}
