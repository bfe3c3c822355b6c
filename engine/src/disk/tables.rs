//! Pages of the checksum tables of sealed regions: a bounded pool with second chance.

use super::geometry::REGION_BYTES_MAX;
use crate::limits::PAGE_BYTES;

/// Checksums in a page of a table.
const TABLE_LEN: usize = PAGE_BYTES / size_of::<u32>();
/// Pages of the longest table.
const TABLE_PAGES_MAX: u16 = (REGION_BYTES_MAX as usize / PAGE_BYTES / TABLE_LEN) as u16;
/// Fewer would let reads that need two at a time push out each other's for ever.
const TABLES_MIN: usize = 16;
/// What an allocation takes beside its bytes.
const ALLOCATION_BYTES: usize = 16;
/// Memory of one page, its slot, its allocation and at most two hash buckets included.
const TABLE_BYTES: usize = PAGE_BYTES + ALLOCATION_BYTES + size_of::<Slot>() + 2 * size_of::<u32>();

/// Names a page of a region's checksum table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TableKey {
    pub device: u8,
    pub region: u32,
    pub generation: u32,
    /// Page of the table: of the checksums of 1,024 pages each.
    pub page: u16,
}

struct Slot {
    key: TableKey,
    table: Box<[u32]>,
    /// The next of its bucket: number of the slot, from 1; 0 is none.
    next: u32,
    /// Used since the hand came by.
    used: bool,
}

/// The pool.
pub(super) struct Tables {
    buckets: Vec<u32>,
    /// Without holes; as many as there may be are allocated once.
    slots: Vec<Slot>,
    max: usize,
    /// The next slot to be pushed out, unless it was used.
    hand: usize,
}

impl Tables {
    /// A pool of at most `bytes_max` in all, but never fewer than 16 pages.
    pub fn new(bytes_max: usize) -> Self {
        let max = (bytes_max / TABLE_BYTES).clamp(TABLES_MIN, u32::MAX as usize / 2);
        Self {
            buckets: vec![0; max.next_power_of_two()],
            slots: Vec::with_capacity(max),
            max,
            hand: 0,
        }
    }

    /// Memory that it has allocated.
    pub fn memory_bytes(&self) -> usize {
        let tables: usize = self
            .slots
            .iter()
            .map(|slot| size_of_val(&*slot.table))
            .sum();
        tables
            + self.slots.len() * ALLOCATION_BYTES
            + self.slots.capacity() * size_of::<Slot>()
            + self.buckets.capacity() * size_of::<u32>()
    }

    /// The checksums of a page of a table.
    pub fn get(&mut self, key: TableKey) -> Option<&[u32]> {
        let slot = self.find(key)?;
        let slot = &mut self.slots[slot];
        slot.used = true;
        Some(&slot.table)
    }

    /// Puts a page in; another may have to go. Longer than a page it is not taken.
    pub fn insert(&mut self, key: TableKey, table: Box<[u32]>) {
        debug_assert!(table.len() <= TABLE_LEN && key.page < TABLE_PAGES_MAX);
        if table.len() > TABLE_LEN {
            return;
        }
        if let Some(slot) = self.find(key) {
            self.slots[slot].table = table;
            return;
        }
        let bucket = self.bucket(key);
        let new = Slot {
            key,
            table,
            next: 0,
            used: false,
        };
        let at = if self.slots.len() < self.max {
            self.slots.push(new);
            self.slots.len() - 1
        } else {
            let at = self.victim();
            self.unlink(at);
            self.slots[at] = new;
            at
        };
        self.slots[at].next = std::mem::replace(&mut self.buckets[bucket], at as u32 + 1);
    }

    /// Drops all pages of a region, of whatever generation.
    pub fn forget(&mut self, device: u8, region: u32) {
        for page in 0..TABLE_PAGES_MAX {
            let any = TableKey {
                device,
                region,
                generation: 0,
                page,
            };
            let same = |key: TableKey| {
                TableKey {
                    generation: 0,
                    ..key
                } == any
            };
            while let Some(slot) = self.find_in(self.bucket(any), same) {
                self.remove(slot);
            }
        }
    }

