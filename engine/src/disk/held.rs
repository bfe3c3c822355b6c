//! What a tier holds, block by block, and how much more it takes without evicting: for a member that leaves, and for
//! those that take over from it.

use super::Disk;
use crate::identity::BlockId;
use crate::limits::{PAGE_BYTES, PAGES_PER_SUB_BLOCK};
use crate::ports::BlockDevice;

/// What a tier holds of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Sub-blocks that are wholly there, one bit each.
    pub subs: u64,
    /// Bytes of the block, where it is known that its object ends in it. Nothing is said of an object that ends
    /// between two sub-blocks.
    pub len_bytes: Option<u32>,
    /// Some of it was read again not long ago.
    pub is_hot: bool,
    /// The number that [`Disk::set_given`] gave all of it, or 0.
    pub given_to: u16,
}

impl<D: BlockDevice> Disk<D> {
    /// Tells `found` of blocks that are held: those of `buckets` buckets of the index from number `from` on (the first
    /// is 0). Gives where to go on, nowhere when all were looked at. What reclaim moves meanwhile is not passed over;
    /// what comes may be: [`Disk::insertions`] tells whether something did or was moved.
    pub fn blocks_from(&self, from: u32, buckets: u32, found: impl FnMut(BlockId)) -> Option<u32> {
        self.tier.index.blocks_from(from, buckets, found)
    }

    /// Entries that were ever put into the index, such as were moved included.
    pub fn insertions(&self) -> u64 {
        self.tier.insertions
    }

    /// What is held of a block, whatever its length is.
    pub fn held(&self, block: BlockId) -> Held {
        let per = PAGES_PER_SUB_BLOCK as u32;
        let mut held = Held::default();
        let mut given_to = None;
        for extent in self.tier.index.extents(block) {
            if !self.is_current(extent.place) {
                continue;
            }
            let end = extent.end();
            // Extents end with a sub-block, or with their object.
            let is_last = extent.short_bytes > 0 || !end.is_multiple_of(per);
            if is_last {
                held.len_bytes = Some(end * PAGE_BYTES as u32 - u32::from(extent.short_bytes));
            }
            for sub in u32::from(extent.first_page).div_ceil(per)..end.div_ceil(per) {
                held.subs |= 1u64.checked_shl(sub).unwrap_or(0);
            }
            held.is_hot |= extent.pinned || self.tier.is_hot(&extent);
            let all = given_to.get_or_insert(extent.given_to);
            if *all != extent.given_to {
                *all = 0;
            }
        }
        held.given_to = given_to.unwrap_or(0);
        held
    }

    /// Notes with all entries of a block that the member with this number has it, too.
    pub fn set_given(&mut self, block: BlockId, to: u16) {
        self.tier.index.set_given(block, to);
    }

    /// Bytes that the device of a block takes before anything must be evicted for them.
    pub fn room_bytes(&self, block: BlockId) -> u64 {
        let log = self.device_for(block).and_then(|n| self.logs.get(n));
        log.map_or(0, |log| log.room_bytes(&self.tier))
    }
}
