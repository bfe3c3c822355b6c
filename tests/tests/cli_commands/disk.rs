//! The cache on disk: found again after every end, checked, refused when it is not ours.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::support::{Place, eventually, have_fuse, json, pattern};

pub(super) const MIB: usize = 1 << 20;

/// A mount of the place's bucket at `m` with its cache in `cache`.
pub(super) fn mount(place: &Place, cache: &str, more: &[&str]) -> PathBuf {
    let path = place.dir("m");
    let mut args = vec!["mount", "s3://bucket", "m", "--cache-dir", cache];
    args.extend(["--free-space-ratio", "0"]);
    // A quarter of the memory may be on its way to disk, and what finds no room there is not kept: with this much
    // all that a test reads is, however slow the disk.
    for (flag, value) in [("--memory", "512MiB"), ("--cache-size", "256MiB")] {
        if !more.contains(&flag) {
            args.extend([flag, value]);
        }
    }
    args.extend(more);
    place.run(&args).ok();
    path
}

pub(super) fn umount(place: &Place) {
    place.run(&["umount", "m"]).ok();
}

/// The file that holds the log of this node below `cache`.
pub(super) fn log_of(cache: &Path) -> PathBuf {
    let group = cache.join("default");
    let mut nodes = fs::read_dir(group).unwrap();
    nodes.next().unwrap().unwrap().path().join("blocks")
}

fn on_disk(place: &Place) -> u64 {
    let status = json(&place.run(&["status", "m", "--json"]).ok().text());
    let disks = status["disks"].as_array().unwrap();
    let cached = disks
        .iter()
        .map(|disk| disk["cached_bytes"].as_u64().unwrap());
    cached.sum()
}

#[test]
fn what_was_read_comes_from_disk_after_a_restart() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let (large, small) = (pattern(24 * MIB + 77, 3), pattern(5_000, 4));
    place.server.put("bucket", "large", large.clone());
    for n in 0..50 {
        place
            .server
            .put("bucket", format!("small/{n}"), small.clone());
    }
    place.dir("c1");
    place.dir("c2");
    for restart in 0..3 {
        place.server.reset_counters();
        let path = mount(&place, "c1:c2", &[]);
        assert!(fs::read(path.join("large")).unwrap() == large);
        for n in 0..50 {
            assert!(fs::read(path.join(format!("small/{n}"))).unwrap() == small);
        }
        let stats = json(&place.run(&["stats", "m", "--json"]).ok().text());
        let status = place.run(&["status", "m"]).ok().text();
        umount(&place);
        let (origin, disk_hits) = (
            place.server.counters().body_bytes,
            stats["tiers"]["disk"]["hits"].as_u64().unwrap(),
        );
        match restart {
            0 => assert!(origin >= large.len() as u64 && disk_hits == 0),
            _ => assert!(origin == 0 && disk_hits > 0, "{origin} {stats}"),
        }
        for part in ["c1 serving", "c2 serving", "size 125 MiB"] {
            assert!(status.contains(part), "{part} in {status}");
        }
    }
    place.assert_clean(&place.dir("m"));
}

