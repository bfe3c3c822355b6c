//! A mount whose cache is an NVMe namespace by commands of ours (`/dev/ngXnY`): `ci/softroce` runs this in its guest, which has one.

use std::fs;

#[path = "cli_commands/support.rs"]
#[allow(dead_code)]
mod support;

use support::{Place, eventually, have_fuse, json, pattern};

const MIB: usize = 1 << 20;
const OBJECTS: usize = 16;

#[test]
fn a_mount_keeps_its_blocks_on_a_namespace_by_commands_of_its_own() {
    let Ok(there) = std::env::var("FOREBAY_NVME_DEVICE") else {
        println!(
            "SKIPPED: FOREBAY_NVME_DEVICE names no NVMe namespace that may be overwritten: none was mounted on here (ci/softroce does, in a guest)"
        );
        return;
    };
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = |n: usize| pattern(2 * MIB, n as u8);
    for n in 0..OBJECTS {
        place.server.put("bucket", format!("o-{n}"), bytes(n));
    }
    let path = place.dir("m");
    let compare = || {
        for n in 0..OBJECTS {
            let got = fs::read(path.join(format!("o-{n}"))).unwrap();
            assert!(got == bytes(n), "o-{n}");
        }
    };
    let mount = |more: &[&str]| {
        let args = [
            "mount",
            "s3://bucket",
            "m",
            "--memory",
            "64MiB",
            "--cache-dir",
            &there,
        ];
        place.run(&[&args[..], more].concat()).ok()
    };
    // Whatever the test before has left there.
    mount(&["--format"]);
    place.run(&["warmup", "m"]).ok();
    compare();
    let disk = || json(&place.run(&["status", "m", "--json"]).ok().text())["disks"][0].clone();
    eventually("the controller has told of its health", || {
        disk()["health"].is_object()
    });
    // What QEMU makes up: 323 K.
    assert_eq!(disk()["health"]["temperature_c"], 50, "{}", disk());
    assert_eq!(disk()["state"], "serving", "{}", disk());
    place.run(&["umount", "m"]).ok();
    place.run(&["cache", "verify", &there]).ok();
    place.server.reset_counters();
    mount(&[]);
    compare();
    let again = place.server.counters().body_bytes;
    assert!(
        again < (OBJECTS * 2 * MIB / 10) as u64,
        "{again} bytes came from S3 again"
    );
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}
