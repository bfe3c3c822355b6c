//! Work on a range of one stripe: warming it, counting what is cached of it, dropping it.
//!
//! ```text
//! asked here   -> this node owns the stripe -> done here
//!              -> another does              -> a call to it (evict: to every member)
//! asked by a peer                           -> done here
//! ```
//!
//! How a range is warmed is in [`warm`], and how much at a time in [`room`].

mod room;
mod warm;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::index::{StableMap, mask_of_bytes};
use super::timers::Due;
use super::{Core, Tagged};
use room::{Held, Room};

use crate::client::{Callback, RangeRequest, RangeWork};
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::identity::{BlockId, ObjectVersion, Slot};
use crate::limits::{
    BLOCK_BYTES, JOBS_PER_CORE_MAX, OBJECT_BYTES_MAX, STRIPE_BYTES, SUB_BLOCK_BYTES,
};
use crate::ports::{
    FetchStatus, FetchTag, PeerCore, PeerFailure, Platform, RequestHandle, Time, Transport,
    TransportError,
};
use crate::wire::call::{Call, CallAnswer};

/// Names a job; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobKey {
    slot: usize,
    id: u64,
}

/// Who is told when a job is done.
enum Asker {
    Front(Callback<Result<u64, ReadError>>),
    Peer(RequestHandle, u32),
}

struct Job {
    id: u64,
    work: RangeWork,
    object: Arc<ObjectVersion>,
    bytes: Range<u64>,
    /// How far a warm-up has come.
    at: u64,
    deadline: Time,
    /// When a warm-up looks again.
    pause_until: Option<Time>,
    /// Looks at the present chunk without success.
    tries: u32,
    /// What a warm-up waits for.
    waits: Waits,
    /// What a warm-up may have in memory.
    held: Held,
    /// Calls under way.
    calls: Vec<FetchTag>,
    /// Members that are still to be called.
    to_call: Vec<PeerCore>,
    /// Members that did not answer.
    unreached: usize,
    /// Of an evict: what members dropped.
    dropped_bytes: u64,
    asker: Asker,
}

/// What a warm-up waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Nothing, or a timer.
    Nothing,
    /// That others have put on disk what they read.
    Room,
    /// Its chunk, from wherever it comes.
    Read,
    /// That this block's parts are on disk.
    Disk(BlockId),
}

/// Jobs under way.
#[derive(Default)]
pub(super) struct Jobs {
    all: slab::Slab<Job>,
    /// How many wait for a read,
    reading: usize,
    /// and who waits for the disk, by block.
    at_disk: StableMap<BlockId, Vec<JobKey>>,
    /// What warm-ups have in memory that is not on disk.
    room: Room,
    /// Those of peers, by what they asked.
    of_peers: StableMap<u64, JobKey>,
}

impl Jobs {
    fn get(&mut self, key: JobKey) -> Option<&mut Job> {
        self.all.get_mut(key.slot).filter(|job| job.id == key.id)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a job is under way.
    pub fn has(&self, key: JobKey) -> bool {
        self.all.get(key.slot).is_some_and(|job| job.id == key.id)
    }

    /// Warm-ups that wait until a block's parts are on disk; they wait no more.
    pub fn take_at_disk(&mut self, block: BlockId) -> Vec<JobKey> {
        let keys = self.at_disk.remove(&block).unwrap_or_default();
        for key in &keys {
            if let Some(job) = self.get(*key) {
                job.waits = Waits::Nothing;
            }
        }
        keys
    }

    fn set_waits(&mut self, key: JobKey, waits: Waits) {
        let Some(job) = self.get(key) else {
            return;
        };
        let before = std::mem::replace(&mut job.waits, waits);
        if before == waits {
            return;
        }
        match before {
            Waits::Nothing | Waits::Room => {}
            Waits::Read => self.reading -= 1,
            Waits::Disk(block) => {
                if let Some(keys) = self.at_disk.get_mut(&block) {
                    keys.retain(|other| *other != key);
                    if keys.is_empty() {
                        self.at_disk.remove(&block);
                    }
                }
            }
        }
        match waits {
            Waits::Nothing | Waits::Room => {}
            Waits::Read => self.reading += 1,
            Waits::Disk(block) => self.at_disk.entry(block).or_default().push(key),
        }
    }
}

/// Members that one job has calls at, at a time.
const JOB_CALLS_MAX: usize = 16;
/// A job looks again so long after it found no room.
const PAUSE: Duration = Duration::from_millis(10);

impl<P: Platform> Core<P> {
    /// Takes work from this node's ring.
    pub(super) fn accept_range(&mut self, now: Time, request: RangeRequest) {
        let RangeRequest {
            work,
            object,
            offset,
            len_bytes,
            deadline,
            reply,
        } = request;
        let bytes = offset..offset.saturating_add(u64::from(len_bytes));
        self.begin_job(now, work, object, bytes, deadline, Asker::Front(reply));
    }

