//! Mounts and members, each a process, on a controller that they drive themselves.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::cluster::{Cluster, put_objects};
use super::support::{
    COMMAND_TIMEOUT, Ended, Place, Running, eventually, have_fuse, json, pattern,
};
use crate::device::{Taken, Throttle};

const MIB: usize = 1 << 20;
const OBJECTS: usize = 24;
const MANY: usize = 60;
const LEN: usize = 2 * MIB;

fn compare(dir: &std::path::Path) {
    for n in 0..OBJECTS {
        let got = fs::read(dir.join(format!("o-{n}"))).unwrap();
        assert!(got == pattern(LEN, (n as u8).wrapping_add(1)), "o-{n}");
    }
}

fn mount(place: &Place, cache_dir: &str, more: &[&str]) -> Ended {
    place.dir("m");
    let args = ["mount", "s3://bucket", "m", "--cache-dir", cache_dir];
    place.run(&[&args[..], more].concat())
}

/// The only disk of what runs there.
fn disk(place: &Place, of: &str) -> Value {
    let text = place.run(&["status", of, "--json"]).ok().text();
    json(&text)["disks"][0].clone()
}

#[test]
fn a_mount_drives_a_controller_and_finds_what_it_kept() {
    let Some(taken) = Taken::new().filter(|_| have_fuse()) else {
        return;
    };
    let place = Place::new();
    put_objects(&place, "o", &[LEN; OBJECTS]);
    let there = format!("pci:{}", taken.address);
    let memory = ["--memory", "64MiB"];
    // Whatever the test before has left there.
    mount(&place, &there, &["--format", "--memory", "64MiB"]).ok();
    place.run(&["warmup", "m"]).ok();
    compare(&place.dir("m"));
    let path = place.dir("m");
    // Asked each 10 s, and at once after its start.
    eventually("the controller has told of its health", || {
        disk(&place, "m")["health"].is_object()
    });
    let held = disk(&place, "m");
    // What QEMU makes up: 323 K.
    assert_eq!(held["health"]["temperature_c"], 50, "{held}");
    assert_eq!(held["health"]["media_errors"], 0, "{held}");
    let kind = held["device"].as_str().unwrap_or_default();
    assert!(kind.contains("SPDK over PCIe"), "{held}");
    let text = place.run(&["status", "m"]).ok().text();
    assert!(text.contains("50 C") || text.contains("50 °C"), "{text}");
    place.run(&["umount", "m"]).ok();
    place.run(&["cache", "verify", &there]).ok();

    place.server.reset_counters();
    mount(&place, &there, &memory).ok();
    compare(&path);
    let again = place.server.counters().body_bytes;
    assert!(
        again < (OBJECTS * LEN / 10) as u64,
        "{again} bytes came from S3 again"
    );
    place.run(&["umount", "m"]).ok();
}

/// Enough locked memory for SPDK's own pages, and not for the node's buffers: told before a device is given what it never
/// reaches.
#[test]
fn a_limit_of_locked_memory_below_the_buffers_is_told() {
    let Some(taken) = Taken::new().filter(|_| have_fuse()) else {
        return;
    };
    let place = Place::new();
    put_objects(&place, "o", &[LEN; 1]);
    place.dir("m");
    let there = format!("pci:{}", taken.address);
    let args = [
        "mount",
        "s3://bucket",
        "m",
        "--format",
        "--memory",
        "512MiB",
        "--cache-dir",
        &there,
    ];
    // As an ordinary user is, but for what takes root: no right to lock without a limit.
    let plain = place.command(&args);
    let mut limited = Command::new("prlimit");
    limited
        .arg("--memlock=314572800:314572800")
        .args([
            "setpriv",
            "--bounding-set=-ipc_lock",
            "--inh-caps=-ipc_lock",
        ])
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(
            plain
                .get_current_dir()
                .unwrap_or(place.runtime_dir().as_path()),
        );
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    Running::start(&mut limited).wait(COMMAND_TIMEOUT).failed(&[
        "the limit of locked memory is 314572800 bytes",
        "ulimit -l",
        &there,
    ]);
}

#[test]
fn a_member_drives_a_controller() {
    let Some(taken) = Taken::new().filter(|_| have_fuse()) else {
        return;
    };
    let there = format!("pci:{}", taken.address);
    let cluster = Cluster::new(1);
    put_objects(&cluster.place, "o", &[LEN; OBJECTS]);
    cluster
        .place
        .run(&[
            "cache",
            "format",
            "--force",
            &there,
            "--cache-group",
            "g",
            "--node-id",
            "a",
        ])
        .ok();
    let mut args = cluster.serve_args("a", &["--memory", "64MiB"]);
    let at = args.iter().position(|arg| arg == "--cache-dir").unwrap();
    args[at + 1] = there.clone();
    let size = args.iter().position(|arg| arg == "--cache-size");
    if let Some(size) = size {
        args.drain(size..size + 2);
    }
    let mut command = cluster.command("a", &args);
    Running::start(&mut command).wait(COMMAND_TIMEOUT).ok();
    cluster.until_members(&["a"]);
    let path = cluster.mount_client(&[]);
    cluster.place.run(&["warmup", "m"]).ok();
    compare(&path);
    let held = disk(&cluster.place, "serve:g/a");
    assert!(held["cached_bytes"].as_u64().unwrap_or(0) > 0, "{held}");
    assert_eq!(held["state"], "serving", "{held}");
    cluster.unmount("m");
    cluster.place.run(&["stop", "g/a"]).ok();
}

/// A device that hangs under a mount: it is retired, readers go on, and the mount ends as any.
#[test]
fn a_mount_outlives_a_controller_that_hangs() {
    let Some(taken) = Taken::new().filter(|_| have_fuse()) else {
        return;
    };
    let Some(mut throttle) = Throttle::new() else {
        return;
    };
    let place = Place::new();
    // More than memory has room for.
    put_objects(&place, "o", &[LEN; MANY]);
    let there = format!("pci:{}", taken.address);
    mount(&place, &there, &["--format", "--memory", "64MiB"]).ok();
    place.run(&["warmup", "m"]).ok();
    let path = place.dir("m");
    let compare = || {
        // Else the kernel has all of it.
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        for n in 0..MANY {
            let got = fs::read(path.join(format!("o-{n}"))).unwrap();
            assert!(got == pattern(LEN, (n as u8).wrapping_add(1)), "o-{n}");
        }
    };
    compare();
    throttle.to(1);
    compare();
    eventually("the disk is retired", || {
        disk(&place, "m")["state"] == "retired"
    });
    eventually("its controller is known to hang", || {
        let why = disk(&place, "m")["why"].to_string();
        why.contains("hang") || why.contains("did not end")
    });
    compare();
    place.run(&["umount", "m"]).ok();
    let log = place.log();
    assert!(!log.contains("operations never end"), "{log}");
    place.assert_clean(&path);
    throttle.to(0);
    // The next start has it again.
    mount(&place, &there, &["--format", "--memory", "64MiB"]).ok();
    compare();
    assert_eq!(disk(&place, "m")["state"], "serving");
    place.run(&["umount", "m"]).ok();
}
