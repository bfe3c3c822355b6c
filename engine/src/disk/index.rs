//! Where the extents of blocks are on disk: one core's index of all its devices.
//!
//! A hash table with chains through a slab of 40-byte entries. Both are mapped once, so that a large index
//! costs memory only as it fills. Order is that of insertion, in every process.

mod memory;

use self::memory::Table;
use crate::identity::{BlockId, ObjectId};
use crate::limits::{DEVICES_MAX, DISK_ENTRY_BYTES};

/// Bits of [`Place::region`] below the device's number.
const REGION_BITS: u32 = 26;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 40;
/// How many insertions are worth being looked ahead of together.
pub(super) const LOOK_AHEAD: usize = 32;
/// Memory for an entry's ghost, part of [`DISK_ENTRY_BYTES`].
const GHOST_BYTES: usize = 8;

const _: () = {
    // A table of a power of two has at most two buckets for each entry.
    assert!(ENTRY_BYTES + 2 * size_of::<u32>() + GHOST_BYTES <= DISK_ENTRY_BYTES);
    assert!(DEVICES_MAX <= 1 << (u32::BITS - REGION_BITS));
};

/// Where an extent begins on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The device's number in the top 6 bits, its region below.
    region: u32,
    /// Page of the region.
    pub page: u16,
}

impl Place {
    /// Page `page` of region `region` of device `device`.
    pub fn new(device: u8, region: u32, page: u16) -> Self {
        debug_assert!(usize::from(device) < DEVICES_MAX && region < 1 << REGION_BITS);
        Self {
            region: u32::from(device) << REGION_BITS | region,
            page,
        }
    }

    /// The device's number.
    pub fn device(self) -> u8 {
        (self.region >> REGION_BITS) as u8
    }

    /// The region of the device.
    pub fn region(self) -> u32 {
        self.region & ((1 << REGION_BITS) - 1)
    }
}

/// Contiguous pages of one block on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub block: BlockId,
    /// First page, by number in the block.
    pub first_page: u16,
    /// At least one.
    pub pages: u16,
    pub place: Place,
    /// The region's stamp when it was hit last, or 0.
    pub stamp: u8,
    /// Never evicted.
    pub pinned: bool,
    /// What the last page lacks of a page; not 0 only at an object's end.
    pub short_bytes: u16,
    /// The number that the core gave the member that has it too, or 0 (`core::handover`).
    pub given_to: u16,
}

impl Extent {
    /// The page of the block behind the last.
    pub fn end(&self) -> u32 {
        u32::from(self.first_page) + u32::from(self.pages)
    }

    /// Whether it holds `page` of the block.
    pub fn covers(&self, page: u16) -> bool {
        (u32::from(self.first_page)..self.end()).contains(&u32::from(page))
    }

    /// Whether it holds all pages of `other`, an extent of the same block.
    fn encloses(&self, other: &Extent) -> bool {
        self.first_page <= other.first_page && other.end() <= self.end()
    }
}

/// An extent as the slab keeps it. Numbers of entries are from 1, so that 0 is none.
#[derive(Clone, Copy)]
struct Entry {
    extent: Extent,
    /// The next of its bucket, or the next free one.
    next: u32,
}

