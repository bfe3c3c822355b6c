//! Where the extents of blocks are on disk: one core's index of all its devices.
//!
//! A hash table with chains through a slab of 40-byte entries. Buckets are allocated once, zeroed, so
//! that a large index costs memory only as it fills. Order is that of insertion, in every process.

use crate::identity::BlockId;
use crate::limits::{DEVICES_MAX, DISK_ENTRY_BYTES};

/// Bits of [`Place::region`] below the device's number.
const REGION_BITS: u32 = 26;
/// Entries allocated at a time.
const CHUNK: usize = 4096;
/// How many insertions are worth being looked ahead of together.
pub(super) const LOOK_AHEAD: usize = 32;
/// Memory for an entry's ghost, part of [`DISK_ENTRY_BYTES`].
const GHOST_BYTES: usize = 8;

const _: () = {
    assert!(size_of::<Entry>() == 40);
    // A table of a power of two has at most two buckets for each entry.
    assert!(size_of::<Entry>() + 2 * size_of::<u32>() + GHOST_BYTES <= DISK_ENTRY_BYTES);
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
    // Halves: a u128 would align the entry to 48 bytes.
    object: [u64; 2],
    index: u32,
    /// The next of its bucket, or the next free one.
    next: u32,
    region: u32,
    region_page: u16,
    first_page: u16,
    /// 0: free.
    pages: u16,
    stamp: u8,
    pinned: bool,
}

const FREE: Entry = Entry {
    object: [0; 2],
    index: 0,
    next: 0,
    region: 0,
    region_page: 0,
    first_page: 0,
    pages: 0,
    stamp: 0,
    pinned: false,
};

impl Entry {
    fn of(extent: &Extent) -> Self {
        Self {
            object: halves(extent.block),
            index: extent.block.index,
            next: 0,
            region: extent.place.region,
            region_page: extent.place.page,
            first_page: extent.first_page,
            pages: extent.pages,
            stamp: extent.stamp,
            pinned: extent.pinned,
        }
    }

    fn extent(&self) -> Extent {
        let object = u128::from(self.object[0]) | u128::from(self.object[1]) << 64;
        Extent {
            block: BlockId {
                object: crate::identity::ObjectId(object),
                index: self.index,
            },
            first_page: self.first_page,
            pages: self.pages,
            place: Place {
                region: self.region,
                page: self.region_page,
            },
            stamp: self.stamp,
            pinned: self.pinned,
        }
    }

    fn is_of(&self, block: BlockId) -> bool {
        self.index == block.index && self.object == halves(block)
    }
}

fn halves(block: BlockId) -> [u64; 2] {
    [block.object.0 as u64, (block.object.0 >> 64) as u64]
}