    /// Takes a peer's work. Only who owns a range warms it.
    pub(super) fn accept_peer_range(
        &mut self,
        now: Time,
        peer: (RequestHandle, u32),
        work: RangeWork,
        object: Arc<ObjectVersion>,
        bytes: Range<u64>,
        deadline: Time,
    ) {
        let slot = Slot::of_stripe(object.id, bytes.start);
        if slot.core(self.config.cores) != self.config.core {
            return self.answer_peer(peer.0, FetchStatus::Busy, None);
        }
        if work == RangeWork::Warm
            && let Some(owner) = self
                .group
                .owner(slot)
                .filter(|owner| *owner != self.config.me)
        {
            return self.answer_peer(peer.0, FetchStatus::NotOwner { owner }, None);
        }
        let asker = Asker::Peer(peer.0, peer.1);
        self.begin_job(now, work, object, bytes, deadline, asker);
    }

    fn begin_job(
        &mut self,
        now: Time,
        work: RangeWork,
        object: Arc<ObjectVersion>,
        bytes: Range<u64>,
        deadline: Time,
        asker: Asker,
    ) {
        let end = bytes.end.min(object.size_bytes.min(OBJECT_BYTES_MAX));
        if let Some(error) = self.refusal_of_job(now, &(bytes.start..end), deadline) {
            return self.tell_job(asker, Err(error));
        }
        let of_peer = match asker {
            Asker::Front(_) => None,
            Asker::Peer(handle, _) => Some(handle.0),
        };
        let id = self.next_id();
        let slot = Slot::of_stripe(object.id, bytes.start);
        let job = Job {
            id,
            work,
            object,
            at: bytes.start,
            bytes: bytes.start..end,
            deadline,
            pause_until: None,
            tries: 0,
            waits: Waits::Nothing,
            held: Held::default(),
            calls: Vec::new(),
            to_call: Vec::new(),
            unreached: 0,
            dropped_bytes: 0,
            asker,
        };
        let key = JobKey {
            slot: self.jobs.all.insert(job),
            id,
        };
        if let Some(handle) = of_peer {
            self.jobs.of_peers.insert(handle, key);
        }
        self.timers.set(deadline, Due::Job(key));
        self.start_job(now, key, work, slot, of_peer.is_none());
    }

    /// Why there will be no job on a range.
    fn refusal_of_job(&self, now: Time, bytes: &Range<u64>, deadline: Time) -> Option<ReadError> {
        let stripe = STRIPE_BYTES as u64;
        let in_stripe = !bytes.is_empty() && bytes.start / stripe == (bytes.end - 1) / stripe;
        if self.shutting_down {
            Some(ReadError::Shutdown)
        } else if !in_stripe {
            Some(ReadError::Invalid)
        } else if deadline <= now || self.jobs.len() >= JOBS_PER_CORE_MAX {
            Some(ReadError::Deadline)
        } else {
            None
        }
    }

    /// Does here what is to be done here, and calls whom it takes. `is_front`: this node's own front asked.
    fn start_job(&mut self, now: Time, key: JobKey, work: RangeWork, slot: Slot, is_front: bool) {
        match work {
            RangeWork::Evict => {
                self.evict_range(key);
                let others = if is_front {
                    self.others(slot)
                } else {
                    Vec::new()
                };
                if let Some(job) = self.jobs.get(key) {
                    job.to_call = others;
                }
                self.call_for_job(now, key);
            }
            RangeWork::Check | RangeWork::Kept | RangeWork::Warm
                if is_front && !self.group.owns(slot) =>
            {
                let owner = self.group.owner(slot);
                let owner = owner.and_then(|owner| self.group.core_of(owner, slot));
                if let Some(job) = self.jobs.get(key) {
                    job.to_call = owner.into_iter().collect();
                }
                self.call_for_job(now, key);
            }
            RangeWork::Check | RangeWork::Kept => self.end_job_counted(key),
            RangeWork::Warm => self.warm(now, key),
        }
    }

