//! What a disk is behind: a file or block device of the kernel's, or an NVMe namespace driven by SPDK; and a queue pair on it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_engine::arena::{Arena, Lease, Mapping};
use forebay_engine::ports::{BlockDevice, DeviceEvent, DeviceGeometry, DeviceOp, Full};
#[cfg(feature = "spdk")]
use forebay_nvme_spdk::{Namespace, QueueOptions, SpdkDevice};
use forebay_nvme_uring::{UringDevice, UringFile};
use parking_lot::Mutex;

/// An open disk, shared by the cores.
#[derive(Clone, Debug)]
pub enum Medium {
    /// By io_uring.
    Kernel(Arc<UringFile>),
    /// Without the kernel.
    #[cfg(feature = "spdk")]
    Spdk(Arc<Namespace>),
}

impl From<Arc<UringFile>> for Medium {
    fn from(file: Arc<UringFile>) -> Self {
        Self::Kernel(file)
    }
}

/// The memory of a core's arena.
#[derive(Clone, Debug)]
pub struct Buffers {
    mapping: Mapping,
    /// In which devices are tried out; they go back to the arena with this.
    #[cfg_attr(not(feature = "spdk"), expect(dead_code, reason = "held"))]
    probes: Arc<Mutex<Vec<Lease>>>,
}

impl Buffers {
    /// Of an arena, of which little is used yet.
    pub fn of(arena: &mut Arena) -> Self {
        Self {
            probes: Arc::new(Mutex::new(arena.probes())),
            mapping: arena.mapping(),
        }
    }
}

impl Medium {
    /// A queue pair for the calling thread, with so many operations at most. `spins`: whether that thread may.
    ///
    /// # Errors
    /// When it cannot be made, or the device does not reach the buffers.
    #[cfg_attr(
        not(feature = "spdk"),
        expect(unused_variables, reason = "the kernel wakes who sleeps")
    )]
    pub fn queue_pair(&self, buffers: &Buffers, depth: usize, spins: bool) -> Result<HostDevice> {
        let start = buffers.mapping.as_ptr().addr();
        let addresses = start..start + buffers.mapping.len_bytes();
        match self {
            Self::Kernel(file) => Ok(HostDevice::Kernel(file.queue_pair(addresses, depth)?)),
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => {
                let options = queue_options(depth, spins);
                let mut device = namespace.queue_pair(&buffers.mapping, &options)?;
                if namespace.address().pci().is_some() {
                    let mut probes = buffers.probes.lock();
                    *probes = device.check_memory(std::mem::take(&mut *probes))?;
                }
                Ok(HostDevice::Spdk(device))
            }
        }
    }

    /// Size and granularity.
    pub fn geometry(&self) -> DeviceGeometry {
        match self {
            Self::Kernel(file) => file.geometry(),
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => namespace.geometry(),
        }
    }

    /// Whether the device reaches the buffers by itself: better in pages that stay where they are, and only there without an IOMMU.
    pub fn reaches_memory(&self) -> bool {
        match self {
            Self::Kernel(_) => false,
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => namespace.address().pci().is_some(),
        }
    }

    /// Reserved huge pages that its driver takes for a queue pair of so many operations, where a PCI device is driven.
    #[cfg_attr(
        not(feature = "spdk"),
        expect(unused_variables, reason = "the kernel takes none")
    )]
    pub fn driver_pages(&self, depth: usize) -> u64 {
        match self {
            Self::Kernel(_) => 0,
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => namespace.queue_pages(&queue_options(depth, true)),
        }
    }

    /// Its file or block device; none when it is not the kernel's.
    pub fn file(&self) -> Option<&Arc<UringFile>> {
        match self {
            Self::Kernel(file) => Some(file),
            #[cfg(feature = "spdk")]
            Self::Spdk(_) => None,
        }
    }

    /// Whether it is a device, which has its size from the beginning, and may hold what others wrote.
    pub fn is_device(&self) -> bool {
        self.file().is_none_or(|file| file.is_block_device())
    }

    /// Whether nothing goes through the page cache.
    pub fn is_direct(&self) -> bool {
        self.file().is_none_or(|file| file.is_direct())
    }

    /// What it occupies: of its file system, or all of a device.
    pub fn allocated_bytes(&self) -> u64 {
        match self.file() {
            Some(file) => file.allocated_bytes().unwrap_or(0),
            None => self.geometry().capacity_bytes,
        }
    }

    /// The log page on its health that SPDK's driver was given last; none where the kernel drives it.
    pub fn health_page(&self) -> Option<[u8; 512]> {
        match self {
            Self::Kernel(_) => None,
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => namespace.health(),
        }
    }

    /// What kind of device it is, for people; empty where its name says all.
    pub fn kind(&self) -> String {
        match self {
            Self::Kernel(_) => String::new(),
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => {
                let transport = match namespace.address().pci() {
                    Some(_) => "PCIe",
                    None => "TCP",
                };
                format!(
                    "SPDK over {transport}, model {}, serial {}, namespace {}",
                    namespace.model(),
                    namespace.serial(),
                    namespace.number()
                )
            }
        }
    }
}

/// With operations under way a core that may not spin is never asked to.
#[cfg(feature = "spdk")]
fn queue_options(depth: usize, spins: bool) -> QueueOptions {
    let options = QueueOptions {
        depth,
        ..QueueOptions::default()
    };
    match spins {
        true => options,
        false => QueueOptions {
            spin: Duration::ZERO,
            ..options
        },
    }
}

/// One core's queue pair on a [`Medium`].
#[derive(Debug)]
#[cfg_attr(
    feature = "spdk",
    expect(
        clippy::large_enum_variant,
        reason = "there is one for each core and disk, and a box would cost each operation a jump"
    )
)]
pub enum HostDevice {
    /// A ring.
    Kernel(UringDevice),
    /// One of the controller's own.
    #[cfg(feature = "spdk")]
    Spdk(SpdkDevice),
}

/// The same for either of them.
macro_rules! either {
    ($device:expr, $one:ident => $what:expr) => {
        match $device {
            HostDevice::Kernel($one) => $what,
            #[cfg(feature = "spdk")]
            HostDevice::Spdk($one) => $what,
        }
    };
}

impl HostDevice {
    /// Signals at `eventfd` when there is something to poll, or to know.
    ///
    /// # Errors
    /// The kernel's.
    pub fn signal_at(&mut self, eventfd: BorrowedFd<'_>) -> Result<()> {
        either!(self, device => device.signal_at(eventfd))
            .context("cannot have an eventfd signalled")
    }
}

impl BlockDevice for HostDevice {
    fn geometry(&self) -> DeviceGeometry {
        either!(self, device => device.geometry())
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        either!(self, device => device.submit(op))
    }

    fn commit(&mut self) {
        either!(self, device => device.commit());
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        either!(self, device => device.poll())
    }

    fn nap(&mut self) -> Option<Duration> {
        either!(self, device => device.nap())
    }

    fn loss(&self) -> Option<String> {
        either!(self, device => device.loss())
    }
}

#[cfg(all(test, feature = "spdk"))]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_spin_is_never_asked_to() {
        assert!(queue_options(8, true).spin > Duration::ZERO);
        let naps = queue_options(8, false);
        assert_eq!((naps.depth, naps.spin), (8, Duration::ZERO));
    }
}
