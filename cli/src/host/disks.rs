//! The disks of the engine, and each core's queue pairs on them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use forebay_engine::disk::{DeviceSeat, DeviceShared};
use forebay_engine::ports::BlockDevice;

use super::medium::{Buffers, HostDevice, Medium};

/// Operations that one core has under way on one disk. Enough for the fastest drives when only one
/// core reads.
const QUEUE_DEPTH: usize = 256;

/// A disk, opened and known to hold a log of ours.
#[derive(Clone, Debug)]
pub struct DiskSource {
    /// The file or device.
    pub medium: Medium,
    /// What the cores share about it.
    pub shared: Arc<DeviceShared>,
}

/// Where a core's queue pairs will live.
#[derive(Clone, Debug)]
pub struct DiskPlace<'a> {
    /// Which core, from 0.
    pub core: usize,
    /// The core's buffers, for registration.
    pub buffers: Buffers,
    /// Whether the core may spin for a while (`--poll`).
    pub spins: bool,
    /// Signalled by the queue pairs when there is something to poll.
    pub wake: BorrowedFd<'a>,
}

/// Disks that cores can have queue pairs on. Tests put faulty ones in between.
pub trait Disks: Send + Sync + 'static {
    /// A queue pair.
    type Device: BlockDevice + 'static;

    /// Where a device of them reaches the cores' buffers by itself: huge pages that the driver takes beside them, for one core.
    fn driver_pages(&self) -> Option<u64> {
        None
    }

    /// A core's queue pairs, one for each disk; called on the core's thread.
    ///
    /// # Errors
    /// When a queue pair cannot be made.
    fn seats(&self, place: &DiskPlace<'_>) -> Result<Vec<DeviceSeat<Self::Device>>>;
}

impl Disks for Vec<DiskSource> {
    type Device = HostDevice;

    fn driver_pages(&self) -> Option<u64> {
        let reach = self.iter().any(|disk| disk.medium.reaches_memory());
        let pages = |disk: &DiskSource| disk.medium.driver_pages(QUEUE_DEPTH);
        reach.then(|| self.iter().map(pages).sum())
    }

    fn seats(&self, place: &DiskPlace<'_>) -> Result<Vec<DeviceSeat<HostDevice>>> {
        let seat = |disk: &DiskSource| {
            let mut device = disk
                .medium
                .queue_pair(&place.buffers, QUEUE_DEPTH, place.spins)?;
            device.signal_at(place.wake).with_context(|| {
                format!(
                    "cannot wake engine core {} for {}",
                    place.core, disk.shared.name
                )
            })?;
            Ok(DeviceSeat {
                device,
                shared: disk.shared.clone(),
            })
        };
        self.iter().map(seat).collect()
    }
}