    /// Every other member's core for a slot.
    fn others(&self, slot: Slot) -> Vec<PeerCore> {
        let members = self.group.view().map_or(&[][..], |view| view.members());
        let others = members.iter().filter(|member| member.id != self.config.me);
        others
            .filter_map(|member| self.group.core_of(member.id, slot))
            .collect()
    }

    /// Calls whom a job has still to call, as far as there is room; looks again later for the rest.
    fn call_for_job(&mut self, now: Time, key: JobKey) {
        loop {
            let Some(job) = self.jobs.get(key) else {
                return;
            };
            let Some(to) = job.to_call.last().copied() else {
                return self.end_job_if_told(key);
            };
            if job.calls.len() >= JOB_CALLS_MAX {
                return;
            }
            let (object, offset) = (job.object.clone(), job.bytes.start);
            let len_bytes = (job.bytes.end - offset) as u32;
            let deadline = job.deadline;
            let call = Call::Range {
                work: job.work,
                object,
                offset,
                len_bytes,
            };
            let tagged = |tag| Tagged::Job(key, tag);
            let Some(tag) = self.call_member(to, &call, deadline, tagged) else {
                return self.pause_job(now, key);
            };
            if let Some(job) = self.jobs.get(key) {
                job.to_call.pop();
                job.calls.push(tag);
            }
        }
    }

    /// A member answered a job's call, or did not.
    pub(super) fn job_told(
        &mut self,
        key: JobKey,
        tag: FetchTag,
        outcome: Result<(FetchStatus, &[u8]), TransportError>,
    ) {
        let now = self.now;
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        job.calls.retain(|call| *call != tag);
        match (job.work, told(outcome)) {
            (RangeWork::Evict, told) => {
                job.unreached += usize::from(told.is_err());
                job.dropped_bytes += told.unwrap_or(0);
                self.call_for_job(now, key);
            }
            (_, told) => self.end_job(key, told),
        }
    }

    fn end_job_if_told(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        if job.calls.is_empty() && job.to_call.is_empty() {
            let result = match job.unreached {
                0 => Ok(job.dropped_bytes),
                _ => Err(unreachable()),
            };
            self.end_job(key, result);
        }
    }

    /// Ends a job with what is cached of its range now; a warm-up with what stays.
    fn end_job_counted(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        let on_disk_only = job.work != RangeWork::Check && self.parts.disk.is_present();
        let (object, bytes) = (job.object.clone(), job.bytes.clone());
        let cached = self.cached_bytes(&object, bytes, on_disk_only);
        self.end_job(key, Ok(cached));
    }

    fn end_job(&mut self, key: JobKey, result: Result<u64, ReadError>) {
        if self.jobs.get(key).is_none() {
            return;
        }
        self.jobs.set_waits(key, Waits::Nothing);
        self.let_go(key);
        let job = self.jobs.all.remove(key.slot);
        if let Asker::Peer(handle, _) = job.asker {
            self.jobs.of_peers.remove(&handle.0);
        }
        self.timers.clear(job.deadline, Due::Job(key));
        if let Some(until) = job.pause_until {
            self.timers.clear(until, Due::Job(key));
        }
        for tag in job.calls {
            self.parts.transport.cancel(tag);
        }
        self.tell_job(job.asker, result);
    }

    /// A peer waits no more for what it asked: others may need the place.
    pub(super) fn job_given_up(&mut self, handle: RequestHandle) {
        if let Some(key) = self.jobs.of_peers.get(&handle.0).copied() {
            self.end_job(key, Err(ReadError::Deadline));
        }
    }

    fn tell_job(&mut self, asker: Asker, result: Result<u64, ReadError>) {
        match (asker, result) {
            (Asker::Front(reply), result) => reply(result),
            (Asker::Peer(handle, room_bytes), Ok(bytes)) => {
                self.answer_call(handle, &CallAnswer::Cached { bytes }, room_bytes);
            }
            (Asker::Peer(handle, _), Err(error)) => {
                let failure = PeerFailure::of(&error);
                self.answer_peer(handle, FetchStatus::Failed(failure), None);
            }
        }
    }

