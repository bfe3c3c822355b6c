//! The life of a mount, its orderly and its sudden ends.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_cli::mounts;
use forebay_tests::s3::{Class, Fault, Rule};
use rustix::process::Signal;

use super::support::{
    COMMAND_TIMEOUT, Place, Running, eventually, have_fuse, is_running, pattern, send, stop,
};

/// An orderly end takes less than this, whatever users do.
const END_TIMEOUT: Duration = Duration::from_secs(15);

#[test]
fn mounted_read_and_unmounted() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "a/b", "bytes");
    let path = place.mount("with blank");
    assert_eq!(fs::read(path.join("a/b")).unwrap(), b"bytes");
    let pid = place.pid_of(&path).unwrap();
    place.run(&["umount", "with blank"]).ok();
    assert!(!is_running(pid), "umount waits for the daemon");
    place.assert_clean(&path);
    assert!(place.log().contains("is mounted at"), "{}", place.log());
}

/// The value of `name` in the environment that process `pid` was started with.
fn variable_of(pid: u32, name: &str) -> Option<String> {
    let all = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let all = String::from_utf8_lossy(&all).into_owned();
    all.split('\0').find_map(|entry| {
        entry
            .strip_prefix(name)?
            .strip_prefix('=')
            .map(str::to_owned)
    })
}

#[test]
fn every_mount_has_the_allocators_threshold() {
    if !have_fuse() {
        return;
    }
    const NAME: &str = "MALLOC_MMAP_THRESHOLD_";
    let place = Place::new();
    let path = place.mount("m");
    let pid = place.pid_of(&path).unwrap();
    assert_eq!(variable_of(pid, NAME).as_deref(), Some("65536"));
    place.run(&["umount", "m"]).ok();

    let mut command = place.command(&["mount", "s3://bucket", "m"]);
    Running::start(command.env(NAME, "131072"))
        .wait(COMMAND_TIMEOUT)
        .ok();
    let pid = place.pid_of(&path).unwrap();
    assert_eq!(
        variable_of(pid, NAME).as_deref(),
        Some("131072"),
        "the user's own"
    );
    place.run(&["umount", "m"]).ok();

    let (running, path) = place.mount_in_foreground("f");
    let pid = place.pid_of(&path).unwrap();
    assert_eq!(variable_of(pid, NAME).as_deref(), Some("65536"));
    running.signal(Signal::TERM);
    running.wait(END_TIMEOUT).ok();
    place.assert_clean(&path);
}

#[test]
fn directories_may_follow_a_double_dash() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.dir("-m");
    place.run(&["mount", "--", "s3://bucket", "-m"]).ok();
    assert!(place.pid_of(&path).is_some());
    place.run(&["umount", "--", "-m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn a_prefix_is_the_root_and_flags_shape_the_files() {
    if !have_fuse() {
        return;
    }
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    place.server.put("bucket", "deep/down/file", "bytes");
    let path = place.dir("m");
    let args = [
        "mount",
        "s3://bucket/deep",
        "m",
        "--uid",
        "12",
        "--file-mode",
        "0440",
        "-o",
        "ro,gid=13",
    ];
    place.run(&args).ok();
    let meta = fs::metadata(path.join("down/file")).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (12, 13, 0o440)
    );
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn umount_names_who_uses_the_mount_and_lazy_leaves_them_to_it() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = pattern(1 << 20, 5);
    place.server.put("bucket", "x", bytes.clone());
    let path = place.mount("m");
    let mut file = File::open(path.join("x")).unwrap();
    let me = std::process::id().to_string();
    place.run(&["umount", "m"]).failed(&["busy", &me, "--lazy"]);
    assert!(
        fs::metadata(path.join("x")).is_ok(),
        "a refused umount changes nothing"
    );
    let pid = place.pid_of(&path).unwrap();
    place.run(&["umount", "--lazy", "m"]).ok();
    assert_eq!(mounts::mount_at(&path).unwrap(), None);

    // The place is free for the next mount while the old file still works.
    place.mount("m");
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == bytes);
    drop(file);
    eventually("the daemon ends with its last user", || !is_running(pid));
    assert!(
        place.pid_of(&path).is_some_and(|new| new != pid),
        "the new daemon keeps its socket"
    );
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn umount_cleans_up_after_a_killed_daemon() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", "bytes");
    let path = place.mount("m");
    let _held = File::open(path.join("x")).unwrap();
    place.kill(&path);
    eventually("the mount is dead", || {
        matches!(mounts::place_state(&path), Ok(mounts::PlaceState::Dead(_)))
    });
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
    // Only its socket is left when someone else took the mount away.
    place.mount("m");
    place.kill(&path);
    mounts::unmount(&path, mounts::Detach::Lazily).unwrap();
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn a_second_mount_cleans_up_after_a_killed_daemon() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", "bytes");
    let path = place.mount("m");
    let _held = File::open(path.join("x")).unwrap();
    place.kill(&path);
    let ended = place.run(&["mount", "s3://bucket", "m"]).ok();
    assert!(ended.stderr.contains("cleaned up"), "{}", ended.stderr);
    assert_eq!(fs::read(path.join("x")).unwrap(), b"bytes");
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn sigint_ends_a_foreground_mount() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", "bytes");
    let (running, path) = place.mount_in_foreground("m");
    assert_eq!(fs::read(path.join("x")).unwrap(), b"bytes");
    running.signal(Signal::INT);
    running.wait(END_TIMEOUT).ok();
    place.assert_clean(&path);
}

