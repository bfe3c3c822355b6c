//! The block index of one core: which sub-blocks are in memory, which are on their way, who waits.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use slab::Slab;

use super::fill::FillKey;
use super::read::ReadKey;
use super::s3fifo::{Queues, Where};
use crate::arena::Frozen;
use crate::checksum::BlockSeed;
use crate::identity::BlockId;
use crate::limits::{
    CHUNKS_PER_BLOCK, HITS_MAX, INDEX_ENTRY_BYTES, INDEX_SHARE, PAGE_BYTES, SUB_BLOCK_BYTES,
    SUB_BLOCKS_PER_BLOCK, SUB_BLOCKS_PER_CHUNK,
};

/// Names an entry of the index while it exists.
pub(super) type BlockKey = usize;

/// Sub-blocks of a block, one bit each.
pub(super) type Mask = u64;

/// The bits of sub-blocks `first` to `first + count - 1`.
pub(super) fn mask(first: usize, count: usize) -> Mask {
    debug_assert!(first + count <= Mask::BITS as usize);
    match count {
        0 => 0,
        _ => (Mask::MAX >> (Mask::BITS as usize - count)) << first,
    }
}

/// The bits of the sub-blocks that bytes `start` to `end` (exclusive) of a block touch.
pub(super) fn mask_of_bytes(start: usize, end: usize) -> Mask {
    let first = start / SUB_BLOCK_BYTES;
    mask(first, end.div_ceil(SUB_BLOCK_BYTES) - first)
}

/// Contiguous cached bytes of a block: a chunk or a sub-block, with the checksums of its pages.
#[derive(Debug)]
pub(super) struct Piece {
    pub bytes: Frozen,
    pub checksums: Box<[u32]>,
    /// Number in the block of its first page.
    pub first_page: u32,
}

impl Piece {
    pub fn new(seed: BlockSeed, first_sub: usize, bytes: Frozen) -> Self {
        let first_page = (first_sub * SUB_BLOCK_BYTES / PAGE_BYTES) as u32;
        let checksums = seed.checksums(first_page, &bytes);
        Self {
            bytes,
            checksums,
            first_page,
        }
    }

    fn start(&self) -> usize {
        self.first_page as usize * PAGE_BYTES
    }

    fn mask(&self) -> Mask {
        mask_of_bytes(self.start(), self.start() + self.bytes.len())
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

/// A chunk's place in a block.
#[derive(Debug, Default)]
enum Chunk {
    #[default]
    Empty,
    Whole(Piece),
    Pieces(Box<[Option<Piece>; SUB_BLOCKS_PER_CHUNK]>),
}

/// A reader that waits for sub-blocks of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub read: ReadKey,
    /// What is missing.
    pub needs: Mask,
    /// All that it will read of the block: not to be evicted under it.
    pub wants: Mask,
}

/// A fill that is to bring sub-blocks of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub fill: FillKey,
    pub brings: Mask,
}

/// One block that this core knows something about.
#[derive(Debug)]
pub(super) struct Block {
    pub id: BlockId,
    pub seed: BlockSeed,
    /// In memory.
    pub present: Mask,
    /// Promised by a fill.
    pub in_flight: Mask,
    /// Dropped since their checksum failed; fetched again with that reason.
    pub spoiled: Mask,
    /// Fills that promise something.
    pub fills: Vec<Filling>,
    /// Reads that wait for something.
    pub waiters: Vec<Waiter>,
    /// Read since the last hit was counted.
    touched: Mask,
    /// Where the last read ended, by offset in the block.
    last_end: u32,
    hits: u8,
    place: Where,
    footprint_bytes: usize,
    chunks: [Chunk; CHUNKS_PER_BLOCK],
    /// The block was evicted not long ago.
    pub was_evicted: bool,
}

// An entry, its table of pieces, and the piece's own allocations and map slot (192).
const _: () = assert!(
    size_of::<Block>() + SUB_BLOCKS_PER_CHUNK * size_of::<Option<Piece>>() + 192
        <= INDEX_ENTRY_BYTES
);

