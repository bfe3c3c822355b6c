//! Bytes through a group over verbs: right, from the origin once, whatever becomes of members and devices.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use forebay_cli::control::client::living;

use super::cluster::{Cluster, put_objects, read_objects};
use super::links::{asked_by, device, received_bytes};
use super::support::eventually;

const MIB: usize = 1 << 20;

/// Whole and broken lengths, and so many that every member owns some; 13 MiB in all: the guest's processor is emulated.
const LENGTHS: [usize; 24] = {
    let mut lengths = [96 << 10; 24];
    lengths[0] = 1;
    lengths[1] = 4096;
    lengths[2] = 100_000;
    lengths[3] = MIB;
    lengths[4] = 2 * MIB + 1;
    lengths[5] = 3 * MIB;
    lengths[6] = 4 * MIB - 1;
    lengths
};

/// The emulated processor is slow to give memory to devices.
const SMALL: [&str; 2] = ["--memory", "96MiB"];

/// `more` after the flags of every member and client here.
pub fn with<'a>(flags: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let flags = flags.iter().map(String::as_str);
    flags.chain(SMALL).chain(more.iter().copied()).collect()
}

/// Asks for names that are not there, of all owners: each question travels to one of them.
pub fn ask_all(path: &Path, round: &mut usize) {
    *round += 1;
    for n in 0..24 {
        let missing = path.join(format!("missing-{round}-{n}"));
        assert!(!missing.try_exists().expect("an answer"), "{missing:?}");
    }
}

/// Waits until so many links that a mount asks on are queue pairs, and no more: the first requests go over TCP.
#[track_caller]
pub fn until_rdma(cluster: &Cluster, mount: &str, path: &Path, count: usize) {
    let mut round = 0;
    eventually("links are queue pairs", || {
        ask_all(path, &mut round);
        let links = asked_by(cluster, mount, "rdma");
        links.iter().filter(|link| link.state == "up").count() == count
    });
}

/// Reads all objects in the background.
pub fn reading(path: &Path, lengths: &'static [usize]) -> JoinHandle<()> {
    let path = PathBuf::from(path);
    std::thread::spawn(move || read_objects(&path, "o", lengths))
}

#[test]
fn three_members_and_a_client_share_every_byte_over_verbs() {
    let Some((ip, flags)) = device() else { return };
    let cluster = Cluster::at(ip, 3);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    let of_members = with(&flags, &[]);
    cluster.serve_all_with(|_| &of_members);
    let of_client = with(&flags, &["--transport", "rdma"]);
    let path = cluster.mount_client(&of_client);
    until_rdma(&cluster, "m", &path, 3);
    let tcp_before = received_bytes(&cluster, "m", "tcp");
    cluster.place.server.reset_counters();
    read_objects(&path, "o", &LENGTHS);
    let cold = cluster.place.server.counters();
    assert!(
        cold.body_bytes as f64 <= 1.01 * total as f64,
        "{} of {total}",
        cold.body_bytes
    );
    let rdma = received_bytes(&cluster, "m", "rdma");
    let tcp = received_bytes(&cluster, "m", "tcp") - tcp_before;
    println!("received {rdma} bytes over verbs, {tcp} over TCP, of {total}");
    // A queue pair may break on a busy machine: that is TCP's turn for ten seconds.
    assert!(rdma + tcp >= total && rdma > total / 2);
    // Another mount, with empty memory: all of it is in the group.
    cluster.place.run(&["umount", "m"]).ok();
    let path = cluster.mount_client(&of_client);
    read_objects(&path, "o", &LENGTHS);
    let again = cluster.place.server.counters();
    assert_eq!(
        again.body_bytes, cold.body_bytes,
        "nothing was read from the origin again"
    );
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_without_rdma_is_reached_over_tcp_and_status_says_why() {
    let Some((ip, flags)) = device() else { return };
    let cluster = Cluster::at(ip, 3);
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    let (rdma, tcp) = (with(&flags, &[]), with(&flags, &["--transport", "tcp"]));
    cluster.serve_all_with(|name| if name == "b" { &tcp } else { &rdma });
    let path = cluster.mount_client(&rdma);
    until_rdma(&cluster, "m", &path, 2);
    read_objects(&path, "o", &LENGTHS);
    let bytes = cluster.place.server.counters().body_bytes;
    assert!(bytes as f64 <= 1.01 * total as f64, "{bytes} of {total}");
    let links = asked_by(&cluster, "m", "tcp");
    let to_b = links.iter().find(|link| link.peer == "b");
    let why = to_b.and_then(|link| link.why_tcp.clone());
    assert!(
        why.as_ref()
            .is_some_and(|why| why.contains("it has no RDMA")),
        "{links:?}"
    );
    let report = cluster.status("b").and_then(|status| status.group);
    let off = report.and_then(|group| group.rdma.off);
    assert_eq!(off.as_deref(), Some("--transport tcp"));
    cluster.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_member_killed_in_mid_transfer_costs_no_error() {
    let Some((ip, flags)) = device() else { return };
    let cluster = Cluster::at(ip, 3);
    put_objects(&cluster.place, "o", &LENGTHS);
    let flags = with(&flags, &[]);
    cluster.serve_all_with(|_| &flags);
    // So slow that it is in the midst of it.
    let slow = [&flags[..], &["--peer-limit", "1MiB"]].concat();
    let path = cluster.mount_client(&slow);
    until_rdma(&cluster, "m", &path, 3);
    let before = received_bytes(&cluster, "m", "rdma");
    let reader = reading(&path, &LENGTHS);
    eventually("bytes come", || {
        reader.is_finished() || received_bytes(&cluster, "m", "rdma") > before
    });
    assert!(!reader.is_finished(), "nothing is under way");
    cluster.kill("b");
    reader.join().expect("every byte is right");
    cluster.until_members(&["a", "c"]);
    until_rdma(&cluster, "m", &path, 2);
    cluster.place.run(&["umount", "m"]).ok();
}

pub fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).status();
    assert!(done.expect(program).success(), "{program} {arguments:?}");
}