impl Entry {
    /// Object 16, index 4, next 4, region 4, page of it 2, first page 2, pages 2 (0: free), stamp 1,
    /// pinned 1, short 2, given to 2.
    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let extent = &self.extent;
        let mut out = [0; ENTRY_BYTES];
        out[..16].copy_from_slice(&extent.block.object.0.to_le_bytes());
        out[16..20].copy_from_slice(&extent.block.index.to_le_bytes());
        out[20..24].copy_from_slice(&self.next.to_le_bytes());
        out[24..28].copy_from_slice(&extent.place.region.to_le_bytes());
        out[28..30].copy_from_slice(&extent.place.page.to_le_bytes());
        out[30..32].copy_from_slice(&extent.first_page.to_le_bytes());
        out[32..34].copy_from_slice(&extent.pages.to_le_bytes());
        out[34] = extent.stamp;
        out[35] = u8::from(extent.pinned);
        out[36..38].copy_from_slice(&extent.short_bytes.to_le_bytes());
        out[38..40].copy_from_slice(&extent.given_to.to_le_bytes());
        out
    }

    #[inline]
    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (object, _) = bytes.split_first_chunk().unwrap_or((&[0; 16], &[]));
        Self {
            extent: Extent {
                block: BlockId {
                    object: ObjectId(u128::from_le_bytes(*object)),
                    index: u32_at(16),
                },
                first_page: u16_at(30),
                pages: u16_at(32),
                place: Place {
                    region: u32_at(24),
                    page: u16_at(28),
                },
                stamp: bytes[34],
                pinned: bytes[35] != 0,
                short_bytes: u16_at(36),
                given_to: u16_at(38),
            },
            next: u32_at(20),
        }
    }
}

