//! Operations of one device that are under way, by tag.

use slab::Slab;

use super::tables::TableKey;
use crate::ports::DeviceTag;

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Data for a reader: slot in `Reads`.
    Read(usize),
    /// A page of a sealed region's checksum table.
    Table(TableKey),
    /// Data of a batch.
    BatchData(usize),
    /// A batch's header.
    BatchHeader(usize),
    /// A flush.
    Flush,
    /// A region's header.
    RegionHeader(u32),
    /// Both tables of a region's footer.
    Tables(u32),
    /// A region's trailer.
    Trailer(u32),
    /// The footer of the region that is being reclaimed.
    ReclaimTables,
    /// Pages of an entry that reclaim keeps: which one, and its first page.
    ReclaimRead(usize, u16),
    /// The header of a region that was emptied.
    Void(u32),
    /// A region given back to the device.
    Discard(u32),
    /// Something that recovery reads.
    Recovery(u64),
}

/// Slots in a tag; more operations than this are never under way.
const SLOT_BITS: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Ops {
    all: Slab<(u64, Op)>,
    last: u64,
}

impl Ops {
    /// A new tag for an operation.
    pub fn begin(&mut self, op: Op) -> DeviceTag {
        self.last += 1;
        let id = self.last;
        let slot = self.all.insert((id, op));
        debug_assert!(slot < 1 << SLOT_BITS);
        DeviceTag(id << SLOT_BITS | slot as u64)
    }

    /// The operation ended, or never began.
    pub fn end(&mut self, tag: DeviceTag) -> Option<Op> {
        let slot = (tag.0 & ((1 << SLOT_BITS) - 1)) as usize;
        let known = self
            .all
            .get(slot)
            .is_some_and(|(id, _)| *id == tag.0 >> SLOT_BITS);
        known.then(|| self.all.remove(slot).1)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
