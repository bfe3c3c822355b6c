//! The checksum of one page: crc32c, seeded with where the page belongs.
//!
//! The seed (block id and page number) makes a page that is whole but in the wrong place fail.
//! It is xored onto the crc rather than fed through it: the detection is the same and the hot loop
//! runs over whole aligned pages only.

use crate::identity::BlockId;
use crate::limits::PAGE_BYTES;

/// Seed of the pages of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSeed(u64);

impl BlockSeed {
    /// The seed of `block`'s pages.
    pub fn of(block: BlockId) -> Self {
        let id = block.object.0;
        Self(mix((id as u64) ^ mix((id >> 64) as u64 ^ u64::from(block.index))))
    }

    fn page(self, page: u32) -> u32 {
        (mix(self.0 ^ u64::from(page)) >> 32) as u32
    }

    /// The checksum of `bytes`, page number `page` of the block. The last page of an object may
    /// be shorter than [`PAGE_BYTES`].
    pub fn checksum(self, page: u32, bytes: &[u8]) -> u32 {
        debug_assert!(!bytes.is_empty() && bytes.len() <= PAGE_BYTES);
        crc_fast::crc32_iscsi(bytes) ^ self.page(page)
    }

    /// Checksums of all pages of `bytes`, which begins at page `first_page` of the block.
    pub fn checksums(self, first_page: u32, bytes: &[u8]) -> Box<[u32]> {
        bytes
            .chunks(PAGE_BYTES)
            .zip(first_page..)
            .map(|(page, number)| self.checksum(number, page))
            .collect()
    }
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
