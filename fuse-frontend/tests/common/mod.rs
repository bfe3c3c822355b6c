//! An engine made of a map: pops the cores' rings and answers as S3 would, from one thread.

#![allow(dead_code)]

pub mod core;
pub mod mount;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::{Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use forebay_engine::client::{Client, Reply, Request, Told};
use forebay_engine::errors::{OriginError, OriginErrorKind, ReadError};
use forebay_engine::identity::{Bucket, Validator};
use forebay_engine::ports::{Clock, ListEntry, ListPage, ListRequest, ObjectMeta, Time};
use forebay_engine::ring::{CoreRing, Doorbell};

/// One object.
#[derive(Clone)]
pub struct Object {
    pub bytes: Arc<Vec<u8>>,
    pub etag: Arc<str>,
    pub modified_ns: i128,
}

/// The bucket's contents and faults, and what was asked of it.
#[derive(Default)]
pub struct Store {
    objects: Mutex<BTreeMap<String, Object>>,
    puts: AtomicU64,
    answering: Mutex<()>,
    /// Every HEAD and LIST fails with this.
    pub metadata_fault: Mutex<Option<OriginErrorKind>>,
    /// Only listings of directories are answered.
    pub listings_only: AtomicBool,
    /// Most entries in one page.
    pub page_max: AtomicU64,
    pub heads: AtomicU64,
    pub lists: AtomicU64,
    pub reads: AtomicU64,
    pub prefetches: AtomicU64,
    /// What a cache group remembers of the bucket, and how old that is.
    remembered: Mutex<Option<(Objects, Duration)>>,
    /// The group tells what it remembers however old it is.
    pub silent: AtomicBool,
    /// While it does, of directories' listings so old ones, with what there is now.
    listed_ago: Mutex<Option<Duration>>,
}

type Objects = BTreeMap<String, Object>;

impl Store {
    pub fn new() -> Arc<Self> {
        let store = Self::default();
        store.page_max.store(1000, Ordering::Relaxed);
        Arc::new(store)
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap()
    }

    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        let n = self.puts.fetch_add(1, Ordering::Relaxed);
        let object = Object {
            bytes: Arc::new(bytes.into()),
            etag: format!("\"{n}\"").into(),
            modified_ns: 1_700_000_000_000_000_000 + i128::from(n),
        };
        self.objects().insert(key.to_owned(), object);
    }

    /// From now on who takes answers so old is told of the bucket as it is now.
    pub fn remember(&self, age: Duration) {
        let objects = self.objects().clone();
        *self.remembered.lock().unwrap() = Some((objects, age));
    }

    /// The origin does not answer: whatever is remembered is told.
    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// The objects of which a question that takes answers of `max_age` is told, and how old they are.
    fn recall(&self, max_age: Duration) -> (Objects, Duration) {
        let remembered = self.remembered.lock().unwrap();
        match &*remembered {
            Some((objects, age)) if *age <= max_age || (self.is_silent() && !max_age.is_zero()) => {
                (objects.clone(), *age)
            }
            _ => (self.objects().clone(), Duration::ZERO),
        }
    }

    /// The group has listed directories so long ago.
    pub fn listed_ago(&self, age: Duration) {
        *self.listed_ago.lock().unwrap() = Some(age);
    }

    /// Attributes of an object that is there.
    pub fn meta(&self, key: &str) -> ObjectMeta {
        meta(key, &self.objects()[key])
    }

    pub fn delete(&self, key: &str) {
        self.objects().remove(key);
    }

    /// While the guard lives, the stand-in answers nothing more (one answer may be under way).
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.answering.lock().unwrap()
    }

    pub fn fail_metadata(&self, kind: Option<OriginErrorKind>) {
        *self.metadata_fault.lock().unwrap() = kind;
    }

    fn fault(&self) -> Option<OriginError> {
        let kind = (*self.metadata_fault.lock().unwrap())?;
        Some(OriginError::new(kind, "injected"))
    }

    fn is_left_out(&self) -> Option<OriginError> {
        let kind = OriginErrorKind::Unavailable;
        let left_out = self.listings_only.load(Ordering::Relaxed);
        left_out.then(|| OriginError::new(kind, "nobody remembers it"))
    }

    fn head(&self, objects: &Objects, key: &str) -> Result<ObjectMeta, OriginError> {
        self.heads.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = self.fault().or_else(|| self.is_left_out()) {
            return Err(error);
        }
        match objects.get(key) {
            Some(object) => Ok(meta(key, object)),
            None => Err(OriginError::new(OriginErrorKind::NotFound, key)),
        }
    }

    fn list(&self, objects: &Objects, request: &ListRequest) -> Result<ListPage, OriginError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let left_out = || self.is_left_out().filter(|_| !request.delimited);
        if let Some(error) = self.fault().or_else(left_out) {
            return Err(error);
        }
        let most = u64::from(request.entries_max).min(self.page_max.load(Ordering::Relaxed));
        let prefix = &*request.prefix;
        let mut page = ListPage::default();
        // The token is the last key or common prefix that was listed.
        let mut after: Option<String> = request.continuation.as_deref().map(str::to_owned);
        loop {
            let from = match &after {
                None => Bound::Included(prefix.to_owned()),
                // Everything under a common prefix is behind it.
                Some(last) if request.delimited && last.ends_with('/') && last != prefix => {
                    let mut end = last.clone();
                    end.pop();
                    end.push('0');
                    Bound::Included(end)
                }
                Some(last) => Bound::Excluded(last.clone()),
            };
            let Some((key, object)) = objects.range((from, Bound::Unbounded)).next() else {
                break;
            };
            if !key.starts_with(prefix) {
                break;
            }
            if page.entries.len() as u64 == most {
                page.next = after.as_deref().map(Into::into);
                break;
            }
            let slash = key[prefix.len()..].find('/').filter(|_| request.delimited);
            let (entry, last) = match slash {
                Some(at) => {
                    let common = key[..=prefix.len() + at].to_owned();
                    (ListEntry::Prefix(common.as_str().into()), common)
                }
                None => (ListEntry::Object(meta(key, object)), key.clone()),
            };
            page.entries.push(entry);
            after = Some(last);
        }
        Ok(page)
    }
}

