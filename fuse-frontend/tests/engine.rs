//! The mount over the production engine: what programs' reads cost at the origin.

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::Store;
use common::core::RealEngine;
use common::mount::{Mount, have_fuse, pattern, wait_until};
use forebay_fuse::{FuseReply, MountOptions};

const MIB: usize = 1 << 20;

fn mounted(objects: &[(&str, usize)]) -> Mount<RealEngine<FuseReply>> {
    mounted_with(objects, Duration::from_secs(30))
}

fn mounted_with(objects: &[(&str, usize)], io_timeout: Duration) -> Mount<RealEngine<FuseReply>> {
    let store = Store::new();
    for (n, (key, len)) in objects.iter().enumerate() {
        store.put(key, pattern(*len, n as u32));
    }
    let engine = RealEngine::start(store.clone(), 256 * MIB, io_timeout);
    Mount::over(engine, store, "", MountOptions::default())
}

fn open(path: &Path, direct: bool) -> File {
    let flags = if direct {
        rustix::fs::OFlags::DIRECT.bits()
    } else {
        0
    };
    File::options()
        .read(true)
        .custom_flags(flags as i32)
        .open(path)
        .unwrap()
}

/// Reads it all in order.
fn scan(file: &File, expected: &[u8]) {
    let mut buffer = vec![0; MIB];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at as u64).unwrap();
        if read == 0 {
            break;
        }
        assert!(buffer[..read] == expected[at..at + read], "at {at}");
        at += read;
    }
    assert_eq!(at, expected.len());
}

fn get_bytes(mount: &Mount<RealEngine<FuseReply>>) -> u64 {
    mount.engine().meter.get_bytes.load(Ordering::Relaxed)
}

#[test]
fn a_scan_reads_each_byte_from_the_origin_once() {
    if !have_fuse() {
        return;
    }
    let len = 97 * MIB + 12_345;
    let mount = mounted(&[("buffered", len), ("direct", len), ("small", 5000)]);
    for (key, seed, direct) in [("buffered", 0, false), ("direct", 1, true)] {
        let before = get_bytes(&mount);
        scan(&open(&mount.path(key), direct), &pattern(len, seed));
        assert_eq!(get_bytes(&mount) - before, len as u64, "{key}");
    }
    let gets = mount.engine().meter.gets.load(Ordering::Relaxed);
    assert!(gets <= 60, "{gets} GETs for two scans of 97 MiB");
    scan(&open(&mount.path("small"), false), &pattern(5000, 2));
    assert_eq!(mount.engine().meter.gets.load(Ordering::Relaxed), gets + 1);
}

#[test]
fn random_reads_are_amplified_16_times_at_most() {
    if !have_fuse() {
        return;
    }
    let len = 200 * MIB;
    let mount = mounted(&[("buffered", len), ("direct", len)]);
    for (key, seed, direct) in [("buffered", 0, false), ("direct", 1, true)] {
        let bytes = pattern(len, seed);
        let before = get_bytes(&mount);
        let file = open(&mount.path(key), direct);
        let mut buffer = [0; 4096];
        let mut state = 1u64;
        let mut asked = 0;
        for _ in 0..1500 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (state >> 20) as usize % (len / 4096) * 4096;
            file.read_exact_at(&mut buffer, at as u64).unwrap();
            assert!(buffer == bytes[at..at + 4096], "at {at}");
            asked += 4096;
        }
        let amplification = (get_bytes(&mount) - before) as f64 / asked as f64;
        eprintln!("{key}: {amplification:.2}");
        assert!(amplification <= 16.0, "{key}: {amplification:.2}");
    }
}

