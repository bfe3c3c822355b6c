//! Giving regions back to the device, and emptied ones to the free list.

use super::device::Log;
use super::flush::Waits;
use super::log::Buffers;
use super::ops::Op;
use super::regions::State;
use super::tier::Tier;
use crate::limits::PAGE_BYTES;
use crate::ports::{BlockDevice, DeviceError, DeviceOp, Time};

impl<D: BlockDevice> Log<D> {
    /// Free regions that still take room on the device are given back first.
    pub fn give_back_free(&mut self) -> bool {
        match self.regions.take_unpunched() {
            Some(region) => {
                self.discard_later(region);
                true
            }
            None => false,
        }
    }

    pub fn discard_later(&mut self, region: u32) {
        self.regions.set_state(region, State::Discarding);
        // Other cores' entries in it are void from here on, not only when it is opened anew.
        if let Some(entry) = self.regions.get_mut(region) {
            entry.generation = entry.generation.wrapping_add(1).max(1);
            self.shared.set_generation(region, entry.generation);
        }
        self.discarding += 1;
        self.discards.push_back(region);
    }

    /// Voids the headers of regions that are to be given back: what a device gives for discarded
    /// bytes may be anything, also the old header.
    pub fn void_headers(&mut self, buffers: &mut impl Buffers) -> bool {
        let mut some = false;
        while let Some(region) = self.discards.front().copied() {
            let Ok(mut lease) = buffers.lease(PAGE_BYTES) else {
                return some;
            };
            self.discards.pop_front();
            lease.bytes_mut().fill(0);
            let bytes = buffers.freeze(lease);
            let tag = self.ops.begin(Op::Void(region));
            let offset_bytes = self.offset_bytes(region, 0);
            self.submit(DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            });
            some = true;
        }
        some
    }

    /// A region's header is void, or could not be made so: then it is not given back either.
    pub fn void_done(
        &mut self,
        now: Time,
        region: u32,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        match result {
            Ok(()) => self.flush.request(Waits::Void(region)),
            Err(_) => self.discard_done(now, region, result, tier),
        }
    }

    pub fn discard(&mut self, region: u32) {
        let tag = self.ops.begin(Op::Discard(region));
        self.submit(DeviceOp::Discard {
            tag,
            offset_bytes: self.geometry.offset_bytes(region),
            len_bytes: u64::from(self.geometry.region_bytes),
        });
    }

    pub fn discard_done(
        &mut self,
        now: Time,
        region: u32,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
    ) {
        match result {
            Ok(()) => {
                self.discarding -= 1;
                self.regions.discarded(region, true);
            }
            Err(error) => {
                self.not_discarded(region);
                self.fault(now, error, tier);
            }
        }
    }

    pub fn not_discarded(&mut self, region: u32) {
        self.stats.write_errors += 1;
        self.discarding -= 1;
        self.regions.discarded(region, false);
    }

    /// Emptied regions become free when nobody reads there any more: a read that hangs holds one region, and
    /// no reclaim.
    pub fn free_emptied(&mut self) -> bool {
        let mut some = false;
        let mut at = 0;
        while let Some(region) = self.lingering.get(at).copied() {
            if self
                .regions
                .get(region)
                .is_some_and(|entry| entry.readers > 0)
            {
                at += 1;
                continue;
            }
            some = true;
            self.lingering.swap_remove(at);
            self.regions.release(region, false);
            if self.regions.take_partial(region) {
                self.discard_later(region);
            }
        }
        some
    }
}
