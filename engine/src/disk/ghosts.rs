//! Blocks that were evicted not long ago: the ghost queue of S3-FIFO, in at most 8 bytes a ghost.
//!
//! A table of buckets with a fingerprint and an age for each ghost. Ghosts expire by age; one whose
//! bucket is full goes a little early (about 2 %). A block that was never remembered is taken for a
//! ghost once in hundreds of millions of times.

use super::index::spread;
use crate::identity::BlockId;

/// Ghosts of one bucket.
const WAYS: usize = 16;
/// A ghost takes four bytes of fingerprint and two of age, and a quarter of the slots stays free.
const SLOTS_FOR_3_GHOSTS: usize = 4;
/// Ages are counted in this many steps up to the most that can be remembered.
const STEPS: u64 = 1024;
/// Ages are told apart over so many steps; 0 is an empty slot.
const AGES: u64 = u16::MAX as u64;

/// The ghosts.
pub(super) struct Ghosts {
    fingerprints: Vec<u32>,
    ages: Vec<u16>,
    buckets: usize,
    /// As many as there is room for.
    room: usize,
    max: usize,
    /// Ghosts remembered since the beginning.
    count: u64,
    /// Ghosts of one step of age.
    step: u64,
    /// Next slot to be cleared if expired: long before its age comes round again.
    swept: usize,
}

impl Ghosts {
    /// Room for the last `max` ghosts.
    pub fn new(max: usize) -> Self {
        let buckets = (max * SLOTS_FOR_3_GHOSTS).div_ceil(3 * WAYS).max(1);
        Self {
            // Zeroed by the system, not by us: untouched pages stay unmapped.
            fingerprints: vec![0; buckets * WAYS],
            ages: vec![0; buckets * WAYS],
            buckets,
            room: max,
            max,
            count: 0,
            step: (max as u64).div_ceil(STEPS).max(1),
            swept: 0,
        }
    }

    /// From now on only the last `max` are remembered; at most what [`Ghosts::new`] made room for.
    pub fn set_max(&mut self, max: usize) {
        self.max = max.min(self.room);
    }

    /// Memory that it has allocated.
    pub fn memory_bytes(&self) -> usize {
        self.fingerprints.capacity() * size_of::<u32>() + self.ages.capacity() * size_of::<u16>()
    }

    /// The block was evicted now.
    pub fn remember(&mut self, block: BlockId) {
        if self.max == 0 {
            return;
        }
        self.count += 1;
        self.sweep();
        let (fingerprint, slots) = self.slots(block);
        let same = slots
            .clone()
            .find(|slot| self.fingerprints[*slot] == fingerprint && self.is_alive(*slot));
        // Else an empty or expired one, else the oldest.
        let oldest = || slots.max_by_key(|slot| self.steps_old(*slot));
        let Some(slot) = same.or_else(oldest) else {
            return;
        };
        self.fingerprints[slot] = fingerprint;
        self.ages[slot] = self.now();
    }

    /// Whether it was one of the last that were evicted.
    pub fn contains(&self, block: BlockId) -> bool {
        let (fingerprint, mut slots) = self.slots(block);
        slots.any(|slot| self.fingerprints[slot] == fingerprint && self.is_alive(slot))
    }

    fn slots(&self, block: BlockId) -> (u32, std::ops::Range<usize>) {
        let hash = spread(block);
        let bucket = (((hash >> 32) * self.buckets as u64) >> 32) as usize;
        (hash as u32, bucket * WAYS..(bucket + 1) * WAYS)
    }

    fn now(&self) -> u16 {
        (self.count / self.step % AGES) as u16 + 1
    }

    /// How many steps ago the slot was filled; the most when it is empty.
    fn steps_old(&self, slot: usize) -> u64 {
        match self.ages[slot] {
            0 => u64::MAX,
            age => (u64::from(self.now()) + AGES - u64::from(age)) % AGES,
        }
    }

    fn is_alive(&self, slot: usize) -> bool {
        let old = self.steps_old(slot);
        old <= STEPS && (old + 1) * self.step <= self.max as u64
    }

    fn sweep(&mut self) {
        if !self.is_alive(self.swept) {
            self.ages[self.swept] = 0;
        }
        self.swept = (self.swept + 1) % self.ages.len();
    }
}

impl std::fmt::Debug for Ghosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ghosts")
            .field("max", &self.max)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ObjectId;

    fn block(number: u64) -> BlockId {
        // As object ids are: any bits.
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..16]);
        BlockId {
            object: ObjectId(u128::from_le_bytes(hash)),
            index: 0,
        }
    }

    #[test]
    fn a_few_are_forgotten_in_the_order_they_came() {
        let mut ghosts = Ghosts::new(8);
        for number in 0..20 {
            ghosts.remember(block(number));
        }
        let kept: Vec<u64> = (0..20).filter(|n| ghosts.contains(block(*n))).collect();
        assert_eq!(kept, (12..20).collect::<Vec<_>>());
        ghosts.remember(block(12));
        ghosts.remember(block(20));
        assert!(ghosts.contains(block(12)), "remembered anew");
        assert!(!ghosts.contains(block(13)));
        ghosts.set_max(2);
        let kept: Vec<u64> = (0..21).filter(|n| ghosts.contains(block(*n))).collect();
        assert_eq!(kept, [12, 20]);
        ghosts.set_max(0);
        ghosts.remember(block(1));
        assert!(!ghosts.contains(block(1)) && !ghosts.contains(block(20)));
    }

    #[test]
    fn nearly_all_are_kept_and_older_ones_are_gone() {
        let max = 50_000;
        let mut ghosts = Ghosts::new(max);
        for number in 0..200_000 {
            ghosts.remember(block(number));
        }
        let kept = (150_000..200_000).filter(|n| ghosts.contains(block(*n)));
        let kept = kept.count();
        assert!(kept >= max * 97 / 100, "{kept} of {max}");
        let stale = (0..150_000).filter(|n| ghosts.contains(block(*n)));
        assert_eq!(stale.count(), 0);
        assert!(ghosts.memory_bytes() <= max * 8 + WAYS * 6);
    }

    #[test]
    fn strangers_are_no_ghosts() {
        let mut ghosts = Ghosts::new(20_000);
        (0..40_000).for_each(|number| ghosts.remember(block(number)));
        let mistaken = (1 << 40..(1 << 40) + 300_000u64).filter(|n| ghosts.contains(block(*n)));
        assert!(mistaken.count() <= 3, "fewer than one in 100,000");
    }

    #[test]
    fn an_old_ghost_does_not_come_back_when_ages_come_round() {
        let mut ghosts = Ghosts::new(4);
        ghosts.remember(block(0));
        for number in 1..=2 * AGES {
            ghosts.remember(block(1 + number % 3));
            assert!(number < 4 || !ghosts.contains(block(0)), "after {number}");
        }
    }

    #[test]
    fn no_room_is_no_fault() {
        let mut ghosts = Ghosts::new(0);
        ghosts.remember(block(1));
        assert!(!ghosts.contains(block(1)));
    }
}
