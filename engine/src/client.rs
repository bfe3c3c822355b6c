//! What front ends call: reads, prefetches, metadata, statistics.
//!
//! A [`Client`] is cheap to clone and usable from any thread. It never waits: an answer comes
//! through the request's [`Reply`] or callback, on the thread of the core that has it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::errors::{OriginError, ReadError};
use crate::identity::{Bucket, ObjectVersion, Slot};
use crate::limits::{OBJECT_BYTES_MAX, READ_BYTES_MAX, STRIPE_BYTES};
use crate::ports::{Clock, Full, ListPage, ListRequest, ObjectMeta, Time};
use crate::ring::CoreRing;
use crate::stats::CoreStats;

/// Answers one reader. Called exactly once, from the core's thread; must not wait.
pub trait Reply: Send + 'static {
    /// The bytes read: the length asked for, less only at the object's end.
    fn data(self, bytes: &[u8]);
    /// There are no bytes.
    fn error(self, error: ReadError);
}

/// A callback that gets an answer, on the core's thread; must not wait.
pub type Callback<T> = Box<dyn FnOnce(T) + Send>;

/// What the origin said, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told<T> {
    /// What it said, or why it said nothing.
    pub result: Result<T, OriginError>,
    /// The origin was asked then, or later. Before the question came where a member of the group remembered it.
    pub at: Time,
}

/// What someone who asks for a name makes do with.
#[derive(Clone, Copy, Debug)]
pub struct Accept {
    /// How old what is remembered may be. Zero: the origin is asked, and where it does not answer that is an error.
    pub max_age: Duration,
    /// The asker knows an answer from before, or where to look for one: while the origin is known not to answer it is told so at once.
    pub knows_last: bool,
    /// It is answered by then; none: within the client's `io_timeout`.
    pub until: Option<Time>,
}

impl From<Duration> for Accept {
    fn from(max_age: Duration) -> Self {
        Self {
            max_age,
            knows_last: false,
            until: None,
        }
    }
}

/// What travels through a core's ring.
#[derive(Debug)]
pub enum Request<R> {
    /// Read bytes.
    Read(ReadRequest<R>),
    /// Bytes that will probably be read soon; no answer.
    Prefetch(PrefetchRequest),
    /// Work on what is cached of a range.
    Range(RangeRequest),
    /// Attributes of a key.
    Head(HeadRequest),
    /// One page of a listing.
    List(ListPageRequest),
    /// The core's counters.
    Stats(StatsRequest),
    /// Answer everything that waits with `ReadError::Shutdown`, and everything that comes later.
    Shutdown,
}

/// One read, within the stripes of one core.
#[derive(Debug)]
pub struct ReadRequest<R> {
    /// Of which version.
    pub object: Arc<ObjectVersion>,
    /// First byte.
    pub offset: u64,
    /// How many: at most [`READ_BYTES_MAX`].
    pub len_bytes: u32,
    /// Bytes from `offset` on that will be needed soon, this read included: sizes the GET.
    pub want_bytes: u32,
    /// When the front end asked.
    pub submitted: Time,
    /// When it must be answered.
    pub deadline: Time,
    /// How.
    pub answer: Answer<R>,
}

/// Bytes that will probably be read soon.
#[derive(Debug)]
pub struct PrefetchRequest {
    /// Of which version.
    pub object: Arc<ObjectVersion>,
    /// First byte.
    pub offset: u64,
    /// How many, within one stripe.
    pub len_bytes: u32,
    /// When the bytes are of no more use.
    pub deadline: Time,
}

/// What to do with what is cached of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeWork {
    /// Bring it to where it belongs: the disks of the member that owns it. Answered with the bytes that are cached
    /// there then; fewer than asked for when the disks did not take them.
    Warm,
    /// Count the bytes that are cached where they belong, in memory or on disk.
    Check,
    /// Count the bytes that stay where they belong: those on the owner's disks; where it has none, those in memory.
    Kept,
    /// Drop it, on every member. Answered with the bytes that were dropped; what a member's readers wait for, and
    /// what a member that does not answer holds, stays.
    Evict,
}

