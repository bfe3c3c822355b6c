//! What a disk is behind: a file or block device of the kernel's, or an NVMe namespace driven by SPDK; and a queue pair on it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_engine::arena::{Arena, Mapping};
use forebay_engine::ports::{BlockDevice, DeviceEvent, DeviceGeometry, DeviceOp, Full};
#[cfg(feature = "spdk")]
use forebay_nvme_spdk::{Namespace, QueueOptions, SpdkDevice};
use forebay_nvme_uring::{UringDevice, UringFile};

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
pub struct Buffers(Mapping);

impl Buffers {
    /// Of an arena.
    pub fn of(arena: &Arena) -> Self {
        Self(arena.mapping())
    }
}

impl Medium {
    /// A queue pair for the calling thread, with so many operations at most.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn queue_pair(&self, buffers: &Buffers, depth: usize) -> Result<HostDevice> {
        let start = buffers.0.as_ptr().addr();
        let addresses = start..start + buffers.0.len_bytes();
        Ok(match self {
            Self::Kernel(file) => HostDevice::Kernel(file.queue_pair(addresses, depth)?),
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => {
                let options = QueueOptions {
                    depth,
                    ..QueueOptions::default()
                };
                HostDevice::Spdk(namespace.queue_pair(&buffers.0, &options)?)
            }
        })
    }

    /// Size and granularity.
    pub fn geometry(&self) -> DeviceGeometry {
        match self {
            Self::Kernel(file) => file.geometry(),
            #[cfg(feature = "spdk")]
            Self::Spdk(namespace) => namespace.geometry(),
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
