//! Readers as training jobs have them: forked workers, mapped files, other users.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_tests::s3::{Class, Fault, Rule};
use rustix::fs::OFlags;
use rustix::process::Signal;

use super::support::{COMMAND_TIMEOUT, Ended, Place, Running, have_fuse, pattern};

/// Whether `program` runs here; says so when it does not.
fn have(program: &str) -> bool {
    let have = Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !have {
        eprintln!("SKIPPED: no {program} here: readers that need it did not run");
    }
    have
}

fn python(script: &str, args: &[&Path]) -> Ended {
    let mut command = Command::new("python3");
    command.args(["-c", script]).args(args);
    Running::start(&mut command).wait(2 * COMMAND_TIMEOUT)
}

/// Workers inherit the parent's open files and mappings, and open files of their own. Each reads
/// every file in an order of its own and compares with the source.
const LOADER: &str = r#"
import mmap, multiprocessing, os, random, sys
mounted, sources = sys.argv[1:]
names = sorted(os.listdir(sources))
assert sorted(os.listdir(mounted)) == names, os.listdir(mounted)
PIECE = 128 << 10

def wanted(name):
    with open(os.path.join(sources, name), "rb") as file:
        return file.read()

def read_all(fd, size):
    pieces = list(range(0, size, PIECE))
    random.shuffle(pieces)
    found = bytearray(size)
    for at in pieces:
        piece = os.pread(fd, PIECE, at)
        found[at:at + len(piece)] = piece
    return bytes(found)

def work(seed, fds, maps):
    random.seed(seed)
    for name in random.sample(names, len(names)):
        right = wanted(name)
        assert read_all(fds[name], len(right)) == right, f"{name}: inherited descriptor"
        assert maps[name][:] == right, f"{name}: inherited mapping"
        own = os.open(os.path.join(mounted, name), os.O_RDONLY)
        assert read_all(own, len(right)) == right, f"{name}: own descriptor"
        with mmap.mmap(own, 0, prot=mmap.PROT_READ) as mapped:
            for at in random.sample(range(len(right)), 50):
                assert mapped[at] == right[at], f"{name}: own mapping at {at}"
        os.close(own)

