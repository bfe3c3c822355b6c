//! Peers' requests.
//!
//! A fetch becomes a read whose answer goes to a peer: the same look, the same waiting, the same single
//! flight. How far it may go for what is not here depends on what this node is for the stripe
//! (`docs/decisions/0020-placement.md`); what it may not bring it declines.

mod calls;
mod lines;
mod names;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::group::Reach;
use super::index::{StableMap, mask_of_bytes};
use super::read::Read;
use super::reader::Reader;
use super::{Core, Tagged};
use crate::errors::{OriginErrorKind, ReadError};
use crate::identity::{BlockId, ObjectVersion, Slot};
use crate::limits::{
    BLOCK_BYTES, CHUNK_BYTES, OBJECT_BYTES_MAX, PAGE_BYTES, READS_PER_CORE_MAX, SERVE_ARENA_SHARE,
    SUB_BLOCK_BYTES,
};
use crate::ports::{
    FetchStatus, Full, Payload, PeerAsk, PeerFailure, PeerFetch, PeerId, Platform, RequestHandle,
    Time, Transport, TransportEvent, TransportOp,
};
use lines::{Asked, Waiting};
use names::Names;

/// The peer that a read is for.
#[derive(Debug)]
pub(super) struct PeerReader {
    handle: RequestHandle,
    peer: PeerId,
    /// What it is told when the bytes are not here and this node is not to bring them.
    otherwise: FetchStatus,
    /// Check the bytes before they leave.
    pub verify: bool,
}

/// Requests of peers, and what they were told.
#[derive(Debug, Default)]
pub(super) struct Serving {
    names: Names,
    /// Fetches that nobody has looked at.
    waiting: Waiting,
    /// Reads for peers.
    reads: usize,
    /// Answers that the transport had no room for.
    answers: VecDeque<TransportOp>,
    /// Buffers in answers that have not left yet, by answer and by peer.
    lent: StableMap<u64, (PeerId, usize)>,
    lent_to: BTreeMap<PeerId, usize>,
    lent_bytes: usize,
    /// Empty ones, whose tables the next answers use.
    spare_payloads: Vec<Payload>,
}

