//! The real engine over the same map: production cores on threads, an origin in memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_engine::arena::Arena;
use forebay_engine::client::{Client, Reply};
use forebay_engine::core::{Budget, Core, CoreConfig, Parts};
use forebay_engine::disk::Disk;
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::identity::{Bucket, Validator};
use forebay_engine::ports::{
    Clock, Full, GetOp, NoDevice, NoTransport, Origin, OriginEvent, OriginOp, OriginTag, PeerId,
    Platform, Rng, Solo, Time,
};
use forebay_engine::ring::{CoreRing, Doorbell};

use super::{Store, TestClock, Unpark};

/// What the origin counted, and how slow it is.
#[derive(Default)]
pub struct Meter {
    pub gets: AtomicU64,
    pub get_bytes: AtomicU64,
    pub delay_ms: AtomicU64,
}

struct MemoryOrigin {
    store: Arc<Store>,
    meter: Arc<Meter>,
    clock: Arc<TestClock>,
    events: VecDeque<(Time, OriginEvent)>,
}

impl MemoryOrigin {
    fn get(&mut self, ready: Time, op: GetOp) {
        self.meter.gets.fetch_add(1, Ordering::Relaxed);
        let object = self.store.objects().get(&*op.object.key).cloned();
        let current =
            object.filter(|object| Validator::ETag(object.etag.clone()) == op.object.validator);
        let tag = op.tag;
        let Some(object) = current else {
            let error = OriginError::new(OriginErrorKind::VersionChanged, &*op.object.key);
            let done = OriginEvent::GetDone {
                tag,
                result: Err(error),
                unfilled: op.leases,
                wasted_bytes: 0,
            };
            return self.events.push_back((ready, done));
        };
        self.meter
            .get_bytes
            .fetch_add(op.len_bytes(), Ordering::Relaxed);
        let mut at = op.offset as usize;
        for mut lease in op.leases {
            let end = at + lease.len();
            lease.bytes_mut().copy_from_slice(&object.bytes[at..end]);
            at = end;
            self.events
                .push_back((ready, OriginEvent::Filled { tag, lease }));
        }
        let done = OriginEvent::GetDone {
            tag,
            result: Ok(()),
            unfilled: Vec::new(),
            wasted_bytes: 0,
        };
        self.events.push_back((ready, done));
    }
}

