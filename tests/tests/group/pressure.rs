//! Members and clients that have too little of something: room, bandwidth, an origin; and many readers at once.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_tests::s3::{Class, EmbeddedS3, Options};
use rustix::process::Signal;

use super::cluster::{Cluster, put_objects, read_objects};
use super::support::{eventually, have_fuse, pattern, send};

const MIB: usize = 1 << 20;
const LENGTHS: [usize; 6] = [4096, 100_000, MIB, 3 * MIB, 4 * MIB - 1, 12 * MIB];
const EIO: i32 = 5;

/// The flags of members whose origin will not answer: names are believed for a second, as without flags.
pub const WITHOUT_ORIGIN: [&str; 4] = ["--io-timeout", "5s", "--attr-ttl", "1s"];

/// For how long names are believed.
const NAMES_TTL: Duration = Duration::from_secs(1);
/// It takes some time for each core of each member to find out that S3 does not answer.
const READ_ALL_MAX: Duration = Duration::from_secs(60);
/// Then names cost nothing.
const READ_AGAIN_MAX: Duration = Duration::from_secs(10);

fn names_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// All objects `o-N` of these lengths are cached by members, and none of `cold-N`; then the origin goes `down`, and
/// comes `up`. Members have the flags [`WITHOUT_ORIGIN`].
#[track_caller]
pub fn without_origin(
    cluster: &Cluster,
    lengths: &[usize],
    down: impl FnOnce(),
    up: impl FnOnce(),
) {
    const TIMEOUT: Duration = Duration::from_secs(5);
    put_objects(&cluster.place, "cold", &[MIB, 64 << 10]);
    // Whoever opened names before had their directory listed beside: that is told for as long as names are believed.
    std::thread::sleep(NAMES_TTL);
    let path = cluster.mount_as("x", &WITHOUT_ORIGIN);
    let cold = path.join("cold-0");
    // What it is like is known, and nothing of what is in it.
    assert_eq!(fs::metadata(&cold).unwrap().len(), MIB as u64);
    let absent = path.join("absent");
    let is_absent = || fs::metadata(&absent).unwrap_err().kind() == std::io::ErrorKind::NotFound;
    assert!(is_absent());
    let names = names_in(&path);
    assert_eq!(names.len(), lengths.len() + 2);
    // Another client knows nothing itself: it will be told by members.
    let other = cluster.mount_as("y", &WITHOUT_ORIGIN);
    let before = cluster.place.server.counters().body_bytes;
    down();
    // All that was said of names is older than it may be.
    std::thread::sleep(NAMES_TTL + Duration::from_millis(200));
    let began = Instant::now();
    read_objects(&path, "o", lengths);
    read_objects(&other, "o", lengths);
    for path in [&path, &other] {
        assert_eq!(names_in(path), names);
    }
    assert!(is_absent());
    let took = began.elapsed();
    assert!(took < READ_ALL_MAX, "it took {took:?}");
    assert_eq!(cluster.place.server.counters().body_bytes, before);
    let silent = |client: &str| cluster.json(client)["s3_silent_seconds"].as_f64();
    assert!(silent("x") > Some(0.0));
    // That S3 is not asked for each of them any more shows in the time.
    let again = Instant::now();
    read_objects(&other, "o", lengths);
    let took = again.elapsed();
    assert!(took < READ_AGAIN_MAX, "it took {took:?}");
    cluster.unmount("y");
    // Of what nobody has asked about nothing can be said.
    let unknown = fs::metadata(path.join("unknown")).unwrap_err();
    assert_eq!(unknown.raw_os_error(), Some(EIO), "{unknown}");

    let began = Instant::now();
    let file = File::open(&cold).unwrap();
    let error = (&file).read(&mut [0; 4096]).unwrap_err();
    let took = began.elapsed();
    assert_eq!(error.raw_os_error(), Some(EIO), "{error}");
    // A buffered read is repeated once by the kernel.
    assert!(
        took > TIMEOUT / 2 && took < 2 * TIMEOUT + Duration::from_secs(3),
        "after {took:?}"
    );
    drop(file);
    up();
    read_objects(&path, "cold", &[MIB, 64 << 10]);
    eventually("S3 is found to answer again", || silent("x") == Some(0.0));
    cluster.unmount("x");
}

/// The same as `partitions::an_origin_that_vanishes...`, where there are no namespaces: the server is stopped, and
/// every connection to it refused.
#[test]
fn what_is_cached_is_served_while_the_origin_is_stopped() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all_with(|_| &WITHOUT_ORIGIN);
    let path = cluster.mount_as("w", &[]);
    read_objects(&path, "o", &LENGTHS);
    cluster.unmount("w");
    let again: std::cell::Cell<Option<EmbeddedS3>> = std::cell::Cell::new(None);
    without_origin(
        &cluster,
        &LENGTHS,
        || cluster.place.server.stop(),
        || {
            let options = Options {
                listen: cluster.place.server.address(),
                ..Options::default()
            };
            let server = EmbeddedS3::start(options).unwrap();
            for (n, len) in [MIB, 64 << 10].into_iter().enumerate() {
                server.put("bucket", format!("cold-{n}"), pattern(len, n as u8 + 1));
            }
            again.set(Some(server));
        },
    );
}