impl Serving {
    /// Whether requests wait to be looked at.
    pub fn are_queued(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When a request must be answered though nothing else happens.
    pub fn wake_at(&self) -> Time {
        self.waiting.deadline()
    }

    fn lend(&mut self, handle: RequestHandle, peer: PeerId, payload: &Payload) {
        let parts = payload.parts.iter();
        let bytes: usize = parts.map(|part| part.footprint_bytes()).sum();
        self.lent.insert(handle.0, (peer, bytes));
        self.lent_bytes += bytes;
        *self.lent_to.entry(peer).or_default() += bytes;
    }

    fn back(&mut self, handle: RequestHandle) {
        let Some((peer, bytes)) = self.lent.remove(&handle.0) else {
            return;
        };
        self.lent_bytes -= bytes;
        if let Some(lent) = self.lent_to.get_mut(&peer) {
            *lent -= bytes;
            if *lent == 0 {
                self.lent_to.remove(&peer);
            }
        }
    }

    /// An answer has left: its tables serve the next.
    fn spare(&mut self, payload: Option<Payload>) {
        if let Some(mut payload) = payload
            && self.spare_payloads.len() < SPARE_PAYLOADS_MAX
        {
            payload.parts.clear();
            payload.checksums.clear();
            self.spare_payloads.push(payload);
        }
    }

    /// The next request that may be looked at: of a peer that has taken what it was given.
    fn next(&mut self, lent_max: usize) -> Option<Asked> {
        if self.lent_bytes > lent_max {
            return None;
        }
        let lent_to = &self.lent_to;
        self.waiting.next(|peer| {
            let lent = lent_to.get(&peer).copied().unwrap_or(0);
            lent <= lent_max / LENT_PEER_SHARE
        })
    }

    /// Whether nothing is lent.
    pub fn is_quiet(&self) -> bool {
        self.lent_bytes == 0 && self.answers.is_empty()
    }
}

impl<P: Platform> Core<P> {
    /// Takes what the transport tells.
    pub(super) fn take_peers(&mut self, now: Time, budget: usize) -> bool {
        for taken in 0..budget {
            let Some(event) = self.parts.transport.poll() else {
                self.serve_line(now);
                return taken > 0;
            };
            match event {
                TransportEvent::Fetched {
                    tag,
                    lease,
                    result,
                    len_bytes,
                    checksums,
                } => match self.tags.remove(&tag.0) {
                    Some(Tagged::Pull(key)) => {
                        self.pull_ended(now, key, lease, result, checksums);
                    }
                    Some(Tagged::Describe(key)) => {
                        drop(lease);
                        self.described(now, key, result);
                    }
                    Some(Tagged::Question(key, peer)) => {
                        let bytes = lease.bytes().get(..len_bytes as usize).unwrap_or_default();
                        let outcome = result.map(|status| (status, bytes));
                        self.owner_told(now, key, (peer, tag), outcome);
                    }
                    Some(Tagged::Offer(tag)) => {
                        let bytes = lease.bytes().get(..len_bytes as usize).unwrap_or_default();
                        self.offer_answered(now, tag, result.map(|status| (status, bytes)));
                    }
                    Some(Tagged::Job(key, tag)) => {
                        let bytes = lease.bytes().get(..len_bytes as usize).unwrap_or_default();
                        self.job_told(key, tag, result.map(|status| (status, bytes)));
                    }
                    _ => debug_assert!(false, "{tag:?} is nobody's"),
                },
                TransportEvent::Request {
                    handle,
                    peer,
                    ask,
                    deadline,
                } => {
                    self.group.heard(peer);
                    match ask {
                        PeerAsk::Fetch(fetch) => self.line_up(now, (handle, peer), fetch, deadline),
                        PeerAsk::Call { body, room_bytes } => {
                            self.take_call(now, peer, (handle, room_bytes), deadline, &body);
                        }
                    }
                }
                // Its fetches end soon by themselves; what they are waiting for serves whoever asks next.
                TransportEvent::GivenUp { handle } => {
                    self.job_given_up(handle);
                    self.take_given_up(handle);
                }
                TransportEvent::Answered { handle, payload } => {
                    self.serving.back(handle);
                    self.serving.spare(payload);
                }
            }
            self.serve_line(now);
        }
        budget > 0
    }

    /// A request stands in line.
    fn line_up(
        &mut self,
        now: Time,
        (handle, peer): (RequestHandle, PeerId),
        fetch: PeerFetch,
        deadline: Time,
    ) {
        let asked = Asked {
            handle,
            peer,
            fetch,
            deadline: self.peer_deadline(now, deadline),
        };
        // What has nothing to give does not wait for what may be given.
        if !self.serve_ceiling.is_free(now) && !self.holds_reads(now) && self.has_none_of(&fetch) {
            return self.accept_fetch(now, asked);
        }
        if let Err(asked) = self.serving.waiting.push(asked) {
            self.answer_peer(asked.handle, FetchStatus::Busy, None);
        }
    }

    /// Whether a request is for what is here alone, and nothing of it is.
    fn has_none_of(&self, fetch: &PeerFetch) -> bool {
        if !fetch.cached_only || !is_sound(fetch) {
            return false;
        }
        let id = BlockId {
            object: fetch.object,
            index: (fetch.offset / BLOCK_BYTES as u64) as u32,
        };
        let start = (fetch.offset - id.offset()) as usize;
        let needs = mask_of_bytes(start, start + fetch.len_bytes as usize);
        let left = fetch.size_bytes - id.offset();
        let block_bytes = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES);
        (self.on_disk(id, block_bytes) | self.in_memory(id, true)) & needs == 0
    }

    /// Until when a peer's request keeps its place here. A little less than the asker waits, which is to hear of it
    /// before it takes silence for death; and never longer than this node waits for anything, since it is not sure to
    /// hear when the asker gives it up.
    pub(super) fn peer_deadline(&self, now: Time, deadline: Time) -> Time {
        now + deadline.since(now).min(self.config.io_timeout) / 8 * 7
    }

