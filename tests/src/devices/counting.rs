//! A device that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_engine::ports::{
    BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full,
};

/// What was accepted, by kind. One for all queue pairs that were made with a clone.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    discard_bytes: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    full: AtomicU64,
}

/// The counters as of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads accepted.
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Writes accepted.
    pub writes: u64,
    /// Bytes of those.
    pub write_bytes: u64,
    /// Flushes accepted.
    pub flushes: u64,
    /// Discards accepted.
    pub discards: u64,
    /// Bytes of those.
    pub discard_bytes: u64,
    /// Operations that ended.
    pub ended: u64,
    /// Of those, with an error.
    pub failed: u64,
    /// Operations given back because the queue was full.
    pub full: u64,
}

impl Counters {
    /// As of now.
    pub fn now(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            reads: get(&self.0.reads),
            read_bytes: get(&self.0.read_bytes),
            writes: get(&self.0.writes),
            write_bytes: get(&self.0.write_bytes),
            flushes: get(&self.0.flushes),
            discards: get(&self.0.discards),
            discard_bytes: get(&self.0.discard_bytes),
            ended: get(&self.0.ended),
            failed: get(&self.0.failed),
            full: get(&self.0.full),
        }
    }

    fn accepted(&self, (ops, bytes): (Kind, u64)) {
        let inner = &*self.0;
        let (ops, total) = match ops {
            Kind::Read => (&inner.reads, Some(&inner.read_bytes)),
            Kind::Write => (&inner.writes, Some(&inner.write_bytes)),
            Kind::Flush => (&inner.flushes, None),
            Kind::Discard => (&inner.discards, Some(&inner.discard_bytes)),
        };
        ops.fetch_add(1, Ordering::Relaxed);
        if let Some(total) = total {
            total.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn ended(&self, result: Result<(), DeviceError>) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        if result.is_err() {
            self.0.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
}

/// A queue pair with [`Counters`] over another one.
#[derive(Debug)]
pub struct CountingDevice<D> {
    inner: D,
    counters: Counters,
}

impl<D: BlockDevice> CountingDevice<D> {
    /// Over `inner`, which it changes in nothing.
    pub fn new(inner: D, counters: Counters) -> Self {
        Self { inner, counters }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }
}

impl<D: BlockDevice> BlockDevice for CountingDevice<D> {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let what = match &op {
            DeviceOp::Read { lease, .. } => (Kind::Read, lease.len() as u64),
            DeviceOp::Write { bytes, .. } => (Kind::Write, bytes.len() as u64),
            DeviceOp::Flush { .. } => (Kind::Flush, 0),
            DeviceOp::Discard { len_bytes, .. } => (Kind::Discard, *len_bytes),
        };
        match self.inner.submit(op) {
            Ok(()) => {
                self.counters.accepted(what);
                Ok(())
            }
            full => {
                self.counters.0.full.fetch_add(1, Ordering::Relaxed);
                full
            }
        }
    }

    fn commit(&mut self) {
        self.inner.commit();
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        let event = self.inner.poll()?;
        let (DeviceEvent::Read { result, .. }
        | DeviceEvent::Write { result, .. }
        | DeviceEvent::Flush { result, .. }
        | DeviceEvent::Discard { result, .. }) = &event;
        self.counters.ended(*result);
        Some(event)
    }

    fn nap(&mut self) -> Option<Duration> {
        self.inner.nap()
    }

    fn loss(&self) -> Option<String> {
        self.inner.loss()
    }
}