/// A hash of the block. Object ids are hashes already; the blocks of one object must spread too.
pub(super) fn spread(block: BlockId) -> u64 {
    let (low, high) = (block.object.0 as u64, (block.object.0 >> 64) as u64);
    let mut mixed = low ^ high.rotate_left(32);
    mixed ^= u64::from(block.index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The index.
pub(crate) struct DiskIndex {
    /// First entry of each chain.
    buckets: Table<4>,
    buckets_len: usize,
    entries: Table<ENTRY_BYTES>,
    /// Entries that were ever used: the rest is untouched.
    used: u32,
    /// First free entry among those.
    free: u32,
    len: usize,
    pinned: usize,
    entries_max: u32,
}

impl DiskIndex {
    /// An index of at most `entries_max` extents.
    pub fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.min(u32::MAX as usize / 2);
        let buckets_len = entries_max.next_power_of_two();
        Self {
            buckets: Table::new(buckets_len),
            buckets_len,
            entries: Table::new(entries_max),
            used: 0,
            free: 0,
            len: 0,
            pinned: 0,
            entries_max: entries_max as u32,
        }
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Extents that it may hold.
    pub fn capacity(&self) -> usize {
        self.entries_max as usize
    }

    /// Number of pinned extents.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Memory that it takes: all buckets, and the entries that were ever used.
    pub fn memory_bytes(&self) -> usize {
        self.used as usize * ENTRY_BYTES + self.buckets_len * size_of::<u32>()
    }

    /// Takes an extent in, as if it had just been read to its end. Extents of the block that it encloses are
    /// removed and handed out first. False when the index is full; nothing was changed then.
    pub fn insert(&mut self, extent: Extent, removed: &mut impl FnMut(Extent)) -> bool {
        debug_assert!(extent.pages > 0);
        let bucket = self.bucket(extent.block);
        let encloses = |other: &Extent| extent.encloses(other);
        self.remove_in(bucket, extent.block, encloses, removed);
        let Some(id) = self.allocate() else {
            return false;
        };
        let next = self.head(bucket);
        self.store(id, &Entry { extent, next });
        self.set_head(bucket, id);
        self.len += 1;
        self.pinned += usize::from(extent.pinned);
        true
    }

    /// Brings what insertions of these blocks (at most [`LOOK_AHEAD`]) will touch into the processor's
    /// cache, all at once: one after the other they would wait for memory most of their time.
    pub fn look_ahead(&self, blocks: impl Iterator<Item = BlockId>) {
        let mut heads = [1u32; LOOK_AHEAD];
        for (head, block) in heads.iter_mut().zip(blocks) {
            *head = self.head(self.bucket(block));
        }
        if self.used > 0 {
            // Without a branch on what is being loaded: where there is none, a look at the first entry.
            let seconds = heads.map(|head| self.entry(head.max(1)).next);
            let thirds = seconds.map(|second| self.entry(second.max(1)).next);
            std::hint::black_box(thirds);
        }
    }

    /// The block's extents, newest first.
    pub fn extents(&self, block: BlockId) -> impl Iterator<Item = Extent> + '_ {
        self.chain(block).map(|(_, extent)| extent)
    }

    /// All extents, in no particular order, the same in every process.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let live = |extent: &Extent| extent.pages > 0;
        (1..=self.used).map(|id| self.entry(id).extent).filter(live)
    }

    /// The blocks of `buckets` buckets from number `from` on (the first is 0), each once, and where to go on; nowhere when
    /// all were looked at. A block stays in its bucket when its extents move, so that a walk passes over none that was
    /// there from its beginning to its end. What is new meanwhile may be passed over.
    pub fn blocks_from(
        &self,
        from: u32,
        buckets: u32,
        mut found: impl FnMut(BlockId),
    ) -> Option<u32> {
        let end = (from as usize + buckets as usize).min(self.buckets_len);
        for bucket in from as usize..end {
            let mut id = self.head(bucket);
            while id != 0 {
                let Entry { extent, next } = self.entry(id);
                let leads = |(first, _): (u32, Entry)| first == id;
                if self.first_of(extent.block).is_some_and(leads) {
                    found(extent.block);
                }
                id = next;
            }
        }
        (end < self.buckets_len).then_some(end as u32)
    }

    /// Notes that another member has all extents of a block, too.
    pub fn set_given(&mut self, block: BlockId, to: u16) {
        let mut at = self.first_of(block);
        while let Some((id, entry)) = at {
            self.change(id, |extent| extent.given_to = to);
            at = self.next_of(block, entry.next);
        }
    }

    /// The extent that holds `page` and the most pages from there; of equals the newest.
    #[cfg(test)]
    pub fn find(&self, block: BlockId, page: u16) -> Option<Extent> {
        let mut best: Option<Extent> = None;
        for (_, extent) in self.chain(block) {
            if extent.covers(page) && best.is_none_or(|best| extent.end() > best.end()) {
                best = Some(extent);
            }
        }
        best
    }

    /// The extent that begins at this page of the block and lies at this place.
    pub fn get(&self, block: BlockId, first_page: u16, place: Place) -> Option<Extent> {
        Some(self.get_id(block, first_page, place)?.1)
    }

    /// Removes one extent, as [`DiskIndex::get`] names it.
    pub fn remove(&mut self, block: BlockId, first_page: u16, place: Place) -> Option<Extent> {
        let mut found = None;
        self.remove_of_block(
            block,
            |extent| extent.first_page == first_page && extent.place == place,
            &mut |extent| found = Some(extent),
        );
        found
    }

    /// Removes all of a block.
    pub fn remove_block(&mut self, block: BlockId, removed: &mut impl FnMut(Extent)) {
        self.remove_of_block(block, |_| true, removed);
    }

    /// Removes whatever `condition` holds for. Walks the whole index: for when a device is gone.
    pub fn remove_where(
        &mut self,
        condition: impl Fn(&Extent) -> bool,
        removed: &mut impl FnMut(Extent),
    ) {
        for id in 1..=self.used {
            let extent = self.entry(id).extent;
            if extent.pages > 0 && condition(&extent) {
                self.unlink(self.bucket(extent.block), id);
                self.release(id);
                removed(extent);
            }
        }
    }

    /// Marks an extent as hit. False when it is not there.
    pub fn set_stamp(&mut self, block: BlockId, first_page: u16, place: Place, stamp: u8) -> bool {
        let found = self.get_id(block, first_page, place);
        if let Some((id, _)) = found {
            self.change(id, |extent| extent.stamp = stamp);
        }
        found.is_some()
    }

    /// Pins or releases every extent of the block.
    pub fn pin(&mut self, block: BlockId, pinned: bool) {
        let mut at = self.first_of(block);
        while let Some((id, entry)) = at {
            self.pinned = self.pinned - usize::from(entry.extent.pinned) + usize::from(pinned);
            self.change(id, |extent| extent.pinned = pinned);
            at = self.next_of(block, entry.next);
        }
    }

    fn bucket(&self, block: BlockId) -> usize {
        (spread(block) >> 32) as usize & (self.buckets_len - 1)
    }

    fn head(&self, bucket: usize) -> u32 {
        u32::from_le_bytes(*self.buckets.get(bucket))
    }

    fn set_head(&mut self, bucket: usize, id: u32) {
        *self.buckets.get_mut(bucket) = id.to_le_bytes();
    }

    fn entry(&self, id: u32) -> Entry {
        Entry::decode(self.entries.get(id as usize - 1))
    }

    fn store(&mut self, id: u32, entry: &Entry) {
        *self.entries.get_mut(id as usize - 1) = entry.encode();
    }

    fn change(&mut self, id: u32, change: impl FnOnce(&mut Extent)) {
        let mut entry = self.entry(id);
        change(&mut entry.extent);
        self.store(id, &entry);
    }

    /// The newest entry of a block.
    fn first_of(&self, block: BlockId) -> Option<(u32, Entry)> {
        self.next_of(block, self.head(self.bucket(block)))
    }

    /// The first entry of a block from `id` on along the chain.
    fn next_of(&self, block: BlockId, mut id: u32) -> Option<(u32, Entry)> {
        while id != 0 {
            let entry = self.entry(id);
            if entry.extent.block == block {
                return Some((id, entry));
            }
            id = entry.next;
        }
        None
    }

    /// Entries of one block, newest first.
    fn chain(&self, block: BlockId) -> impl Iterator<Item = (u32, Extent)> + '_ {
        let next = move |(_, entry): &(u32, Entry)| self.next_of(block, entry.next);
        std::iter::successors(self.first_of(block), next).map(|(id, entry)| (id, entry.extent))
    }

    fn get_id(&self, block: BlockId, first_page: u16, place: Place) -> Option<(u32, Extent)> {
        self.chain(block)
            .find(|(_, extent)| extent.first_page == first_page && extent.place == place)
    }

    fn remove_of_block(
        &mut self,
        block: BlockId,
        condition: impl Fn(&Extent) -> bool,
        removed: &mut impl FnMut(Extent),
    ) {
        self.remove_in(self.bucket(block), block, condition, removed);
    }

    /// The same, for who knows the block's bucket.
    fn remove_in(
        &mut self,
        bucket: usize,
        block: BlockId,
        condition: impl Fn(&Extent) -> bool,
        removed: &mut impl FnMut(Extent),
    ) {
        let mut before = 0;
        let mut id = self.head(bucket);
        while id != 0 {
            let entry = self.entry(id);
            if entry.extent.block == block && condition(&entry.extent) {
                self.link(bucket, before, entry.next);
                self.release(id);
                removed(entry.extent);
            } else {
                before = id;
            }
            id = entry.next;
        }
    }

    /// Makes `next` follow `before`, or lead the chain when that is none.
    fn link(&mut self, bucket: usize, before: u32, next: u32) {
        match before {
            0 => self.set_head(bucket, next),
            _ => {
                let entry = self.entry(before);
                self.store(before, &Entry { next, ..entry });
            }
        }
    }

    fn unlink(&mut self, bucket: usize, id: u32) {
        let mut before = 0;
        let mut at = self.head(bucket);
        while at != id {
            before = at;
            at = self.entry(at).next;
        }
        self.link(bucket, before, self.entry(id).next);
    }

    fn allocate(&mut self) -> Option<u32> {
        if self.free != 0 {
            let id = self.free;
            self.free = self.entry(id).next;
            return Some(id);
        }
        if self.used == self.entries_max {
            return None;
        }
        self.used += 1;
        Some(self.used)
    }

    /// Gives an entry back that no chain names any more.
    fn release(&mut self, id: u32) {
        let mut entry = self.entry(id);
        self.pinned -= usize::from(entry.extent.pinned);
        self.len -= 1;
        entry.extent.pages = 0;
        entry.next = std::mem::replace(&mut self.free, id);
        self.store(id, &entry);
    }
}

impl std::fmt::Debug for DiskIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskIndex")
            .field("len", &self.len)
            .field("entries_max", &self.entries_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
