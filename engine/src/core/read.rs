//! A read's life, from the ring to its answer.
//!
//! ```text
//! ring -> look -> hit  -> verify -> answer
//!                |          | page wrong: drop the piece, look again (once), else error
//!                miss -> small and on disk: read directly (`direct`) -> answer
//!                        else join or plan loads and fills -> parked -> look again when bytes arrive
//!                                                 | deadline, failed fill, shutdown: error
//! ```
//!
//! A parked read holds no buffer: it looks at the index again when something that it needs
//! arrives. So waiting readers can never use up the arena that their own fills need.

mod waiting;

use std::ops::Range;
use std::sync::Arc;

use super::Core;
use super::group::Reach;
use super::index::{BlockKey, Mask, mask_of_bytes};
use super::reader::{LaneOf, Reader};
use super::serve::PeerReader;
use crate::client::{Answer, ReadRequest};
use crate::errors::ReadError;
use crate::identity::{BlockId, ObjectVersion};
use crate::limits::{
    BLOCK_BYTES, CHECKSUM_RETRIES_MAX, OBJECT_BYTES_MAX, READ_BYTES_MAX, SUB_BLOCK_BYTES,
};
use crate::ports::{Class, Clock, PeerFetch, Platform, Time};
use crate::stats::Reason;

/// Names a parked read; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadKey {
    pub slot: usize,
    pub id: u64,
}

/// Which way a read that missed goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Undecided,
    /// Straight from disk.
    Direct,
    /// Through the memory index.
    Memory,
}

/// The farthest place that a read had to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    Memory,
    Disk,
    /// Another member.
    Group,
    Origin,
}

/// One read that this core has accepted.
#[derive(Debug)]
pub(super) struct Read<R> {
    pub id: u64,
    pub object: Arc<ObjectVersion>,
    pub offset: u64,
    pub len_bytes: u32,
    pub want_bytes: u32,
    pub submitted: Time,
    pub deadline: Time,
    pub route: Route,
    pub tier: Tier,
    /// Parked as a direct read: without a timer.
    pub is_direct: bool,
    /// The disk tier had its bytes and could not give them.
    pub lost: Option<Reason>,
    waited: bool,
    /// Counted in `Core::admitted_bytes` while it is parked.
    admitted: bool,
    checksum_retries: u8,
    pub class: Class,
    /// Where it waits.
    lane: LaneOf,
    pub reach: Reach,
    pub reader: Reader<R>,
}

/// The part of a read that lies in one block.
#[derive(Clone, Debug)]
struct Span {
    block: BlockId,
    bytes: Range<usize>,
}

impl<R> Read<R> {
    /// A read of this node's that nothing was done for yet.
    pub fn new(id: u64, request: ReadRequest<R>) -> Self {
        let bytes = request.offset..request.offset + u64::from(request.len_bytes);
        let reader = Reader::Front(request.answer);
        Self {
            want_bytes: request.want_bytes,
            submitted: request.submitted,
            ..Self::bare(id, request.object, bytes, request.deadline, reader)
        }
    }

    /// A peer's.
    pub fn of_peer(
        id: u64,
        object: Arc<ObjectVersion>,
        fetch: &PeerFetch,
        deadline: Time,
        reader: PeerReader,
    ) -> Self {
        let bytes = fetch.offset..fetch.offset + u64::from(fetch.len_bytes);
        Self {
            want_bytes: fetch.want_bytes,
            class: fetch.class,
            ..Self::bare(id, object, bytes, deadline, Reader::Peer(reader))
        }
    }

    /// A read of bytes, for whoever it is.
    pub fn bare(
        id: u64,
        object: Arc<ObjectVersion>,
        bytes: Range<u64>,
        deadline: Time,
        reader: Reader<R>,
    ) -> Self {
        Self {
            id,
            object,
            offset: bytes.start,
            len_bytes: (bytes.end - bytes.start) as u32,
            want_bytes: 0,
            submitted: Time::default(),
            deadline,
            route: Route::Undecided,
            tier: Tier::Memory,
            is_direct: false,
            lost: None,
            waited: false,
            admitted: false,
            checksum_retries: 0,
            class: Class::Demand,
            lane: LaneOf::Front,
            reach: Reach::READER,
            reader,
        }
    }