/// A hash of the block. Object ids are hashes already; the blocks of one object must spread too.
pub(super) fn spread(block: BlockId) -> u64 {
    let [low, high] = halves(block);
    let mut mixed = low ^ high.rotate_left(32);
    mixed ^= u64::from(block.index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The index.
pub(crate) struct DiskIndex {
    /// First entry of each chain.
    buckets: Vec<u32>,
    chunks: Vec<Box<[Entry]>>,
    /// Entries that were ever used: the rest of the last chunk is untouched.
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
        Self {
            // Zeroed by the system, not by us: untouched pages stay unmapped.
            buckets: vec![0; entries_max.next_power_of_two()],
            chunks: Vec::new(),
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

    /// Number of pinned extents.
    #[cfg(test)]
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Memory that it has allocated.
    pub fn memory_bytes(&self) -> usize {
        let entries: usize = self.chunks.iter().map(|chunk| chunk.len()).sum();
        entries * size_of::<Entry>()
            + self.chunks.capacity() * size_of::<Box<[Entry]>>()
            + self.buckets.capacity() * size_of::<u32>()
    }

    /// Takes an extent in, as if it had just been read to its end. Extents of the block that it encloses are
    /// removed and handed out first. False when the index is full; nothing was changed then.
    pub fn insert(&mut self, extent: Extent, removed: &mut impl FnMut(Extent)) -> bool {
        debug_assert!(extent.pages > 0);
        self.remove_of_block(extent.block, |other| extent.encloses(other), removed);
        let Some(id) = self.allocate() else {
            return false;
        };
        let bucket = self.bucket(extent.block);
        let first = std::mem::replace(&mut self.buckets[bucket], id);
        *self.entry_mut(id) = Entry {
            next: first,
            ..Entry::of(&extent)
        };
        self.len += 1;
        self.pinned += usize::from(extent.pinned);
        true
    }

    /// Brings what insertions of these blocks (at most [`LOOK_AHEAD`]) will touch into the processor's
    /// cache, all at once: one after the other they would wait for memory most of their time.
    pub fn look_ahead(&self, blocks: impl Iterator<Item = BlockId>) {
        let mut heads = [1u32; LOOK_AHEAD];
        for (head, block) in heads.iter_mut().zip(blocks) {
            *head = self.buckets[self.bucket(block)];
        }
        if self.used > 0 {
            // Without a branch on what is being loaded: an empty bucket looks at the first entry.
            let touched = heads.map(|head| self.entry(head.max(1)).index);
            std::hint::black_box(touched);
        }
    }

    /// The block's extents, newest first.
    pub fn extents(&self, block: BlockId) -> impl Iterator<Item = Extent> + '_ {
        self.chain(block).map(|id| self.entry(id).extent())
    }

    /// All extents, in no particular order, the same in every process.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let live = |entry: &&Entry| entry.pages > 0;
        self.chunks.iter().flatten().filter(live).map(Entry::extent)
    }

    /// The extent that holds `page` and the most pages from there; of equals the newest.
    pub fn find(&self, block: BlockId, page: u16) -> Option<Extent> {
        Some(self.entry(self.find_id(block, page)?).extent())
    }

    /// The extent that begins at this page of the block and lies at this place.
    pub fn get(&self, block: BlockId, first_page: u16, place: Place) -> Option<Extent> {
        Some(self.entry(self.get_id(block, first_page, place)?).extent())
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
            if self.entry(id).pages == 0 {
                continue;
            }
            let extent = self.entry(id).extent();
            if condition(&extent) {
                self.unlink(self.bucket(extent.block), id);
                self.release(id);
                removed(extent);
            }
        }
    }

    /// Marks an extent as hit. False when it is not there.
    pub fn set_stamp(&mut self, block: BlockId, first_page: u16, place: Place, stamp: u8) -> bool {
        let id = self.get_id(block, first_page, place);
        if let Some(id) = id {
            self.entry_mut(id).stamp = stamp;
        }
        id.is_some()
    }

    /// Pins or releases every extent of the block.
    pub fn pin(&mut self, block: BlockId, pinned: bool) {
        let mut before = 0;
        let mut all = 0;
        self.each_of(block, |entry| {
            before += usize::from(entry.pinned);
            all += 1;
            entry.pinned = pinned;
        });
        let after = if pinned { all } else { 0 };
        self.pinned = self.pinned + after - before;
    }

    fn bucket(&self, block: BlockId) -> usize {
        (spread(block) >> 32) as usize & (self.buckets.len() - 1)
    }

    fn entry(&self, id: u32) -> &Entry {
        let slot = id as usize - 1;
        &self.chunks[slot / CHUNK][slot % CHUNK]
    }

    fn entry_mut(&mut self, id: u32) -> &mut Entry {
        let slot = id as usize - 1;
        &mut self.chunks[slot / CHUNK][slot % CHUNK]
    }

    /// Entries of one block, newest first.
    fn chain(&self, block: BlockId) -> impl Iterator<Item = u32> + '_ {
        let first = self.buckets[self.bucket(block)];
        let some = |id: u32| (id != 0).then_some(id);
        std::iter::successors(some(first), move |id| some(self.entry(*id).next))
            .filter(move |id| self.entry(*id).is_of(block))
    }

    fn each_of(&mut self, block: BlockId, mut change: impl FnMut(&mut Entry)) {
        let mut id = self.buckets[self.bucket(block)];
        while id != 0 {
            let entry = self.entry_mut(id);
            if entry.is_of(block) {
                change(entry);
            }
            id = entry.next;
        }
    }

    fn find_id(&self, block: BlockId, page: u16) -> Option<u32> {
        let mut best = None;
        for id in self.chain(block) {
            let extent = self.entry(id).extent();
            if extent.covers(page) && best.is_none_or(|(_, end)| extent.end() > end) {
                best = Some((id, extent.end()));
            }
        }
        best.map(|(id, _)| id)
    }

    fn get_id(&self, block: BlockId, first_page: u16, place: Place) -> Option<u32> {
        self.chain(block).find(|id| {
            let entry = self.entry(*id);
            entry.first_page == first_page
                && entry.region == place.region
                && entry.region_page == place.page
        })
    }

    fn remove_of_block(
        &mut self,
        block: BlockId,
        condition: impl Fn(&Extent) -> bool,
        removed: &mut impl FnMut(Extent),
    ) {
        let bucket = self.bucket(block);
        let mut before = 0;
        let mut id = self.buckets[bucket];
        while id != 0 {
            let entry = *self.entry(id);
            if entry.is_of(block) && condition(&entry.extent()) {
                self.link(bucket, before, entry.next);
                self.release(id);
                removed(entry.extent());
            } else {
                before = id;
            }
            id = entry.next;
        }
    }

    /// Makes `next` follow `before`, or lead the chain when that is none.
    fn link(&mut self, bucket: usize, before: u32, next: u32) {
        match before {
            0 => self.buckets[bucket] = next,
            _ => self.entry_mut(before).next = next,
        }
    }

    fn unlink(&mut self, bucket: usize, id: u32) {
        let mut before = 0;
        let mut at = self.buckets[bucket];
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
        if self.used as usize == self.chunks.len() * CHUNK {
            let left = (self.entries_max - self.used) as usize;
            self.chunks.push(vec![FREE; left.min(CHUNK)].into());
        }
        self.used += 1;
        Some(self.used)
    }

    /// Gives an entry back that no chain names any more.
    fn release(&mut self, id: u32) {
        let free = std::mem::replace(&mut self.free, id);
        let entry = self.entry_mut(id);
        let pinned = usize::from(entry.pinned);
        *entry = Entry { next: free, ..FREE };
        self.len -= 1;
        self.pinned -= pinned;
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
