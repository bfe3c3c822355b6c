//! Whether a device reaches the buffers that it was given: nothing else tells.
//!
//! SPDK takes a registration of memory that the IOMMU has refused for done. A device's writes into memory are not answered: what the
//! IOMMU drops looks to the device as if it had arrived, and a read ends well without having changed a byte.

use forebay_engine::arena::Lease;
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag};

/// Different in every bit: no sector holds both.
const PATTERNS: [u8; 2] = [0xa5, 0x5a];
/// Operations under way at a time.
const BATCH: usize = 32;

/// How a trial ended that did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Reads into so many of the buffers ended well, and brought nothing.
    Unreached(usize),
    /// The device's error.
    Device(DeviceError),
}

/// Reads the first sector of a device into the beginning of each buffer, filled with one pattern and then with the other.
/// What keeps both was not reached. Blocks for as long as that takes. Gives the buffers back in their order.
///
/// # Errors
/// How many were not reached, or why they could not be read into.
pub(crate) fn reaches<D: BlockDevice>(
    device: &mut D,
    buffers: Vec<Lease>,
) -> (Vec<Lease>, Result<(), Failed>) {
    let sector_bytes = device.geometry().sector_bytes as usize;
    let mut trial = Trial {
        unreached: vec![true; buffers.len()],
        buffers: buffers.into_iter().map(Some).collect(),
        failed: None,
    };
    for pattern in PATTERNS {
        let left: Vec<usize> = (0..trial.buffers.len())
            .filter(|n| trial.unreached[*n])
            .collect();
        for batch in left.chunks(BATCH) {
            trial.read(device, batch, pattern, sector_bytes);
        }
    }
    let unreached = trial.unreached.iter().filter(|one| **one).count();
    let outcome = match (trial.failed, unreached) {
        (Some(error), _) => Err(Failed::Device(error)),
        (None, 0) => Ok(()),
        (None, count) => Err(Failed::Unreached(count)),
    };
    (trial.buffers.into_iter().flatten().collect(), outcome)
}

struct Trial {
    /// None while the device has it.
    buffers: Vec<Option<Lease>>,
    unreached: Vec<bool>,
    failed: Option<DeviceError>,
}

impl Trial {
    fn read<D: BlockDevice>(
        &mut self,
        device: &mut D,
        batch: &[usize],
        pattern: u8,
        sector_bytes: usize,
    ) {
        let mut under_way = 0;
        for n in batch {
            let Some(mut lease) = self.buffers[*n].take() else {
                continue;
            };
            lease.truncate(sector_bytes);
            lease.bytes_mut().fill(pattern);
            let mut op = DeviceOp::Read {
                tag: DeviceTag(*n as u64),
                offset_bytes: 0,
                lease,
            };
            while let Err(full) = device.submit(op) {
                op = full.0;
                under_way -= self.ended(device, pattern);
            }
            under_way += 1;
        }
        while under_way > 0 {
            under_way -= self.ended(device, pattern);
        }
    }

    /// Waits for one that ends.
    fn ended<D: BlockDevice>(&mut self, device: &mut D, pattern: u8) -> usize {
        device.commit();
        loop {
            match device.poll() {
                Some(DeviceEvent::Read { tag, lease, result }) => {
                    let n = tag.0 as usize;
                    match result {
                        Ok(()) => {
                            self.unreached[n] = lease.bytes().iter().all(|byte| *byte == pattern);
                        }
                        Err(error) => self.failed = self.failed.or(Some(error)),
                    }
                    self.buffers[n] = Some(lease);
                    return 1;
                }
                Some(_) => {}
                None => std::thread::sleep(device.nap().unwrap_or_default()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use forebay_engine::arena::Arena;
    use forebay_engine::ports::{DeviceGeometry, Full};

    use super::*;

    const MIB: usize = 1 << 20;

    /// Its medium is full of `medium`; reads arrive below `reached`, and beyond it they only end.
    struct Behind {
        reached: usize,
        medium: u8,
        error: Option<DeviceError>,
        depth: usize,
        waiting: VecDeque<DeviceEvent>,
    }

    impl BlockDevice for Behind {
        fn geometry(&self) -> DeviceGeometry {
            DeviceGeometry {
                sector_bytes: 512,
                capacity_bytes: 1 << 20,
            }
        }

        fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
            if self.waiting.len() >= self.depth {
                return Err(Full(op));
            }
            let DeviceOp::Read { tag, mut lease, .. } = op else {
                panic!("{op:?}");
            };
            assert_eq!(lease.len(), 512);
            if lease.bytes().as_ptr().addr() < self.reached {
                lease.bytes_mut().fill(self.medium);
            }
            let result = self.error.map_or(Ok(()), Err);
            self.waiting
                .push_back(DeviceEvent::Read { tag, lease, result });
            Ok(())
        }

        fn commit(&mut self) {}

        fn poll(&mut self) -> Option<DeviceEvent> {
            self.waiting.pop_front()
        }
    }

    fn tried(arena: &mut Arena, reached: usize, medium: u8) -> Result<(), Failed> {
        let mut device = Behind {
            reached,
            medium,
            error: None,
            depth: 3,
            waiting: VecDeque::new(),
        };
        let (back, outcome) = reaches(&mut device, arena.probes());
        assert_eq!(back.len(), arena.capacity_bytes() / (2 * MIB) + 1);
        outcome
    }

    #[test]
    fn what_a_device_does_not_reach_is_told_whatever_is_on_it() {
        let mut arena = Arena::new(100 * MIB).unwrap();
        let addresses = arena.addresses();
        for medium in [0, 0xa5, 0x5a] {
            assert_eq!(tried(&mut arena, addresses.end, medium), Ok(()));
            for (reached, count) in [(addresses.start, 51), (addresses.end - 2 * MIB, 2)] {
                let outcome = tried(&mut arena, reached, medium);
                assert_eq!(outcome, Err(Failed::Unreached(count)), "{medium:#x}");
            }
        }
        arena.reclaim();
        assert_eq!(arena.free_bytes(), arena.capacity_bytes());
    }

    #[test]
    fn a_device_that_cannot_be_read_says_so() {
        let mut arena = Arena::new(8 * MIB).unwrap();
        let mut device = Behind {
            reached: arena.addresses().end,
            medium: 0,
            error: Some(DeviceError::Gone),
            depth: 1,
            waiting: VecDeque::new(),
        };
        let (back, outcome) = reaches(&mut device, arena.probes());
        assert_eq!(
            (back.len(), outcome),
            (5, Err(Failed::Device(DeviceError::Gone)))
        );
    }
}