    /// Bytes of the sub-blocks that must be in memory together for this read to be answered.
    fn footprint_bytes(&self) -> usize {
        let sub_bytes = SUB_BLOCK_BYTES as u64;
        // A warm-up has all that it wants on its way at a time.
        let end = match self.reader {
            Reader::Job(_) | Reader::Take(_) => {
                self.offset + u64::from(self.want_bytes.max(self.len_bytes))
            }
            Reader::Front(_) | Reader::Peer(_) => self.end(),
        };
        let subs = end.div_ceil(sub_bytes) - self.offset / sub_bytes;
        subs as usize * SUB_BLOCK_BYTES
    }

    /// Where it begins in its first block.
    pub fn offset_in_block(&self) -> usize {
        (self.offset % BLOCK_BYTES as u64) as usize
    }

    fn end(&self) -> u64 {
        self.offset + u64::from(self.len_bytes)
    }

    /// One span, or two for a read that crosses blocks.
    fn spans(&self) -> impl Iterator<Item = Span> + use<R> {
        let (object, end) = (self.object.id, self.end());
        let mut at = self.offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let index = (at / BLOCK_BYTES as u64) as u32;
            let block = BlockId { object, index };
            let start = (at - block.offset()) as usize;
            let stop = (end - block.offset()).min(BLOCK_BYTES as u64) as usize;
            at = block.offset() + stop as u64;
            Some(Span {
                block,
                bytes: start..stop,
            })
        })
    }
}

/// What a look at the index shows.
enum Look {
    Hit,
    Miss,
}

impl<P: Platform> Core<P> {
    /// Takes a read from the ring.
    pub(super) fn accept_read(&mut self, now: Time, request: ReadRequest<P::Reply>) {
        let object_end = request.object.size_bytes.min(OBJECT_BYTES_MAX);
        let in_object = request
            .offset
            .checked_add(u64::from(request.len_bytes))
            .is_some_and(|end| end <= object_end);
        let refusal = if self.shutting_down {
            Some(ReadError::Shutdown)
        } else if request.len_bytes as usize > READ_BYTES_MAX || !in_object {
            Some(ReadError::Invalid)
        } else if request.deadline <= now {
            Some(ReadError::Deadline)
        } else {
            None
        };
        match refusal {
            Some(error) => self.refuse_front(request.answer, error),
            None => {
                if let Some(request) = self.answer_hit(now, request) {
                    let read = Read::new(self.next_id(), request);
                    self.advance(now, read);
                }
            }
        }
    }

    /// Moves a read as far as it goes now.
    pub(super) fn advance(&mut self, now: Time, mut read: Read<P::Reply>) {
        loop {
            match self.look(&read) {
                Look::Miss if read.reach == Reach::Here && !self.may_come(&read) => {
                    return self.decline(read);
                }
                // The member that leaves was asked, and has it no more.
                Look::Miss if matches!(read.reach, Reach::From(_)) && read.lost.is_some() => {
                    return self.decline(read);
                }
                Look::Miss => {
                    if let Some(read) = self.try_direct(now, read) {
                        self.await_bytes(now, read);
                    }
                    return;
                }
                // What a peer reads it checks itself.
                Look::Hit if read.reader.trusts() || self.verify(now, &read) => {
                    return self.reply(read);
                }
                Look::Hit if read.checksum_retries < CHECKSUM_RETRIES_MAX => {
                    read.checksum_retries += 1
                }
                Look::Hit => return self.refuse(read, ReadError::Checksum),
            }
        }
    }

    fn look(&self, read: &Read<P::Reply>) -> Look {
        let hit = read.spans().all(|span| {
            let needs = mask_of_bytes(span.bytes.start, span.bytes.end);
            self.index
                .find(span.block)
                .is_some_and(|key| self.index.block(key).present & needs == needs)
        });
        if hit { Look::Hit } else { Look::Miss }
    }

