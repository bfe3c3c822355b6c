//! One pass over all objects of a job: their stripes in parallel, files put together again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_engine::client::RangeWork;
use forebay_engine::identity::{ObjectId, ObjectVersion};
use forebay_engine::limits::{CHUNK_BYTES, STRIPE_BYTES};
use forebay_engine::ports::ObjectMeta;
use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::engine::MountEngine;
use super::listing::Told;
use super::report::{CheckLine, CheckedFile, PARALLEL_MAX, state_of};
use super::tally::Tally;

/// Requests under way at once, of whatever size: half of what one core takes.
const REQUESTS_MAX: u32 = PARALLEL_MAX;

/// Tells the kernel to drop the pages it keeps of an object; may wait.
pub type ForgetPages = Arc<dyn Fn(ObjectId) + Send + Sync>;

/// What a pass does with each object.
#[derive(Clone)]
pub enum Aim {
    /// Warm it.
    Warm,
    /// See whether what was warmed is still there.
    Confirm,
    /// Tell what is cached of it.
    Check(Sender<CheckLine>),
    /// Drop it.
    Evict(ForgetPages),
}

/// One pass.
#[derive(Clone)]
pub struct Pass {
    /// Does the work.
    pub engine: MountEngine,
    /// Of the mount: empty, or ending in a slash.
    pub root: Arc<str>,
    /// What for.
    pub aim: Aim,
    /// Counts it.
    pub tally: Arc<Tally>,
}

const CHUNKS_PER_STRIPE: u32 = (STRIPE_BYTES / CHUNK_BYTES) as u32;

/// What may be under way at once, in chunks.
struct Permits {
    all: Arc<Semaphore>,
    of_stripe: u32,
}

/// A file under way.
struct File {
    pass: Pass,
    object: Arc<ObjectVersion>,
    /// Parts that are under way, and one for the loop that begins them.
    open: AtomicU32,
    /// Cached, or dropped.
    bytes: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Pass {
    /// Goes through all that `told` tells, `parallel` stripes at a time; of small files as many as are as large
    /// together, for each of them waits for the disk's next batch.
    pub async fn run(&self, mut told: Receiver<Told>, parallel: u32) {
        let chunks = (parallel * CHUNKS_PER_STRIPE).clamp(parallel, REQUESTS_MAX);
        let permits = Permits {
            all: Arc::new(Semaphore::new(chunks as usize)),
            of_stripe: chunks / parallel,
        };
        let mut under_way = JoinSet::new();
        while let Some(told) = told.recv().await {
            match told {
                Told::File(meta) => self.file(&meta, &permits, &mut under_way).await,
                Told::Failed(path, reason) => self.tally.not_listed(&path, reason),
                Told::BrokeOff(path, reason) => self.tally.failed(&path, reason),
            }
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn file(&self, meta: &ObjectMeta, permits: &Permits, tasks: &mut JoinSet<()>) {
        let file = Arc::new(File {
            pass: self.clone(),
            object: Arc::new(meta.version(self.engine.bucket())),
            open: AtomicU32::new(1),
            bytes: AtomicU64::new(0),
            error: Mutex::new(None),
        });
        let mut at = 0;
        while at < meta.size_bytes {
            let end = (at + STRIPE_BYTES as u64).min(meta.size_bytes);
            let weight = (end - at).div_ceil(CHUNK_BYTES as u64) as u32;
            let weight = weight.min(permits.of_stripe);
            let Ok(permit) = permits.all.clone().acquire_many_owned(weight).await else {
                return;
            };
            while tasks.try_join_next().is_some() {}
            if file.error.lock().is_some() {
                // What is wrong with one part is wrong with the others.
                self.note_gone_through(meta.size_bytes - at);
                break;
            }
            file.open.fetch_add(1, Ordering::Relaxed);
            tasks.spawn(file.clone().part(at..end, permit));
            at = end;
        }
        file.close().await;
    }

    fn note_gone_through(&self, bytes: u64) {
        if !matches!(self.aim, Aim::Confirm) {
            self.tally.gone_through(bytes);
        }
    }
}

impl File {
    async fn part(self: Arc<Self>, bytes: Range<u64>, _permit: OwnedSemaphorePermit) {
        let work = match self.pass.aim {
            Aim::Warm => RangeWork::Warm,
            Aim::Confirm => RangeWork::Kept,
            Aim::Check(_) => RangeWork::Check,
            Aim::Evict(_) => RangeWork::Evict,
        };
        let len_bytes = bytes.end - bytes.start;
        match self.pass.engine.range(work, &self.object, bytes).await {
            Ok(done) => drop(self.bytes.fetch_add(done, Ordering::Relaxed)),
            Err(error) => drop(self.error.lock().get_or_insert(error)),
        }
        self.pass.note_gone_through(len_bytes);
        self.close().await;
    }

    /// One part less is under way; the last one sees what became of the file.
    async fn close(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let error = self.error.lock().take();
            self.finish(self.bytes.load(Ordering::Relaxed), error).await;
        }
    }

    async fn finish(&self, done_bytes: u64, error: Option<String>) {
        let (tally, bytes) = (&self.pass.tally, self.object.size_bytes);
        let key = &*self.object.key;
        let path = key.strip_prefix(&*self.pass.root).unwrap_or(key);
        let is_full = done_bytes >= bytes;
        match &self.pass.aim {
            Aim::Warm | Aim::Confirm => {
                let reason = match (error, is_full) {
                    (Some(error), _) => Some(error),
                    (None, true) => None,
                    (None, false) => Some(not_kept(done_bytes, bytes)),
                };
                if let Some(reason) = reason {
                    tally.failed(path, reason);
                }
                match self.pass.aim {
                    Aim::Confirm => tally.cached(done_bytes, bytes),
                    _ => tally.file_done(),
                }
            }
            Aim::Check(lines) => {
                tally.file_done();
                if let Some(error) = error {
                    return tally.failed(path, error);
                }
                tally.cached(done_bytes, bytes);
                let line = CheckedFile {
                    path: path.to_owned(),
                    state: state_of(done_bytes, bytes),
                    bytes,
                    cached_bytes: done_bytes,
                };
                let _ = lines.send(CheckLine::File(line)).await;
            }
            Aim::Evict(forget) => {
                tally.dropped(done_bytes);
                tally.file_done();
                if let Some(error) = error {
                    tally.failed(path, error);
                }
                let (forget, id) = (forget.clone(), self.object.id);
                let _ = tokio::task::spawn_blocking(move || forget(id)).await;
            }
        }
    }
}

fn not_kept(cached_bytes: u64, bytes: u64) -> String {
    format!(
        "not kept: {cached_bytes} of {bytes} bytes are cached; the cache has no room for it (`forebay evict` what is no longer needed), its member left or died, or it changed meanwhile"
    )
}