#[test]
fn a_killed_daemon_leaves_right_bytes_and_most_of_them() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let kept = pattern(40 * MIB, 5);
    let bytes = Arc::new(pattern(40 * MIB, 6));
    place.server.put("bucket", "kept", kept.clone());
    place.server.put("bucket", "torn", bytes.to_vec());
    place.dir("c");
    let path = mount(&place, "c", &[]);
    assert!(fs::read(path.join("kept")).unwrap() == kept);
    eventually("the first object is on disk", || {
        on_disk(&place) >= kept.len() as u64
    });
    // Killed while it writes the second one.
    let (reads, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let file = File::open(path.join("torn")).unwrap();
    let reader = {
        let (reads, stop, bytes) = (reads.clone(), stop.clone(), bytes.clone());
        std::thread::spawn(move || {
            let mut buf = vec![0; 64 << 10];
            for at in (0..bytes.len()).step_by(64 << 10) {
                match file.read_exact_at(&mut buf, at as u64) {
                    Ok(()) => assert!(buf[..] == bytes[at..at + buf.len()], "wrong at {at}"),
                    Err(_) => return,
                }
                reads.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        })
    };
    eventually("half of it is read", || reads.load(Ordering::Relaxed) > 320);
    place.kill(&path);
    stop.store(true, Ordering::Relaxed);
    reader.join().expect("no wrong byte");

    place.server.reset_counters();
    let path = mount(&place, "c", &[]);
    assert!(fs::read(path.join("kept")).unwrap() == kept);
    assert!(fs::read(path.join("torn")).unwrap() == bytes[..]);
    let origin = place.server.counters().body_bytes;
    assert!(
        origin < 35 * MIB as u64,
        "{origin} bytes of {} came from the origin again",
        80 * MIB
    );
    umount(&place);
    let ended = place.run(&["cache", "verify", "c"]).ok();
    assert!(ended.text().contains("all right"), "{}", ended.text());
    place.assert_clean(&path);
}

/// Changes a bit of the first entry's data, at where `inspect` says that it lies.
fn flip_a_byte(place: &Place, cache: &Path, bytes_min: u64) {
    let inspected = place
        .run(&["cache", "inspect", "c", "--json", "--entries"])
        .ok()
        .text();
    let lines: Vec<Value> = inspected.lines().map(json).collect();
    let (summary, entries) = lines.split_last().unwrap();
    let total: u64 = entries
        .iter()
        .map(|entry| entry["len_bytes"].as_u64().unwrap())
        .sum();
    assert!(total >= bytes_min, "{inspected}");
    assert_eq!(
        (&summary["kind"], &summary["held_by"]),
        (&"cache".into(), &Value::Null)
    );

    let number = |value: &Value, key: &str| value[key].as_u64().unwrap();
    let at = (1 << 20)
        + number(&entries[0], "region") * number(summary, "region_bytes")
        + number(&entries[0], "region_page") * 4096;
    let log = File::options()
        .read(true)
        .write(true)
        .open(log_of(cache))
        .unwrap();
    let mut byte = [0];
    log.read_exact_at(&mut byte, at).unwrap();
    log.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn rotten_bytes_are_found_by_verify_and_never_served() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(8 * MIB, 9);
    place.server.put("bucket", "x", bytes.clone());
    let cache = place.dir("c");
    let path = mount(&place, "c", &[]);
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    // Beside the mount only looking is allowed.
    let looked = place.run(&["cache", "inspect", "c"]).ok();
    assert!(
        looked.text().contains("in use by  process"),
        "{}",
        looked.text()
    );
    place
        .run(&["cache", "verify", "c"])
        .failed(&["in use by", "mount"]);
    place.run(&["cache", "format", "c"]).failed(&["in use by"]);
    umount(&place);

    place.run(&["cache", "verify", "c"]).ok();
    flip_a_byte(&place, &cache, bytes.len() as u64);
    let found = place
        .run(&["cache", "verify", "c"])
        .failed(&["not all of", "S3 again"]);
    assert!(found.text().contains("1 wrong pages"), "{}", found.text());

    let path = mount(&place, "c", &[]);
    assert!(
        fs::read(path.join("x")).unwrap() == bytes,
        "a wrong byte was served"
    );
    let stats = json(&place.run(&["stats", "m", "--json"]).ok().text());
    assert_eq!(
        stats["disk"]["devices"][0]["checksum_failures"], 1,
        "{stats}"
    );
    umount(&place);
    place.run(&["cache", "format", "c"]).ok();
    let text = place.run(&["cache", "inspect", "c"]).ok().text();
    assert!(
        !text.contains("sealed") && text.contains("nobody"),
        "{text}"
    );
    place.assert_clean(&path);
}

/// Writes another file system's first bytes over this node's log.
fn look_like_xfs(cache: &Path) -> PathBuf {
    let log = fs::read_dir(cache.join("default")).unwrap().flatten();
    let log = log
        .map(|entry| entry.path())
        .find(|path| !path.ends_with("other"));
    let log = log.unwrap().join("blocks");
    let file = File::options().write(true).open(&log).unwrap();
    file.write_all_at(b"XFSB", 0).unwrap();
    log
}

#[test]
fn what_cannot_be_used_is_refused_with_a_way_out() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let cache = place.dir("c");
    let refused = |args: &[&str], parts: &[&str]| {
        let all = [&["mount", "s3://bucket", "m2"], args].concat();
        place.run(&all).failed(parts);
    };
    place.dir("m2");
    refused(&["--cache-dir", "c:typo"], &["typo", "does not exist"]);
    refused(
        &["--cache-dir", "c", "--cache-size", "8"],
        &["too little", "--cache-size"],
    );
    let path = mount(&place, "c", &[]);
    let pid = place.pid_of(&path).unwrap().to_string();
    refused(
        &["--cache-dir", "c"],
        &["in use by", &pid, "m)", "--node-id"],
    );
    // Another node's name has a part of its own.
    place
        .run(&[
            "mount",
            "s3://bucket",
            "m2",
            "--cache-dir",
            "c",
            "--node-id",
            "other",
            "--cache-size",
            "64MiB",
        ])
        .ok();
    place.run(&["umount", "m2"]).ok();
    // A bucket can be read although a mount has the cache.
    place.server.put("bucket", "x", "bytes");
    let cat = place
        .run(&["cat", "s3://bucket/x", "--cache-dir", "c"])
        .ok();
    assert_eq!(cat.stdout, b"bytes");
    assert!(
        cat.stderr.contains("without the cache on disk"),
        "{}",
        cat.stderr
    );
    umount(&place);

    let log = look_like_xfs(&cache);
    let size = fs::metadata(&log).unwrap().len();
    refused(
        &["--cache-dir", "c"],
        &["an XFS file system", "--force", "left as it is"],
    );
    place
        .run(&["cache", "inspect", "c"])
        .failed(&["an XFS file system"]);
    place
        .run(&["cache", "format", "c"])
        .failed(&["an XFS file system", "--force"]);
    assert_eq!(fs::metadata(&log).unwrap().len(), size);
    let path = mount(&place, "c", &["--format"]);
    assert_eq!(fs::read(path.join("x")).unwrap(), b"bytes");
    umount(&place);
    place.run(&["cache", "verify", "c"]).ok();
    place.assert_clean(&path);
}

