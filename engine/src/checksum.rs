//! The checksum of one page: crc32c, seeded with where the page belongs.
//!
//! The seed (block id and page number) makes a page that is whole but in the wrong place fail.
//! It is xored onto the crc rather than fed through it: the detection is the same and the hot loop
//! runs over whole aligned pages only.

use std::rc::Rc;

use crate::identity::BlockId;
use crate::limits::PAGE_BYTES;

/// Seed of the pages of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSeed(u64);

impl BlockSeed {
    /// The seed of `block`'s pages.
    pub fn of(block: BlockId) -> Self {
        let id = block.object.0;
        Self(mix(
            (id as u64) ^ mix((id >> 64) as u64 ^ u64::from(block.index))
        ))
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
    pub fn checksums(self, first_page: u32, bytes: &[u8]) -> Rc<[u32]> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ObjectId;

    fn seed(object: u128, index: u32) -> BlockSeed {
        BlockSeed::of(BlockId {
            object: ObjectId(object),
            index,
        })
    }

    /// Checksums are kept on disk and travel between nodes: these values must never change.
    #[test]
    fn golden_checksums() {
        let crc = crc_fast::crc32_iscsi(b"123456789");
        assert_eq!(crc, 0xe306_9283, "crc32c's check value");
        let ours = [
            seed(1, 0).checksum(0, b"123456789"),
            seed(1 << 100, 7).checksum(1023, &[0; PAGE_BYTES]),
        ];
        assert_eq!(ours, [2_816_682_754, 2_594_628_180]);
    }

    #[test]
    fn a_page_of_another_place_does_not_pass() {
        let page = [9u8; PAGE_BYTES];
        let right = seed(5, 3).checksum(8, &page);
        assert!(
            [
                seed(5, 3).checksum(9, &page),
                seed(5, 4).checksum(8, &page),
                seed(6, 3).checksum(8, &page)
            ]
            .iter()
            .all(|other| *other != right)
        );
    }

    #[test]
    fn every_single_flipped_bit_is_seen() {
        let mut page = vec![0x5au8; PAGE_BYTES];
        let right = seed(1, 1).checksum(0, &page);
        for bit in (0..PAGE_BYTES * 8).step_by(97) {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(seed(1, 1).checksum(0, &page), right);
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