#[test]
fn many_readers_of_one_cold_object_share_each_fetch() {
    if !have_fuse() {
        return;
    }
    let len = 48 * MIB + 77;
    let mount = mounted(&[("cold", len)]);
    mount.engine().meter.delay_ms.store(100, Ordering::Relaxed);
    let expected = Arc::new(pattern(len, 0));
    let path = mount.path("cold");
    let readers: Vec<_> = (0..64)
        .map(|_| {
            let (path, expected) = (path.clone(), expected.clone());
            std::thread::spawn(move || scan(&open(&path, true), &expected))
        })
        .collect();
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
    assert_eq!(get_bytes(&mount), len as u64);
    wait_until("closed", || {
        mount.handle().namespace().stats().open_files == 0
    });
}

#[test]
fn a_changed_object_is_never_mixed() {
    if !have_fuse() {
        return;
    }
    let len = 40 * MIB;
    let mount = mounted(&[("f", len)]);
    let old = open(&mount.path("f"), true);
    let mut buffer = vec![0; MIB];
    old.read_exact_at(&mut buffer, 0).unwrap();
    mount.store.put("f", pattern(len, 9));
    // What is cached of the old version stays readable, the rest is gone.
    old.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == pattern(len, 0)[..MIB]);
    let gone = old.read_exact_at(&mut buffer, 39 * MIB as u64).unwrap_err();
    assert_eq!(
        gone.raw_os_error(),
        Some(rustix::io::Errno::STALE.raw_os_error())
    );
    // The failed read has told: no need to wait for the attributes to expire.
    scan(&open(&mount.path("f"), false), &pattern(len, 9));
}

#[test]
fn an_origin_that_hangs_is_an_error_by_the_deadline() {
    if !have_fuse() {
        return;
    }
    let mount = mounted_with(&[("f", MIB), ("d/g", MIB)], Duration::from_millis(500));
    let file = open(&mount.path("f"), false);
    mount
        .engine()
        .meter
        .delay_ms
        .store(60_000, Ordering::Relaxed);
    let asked = Instant::now();
    let eio = Some(rustix::io::Errno::IO.raw_os_error());
    let mut buffer = [0; 4096];
    assert_eq!(
        file.read_at(&mut buffer, 0).unwrap_err().raw_os_error(),
        eio
    );
    assert_eq!(
        std::fs::metadata(mount.path("new"))
            .unwrap_err()
            .raw_os_error(),
        eio
    );
    assert_eq!(
        std::fs::read_dir(mount.path("d"))
            .map(drop)
            .unwrap_err()
            .raw_os_error(),
        eio
    );
    assert!(
        asked.elapsed() < Duration::from_secs(10),
        "{:?}",
        asked.elapsed()
    );
    mount.engine().meter.delay_ms.store(0, Ordering::Relaxed);
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(
        buffer == pattern(MIB, 0)[..4096],
        "the failure is not remembered"
    );
    assert_eq!(std::fs::read_dir(mount.path("d")).unwrap().count(), 1);
}

#[test]
fn a_shutdown_under_load_answers_everyone_and_ends_the_session() {
    if !have_fuse() {
        return;
    }
    let mount = mounted(&[("f", 64 * MIB)]);
    let files: Vec<File> = (0..32)
        .map(|n| open(&mount.path("f"), n % 2 == 0))
        .collect();
    mount
        .engine()
        .meter
        .delay_ms
        .store(60_000, Ordering::Relaxed);
    let readers: Vec<_> = (0u64..)
        .zip(files)
        .map(|(n, file)| {
            std::thread::spawn(move || {
                let mut buffer = vec![0; MIB];
                file.read_at(&mut buffer, n * MIB as u64)
                    .map_err(|error| error.raw_os_error())
            })
        })
        .collect();
    wait_until("all reads wait", || {
        mount.engine().meter.gets.load(Ordering::Relaxed) >= 2
    });
    let busy = mount.handle().unmount(false).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    mount.handle().unmount(true).unwrap();
    mount.engine().client.shutdown();
    for reader in readers {
        let error = reader.join().unwrap().unwrap_err();
        assert_eq!(error, Some(rustix::io::Errno::IO.raw_os_error()));
    }
    let ended = mount.handle().wait_timeout(Duration::from_secs(10));
    ended
        .expect("the session ends with its last open file")
        .unwrap();
}