    /// Whether all of a read is in memory or on its way there.
    fn is_coming(&self, read: &Read<P::Reply>) -> bool {
        read.spans().all(|span| {
            let needs = mask_of_bytes(span.bytes.start, span.bytes.end);
            self.index.find(span.block).is_some_and(|key| {
                let block = self.index.block(key);
                (block.present | block.in_flight) & needs == needs
            })
        })
    }

    /// Whether all of a read is here, or on its way from an origin that answers.
    fn may_come(&self, read: &Read<P::Reply>) -> bool {
        self.is_here(read, !self.outages.is_known(&read.object.bucket))
    }

    /// Whether all of a read is here: in memory or on disk, or, when `coming` counts, on its way from the origin.
    fn is_here(&self, read: &Read<P::Reply>, coming: bool) -> bool {
        read.spans().all(|span| {
            let needs = mask_of_bytes(span.bytes.start, span.bytes.end);
            let block_bytes = read.object.block_len_bytes(span.block.index);
            let on_disk = match read.lost {
                Some(_) => 0,
                None => self.on_disk(span.block, block_bytes),
            };
            (on_disk | self.in_memory(span.block, coming)) & needs == needs
        })
    }

    /// The sub-blocks of a block that are in memory, or, when `coming` counts, on their way from disk or origin.
    pub(super) fn in_memory(&self, id: BlockId, coming: bool) -> Mask {
        self.index.find(id).map_or(0, |key| {
            let block = self.index.block(key);
            let promised = block.fills.iter();
            let promised = promised.filter(|filling| coming && !filling.by.is_pull());
            promised.fold(block.present, |mask, filling| mask | filling.brings)
        })
    }

    /// Which of the sub-blocks that a read of one block touches are here, or on their way from the origin: a bit for
    /// each, the lowest for the first.
    pub(super) fn parts_here(&self, read: &Read<P::Reply>) -> u16 {
        let Some(Span { block, bytes }) = read.spans().next() else {
            return 0;
        };
        let on_disk = self.on_disk(block, read.object.block_len_bytes(block.index));
        let here = on_disk | self.in_memory(block, true);
        let needs = mask_of_bytes(bytes.start, bytes.end);
        ((here & needs) >> (bytes.start / SUB_BLOCK_BYTES)) as u16
    }

    /// Checks every page that the read touches, but those that arrived in this very turn; drops the
    /// pieces that fail.
    fn verify(&mut self, now: Time, read: &Read<P::Reply>) -> bool {
        let mut whole = true;
        let changes = self.index.changes;
        for span in read.spans() {
            if self.ahead.take_check(span.block, &span.bytes, now, changes) {
                continue;
            }
            let Some(key) = self.index.find(span.block) else {
                return false;
            };
            let block = self.index.block(key);
            let bad: Vec<usize> = block
                .slices(span.bytes.start, span.bytes.end)
                .filter(|(piece, start, end)| {
                    !piece.is_checked(self.turns) && !piece.verify(block.seed, *start, *end)
                })
                .map(|(piece, _, _)| piece.first_page as usize)
                .collect();
            for first_page in bad {
                whole = false;
                self.stats.checksum_failures += 1;
                if let Some(left_out) = self.checksum_log.open(now) {
                    tracing::warn!(
                        object = ?read.object.key, block = span.block.index, page = first_page, left_out,
                        "cached bytes failed their checksum; they are dropped and fetched again"
                    );
                }
                self.index.spoil(
                    key,
                    first_page * crate::limits::PAGE_BYTES / SUB_BLOCK_BYTES,
                );
            }
        }
        whole
    }

