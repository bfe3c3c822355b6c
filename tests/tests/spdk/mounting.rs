//! Members and mounts, each a process, whose caches are namespaces of SPDK's target.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay_nvme_spdk::QueueOptions;
use forebay_tests::devices::target::SpdkTarget;
use serde_json::Value;

use super::cluster::{Cluster, put_objects};
use super::support::{COMMAND_TIMEOUT, Place, Running, eventually, have_fuse, pattern};
use crate::bench::{open, target_with};

const MIB: usize = 1 << 20;
/// More than the members' memory has room for.
const OBJECTS: usize = 96;
const LEN: usize = 2 * MIB;
const DEVICE_BYTES: u64 = 128 << 20;
/// Two namespaces, each in one piece, and what the target wants for itself.
const TARGET_MIB: u32 = 1024;

/// Its connection has ended, or a queue pair has seen that first.
const WHY: &str = "the device is gone: the controller ";

fn bytes_of(n: usize) -> Vec<u8> {
    pattern(LEN, (n as u8).wrapping_add(1))
}

fn compare(dir: &Path) {
    for n in 0..OBJECTS {
        let got = fs::read(dir.join(format!("o-{n}"))).unwrap();
        assert!(got == bytes_of(n), "o-{n}");
    }
}

/// A member with this `--cache-dir`.
fn serve(cluster: &Cluster, name: &str, cache_dir: &str) {
    let more = ["--cache-size", "128MiB", "--memory", "64MiB"];
    let mut args = cluster.serve_args(name, &more);
    let at = args.iter().position(|arg| arg == "--cache-dir").unwrap();
    args[at + 1] = cache_dir.to_owned();
    let mut command = cluster.command(name, &args);
    Running::start(&mut command).wait(COMMAND_TIMEOUT).ok();
}

fn disks(cluster: &Cluster, name: &str) -> Vec<Value> {
    let status = cluster.json(&format!("serve:g/{name}"));
    status["disks"].as_array().unwrap().clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Two members on the target, one of them with a directory beside it; a third on a directory alone.
#[test]
fn members_on_a_target_serve_every_byte_and_outlive_it() {
    let Some(mut target) = target_with("members on a target", TARGET_MIB).filter(|_| have_fuse())
    else {
        return;
    };
    let cluster = Cluster::new(3);
    put_objects(&cluster.place, "o", &[LEN; OBJECTS]);
    let cache = |name: &str| {
        let dir = cluster.place.dir(&format!("cache-{name}"));
        dir.to_str().unwrap().to_owned()
    };
    let there = ["a", "b"].map(|name| target.add(name, DEVICE_BYTES, 4096).unwrap());
    let dirs = [
        format!("{},{}", there[0], cache("a")),
        there[1].clone(),
        cache("c"),
    ];
    let names = ["a", "b", "c"];
    for (name, dir) in names.iter().zip(&dirs) {
        serve(&cluster, name, dir);
    }
    cluster.until_members(&names);
    let path = cluster.mount_client(&[]);
    cluster.place.run(&["warmup", "m"]).ok();
    compare(&path);
    for name in names {
        let held = disks(&cluster, name);
        assert!(
            held.iter().all(|disk| number(&disk["cached_bytes"]) > 0),
            "{held:?}"
        );
    }
    let held = &disks(&cluster, "a")[0];
    let device = held["device"].as_str().unwrap();
    assert!(
        device.contains("TCP") && device.contains("serial"),
        "{held}"
    );
    // A bus error ends it, though SPDK would rather not.
    let pid = cluster.json("serve:g/a")["pid"].to_string();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    const SIGBUS: u32 = 7;
    assert_eq!(caught & (1 << (SIGBUS - 1)), 0, "{caught:#x}");
    let text = cluster.place.run(&["status", "serve:g/a"]).ok().text();
    assert!(text.contains(device) && text.contains(&there[0]), "{text}");

    // What is on the namespace is found by the next process.
    cluster.place.run(&["stop", "g/b"]).ok();
    serve(&cluster, "b", &dirs[1]);
    cluster.until_members(&names);
    eventually("what was kept is found again", || {
        number(&disks(&cluster, "b")[0]["cached_bytes"]) > 0
    });
    let gets = || cluster.place.server.counters().body_bytes;
    let before = gets();
    cluster.unmount("m");
    compare(&cluster.mount_client(&[]));
    // What a target that shares its CPU had not taken in time was not kept.
    let again = gets() - before;
    assert!(
        again < (OBJECTS * LEN / 10) as u64,
        "{again} bytes came from S3 again"
    );

    killed_while_readers_read(&cluster, &mut target);
    let path = cluster.place.dir("m");
    assert_eq!(disks(&cluster, "a")[1]["state"], "serving", "its directory");
    starts_without_and_with_another_target(&cluster, &there[1]);
    cluster.until_members(&names);
    compare(&path);
    cluster.unmount("m");
}

/// Readers come and go from before the target dies until the members with namespaces say that these are lost.
fn killed_while_readers_read(cluster: &Cluster, target: &mut SpdkTarget) {
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut rounds = 0;
            let last = Instant::now() + 2 * COMMAND_TIMEOUT;
            while !done.load(Ordering::Acquire) && Instant::now() < last {
                cluster.unmount("m");
                let path = cluster.mount_client(&[]);
                begun.store(true, Ordering::Release);
                compare(&path);
                rounds += 1;
            }
            rounds
        });
        eventually("readers read", || begun.load(Ordering::Acquire));
        target.kill().unwrap();
        for name in ["a", "b"] {
            eventually("its loss is told", || {
                let held = &disks(cluster, name)[0];
                held["state"] == "retired" && held["why"].as_str().unwrap().contains(WHY)
            });
        }
        done.store(true, Ordering::Release);
        assert!(reading.join().unwrap() > 0);
    });
    compare(&cluster.place.dir("m"));
    let text = cluster.place.run(&["status", "serve:g/b"]).ok().text();
    assert!(text.contains(WHY), "{text}");
}