impl Block {
    fn new(id: BlockId, was_evicted: bool) -> Self {
        Self {
            id,
            seed: BlockSeed::of(id),
            present: 0,
            in_flight: 0,
            spoiled: 0,
            fills: Vec::new(),
            waiters: Vec::new(),
            touched: 0,
            last_end: 0,
            hits: 0,
            place: Where::Nowhere,
            footprint_bytes: 0,
            chunks: Default::default(),
            was_evicted,
        }
    }

    fn piece_at(&self, sub: usize) -> Option<&Piece> {
        match &self.chunks[sub / SUB_BLOCKS_PER_CHUNK] {
            Chunk::Empty => None,
            Chunk::Whole(piece) => Some(piece),
            Chunk::Pieces(pieces) => pieces[sub % SUB_BLOCKS_PER_CHUNK].as_ref(),
        }
    }

    /// The cached slices that make up bytes `start` to `end` of the block, which must be present:
    /// each a piece and the range within it.
    pub fn slices(&self, start: usize, end: usize) -> Slices<'_> {
        Slices {
            block: self,
            at: start,
            end,
        }
    }

    /// Whether nothing is cached, promised or waited for.
    fn is_idle(&self) -> bool {
        self.present == 0 && self.in_flight == 0 && self.waiters.is_empty()
    }
}

/// Iterator over cached slices; ends early if bytes are missing.
pub(super) struct Slices<'a> {
    block: &'a Block,
    at: usize,
    end: usize,
}

impl<'a> Iterator for Slices<'a> {
    type Item = (&'a Piece, usize, usize);
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let piece = self.block.piece_at(self.at / SUB_BLOCK_BYTES)?;
        let start = self.at - piece.start();
        let end = (self.end - piece.start()).min(piece.bytes.len());
        self.at = piece.start() + end;
        (end > start).then_some((piece, start, end))
    }
}

/// Hashes block ids, which are uniform already. The same in every process: no order that depends
/// on a random state may leak into decisions.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u128(&mut self, n: u128) {
        self.write_u64(n as u64);
    }
}

/// A map whose keys are hashed the same way in every process.
pub(super) type StableMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// The index and the memory tier's replacement.
#[derive(Debug)]
pub(super) struct Index {
    map: StableMap<BlockId, BlockKey>,
    blocks: Slab<Block>,
    queues: Queues,
    entries_max: usize,
    /// Blocks evicted.
    pub evictions: u64,
    /// How often cached bytes came or went.
    pub changes: u64,
}

