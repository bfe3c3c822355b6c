//! The mount as programs see it, through the kernel, over a stand-in for the engine.
//!
//! Each test has its own mount; a guard takes it down whatever happens, and a watchdog ends the
//! process when a test hangs.

mod common;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use common::{Engine, Store};
use forebay_fuse::{FuseReply, MountHandle, MountOptions, mount};

/// A test that takes longer has hung.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

fn have_fuse() -> bool {
    let have = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_ok();
    if !have {
        eprintln!("SKIPPED: no /dev/fuse here (or no right to open it): kernel tests did not run");
    }
    have
}

/// A mount for one test, taken down at its end.
struct Mount {
    #[allow(dead_code)]
    store: Arc<Store>,
    handle: Option<MountHandle<FuseReply>>,
    engine: Option<Engine<FuseReply>>,
    directory: tempfile::TempDir,
    _watchdog: Sender<()>,
}

impl Mount {
    fn new(store: Arc<Store>, prefix: &str, options: MountOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::start(store.clone());
        let handle = mount(
            engine.client.clone(),
            engine.bucket.clone(),
            prefix,
            directory.path(),
            &options,
        )
        .unwrap();
        let watchdog = watchdog(handle.path().to_owned());
        Self {
            store,
            handle: Some(handle),
            engine: Some(engine),
            directory,
            _watchdog: watchdog,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    fn handle(&self) -> &MountHandle<FuseReply> {
        self.handle.as_ref().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.handle().unmount(true);
        let ended = self.handle().wait_timeout(Duration::from_secs(10));
        drop(self.handle.take());
        // After a failed test something may still wait for an answer: the engine goes last.
        drop(self.engine.take());
        if !std::thread::panicking() {
            ended
                .expect("the session ends when it is unmounted")
                .unwrap();
        }
    }
}

/// Ends the process when the test hangs: a hung mount must not outlive it.
fn watchdog(path: PathBuf) -> Sender<()> {
    let (sender, receiver) = channel::<()>();
    std::thread::spawn(move || {
        if receiver.recv_timeout(TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test hangs on {}: giving up", path.display());
            let _ = Command::new("fusermount3").arg("-uz").arg(&path).status();
            std::process::abort();
        }
    });
    sender
}

/// Options under which nothing is remembered, so that each step is seen by itself.
#[allow(dead_code)]
fn no_ttl() -> MountOptions {
    MountOptions {
        attr_ttl: Duration::ZERO,
        entry_ttl: Duration::ZERO,
        negative_ttl: Duration::ZERO,
        ..MountOptions::default()
    }
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

#[allow(dead_code)]
fn shell(directory: &Path, script: &str) -> String {
    let output = Command::new("timeout")
        .args(["60", "sh", "-ec", script])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{script}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().into_string().unwrap());
    }
    names.sort();
    Ok(names)
}

#[test]
fn a_tree_is_listed_and_read() {
    if !have_fuse() {
        return;
    }
    let store = Store::new();
    store.put("top.txt", "hello");
    store.put("d/e/deep", pattern(3_000_000, 1));
    store.put("d/file", "");
    let mount = Mount::new(store, "", MountOptions::default());
    assert_eq!(names(mount.root()).unwrap(), ["d", "top.txt"]);
    assert_eq!(names(&mount.path("d")).unwrap(), ["e", "file"]);
    assert_eq!(fs::read(mount.path("top.txt")).unwrap(), b"hello");
    assert_eq!(fs::read(mount.path("d/file")).unwrap(), b"");
    assert!(fs::read(mount.path("d/e/deep")).unwrap() == pattern(3_000_000, 1));
    let stat = fs::metadata(mount.path("d/e/deep")).unwrap();
    assert_eq!(
        (stat.len(), stat.blocks(), stat.nlink()),
        (3_000_000, 5860, 1)
    );
    assert_eq!(stat.mode(), 0o100_644);
    assert_eq!(fs::metadata(mount.path("d")).unwrap().mode(), 0o040_755);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.contains(mount.root().to_str().unwrap()))
        .unwrap();
    assert!(line.contains(" - fuse.forebay s3://bucket/ ro,"), "{line}");
}
