//! The FUSE front end without a kernel: what a READ and a LOOKUP cost between the request and its answer.

use std::ffi::OsStr;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_fuse::{FuseReply, MountOptions, Namespace, ReadReply};
use fuser::Errno;

use super::Work;
use super::core::{self, KEY, Turned};
use crate::disk::memory::MemoryDevice;
use crate::layers::engine::SlotReply;
use crate::load::Rng;

const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 32 * MIB;
const BLOCK_BYTES: u64 = 4 << 10;
const DEPTH: u64 = 32;
/// The inode of the mount's root.
const ROOT: u64 = 1;
const TURNS_MAX: usize = 10_000;

impl ReadReply for SlotReply {
    fn errno(self, _: Errno) {
        self.fail();
    }

    fn bind(&mut self, _: &Arc<forebay_fuse::namespace::FileVersion>) {}
}

impl From<FuseReply> for SlotReply {
    fn from(_: FuseReply) -> Self {
        unreachable!("nothing is mounted here")
    }
}

/// An open file of a namespace, and the core below it.
struct Mounted {
    turned: Turned<MemoryDevice>,
    namespace: Arc<Namespace<SlotReply>>,
    handle: u64,
    rng: Rng,
}

impl Mounted {
    fn new() -> Result<Self> {
        let mut turned = core::in_memory(DATA_BYTES)?;
        let options = MountOptions {
            attr_ttl: Duration::from_secs(3600),
            entry_ttl: Duration::from_secs(3600),
            ..MountOptions::default()
        };
        let namespace = Namespace::new(turned.client.clone(), core::bucket(), "", &options);
        let inode = Arc::new(Mutex::new(None));
        let told = inode.clone();
        namespace.lookup(ROOT, OsStr::new(KEY), move |found| {
            *told.lock().expect("nobody panics with it") = found.ok().map(|entry| entry.attr.ino.0);
        });
        let inode = wait(&mut turned, &inode).context("the name is not found")?;
        let handle = Arc::new(Mutex::new(None));
        let told = handle.clone();
        namespace.open(inode, move |opened| {
            *told.lock().expect("nobody panics with it") = opened.ok();
        });
        let handle = wait(&mut turned, &handle).context("the file is not opened")?;
        let mut mounted = Self {
            turned,
            namespace,
            handle,
            rng: Rng(1),
        };
        for place in 0..DATA_BYTES / MIB {
            mounted.read(place * MIB, MIB as u32);
            mounted.turned.answer(1)?;
        }
        Ok(mounted)
    }

    fn read(&mut self, offset: u64, len_bytes: u32) {
        let reply = self.turned.reply();
        self.namespace.read(self.handle, offset, len_bytes, reply);
    }
}

fn wait<T: Copy>(turned: &mut Turned<MemoryDevice>, answer: &Mutex<Option<T>>) -> Option<T> {
    (0..TURNS_MAX).find_map(|_| {
        turned.turn();
        *answer.lock().expect("nobody panics with it")
    })
}

struct MountReads(Mounted);

impl Work for MountReads {
    fn operate(&mut self, count: u64) -> Result<()> {
        let before = self.0.turned.asked.load(Relaxed);
        let mut left = count;
        while left > 0 {
            let depth = left.min(DEPTH);
            for _ in 0..depth {
                let place = self.0.rng.next() % (DATA_BYTES / BLOCK_BYTES);
                self.0.read(place * BLOCK_BYTES, BLOCK_BYTES as u32);
            }
            self.0.turned.answer(depth)?;
            left -= depth;
        }
        let asked = self.0.turned.asked.load(Relaxed) - before;
        ensure!(
            asked == 0,
            "{asked} reads missed: this would count something else"
        );
        Ok(())
    }
}

struct Lookups {
    mounted: Mounted,
    found: Arc<AtomicU64>,
}

impl Work for Lookups {
    fn operate(&mut self, count: u64) -> Result<()> {
        let before = self.found.load(Relaxed);
        for _ in 0..count {
            let found = self.found.clone();
            let answer = move |entry: Result<_, _>| {
                found.fetch_add(u64::from(entry.is_ok()), Relaxed);
            };
            self.mounted.namespace.lookup(ROOT, OsStr::new(KEY), answer);
        }
        let found = self.found.load(Relaxed) - before;
        ensure!(
            found == count,
            "{found} of {count} names were answered at once"
        );
        Ok(())
    }
}

pub(super) fn read_4k(_: &FilePath) -> Result<Box<dyn Work>> {
    Ok(Box::new(MountReads(Mounted::new()?)))
}

pub(super) fn lookup(_: &FilePath) -> Result<Box<dyn Work>> {
    Ok(Box::new(Lookups {
        mounted: Mounted::new()?,
        found: Arc::default(),
    }))
}