fn meta(key: &str, object: &Object) -> ObjectMeta {
    ObjectMeta {
        key: key.into(),
        size_bytes: object.bytes.len() as u64,
        validator: Validator::ETag(object.etag.clone()),
        modified_ns: object.modified_ns,
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A clock that a test can move.
pub struct TestClock {
    start: Instant,
    ahead_ns: AtomicU64,
}

impl TestClock {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            ahead_ns: AtomicU64::new(0),
        }
    }

    pub fn advance(&self, span: Duration) {
        self.ahead_ns
            .fetch_add(span.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Time {
        let real = self.start.elapsed().as_nanos() as u64;
        Time(1_000_000_000 + real + self.ahead_ns.load(Ordering::Relaxed))
    }
}

const IO_TIMEOUT: Duration = Duration::from_secs(10);

fn before(at: Time, span: Duration) -> Time {
    Time(at.0.saturating_sub(span.as_nanos() as u64))
}

/// The stand-in for the engine.
pub struct Engine<R: Reply> {
    pub client: Client<R>,
    pub bucket: Arc<Bucket>,
    pub clock: Arc<TestClock>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<R: Reply> Engine<R> {
    pub fn start(store: Arc<Store>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let rings: Arc<[_]> = (0..2)
                .map(|_| CoreRing::new(Doorbell::new(waker.clone())))
                .collect();
            sender.send(rings.clone()).unwrap();
            serve(&store, &rings, &stopped);
        });
        let rings = receiver.recv().unwrap();
        let clock = Arc::new(TestClock::new());
        let client = Client::new(rings, clock.clone(), IO_TIMEOUT);
        let bucket = Arc::new(Bucket {
            endpoint: "http://stub".into(),
            name: "bucket".into(),
        });
        Self {
            client,
            bucket,
            clock,
            stop,
            thread: Some(thread),
        }
    }
}

impl<R: Reply> Drop for Engine<R> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn serve<R: Reply>(store: &Store, rings: &[Arc<CoreRing<R>>], stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let mut idle = true;
        for ring in rings {
            while let Some(request) = ring.pop() {
                idle = false;
                answer(store, request);
            }
        }
        if idle {
            rings
                .iter()
                .for_each(|ring| ring.doorbell().announce_sleep());
            if rings.iter().all(|ring| ring.is_empty()) && !stop.load(Ordering::Acquire) {
                std::thread::park();
            }
            rings
                .iter()
                .for_each(|ring| ring.doorbell().announce_awake());
        }
    }
}

fn answer<R: Reply>(store: &Store, request: Request<R>) {
    let _answering = store.answering.lock().unwrap();
    match request {
        Request::Read(read) => {
            store.reads.fetch_add(1, Ordering::Relaxed);
            let object = store.objects().get(&*read.object.key).cloned();
            match object {
                Some(object) if Validator::ETag(object.etag.clone()) == read.object.validator => {
                    let start = read.offset as usize;
                    let end = start + read.len_bytes as usize;
                    read.answer.data(&object.bytes[start..end]);
                }
                _ => read.answer.error(ReadError::VersionChanged),
            }
        }
        Request::Prefetch(prefetch) => {
            assert!(prefetch.offset + u64::from(prefetch.len_bytes) <= prefetch.object.size_bytes);
            store.prefetches.fetch_add(1, Ordering::Relaxed);
        }
        Request::Head(head) => {
            let (objects, age) = store.recall(head.accept.max_age);
            let result = store.head(&objects, &head.key);
            let at = before(head.deadline, IO_TIMEOUT + age);
            (head.reply)(Told { result, at });
        }
        Request::List(list) => {
            let (mut objects, mut age) = store.recall(list.accept.max_age);
            if let Some(ago) = *store.listed_ago.lock().unwrap()
                && list.request.delimited
            {
                (objects, age) = (store.objects().clone(), ago);
            }
            let result = store.list(&objects, &list.request).map(Arc::new);
            let at = before(list.deadline, IO_TIMEOUT + age);
            (list.reply)(Told { result, at });
        }
        Request::Range(range) => (range.reply)(Err(ReadError::Invalid)),
        Request::Stats(_) | Request::Shutdown => {}
    }
}
