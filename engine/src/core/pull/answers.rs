//! What a peer answers to a pull, and what comes of it.

use std::ops::Range;
use std::rc::Rc;

use super::super::group::{How, Step};
use super::super::index::Piece;
use super::super::{Core, Tagged};
use super::lines::{Pull, PullKey, State};
use crate::arena::{Lease, Share};
use crate::disk::Fill;
use crate::errors::{OriginError, OriginErrorKind, ReadError};
use crate::limits::{CALL_BYTES_MAX, NEED_NAME_MAX, PAGE_BYTES, SUB_BLOCK_BYTES};
use crate::ports::{
    Class, FetchStatus, FetchTag, PeerFailure, Platform, Time, Transport, TransportError,
    TransportOp,
};
use crate::wire::call::Call;

/// How often a member that names an owner unknown here is asked again, for the view that is on its way.
const VIEW_WAITS_MAX: u32 = 4;

impl<P: Platform> Core<P> {
    /// A peer answered a pull, or did not.
    pub(in crate::core) fn pull_ended(
        &mut self,
        now: Time,
        key: PullKey,
        lease: Lease,
        result: Result<FetchStatus, TransportError>,
        checksums: Vec<u32>,
    ) {
        self.pulls.may_start = true;
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        if std::mem::take(&mut pull.begun_as_prefetch) {
            self.pulls.prefetches_running -= 1;
        }
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        if !matches!(result, Ok(FetchStatus::Bytes)) {
            // The limit is for bytes: who has none of them costs nothing.
            self.pull_ceiling.give_back(pull.len_bytes as u64);
        }
        let Some(step) = pull.route.step() else {
            return self.pull_from_origin(key);
        };
        if self.shutting_down {
            return self.abandon_pull(key, &ReadError::Shutdown);
        }
        if matches!(result, Err(TransportError::Cancelled)) {
            self.group.given_up(now, step.peer);
        }
        match result {
            Ok(status) => {
                self.group.answered(step.peer);
                match status {
                    FetchStatus::Bytes => self.pulled(now, key, lease, checksums),
                    other => self.pull_refused(now, key, step, other),
                }
            }
            // Its member has left: whoever owns the bytes now is asked.
            Err(TransportError::Cancelled) if self.renew_route(key) => {
                if let Some(pull) = self.pulls.get(key) {
                    pull.missed_owner = true;
                }
                self.queue_pull(key);
            }
            Err(error) => {
                if !matches!(error, TransportError::Cancelled) {
                    self.stats.peer_failures += 1;
                    self.pass_over(now, step.peer, error != TransportError::Timeout);
                    if let Some(left_out) = self.peer_log.open(now) {
                        tracing::warn!(peer = step.peer.0, %error, left_out,
                            "a member did not answer; the next in line is asked");
                    }
                }
                self.next_step(key, true);
            }
        }
    }