/// Work on what is cached of a range.
pub struct RangeRequest {
    /// What to do.
    pub work: RangeWork,
    /// Of which version.
    pub object: Arc<ObjectVersion>,
    /// First byte.
    pub offset: u64,
    /// How many, within one stripe.
    pub len_bytes: u32,
    /// When it must be answered.
    pub deadline: Time,
    /// How: with bytes.
    pub reply: Callback<Result<u64, ReadError>>,
}

/// Attributes of a key.
pub struct HeadRequest {
    /// Where.
    pub bucket: Arc<Bucket>,
    /// The whole key.
    pub key: Arc<str>,
    /// What will do.
    pub accept: Accept,
    /// When it must be answered.
    pub deadline: Time,
    /// How.
    pub reply: Callback<Told<ObjectMeta>>,
}

/// One page of a listing.
pub struct ListPageRequest {
    /// What to list.
    pub request: ListRequest,
    /// What will do.
    pub accept: Accept,
    /// When it must be answered.
    pub deadline: Time,
    /// How.
    pub reply: Callback<Told<Arc<ListPage>>>,
}

/// A core's counters.
pub struct StatsRequest {
    /// Gets them.
    pub reply: Callback<Box<CoreStats>>,
}

macro_rules! opaque_debug {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}
opaque_debug!(RangeRequest, HeadRequest, ListPageRequest, StatsRequest);

/// The whole answer of a read, or its part of one that crosses stripes.
#[derive(Debug)]
pub enum Answer<R> {
    /// Answers the reader directly.
    Whole(R),
    /// Answers the reader when both parts are there.
    Part(Arc<Join<R>>, Half),
}

/// Which part of a read that crosses a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Up to the stripe's end.
    First,
    /// From the next stripe's start.
    Second,
}

/// Collects the two parts of a read that crosses a stripe, whose stripes may live on two cores.
#[derive(Debug)]
pub struct Join<R>(Mutex<JoinState<R>>);

#[derive(Debug)]
struct JoinState<R> {
    reply: Option<R>,
    /// Empty until the first part arrives: reads that wait take no memory.
    bytes: Vec<u8>,
    len: usize,
    split: usize,
    missing: u8,
}

impl<R: Reply> Answer<R> {
    /// Answers with bytes.
    pub fn data(self, bytes: &[u8]) {
        match self {
            Answer::Whole(reply) => reply.data(bytes),
            Answer::Part(join, half) => {
                let mut state = join.0.lock();
                if state.reply.is_none() {
                    return;
                }
                let len = state.len;
                state.bytes.resize(len, 0);
                let start = if half == Half::First { 0 } else { state.split };
                state.bytes[start..start + bytes.len()].copy_from_slice(bytes);
                state.missing -= 1;
                if state.missing == 0
                    && let Some(reply) = state.reply.take()
                {
                    reply.data(&state.bytes);
                }
            }
        }
    }

    /// Answers with an error.
    pub fn error(self, error: ReadError) {
        match self {
            Answer::Whole(reply) => reply.error(error),
            Answer::Part(join, _) => {
                if let Some(reply) = join.0.lock().reply.take() {
                    reply.error(error);
                }
            }
        }
    }
}

/// The front ends' way into the engine.
pub struct Client<R> {
    rings: Arc<[Arc<CoreRing<R>>]>,
    clock: Arc<dyn Clock + Send + Sync>,
    io_timeout: Duration,
}

impl<R> Clone for Client<R> {
    fn clone(&self) -> Self {
        Self {
            rings: self.rings.clone(),
            clock: self.clock.clone(),
            io_timeout: self.io_timeout,
        }
    }
}

impl<R> fmt::Debug for Client<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("cores", &self.rings.len())
            .finish_non_exhaustive()
    }
}

