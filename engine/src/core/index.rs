//! The block index of one core: which sub-blocks are in memory, which are on their way, who waits.

mod evict;
mod piece;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use slab::Slab;

use super::fill::FillKey;
use super::load::LoadKey;
use super::pull::PullKey;
use super::read::ReadKey;
use super::s3fifo::{Queues, Where};
use crate::checksum::BlockSeed;
use crate::identity::BlockId;
use crate::limits::{
    CHUNKS_PER_BLOCK, HITS_MAX, INDEX_ENTRY_BYTES, INDEX_SHARE, PAGE_BYTES, SUB_BLOCK_BYTES,
    SUB_BLOCKS_PER_BLOCK, SUB_BLOCKS_PER_CHUNK,
};

pub(super) use piece::Piece;

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

/// What brings promised sub-blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// A GET.
    Fill(FillKey),
    /// A read from disk.
    Load(LoadKey),
    /// A request to another member.
    Pull(PullKey),
}

impl Promise {
    pub fn is_pull(self) -> bool {
        matches!(self, Promise::Pull(_))
    }
}

/// A fill or a load that is to bring sub-blocks of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub by: Promise,
    pub brings: Mask,
}

/// One block that this core knows something about.
#[derive(Debug)]
pub(super) struct Block {
    pub id: BlockId,
    pub seed: BlockSeed,
    /// In memory.
    pub present: Mask,
    /// Promised by a fill or a load.
    pub in_flight: Mask,
    /// Handed to the disk tier and not on disk yet: it holds their buffers, evicting them would free
    /// nothing.
    pub saving: Mask,
    /// Dropped since their checksum failed; fetched again with that reason.
    pub spoiled: Mask,
    /// Failed their checksum, and did not come from disk or origin since.
    failed: Mask,
    /// Failed twice so: no other member is asked for them.
    pub distrusted: Mask,
    /// Fills and loads that promise something.
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
            saving: 0,
            spoiled: 0,
            failed: 0,
            distrusted: 0,
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

    #[inline]
    fn piece_at(&self, sub: usize) -> Option<&Piece> {
        match &self.chunks[sub / SUB_BLOCKS_PER_CHUNK] {
            Chunk::Empty => None,
            Chunk::Whole(piece) => Some(piece),
            Chunk::Pieces(pieces) => pieces[sub % SUB_BLOCKS_PER_CHUNK].as_ref(),
        }
    }

    /// All cached pieces, in the order of the block.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.chunks.iter().flat_map(|chunk| {
            let (whole, pieces) = match chunk {
                Chunk::Empty => (None, None),
                Chunk::Whole(piece) => (Some(piece), None),
                Chunk::Pieces(pieces) => (None, Some(pieces.iter().flatten())),
            };
            whole.into_iter().chain(pieces.into_iter().flatten())
        })
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

    /// What these present sub-blocks take of the arena; of a chunk, each the same share.
    fn footprint_of(&self, mut of: Mask) -> usize {
        let mut bytes = 0;
        while of != 0 {
            let piece = self.piece_at(of.trailing_zeros() as usize);
            bytes += piece.map_or(0, |piece| {
                piece.bytes.footprint_bytes() / piece.mask().count_ones() as usize
            });
            of &= of - 1;
        }
        bytes
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
    #[inline]
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
    /// Blocks that warm-ups read and have not seen on disk yet, and how many do.
    held: StableMap<BlockId, u32>,
    /// Blocks evicted.
    pub evictions: u64,
    /// How often cached bytes came or went.
    pub changes: u64,
    /// Bytes of the arena in pieces that are on their way to disk.
    pub saving_bytes: usize,
    /// Look-ups so far.
    #[cfg(test)]
    pub finds: std::cell::Cell<u64>,
}