    /// Accepts requests as far as what is lent to peers leaves room, once it is known what the disks hold. Those whose
    /// time is over are answered whether there is room or not: that costs nothing, and their askers wait for it.
    fn serve_line(&mut self, now: Time) {
        while let Some(asked) = self.serving.waiting.expired(now) {
            self.stats.serve_errors += 1;
            let status = FetchStatus::Failed(PeerFailure::Deadline);
            self.answer_peer(asked.handle, status, None);
        }
        let lent_max = self.parts.arena.capacity_bytes() / SERVE_ARENA_SHARE;
        while !self.holds_reads(now)
            && self.serve_ceiling.is_free(now)
            && let Some(asked) = self.serving.next(lent_max)
        {
            self.accept_fetch(now, asked);
        }
    }

    fn accept_fetch(&mut self, now: Time, asked: Asked) {
        let Asked {
            handle,
            peer,
            fetch,
            deadline,
        } = asked;
        let slot = Slot::of_stripe(fetch.object, fetch.offset);
        let owner = self.group.owner(slot);
        let owned = owner == Some(self.config.me);
        let refusal = if !is_sound(&fetch) {
            Some(FetchStatus::Failed(PeerFailure::Invalid))
        } else if self.shutting_down {
            Some(FetchStatus::Failed(PeerFailure::Shutdown))
        } else if deadline <= now {
            Some(FetchStatus::Failed(PeerFailure::Deadline))
        } else if slot.core(self.config.cores) != self.config.core
            || owner.is_none()
            || self.serving.reads >= READS_PER_CORE_MAX / 2
        {
            Some(FetchStatus::Busy)
        } else {
            None
        };
        if let Some(status) = refusal {
            return self.answer_peer(handle, status, None);
        }
        let (reach, otherwise) = match owner {
            // What of it is here is found when it is declined.
            _ if fetch.cached_only => (
                Reach::Here,
                FetchStatus::NotCached {
                    here: 0,
                    before: self.group.owner_before(slot, peer),
                },
            ),
            Some(owner) if !owned && !fetch.forwarded => {
                (Reach::Here, FetchStatus::NotOwner { owner })
            }
            // To ask it in turn would be to wait for oneself.
            Some(owner) if owner == peer => (Reach::Instead, FetchStatus::NeedName),
            _ => {
                let forwarded = !owned;
                (Reach::Group { forwarded }, FetchStatus::NeedName)
            }
        };
        let mut object = self.serving.names.version(&fetch);
        if fetch.cached_only && object.size_bytes != fetch.size_bytes {
            // Who takes over a block knows where its object ends only when it ends there.
            object = Arc::new(ObjectVersion::nameless(fetch.object, fetch.size_bytes));
        }
        if object.size_bytes != fetch.size_bytes {
            let status = FetchStatus::Failed(PeerFailure::Invalid);
            return self.answer_peer(handle, status, None);
        }
        let (reach, otherwise) = self.within_reach(peer, &object, reach, otherwise);
        self.serving.reads += 1;
        let reader = PeerReader {
            handle,
            peer,
            otherwise,
            verify: fetch.verify,
        };
        let mut read = Read::of_peer(self.next_id(), object, &fetch, deadline, reader);
        read.reach = reach;
        self.advance(now, read);
    }

    /// How far a peer's request goes for an object, and what it is told when that is not far enough.
    fn within_reach(
        &mut self,
        peer: PeerId,
        object: &ObjectVersion,
        reach: Reach,
        otherwise: FetchStatus,
    ) -> (Reach, FetchStatus) {
        match (reach, object.is_named()) {
            (Reach::Here, _) => (reach, otherwise),
            // Without its name nothing can be brought; what is here can be given.
            (_, false) => (Reach::Here, otherwise),
            // What is here has the right identity; what is not cannot be had from this origin.
            _ if !self.is_origin_of(&object.bucket) => {
                self.note_elsewhere(peer, &object.bucket);
                (Reach::Here, FetchStatus::Failed(PeerFailure::Elsewhere))
            }
            // Another member may reach the origin: the asker is not to wait here.
            _ if self.outages.is_known(&object.bucket) => {
                (Reach::Here, FetchStatus::Failed(SILENT_ORIGIN))
            }
            _ => (reach, otherwise),
        }
    }

