//! Memory that PCI devices may reach: the arena's own pages, the same that the RDMA device sends from.

use std::ops::Range;

use forebay_engine::arena::Mapping;
use rustix::mm::Advice;

use crate::ffi;

/// An arena that SPDK knows. Undone when the last queue pair that may reach it is gone.
#[derive(Debug)]
pub(crate) struct Registration {
    range: Range<usize>,
    /// Keeps the memory mapped.
    mapping: Mapping,
}

impl Registration {
    /// Tells SPDK of all of `mapping`. That this ends well does not mean that a device reaches it: SPDK goes on where the IOMMU
    /// has refused, so each device is tried out (`trial`).
    ///
    /// # Errors
    /// A negative errno: it is not aligned, or is no memory that the device can be given.
    pub(crate) fn new(mapping: Mapping) -> Result<Self, i32> {
        let start = mapping.as_ptr();
        // SPDK takes nothing but whole huge pages.
        let len_bytes = mapping.whole_bytes();
        // Where the IOMMU is too narrow for virtual addresses SPDK names pages to it by where they are, and looks at them by reading: pages
        // that were never written are all the kernel's one page of zeros, and would become one page to the device, too.
        // SAFETY: the range is mapped, and this changes no byte of it.
        let populated =
            unsafe { rustix::mm::madvise(start.cast(), len_bytes, Advice::LinuxPopulateWrite) };
        populated.map_err(|errno| -errno.raw_os_error())?;
        // SAFETY: the range is mapped, and stays so as long as `mapping` lives, which is longer than the registration.
        match unsafe { ffi::spdk_mem_register(start.cast(), len_bytes) } {
            0 => Ok(Self {
                range: start as usize..start as usize + len_bytes,
                mapping,
            }),
            errno => {
                // SPDK does not undo its first steps when a later one fails: what it still knows must not become other memory.
                std::mem::forget(mapping);
                Err(errno)
            }
        }
    }

    pub(crate) fn covers(&self, mapping: &Mapping) -> bool {
        self.range.start == mapping.as_ptr() as usize
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let start = self.range.start as *mut std::ffi::c_void;
        // SAFETY: registered by `new` with just this range, and no queue pair is left that could reach it: each holds a
        // share of this.
        let undone = unsafe { ffi::spdk_mem_unregister(start, self.range.len()) };
        if undone != 0 {
            // Devices may still be able to reach it: it must not become other memory.
            std::mem::forget(self.mapping.clone());
        }
    }
}
