//! What jobs leave behind of names: for when S3 does not answer, and in place of what the mount knew.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::support::{Place, have_fuse, pattern};

const MIB: usize = 1 << 20;

fn mount(place: &Place, flags: &[&str]) -> PathBuf {
    let (path, cache) = (place.dir("m"), place.dir("c"));
    let (path_text, cache) = (path.to_str().unwrap(), cache.to_str().unwrap());
    let args = [
        "mount",
        "s3://bucket",
        path_text,
        "--cache-dir",
        cache,
        "--cache-size",
        "128MiB",
        "--free-space-ratio",
        "0",
    ];
    place.run(&[&args[..], flags].concat()).ok();
    path
}

/// All files below `path`, and their lengths.
fn walk(path: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::metadata(&path).unwrap();
        match about.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push((path, about.len())),
        }
    }
    found.sort();
    found
}

/// Nobody has looked at anything in the mount before S3 is gone, and all of it is there.
#[test]
fn what_was_warmed_is_found_and_read_without_s3() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let all = |n: usize| match n {
        0 => ("top".to_owned(), pattern(MIB, 1)),
        1 => ("a/b/c/deep".to_owned(), pattern(70_000, 2)),
        n => (format!("many/{n:05}"), pattern(100, n as u8)),
    };
    // More than a page.
    let count = 1_300;
    for n in 0..count {
        let (key, bytes) = all(n);
        place.server.put("bucket", key, bytes);
    }
    place.server.put("bucket", "a/b", "hidden by the directory");
    let path = mount(&place, &["--io-timeout", "6s"]);
    let warmed = place.run(&["warmup", "m"]).ok().text();
    assert!(warmed.contains("(100.0 %) in 1300 of"), "{warmed}");
    place.server.stop();
    // What was said of names is older than `--attr-ttl`.
    std::thread::sleep(Duration::from_millis(1_200));
    for n in [count - 1, 0, 1, 2] {
        let (key, bytes) = all(n);
        assert!(fs::read(path.join(&key)).unwrap() == bytes, "{key}");
    }
    let found = walk(&path);
    assert_eq!(found.len(), count);
    for n in 0..count {
        let (key, bytes) = all(n);
        assert!(fs::read(path.join(&key)).unwrap() == bytes, "{key}");
    }
    // Of what was never there nothing is known.
    let unknown = fs::metadata(path.join("many/none")).unwrap_err();
    assert_eq!(unknown.raw_os_error(), Some(5), "{unknown}");
}

/// With names that are believed for an hour, here and in the kernel.
#[test]
fn a_job_and_its_mount_speak_of_the_same_version() {
    if !have_fuse() {
        return;
    }
    for job in [
        &["check", "m"][..],
        &["check", "m/v"],
        &["check", "m/v/file", "m/v/gone"],
        &["warmup", "m/v"],
        &["warmup", "m/v", "--metadata-only"],
    ] {
        let place = Place::new();
        let (old, new) = (pattern(3_000, 1), pattern(2_000, 2));
        for key in ["v/file", "v/gone", "v/other"] {
            place.server.put("bucket", key, old.clone());
        }
        let path = mount(&place, &["--attr-ttl", "1h", "--entry-ttl", "1h"]);
        let file = path.join("v/file");
        for (path, len) in walk(&path) {
            assert_eq!((fs::read(path).unwrap().len() as u64, len), (3_000, 3_000));
        }
        place.server.put("bucket", "v/file", new.clone());
        place.server.delete("bucket", "v/gone");
        assert_eq!(fs::metadata(&file).unwrap().len(), 3_000, "as promised");
        place.run(job);
        assert_eq!(fs::metadata(&file).unwrap().len(), 2_000, "{job:?}");
        assert!(fs::read(&file).unwrap() == new, "{job:?}");
        let gone = fs::metadata(path.join("v/gone")).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{job:?}");
        assert!(fs::read(path.join("v/other")).unwrap() == old, "{job:?}");
        place.run(&["umount", "m"]).ok();
    }
}
