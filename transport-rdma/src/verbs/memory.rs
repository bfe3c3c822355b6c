//! Protection domains, and memory that a device may read and write.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;

use super::abi::*;
use super::checked;
use super::device::{Device, DeviceShared, call_failed};
use super::queue_pair::RemoteSlice;
use crate::limits::PAGE_BYTES;
use crate::{PostError, VerbsError};

/// What belongs together: a queue pair reaches the regions of its own domain only. Clones are the same.
#[derive(Clone)]
pub struct ProtectionDomain(pub(super) Rc<DomainShared>);

pub(super) struct DomainShared {
    pub domain: NonNull<ibv_pd>,
    pub device: Rc<DeviceShared>,
}

impl ProtectionDomain {
    /// A new domain of a device.
    pub fn new(device: &Device) -> Result<ProtectionDomain, VerbsError> {
        let device = Rc::clone(&device.0);
        // SAFETY: the context is open.
        let domain = unsafe { (device.library.ibv_alloc_pd)(device.context.as_ptr()) };
        match NonNull::new(domain) {
            Some(domain) => Ok(ProtectionDomain(Rc::new(DomainShared { domain, device }))),
            None => Err(call_failed(
                "ibv_alloc_pd",
                format!("RDMA device {}", device.name),
                "",
            )),
        }
    }
}

impl Drop for DomainShared {
    fn drop(&mut self) {
        // SAFETY: all that was made in the domain held it, and is gone.
        let returned = unsafe { (self.device.library.ibv_dealloc_pd)(self.domain.as_ptr()) };
        if let Err(why) = checked(returned) {
            tracing::warn!(
                device = self.device.name,
                "RDMA protection domain could not be freed: {why}"
            );
        }
    }
}

/// What may be done with a region; the device may always write to it for its own side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may write into it.
    pub remote_write: bool,
    /// Peers may read from it.
    pub remote_read: bool,
}

impl Access {
    /// Nothing for peers.
    pub const LOCAL: Access = Access {
        remote_write: false,
        remote_read: false,
    };

    /// As verbs number it.
    pub(super) fn flags(self) -> u32 {
        let mut flags = IBV_ACCESS_LOCAL_WRITE;
        if self.remote_write {
            flags |= IBV_ACCESS_REMOTE_WRITE;
        }
        if self.remote_read {
            flags |= IBV_ACCESS_REMOTE_READ;
        }
        flags
    }
}

/// A registration with the device. What registers sees to it that the memory stays until
/// [`Registered::deregister`] has said so, or for good.
pub(super) struct Registered {
    region: NonNull<ibv_mr>,
    domain: Rc<DomainShared>,
}

impl Registered {
    /// Registers `len_bytes` from `first` on.
    ///
    /// # Safety
    /// The bytes are mapped, and stay so until `deregister` has said true. No reference is made to bytes that the device may
    /// be writing: with `access` for peers, those that a peer may be writing; else those that posted receives and
    /// READs name.
    pub(super) unsafe fn new(
        domain: &ProtectionDomain,
        first: NonNull<u8>,
        len_bytes: usize,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        let object = named(domain, len_bytes);
        let domain = Rc::clone(&domain.0);
        // SAFETY: the domain lives; the bytes are mapped, by this function's condition.
        let region = unsafe {
            (domain.device.library.ibv_reg_mr)(
                domain.domain.as_ptr(),
                first.as_ptr().cast(),
                len_bytes,
                access.flags().cast_signed(),
            )
        };
        match NonNull::new(region) {
            Some(region) => Ok(Registered { region, domain }),
            None => Err(call_failed(
                "ibv_reg_mr",
                object,
                "; look at the limit on locked memory (ulimit -l, LimitMEMLOCK=)",
            )),
        }
    }

    /// The keys for this side and for peers.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is registered as long as `self` lives; the library writes it no more.
        let region = unsafe { self.region.as_ref() };
        (region.lkey, region.rkey)
    }

    /// Ends it. When that is true no device reaches the bytes any more, whatever work still names them: that work
    /// fails. When it is false they must be kept for good.
    pub(super) fn deregister(self) -> bool {
        // SAFETY: registered once, deregistered here only: `self` is consumed.
        let returned = unsafe { (self.domain.device.library.ibv_dereg_mr)(self.region.as_ptr()) };
        let Err(why) = self.domain.device.is_destroyed(checked(returned)) else {
            return true;
        };
        tracing::warn!(
            device = self.domain.device.name,
            "RDMA memory could not be deregistered and is kept for good: {why}"
        );
        false
    }
}

/// Memory of this process that the device, and peers as far as they are let, read and write at any time.
/// So there are no references to its bytes: they are copied in and out.
pub struct MemoryRegion {
    // None only while it is dropped.
    registered: Option<Registered>,
    bytes: PageMemory,
}