#[test]
fn a_cache_is_resized_at_restart() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(30 * MIB, 2);
    place.server.put("bucket", "x", bytes.clone());
    place.dir("c");
    for size in ["256MiB", "1GiB", "140MiB", "256MiB"] {
        let path = mount(&place, "c", &["--cache-size", size]);
        assert!(fs::read(path.join("x")).unwrap() == bytes, "{size}");
        eventually("all of it is on disk", || {
            on_disk(&place) >= bytes.len() as u64
        });
        umount(&place);
        place.run(&["cache", "verify", "c"]).ok();
    }
    assert!(place.server.counters().body_bytes < 2 * bytes.len() as u64);
}

/// Runs a program of root's; false when there is none, or it fails.
fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Undoes what a test did to the machine.
struct Undo(Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        works(Command::new(&self.0[0]).args(&self.0[1..]));
    }
}

/// A file system of its own of so many MiB at `disk`; none, and said so, without the right to mount it.
fn small_disk(place: &Place, mib: usize) -> Option<(PathBuf, Undo)> {
    let disk = place.dir("disk");
    let size = format!("size={mib}m");
    let mut tmpfs = Command::new("mount");
    tmpfs.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&disk);
    if !works(&mut tmpfs) {
        eprintln!("SKIPPED: no right to mount a tmpfs: a full disk was not tried");
        return None;
    }
    let undo = ["umount", "-l", disk.to_str().unwrap()].map(str::to_owned);
    Some((disk, Undo(undo.into())))
}

#[test]
fn a_full_disk_makes_the_tier_smaller_and_reads_go_on() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(96 * MIB, 1);
    place.server.put("bucket", "x", bytes.clone());
    let Some((_disk, _undo)) = small_disk(&place, 64) else {
        return;
    };
    let path = mount(&place, "disk", &["--memory", "128MiB"]);
    for pass in 0..3 {
        assert!(fs::read(path.join("x")).unwrap() == bytes, "pass {pass}");
        let file = File::open(path.join("x")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    let status = place.run(&["status", "m"]).ok().text();
    assert!(status.contains("disk serving"), "{status}");
    let stats = json(&place.run(&["stats", "m", "--json"]).ok().text());
    assert_eq!(stats["reads"]["errors"], 0, "{stats}");
    umount(&place);
    place.run(&["cache", "verify", "disk"]).ok();
    place.assert_clean(&path);
}

#[test]
fn space_that_others_need_is_given_back() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(120 * MIB, 1);
    place.server.put("bucket", "x", bytes.clone());
    let Some((disk, _undo)) = small_disk(&place, 256) else {
        return;
    };
    let args = [
        "mount",
        "s3://bucket",
        "m",
        "--cache-dir",
        "disk",
        "--cache-size",
        "192MiB",
        "--memory",
        "512MiB",
    ];
    let path = place.dir("m");
    place
        .run(&[&args[..], &["--free-space-ratio", "20%"]].concat())
        .ok();
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    // All of it: what is still being written would meet a full disk, and that makes the tier smaller in another way.
    eventually("all of it is on disk", || {
        on_disk(&place) >= bytes.len() as u64
    });
    let kept = on_disk(&place);
    let free_mib = || {
        let stat = rustix::fs::statvfs(&disk).unwrap();
        (stat.f_bavail * stat.f_frsize) >> 20
    };
    let filler = (free_mib() as usize - 25) * MIB;
    fs::write(disk.join("other"), vec![1; filler]).unwrap();
    assert!(free_mib() < 51, "{} MiB are free", free_mib());
    eventually("a fifth is free again", || free_mib() >= 51);
    let status = place.run(&["status", "m"]).ok().text();
    assert!(status.contains("may occupy"), "{status}");
    // What is given back is some regions more: there are always a few free ones.
    let left = on_disk(&place);
    assert!(left + 60 * MIB as u64 >= kept, "{left} of {kept}: {status}");
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    umount(&place);
    place.run(&["cache", "verify", "disk"]).ok();
    place.assert_clean(&path);
}