    /// Answers with bytes that are present and verified.
    fn reply(&mut self, read: Read<P::Reply>) {
        match read.reader {
            Reader::Front(_) => {}
            Reader::Peer(_) => return self.serve(read),
            Reader::Job(key) => return self.job_read(self.now, key, Ok(())),
            Reader::Take(key) => return self.take_read(self.now, key, Ok(())),
        }
        let len = read.len_bytes as usize;
        let mut keys: [Option<BlockKey>; 2] = [None; 2];
        for (n, span) in read.spans().enumerate() {
            keys[n] = self.index.find(span.block);
            if let Some(key) = keys[n]
                && self.index.touch(key, span.bytes.clone())
            {
                self.parts.disk.touch(span.block);
            }
        }
        let mut slices = read.spans().zip(keys).flat_map(|(span, key)| {
            let block = key.map(|key| self.index.block(key));
            block
                .into_iter()
                .flat_map(move |block| block.slices(span.bytes.start, span.bytes.end))
        });
        let Some((piece, start, end)) = slices.next() else {
            return self.refuse_unplaced(read);
        };
        let (tier, submitted) = (read.tier, read.submitted);
        self.ahead
            .note(read.object.id, read.offset, u64::from(read.len_bytes));
        if end - start == len {
            read.reader.data(&piece.bytes[start..end]);
        } else {
            self.bounce.clear();
            self.bounce.extend_from_slice(&piece.bytes[start..end]);
            for (piece, start, end) in slices {
                self.bounce.extend_from_slice(&piece.bytes[start..end]);
            }
            debug_assert_eq!(self.bounce.len(), len);
            read.reader.data(&self.bounce);
        }
        self.count_answer(len as u64, tier, submitted);
    }

    /// Counts a read that was answered just now.
    pub(super) fn count_answer(&mut self, len_bytes: u64, tier: Tier, submitted: Time) {
        let answered = self.parts.clock.now();
        self.count_answered(len_bytes, tier, submitted, answered);
    }

    /// Counts a read that was answered at that time.
    pub(super) fn count_answered(
        &mut self,
        len_bytes: u64,
        tier: Tier,
        submitted: Time,
        answered: Time,
    ) {
        let latency_ns = answered.since(submitted).as_nanos() as u64;
        let stats = &mut self.stats;
        stats.reads += 1;
        stats.read_bytes += len_bytes;
        let (reads, bytes, latencies) = match tier {
            Tier::Memory => (
                &mut stats.memory_hits,
                &mut stats.memory_hit_bytes,
                &mut stats.hit_latency_ns,
            ),
            Tier::Disk => (
                &mut stats.disk_hits,
                &mut stats.disk_hit_bytes,
                &mut stats.disk_latency_ns,
            ),
            Tier::Group => (
                &mut stats.group_hits,
                &mut stats.group_hit_bytes,
                &mut stats.group_latency_ns,
            ),
            Tier::Origin => (
                &mut stats.misses,
                &mut stats.miss_bytes,
                &mut stats.miss_latency_ns,
            ),
        };
        *reads += 1;
        *bytes += len_bytes;
        latencies.saturating_record(latency_ns);
    }

    /// What this read waits for has to come from as far as `tier`.
    pub(super) fn note_tier(reads: &mut slab::Slab<Read<P::Reply>>, key: ReadKey, tier: Tier) {
        if let Some(read) = reads.get_mut(key.slot).filter(|read| read.id == key.id) {
            read.tier = read.tier.max(tier);
        }
    }

    /// A zero-length read has no slice; anything else without one is a bug, answered as an error.
    pub(super) fn refuse_unplaced(&mut self, read: Read<P::Reply>) {
        if read.len_bytes == 0 {
            return read.reader.data(&[]);
        }
        debug_assert!(false, "a read that hit has bytes");
        self.refuse(read, ReadError::Invalid);
    }

    pub(super) fn refuse(&mut self, read: Read<P::Reply>, error: ReadError) {
        match read.reader {
            Reader::Front(answer) => self.refuse_front(answer, error),
            Reader::Peer(peer) => self.refuse_peer(peer, &error),
            Reader::Job(key) => self.job_read(self.now, key, Err(error)),
            Reader::Take(key) => self.take_read(self.now, key, Err(error)),
        }
    }

    fn refuse_front(&mut self, answer: Answer<P::Reply>, error: ReadError) {
        self.stats.read_errors += 1;
        if error == ReadError::Deadline {
            self.stats.read_timeouts += 1;
        }
        answer.error(error);
    }
}
