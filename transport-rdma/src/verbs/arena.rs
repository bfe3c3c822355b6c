//! A core's arena, registered: what answers are gathered from, and where peers write.

use std::mem;
use std::ptr::NonNull;

use forebay_engine::arena::Mapping;

use super::abi::*;
use super::memory::{Access, ProtectionDomain, Registered, check, named};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::{PostError, VerbsError};

/// All buffers of an arena. Work of this side only reads them: nothing in here names them to receives or READs.
///
/// It keeps the arena's memory mapped until the device reaches it no more, whatever becomes of the arena itself.
pub struct ArenaRegion {
    // None only while it is dropped.
    registered: Option<Registered>,
    mapping: Mapping,
}

impl ArenaRegion {
    /// Registers an arena, and lets peers write into it: those whose queue pairs allow it
    /// ([`super::QueuePair::allow`]) and that know [`ArenaRegion::remote_key`].
    ///
    /// # Safety
    /// Rust may not look at bytes that a peer may be writing, and the device stops no peer within the arena. So, as long as
    /// the region lives:
    ///
    /// 1. the key and an address are told to a peer only for a lease that is held, and not looked at, until the peer
    ///    has said that it writes no more or its queue pair is destroyed;
    /// 2. queue pairs of its domain let only such peers write that are trusted to write nowhere else.
    pub unsafe fn writable_by_peers(
        domain: &ProtectionDomain,
        mapping: Mapping,
    ) -> Result<ArenaRegion, VerbsError> {
        let len_bytes = mapping.len_bytes();
        let Some(first) = NonNull::new(mapping.as_ptr()).filter(|_| len_bytes > 0) else {
            return Err(VerbsError::Unusable {
                object: named(domain, len_bytes),
                what: "an empty arena: give it at least one chunk".into(),
            });
        };
        let access = Access {
            remote_write: true,
            ..Access::LOCAL
        };
        // SAFETY: the mapping is kept until it is deregistered, or for good. Bytes that peers may be writing are not
        // looked at, by this function's condition; no receive and no READ names any, since no slice of it is to be had.
        let registered = unsafe { Registered::new(domain, first, len_bytes, access) }?;
        Ok(ArenaRegion {
            registered: Some(registered),
            mapping,
        })
    }

    /// The key by which peers name it.
    pub fn remote_key(&self) -> u32 {
        self.keys().1
    }

    fn keys(&self) -> (u32, u32) {
        self.registered.as_ref().map_or((0, 0), Registered::keys)
    }

    /// Where bytes of it are, as verbs name them, for the device to read.
    ///
    /// # Errors
    /// [`PostError::OutsideRegion`].
    pub(super) fn element_of(&self, bytes: &[u8]) -> Result<ibv_sge, PostError> {
        let address = bytes.as_ptr().addr();
        let offset_bytes = address.wrapping_sub(self.mapping.as_ptr().addr());
        check(self.mapping.len_bytes(), offset_bytes, bytes.len())?;
        match u32::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= MESSAGE_BYTES_MAX => Ok(ibv_sge {
                addr: address as u64,
                length,
                lkey: self.keys().0,
            }),
            _ => Err(PostError::TooLong {
                len_bytes: bytes.len(),
                max_bytes: MESSAGE_BYTES_MAX,
            }),
        }
    }
}

impl Drop for ArenaRegion {
    fn drop(&mut self) {
        let gone = self.registered.take().is_none_or(Registered::deregister);
        if !gone {
            mem::forget(self.mapping.clone());
        }
    }
}