/// The owner of three quarters has a full disk and little memory: what it cannot keep is read again, and nothing else.
#[test]
fn an_owner_without_room_costs_what_it_cannot_keep() {
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(2);
    let Some(_disk) = Tmpfs::mount(&cluster.place.dir("cache-b"), 20) else {
        return;
    };
    let lengths = [6 * MIB; 24];
    let total = put_objects(&cluster.place, "o", &lengths);
    cluster.serve("a", &[]);
    cluster.serve("b", &["--memory", "64MiB", "--group-weight", "3"]);
    cluster.until_members(&["a", "b"]);
    let mut costs = Vec::new();
    for _ in 0..2 {
        let before = cluster.place.server.counters().body_bytes;
        let path = cluster.mount_client(&["--memory", "64MiB"]);
        read_objects(&path, "o", &lengths);
        cluster.unmount("m");
        costs.push(cluster.place.server.counters().body_bytes - before);
    }
    assert!(
        costs[0] as f64 <= 1.01 * total as f64,
        "{costs:?} of {total}"
    );
    // Which stripes are whose is the hash's affair; what the other one owns is not read again.
    let status = cluster.json("serve:g/a");
    let kept = status["disks"][0]["cached_bytes"].as_u64().unwrap();
    for again in &costs[1..] {
        assert!(*again <= total - kept, "{costs:?} of {total}, {kept} at a");
    }
    assert!(
        costs[1..].iter().sum::<u64>() > 0,
        "b had room for all: {costs:?}"
    );
    cluster.until_members(&["a", "b"]);
}

/// A small file system of its own.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn mount(at: &std::path::Path, mib: usize) -> Option<Self> {
        let size = format!("size={mib}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(at)
            .output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: no right to mount a tmpfs: an owner without room was not tried");
            return None;
        }
        Some(Self(at.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// One client's line is slow, and then its process stands still: who else reads the same does not feel it, and it
/// gets its bytes in the end.
#[test]
fn a_slow_receiver_holds_up_nobody() {
    if !have_fuse() {
        return;
    }
    let Some(cluster) = Cluster::apart(2, &["x", "y"], 1) else {
        return;
    };
    if let Err(why) = cluster.spaces().slow_down("x", 16_000_000) {
        eprintln!(
            "SKIPPED: this kernel does not slow lines down ({why:#}): a slow receiver was not tried"
        );
        return;
    }
    let total = put_objects(&cluster.place, "o", &LENGTHS);
    cluster.serve_all();
    let slow = cluster.mount_as("x", &[]);
    let fast = cluster.mount_as("y", &[]);
    let slow_pid = cluster.place.pid_of(&slow).unwrap();
    let done = AtomicBool::new(false);
    let read_fast = |path: &std::path::Path, what: &str| {
        let began = Instant::now();
        read_objects(path, "o", &LENGTHS);
        let took = began.elapsed();
        assert!(
            !done.load(Ordering::Relaxed),
            "{what}: the slow one was not slower than {took:?}"
        );
        assert!(took < Duration::from_secs(6), "{what}: {took:?}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // 20 MiB at 2 MB/s.
            read_objects(&slow, "o", &LENGTHS);
            done.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(1_000));
        read_fast(&fast, "slow");
        send(slow_pid, Signal::STOP);
        cluster.unmount("y");
        let fast = cluster.mount_as("y", &[]);
        read_fast(&fast, "standing still");
        send(slow_pid, Signal::CONT);
    });
    let cost = cluster.place.server.counters().body_bytes;
    assert!(cost as f64 <= 1.01 * total as f64, "{cost} of {total}");
}

/// 64 readers on three clients read the same 8 MiB that nobody has, all at once, from an origin that takes its time.
#[test]
fn sixty_four_cold_readers_cost_one_fetch() {
    const READERS: usize = 64;
    const LEN: usize = 8 * MIB;
    if !have_fuse() {
        return;
    }
    let cluster = Cluster::new(3);
    put_objects(&cluster.place, "o", &[LEN]);
    cluster.serve_all();
    let paths = ["x", "y", "z"].map(|client| cluster.mount_as(client, &[]));
    let server = &cluster.place.server;
    server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(200));
    server.reset_counters();
    let wanted = pattern(LEN, 1);
    std::thread::scope(|scope| {
        for n in 0..READERS {
            let (path, wanted) = (paths[n % paths.len()].join("o-0"), &wanted);
            // Each begins elsewhere, so that all of it is asked for at once.
            scope.spawn(move || read_around(&path, wanted, n * MIB % LEN));
        }
    });
    let counters = server.counters();
    assert_eq!(counters.unique_bytes, LEN as u64);
    assert!(
        counters.body_bytes as f64 <= 1.01 * LEN as f64,
        "{counters:?}"
    );
    for client in ["x", "y", "z"] {
        assert_eq!(cluster.stat(client, "/reads/errors"), 0);
        cluster.unmount(client);
    }
}

/// Reads all of a file past the page cache, from `first` to its end and then the rest.
fn read_around(path: &std::path::Path, wanted: &[u8], first: usize) {
    const PIECE: usize = 256 << 10;
    const PAGE: usize = 4096;
    let file = File::options()
        .read(true)
        .custom_flags(0o40000)
        .open(path)
        .unwrap();
    let mut space = vec![0u8; PIECE + PAGE];
    let skip = space.as_ptr().align_offset(PAGE);
    let buffer = &mut space[skip..skip + PIECE];
    for step in 0..wanted.len() / PIECE {
        let at = (first + step * PIECE) % wanted.len();
        file.read_exact_at(buffer, at as u64).unwrap();
        assert!(
            buffer == &wanted[at..at + PIECE],
            "{} at {at}",
            path.display()
        );
    }
}
