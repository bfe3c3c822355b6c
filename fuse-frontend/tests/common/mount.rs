//! A mount for one test: taken down whatever happens, and never hung for long.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use forebay_engine::client::Client;
use forebay_engine::identity::Bucket;
use forebay_fuse::{FuseReply, MountHandle, MountOptions, mount};

use super::core::RealEngine;
use super::{Engine, Store};

/// A test that takes longer has hung.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Whether mounts are possible here; says so when they are not.
pub fn have_fuse() -> bool {
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

/// What serves a mount.
pub trait Serves {
    fn client(&self) -> (Client<FuseReply>, Arc<Bucket>);
}

impl Serves for Engine<FuseReply> {
    fn client(&self) -> (Client<FuseReply>, Arc<Bucket>) {
        (self.client.clone(), self.bucket.clone())
    }
}

impl Serves for RealEngine<FuseReply> {
    fn client(&self) -> (Client<FuseReply>, Arc<Bucket>) {
        (self.client.clone(), self.bucket.clone())
    }
}

/// A mount for one test, taken down at its end.
pub struct Mount<E = Engine<FuseReply>> {
    pub store: Arc<Store>,
    handle: Option<MountHandle<FuseReply>>,
    engine: Option<E>,
    directory: tempfile::TempDir,
    _watchdog: Sender<()>,
}

impl Mount {
    /// Over the stand-in.
    pub fn new(store: Arc<Store>, prefix: &str, options: MountOptions) -> Self {
        Self::over(Engine::start(store.clone()), store, prefix, options)
    }
}

impl<E: Serves> Mount<E> {
    pub fn over(engine: E, store: Arc<Store>, prefix: &str, options: MountOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (client, bucket) = engine.client();
        let handle = mount(client, bucket, prefix, directory.path(), &options).unwrap();
        let watchdog = watchdog(handle.path().to_owned());
        Self {
            store,
            handle: Some(handle),
            engine: Some(engine),
            directory,
            _watchdog: watchdog,
        }
    }

    pub fn engine(&self) -> &E {
        self.engine.as_ref().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn handle(&self) -> &MountHandle<FuseReply> {
        self.handle.as_ref().unwrap()
    }
}

impl<E> Drop for Mount<E> {
    fn drop(&mut self) {
        let handle = self.handle.take().unwrap();
        let _ = handle.unmount(true);
        let ended = handle.wait_timeout(Duration::from_secs(10));
        drop(handle);
        let ended_in_time = ended.is_some();
        match ended {
            Some(result) => {
                drop(self.engine.take());
                assert!(result.is_ok() || std::thread::panicking(), "{result:?}");
            }
            // A failed test's threads may still read: whoever answers them must live on.
            None => std::mem::forget(self.engine.take()),
        }
        if !std::thread::panicking() {
            assert!(ended_in_time, "the session ends when it is unmounted");
        }
    }
}

/// Ends the process when the test hangs: a hung mount must not outlive it.
fn watchdog(path: PathBuf) -> Sender<()> {
    let minor = connection(&path);
    let (sender, receiver) = channel::<()>();
    std::thread::spawn(move || {
        if receiver.recv_timeout(TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test hangs on {}: giving up", path.display());
            abort_connection(&path, &minor);
            std::process::abort();
        }
    });
    sender
}

/// The connection's name in fusectl: the minor number of the mount's device.
fn connection(path: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let line = mounts
        .lines()
        .find(|line| line.contains(path.to_str().unwrap_or("?")));
    let number = line
        .and_then(|line| line.split(' ').nth(2))
        .unwrap_or_default();
    number.rsplit(':').next().unwrap_or_default().to_owned()
}

/// A thread of this process that waits for this process's answer cannot even be killed: the
/// connection is aborted first (by root; others do what they can).
fn abort_connection(path: &Path, minor: &str) {
    let _ = Command::new("fusermount3").arg("-uz").arg(path).status();
    let script = "d=$(mktemp -d) && mount -t fusectl none $d && echo 1 > $d/$0/abort; umount $d";
    let _ = Command::new("sh").args(["-c", script, minor]).status();
}

/// Bytes that differ by offset and seed.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