#[test]
fn a_block_device_is_a_cache_for_one_alone() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(20 * MIB, 7);
    place.server.put("bucket", "x", bytes.clone());
    let image = place.dir("images").join("disk");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let attached = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&image)
        .output();
    let device = match attached {
        Ok(output) if output.status.success() => {
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        }
        _ => {
            eprintln!("SKIPPED: no right to attach a loop device: block devices were not tried");
            return;
        }
    };
    let _undo = Undo(vec!["losetup".into(), "-d".into(), device.clone()]);
    let with_device = |more: &[&str]| {
        let args = [
            &[
                "mount",
                "s3://bucket",
                "m",
                "--cache-dir",
                &device,
                "--memory",
                "512MiB",
            ],
            more,
        ]
        .concat();
        place.run(&args)
    };
    let path = place.dir("m");
    with_device(&["--cache-size", "1GiB"]).failed(&[&device]);
    with_device(&[]).ok();
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    let held = place
        .run(&["cache", "verify", &device])
        .failed(&["in use by"]);
    assert!(held.stderr.contains("process"), "{}", held.stderr);
    place.dir("m2");
    place
        .run(&["mount", "s3://bucket", "m2", "--cache-dir", &device])
        .failed(&["in use", &device]);
    umount(&place);
    place.run(&["cache", "verify", &device]).ok();
    with_device(&["--node-id", "another"]).failed(&["is the cache of default/", "--format"]);
    place.server.reset_counters();
    with_device(&[]).ok();
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    assert_eq!(place.server.counters().body_bytes, 0);
    umount(&place);

    // The kernel may hold the device for a moment after the daemon's end: its ring is taken down behind it.
    let mut made = Err(String::from("not tried"));
    for _ in 0..100 {
        made = match Command::new("mkfs.ext4")
            .args(["-q", "-F", &device])
            .output()
        {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr)
                .trim()
                .replace('\n', " ")),
            Err(error) => Err(error.to_string()),
        };
        if !matches!(&made, Err(why) if why.contains("in use")) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    if made.is_ok() {
        with_device(&[]).failed(&["ext4 file system", "--format"]);
        let fs_dir = place.dir("fs");
        if works(Command::new("mount").arg(&device).arg(&fs_dir)) {
            let _undo = Undo(vec!["umount".into(), fs_dir.display().to_string()]);
            let at = format!("a mount at {}", fs_dir.display());
            with_device(&["--format"]).failed(&["in use by", &at]);
        }
    } else if let Err(why) = made {
        eprintln!("SKIPPED: mkfs.ext4: {why}: a foreign file system was not tried");
    }
    place.run(&["cache", "format", "--force", &device]).ok();
    place.run(&["cache", "inspect", &device]).ok();
    place.assert_clean(&path);
}

#[test]
fn a_disk_that_hangs_keeps_no_mount_from_ending() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(20 * MIB, 7);
    place.server.put("bucket", "x", bytes.clone());
    place.server.put("bucket", "y", bytes.clone());
    let image = place.dir("images").join("disk");
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    let disk = place.dir("disk");
    let made = works(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))
        && works(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&disk),
        );
    if !made {
        eprintln!("SKIPPED: no mkfs.ext4, or no right to mount: a disk that hangs was not tried");
        return;
    }
    let at = disk.display().to_string();
    let _undo = Undo(vec!["umount".into(), "-l".into(), at.clone()]);
    let path = mount(&place, "disk", &[]);
    assert!(fs::read(path.join("x")).unwrap() == bytes);
    // Writes to a frozen file system wait in the kernel, and cannot be cancelled.
    let frozen = works(Command::new("fsfreeze").args(["-f", &at]));
    let thaw = Undo(vec!["fsfreeze".into(), "-u".into(), at.clone()]);
    assert!(frozen, "fsfreeze comes with mount");
    assert!(fs::read(path.join("y")).unwrap() == bytes);
    let asked = std::time::Instant::now();
    let ended = place.run(&["umount", "m"]).ok();
    assert!(
        asked.elapsed() < Duration::from_secs(15),
        "{:?}",
        asked.elapsed()
    );
    assert!(
        ended.stderr.contains("but for what a disk that hangs"),
        "{}",
        ended.stderr
    );
    drop(thaw);
    eventually("the cache is free and whole", || {
        place.run(&["cache", "verify", "disk"]).code == Some(0)
    });
    place.assert_clean(&path);
}