/// Reads random pieces until the mount is gone; counts what it got and checks every byte.
fn reader(
    path: &Path,
    bytes: Arc<Vec<u8>>,
    reads: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<()> {
    let file = File::open(path).unwrap();
    std::thread::spawn(move || {
        let mut buf = vec![0; 128 << 10];
        let mut at = 0usize;
        while !stop.load(Ordering::Relaxed) {
            at = (at * 31 + 1_234_567) % bytes.len();
            // After the end every read is an error; before it every byte is right.
            let Ok(n) = file.read_at(&mut buf, at as u64) else {
                return;
            };
            assert!(buf[..n] == bytes[at..at + n], "wrong bytes at {at}");
            reads.fetch_add(1, Ordering::Relaxed);
        }
    })
}

#[test]
fn sigterm_under_load_ends_in_order_and_in_time() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let bytes = Arc::new(pattern(48 << 20, 6));
    place.server.put("bucket", "x", bytes.to_vec());
    place
        .server
        .faults()
        .set_delay(Class::Get, Duration::from_millis(20));
    let (running, path) = place.mount_in_foreground("m");
    let (reads, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let readers: Vec<_> = (0..4)
        .map(|_| reader(&path.join("x"), bytes.clone(), reads.clone(), stop.clone()))
        .collect();
    eventually("the readers are at work", || {
        reads.load(Ordering::Relaxed) > 50
    });
    running.signal(Signal::TERM);
    running.wait(END_TIMEOUT).ok();
    stop.store(true, Ordering::Relaxed);
    readers
        .into_iter()
        .for_each(|reader| reader.join().expect("a reader saw wrong bytes"));
    place.assert_clean(&path);
}

#[test]
fn sigterm_ends_a_mount_whose_origin_hangs() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", pattern(1 << 20, 8));
    let path = place.mount("m");
    place
        .server
        .faults()
        .add(Rule::always(Class::Get, Fault::Hang));
    let mut file = File::open(path.join("x")).unwrap();
    let waiting = std::thread::spawn(move || {
        file.seek(SeekFrom::Start(4096)).unwrap();
        file.read(&mut [0; 4096])
    });
    eventually("the read hangs at the origin", || {
        place.server.counters().requests(Class::Get) > 0
    });
    let pid = place.pid_of(&path).unwrap();
    let start = Instant::now();
    send(pid, Signal::TERM);
    eventually("the daemon ends", || !is_running(pid));
    assert!(
        start.elapsed() < END_TIMEOUT,
        "it took {:?}",
        start.elapsed()
    );
    assert!(waiting.join().unwrap().is_err(), "the reader got an error");
    place.assert_clean(&path);
}

#[test]
fn a_signal_ends_a_mount_that_still_waits_for_its_origin() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.dir("m");
    place
        .server
        .faults()
        .add(Rule::always(Class::List, Fault::Hang));
    for signal in [Signal::INT, Signal::TERM] {
        let asked = place.server.counters().requests(Class::List);
        let args = ["mount", "--foreground", "s3://bucket", "m"];
        let running = Running::start(&mut place.command(&args));
        eventually("the origin is asked", || {
            place.server.counters().requests(Class::List) > asked
        });
        running.signal(signal);
        running
            .wait(Duration::from_secs(3))
            .failed(&["before the start was over"]);
        place.assert_clean(&path);
    }
}

