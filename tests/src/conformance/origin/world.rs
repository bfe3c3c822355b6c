//! What the suite needs of an origin under test, and how it drives one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::errors::{OriginError, OriginErrorKind};
use forebay_engine::identity::{Bucket, ObjectVersion};
use forebay_engine::ports::{
    GetOp, HeadOp, ListOp, ListPage, ListRequest, ObjectMeta, Origin, OriginEvent, OriginOp,
    OriginTag, Time,
};

/// Faults that the suite asks for. They strike GETs only, except the first three, which strike
/// every request. Body offsets count from the start of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginFault {
    /// 503 SlowDown.
    Throttle,
    /// 500 InternalError.
    ServerError,
    /// No answer, ever.
    Hang,
    /// The connection is reset instead of an answer.
    Reset,
    /// The connection is reset after this many bytes of the body.
    ResetBody(u64),
    /// The body ends in order after this many bytes.
    ShortBody(u64),
    /// Nothing more comes after this many bytes of the body.
    HangBody(u64),
    /// 200 with the whole object.
    Whole,
    /// A range that ends one byte early, honestly told.
    ShortRange,
    /// The right bytes with another ETag.
    WrongETag,
    /// The object is overwritten just before each GET.
    Overwrite,
}

/// An origin under test, with the store behind it.
pub trait OriginWorld {
    /// The adapter.
    type Origin: Origin;
    /// The instance under test.
    fn origin(&mut self) -> &mut Self::Origin;
    /// Lets a little time pass, so that whatever is under way advances.
    fn step(&mut self);
    /// The clock that deadlines are read against.
    fn now(&self) -> Time;
    /// A bucket that exists and is empty at the start.
    fn bucket(&self) -> Arc<Bucket>;
    /// Puts or overwrites an object, of content that `generation` tells apart.
    fn put(&mut self, key: &str, size_bytes: u64, generation: u64);
    /// Deletes an object.
    fn delete(&mut self, key: &str);
    /// The content that `put` of this key, size and generation made, from `offset` on.
    fn expected(&self, key: &str, size_bytes: u64, generation: u64, offset: u64, buf: &mut [u8]);
    /// Arms a fault for all requests that come until `calm`.
    fn arm(&mut self, fault: OriginFault);
    /// Removes all faults.
    fn calm(&mut self);
}

/// How late after its deadline an operation may end.
const LATE_MAX: Duration = Duration::from_secs(2);
/// The deadline's span where the test is not about deadlines.
pub(super) const SPAN: Duration = Duration::from_secs(20);

/// How a GET ended, with everything that it gave back.
#[derive(Debug)]
pub struct GetOutcome {
    /// Leases that came as `Filled`, in the order of their coming.
    pub filled: Vec<Lease>,
    /// How it ended.
    pub result: Result<(), OriginError>,
    /// The rest of the leases.
    pub unfilled: Vec<Lease>,
    /// As told.
    pub wasted_bytes: u64,
}

impl GetOutcome {
    /// Bytes in filled leases.
    pub fn filled_bytes(&self) -> u64 {
        self.filled.iter().map(|lease| lease.len() as u64).sum()
    }

    /// The error's kind.
    pub fn kind(&self) -> Option<OriginErrorKind> {
        self.result.as_ref().err().map(|error| error.kind)
    }
}

enum Final {
    Get(GetOutcome),
    Head(Result<ObjectMeta, OriginError>),
    List(Result<ListPage, OriginError>),
}

/// Drives a world: submits, polls, and checks the rules that hold for every operation.
pub struct Harness<W: OriginWorld> {
    /// The world.
    pub world: W,
    /// Where leases come from.
    pub arena: Arena,
    next_tag: u64,
    /// Lease lengths by tag of the GETs under way.
    asked: BTreeMap<OriginTag, Vec<usize>>,
    filled: BTreeMap<OriginTag, Vec<Lease>>,
    ended: BTreeMap<OriginTag, Final>,
}

impl<W: OriginWorld> std::fmt::Debug for Harness<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness")
            .field("next_tag", &self.next_tag)
            .finish_non_exhaustive()
    }
}