impl Index {
    /// An index for an arena of `arena_bytes`.
    pub fn new(arena_bytes: usize) -> Self {
        Self {
            map: StableMap::default(),
            blocks: Slab::new(),
            queues: Queues::new(arena_bytes),
            entries_max: (arena_bytes / INDEX_SHARE / INDEX_ENTRY_BYTES).max(64),
            evictions: 0,
            changes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether more blocks are cached than the index may hold: evict before adding. Blocks that are
    /// only promised do not count: reads and fills bound them.
    pub fn is_over_full(&self) -> bool {
        self.queues.len() > self.entries_max
    }

    pub fn find(&self, id: BlockId) -> Option<BlockKey> {
        self.map.get(&id).copied()
    }

    pub fn find_or_insert(&mut self, id: BlockId) -> BlockKey {
        if let Some(key) = self.find(id) {
            return key;
        }
        let key = self
            .blocks
            .insert(Block::new(id, self.queues.has_ghost(id)));
        self.map.insert(id, key);
        key
    }

    pub fn block(&self, key: BlockKey) -> &Block {
        &self.blocks[key]
    }

    pub fn block_mut(&mut self, key: BlockKey) -> &mut Block {
        &mut self.blocks[key]
    }

    /// Counts a read of bytes `range`; a hit only when it was read before, so that one pass over a
    /// block, in reads of whatever size, counts as no hit at all.
    pub fn touch(&mut self, key: BlockKey, range: Range<usize>) {
        let block = &mut self.blocks[key];
        let touches = mask_of_bytes(range.start, range.end);
        // A read that continues the one before shares its first sub-block with it.
        let continues = range.start as u32 == block.last_end;
        let seam = match continues && !range.start.is_multiple_of(SUB_BLOCK_BYTES) {
            true => mask(range.start / SUB_BLOCK_BYTES, 1),
            false => 0,
        };
        block.last_end = range.end as u32;
        if block.touched & touches & !seam == 0 {
            block.touched |= touches;
        } else {
            block.touched = touches;
            block.hits = (block.hits + 1).min(HITS_MAX);
        }
    }

    /// Puts arrived bytes into the block. `subs` sub-blocks from `first_sub`, as one piece.
    pub fn install(&mut self, key: BlockKey, first_sub: usize, subs: usize, piece: Piece) {
        self.changes += 1;
        let block = &mut self.blocks[key];
        let arrived = mask(first_sub, subs);
        debug_assert_eq!(block.present & arrived, 0, "a sub-block is filled once");
        block.in_flight &= !arrived;
        block.present |= arrived;
        block.spoiled &= !arrived;
        let footprint = piece.bytes.footprint_bytes();
        block.footprint_bytes += footprint;
        let chunk = &mut block.chunks[first_sub / SUB_BLOCKS_PER_CHUNK];
        if subs > 1 {
            *chunk = Chunk::Whole(piece);
        } else {
            if matches!(chunk, Chunk::Empty) {
                *chunk = Chunk::Pieces(Box::default());
            }
            if let Chunk::Pieces(pieces) = chunk {
                pieces[first_sub % SUB_BLOCKS_PER_CHUNK] = Some(piece);
            }
        }
        if block.place == Where::Nowhere {
            block.place = self.queues.admit(block.id, key);
        }
        self.queues.grow(block.place, footprint);
    }

    /// Drops the piece that holds sub-block `sub`, whose bytes are wrong.
    pub fn spoil(&mut self, key: BlockKey, sub: usize) {
        self.changes += 1;
        let before = self.blocks[key].footprint_bytes;
        let gone = self.take_piece(key, sub);
        let block = &mut self.blocks[key];
        block.spoiled |= gone;
        self.queues
            .shrink(block.place, before - block.footprint_bytes);
    }

    /// Takes out the piece that holds sub-block `sub`; returns the sub-blocks that are gone. The
    /// queues' account is the caller's.
    fn take_piece(&mut self, key: BlockKey, sub: usize) -> Mask {
        let block = &mut self.blocks[key];
        let chunk = &mut block.chunks[sub / SUB_BLOCKS_PER_CHUNK];
        let taken = match chunk {
            Chunk::Empty => None,
            Chunk::Whole(_) => match std::mem::take(chunk) {
                Chunk::Whole(piece) => Some(piece),
                _ => None,
            },
            Chunk::Pieces(pieces) => pieces[sub % SUB_BLOCKS_PER_CHUNK].take(),
        };
        let Some(piece) = taken else { return 0 };
        block.present &= !piece.mask();
        block.footprint_bytes -= piece.bytes.footprint_bytes();
        piece.mask()
    }

    /// Forgets an entry that holds nothing and was never admitted to a queue.
    pub fn forget_if_idle(&mut self, key: BlockKey) {
        if let Some(block) = self.blocks.get(key)
            && block.is_idle()
            && block.place == Where::Nowhere
        {
            self.map.remove(&block.id);
            self.blocks.remove(key);
        }
    }

    /// Evicts the block that S3-FIFO would miss least, and returns the bytes that came free; none
    /// when nothing is cached. Blocks that a fill is still completing go late, pieces that a parked
    /// read will read go last.
    pub fn evict(&mut self) -> Option<usize> {
        self.evict_settled()
            .or_else(|| self.evict_unawaited())
            .or_else(|| self.evict_any())
    }

    fn evict_settled(&mut self) -> Option<usize> {
        // Each round drops a hit, moves a block to the main queue, passes over a busy one or
        // evicts: bounded.
        let rounds = self.queues.len() * (usize::from(HITS_MAX) + 2) + 1;
        let mut busy = 0;
        let mut spent = Where::Nowhere;
        for _ in 0..rounds {
            let (key, from) = self.queues.pop(spent)?;
            let block = &mut self.blocks[key];
            self.queues.shrink(from, block.footprint_bytes);
            let awaited = block.in_flight != 0 || !block.waiters.is_empty();
            let keep = match (awaited, block.hits, from) {
                (true, _, _) => {
                    busy += 1;
                    Some(from)
                }
                // Read ahead and not read yet: the small queue alone is shorter than what readers may
                // have ahead of them, and evicting it would fetch it twice.
                (false, 0, Where::Small) if block.touched == 0 => Some(Where::Main),
                (false, 0, _) => None,
                (false, _, Where::Small) => {
                    block.hits = 0;
                    Some(Where::Main)
                }
                (false, _, _) => {
                    block.hits -= 1;
                    Some(Where::Main)
                }
            };
            let Some(place) = keep else {
                match self.remove_contents(key) {
                    0 => continue,
                    freed => return Some(freed),
                }
            };
            block.place = place;
            self.queues.push(place, key);
            self.queues.grow(place, block.footprint_bytes);
            if busy > self.queues.len_of(from) {
                (busy, spent) = (0, from);
            }
        }
        None
    }

    /// Every cached block is being completed by a fill or waited for, and those fills may be waiting
    /// for just this memory: the oldest gives up what no reader waits for.
    fn evict_unawaited(&mut self) -> Option<usize> {
        for _ in 0..self.queues.len() {
            let (key, from) = self.queues.pop(Where::Nowhere)?;
            self.queues.shrink(from, self.blocks[key].footprint_bytes);
            let freed = self.remove_unawaited(key);
            let block = &self.blocks[key];
            if block.present != 0 {
                self.queues.push(from, key);
                self.queues.grow(from, block.footprint_bytes);
            } else {
                self.remove_contents(key);
            }
            if freed > 0 {
                return Some(freed);
            }
        }
        None
    }

    /// All that is cached is waited for: someone has to give way, or nobody gets on.
    fn evict_any(&mut self) -> Option<usize> {
        loop {
            let (key, from) = self.queues.pop(Where::Nowhere)?;
            self.queues.shrink(from, self.blocks[key].footprint_bytes);
            match self.remove_contents(key) {
                0 => continue,
                freed => return Some(freed),
            }
        }
    }

    /// Drops the pieces of a block that no parked read will read; returns the bytes that came free.
    fn remove_unawaited(&mut self, key: BlockKey) -> usize {
        let block = &self.blocks[key];
        let awaited = block
            .waiters
            .iter()
            .fold(0, |all, waiter| all | waiter.wants);
        let before = block.footprint_bytes;
        for sub in 0..SUB_BLOCKS_PER_BLOCK {
            let Some(piece) = self.blocks[key].piece_at(sub) else {
                continue;
            };
            if piece.mask() & awaited == 0 {
                self.take_piece(key, sub);
            }
        }
        let freed = before - self.blocks[key].footprint_bytes;
        if freed > 0 {
            self.changes += 1;
            self.evictions += 1;
            self.blocks[key].was_evicted = true;
        }
        freed
    }

    /// Empties a block that was taken out of its queue; returns the bytes that came free.
    fn remove_contents(&mut self, key: BlockKey) -> usize {
        self.changes += 1;
        let block = &mut self.blocks[key];
        let freed = std::mem::take(&mut block.footprint_bytes);
        block.place = Where::Nowhere;
        block.chunks = Default::default();
        block.touched = 0;
        block.hits = 0;
        if std::mem::take(&mut block.present) != 0 {
            block.was_evicted = true;
            self.evictions += 1;
            self.queues.remember(block.id);
        }
        self.forget_if_idle(key);
        freed
    }

    #[cfg(test)]
    pub fn hits(&self, key: BlockKey) -> u8 {
        self.blocks[key].hits
    }

    #[cfg(test)]
    pub fn corrupt(&mut self, id: BlockId) -> bool {
        let Some(key) = self.find(id) else {
            return false;
        };
        let block = &mut self.blocks[key];
        for chunk in &mut block.chunks {
            let piece = match chunk {
                Chunk::Whole(piece) => Some(piece),
                Chunk::Pieces(pieces) => pieces.iter_mut().flatten().next(),
                Chunk::Empty => None,
            };
            if let Some(piece) = piece {
                piece.checksums[0] ^= 1;
                return true;
            }
        }
        false
    }
}
