//! SPDK's environment. It lives as long as the process: DPDK cannot be started twice.

use std::ffi::CString;
use std::ptr;
use std::sync::{RwLock, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::address::PciAddress;
use crate::ffi;

/// How long the process's end waits for threads that are within SPDK.
const END_WAIT: Duration = Duration::from_secs(2);

/// Held for reading by threads within SPDK that the process does not wait for when it ends; for writing from then on.
static ENDING: RwLock<()> = RwLock::new(());

/// SPDK takes its memory away when the process ends, whoever is within it: not this thread, as long as it has what this gives. None when the
/// process ends.
pub(crate) fn enter() -> Option<RwLockReadGuard<'static, ()>> {
    match ENDING.try_read() {
        Ok(within) => Some(within),
        Err(TryLockError::Poisoned(within)) => Some(within.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Comes before the program's destructors.
extern "C" fn at_exit() {
    let last = Instant::now() + END_WAIT;
    while Instant::now() < last {
        match ENDING.try_write() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            held => return std::mem::forget(held),
        }
    }
}

/// How SPDK is started.
#[derive(Clone, Debug)]
pub(crate) struct StartOptions {
    /// The only PCI devices that may be touched; without any, no bus is looked at.
    pub(crate) pci: Vec<PciAddress>,
    /// The CPU that SPDK takes for its own. Nothing runs there: it wants one.
    pub(crate) cpu: usize,
    /// So much ordinary memory instead of huge pages.
    pub(crate) ordinary_mib: Option<u32>,
}

/// Starts it. Binds the calling thread to `cpu`.
///
/// # Errors
/// A negative errno.
pub(crate) fn start(options: &StartOptions) -> Result<(), i32> {
    // SAFETY: sets one number of SPDK's.
    unsafe { ffi::spdk_log_set_print_level(ffi::LOG_WARN) };
    let mut opts = ffi::EnvOpts {
        name: ptr::null(),
        core_mask: ptr::null(),
        lcore_map: ptr::null(),
        shm_id: -1,
        mem_channel: -1,
        main_core: -1,
        mem_size: -1,
        no_pci: 0,
        hugepage_single_segments: 0,
        unlink_hugepage: 0,
        no_huge: 0,
        reserved: 0,
        num_pci_addr: 0,
        hugedir: ptr::null(),
        pci_blocked: ptr::null_mut(),
        pci_allowed: ptr::null_mut(),
        iova_mode: ptr::null(),
        base_virtaddr: 0,
        env_context: ptr::null_mut(),
        vf_token: ptr::null(),
        opts_size: std::mem::offset_of!(ffi::EnvOpts, room),
        room: [0; 64],
    };
    // SAFETY: `opts` is at least as long as SPDK's structure, which `build.rs` has compared.
    unsafe { ffi::spdk_env_opts_init(&mut opts) };
    // A core list; `[` says so.
    let cores = CString::new(format!("[{}]", options.cpu)).unwrap_or_default();
    let mut allowed: Vec<ffi::PciAddr> = options.pci.iter().map(pci_addr).collect();
    opts.name = c"forebay".as_ptr();
    opts.core_mask = cores.as_ptr();
    opts.no_pci = u8::from(allowed.is_empty());
    if !allowed.is_empty() {
        opts.num_pci_addr = allowed.len();
        opts.pci_allowed = allowed.as_mut_ptr();
    }
    if let Some(mib) = options.ordinary_mib {
        opts.no_huge = 1;
        opts.mem_size = i32::try_from(mib).unwrap_or(i32::MAX);
    }
    // SAFETY: `opts` was filled by SPDK and by us; what it points to (`cores`, `allowed`, the name) lives until the call has
    // returned, and SPDK keeps copies.
    match unsafe { ffi::spdk_env_init(&opts) } {
        0 => {
            // SAFETY: a function of this program, which uses nothing that is taken away before. Without it all works but the end.
            unsafe { libc::atexit(at_exit) };
            Ok(())
        }
        errno => Err(errno),
    }
}

/// Whether devices reach memory through an IOMMU. Known when SPDK is started.
pub(crate) fn has_iommu() -> bool {
    // SAFETY: reads what SPDK's start has found.
    unsafe { ffi::spdk_iommu_is_enabled() != 0 }
}

fn pci_addr(address: &PciAddress) -> ffi::PciAddr {
    ffi::PciAddr {
        domain: address.domain.into(),
        bus: address.bus,
        dev: address.device,
        func: address.function,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_waits_for_who_is_within_and_lets_nobody_in() {
        let within = enter().unwrap();
        let ends = std::thread::spawn(|| at_exit());
        assert!(!ends.is_finished(), "somebody is within");
        drop(within);
        ends.join().unwrap();
        assert!(enter().is_none());
    }
}
