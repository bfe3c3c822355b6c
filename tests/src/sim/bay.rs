//! A disk of a simulated node: it outlives the processes that use it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::disk::DeviceShared;
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::LogId;
use forebay_engine::ports::DeviceGeometry;

use super::device::{DeviceFaults, DeviceProfile, SimMedia};
use super::rng::SimRng;

/// A formatted disk.
#[derive(Clone, Debug)]
pub struct Bay {
    /// What it holds.
    pub media: Rc<RefCell<SimMedia>>,
    /// The log's identity.
    pub log: LogId,
    /// Where its regions are.
    pub geometry: Geometry,
    /// 512 or 4,096.
    pub sector_bytes: u32,
}

impl Bay {
    /// An empty disk for regions of `region_bytes`.
    pub fn new(seed: u64, capacity_bytes: u64, region_bytes: u32, sector_bytes: u32) -> Self {
        Self {
            media: SimMedia::new(),
            log: LogId(u128::from(SimRng::component(seed, "log", 0).bits()) | 1 << 100),
            geometry: Geometry::fit(region_bytes, capacity_bytes),
            sector_bytes,
        }
    }

    /// Bytes up to the end of the last region.
    pub fn capacity_bytes(&self) -> u64 {
        self.geometry.offset_bytes(self.geometry.regions)
    }

    /// Bytes that regions take.
    pub fn data_bytes(&self) -> u64 {
        u64::from(self.geometry.region_bytes) * u64::from(self.geometry.regions)
    }

    /// What the cores of one process share about it, as device number `number`.
    pub fn shared(&self, number: usize) -> Arc<DeviceShared> {
        let name = format!("disk{number}");
        Arc::new(DeviceShared::new(name, self.geometry, self.log))
    }

    /// How a queue pair on it behaves.
    pub fn profile(
        &self,
        latency: (Duration, Duration),
        queue_depth: usize,
        faults: &DeviceFaults,
    ) -> DeviceProfile {
        DeviceProfile {
            geometry: DeviceGeometry {
                sector_bytes: self.sector_bytes,
                capacity_bytes: self.capacity_bytes(),
            },
            latency,
            queue_depth,
            faults: faults.clone(),
        }
    }
}