impl<W: OriginWorld> Harness<W> {
    /// A harness with an arena of 64 MiB.
    pub fn new(world: W) -> Self {
        let arena = Arena::new(64 << 20).expect("64 MiB can be mapped");
        Self {
            world,
            arena,
            next_tag: 1,
            asked: BTreeMap::new(),
            filled: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
    }

    fn tag(&mut self) -> OriginTag {
        self.next_tag += 1;
        OriginTag(self.next_tag)
    }

    /// The version of `key` now, by HEAD.
    pub fn version(&mut self, key: &str) -> Arc<ObjectVersion> {
        let meta = self.head(key).expect("a key that was put has attributes");
        Arc::new(meta.version(&self.world.bucket()))
    }

    /// Leases of these lengths.
    pub fn leases(&mut self, parts: &[usize]) -> Vec<Lease> {
        parts
            .iter()
            .map(|len| {
                self.arena
                    .lease(*len, Share::Demand)
                    .expect("room for a test")
            })
            .collect()
    }

    /// Submits a GET.
    pub fn start_get(
        &mut self,
        object: &Arc<ObjectVersion>,
        offset: u64,
        parts: &[usize],
        span: Duration,
    ) -> OriginTag {
        let tag = self.try_get(object, offset, parts, span);
        tag.expect("the origin takes an operation")
    }

    /// Submits a GET; none when the origin gave it back, whole.
    pub fn try_get(
        &mut self,
        object: &Arc<ObjectVersion>,
        offset: u64,
        parts: &[usize],
        span: Duration,
    ) -> Option<OriginTag> {
        let (tag, leases) = (self.tag(), self.leases(parts));
        let deadline = self.world.now() + span;
        let op = OriginOp::Get(GetOp {
            tag,
            object: object.clone(),
            offset,
            leases,
            deadline,
        });
        match self.world.origin().submit(op) {
            Ok(()) => {
                self.asked.insert(tag, parts.to_vec());
                self.filled.insert(tag, Vec::new());
                Some(tag)
            }
            Err(full) => {
                let OriginOp::Get(op) = full.0 else {
                    panic!("another operation was given back")
                };
                assert_eq!(op.tag, tag);
                assert_eq!(op.leases.iter().map(Lease::len).collect::<Vec<_>>(), parts);
                None
            }
        }
    }

    /// A GET from start to end.
    pub fn get(&mut self, object: &Arc<ObjectVersion>, offset: u64, parts: &[usize]) -> GetOutcome {
        let tag = self.start_get(object, offset, parts, SPAN);
        self.finish_get(tag, SPAN)
    }

    /// Waits for a GET's end.
    pub fn finish_get(&mut self, tag: OriginTag, span: Duration) -> GetOutcome {
        match self.wait(tag, span) {
            Final::Get(outcome) => outcome,
            _ => panic!("{tag:?} is no GET"),
        }
    }

    /// Submits a HEAD.
    pub fn start_head(&mut self, key: &str, span: Duration) -> OriginTag {
        let tag = self.tag();
        let (bucket, deadline) = (self.world.bucket(), self.world.now() + span);
        let op = OriginOp::Head(HeadOp {
            tag,
            bucket,
            key: key.into(),
            deadline,
        });
        self.world
            .origin()
            .submit(op)
            .expect("the origin takes a HEAD");
        tag
    }

    /// Waits for a HEAD's end.
    pub fn finish_head(
        &mut self,
        tag: OriginTag,
        span: Duration,
    ) -> Result<ObjectMeta, OriginError> {
        match self.wait(tag, span) {
            Final::Head(result) => result,
            _ => panic!("{tag:?} is no HEAD"),
        }
    }

    /// A HEAD from start to end.
    pub fn head(&mut self, key: &str) -> Result<ObjectMeta, OriginError> {
        let tag = self.start_head(key, SPAN);
        self.finish_head(tag, SPAN)
    }

    /// Submits a listing page.
    pub fn start_list(&mut self, request: ListRequest, span: Duration) -> OriginTag {
        let tag = self.tag();
        let deadline = self.world.now() + span;
        self.world
            .origin()
            .submit(OriginOp::List(ListOp {
                tag,
                request,
                deadline,
            }))
            .expect("the origin takes a listing");
        tag
    }

    /// Waits for a listing page's end.
    pub fn finish_list(&mut self, tag: OriginTag, span: Duration) -> Result<ListPage, OriginError> {
        match self.wait(tag, span) {
            Final::List(result) => result,
            _ => panic!("{tag:?} is no listing"),
        }
    }

    /// A listing page from start to end.
    pub fn list(&mut self, request: ListRequest) -> Result<ListPage, OriginError> {
        let tag = self.start_list(request, SPAN);
        self.finish_list(tag, SPAN)
    }

    /// Filled leases of a GET under way.
    pub fn filled_so_far(&self, tag: OriginTag) -> usize {
        self.filled.get(&tag).map_or(0, Vec::len)
    }

    /// Takes the events that are there; steps when there are none.
    pub fn pump(&mut self) {
        let mut any = false;
        while let Some(event) = self.world.origin().poll() {
            self.book(event);
            any = true;
        }
        if !any {
            self.world.step();
        }
    }

    fn wait(&mut self, tag: OriginTag, span: Duration) -> Final {
        let latest = self.world.now() + span + LATE_MAX;
        loop {
            if let Some(ended) = self.ended.remove(&tag) {
                return ended;
            }
            assert!(
                self.world.now() < latest,
                "{tag:?} did not end by its deadline"
            );
            self.pump();
        }
    }

    fn book(&mut self, event: OriginEvent) {
        let (tag, ended) = match event {
            OriginEvent::Filled { tag, lease } => {
                let asked = self.asked.get(&tag).expect("a lease of a GET under way");
                let filled = self
                    .filled
                    .get_mut(&tag)
                    .expect("a lease of a GET under way");
                assert_eq!(
                    lease.len(),
                    asked[filled.len()],
                    "leases come back in the GET's order"
                );
                return filled.push(lease);
            }
            OriginEvent::Progress { tag } => {
                assert!(self.asked.contains_key(&tag), "progress of a GET under way");
                return;
            }
            OriginEvent::GetDone {
                tag,
                result,
                unfilled,
                wasted_bytes,
            } => {
                let asked = self.asked.remove(&tag).expect("one end for each GET");
                let filled = self.filled.remove(&tag).unwrap_or_default();
                let back: Vec<_> = filled.iter().chain(&unfilled).map(Lease::len).collect();
                assert_eq!(back, asked, "each lease comes back once, in order");
                assert!(
                    result.is_err() || unfilled.is_empty(),
                    "Ok only when every lease is filled"
                );
                (
                    tag,
                    Final::Get(GetOutcome {
                        filled,
                        result,
                        unfilled,
                        wasted_bytes,
                    }),
                )
            }
            OriginEvent::Head { tag, result } => (tag, Final::Head(result)),
            OriginEvent::List { tag, result } => (tag, Final::List(result)),
        };
        assert!(
            self.ended.insert(tag, ended).is_none(),
            "{tag:?} ended twice"
        );
    }

    /// The content of filled leases, which begin at `offset`, is that of the key's generation.
    pub fn check_bytes(
        &self,
        key: &str,
        size_bytes: u64,
        generation: u64,
        offset: u64,
        filled: &[Lease],
    ) {
        let mut at = offset;
        for lease in filled {
            let mut expected = vec![0; lease.len()];
            self.world
                .expected(key, size_bytes, generation, at, &mut expected);
            assert!(
                lease.bytes() == expected,
                "wrong bytes at {at}, {} of them, of {key}",
                lease.len()
            );
            at += lease.len() as u64;
        }
    }

    /// Nothing is under way any more, no event comes late, and all leases are back.
    pub fn finish(mut self) {
        for _ in 0..3 {
            self.world.step();
            if let Some(event) = self.world.origin().poll() {
                panic!("an event after the end: {event:?}");
            }
        }
        assert!(
            self.asked.is_empty() && self.ended.is_empty(),
            "the test left operations behind"
        );
        self.arena.reclaim();
        assert_eq!(self.arena.in_flight_bytes(), 0, "leases are missing");
    }
}