    /// A peer answered without bytes.
    fn pull_refused(&mut self, now: Time, key: PullKey, step: Step, status: FetchStatus) {
        let me = self.config.me;
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        let (urgent, patient) = (pull.class == Class::Demand, pull.attempt < VIEW_WAITS_MAX);
        match status {
            FetchStatus::NeedName if pull.named < NEED_NAME_MAX => {
                pull.named += 1;
                self.describe(now, key);
            }
            // Views differ: the one that is on its way here tells more.
            FetchStatus::NotOwner { owner }
                if patient && (owner == me || !self.group.knows(owner)) =>
            {
                return self.back_off_pull(now, key);
            }
            FetchStatus::NotOwner { owner } if owner == me => pull.route.end(),
            // Its view did not become this one's meanwhile. Whichever of the two is the later, what it brings in the
            // stead of that owner is kept where both find it; what the next in line would bring is not.
            FetchStatus::NotOwner { owner }
                if !self.group.knows(owner) && !std::mem::replace(&mut pull.redirected, true) =>
            {
                pull.route.redirect(step.peer);
            }
            FetchStatus::NotOwner { owner } if !std::mem::replace(&mut pull.redirected, true) => {
                pull.route.redirect(owner);
            }
            // What nobody waits for is not worth another member's trouble, nor the origin's.
            FetchStatus::Busy | FetchStatus::Failed(PeerFailure::Deadline) if !urgent => {
                self.stats.prefetch_dropped += 1;
                return self.abandon_pull(key, &ReadError::Deadline);
            }
            // It waits for the origin itself, or has no room: no other member would do better.
            FetchStatus::Busy | FetchStatus::Failed(PeerFailure::Deadline) => {
                return self.back_off_pull(now, key);
            }
            // What it is refused, or has no way to, another may be given.
            FetchStatus::Failed(PeerFailure::Elsewhere) => return self.next_step(key, true),
            FetchStatus::Failed(PeerFailure::Origin(kind)) if kind.is_of_asker() => {
                return self.next_step(key, true);
            }
            FetchStatus::Failed(PeerFailure::Origin(kind)) if !kind.is_transient() => {
                let error = owners_error(pull, kind);
                return self.abandon_pull(key, &error);
            }
            // An earlier owner holds some of it.
            FetchStatus::NotCached { here, before } if step.how == How::CachedOnly => {
                // What a leaver hands over comes from it alone.
                let before = before
                    .filter(|peer| !pull.is_take && *peer != me && self.group.answers(now, *peer));
                if let Some(before) = before {
                    pull.route.add_earlier(before);
                }
                return self.ask_for_parts(key, here);
            }
            // It does not reach the origin. Another one may.
            FetchStatus::Failed(PeerFailure::Origin(
                OriginErrorKind::Unavailable | OriginErrorKind::Timeout,
            )) => return self.next_step(key, true),
            FetchStatus::Failed(PeerFailure::Shutdown) => {
                self.pass_over(now, step.peer, true);
                return self.next_step(key, true);
            }
            _ => return self.next_step(key, false),
        }
        if !matches!(status, FetchStatus::NeedName) {
            self.queue_pull(key);
        }
    }

    /// Tells the member that a pull is at what its object is called.
    fn describe(&mut self, now: Time, key: PullKey) {
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        let limit = now + pull.deadline.since(now) / (pull.route.left() as u32 + 1);
        let to = pull
            .route
            .step()
            .map(|step| (step.peer, pull.placement_slot()));
        let (class, deadline) = (pull.class, pull.deadline.min(limit));
        let body = Call::Describe(pull.object.clone()).encode();
        let to = to.and_then(|(peer, slot)| self.group.core_of(peer, slot));
        let lease = self.lease(PAGE_BYTES, Share::Demand);
        let (Some(to), Ok(lease)) = (to, lease) else {
            return self.back_off_pull(now, key);
        };
        debug_assert!(body.len() <= CALL_BYTES_MAX);
        let tag = FetchTag(self.next_id());
        let op = TransportOp::Call {
            tag,
            to,
            class,
            body,
            lease,
            deadline,
        };
        if self.parts.transport.submit(op).is_err() {
            return self.back_off_pull(now, key);
        }
        self.tags.insert(tag.0, Tagged::Describe(key));
        if let Some(pull) = self.pulls.get(key) {
            pull.state = State::Running(tag);
        }
    }

    /// A description arrived, or did not.
    pub(in crate::core) fn described(
        &mut self,
        now: Time,
        key: PullKey,
        result: Result<FetchStatus, TransportError>,
    ) {
        self.pulls.may_start = true;
        if self.shutting_down {
            return self.abandon_pull(key, &ReadError::Shutdown);
        }
        match result {
            Ok(FetchStatus::Bytes) => self.queue_pull(key),
            Ok(FetchStatus::Busy) => self.back_off_pull(now, key),
            Ok(_) => self.next_step(key, false),
            Err(error) => {
                if let Some(step) = self.pulls.get(key).and_then(|pull| pull.route.step())
                    && error != TransportError::Cancelled
                {
                    self.stats.peer_failures += 1;
                    self.pass_over(now, step.peer, error != TransportError::Timeout);
                }
                self.next_step(key, true);
            }
        }
    }

    /// An earlier owner has not all that a pull is for: what it has (`here`, a bit for each sub-block) is asked of
    /// it, the rest goes on along the route, both in runs.
    fn ask_for_parts(&mut self, key: PullKey, here: u16) {
        let Some(pull) = self.pulls.get(key) else {
            return;
        };
        let runs = runs(here, pull.subs);
        if runs.len() < 2 {
            // Nothing is there; or all of it, and yet it was not given: no use to ask once more.
            return self.next_step(key, false);
        }
        self.divide_pull(key, &runs);
    }

