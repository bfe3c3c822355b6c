//! Work on a range of one stripe: warming it, counting what is cached of it, dropping it.
//!
//! ```text
//! asked here   -> this node owns the stripe -> done here
//!              -> another does              -> a call to it (evict: to every member)
//! asked by a peer                           -> done here
//! ```
//!
//! A warm-up goes through its range a chunk at a time: read it into memory, see that it is on disk, go on. So
//! it takes no more than the disk can write, and little memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::group::Reach;
use super::index::mask_of_bytes;
use super::read::Read;
use super::reader::Reader;
use super::timers::Due;
use super::{Core, Tagged};
use crate::arena::Share;
use crate::client::{Callback, RangeRequest, RangeWork};
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::identity::{ObjectVersion, Slot};
use crate::limits::{
    BLOCK_BYTES, CHUNK_BYTES, JOBS_PER_CORE_MAX, OBJECT_BYTES_MAX, PAGE_BYTES, STRIPE_BYTES,
    SUB_BLOCK_BYTES, WARM_BYTES_MAX,
};
use crate::ports::{
    Class, FetchStatus, FetchTag, PeerCore, PeerFailure, Platform, RequestHandle, Time, Transport,
    TransportOp,
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

/// Jobs under way.
#[derive(Default)]
pub(super) struct Jobs(slab::Slab<Job>);

impl Jobs {
    fn get(&mut self, key: JobKey) -> Option<&mut Job> {
        self.0.get_mut(key.slot).filter(|job| job.id == key.id)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Members that one job has calls at, at a time.
const JOB_CALLS_MAX: usize = 16;
/// A warm-up looks again so long after it found no room.
const PAUSE: Duration = Duration::from_millis(10);
/// Looks after which a chunk that the disk does not take is left in memory.
const TRIES_MAX: u32 = 200;

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
        let stripe = STRIPE_BYTES as u64;
        let in_stripe = bytes.start < end && bytes.start / stripe == (end - 1) / stripe;
        let error = if self.shutting_down {
            Some(ReadError::Shutdown)
        } else if !in_stripe {
            Some(ReadError::Invalid)
        } else if deadline <= now || self.jobs.len() >= JOBS_PER_CORE_MAX {
            Some(ReadError::Deadline)
        } else {
            None
        };
        if let Some(error) = error {
            return self.tell_job(asker, Err(error));
        }
        let is_front = matches!(asker, Asker::Front(_));
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
            calls: Vec::new(),
            to_call: Vec::new(),
            unreached: 0,
            dropped_bytes: 0,
            asker,
        };
        let key = JobKey {
            slot: self.jobs.0.insert(job),
            id,
        };
        self.timers.set(deadline, Due::Job(key));
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
            RangeWork::Check | RangeWork::Warm if is_front && !self.group.owns(slot) => {
                let owner = self.group.owner(slot);
                let owner = owner.and_then(|owner| self.group.core_of(owner, slot));
                if let Some(job) = self.jobs.get(key) {
                    job.to_call = owner.into_iter().collect();
                }
                self.call_for_job(now, key);
            }
            RangeWork::Check => self.end_job_counted(key),
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
            let call = match job.work {
                RangeWork::Warm => Call::Warm {
                    object,
                    offset,
                    len_bytes,
                },
                RangeWork::Check => Call::Check {
                    object,
                    offset,
                    len_bytes,
                },
                RangeWork::Evict => Call::Evict {
                    object,
                    offset,
                    len_bytes,
                },
            };
            let Ok(lease) = self.lease(PAGE_BYTES, Share::Prefetch) else {
                return self.pause_job(now, key);
            };
            let tag = FetchTag(self.next_id());
            let op = TransportOp::Call {
                tag,
                to,
                class: Class::WarmUp,
                body: call.encode(),
                lease,
                deadline,
            };
            if self.parts.transport.submit(op).is_err() {
                return self.pause_job(now, key);
            }
            self.tags.insert(tag.0, Tagged::Job(key, tag));
            if let Some(job) = self.jobs.get(key) {
                job.to_call.pop();
                job.calls.push(tag);
            }
        }
    }

    /// A member answered a job's call, or did not.
    pub(super) fn job_told(&mut self, key: JobKey, tag: FetchTag, bytes: Option<&[u8]>) {
        let now = self.now;
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        job.calls.retain(|call| *call != tag);
        let told = bytes.and_then(|bytes| match CallAnswer::decode(bytes) {
            Ok(CallAnswer::Cached { bytes }) => Some(bytes),
            _ => None,
        });
        match (job.work, told) {
            (RangeWork::Evict, told) => {
                job.dropped_bytes += told.unwrap_or(0);
                job.unreached += usize::from(told.is_none());
                self.call_for_job(now, key);
            }
            (_, Some(bytes)) => self.end_job(key, Ok(bytes)),
            (_, None) => self.end_job(key, Err(unreachable())),
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

    /// Ends a job with what is cached of its range now.
    fn end_job_counted(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        let (object, bytes) = (job.object.clone(), job.bytes.clone());
        let cached = self.cached_bytes(&object, bytes);
        self.end_job(key, Ok(cached));
    }

    fn end_job(&mut self, key: JobKey, result: Result<u64, ReadError>) {
        if self.jobs.get(key).is_none() {
            return;
        }
        let job = self.jobs.0.remove(key.slot);
        self.timers.clear(job.deadline, Due::Job(key));
        if let Some(until) = job.pause_until {
            self.timers.clear(until, Due::Job(key));
        }
        for tag in job.calls {
            self.parts.transport.cancel(tag);
        }
        self.tell_job(job.asker, result);
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
        match job.to_call.is_empty() {
            false => self.call_for_job(now, key),
            true if job.work == RangeWork::Warm && job.calls.is_empty() => self.warm(now, key),
            true => {}
        }
    }

    /// Goes on with a warm-up, as far as it goes now.
    fn warm(&mut self, now: Time, key: JobKey) {
        loop {
            let Some(job) = self.jobs.get(key) else {
                return;
            };
            if job.at >= job.bytes.end {
                return self.end_job_counted(key);
            }
            let (object, at, tries) = (job.object.clone(), job.at, job.tries);
            let chunk = at - at % CHUNK_BYTES as u64;
            let end = (chunk + CHUNK_BYTES as u64).min(job.bytes.end);
            let id = object.block(at);
            let needs = mask_of_bytes(
                (at - id.offset()) as usize,
                (end - id.offset()).min(BLOCK_BYTES as u64) as usize,
            );
            let found = self.index.find(id);
            let present = found.map_or(0, |key| self.index.block(key).present);
            let on_disk = self.on_disk(id, object.block_len_bytes(id.index));
            let has_disk = self.parts.disk.is_present();
            let kept = if has_disk { on_disk } else { present };
            if kept & needs == needs || (present & needs == needs && tries > TRIES_MAX) {
                if let Some(job) = self.jobs.get(key) {
                    (job.at, job.tries) = (end, 0);
                }
                continue;
            }
            if present & needs == needs {
                // On its way to disk, or the disk had no room for it: it is offered again.
                self.keep_again(now, id, needs & !on_disk);
                return self.pause_job(now, key);
            }
            if tries > TRIES_MAX {
                return self.end_job(key, Err(ReadError::Deadline));
            }
            return self.read_for_job(now, key, at..end);
        }
    }

    fn pause_job(&mut self, now: Time, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        job.tries += 1;
        let until = now + PAUSE;
        // A pause up to the deadline shares its timer.
        if until < job.deadline && job.pause_until.is_none() {
            job.pause_until = Some(until);
            self.timers.set(until, Due::Job(key));
        }
    }

    fn read_for_job(&mut self, now: Time, key: JobKey, bytes: Range<u64>) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        let (object, deadline) = (job.object.clone(), job.deadline);
        let want_bytes = (job.bytes.end - bytes.start).min(WARM_BYTES_MAX as u64) as u32;
        let id = self.next_id();
        let mut read = Read::bare(id, object, bytes, deadline, Reader::Job(key));
        read.want_bytes = want_bytes;
        read.class = Class::WarmUp;
        read.reach = Reach::READER;
        self.advance(now, read);
    }

    /// The chunk that a warm-up waited for is in memory, or is not to be had now.
    pub(super) fn job_read(&mut self, now: Time, key: JobKey, result: Result<(), ReadError>) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        match result {
            Ok(()) => self.pause_job_shortly(now, key),
            // There was no memory for it, or the origin failed it for now.
            Err(ReadError::Deadline) if job.deadline > now => self.pause_job(now, key),
            Err(ReadError::Origin(error)) if error.kind.is_transient() && job.deadline > now => {
                job.tries += TRIES_MAX / 8;
                self.pause_job(now, key);
            }
            Err(error) => self.end_job(key, Err(error)),
        }
    }

    /// Not within the answer of its read: that is in the midst of waking others.
    fn pause_job_shortly(&mut self, now: Time, key: JobKey) {
        if let Some(job) = self.jobs.get(key)
            && job.pause_until.is_none()
        {
            job.pause_until = Some(now);
            self.timers.set(now, Due::Job(key));
        }
    }

    /// Drops what is cached of a job's range, whole sub-blocks that nobody waits for.
    fn evict_range(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        let (object, bytes) = (job.object.clone(), job.bytes.clone());
        let before = self.cached_bytes(&object, bytes.clone());
        let mut at = bytes.start;
        while at < bytes.end {
            let id = object.block(at);
            self.parts.disk.forget(id);
            if let Some(block) = self.index.find(id) {
                self.index.drop_cached(block);
            }
            at = id.offset() + BLOCK_BYTES as u64;
        }
        let after = self.cached_bytes(&object, bytes);
        if let Some(job) = self.jobs.get(key) {
            job.dropped_bytes = before.saturating_sub(after);
        }
    }

    /// Bytes of a range that are in memory or on disk.
    fn cached_bytes(&self, object: &ObjectVersion, range: Range<u64>) -> u64 {
        let (mut at, mut bytes) = (range.start, 0);
        while at < range.end {
            let id = object.block(at);
            let block_bytes = object.block_len_bytes(id.index);
            let start = (at - id.offset()) as usize;
            let stop =
                ((range.end - id.offset()).min(BLOCK_BYTES as u64) as usize).min(block_bytes);
            let found = self.index.find(id);
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
        let all = self.jobs.0.iter();
        let keys: Vec<JobKey> = all.map(|(slot, job)| JobKey { slot, id: job.id }).collect();
        for key in keys {
            self.end_job(key, Err(ReadError::Shutdown));
        }
    }
}

fn unreachable() -> ReadError {
    ReadError::Origin(OriginError::new(
        OriginErrorKind::Unavailable,
        "a member that had its part in this did not do it; see `forebay status`, and try again",
    ))
}