    /// Gives a peer bytes that are here.
    pub(super) fn serve(&mut self, read: Read<P::Reply>) {
        let Reader::Peer(peer) = &read.reader else {
            return;
        };
        let (handle, peer) = (peer.handle, peer.peer);
        let block = read.object.block(read.offset);
        let start = read.offset_in_block();
        let end = start + read.len_bytes as usize;
        let mut payload = self.serving.spare_payloads.pop().unwrap_or_default();
        if let Some(key) = self.index.find(block) {
            for (piece, start, end) in self.index.block(key).slices(start, end) {
                payload.parts.push(piece.bytes.slice(start..end));
                let pages = start / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
                payload.checksums.extend_from_slice(&piece.checksums[pages]);
            }
            if self.index.touch(key, start..end) {
                self.parts.disk.touch(block);
            }
        }
        if payload.len_bytes() != read.len_bytes as usize {
            debug_assert!(false, "a read that hit has bytes");
            return self.refuse(read, ReadError::Invalid);
        }
        self.serving.reads -= 1;
        self.serving.lend(handle, peer, &payload);
        self.stats.serves += 1;
        self.serve_ceiling
            .spend(self.now, u64::from(read.len_bytes));
        self.stats.served_bytes += u64::from(read.len_bytes);
        self.answer_peer(handle, FetchStatus::Bytes, Some(payload));
    }

    /// Tells a peer that its bytes are not here, and not brought.
    pub(super) fn decline(&mut self, read: Read<P::Reply>) {
        let here = self.parts_here(&read);
        match read.reader {
            Reader::Peer(peer) => {
                let status = match peer.otherwise {
                    FetchStatus::NotCached { before, .. } => {
                        FetchStatus::NotCached { here, before }
                    }
                    status => status,
                };
                self.serving.reads -= 1;
                self.stats.serves_declined += 1;
                self.answer_peer(peer.handle, status, None);
            }
            Reader::Front(_) | Reader::Job(_) | Reader::Take(_) => {
                self.refuse(read, ReadError::Invalid);
            }
        }
    }

    /// Tells a peer why it gets no bytes.
    pub(super) fn refuse_peer(&mut self, peer: PeerReader, error: &ReadError) {
        self.serving.reads -= 1;
        self.stats.serve_errors += 1;
        let failure = PeerFailure::of(error);
        self.answer_peer(peer.handle, FetchStatus::Failed(failure), None);
    }

    pub(super) fn answer_peer(
        &mut self,
        handle: RequestHandle,
        status: FetchStatus,
        payload: Option<Payload>,
    ) {
        self.serving.answers.push_back(TransportOp::Answer {
            handle,
            status,
            payload,
        });
    }

    /// Hands answers to the transport, as far as it takes them; returns whether it took some.
    pub(super) fn flush_answers(&mut self) -> bool {
        let mut some = false;
        while let Some(answer) = self.serving.answers.pop_front() {
            if let Err(Full(answer)) = self.parts.transport.submit(answer) {
                self.serving.answers.push_front(answer);
                return some;
            }
            some = true;
        }
        some
    }
}

/// What a member is told that asks for what this one would have to fetch and cannot.
const SILENT_ORIGIN: PeerFailure = PeerFailure::Origin(OriginErrorKind::Unavailable);
/// One peer may have been lent at most one part in this many of what all may.
const LENT_PEER_SHARE: usize = 2;
/// Tables of answers that are kept for the next.
const SPARE_PAYLOADS_MAX: usize = 64;

/// Whether a request names bytes that one answer can carry.
fn is_sound(fetch: &PeerFetch) -> bool {
    let len = u64::from(fetch.len_bytes);
    if fetch.size_bytes > OBJECT_BYTES_MAX || fetch.offset >= fetch.size_bytes {
        return false;
    }
    let end = fetch.offset + len;
    let block_end = fetch.offset - fetch.offset % BLOCK_BYTES as u64 + BLOCK_BYTES as u64;
    fetch.offset.is_multiple_of(PAGE_BYTES as u64)
        && (1..=CHUNK_BYTES as u64).contains(&len)
        && end <= block_end.min(fetch.size_bytes)
        && (len.is_multiple_of(PAGE_BYTES as u64) || end == fetch.size_bytes)
        // In pieces of a sub-block it must not be more than one answer has parts.
        && (fetch.offset.is_multiple_of(SUB_BLOCK_BYTES as u64)
            || len <= (CHUNK_BYTES - SUB_BLOCK_BYTES) as u64)
}