/// Runs in the place of `command`, with SIGHUP ignored as nohup(1) does.
fn without_hangups(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", r#"trap '' HUP; exec "$0" "$@""#])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn a_mount_outlives_the_terminal_that_it_shall_outlive() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.dir("m");
    for ignored in [true, false] {
        let command = place.command(&["mount", "--foreground", "s3://bucket", "m"]);
        let running = match ignored {
            true => Running::start(&mut without_hangups(&command)),
            false => Running::start(&mut { command }),
        };
        eventually("the mount answers", || place.pid_of(&path).is_some());
        running.signal(Signal::HUP);
        if ignored {
            std::thread::sleep(Duration::from_millis(500));
            assert!(place.pid_of(&path).is_some(), "SIGHUP is ignored");
            running.signal(Signal::TERM);
        }
        running.wait(END_TIMEOUT).ok();
        place.assert_clean(&path);
    }
}

/// Ends a process even when the test fails.
struct Ends(u32);

impl Drop for Ends {
    fn drop(&mut self) {
        send(self.0, Signal::KILL);
    }
}

#[test]
fn a_stopped_daemon_is_named_and_nobody_waits_for_it() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", "bytes");
    let path = place.mount("m");
    let pid = place.pid_of(&path).unwrap();
    let _held = File::open(path.join("x")).unwrap();
    let daemon = Ends(pid);
    stop(pid);
    let kill = format!("kill -9 {pid}");
    let advice = ["does not answer", "umount --lazy", &kill];
    place.run(&["mount", "s3://bucket", "m"]).failed(&advice);
    place.run(&["umount", "m"]).failed(&advice);
    let listed = place.run(&["status"]).failed(&["does not work"]);
    assert!(listed.text().contains("hangs"), "{}", listed.text());
    let ended = place.run(&["umount", "--lazy", "m"]).ok();
    assert!(ended.stderr.contains(&kill), "{}", ended.stderr);
    assert_eq!(mounts::mount_at(&path).unwrap(), None);
    drop(daemon);
    eventually("the daemon is gone", || !is_running(pid));
}

#[test]
fn a_mount_without_its_socket_is_not_called_dead() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.mount("m");
    let pid = place.pid_of(&path).unwrap();
    let _daemon = Ends(pid);
    fs::remove_dir_all(place.runtime_dir()).unwrap();
    for command in ["status", "stats"] {
        let ended = place
            .run(&[command, "m"])
            .failed(&["socket is gone", "FOREBAY_RUNTIME_DIR"]);
        assert!(!ended.stderr.contains("killed"), "{}", ended.stderr);
    }
    let listed = place.run(&["status"]).ok();
    assert!(listed.text().contains("no socket"), "{}", listed.text());
    place.run(&["umount", "m"]).ok();
    eventually("the daemon ends", || !is_running(pid));
    place.assert_clean(&path);
}

#[test]
fn a_read_fails_at_its_deadline() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    place.server.put("bucket", "x", pattern(1 << 20, 8));
    let path = place.dir("m");
    place
        .run(&["mount", "s3://bucket", "m", "--io-timeout", "1s"])
        .ok();
    place
        .server
        .faults()
        .add(Rule::always(Class::Get, Fault::Hang));
    let start = Instant::now();
    let error = fs::read(path.join("x")).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    assert!(
        start.elapsed() < COMMAND_TIMEOUT / 2,
        "it took {:?}",
        start.elapsed()
    );
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}

#[test]
fn two_mounts_race_for_one_place() {
    if !have_fuse() {
        return;
    }
    let place = Place::new();
    let path = place.dir("m");
    let args = ["mount", "s3://bucket", "m"];
    let racers: Vec<_> = (0..3)
        .map(|_| Running::start(&mut place.command(&args)))
        .collect();
    let codes: Vec<_> = racers
        .into_iter()
        .map(|racer| racer.wait(COMMAND_TIMEOUT).code)
        .collect();
    assert_eq!(
        codes.iter().filter(|code| **code == Some(0)).count(),
        1,
        "{codes:?}"
    );
    assert!(place.pid_of(&path).is_some());
    place.run(&["umount", "m"]).ok();
    place.assert_clean(&path);
}