impl MemoryRegion {
    /// Allocates `len_bytes` zeros and registers them.
    ///
    /// # Errors
    /// [`VerbsError::Call`], most often because the limit on locked memory is too small.
    pub fn new(
        domain: &ProtectionDomain,
        len_bytes: usize,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let Some(bytes) = PageMemory::new(len_bytes) else {
            return Err(VerbsError::Unusable {
                object: named(domain, len_bytes),
                what: "not to be had".into(),
            });
        };
        // SAFETY: the bytes are freed by the region's drop only, after they were deregistered, or never. No reference to
        // them is made at all: they are copied in and out through raw pointers.
        let registered = unsafe { Registered::new(domain, bytes.first, len_bytes, access) }?;
        Ok(MemoryRegion {
            registered: Some(registered),
            bytes,
        })
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes.layout.size()
    }

    /// Bytes of it, to be named in work that is posted.
    ///
    /// # Errors
    /// [`PostError::OutsideRegion`].
    pub fn slice(
        &self,
        offset_bytes: usize,
        len_bytes: usize,
    ) -> Result<LocalSlice<'_>, PostError> {
        self.check(offset_bytes, len_bytes)?;
        // Within the region, so it does not overflow.
        let address = self.bytes.first.as_ptr().addr() + offset_bytes;
        Ok(LocalSlice {
            address: address as u64,
            len_bytes,
            key: self.keys().0,
            _region: PhantomData,
        })
    }

    /// What a peer names to reach the bytes from `offset_bytes` on. How far it gets is for its device to say.
    pub fn remote(&self, offset_bytes: usize) -> RemoteSlice {
        let first = self.bytes.first.as_ptr().addr();
        let address = first.wrapping_add(offset_bytes);
        RemoteSlice {
            address: address as u64,
            key: self.keys().1,
        }
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// [`PostError::OutsideRegion`].
    pub fn write_at(&self, offset_bytes: usize, bytes: &[u8]) -> Result<(), PostError> {
        self.check(offset_bytes, bytes.len())?;
        // SAFETY: the offset was checked to lie within the allocation.
        let to = unsafe { self.bytes.first.add(offset_bytes) };
        // SAFETY: both sides have that many bytes, and a borrowed slice is not part of an allocation to which
        // no reference is ever made. Devices may write the same bytes; that mixes bytes, as any DMA does.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// [`PostError::OutsideRegion`].
    pub fn read_at(&self, offset_bytes: usize, bytes: &mut [u8]) -> Result<(), PostError> {
        self.check(offset_bytes, bytes.len())?;
        // SAFETY: the offset was checked to lie within the allocation.
        let from = unsafe { self.bytes.first.add(offset_bytes) };
        // SAFETY: as for writing. The bytes were zeros at first, so all of them have a value.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), bytes.len()) };
        Ok(())
    }

    fn check(&self, offset_bytes: usize, len_bytes: usize) -> Result<(), PostError> {
        check(self.len_bytes(), offset_bytes, len_bytes)
    }

    fn keys(&self) -> (u32, u32) {
        self.registered.as_ref().map_or((0, 0), Registered::keys)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let gone = self.registered.take().is_none_or(Registered::deregister);
        self.bytes.leaked = !gone;
    }
}

/// Whether bytes lie within a region.
pub(super) fn check(
    region_bytes: usize,
    offset_bytes: usize,
    len_bytes: usize,
) -> Result<(), PostError> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= region_bytes => Ok(()),
        _ => Err(PostError::OutsideRegion {
            offset_bytes,
            len_bytes,
            region_bytes,
        }),
    }
}

/// Bytes of a [`MemoryRegion`], checked to lie within it.
#[derive(Clone, Copy)]
pub struct LocalSlice<'a> {
    pub(super) address: u64,
    pub(super) len_bytes: usize,
    pub(super) key: u32,
    _region: PhantomData<&'a MemoryRegion>,
}

/// What errors call memory.
pub(super) fn named(domain: &ProtectionDomain, len_bytes: usize) -> String {
    let device = &domain.0.device.name;
    format!("{len_bytes} bytes of memory for RDMA device {device}")
}

/// Zeros, whole pages from a page's beginning on, so that no other data shares a page with them.
struct PageMemory {
    first: NonNull<u8>,
    layout: Layout,
    leaked: bool,
}

impl PageMemory {
    fn new(len_bytes: usize) -> Option<PageMemory> {
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES)
            .ok()
            .filter(|layout| layout.size() > 0)?;
        // SAFETY: the length is not zero.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(PageMemory {
            first,
            layout,
            leaked: false,
        })
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: allocated with this layout, freed here only.
            unsafe { dealloc(self.first.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_at_a_page_and_none_is_no_memory() {
        let memory = PageMemory::new(10).expect("ten bytes");
        assert_eq!(memory.first.as_ptr().addr() % PAGE_BYTES, 0);
        assert!(PageMemory::new(0).is_none());
        assert!(PageMemory::new(usize::MAX).is_none());
    }

    #[test]
    fn access_is_no_more_than_what_was_asked_for() {
        assert_eq!(Access::LOCAL.flags(), 1);
        assert_eq!(
            Access {
                remote_write: true,
                ..Access::LOCAL
            }
            .flags(),
            3
        );
        assert_eq!(
            Access {
                remote_read: true,
                ..Access::LOCAL
            }
            .flags(),
            5
        );
    }
}