fds = {name: os.open(os.path.join(mounted, name), os.O_RDONLY) for name in names}
maps = {name: mmap.mmap(fd, 0, prot=mmap.PROT_READ) for name, fd in fds.items()}
forked = multiprocessing.get_context("fork")
workers = [forked.Process(target=work, args=(seed, fds, maps)) for seed in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
codes = [worker.exitcode for worker in workers]
print(len(names), "files", codes)
sys.exit(0 if codes == [0] * 4 else 1)
"#;

#[test]
fn forked_workers_read_the_right_bytes() {
    if !have_fuse() || !have("python3") {
        return;
    }
    let place = Place::new();
    let sources = place.dir("sources");
    for n in 0..12u8 {
        // Around units: a page, a chunk, and some that end anywhere.
        let len = [4096, (1 << 20) - 1, (3 << 20) + 77, 100_000][usize::from(n) % 4];
        let bytes = pattern(len, n);
        fs::write(sources.join(format!("shard-{n}")), &bytes).unwrap();
        place.server.put("bucket", format!("shard-{n}"), bytes);
    }
    let path = place.mount("m");
    let ended = python(LOADER, &[&path, &sources]).ok();
    assert_eq!(ended.text().trim(), "12 files [0, 0, 0, 0]");
    let counters = place.server.counters();
    let unique: u64 = fs::read_dir(&sources)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(
        counters.body_bytes, unique,
        "one fetch serves all the workers"
    );
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

const TOUCH: &str = r#"
import mmap, sys
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
print(mapped[len(mapped) // 2])
"#;

#[test]
fn a_mapped_page_that_does_not_come_is_a_sigbus_at_the_deadline() {
    if !have_fuse() || !have("python3") {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", pattern(8 << 20, 3));
    let path = place.dir("m");
    let timeout = Duration::from_secs(2);
    place
        .run(&["mount", "s3://bucket", "m", "--io-timeout", "2s"])
        .ok();
    place
        .server
        .faults()
        .add(Rule::always(Class::Get, Fault::Hang));
    let start = Instant::now();
    let ended = python(TOUCH, &[&path.join("x")]);
    let took = start.elapsed();
    assert_eq!(ended.text().trim(), "mapped", "{}", ended.stderr);
    assert_eq!(ended.signal, Some(Signal::BUS.as_raw()), "{ended:?}");
    // The kernel tries twice: its read-ahead, then the page itself.
    assert!(
        (timeout..3 * timeout + Duration::from_secs(5)).contains(&took),
        "it took {took:?}"
    );
    place.server.faults().clear();
    let wanted = pattern(8 << 20, 3)[4 << 20];
    let ended = python(TOUCH, &[&path.join("x")]).ok();
    assert_eq!(ended.text().lines().last(), Some(&*wanted.to_string()));
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn many_readers_of_a_hung_origin_all_end_at_their_deadline() {
    if !have_fuse() {
        return;
    }
    const READERS: usize = 600;
    let place = Place::new();
    for n in 0..READERS {
        place.server.put("bucket", format!("{n}"), pattern(4096, 5));
    }
    let path = place.dir("m");
    let timeout = Duration::from_secs(3);
    let flags = [
        "--io-timeout",
        "3s",
        "--attr-ttl",
        "1h",
        "--entry-ttl",
        "1h",
    ];
    place
        .run(&[&["mount", "s3://bucket", "m"], &flags[..]].concat())
        .ok();
    assert_eq!(fs::read_dir(&path).unwrap().count(), READERS);
    place
        .server
        .faults()
        .add(Rule::always(Class::Get, Fault::Hang));
    // The kernel counts direct reads as background requests: with too few of those allowed, the rest
    // would wait in the kernel and start their deadlines late.
    let mut direct = fs::File::options();
    direct
        .read(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed());
    let files: Vec<_> = (0..READERS)
        .map(|n| direct.open(path.join(n.to_string())).unwrap())
        .collect();
    let start = Instant::now();
    let readers: Vec<_> = files
        .into_iter()
        .map(|mut file| {
            let read = move || (file.read(&mut [0; 4096]).map(drop), start.elapsed());
            let thread = std::thread::Builder::new().stack_size(64 << 10);
            thread.spawn(read).unwrap()
        })
        .collect();
    let ends: Vec<_> = readers.into_iter().map(|r| r.join().unwrap()).collect();
    assert!(ends.iter().all(|(result, _)| result.is_err()));
    let last = ends.iter().map(|(_, took)| *took).max().unwrap();
    eprintln!("{READERS} readers ended within {last:?}");
    assert!(
        (timeout..timeout + Duration::from_secs(2)).contains(&last),
        "the last of {READERS} readers took {last:?}"
    );
    place.server.faults().clear();
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

/// `cat` as another user.
fn cat_as(id: u32, path: &Path) -> Ended {
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={id}"), format!("--regid={id}")])
        .args(["--clear-groups", "cat"])
        .arg(path)
        .env("LC_ALL", "C");
    Running::start(&mut command).wait(COMMAND_TIMEOUT)
}

#[test]
fn other_users_get_what_the_flags_allow() {
    if !have_fuse() || !have("setpriv") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: reading as another user needs root");
        return;
    }
    const NOBODY: u32 = 65_534;
    const SOMEBODY: u32 = 65_533;
    let place = Place::new();
    let bytes = pattern(300_000, 4);
    place.server.put("bucket", "dir/x", bytes.clone());
    let path = place.dir("m");
    // The place's own directory is closed to others.
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path.parent().unwrap(), open).unwrap();
    let file = path.join("dir/x");
    let mounted = |flags: &[&str]| {
        place
            .run(&[&["mount", "s3://bucket", "m"], flags].concat())
            .ok();
    };
    let denied = |id| cat_as(id, &file).failed(&["Permission denied"]);

    mounted(&[]);
    denied(NOBODY);
    place.run(&["umount", "m"]).ok();

    mounted(&["--allow-other"]);
    assert!(cat_as(NOBODY, &file).ok().stdout == bytes);
    place.run(&["umount", "m"]).ok();

    let owner = [
        "--allow-other",
        "--uid",
        "65534",
        "--gid",
        "65534",
        "--file-mode",
        "0400",
    ];
    mounted(&owner);
    assert!(cat_as(NOBODY, &file).ok().stdout == bytes);
    denied(SOMEBODY);
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

/// A store that is far gives little for each GET: only many at a time make a scan quick.
#[test]
fn a_scan_of_a_far_store_has_many_gets_under_way() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put_synthetic("bucket", "x", 1 << 30, 7);
    let faults = place.server.faults();
    faults.set_delay(Class::Get, Duration::from_millis(50));
    faults.set_bandwidth(32 << 20);
    let path = place.dir("m");
    let point = path.to_str().unwrap();
    place
        .run(&["mount", "s3://bucket", point, "--memory", "2GiB"])
        .ok();
    let mut file = fs::File::open(path.join("x")).unwrap();
    let mut piece = vec![0; 1 << 20];
    // 32 MiB ahead, as of near stores, are four, and the kernel reads ahead by two.
    let most = || place.server.counters().bodies_open_max;
    while most() < 12 && file.read(&mut piece).unwrap() > 0 {}
    assert!(most() >= 12, "at most {} GETs were under way", most());
    drop(file);
    place.run(&["umount", point]).ok();
    place.assert_clean(&path);
}