impl<R: Reply> Client<R> {
    /// A client of the cores behind `rings` (in core order). `clock` must be the cores' clock;
    /// every request must be answered within `io_timeout`.
    pub fn new(
        rings: Arc<[Arc<CoreRing<R>>]>,
        clock: Arc<dyn Clock + Send + Sync>,
        io_timeout: Duration,
    ) -> Self {
        Self {
            rings,
            clock,
            io_timeout,
        }
    }

    /// Number of engine cores.
    pub fn cores(&self) -> usize {
        self.rings.len()
    }

    /// The cores' clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The deadline that every request gets.
    pub fn io_timeout(&self) -> Duration {
        self.io_timeout
    }

    fn core_of_stripe(&self, object: &ObjectVersion, offset: u64) -> usize {
        Slot::of_stripe(object.id, offset).core(self.rings.len())
    }

    fn ring_of_stripe(&self, object: &ObjectVersion, offset: u64) -> &CoreRing<R> {
        &self.rings[Slot::of_stripe(object.id, offset).core(self.rings.len())]
    }

    /// Reads up to `len_bytes` (at most [`READ_BYTES_MAX`]) from `offset`; fewer at the end of
    /// the object, none beyond it. `want_bytes`, counted from `offset`, tells how much will be
    /// needed soon: at least `len_bytes` for a sequential reader, 0 when nothing is known.
    ///
    /// # Errors
    /// [`Full`] with the reply when the core's ring is full: try again shortly.
    pub fn read(
        &self,
        object: &Arc<ObjectVersion>,
        offset: u64,
        len_bytes: u32,
        want_bytes: u32,
        reply: R,
    ) -> Result<(), Full<R>> {
        let len = u64::from(len_bytes).min(object.size_bytes.saturating_sub(offset)) as u32;
        if len_bytes as usize > READ_BYTES_MAX
            || (len > 0 && offset >= OBJECT_BYTES_MAX - u64::from(len))
        {
            reply.error(ReadError::Invalid);
            return Ok(());
        }
        if len == 0 {
            reply.data(&[]);
            return Ok(());
        }
        let stripe_left = STRIPE_BYTES as u64 - offset % STRIPE_BYTES as u64;
        let crosses = u64::from(len) > stripe_left;
        if crosses
            && self.core_of_stripe(object, offset)
                != self.core_of_stripe(object, offset + stripe_left)
        {
            return self.read_across(object, offset, len, want_bytes, reply);
        }
        let stripes_left = stripe_left + if crosses { STRIPE_BYTES as u64 } else { 0 };
        let want = u64::from(want_bytes.max(len)).min(stripes_left) as u32;
        let request = self.part(object, offset, len, want, Answer::Whole(reply));
        self.ring_of_stripe(object, offset)
            .push(request)
            .map_err(whole_reply)
    }

    fn part(
        &self,
        object: &Arc<ObjectVersion>,
        offset: u64,
        len_bytes: u32,
        want_bytes: u32,
        answer: Answer<R>,
    ) -> Request<R> {
        let submitted = self.clock.now();
        Request::Read(ReadRequest {
            object: object.clone(),
            offset,
            len_bytes,
            want_bytes,
            submitted,
            deadline: submitted + self.io_timeout,
            answer,
        })
    }

    /// A read that crosses from one core's stripe to another's, in two parts.
    fn read_across(
        &self,
        object: &Arc<ObjectVersion>,
        offset: u64,
        len: u32,
        want_bytes: u32,
        reply: R,
    ) -> Result<(), Full<R>> {
        let next = offset - offset % STRIPE_BYTES as u64 + STRIPE_BYTES as u64;
        let first = (next - offset) as u32;
        let join = Arc::new(Join(Mutex::new(JoinState {
            reply: Some(reply),
            bytes: Vec::new(),
            len: len as usize,
            split: first as usize,
            missing: 2,
        })));
        let want = want_bytes.max(len) - first;
        let half = |half| Answer::Part(join.clone(), half);
        let requests = [
            (
                offset,
                self.part(object, offset, first, first, half(Half::First)),
            ),
            (
                next,
                self.part(object, next, len - first, want, half(Half::Second)),
            ),
        ];
        for (at, request) in requests {
            if self.ring_of_stripe(object, at).push(request).is_err() {
                // The other part, if it was pushed, finds the reply gone and is dropped.
                let reply = join.0.lock().reply.take();
                return reply.map_or(Ok(()), |reply| Err(Full(reply)));
            }
        }
        Ok(())
    }

