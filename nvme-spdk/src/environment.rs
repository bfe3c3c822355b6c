//! SPDK in this process: started once.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use forebay_engine::arena::Mapping;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::address::{Address, PciAddress};
use crate::behind::{self, Behind};
use crate::controller::{Controller, Controllers};
use crate::driver::{
    ConnectOptions, Registration, StartOptions, end_at_bus_errors, guard_registers, has_iommu,
    start,
};
use crate::error::{EnvironmentError, MemoryError, OpenError};
use crate::locked::locked;
use crate::watch::lock;

/// Free huge pages of 2 MiB below which SPDK is started without them, when it drives no PCI device.
const HUGE_PAGES_MIN: u64 = 64;
/// Ordinary memory for SPDK then.
const ORDINARY_MIB: u32 = 128;

/// What SPDK is started for.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentOptions {
    /// The only PCI devices that may be touched. All that this process will ever drive: it starts once.
    pub pci: Vec<PciAddress>,
}

/// SPDK, started. It lives as long as the process.
#[derive(Debug)]
pub struct Environment {
    pci: Vec<PciAddress>,
    controllers: Arc<Controllers>,
    memory: Mutex<Vec<Weak<Registration>>>,
}

static STARTED: OnceLock<Arc<Environment>> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

impl Environment {
    /// Starts SPDK, or gives what was started before, if that was for these devices too.
    ///
    /// # Errors
    /// When SPDK refuses; or runs already, without one of the devices.
    pub fn start(options: &EnvironmentOptions) -> Result<Arc<Self>, EnvironmentError> {
        let _one = lock(&STARTING);
        if let Some(started) = STARTED.get() {
            return match options.pci.iter().find(|pci| !started.pci.contains(pci)) {
                Some(missing) => Err(EnvironmentError::Started(missing.to_string())),
                None => Ok(started.clone()),
            };
        }
        end_at_bus_errors();
        let pci = options.pci.clone();
        // DPDK makes the thread that starts it one of its own, so it gets one that does nothing else.
        let starting = std::thread::Builder::new()
            .name("spdk-start".into())
            .spawn(move || start_here(pci))
            .map_err(EnvironmentError::Thread)?;
        match starting.join() {
            Ok(Ok(())) => {}
            Ok(Err(errno)) => return Err(EnvironmentError::Refused { errno }),
            Err(_) => return Err(EnvironmentError::Ended),
        }
        if !options.pci.is_empty() {
            guard_registers();
        }
        let environment = Arc::new(Self {
            pci: options.pci.clone(),
            controllers: Arc::default(),
            memory: Mutex::default(),
        });
        Ok(STARTED.get_or_init(|| environment).clone())
    }

    /// The controller at `address`: one attachment for all its namespaces.
    pub(crate) fn controller(
        &self,
        address: &Address,
        mut options: ConnectOptions,
    ) -> Result<Arc<Controller>, OpenError> {
        if let Some(pci) = address.pci() {
            if !self.pci.contains(&pci) {
                return Err(OpenError::NotAllowed(pci.to_string()));
            }
            behind(&pci)?;
            options.registers_bytes = behind::registers_bytes(Path::new("/sys"), &pci);
        }
        let opened = self.controllers.open(address, options);
        match (opened, address.pci()) {
            (Err(OpenError::Attach(_)), Some(pci)) => Err(OpenError::AttachPci {
                address: pci.to_string(),
                why: behind::why_not_attached(Path::new("/sys"), &pci, &self.pci),
            }),
            (opened, _) => opened,
        }
    }

    /// Makes an arena known to PCI devices, once for all queue pairs. `behind` tells of the device that asks.
    pub(crate) fn register(
        &self,
        mapping: &Mapping,
        behind: Behind,
    ) -> Result<Arc<Registration>, MemoryError> {
        let len_bytes = mapping.whole_bytes();
        // A device without an IOMMU writes to where a page was when it was looked up; only reserved huge pages stay where they are,
        // and are there before they are first written. What SPDK found may be true of other devices of this machine only.
        let translated = has_iommu() && behind == Behind::Iommu;
        if !translated && !mapping.is_reserved() {
            return Err(MemoryError::NoIommu);
        }
        let mut known = lock(&self.memory);
        known.retain(|one| one.strong_count() > 0);
        if let Some(one) = known
            .iter()
            .filter_map(Weak::upgrade)
            .find(|one| one.covers(mapping))
        {
            return Ok(one);
        }
        // SPDK does not tell when the kernel refuses.
        if let Some(locked) = locked().filter(|locked| !locked.has_room_for(len_bytes)) {
            return Err(MemoryError::Limit {
                limit_bytes: locked.limit_bytes,
                locked_bytes: locked.locked_bytes,
                wanted_bytes: len_bytes as u64,
            });
        }
        let new = Registration::new(mapping.clone());
        let new = Arc::new(new.map_err(|errno| MemoryError::Refused { errno })?);
        known.push(Arc::downgrade(&new));
        Ok(new)
    }
}

/// What stands between a PCI device and memory.
///
/// # Errors
/// When it is not bound to the driver that gives it to programs.
pub(crate) fn behind(pci: &PciAddress) -> Result<Behind, OpenError> {
    behind::look(Path::new("/sys"), pci).map_err(|why| OpenError::Driver {
        address: pci.to_string(),
        why,
    })
}

/// Starts SPDK on this thread, which may run where it might before.
fn start_here(pci: Vec<PciAddress>) -> Result<(), i32> {
    let allowed = sched_getaffinity(None).ok();
    let cpu = |set: &CpuSet| (0..CpuSet::MAX_CPU).find(|cpu| set.is_set(*cpu));
    let options = StartOptions {
        cpu: allowed.as_ref().and_then(cpu).unwrap_or(0),
        ordinary_mib: (pci.is_empty() && free_huge_pages() < HUGE_PAGES_MIN)
            .then_some(ORDINARY_MIB),
        pci,
    };
    let started = start(&options);
    if let Some(allowed) = &allowed {
        let _ = sched_setaffinity(None, allowed);
    }
    started
}

pub(crate) fn free_huge_pages() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