    /// The generation is left out, so that [`Tables::forget`] finds all of them.
    fn bucket(&self, key: TableKey) -> usize {
        let mut hash = u64::from(key.region) << 24 | u64::from(key.device) << 16;
        hash = (hash | u64::from(key.page)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }

    fn find(&self, key: TableKey) -> Option<usize> {
        self.find_in(self.bucket(key), |other| other == key)
    }

    fn find_in(&self, bucket: usize, is_it: impl Fn(TableKey) -> bool) -> Option<usize> {
        let mut id = self.buckets[bucket];
        while id != 0 {
            let slot = &self.slots[id as usize - 1];
            if is_it(slot.key) {
                return Some(id as usize - 1);
            }
            id = slot.next;
        }
        None
    }

    /// The first slot from the hand on that was not used since it last came by.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[at].used) {
                return at;
            }
        }
    }

    fn remove(&mut self, at: usize) {
        self.unlink(at);
        let last = self.slots.len() - 1;
        if at != last {
            // What points to the last must point to where it moves.
            self.relink(last, at as u32 + 1);
        }
        self.slots.swap_remove(at);
        self.hand %= self.slots.len().max(1);
    }

    fn unlink(&mut self, at: usize) {
        self.relink(at, self.slots[at].next);
    }

    /// Makes what points to slot `at` point to `id`.
    fn relink(&mut self, at: usize, id: u32) {
        let bucket = self.bucket(self.slots[at].key);
        let old = at as u32 + 1;
        if self.buckets[bucket] == old {
            self.buckets[bucket] = id;
            return;
        }
        let mut before = self.buckets[bucket] as usize - 1;
        while self.slots[before].next != old {
            before = self.slots[before].next as usize - 1;
        }
        self.slots[before].next = id;
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables")
            .field("len", &self.slots.len())
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(device: u8, region: u32, generation: u32, page: u16) -> TableKey {
        TableKey {
            device,
            region,
            generation,
            page,
        }
    }

    fn table(value: u32) -> Box<[u32]> {
        vec![value; TABLE_LEN].into()
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_goes() {
        let mut tables = Tables::new(0);
        for region in 0..TABLES_MIN as u32 {
            tables.insert(key(0, region, 1, 0), table(region));
        }
        assert_eq!(tables.get(key(0, 0, 1, 0)), Some(&*table(0)));
        tables.insert(key(0, 100, 1, 0), table(100));
        assert!(tables.get(key(0, 0, 1, 0)).is_some(), "a second chance");
        assert!(tables.get(key(0, 1, 1, 0)).is_none(), "the oldest unused");
        assert!(tables.get(key(0, 100, 1, 0)).is_some());
        // All used: none is, once the hand has been round.
        tables.slots.iter_mut().for_each(|slot| slot.used = true);
        tables.insert(key(0, 101, 1, 0), table(101));
        assert!(tables.get(key(0, 101, 1, 0)).is_some());
    }

    #[test]
    fn a_region_is_forgotten_whole_and_alone() {
        let mut tables = Tables::new(1 << 20);
        for (device, region, generation) in [(1, 7, 1), (1, 7, 2), (2, 7, 1), (1, 8, 1)] {
            (0..16).for_each(|page| tables.insert(key(device, region, generation, page), table(9)));
        }
        tables.forget(1, 7);
        assert_eq!(tables.slots.len(), 32);
        assert!((0..16).all(|page| tables.get(key(1, 7, 2, page)).is_none()));
        assert!((0..16).all(|page| tables.get(key(2, 7, 1, page)).is_some()));
        assert!((0..16).all(|page| tables.get(key(1, 8, 1, page)).is_some()));
    }

    #[test]
    fn memory_stays_within_its_bound() {
        for bytes_max in [100_000usize, 1 << 20, (1 << 20) + 5000, 9 << 20] {
            let mut tables = Tables::new(bytes_max);
            for region in 0..4000 {
                tables.insert(key(0, region, 1, 0), table(region));
            }
            let bytes = tables.memory_bytes();
            assert!(bytes <= bytes_max, "{bytes} of {bytes_max}");
            assert!(bytes >= bytes_max * 9 / 10, "{bytes} of {bytes_max}");
        }
    }

    proptest! {
        #[test]
        fn what_it_gives_is_what_was_put_in_last(
            steps in proptest::collection::vec((0..4u8, 0..2u8, 0..6u32, 1..3u32, 0..3u16), 1..400)
        ) {
            let mut tables = Tables::new(0);
            let mut model = BTreeMap::new();
            for (number, (what, device, region, generation, page)) in steps.into_iter().enumerate() {
                let key = key(device, region, generation, page);
                match what {
                    0 => {
                        let found = tables.get(key).map(|table| table[0]);
                        prop_assert!(found.is_none() || found == model.get(&key).copied());
                    }
                    1 if page == 0 => {
                        tables.forget(device, region);
                        model.retain(|key: &TableKey, _| (key.device, key.region) != (device, region));
                    }
                    _ => {
                        tables.insert(key, table(number as u32));
                        model.insert(key, number as u32);
                        prop_assert_eq!(tables.get(key).map(|table| table[0]), Some(number as u32));
                    }
                }
                prop_assert!(tables.slots.len() <= TABLES_MIN.min(model.len()));
                let found = model.keys().filter(|key| tables.find(**key).is_some()).count();
                prop_assert_eq!(found, tables.slots.len());
            }
        }
    }
}
