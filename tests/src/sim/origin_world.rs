//! The simulated origin under the suite of its port.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::errors::OriginErrorKind;
use forebay_engine::identity::{Bucket, ObjectVersion};
use forebay_engine::ports::{Clock, Full, Origin, OriginEvent, OriginOp, OriginTag, Time};

use super::bucket::{self, SimBucket};
use super::clock::SimClock;
use super::origin::SimOrigin;
use super::store::{Fate, OriginFaults, OriginProfile, OriginStore};
use super::trace::Trace;
use crate::conformance::origin::{OriginFault, OriginWorld};
use crate::{origin_conformance_fault_free, origin_conformance_faults};

/// An origin that overwrites an object just before a GET of it, when it is told to.
struct Overwriting {
    inner: SimOrigin,
    clock: SimClock,
    store: Rc<RefCell<OriginStore>>,
    armed: bool,
}

struct SimWorld {
    origin: Overwriting,
    versions: BTreeMap<(String, u64, u64), Arc<ObjectVersion>>,
}

impl Origin for Overwriting {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        if let OriginOp::Get(get) = &op
            && self.armed
        {
            let now = self.clock.now();
            self.store
                .borrow_mut()
                .bucket
                .put(&get.object.key, get.object.size_bytes, now);
        }
        self.inner.submit(op)
    }
    fn poll(&mut self) -> Option<OriginEvent> {
        self.inner.poll()
    }
    fn cancel(&mut self, tag: OriginTag) {
        self.inner.cancel(tag);
    }
}

impl SimWorld {
    fn new() -> Self {
        let (clock, store) = (SimClock::default(), OriginStore::new(SimBucket::new()));
        let profile = OriginProfile {
            latency: (Duration::from_micros(100), Duration::from_millis(20)),
            bytes_per_s: (50_000_000, 500_000_000),
            ops_max: 64,
            faults: OriginFaults::default(),
        };
        let inner = SimOrigin::new(
            0,
            1,
            clock.clone(),
            profile,
            store.clone(),
            Trace::default(),
        );
        let origin = Overwriting {
            inner,
            clock,
            store,
            armed: false,
        };
        Self {
            origin,
            versions: BTreeMap::new(),
        }
    }
}

impl OriginWorld for SimWorld {
    type Origin = Overwriting;

    fn origin(&mut self) -> &mut Overwriting {
        &mut self.origin
    }

    fn step(&mut self) {
        let soon = self.now() + Duration::from_millis(1);
        let next = self
            .origin
            .inner
            .next_at()
            .map_or(soon, |next| next.min(soon));
        self.origin.clock.advance_to(next);
    }

    fn now(&self) -> Time {
        self.origin.clock.now()
    }

    fn bucket(&self) -> Arc<Bucket> {
        self.origin.store.borrow().bucket.bucket.clone()
    }

    fn put(&mut self, key: &str, size_bytes: u64, generation: u64) {
        let now = self.now();
        let version = self
            .origin
            .store
            .borrow_mut()
            .bucket
            .put(key, size_bytes, now);
        self.versions
            .insert((key.to_owned(), size_bytes, generation), version);
    }

    fn delete(&mut self, key: &str) {
        self.origin.store.borrow_mut().bucket.remove(key);
    }

    fn expected(&self, key: &str, size_bytes: u64, generation: u64, offset: u64, buf: &mut [u8]) {
        let version = &self.versions[&(key.to_owned(), size_bytes, generation)];
        bucket::fill(version, offset, buf);
    }

    fn arm(&mut self, fault: OriginFault) {
        let fail = |kind, after| Some((Fate::Fail(kind, after), false));
        let forced = match fault {
            OriginFault::Throttle => Some((Fate::Fail(OriginErrorKind::Throttled, 0), true)),
            OriginFault::ServerError => Some((Fate::Fail(OriginErrorKind::Unavailable, 0), true)),
            OriginFault::Hang => Some((Fate::Hang(0), true)),
            OriginFault::Reset => fail(OriginErrorKind::Unavailable, 0),
            OriginFault::ResetBody(after) => fail(OriginErrorKind::Unavailable, after),
            OriginFault::ShortBody(after) => fail(OriginErrorKind::ShortBody, after),
            OriginFault::HangBody(after) => Some((Fate::Hang(after), false)),
            // The simulated origin is the client too: what its protocol code would refuse, it refuses.
            OriginFault::Whole | OriginFault::ShortRange => fail(OriginErrorKind::BadAnswer, 0),
            OriginFault::WrongETag => fail(OriginErrorKind::VersionChanged, 0),
            OriginFault::Overwrite => None,
        };
        self.origin.armed = fault == OriginFault::Overwrite;
        self.origin.store.borrow_mut().forced = forced;
    }

    fn calm(&mut self) {
        self.origin.armed = false;
        self.origin.store.borrow_mut().forced = None;
    }
}

origin_conformance_fault_free!(SimWorld::new());
origin_conformance_faults!(SimWorld::new());