impl Index {
    /// An index for an arena of `arena_bytes`.
    pub fn new(arena_bytes: usize) -> Self {
        Self {
            map: StableMap::default(),
            blocks: Slab::new(),
            queues: Queues::new(arena_bytes),
            entries_max: (arena_bytes / INDEX_SHARE / INDEX_ENTRY_BYTES).max(64),
            held: StableMap::default(),
            evictions: 0,
            changes: 0,
            saving_bytes: 0,
            #[cfg(test)]
            finds: std::cell::Cell::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of the arena in cached pieces.
    pub fn cached_bytes(&self) -> usize {
        self.queues.bytes()
    }

    /// Whether more blocks are cached than the index may hold: evict before adding. Blocks that are
    /// only promised do not count: reads and fills bound them.
    pub fn is_over_full(&self) -> bool {
        self.queues.len() > self.entries_max
    }

    pub fn find(&self, id: BlockId) -> Option<BlockKey> {
        #[cfg(test)]
        self.finds.set(self.finds.get() + 1);
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

    /// Tells `found` of the blocks that have something in memory, of `entries` entries from number `from` on; where to go
    /// on, nowhere when all were looked at.
    pub fn blocks_from(
        &self,
        from: usize,
        entries: usize,
        mut found: impl FnMut(BlockId),
    ) -> Option<usize> {
        let end = (from + entries).min(self.blocks.capacity());
        for block in (from..end).filter_map(|key| self.blocks.get(key)) {
            if block.present != 0 {
                found(block.id);
            }
        }
        (end < self.blocks.capacity()).then_some(end)
    }

    pub fn block(&self, key: BlockKey) -> &Block {
        &self.blocks[key]
    }

    pub fn block_mut(&mut self, key: BlockKey) -> &mut Block {
        &mut self.blocks[key]
    }

    /// Counts a read of bytes `range`; a hit only when it was read before, so that one pass over a
    /// block, in reads of whatever size, counts as no hit at all. Returns whether it was a hit.
    pub fn touch(&mut self, key: BlockKey, range: Range<usize>) -> bool {
        let block = &mut self.blocks[key];
        let touches = mask_of_bytes(range.start, range.end);
        // A read that continues the one before shares its first sub-block with it.
        let continues = range.start as u32 == block.last_end;
        let seam = match continues && !range.start.is_multiple_of(SUB_BLOCK_BYTES) {
            true => mask(range.start / SUB_BLOCK_BYTES, 1),
            false => 0,
        };
        block.last_end = range.end as u32;
        let again = block.touched & touches & !seam != 0;
        if again {
            block.touched = touches;
            block.hits = (block.hits + 1).min(HITS_MAX);
        } else {
            block.touched |= touches;
        }
        again
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

    /// A fill or load brings these sub-blocks no more: they came, or will not come.
    pub fn unpromise(&mut self, key: BlockKey, by: Promise, brought: Mask) {
        let block = &mut self.blocks[key];
        block.in_flight &= !brought;
        for filling in &mut block.fills {
            if filling.by == by {
                filling.brings &= !brought;
            }
        }
        block.fills.retain(|filling| filling.brings != 0);
    }

    /// Promises sub-blocks.
    pub fn promise(&mut self, key: BlockKey, by: Promise, brings: Mask) {
        let block = &mut self.blocks[key];
        debug_assert_eq!((block.present | block.in_flight) & brings, 0);
        block.in_flight |= brings;
        match block.fills.iter_mut().find(|filling| filling.by == by) {
            Some(filling) => filling.brings |= brings,
            None => block.fills.push(Filling { by, brings }),
        }
    }

    /// Sub-blocks are on their way to disk.
    pub fn set_saving(&mut self, key: BlockKey, of: Mask) {
        let block = &mut self.blocks[key];
        let new = of & block.present & !block.saving;
        block.saving |= new;
        self.saving_bytes += block.footprint_of(new);
    }

    /// Sub-blocks are no longer on their way to disk.
    fn clear_saving(&mut self, key: BlockKey, of: Mask) {
        let block = &mut self.blocks[key];
        self.saving_bytes -= block.footprint_of(of & block.saving);
        block.saving &= !of;
    }

    /// A warm-up reads a block: it is not to be evicted before it is on disk.
    pub fn hold(&mut self, id: BlockId) {
        *self.held.entry(id).or_default() += 1;
    }

    /// One warm-up less.
    pub fn unhold(&mut self, id: BlockId) {
        if let Some(count) = self.held.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&id);
            }
        }
    }

    fn is_held(&self, key: BlockKey) -> bool {
        !self.held.is_empty() && self.held.contains_key(&self.blocks[key].id)
    }

    /// The disk tier needs the memory copy of these pages no more.
    pub fn settled(&mut self, id: BlockId, pages: Range<usize>) {
        if let Some(key) = self.find(id) {
            let start = pages.start * PAGE_BYTES;
            self.clear_saving(key, mask_of_bytes(start, pages.end * PAGE_BYTES));
        }
    }

    /// These sub-blocks have come from disk or from the origin.
    pub fn trust(&mut self, key: BlockKey, arrived: Mask) {
        let block = &mut self.blocks[key];
        block.failed &= !arrived;
        block.distrusted &= !arrived;
    }

    /// Drops the piece that holds sub-block `sub`, whose bytes are wrong.
    pub fn spoil(&mut self, key: BlockKey, sub: usize) {
        self.changes += 1;
        let before = self.blocks[key].footprint_bytes;
        let gone = self.take_piece(key, sub);
        let block = &mut self.blocks[key];
        block.spoiled |= gone;
        block.distrusted |= gone & block.failed;
        block.failed |= gone;
        self.queues
            .shrink(block.place, before - block.footprint_bytes);
    }

    /// Drops what is cached of a block and waited for by nobody.
    pub fn drop_cached(&mut self, key: BlockKey) {
        self.changes += 1;
        let block = &self.blocks[key];
        let before = block.footprint_bytes;
        let waiters = block.waiters.iter();
        let wanted = waiters.fold(0, |all, waiter| all | waiter.wants);
        for sub in 0..SUB_BLOCKS_PER_BLOCK {
            let piece = self.blocks[key].piece_at(sub);
            if piece.is_some_and(|piece| piece.mask() & wanted == 0) {
                self.take_piece(key, sub);
            }
        }
        let block = &self.blocks[key];
        self.queues
            .shrink(block.place, before - block.footprint_bytes);
    }

    /// Takes out the piece that holds sub-block `sub`; returns the sub-blocks that are gone. The
    /// queues' account is the caller's.
    fn take_piece(&mut self, key: BlockKey, sub: usize) -> Mask {
        let holds = self.blocks[key].piece_at(sub).map_or(0, Piece::mask);
        self.clear_saving(key, holds);
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

    #[cfg(test)]
    pub fn held_blocks(&self) -> usize {
        self.held.len()
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
                let mut wrong = piece.checksums.to_vec();
                wrong[0] ^= 1;
                piece.checksums = wrong.into();
                return true;
            }
        }
        false
    }
}
