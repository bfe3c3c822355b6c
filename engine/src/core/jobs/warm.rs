//! Warming a range, a chunk at a time: read it into memory, see that it is on disk, go on. So a warm-up takes no more
//! than the disk can write, and little memory.
//!
//! ```text
//! look -> on disk          -> next chunk
//!      -> no room yet      -> waits until other warm-ups have put on disk what they read
//!      -> in memory        -> handed to the disk tier, which closes its batch soon; woken when that is written
//!      -> in neither       -> a read; woken by its answer
//! the disk tier refuses    -> looks again; given up when it is not even writing
//! ```

use std::ops::Range;
use std::time::Duration;

use super::super::Core;
use super::super::group::Reach;
use super::super::index::mask_of_bytes;
use super::super::read::Read;
use super::super::reader::Reader;
use super::super::timers::Due;
use super::{JobKey, PAUSE, Waits};
use crate::errors::ReadError;
use crate::identity::BlockId;
use crate::limits::{BATCH_AWAITED_MS, BLOCK_BYTES, CHUNK_BYTES};
use crate::ports::{Class, Platform, Time};

/// Looks after which a chunk that is not to be had, or that the disk does not take, is given up.
const TRIES_MAX: u32 = 200;
/// A failure counts for many looks: of the origin, or of a write.
const TRIES_PER_FAILURE: u32 = TRIES_MAX / 8;
/// Who waits for the disk is woken by it; this is for what nobody thought of.
const DISK_LOOK_EVERY: Duration = Duration::from_secs(1);

impl<P: Platform> Core<P> {
    /// Goes on with a warm-up, as far as it goes now.
    pub(super) fn warm(&mut self, now: Time, key: JobKey) {
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
            let found = self.index.find(id).map(|key| self.index.block(key));
            let (present, saving) = found.map_or((0, 0), |block| (block.present, block.saving));
            let on_disk = self.on_disk(id, object.block_len_bytes(id.index));
            let is_here = present & needs == needs;
            let is_kept = match self.parts.disk.is_present() {
                true => on_disk & needs == needs,
                false => is_here,
            };
            // Without a disk that takes anything, memory is all that it can come to; it does not count as kept.
            if is_kept || (is_here && !self.parts.disk.takes(id)) {
                if let Some(job) = self.jobs.get(key) {
                    (job.at, job.tries) = (end, 0);
                }
                continue;
            }
            if !self.has_warm_room(now, key, at) {
                return;
            }
            if tries > TRIES_MAX {
                return match is_here {
                    true => self.end_job_counted(key),
                    false => self.end_job(key, Err(ReadError::Deadline)),
                };
            }
            if !is_here {
                return self.read_for_job(now, key, at..end);
            }
            let due = needs & !on_disk;
            if due & !saving != 0 {
                // The disk tier refused it, or took it and could not write it.
                if !self.offer_again(now, id, due & !saving) {
                    return self.pause_refused(now, key);
                }
                if let Some(job) = self.jobs.get(key) {
                    job.tries += TRIES_PER_FAILURE;
                }
            }
            return self.wait_for_disk(now, key, id);
        }
    }

    /// Offers to the disk tier what it had no room for. Whether it took all of it.
    fn offer_again(&mut self, now: Time, id: BlockId, subs: u64) -> bool {
        self.keep_again(now, id, subs, true);
        let found = self.index.find(id).map(|key| self.index.block(key));
        found.is_some_and(|block| subs & !block.saving == 0)
    }

    /// The disk tier has no room now. While it writes there will be some; else that counts.
    fn pause_refused(&mut self, now: Time, key: JobKey) {
        match self.parts.disk.is_writing() {
            true => self.look_again(now + PAUSE, key),
            false => self.pause_job(now, key),
        }
    }

    /// Waits until a block's parts are written. Its batch closes at once when no other warm-up is about to bring
    /// more, else soon: each of thousands of small files would wait for the batch's whole delay otherwise.
    fn wait_for_disk(&mut self, now: Time, key: JobKey, id: BlockId) {
        self.jobs.set_waits(key, Waits::Disk(id));
        let more_ms = match self.jobs.reading {
            0 => 0,
            _ => BATCH_AWAITED_MS,
        };
        let by = now + Duration::from_millis(more_ms);
        self.parts.disk.close_by(id, by);
        self.look_again(now + DISK_LOOK_EVERY, key);
    }

    /// What is to be known of a block's parts on disk is known: they are there, or will not be.
    pub(in super::super) fn warm_ups_settled(&mut self, now: Time, block: BlockId) {
        for key in self.jobs.take_at_disk(block) {
            self.clear_pause(key);
            self.warm(now, key);
        }
    }

    fn read_for_job(&mut self, now: Time, key: JobKey, bytes: Range<u64>) {
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        let (object, deadline) = (job.object.clone(), job.deadline);
        let want_bytes = (job.held.bytes.end.max(bytes.end) - bytes.start) as u32;
        self.jobs.set_waits(key, Waits::Read);
        let id = self.next_id();
        let mut read = Read::bare(id, object, bytes, deadline, Reader::Job(key));
        read.want_bytes = want_bytes;
        read.class = Class::WarmUp;
        read.reach = Reach::READER;
        self.advance(now, read);
    }

    /// The chunk that a warm-up waited for is in memory, or is not to be had now.
    pub(in super::super) fn job_read(
        &mut self,
        now: Time,
        key: JobKey,
        result: Result<(), ReadError>,
    ) {
        self.jobs.set_waits(key, Waits::Nothing);
        let Some(job) = self.jobs.get(key) else {
            return;
        };
        match result {
            // Not within the answer of its read: that is in the midst of waking others.
            Ok(()) => self.look_again(now, key),
            // There was no memory for it, or the origin failed it for now.
            Err(ReadError::Deadline) if job.deadline > now => self.pause_job(now, key),
            Err(ReadError::Origin(error)) if error.kind.is_transient() && job.deadline > now => {
                job.tries += TRIES_PER_FAILURE;
                self.pause_job(now, key);
            }
            Err(error) => self.end_job(key, Err(error)),
        }
    }

    /// Looks again at `at`, unless it does so already at some time.
    pub(super) fn look_again(&mut self, at: Time, key: JobKey) {
        if let Some(job) = self.jobs.get(key)
            && job.pause_until.is_none()
            // A pause up to the deadline shares its timer.
            && at < job.deadline
        {
            job.pause_until = Some(at);
            self.timers.set(at, Due::Job(key));
        }
    }

    fn clear_pause(&mut self, key: JobKey) {
        if let Some(job) = self.jobs.get(key)
            && let Some(at) = job.pause_until.take()
        {
            self.timers.clear(at, Due::Job(key));
        }
    }
}