impl Origin for MemoryOrigin {
    fn submit(&mut self, op: OriginOp) -> Result<(), Full<OriginOp>> {
        let delay = Duration::from_millis(self.meter.delay_ms.load(Ordering::Relaxed));
        let ready = self.clock.now() + delay;
        match op {
            OriginOp::Get(op) => self.get(ready, op),
            OriginOp::Head(op) => {
                let event = OriginEvent::Head {
                    tag: op.tag,
                    result: self.store.head(&self.store.objects(), &op.key),
                };
                self.events.push_back((ready, event));
            }
            OriginOp::List(op) => {
                let result = self.store.list(&self.store.objects(), &op.request);
                self.events.push_back((
                    ready,
                    OriginEvent::List {
                        tag: op.tag,
                        result,
                    },
                ));
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<OriginEvent> {
        let (ready, _) = self.events.front()?;
        if *ready > self.clock.now() {
            return None;
        }
        self.events.pop_front().map(|(_, event)| event)
    }

    fn cancel(&mut self, tag: OriginTag) {
        let cancelled = || OriginError::new(OriginErrorKind::Cancelled, "cancelled");
        let mut leases = Vec::new();
        let mut kept = VecDeque::new();
        for (ready, event) in self.events.drain(..) {
            kept.push_back(match event {
                OriginEvent::Filled { tag: of, lease } if of == tag => {
                    leases.push(lease);
                    continue;
                }
                OriginEvent::GetDone {
                    tag: of,
                    mut unfilled,
                    ..
                } if of == tag => {
                    unfilled.append(&mut leases);
                    let result = Err(cancelled());
                    (
                        Time(0),
                        OriginEvent::GetDone {
                            tag,
                            result,
                            unfilled,
                            wasted_bytes: 0,
                        },
                    )
                }
                OriginEvent::Head { tag: of, .. } if of == tag => (
                    Time(0),
                    OriginEvent::Head {
                        tag,
                        result: Err(cancelled()),
                    },
                ),
                OriginEvent::List { tag: of, .. } if of == tag => (
                    Time(0),
                    OriginEvent::List {
                        tag,
                        result: Err(cancelled()),
                    },
                ),
                other => (ready, other),
            });
        }
        self.events = kept;
        // What is ready comes first.
        self.events
            .make_contiguous()
            .sort_by_key(|(ready, _)| *ready);
    }
}

struct Dice(u64);

impl Rng for Dice {
    fn next_u64(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.0
    }
}

#[derive(Clone)]
struct SharedClock(Arc<TestClock>);

impl Clock for SharedClock {
    fn now(&self) -> Time {
        self.0.now()
    }
}

struct TestPlatform<R>(std::marker::PhantomData<R>);

impl<R: Reply> Platform for TestPlatform<R> {
    type Device = NoDevice;
    type Transport = NoTransport;
    type Origin = MemoryOrigin;
    type Membership = Solo;
    type Clock = SharedClock;
    type Rng = Dice;
    type Reply = R;
}

/// Two production cores.
pub struct RealEngine<R: Reply> {
    pub client: Client<R>,
    pub bucket: Arc<Bucket>,
    pub meter: Arc<Meter>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

const CORES: usize = 2;

impl<R: Reply> RealEngine<R> {
    pub fn start(store: Arc<Store>, core_memory_bytes: usize, io_timeout: Duration) -> Self {
        let meter = Arc::new(Meter::default());
        let clock = Arc::new(TestClock::new());
        let stop = Arc::new(AtomicBool::new(false));
        let mut rings = Vec::new();
        let mut threads = Vec::new();
        for core in 0..CORES {
            let (sender, receiver) = std::sync::mpsc::channel();
            let (store, meter, clock) = (store.clone(), meter.clone(), clock.clone());
            let stop = stop.clone();
            threads.push(std::thread::spawn(move || {
                let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                let ring = CoreRing::new(Doorbell::new(waker));
                sender.send(ring.clone()).unwrap();
                let parts = Parts {
                    disk: Disk::absent(),
                    transport: NoTransport::default(),
                    origin: MemoryOrigin {
                        store,
                        meter,
                        clock: clock.clone(),
                        events: VecDeque::new(),
                    },
                    membership: Solo,
                    clock: SharedClock(clock),
                    rng: Dice(core as u64),
                    arena: Arena::new(core_memory_bytes).unwrap(),
                    ring: ring.clone(),
                };
                let config = CoreConfig {
                    core,
                    cores: CORES,
                    io_timeout,
                    me: PeerId(0),
                    keep_copies: false,
                    attr_ttl: Duration::from_secs(1),
                    stale_max: Duration::MAX,
                    negative_ttl: Duration::from_secs(1),
                    endpoint: None,
                    origin_limit: None,
                    peer_limit: None,
                };
                turn::<R>(Core::new(parts, config), &ring, &stop);
            }));
            rings.push(receiver.recv().unwrap());
        }
        let client = Client::new(rings.into(), clock, io_timeout);
        let bucket = Arc::new(Bucket {
            endpoint: "http://stub".into(),
            name: "bucket".into(),
        });
        Self {
            client,
            bucket,
            meter,
            stop,
            threads,
        }
    }
}

fn turn<R: Reply>(mut core: Core<TestPlatform<R>>, ring: &CoreRing<R>, stop: &AtomicBool) {
    while !(stop.load(Ordering::Acquire) && core.is_quiet()) {
        if core.turn(Budget::default()).progressed {
            continue;
        }
        ring.doorbell().announce_sleep();
        if !core.turn(Budget::default()).progressed {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        ring.doorbell().announce_awake();
    }
}

impl<R: Reply> Drop for RealEngine<R> {
    fn drop(&mut self) {
        self.client.shutdown();
        self.stop.store(true, Ordering::Release);
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}
