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
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

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
