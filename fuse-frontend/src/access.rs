//! Who opens, reads and closes what, for a recorder: off until one asks, and of no contents.
//!
//! Whoever answers a reader leaves an [`Access`] in its thread's own queue and goes on: a full queue drops it and counts it. While
//! nobody records, a request looks at one flag.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use parking_lot::RwLock;

use crate::namespace::FileVersion;

/// Threads that answer readers (FUSE workers and cores) share no queue up to so many of them.
const QUEUES: usize = 16;
/// Accesses that wait in one queue: 20 ms of 400,000 a second.
const QUEUE_MAX: usize = 8_192;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A handle was opened.
    Open,
    /// Bytes were asked for.
    Read {
        /// From here.
        offset: u64,
        /// So many, which may reach beyond the file's end: the kernel asks for whole pages.
        len_bytes: u32,
        /// Whether they came.
        done: bool,
    },
    /// The handle was closed.
    Close,
}

/// One access.
#[derive(Clone, Debug)]
pub struct Access {
    /// When the kernel's request came, from the start of the recording.
    pub at_ns: u64,
    /// From then to when its answer began to be given: later the asker may have gone on.
    pub took_ns: u64,
    /// The thread that asked, as the kernel numbers it; 0 for the kernel itself.
    pub task: u32,
    /// The handle: no two of a mount have the same number within 2^32 opens.
    pub handle: u64,
    /// What it is open on.
    pub file: Arc<FileVersion>,
    /// What was done.
    pub deed: Deed,
}

/// A recording under way.
#[derive(Debug)]
pub struct Recording {
    began: Instant,
    queues: Vec<ArrayQueue<Access>>,
    dropped: AtomicU64,
}

impl Recording {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            queues: (0..QUEUES).map(|_| ArrayQueue::new(QUEUE_MAX)).collect(),
            dropped: AtomicU64::new(0),
        }
    }

    fn push(&self, access: Access) {
        if self.queues[own_queue()].push(access).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes what waits, up to as much as the queues hold; of one thread in its order, of several in none.
    pub fn drain(&self, mut take: impl FnMut(Access)) {
        for queue in &self.queues {
            for _ in 0..QUEUE_MAX {
                let Some(access) = queue.pop() else { break };
                take(access);
            }
        }
    }

    /// Accesses that were dropped up to now.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The number of this thread's queue.
fn own_queue() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.with(|own| {
        own.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % QUEUES;
            own.set(Some(number));
            number
        })
    })
}

/// A mount's accesses, while somebody records them.
#[derive(Debug, Default)]
pub struct AccessLog {
    on: AtomicBool,
    recording: RwLock<Option<Arc<Recording>>>,
}

impl AccessLog {
    /// Begins a recording; none when there is one. It ends when what this gives is dropped.
    pub fn start(self: &Arc<Self>) -> Option<Recorder> {
        let mut place = self.recording.write();
        if place.is_some() {
            return None;
        }
        let recording = Arc::new(Recording::new());
        *place = Some(recording.clone());
        self.on.store(true, Ordering::Relaxed);
        Some(Recorder {
            log: self.clone(),
            recording,
        })
    }

    /// Of a request that just came; none while nobody records.
    pub(crate) fn watch(&self, task: u32, handle: u64) -> Option<Box<Watch>> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        // Held for an instant, when a recording begins or ends: then the request is not recorded.
        let recording = self.recording.try_read()?.clone()?;
        Some(Box::new(Watch {
            came: Instant::now(),
            took_ns: 0,
            recording,
            task,
            handle,
            offset: 0,
            len_bytes: 0,
        }))
    }
}

/// A recording's owner: dropping it ends the recording.
#[derive(Debug)]
pub struct Recorder {
    log: Arc<AccessLog>,
    recording: Arc<Recording>,
}

impl Recorder {
    /// What is recorded.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.log.on.store(false, Ordering::Relaxed);
        *self.log.recording.write() = None;
    }
}

/// A request that is recorded when it is answered.
#[derive(Debug)]
pub(crate) struct Watch {
    came: Instant,
    took_ns: u64,
    recording: Arc<Recording>,
    task: u32,
    handle: u64,
    offset: u64,
    len_bytes: u32,
}

impl Watch {
    /// It asks for this.
    pub(crate) fn range(mut self: Box<Self>, offset: u64, len_bytes: u32) -> Box<Self> {
        (self.offset, self.len_bytes) = (offset, len_bytes);
        self
    }

    /// Its bytes came, or did not.
    pub(crate) fn read(self, file: Arc<FileVersion>, done: bool) {
        let deed = Deed::Read {
            offset: self.offset,
            len_bytes: self.len_bytes,
            done,
        };
        self.done(file, deed);
    }

    /// The handle is known only now.
    pub(crate) fn of(mut self: Box<Self>, handle: u64) -> Box<Self> {
        self.handle = handle;
        self
    }

    /// It is about to be answered.
    pub(crate) fn answering(&mut self) {
        self.took_ns = self.came.elapsed().as_nanos() as u64;
    }

    /// It was answered.
    pub(crate) fn done(self, file: Arc<FileVersion>, deed: Deed) {
        let since = self.came.saturating_duration_since(self.recording.began);
        let access = Access {
            at_ns: since.as_nanos() as u64,
            took_ns: self.took_ns,
            task: self.task,
            handle: self.handle,
            file,
            deed,
        };
        self.recording.push(access);
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::identity::{Bucket, ObjectVersion, Validator};

    use super::*;

    fn file() -> Arc<FileVersion> {
        let bucket = Arc::new(Bucket {
            endpoint: "e".into(),
            name: "b".into(),
        });
        let etag = Validator::ETag("t".into());
        FileVersion::new(ObjectVersion::new(bucket, "key".into(), etag, 7))
    }

    #[test]
    fn only_while_somebody_records() {
        let log = Arc::new(AccessLog::default());
        assert!(log.watch(1, 2).is_none());
        let recorder = log.start().expect("nobody else records");
        assert!(log.start().is_none(), "one at a time");
        let late = log.watch(1, 2).expect("it is on");
        log.watch(3, 0)
            .expect("it is on")
            .of(4)
            .done(file(), Deed::Open);
        let mut seen = Vec::new();
        recorder.recording().drain(|access| seen.push(access));
        let seen: Vec<_> = seen.iter().map(|one| (one.task, one.handle)).collect();
        assert_eq!(seen, [(3, 4)]);
        drop(recorder);
        assert!(log.watch(1, 2).is_none());
        let next = log.start().expect("the one before has ended");
        // Of the recording before.
        late.done(file(), Deed::Close);
        next.recording().drain(|access| panic!("{access:?}"));
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let log = Arc::new(AccessLog::default());
        let recorder = log.start().expect("nobody else records");
        for _ in 0..QUEUE_MAX + 3 {
            let watch = log.watch(1, 2).expect("it is on");
            watch.done(file(), Deed::Close);
        }
        assert_eq!(recorder.recording().dropped(), 3);
        let mut seen = 0;
        recorder.recording().drain(|_| seen += 1);
        assert_eq!(seen, QUEUE_MAX);
    }
}
