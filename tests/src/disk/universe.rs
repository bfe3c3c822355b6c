//! The blocks of a run. A block's bytes are a function of its identity, so any wrong byte is seen.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_engine::checksum::BlockSeed;
use forebay_engine::identity::{BlockId, ObjectId};
use forebay_engine::limits::{BLOCK_BYTES, PAGE_BYTES, SUB_BLOCK_BYTES};

use crate::sim::bucket;
use crate::sim::rng::SimRng;

/// All blocks that a run may keep.
#[derive(Clone, Debug)]
pub struct Universe {
    blocks: Vec<(BlockId, u32)>,
    sizes: BTreeMap<BlockId, u32>,
}

impl Universe {
    /// Objects of `sizes` bytes, named by `seed`.
    pub fn new(seed: u64, sizes: impl IntoIterator<Item = u64>) -> Self {
        let mut rng = SimRng::component(seed, "universe", 0);
        let mut blocks = Vec::new();
        for size in sizes {
            let object = ObjectId(u128::from(rng.bits()) << 64 | u128::from(rng.bits()));
            let mut left = size;
            for index in 0.. {
                if left == 0 {
                    break;
                }
                let len_bytes = left.min(BLOCK_BYTES as u64);
                blocks.push((BlockId { object, index }, len_bytes as u32));
                left -= len_bytes;
            }
        }
        let sizes = blocks.iter().copied().collect();
        Self { blocks, sizes }
    }

    /// About `bytes` in objects of all kinds: whole blocks, short tails, single pages.
    pub fn mixed(seed: u64, bytes: u64) -> Self {
        let mut rng = SimRng::component(seed, "universe", 1);
        let mut sizes = Vec::new();
        let mut total = 0;
        while total < bytes {
            let size = match rng.below(8) {
                0 | 1 => rng.between(1, 3) * BLOCK_BYTES as u64 + rng.below(BLOCK_BYTES as u64),
                2 => BLOCK_BYTES as u64,
                3 => rng.between(1, 4_097),
                4 => 100 << 10,
                5 => rng.between(1, 64) * SUB_BLOCK_BYTES as u64,
                _ => rng.between(1, 1 << 20),
            };
            sizes.push(size);
            total += size;
        }
        Self::new(seed, sizes)
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Block number `number`, counted around, and its length in bytes.
    pub fn block(&self, number: usize) -> (BlockId, u32) {
        self.blocks[number % self.blocks.len()]
    }

    /// All blocks with their lengths in bytes.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, u32)> {
        self.blocks.iter().copied()
    }

    /// A block's length in bytes; 0 for one that is none of ours.
    pub fn len_bytes(&self, block: BlockId) -> u32 {
        self.sizes.get(&block).copied().unwrap_or(0)
    }

    /// Pages of a block.
    pub fn pages(&self, block: BlockId) -> u32 {
        self.len_bytes(block).div_ceil(PAGE_BYTES as u32)
    }

    /// Bytes of these pages of a block, the last one cut where the block ends.
    pub fn bytes_of(&self, block: BlockId, pages: Range<u32>) -> usize {
        let page = PAGE_BYTES as u32;
        let end = (pages.end * page).min(self.len_bytes(block));
        end.saturating_sub(pages.start * page) as usize
    }

    /// Writes the bytes of `block` from `first_page` on.
    pub fn fill(&self, block: BlockId, first_page: u32, bytes: &mut [u8]) {
        bucket::fill_id(block.object, offset(block, first_page), bytes);
    }

    /// What is wrong with `bytes`, said to be pages of `block` from `first_page` on. What lies behind
    /// the block's end is not looked at.
    ///
    /// # Errors
    /// Where the first wrong byte is.
    pub fn check(&self, block: BlockId, first_page: u32, bytes: &[u8]) -> Result<(), String> {
        let pages = first_page..first_page + bytes.len().div_ceil(PAGE_BYTES) as u32;
        let len_bytes = self.bytes_of(block, pages).min(bytes.len());
        match bucket::first_wrong_id(block.object, offset(block, first_page), &bytes[..len_bytes]) {
            None => Ok(()),
            Some(at) => Err(format!(
                "wrong byte in page {} of {block:?}",
                (at - block.offset()) / PAGE_BYTES as u64
            )),
        }
    }

    /// What the checksums of these pages are.
    pub fn checksums(&self, block: BlockId, pages: Range<u32>) -> Rc<[u32]> {
        let mut bytes = vec![0; self.bytes_of(block, pages.clone())];
        self.fill(block, pages.start, &mut bytes);
        BlockSeed::of(block).checksums(pages.start, &bytes)
    }
}

fn offset(block: BlockId, page: u32) -> u64 {
    block.offset() + u64::from(page) * PAGE_BYTES as u64
}
