//! A log on a file or an NVMe namespace, through io_uring.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_engine::disk::geometry::{DATA_OFFSET_BYTES, Geometry};
use forebay_engine::disk::layout::LogId;
use forebay_engine::disk::{DeviceSeat, DeviceShared, DiskConfig};
use forebay_engine::limits::DISK_ENTRY_BYTES;
use forebay_nvme_uring::{OpenError, OpenOptions, UringDevice, UringFile};
use rustix::event::{EventfdFlags, eventfd};

use super::driver::{Clock, Driver};

/// The file's identity: it is never taken for anything but this harness's.
const LOG: LogId = LogId(0x0f0e_ba11_0000_0000_0000_0000_0000_0001);
/// The kernel takes a while to take back the ring of a device's last user.
const FREE_WITHIN: Duration = Duration::from_secs(30);
/// Reads and writes that the ring has under way at most.
const DEPTH: usize = 1_024;

/// How a log on a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Bytes of data that it has to hold.
    pub data_bytes: u64,
    /// Entries that it has to hold.
    pub entries: usize,
    /// Bytes of buffers.
    pub arena_bytes: usize,
    /// Whether pages are checked when they are read.
    pub verify: bool,
}

impl Opening {
    /// Where the regions are: enough of them that nothing is reclaimed while `data_bytes` are filled.
    pub fn geometry(&self) -> Result<Geometry> {
        // Footers, batch headers and the regions that stay open or free.
        let capacity = DATA_OFFSET_BYTES + self.data_bytes + self.data_bytes / 8 + (512 << 20);
        Geometry::choose(capacity, 1).context("the file is too small for a log")
    }

    /// Opens, or makes, the log at `path`, and waits for its recovery.
    ///
    /// # Errors
    /// What the file system says; that the file takes no O_DIRECT.
    pub fn open(&self, path: &Path) -> Result<Driver<UringDevice>> {
        let mut driver = self.begin(path)?;
        driver.recover()?;
        Ok(driver)
    }

    /// Opens the log without waiting for its recovery.
    ///
    /// # Errors
    /// As [`Opening::open`].
    pub fn begin(&self, path: &Path) -> Result<Driver<UringDevice>> {
        let geometry = self.geometry()?;
        let file = UringFile::open(
            path,
            &OpenOptions {
                capacity_bytes: Some(geometry.offset_bytes(geometry.regions)),
                create: true,
                ..OpenOptions::default()
            },
        )?;
        ensure!(
            file.is_direct(),
            "{} takes no O_DIRECT: give --dir on another file system",
            path.display()
        );
        self.on(file, geometry, LOG)
    }

    /// Opens, or makes, the log `log` on a whole device, and waits for its recovery. What else the device holds is lost.
    ///
    /// # Errors
    /// What the kernel says; that somebody else uses the device.
    pub fn open_device(&self, path: &Path, log: LogId) -> Result<Driver<UringDevice>> {
        let file = device(path)?;
        let geometry = Geometry::choose(file.geometry().capacity_bytes, 1)?;
        let mut driver = self.on(file, geometry, log)?;
        driver.recover()?;
        Ok(driver)
    }

    /// Opens, or makes, the log `log` on a namespace by SPDK, and waits for its recovery. What else it holds is lost. Nobody sleeps: who
    /// turns it polls.
    ///
    /// # Errors
    /// What SPDK says.
    #[cfg(feature = "spdk")]
    pub fn open_spdk(
        &self,
        namespace: &Arc<forebay_nvme_spdk::Namespace>,
        log: LogId,
    ) -> Result<Driver<forebay_nvme_spdk::SpdkDevice>> {
        let geometry = Geometry::choose(namespace.geometry().capacity_bytes, 1)?;
        let name = namespace.address().to_string();
        let shared = Arc::new(DeviceShared::new(name, geometry, log));
        let is_pci = namespace.address().pci().is_some();
        let mut driver = Driver::over(
            spdk_arena(namespace, self.arena_bytes)?,
            Clock::Real(Instant::now()),
            self.config(),
            |arena| {
                let options = forebay_nvme_spdk::QueueOptions {
                    depth: DEPTH,
                    ..Default::default()
                };
                let mut device = namespace.queue_pair(&arena.mapping(), &options)?;
                if is_pci {
                    device.check_memory(arena.probes())?;
                }
                Ok((DeviceSeat { device, shared }, None))
            },
        )?;
        driver.recover()?;
        Ok(driver)
    }

    fn on(
        &self,
        file: Arc<UringFile>,
        geometry: Geometry,
        log: LogId,
    ) -> Result<Driver<UringDevice>> {
        let name = file.path().display().to_string();
        let shared = Arc::new(DeviceShared::new(name, geometry, log));
        Driver::new(
            self.arena_bytes,
            Clock::Real(Instant::now()),
            self.config(),
            move |arena| {
                let mut device = file.queue_pair(arena.addresses(), DEPTH)?;
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                let bell = eventfd(0, flags).context("no eventfd")?;
                device.signal_at(bell.as_fd())?;
                Ok((DeviceSeat { device, shared }, Some(bell)))
            },
        )
    }

    fn config(&self) -> DiskConfig {
        DiskConfig {
            core: 0,
            cores: 1,
            entries_max: self.entries_max(),
            // All of the tables, so that none is read twice.
            tables_bytes_max: (self.data_bytes / 512) as usize + (16 << 20),
            write_bytes_max: self.arena_bytes / 2,
            incarnation: incarnation(),
            read_timeout: Duration::from_secs(5),
            verify: self.verify,
        }
    }

    /// Reclaim begins before an index is full.
    fn entries_max(&self) -> usize {
        self.entries + self.entries / 4 + 4096
    }

    /// Memory that the index may take.
    pub fn index_bytes_max(&self) -> usize {
        self.entries_max() * DISK_ENTRY_BYTES
    }
}

/// Buffers for a namespace that SPDK drives: where a node has them.
///
/// # Errors
/// When there is no memory.
#[cfg(feature = "spdk")]
pub fn spdk_arena(
    namespace: &forebay_nvme_spdk::Namespace,
    len_bytes: usize,
) -> Result<forebay_engine::arena::Arena> {
    let arena = match namespace.address().pci() {
        Some(_) => forebay_cli::host::arena_for_devices(len_bytes),
        None => forebay_engine::arena::Arena::new(len_bytes),
    };
    arena.context("no memory for buffers")
}

/// Opens a device for writing.
///
/// # Errors
/// What the kernel says; that somebody else uses the device.
pub fn device(path: &Path) -> Result<Arc<UringFile>> {
    let start = Instant::now();
    loop {
        match UringFile::open(path, &OpenOptions::default()) {
            Err(OpenError::Busy(_)) if start.elapsed() < FREE_WITHIN => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return Ok(opened?),
        }
    }
}

/// An identity that no log of an earlier run has.
pub fn new_log() -> LogId {
    LogId(LOG.0 ^ u128::from(incarnation()))
}

fn incarnation() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64)
}
