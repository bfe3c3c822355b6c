//! Whether a device reaches the buffers that it was given: nothing else tells.
//!
//! SPDK takes a registration of memory that the IOMMU has refused for done. A device's writes into memory are not answered: what the
//! IOMMU drops looks to the device as if it had arrived, and a read ends well without having changed a byte.

use std::time::{Duration, Instant};

use forebay_engine::arena::Lease;
use forebay_engine::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, DeviceTag};

/// Different in every bit: no sector holds both.
const PATTERNS: [u8; 2] = [0xa5, 0x5a];
/// Operations under way at a time.
const BATCH: usize = 32;
/// How long a device that is lost may take to give back what it has: longer than it takes to have it disarmed.
pub(crate) const LOST_PATIENCE: Duration = Duration::from_secs(3);

/// How a trial ended that did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Reads into so many of the buffers ended well, and brought nothing.
    Unreached(usize),
    /// The device's error.
    Device(DeviceError),
}

/// Reads the first sector of a device into the beginning of each buffer, filled with one pattern and then with the other.
/// What keeps both was not reached. Blocks for as long as that takes, and for `patience` at most once the device is lost. Gives the buffers
/// back in their order and whole, but for those that a lost device keeps.
///
/// # Errors
/// How many were not reached, or why they could not be read into.
pub(crate) fn reaches<D: BlockDevice>(
    device: &mut D,
    buffers: Vec<Lease>,
    patience: Duration,
) -> (Vec<Lease>, Result<(), Failed>) {
    let sector_bytes = device.geometry().sector_bytes as usize;
    let mut trial = Trial {
        unreached: vec![true; buffers.len()],
        buffers: buffers.into_iter().map(Some).collect(),
        failed: None,
        patience,
        lost_since: None,
    };
    for pattern in PATTERNS {
        let left: Vec<usize> = (0..trial.buffers.len())
            .filter(|n| trial.unreached[*n])
            .collect();
        for batch in left.chunks(BATCH) {
            if trial.read(device, batch, pattern, sector_bytes).is_none() {
                trial.failed = Some(DeviceError::Gone);
                break;
            }
        }
    }
    let unreached = trial.unreached.iter().filter(|one| **one).count();
    let outcome = match (trial.failed, unreached) {
        (Some(error), _) => Err(Failed::Device(error)),
        (None, 0) => Ok(()),
        (None, count) => Err(Failed::Unreached(count)),
    };
    let mut buffers: Vec<Lease> = trial.buffers.into_iter().flatten().collect();
    // The next device may have larger sectors.
    buffers.iter_mut().for_each(Lease::lengthen);
    (buffers, outcome)
}

struct Trial {
    /// None while the device has it.
    buffers: Vec<Option<Lease>>,
    unreached: Vec<bool>,
    failed: Option<DeviceError>,
    patience: Duration,
    /// Since when the device is known to be lost.
    lost_since: Option<Instant>,
}

impl Trial {
    /// None when the device keeps some of them.
    fn read<D: BlockDevice>(
        &mut self,
        device: &mut D,
        batch: &[usize],
        pattern: u8,
        sector_bytes: usize,
    ) -> Option<()> {
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
                under_way -= self.ended(device, pattern)?;
            }
            under_way += 1;
        }
        while under_way > 0 {
            under_way -= self.ended(device, pattern)?;
        }
        Some(())
    }

    /// Waits for one that ends; none when the device is lost, and keeps it.
    fn ended<D: BlockDevice>(&mut self, device: &mut D, pattern: u8) -> Option<usize> {
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
                    return Some(1);
                }
                Some(_) => {}
                None if self.is_given_up(device) => return None,
                None => std::thread::sleep(device.nap().unwrap_or_default()),
            }
        }
    }

    fn is_given_up<D: BlockDevice>(&mut self, device: &D) -> bool {
        let lost = self.lost_since.is_some() || device.loss().is_some();
        lost && self.lost_since.get_or_insert_with(Instant::now).elapsed() >= self.patience
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
        sector_bytes: u32,
        /// Has been lost, and keeps what comes beyond so many operations.
        keeps_beyond: Option<usize>,
        kept: Vec<Lease>,
        waiting: VecDeque<DeviceEvent>,
    }

    impl Default for Behind {
        fn default() -> Self {
            Self {
                reached: usize::MAX,
                medium: 0,
                error: None,
                depth: 3,
                sector_bytes: 512,
                keeps_beyond: None,
                kept: Vec::new(),
                waiting: VecDeque::new(),
            }
        }
    }

    impl BlockDevice for Behind {
        fn geometry(&self) -> DeviceGeometry {
            DeviceGeometry {
                sector_bytes: self.sector_bytes,
                capacity_bytes: 1 << 20,
            }
        }

        fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
            if self.waiting.len() + self.kept.len() >= self.depth {
                return Err(Full(op));
            }
            let DeviceOp::Read { tag, mut lease, .. } = op else {
                panic!("{op:?}");
            };
            assert_eq!(lease.len(), self.sector_bytes as usize);
            if let Some(left) = &mut self.keeps_beyond {
                match left.checked_sub(1) {
                    Some(now) => *left = now,
                    None => {
                        self.kept.push(lease);
                        return Ok(());
                    }
                }
            }
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

        fn loss(&self) -> Option<String> {
            self.keeps_beyond.map(|_| "lost".to_owned())
        }
    }

    fn tried(arena: &mut Arena, reached: usize, medium: u8) -> Result<(), Failed> {
        let mut device = Behind {
            reached,
            medium,
            ..Behind::default()
        };
        let (back, outcome) = reaches(&mut device, arena.probes(), LOST_PATIENCE);
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
            error: Some(DeviceError::Gone),
            depth: 1,
            ..Behind::default()
        };
        let (back, outcome) = reaches(&mut device, arena.probes(), LOST_PATIENCE);
        assert_eq!(
            (back.len(), outcome),
            (5, Err(Failed::Device(DeviceError::Gone)))
        );
    }

    #[test]
    fn one_disk_after_another_is_tried_whatever_their_sectors() {
        let mut arena = Arena::new(8 * MIB).unwrap();
        let mut probes = arena.probes();
        for sector_bytes in [512, 4096, 512, 4096] {
            let mut device = Behind {
                sector_bytes,
                ..Behind::default()
            };
            let (back, outcome) = reaches(&mut device, probes, LOST_PATIENCE);
            assert_eq!((back.len(), outcome), (5, Ok(())), "{sector_bytes}");
            probes = back;
        }
    }

    #[test]
    fn a_lost_device_that_keeps_its_buffers_is_not_waited_for_without_end() {
        for (depth, keeps_beyond) in [(3, 0), (3, 2), (64, 4)] {
            let mut arena = Arena::new(8 * MIB).unwrap();
            let mut device = Behind {
                depth,
                keeps_beyond: Some(keeps_beyond),
                ..Behind::default()
            };
            let patience = Duration::from_millis(20);
            let (back, outcome) = reaches(&mut device, arena.probes(), patience);
            assert_eq!(outcome, Err(Failed::Device(DeviceError::Gone)));
            assert!(!device.kept.is_empty() && back.len() + device.kept.len() <= 5);
        }
    }
}