/// A start without its target says so; one with a new target begins anew.
fn starts_without_and_with_another_target(cluster: &Cluster, there: &str) {
    cluster.place.run(&["stop", "g/b"]).ok();
    let mut args = cluster.serve_args("b", &[]);
    let at = args.iter().position(|arg| arg == "--cache-dir").unwrap();
    args[at + 1] = there.to_owned();
    let mut command = cluster.command("b", &args);
    Running::start(&mut command)
        .wait(COMMAND_TIMEOUT)
        .failed(&["cannot attach to", there]);
    let target = target_with("a new target", TARGET_MIB).unwrap();
    serve(cluster, "b", &target.add("b", DEVICE_BYTES, 512).unwrap());
    compare(&cluster.place.dir("m"));
}

fn mount(place: &Place, name: &str, cache_dir: &str, more: &[&str]) -> super::support::Ended {
    place.dir(name);
    let args = ["mount", "s3://bucket", name, "--cache-dir", cache_dir];
    place.run(&[&args[..], more].concat())
}

#[test]
fn what_others_have_on_a_namespace_is_never_overwritten_unasked() {
    let Some(target) = target_with("a mount on a namespace", TARGET_MIB).filter(|_| have_fuse())
    else {
        return;
    };
    let place = Place::new();
    put_objects(&place, "o", &[LEN; OBJECTS]);
    let there = target.add("mounted", DEVICE_BYTES, 512).unwrap();
    {
        // A partition table's signature.
        let mut device = forebay_cli::cache::blocking::Blocking::new(|arena| {
            Ok(open(&there).queue_pair(&arena.mapping(), &QueueOptions::default())?)
        })
        .unwrap();
        let mut head = vec![0; 4096];
        (head[510], head[511]) = (0x55, 0xaa);
        device.write(0, &head).unwrap();
        device.flush().unwrap();
    }
    mount(&place, "m", &there, &[]).failed(&["is not used and left as it is", &there]);
    mount(&place, "m", &there, &["--format"]).ok();
    compare(&place.dir("m"));
    // By another spelling, and by a namespace's number.
    let spelled = there.replace("trtype:TCP adrfam:IPv4", "trtype:tcp");
    let numbered = format!("{there} ns:1");
    for other in [&there, &spelled, &numbered] {
        mount(&place, "other", other, &["--node-id", "other"]).failed(&["is in use by"]);
    }
    // By another portal of the target.
    let portal = target.add_portal("mounted").unwrap();
    mount(&place, "other", &portal, &["--node-id", "other"]).failed(&["is in use by process"]);
    place
        .run(&["cache", "verify", &portal])
        .failed(&["is in use by process"]);
    let twice = format!("{there},{numbered}");
    place.run(&["umount", "m"]).ok();
    mount(&place, "m", &twice, &[]).failed(&["is in use by"]);
    mount(&place, "m", &format!("{there},{spelled}"), &[]).failed(&["twice"]);
    mount(&place, "m", &format!("{there},{portal}"), &[]).failed(&["are the same namespace"]);
    // Tools read it, and another node's is not taken for one's own.
    let text = place.run(&["cache", "inspect", &there]).ok().text();
    assert!(text.contains(&there) && text.contains("regions"), "{text}");
    place.run(&["cache", "verify", &there]).ok();
    mount(&place, "m", &there, &["--node-id", "other"]).failed(&["is the cache of"]);
    mount(&place, "m", &there, &[]).ok();
    compare(&place.dir("m"));
    place.run(&["umount", "m"]).ok();
    place.run(&["cache", "format", &there]).ok();
    let missing = format!("{there} ns:9");
    mount(&place, "m", &missing, &[]).failed(&["has no namespace 9"]);
}