    /// Asks for bytes that will probably be read soon. Clipped to the object; dropped silently
    /// wherever a core has no room for it.
    pub fn prefetch(&self, object: &Arc<ObjectVersion>, offset: u64, len_bytes: u64) {
        let deadline = self.clock.now() + self.io_timeout;
        let end = offset
            .saturating_add(len_bytes)
            .min(object.size_bytes)
            .min(OBJECT_BYTES_MAX);
        let mut at = offset;
        while at < end {
            let stripe_end = at - at % STRIPE_BYTES as u64 + STRIPE_BYTES as u64;
            let len_bytes = (stripe_end.min(end) - at) as u32;
            let request = PrefetchRequest {
                object: object.clone(),
                offset: at,
                len_bytes,
                deadline,
            };
            let _ = self
                .ring_of_stripe(object, at)
                .push(Request::Prefetch(request));
            at = stripe_end;
        }
    }

    /// Does `work` on a range of one stripe, within `within`. Of whole stripes and several in parallel a caller
    /// sees to itself.
    ///
    /// # Errors
    /// [`Full`] with the callback when the core's ring is full.
    #[allow(clippy::type_complexity)]
    pub fn range(
        &self,
        work: RangeWork,
        object: &Arc<ObjectVersion>,
        bytes: std::ops::Range<u64>,
        within: Duration,
        reply: Callback<Result<u64, ReadError>>,
    ) -> Result<(), Full<Callback<Result<u64, ReadError>>>> {
        let request = Request::Range(RangeRequest {
            work,
            object: object.clone(),
            offset: bytes.start,
            len_bytes: u32::try_from(bytes.end.saturating_sub(bytes.start)).unwrap_or(u32::MAX),
            deadline: self.clock.now() + within,
            reply,
        });
        self.ring_of_stripe(object, bytes.start)
            .push(request)
            .map_err(|Full(request)| match request {
                Request::Range(request) => Full(request.reply),
                _ => unreachable!("the ring gives back what was pushed"),
            })
    }

    /// Attributes of `key`, as the origin told them at most `max_age` ago, or longer ago while it does not answer;
    /// concurrent requests for one key share HEADs.
    ///
    /// # Errors
    /// [`Full`] with the callback when the core's ring is full.
    pub fn head(
        &self,
        bucket: &Arc<Bucket>,
        key: Arc<str>,
        accept: impl Into<Accept>,
        reply: Callback<Told<ObjectMeta>>,
    ) -> Result<(), Full<Callback<Told<ObjectMeta>>>> {
        let core = Slot::of_name(&key).core(self.rings.len());
        let accept = accept.into();
        let request = Request::Head(HeadRequest {
            bucket: bucket.clone(),
            key,
            accept,
            deadline: self.deadline_of(accept),
            reply,
        });
        self.rings[core]
            .push(request)
            .map_err(|Full(request)| match request {
                Request::Head(request) => Full(request.reply),
                _ => unreachable!("the ring gives back what was pushed"),
            })
    }

    /// One page of a listing, as the origin told it at most `max_age` ago, or longer ago while it does not answer;
    /// concurrent requests for one page share LISTs.
    ///
    /// # Errors
    /// [`Full`] with the callback when the core's ring is full.
    #[allow(clippy::type_complexity)]
    pub fn list(
        &self,
        request: ListRequest,
        accept: impl Into<Accept>,
        reply: Callback<Told<Arc<ListPage>>>,
    ) -> Result<(), Full<Callback<Told<Arc<ListPage>>>>> {
        let core = Slot::of_name(&request.prefix).core(self.rings.len());
        let accept = accept.into();
        let request = Request::List(ListPageRequest {
            request,
            accept,
            deadline: self.deadline_of(accept),
            reply,
        });
        self.rings[core]
            .push(request)
            .map_err(|Full(request)| match request {
                Request::List(request) => Full(request.reply),
                _ => unreachable!("the ring gives back what was pushed"),
            })
    }

