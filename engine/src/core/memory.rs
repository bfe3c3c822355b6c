//! Buffers for whoever needs one, from the arena, with eviction.

use std::time::Duration;

use super::index::Index;
use crate::arena::{Arena, Denied, Frozen, Lease, Share};
use crate::disk::Buffers;
use crate::limits::{CHUNK_BYTES, DISK_EVICTION_PAUSE_MS};
use crate::ports::Time;

/// A lease, for which blocks are evicted as needed.
pub(super) fn lease(
    arena: &mut Arena,
    index: &mut Index,
    len_bytes: usize,
    share: Share,
) -> Result<Lease, Denied> {
    // Frames of one chunk may be spread over many blocks: past this, a smaller buffer is the
    // better answer than an empty cache.
    let mut evictable_bytes = 16 * CHUNK_BYTES;
    while index.is_over_full() && index.evict().is_some() {}
    loop {
        match arena.lease(len_bytes, share) {
            Err(Denied::Memory) if evictable_bytes > 0 => match index.evict() {
                Some(freed) => evictable_bytes = evictable_bytes.saturating_sub(freed),
                None => return Err(Denied::Memory),
            },
            outcome => return outcome,
        }
    }
}

/// The buffers that a core lends to its disk tier.
pub(super) struct DiskBuffers<'a> {
    pub arena: &'a mut Arena,
    pub index: &'a mut Index,
    pub now: Time,
    /// Nothing is evicted for the disk tier before. It asks again every turn: when eviction did not
    /// help, more of it at once would only empty the cache.
    pub evict_after: &'a mut Time,
}

impl Buffers for DiskBuffers<'_> {
    fn lease(&mut self, len_bytes: usize) -> Result<Lease, Denied> {
        if self.now < *self.evict_after {
            return self.arena.lease(len_bytes, Share::Disk);
        }
        let outcome = lease(self.arena, self.index, len_bytes, Share::Disk);
        if matches!(outcome, Err(Denied::Memory)) {
            *self.evict_after = self.now + Duration::from_millis(DISK_EVICTION_PAUSE_MS);
        }
        outcome
    }

    fn freeze(&mut self, lease: Lease) -> Frozen {
        self.arena.freeze(lease)
    }
}