    /// A job's timer is due: its deadline, or the end of a pause.
    pub(super) fn job_due(&mut self, now: Time, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        if job.deadline <= now {
            return self.end_job(key, Err(ReadError::Deadline));
        }
        job.pause_until = None;
        if let Waits::Disk(_) = job.waits {
            self.jobs.set_waits(key, Waits::Nothing);
        }
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        match job.to_call.is_empty() {
            false => self.call_for_job(now, key),
            true if job.work == RangeWork::Warm && job.calls.is_empty() => self.warm(now, key),
            true => {}
        }
    }

    /// Looks again after a while, one try more behind it.
    fn pause_job(&mut self, now: Time, key: JobKey) {
        if let Some(job) = self.jobs.get(key) {
            job.tries += 1;
            self.look_again(now + PAUSE, key);
        }
    }

    /// Drops what is cached of a job's range, whole sub-blocks that nobody waits for.
    fn evict_range(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        let (object, bytes) = (job.object.clone(), job.bytes.clone());
        let before = self.cached_bytes(&object, bytes.clone(), false);
        let mut at = bytes.start;
        while at < bytes.end {
            let id = object.block(at);
            self.parts.disk.forget(id);
            if let Some(block) = self.index.find(id) {
                self.index.drop_cached(block);
            }
            at = id.offset() + BLOCK_BYTES as u64;
        }
        let after = self.cached_bytes(&object, bytes, false);
        if let Some(job) = self.jobs.get(key) {
            job.dropped_bytes = before.saturating_sub(after);
        }
    }

    /// Bytes of a range that are in memory or on disk, or on disk.
    fn cached_bytes(&self, object: &ObjectVersion, range: Range<u64>, on_disk_only: bool) -> u64 {
        let (mut at, mut bytes) = (range.start, 0);
        while at < range.end {
            let id = object.block(at);
            let block_bytes = object.block_len_bytes(id.index);
            let start = (at - id.offset()) as usize;
            let stop =
                ((range.end - id.offset()).min(BLOCK_BYTES as u64) as usize).min(block_bytes);
            let found = self.index.find(id).filter(|_| !on_disk_only);
            let present = found.map_or(0, |key| self.index.block(key).present);
            let mut here = (present | self.on_disk(id, block_bytes)) & mask_of_bytes(start, stop);
            while here != 0 {
                let sub = here.trailing_zeros() as usize * SUB_BLOCK_BYTES;
                bytes += ((sub + SUB_BLOCK_BYTES).min(stop) - sub.max(start)) as u64;
                here &= here - 1;
            }
            at = id.offset() + BLOCK_BYTES as u64;
        }
        bytes
    }

    /// Ends every job.
    pub(super) fn refuse_all_jobs(&mut self) {
        let all = self.jobs.all.iter();
        let keys: Vec<JobKey> = all.map(|(slot, job)| JobKey { slot, id: job.id }).collect();
        for key in keys {
            self.end_job(key, Err(ReadError::Shutdown));
        }
    }
}

/// What became of a call. Why the owner failed is told as it is: it may be for good.
fn told(outcome: Result<(FetchStatus, &[u8]), TransportError>) -> Result<u64, ReadError> {
    match outcome {
        Ok((FetchStatus::Bytes, bytes)) => match CallAnswer::decode(bytes) {
            Ok(CallAnswer::Cached { bytes }) => Ok(bytes),
            _ => Err(unreachable()),
        },
        Ok((FetchStatus::Failed(PeerFailure::Origin(kind)), _)) => Err(match kind {
            OriginErrorKind::VersionChanged => ReadError::VersionChanged,
            kind => ReadError::Origin(OriginError::new(
                kind,
                "so the member that owns it was told; its `forebay status` says more",
            )),
        }),
        Ok((FetchStatus::Failed(PeerFailure::Elsewhere), _)) => Err(elsewhere()),
        Ok((FetchStatus::Failed(PeerFailure::Deadline), _)) => Err(ReadError::Deadline),
        _ => Err(unreachable()),
    }
}

fn elsewhere() -> ReadError {
    ReadError::Origin(OriginError::new(
        OriginErrorKind::NotFound,
        "the member that owns it reads from another S3 endpoint; see `forebay status`, and give all the same --endpoint",
    ))
}

fn unreachable() -> ReadError {
    ReadError::Origin(OriginError::new(
        OriginErrorKind::Unavailable,
        "a member that had its part in this did not do it; see `forebay status`, and try again",
    ))
}