    fn deadline_of(&self, accept: Accept) -> Time {
        let own = accept.until;
        own.unwrap_or_else(|| self.clock.now() + self.io_timeout)
    }

    /// Calls `reply` once for each core, with that core's counters.
    pub fn stats(&self, reply: impl Fn(Box<CoreStats>) + Clone + Send + 'static) {
        for ring in self.rings.iter() {
            let request = StatsRequest {
                reply: Box::new(reply.clone()),
            };
            let _ = ring.push(Request::Stats(request));
        }
    }

    /// Tells every core to answer all that waits, and all that comes, with `Shutdown`.
    pub fn shutdown(&self) {
        for ring in self.rings.iter() {
            let _ = ring.push(Request::Shutdown);
        }
    }
}

fn whole_reply<R>(Full(request): Full<Request<R>>) -> Full<R> {
    match request {
        Request::Read(ReadRequest {
            answer: Answer::Whole(reply),
            ..
        }) => Full(reply),
        _ => unreachable!("the ring gives back what was pushed"),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::identity::Validator;
    use crate::ring::Doorbell;

    type Answers = Arc<Mutex<Vec<Result<Vec<u8>, ReadError>>>>;

    #[derive(Debug)]
    struct Collect(Answers);

    impl Reply for Collect {
        fn data(self, bytes: &[u8]) {
            self.0.lock().push(Ok(bytes.to_vec()));
        }
        fn error(self, error: ReadError) {
            self.0.lock().push(Err(error));
        }
    }

    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Time {
            Time(5)
        }
    }

    const STRIPE: u64 = STRIPE_BYTES as u64;

    struct Bench {
        rings: Vec<Arc<CoreRing<Collect>>>,
        client: Client<Collect>,
        object: Arc<ObjectVersion>,
        answers: Answers,
    }

    fn bench(cores: usize, size_bytes: u64) -> Bench {
        let ring = || CoreRing::new(Doorbell::new(Waker::noop().clone()));
        let rings: Vec<_> = (0..cores).map(|_| ring()).collect();
        let bucket = Arc::new(Bucket {
            endpoint: "e".into(),
            name: "b".into(),
        });
        let validator = Validator::ETag("\"x\"".into());
        let version = |n: u32| {
            let key = format!("k{n}").into();
            ObjectVersion::new(bucket.clone(), key, validator.clone(), size_bytes)
        };
        // With several cores, an object whose first two stripes belong to different ones.
        let core = |object: &ObjectVersion, at| Slot::of_stripe(object.id, at).core(cores);
        let apart = |object: &ObjectVersion| cores == 1 || core(object, 0) != core(object, STRIPE);
        let object = Arc::new((0..).map(version).find(apart).unwrap());
        let client = Client::new(
            rings.clone().into(),
            Arc::new(Stopped),
            Duration::from_secs(1),
        );
        Bench {
            rings,
            client,
            object,
            answers: Arc::default(),
        }
    }

    impl Bench {
        fn read(&self, offset: u64, len: u32, want: u32) {
            let reply = Collect(self.answers.clone());
            self.client
                .read(&self.object, offset, len, want, reply)
                .unwrap();
        }

        fn taken(&self) -> Vec<ReadRequest<Collect>> {
            let popped = self
                .rings
                .iter()
                .flat_map(|ring| std::iter::from_fn(|| ring.pop()));
            let mut reads: Vec<_> = popped
                .map(|request| match request {
                    Request::Read(read) => read,
                    other => panic!("{other:?}"),
                })
                .collect();
            reads.sort_by_key(|read| read.offset);
            reads
        }
    }

    #[test]
    fn reads_are_clipped_to_the_object_and_want_to_the_stripe() {
        let bench = bench(1, STRIPE + 100);
        bench.read(STRIPE, 4096, 4096);
        bench.read(STRIPE - 10, 10, u32::MAX);
        let reads = bench.taken();
        let shape: Vec<_> = reads
            .iter()
            .map(|r| (r.offset, r.len_bytes, r.want_bytes))
            .collect();
        assert_eq!(shape, [(STRIPE - 10, 10, 10), (STRIPE, 100, 4096)]);
        bench.read(STRIPE + 100, 10, 0);
        bench.read(u64::MAX, 10, 0);
        bench.read(0, 0, 0);
        assert_eq!(*bench.answers.lock(), [Ok(vec![]), Ok(vec![]), Ok(vec![])]);
        bench.read(0, READ_BYTES_MAX as u32 + 1, 0);
        assert_eq!(bench.answers.lock()[3], Err(ReadError::Invalid));
        assert!(bench.taken().is_empty());
    }

    #[test]
    fn a_read_across_stripes_is_answered_once_in_either_order() {
        for first in [0, 1] {
            let bench = bench(4, 2 * STRIPE);
            bench.read(STRIPE - 2, 5, 0);
            let mut reads = bench.taken();
            assert_eq!(reads.len(), 2);
            let answers = [vec![1, 2], vec![3, 4, 5]];
            let early = reads.remove(first);
            early.answer.data(&answers[first]);
            assert!(bench.answers.lock().is_empty(), "half an answer is none");
            reads.remove(0).answer.data(&answers[1 - first]);
            assert_eq!(*bench.answers.lock(), [Ok(vec![1, 2, 3, 4, 5])]);
        }
    }

    #[test]
    fn a_read_across_stripes_fails_once_when_any_part_fails() {
        for outcome in [[false, false], [true, false], [false, true]] {
            let bench = bench(2, 2 * STRIPE);
            bench.read(STRIPE - 1, 2, 0);
            for (read, fine) in bench.taken().into_iter().zip(outcome) {
                if fine {
                    read.answer.data(&[9]);
                } else {
                    read.answer.error(ReadError::Deadline);
                }
            }
            assert_eq!(*bench.answers.lock(), [Err(ReadError::Deadline)]);
        }
    }

    #[test]
    fn a_full_ring_gives_the_reply_back() {
        let bench = bench(2, 2 * STRIPE);
        let reply = || Collect(bench.answers.clone());
        let second = bench.client.core_of_stripe(&bench.object, STRIPE);
        while bench
            .client
            .read(&bench.object, STRIPE, 1, 0, reply())
            .is_ok()
        {}
        let across = bench.client.read(&bench.object, STRIPE - 1, 2, 0, reply());
        assert!(across.is_err(), "also for a read in two parts");
        assert!(bench.answers.lock().is_empty());
        while bench.rings[second].pop().is_some() {}
        let first_half = bench.taken().pop().unwrap();
        first_half.answer.data(&[1]);
        assert!(
            bench.answers.lock().is_empty(),
            "the caller has the reply; the half finds it gone"
        );
    }

    #[test]
    fn a_read_across_stripes_of_one_core_is_one_request() {
        let bench = bench(1, 3 * STRIPE);
        bench.read(STRIPE - 2, 5, u32::MAX);
        let reads = bench.taken();
        assert_eq!(reads.len(), 1);
        assert_eq!(
            (reads[0].len_bytes, reads[0].want_bytes),
            (5, STRIPE as u32 + 2)
        );
    }

    #[test]
    fn prefetch_is_cut_at_stripes_and_at_the_end() {
        let bench = bench(1, 2 * STRIPE + 7);
        bench.client.prefetch(&bench.object, STRIPE / 2, u64::MAX);
        let pieces: Vec<_> = std::iter::from_fn(|| bench.rings[0].pop())
            .map(|request| match request {
                Request::Prefetch(piece) => (piece.offset, piece.len_bytes),
                other => panic!("{other:?}"),
            })
            .collect();
        let half = (STRIPE / 2) as u32;
        assert_eq!(
            pieces,
            [(STRIPE / 2, half), (STRIPE, 2 * half), (2 * STRIPE, 7)]
        );
    }
}
