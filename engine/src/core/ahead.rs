//! Checking ahead of a sequential reader, while the core has nothing else to do.
//!
//! Between one read of a sequential reader and its next the core is idle for about as long as
//! checking the next range takes. Done then, the check costs the reader nothing. It counts only
//! when the read comes within [`CHECK_VALID_US`] and nothing in the index has changed meanwhile; else the
//! read is checked as ever. The first read that uses a check uses it up.

use std::ops::Range;
use std::time::Duration;

use super::Core;
use super::index::mask_of_bytes;
use crate::identity::{BlockId, ObjectId};
use crate::limits::{BLOCK_BYTES, CHECK_AHEAD_BYTES_MIN, CHECK_VALID_US};
use crate::ports::{Clock, Platform, Time};

/// Bytes of one block, by offset in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    block: BlockId,
    bytes: Range<usize>,
}

/// What was read last, what may come next, what was checked for it.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    last: Option<(ObjectId, u64)>,
    expected: Option<Place>,
    checked: Option<(Place, Time, u64)>,
}

impl Ahead {
    /// Notes an answered read. One that continues the read before it says what comes next.
    pub fn note(&mut self, object: ObjectId, offset: u64, len_bytes: u64) {
        let end = offset + len_bytes;
        let continues = self.last.replace((object, end)) == Some((object, offset));
        self.expected = None;
        if continues && len_bytes >= CHECK_AHEAD_BYTES_MIN as u64 {
            let index = (end / BLOCK_BYTES as u64) as u32;
            let start = (end % BLOCK_BYTES as u64) as usize;
            let stop = BLOCK_BYTES.min(start + len_bytes as usize);
            let block = BlockId { object, index };
            self.expected = Some(Place {
                block,
                bytes: start..stop,
            });
        }
    }

    pub fn has_work(&self) -> bool {
        self.expected.is_some()
    }

    /// Whether these bytes were checked a moment ago, in an index that has not changed since.
    pub fn take_check(
        &mut self,
        block: BlockId,
        bytes: &Range<usize>,
        now: Time,
        changes: u64,
    ) -> bool {
        let counts = self.checked.as_ref().is_some_and(|(place, at, then)| {
            place.block == block
                && place.bytes.start <= bytes.start
                && bytes.end <= place.bytes.end
                && *then == changes
                && now.since(*at) <= Duration::from_micros(CHECK_VALID_US)
        });
        if counts {
            self.checked = None;
        }
        counts
    }
}

impl<P: Platform> Core<P> {
    /// Checks what the sequential reader will ask for next, if it is all in memory.
    pub(super) fn check_ahead(&mut self) {
        let Some(place) = self.ahead.expected.take() else {
            return;
        };
        let Some(key) = self.index.find(place.block) else {
            return;
        };
        let block = self.index.block(key);
        let needs = mask_of_bytes(place.bytes.start, place.bytes.end);
        let right = block.present & needs == needs
            && block
                .slices(place.bytes.start, place.bytes.end)
                .all(|(piece, start, end)| piece.verify(block.seed, start, end));
        // A page that is wrong is left for the read itself to find, count and mend.
        if right {
            self.ahead.checked = Some((place, self.parts.clock.now(), self.index.changes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const OBJECT: ObjectId = ObjectId(7);

    fn checked(at: Time) -> Ahead {
        let mut ahead = Ahead::default();
        ahead.note(OBJECT, 0, 256 * KIB);
        assert!(!ahead.has_work(), "one read is no sequence");
        ahead.note(OBJECT, 256 * KIB, 256 * KIB);
        let place = ahead.expected.take().expect("the next range is expected");
        assert_eq!(place.bytes, 512 << 10..768 << 10);
        ahead.checked = Some((place, at, 5));
        ahead
    }

    #[test]
    fn a_check_counts_once_for_its_range_its_index_and_its_moment() {
        let block = BlockId {
            object: OBJECT,
            index: 0,
        };
        let range = 512 << 10..768 << 10;
        let soon = Time(1_000);
        assert!(checked(Time(0)).take_check(block, &range, soon, 5));
        let mut used = checked(Time(0));
        used.take_check(block, &range, soon, 5);
        assert!(!used.take_check(block, &range, soon, 5), "once");
        assert!(
            !checked(Time(0)).take_check(block, &range, soon, 6),
            "the index changed"
        );
        let late = Time(CHECK_VALID_US * 1_000 + 1);
        assert!(
            !checked(Time(0)).take_check(block, &range, late, 5),
            "too late"
        );
        let wider = 512 << 10..769 << 10;
        assert!(
            !checked(Time(0)).take_check(block, &wider, soon, 5),
            "more than was checked"
        );
        let other = BlockId {
            object: OBJECT,
            index: 1,
        };
        assert!(!checked(Time(0)).take_check(other, &range, soon, 5));
    }

    #[test]
    fn small_reads_and_jumps_expect_nothing() {
        let mut ahead = Ahead::default();
        ahead.note(OBJECT, 0, 4 * KIB);
        ahead.note(OBJECT, 4 * KIB, 4 * KIB);
        assert!(!ahead.has_work());
        ahead.note(OBJECT, 0, 256 * KIB);
        ahead.note(OBJECT, 512 * KIB, 256 * KIB);
        assert!(!ahead.has_work());
    }
}
