//! Cached bytes with their checksums.

use std::cell::Cell;
use std::rc::Rc;

use super::{Mask, mask_of_bytes};
use crate::arena::{Frozen, Near};
use crate::checksum::BlockSeed;
use crate::limits::{PAGE_BYTES, SUB_BLOCK_BYTES};

/// Contiguous cached bytes of a block: a chunk or a sub-block, with the checksums of its pages.
#[derive(Debug)]
pub(in crate::core) struct Piece {
    pub bytes: Frozen,
    pub checksums: Rc<[u32]>,
    /// Number in the block of its first page.
    pub first_page: u32,
    /// The turn (modulo 2^32) in which all of its pages are known to be right: it arrived in that turn.
    checked_turn: Cell<u32>,
}

impl Piece {
    /// Bytes that have just arrived from the origin; their checksums are made here.
    pub fn new(seed: BlockSeed, first_sub: usize, bytes: Frozen, turn: u32) -> Self {
        let first_page = (first_sub * SUB_BLOCK_BYTES / PAGE_BYTES) as u32;
        let checksums = seed.checksums(first_page, &bytes);
        Self {
            bytes,
            checksums,
            first_page,
            checked_turn: Cell::new(turn),
        }
    }

    /// Bytes that the disk tier has just checked against `checksums`, one for each page; none when it
    /// does not check.
    pub fn checked(
        seed: BlockSeed,
        first_sub: usize,
        bytes: Frozen,
        checksums: Rc<[u32]>,
        turn: u32,
    ) -> Self {
        if checksums.len() != bytes.len().div_ceil(PAGE_BYTES) {
            debug_assert!(checksums.is_empty(), "a checksum for each page");
            return Self::new(seed, first_sub, bytes, turn);
        }
        Self {
            bytes,
            checksums,
            first_page: (first_sub * SUB_BLOCK_BYTES / PAGE_BYTES) as u32,
            checked_turn: Cell::new(turn),
        }
    }

    /// Bytes that a peer sent, with the checksums that it says they have: whoever reads them checks them.
    pub fn unchecked(first_sub: usize, bytes: Frozen, checksums: Rc<[u32]>, turn: u32) -> Self {
        debug_assert_eq!(checksums.len(), bytes.len().div_ceil(PAGE_BYTES));
        Self {
            bytes,
            checksums,
            first_page: (first_sub * SUB_BLOCK_BYTES / PAGE_BYTES) as u32,
            checked_turn: Cell::new(turn.wrapping_sub(1)),
        }
    }

    /// Whether its pages were found right in this very turn.
    pub fn is_checked(&self, turn: u32) -> bool {
        self.checked_turn.get() == turn
    }

    pub(super) fn start(&self) -> usize {
        self.first_page as usize * PAGE_BYTES
    }

    /// The sub-blocks that it holds.
    pub fn mask(&self) -> Mask {
        mask_of_bytes(self.start(), self.start() + self.bytes.len())
    }

    /// Where bytes `start` to `end` are, or the first page of them.
    pub fn near(&self, start: usize, end: usize) -> Near {
        std::hint::black_box(self.checksums.get(start / PAGE_BYTES));
        Near::to(&self.bytes[start..end.min(start + PAGE_BYTES)])
    }

    /// Whether the pages that bytes `start` to `end` of this piece touch are as they arrived.
    pub fn verify(&self, seed: BlockSeed, start: usize, end: usize) -> bool {
        let first = start / PAGE_BYTES;
        let pages = &self.bytes[first * PAGE_BYTES..];
        let last = end.div_ceil(PAGE_BYTES);
        pages
            .chunks(PAGE_BYTES)
            .zip(&self.checksums[first..last])
            .zip(self.first_page + first as u32..)
            .all(|((page, checksum), number)| seed.checksum(number, page) == *checksum)
    }
}