#[test]
fn a_device_that_is_removed_under_readers_costs_no_error() {
    if device().is_none() {
        return;
    }
    let Ok(interface) = std::env::var("FOREBAY_RDMA_SPARE_INTERFACE") else {
        println!(
            "SKIPPED: FOREBAY_RDMA_SPARE_INTERFACE names no interface to make a device on: its removal was not tried here (ci/softroce does, in a guest)"
        );
        return;
    };
    run("ip", &["addr", "add", "10.9.8.1/24", "dev", &interface]);
    run(
        "rdma",
        &["link", "add", "rxe8", "type", "rxe", "netdev", &interface],
    );
    let flags = ["--group-ip", "10.9.8.1", "--rdma-device", "rxe8"].map(str::to_owned);
    let cluster = Cluster::at("10.9.8.1".parse().unwrap(), 3);
    put_objects(&cluster.place, "o", &LENGTHS);
    let flags = with(&flags, &[]);
    cluster.serve_all_with(|_| &flags);
    let slow = [&flags[..], &["--peer-limit", "1MiB"]].concat();
    let path = cluster.mount_client(&slow);
    until_rdma(&cluster, "m", &path, 3);
    let daemons = living(&cluster.place.runtime_dir());
    let pids: Vec<u32> = daemons.iter().map(|(_, status)| status.pid).collect();
    assert_eq!(pids.len(), 4);
    assert!(
        pids.iter().all(|pid| open_devices(*pid) > 1),
        "a core has no device"
    );
    let before = received_bytes(&cluster, "m", "rdma");
    let reader = reading(&path, &LENGTHS);
    eventually("bytes come", || {
        reader.is_finished() || received_bytes(&cluster, "m", "rdma") > before
    });
    assert!(!reader.is_finished(), "nothing is under way");
    // SoftRoCE waits for all that is open, and librdmacm keeps a device open until its process ends.
    let mut removal = Command::new("rdma")
        .args(["link", "delete", "rxe8"])
        .spawn()
        .expect("rdma");
    reader.join().expect("every byte is right");
    until_rdma(&cluster, "m", &path, 0);
    eventually("cores have closed the device", || {
        pids.iter().all(|pid| open_devices(*pid) <= 1)
    });
    cluster.assert_members(&["a", "b", "c"]);
    cluster.place.run(&["umount", "m"]).ok();
    drop(cluster);
    eventually("the device goes with the last process", || {
        removal.try_wait().expect("rdma").is_some()
    });
}

/// Descriptors of RDMA devices that a process has.
fn open_devices(pid: u32) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let links = entries
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let is_device = |path: &PathBuf| path.to_string_lossy().starts_with("/dev/infiniband/uverbs");
    links.filter(is_device).count()
}
