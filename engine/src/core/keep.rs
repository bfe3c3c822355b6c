//! Handing what arrived from the origin to the disk tier, and making one entry of what lies there in
//! many.

use super::Core;
use super::index::{Block, Mask, Piece, mask_of_bytes};
use crate::disk::Fill;
use crate::identity::{BlockId, Slot};
use crate::limits::{
    CHUNK_BYTES, DISK_HELD_SHARE, DISK_WRITE_SHARE, PAGE_BYTES, PAGES_PER_SUB_BLOCK,
};
use crate::ports::{Class, Platform, Time};

impl Piece {
    fn fill(&self, block: BlockId, wanted: bool) -> Fill {
        Fill {
            block,
            first_page: self.first_page,
            bytes: self.bytes.clone(),
            checksums: self.checksums.clone(),
            wanted,
        }
    }
}

impl Block {
    fn is_complete(&self, block_bytes: usize) -> bool {
        self.present == mask_of_bytes(0, block_bytes)
    }
}

impl<P: Platform> Core<P> {
    /// Whether this node's disks keep blocks of a slot: those that it owns, and all of them when it was told so.
    pub(super) fn keeps(&self, slot: Slot) -> bool {
        self.config.keep_copies || self.group.owns(slot)
    }

    /// The same of what this node itself had from the origin. A stand-in keeps it too: it was asked because the
    /// owner does not answer, and owns the slot when that one is out of the ring.
    pub(super) fn keeps_from_origin(&self, slot: Slot) -> bool {
        self.keeps(slot) || self.group.stands_for(slot)
    }

    /// What the disk tier is to be given of a piece that has just arrived.
    pub(super) fn to_keep(&self, block: BlockId, piece: &Piece, class: Class) -> Option<Fill> {
        let wanted = class == Class::WarmUp;
        (self.parts.disk.is_present() && !self.shutting_down).then(|| piece.fill(block, wanted))
    }

    /// Hands a part that came from the origin to the disk tier, after its readers were answered.
    ///
    /// When it completes a block that lies on disk in pieces shorter than chunks, the whole block is
    /// written once more, as one entry: it costs at most the block's length, once for each time that
    /// the block was put together from scattered reads, and saves entries of the index and device
    /// reads ever after. Longer extents are left alone: no device read is longer than a chunk.
    pub(super) fn keep(&mut self, now: Time, block_bytes: usize, part: Fill) {
        if !self.is_scattered(part.block, block_bytes) {
            self.hand_over(now, part);
            return;
        }
        let Some(key) = self.index.find(part.block) else {
            return;
        };
        let block = self.index.block(key);
        // What a peer sent may not have been checked yet.
        let right = block
            .pieces()
            .filter(|piece| piece.verify(block.seed, 0, piece.bytes.len()));
        let fills: Vec<Fill> = right
            .map(|piece| piece.fill(block.id, part.wanted))
            .collect();
        for fill in fills {
            self.hand_over(now, fill);
        }
    }

    /// Offers to the disk tier once more what it had no room for, of these sub-blocks of a block. Costs next to nothing
    /// while there still is none.
    pub(super) fn keep_again(&mut self, now: Time, id: BlockId, subs: Mask, wanted: bool) {
        let Some(key) = self.index.find(id) else {
            return;
        };
        self.parts.arena.reclaim();
        let block = self.index.block(key);
        let due = subs & !block.saving;
        let (mut fills, mut bytes, mut footprint_bytes) = (Vec::new(), 0, 0);
        for piece in block.pieces().filter(|piece| piece.mask() & due != 0) {
            bytes += piece.bytes.len();
            footprint_bytes += piece.bytes.footprint_bytes();
            // Before its checksums are computed: a slow disk is asked every few milliseconds.
            if !self.may_save(footprint_bytes) || !self.parts.disk.may_write(bytes) {
                break;
            }
            if piece.verify(block.seed, 0, piece.bytes.len()) {
                fills.push(piece.fill(id, wanted));
            }
        }
        for fill in fills {
            self.hand_over(now, fill);
        }
    }

    /// Whether buffers of so many bytes more may be on their way to disk, by what the buffers take: such a buffer
    /// cannot be evicted, and the disk tier needs some for its own work.
    fn may_save(&self, footprint_bytes: usize) -> bool {
        let arena = &self.parts.arena;
        let saving = self.index.saving_bytes + footprint_bytes;
        // Pieces that the index dropped while they are written, and what reclaim moves.
        let held = arena
            .frozen_bytes()
            .saturating_sub(self.index.cached_bytes());
        let capacity = arena.capacity_bytes();
        saving <= capacity / DISK_WRITE_SHARE && saving + held <= capacity / DISK_HELD_SHARE
    }

    /// Whether a block that is complete in memory lies on disk in more extents than it has chunks,
    /// the part that has just arrived counted as one.
    fn is_scattered(&self, id: BlockId, block_bytes: usize) -> bool {
        let complete = self
            .index
            .find(id)
            .is_some_and(|key| self.index.block(key).is_complete(block_bytes));
        let chunks = block_bytes.div_ceil(CHUNK_BYTES);
        let (mut page, pages) = (0, block_bytes.div_ceil(PAGE_BYTES) as u32);
        let mut extents = 1;
        while complete && page < pages && extents <= chunks {
            page = match self.parts.disk.extent(id, page) {
                Some(extent) => {
                    extents += 1;
                    extent.end.max(page + 1)
                }
                None => (page + 1).next_multiple_of(PAGES_PER_SUB_BLOCK as u32),
            };
        }
        complete && extents > chunks
    }

    fn hand_over(&mut self, now: Time, fill: Fill) {
        let (id, len_bytes) = (fill.block, fill.bytes.len());
        let start = fill.first_page as usize * PAGE_BYTES;
        let of = mask_of_bytes(start, start + len_bytes);
        self.parts.arena.reclaim();
        if !self.may_save(fill.bytes.footprint_bytes()) {
            self.keeps_refused.0 += 1;
            self.keeps_refused.1 += len_bytes as u64;
        } else if self.parts.disk.keep(now, fill)
            && let Some(key) = self.index.find(id)
        {
            self.index.set_saving(key, of);
        }
    }
}