    /// The bytes of a pull are here, with the checksums that the peer says they have.
    fn pulled(&mut self, now: Time, key: PullKey, lease: Lease, checksums: Vec<u32>) {
        if checksums.len() != lease.len().div_ceil(PAGE_BYTES) {
            debug_assert!(false, "a checksum for each page");
            return self.next_step(key, false);
        }
        let Some(pull) = self.take_pull(key) else {
            return;
        };
        self.stats.pulled_bytes += pull.len_bytes as u64;
        let block_bytes = pull.object.block_len_bytes(pull.at.index);
        let mut kept = Vec::new();
        match pull.is_whole_chunk() {
            true => kept.extend(self.install_pulled(&pull, 0, lease, checksums.into())),
            false => {
                let pages = checksums.chunks(SUB_BLOCK_BYTES / PAGE_BYTES);
                for (n, (lease, pages)) in self
                    .parts
                    .arena
                    .cut(lease)
                    .into_iter()
                    .zip(pages)
                    .enumerate()
                {
                    kept.extend(self.install_pulled(&pull, n, lease, pages.into()));
                }
            }
        }
        self.wake_readers(now, pull.block, pull.mask());
        for fill in kept {
            self.keep(now, block_bytes, fill);
        }
    }

    /// Puts into the index what a pull brought: all of it, or its `n`-th sub-block. Returns what the disk is to keep.
    fn install_pulled(
        &mut self,
        pull: &Pull,
        n: usize,
        lease: Lease,
        checksums: Rc<[u32]>,
    ) -> Option<Fill> {
        let first_sub = pull.first_sub + n;
        let bytes = self.parts.arena.freeze(lease);
        let subs = bytes.len().div_ceil(SUB_BLOCK_BYTES);
        let seed = self.index.block(pull.block).seed;
        let piece = Piece::unchecked(first_sub, bytes, checksums, self.turns);
        // What goes to disk is checked here: its readers check what they read themselves.
        let kept = match self.keeps(pull.placement_slot()) {
            // What is taken over is as warm as it was: nobody named it.
            true if pull.is_take => self.to_keep(pull.at, &piece, Class::Prefetch),
            true => self.to_keep(pull.at, &piece, pull.class),
            false => None,
        };
        let kept = kept.filter(|_| piece.verify(seed, 0, piece.bytes.len()));
        self.index.install(pull.block, first_sub, subs, piece);
        kept
    }
}

/// The error of a read that the owner could not bring bytes for.
fn owners_error(pull: &Pull, kind: OriginErrorKind) -> ReadError {
    match kind {
        OriginErrorKind::VersionChanged => ReadError::VersionChanged,
        kind => ReadError::Origin(OriginError::new(
            kind,
            format!(
                "{}/{:?}: so the member that owns it was told by the origin",
                pull.object.bucket, pull.object.key
            ),
        )),
    }
}

/// The first `subs` bits of a mask as runs of equal bits, each with what its bits are.
fn runs(mask: u16, subs: usize) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for sub in 0..subs {
        let set = mask.checked_shr(sub as u32).unwrap_or(0) & 1 != 0;
        match runs.last_mut() {
            Some((run, same)) if *same == set => run.end = sub + 1,
            _ => runs.push((sub..sub + 1, set)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_cut_into_runs_of_equal_bits() {
        assert_eq!(runs(0, 16), [(0..16, false)]);
        assert_eq!(runs(0xffff, 3), [(0..3, true)]);
        assert_eq!(runs(0b1001, 1), [(0..1, true)]);
        let expected = [(0..2, false), (2..4, true), (4..15, false), (15..16, true)];
        assert_eq!(runs(0x800c, 16), expected);
        assert_eq!(
            runs(0x800c, 5),
            [(0..2, false), (2..4, true), (4..5, false)]
        );
        // No pull has more; were one to, what no bit stands for is not there.
        assert_eq!(runs(0xffff, 17), [(0..16, true), (16..17, false)]);
    }
}
