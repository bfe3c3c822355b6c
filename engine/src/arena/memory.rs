//! The arena's memory: one mapping, cut into frames that never overlap. The only unsafe code of
//! the engine.
//!
//! A [`Frame`] is a move-only right to a range of the mapping. Frames are made only by
//! [`Slab::frames`] (which consumes the slab's maker and cuts the mapping into chunks),
//! [`Frame::split`] (which consumes the parent) and [`Frame::join`] (which consumes all
//! children). So at any moment no byte belongs to two frames, and everything above this module
//! is safe code.

use std::io;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use crate::limits::{CHUNK_BYTES, PAGE_BYTES, SUB_BLOCK_BYTES};

/// Buffer sizes: a page, a sub-block, a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BufferClass {
    /// 4 KiB.
    Page,
    /// 64 KiB.
    SubBlock,
    /// 1 MiB.
    Chunk,
}

impl BufferClass {
    /// Bytes of a buffer of this class.
    pub const fn bytes(self) -> usize {
        match self {
            BufferClass::Page => PAGE_BYTES,
            BufferClass::SubBlock => SUB_BLOCK_BYTES,
            BufferClass::Chunk => CHUNK_BYTES,
        }
    }

    /// The smallest class that holds `len` bytes; none beyond a chunk.
    pub const fn fitting(len: usize) -> Option<BufferClass> {
        if len <= PAGE_BYTES {
            Some(BufferClass::Page)
        } else if len <= SUB_BLOCK_BYTES {
            Some(BufferClass::SubBlock)
        } else if len <= CHUNK_BYTES {
            Some(BufferClass::Chunk)
        } else {
            None
        }
    }

    pub(super) const fn child(self) -> Option<BufferClass> {
        match self {
            BufferClass::Page => None,
            BufferClass::SubBlock => Some(BufferClass::Page),
            BufferClass::Chunk => Some(BufferClass::SubBlock),
        }
    }
}

/// Children of one frame of the next larger class; the same at both levels.
pub(super) const CHILDREN: usize = 16;
const _: () =
    assert!(CHUNK_BYTES / SUB_BLOCK_BYTES == CHILDREN && SUB_BLOCK_BYTES / PAGE_BYTES == CHILDREN);

/// What a processor fetches at a time.
const CACHE_LINE_BYTES: usize = 64;

/// An address whose bytes will be read soon. It is no right to read them, and they may be gone meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    next: *const u8,
    lines: usize,
}

impl Near {
    /// Nothing.
    pub(crate) const NOTHING: Near = Near {
        next: std::ptr::null(),
        lines: 0,
    };

    /// The place of these bytes.
    pub(crate) fn to(bytes: &[u8]) -> Near {
        Near {
            next: bytes.as_ptr(),
            lines: bytes.len().div_ceil(CACHE_LINE_BYTES),
        }
    }

    /// Has the processor fetch the next `lines` cache lines, where it can be told so.
    #[inline]
    pub(crate) fn fetch(&mut self, lines: usize) {
        let lines = lines.min(self.lines);
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.next.wrapping_add(line * CACHE_LINE_BYTES);
            // SAFETY: a hint to the processor, of which the program sees nothing: it reads no byte, and faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }
        self.next = self.next.wrapping_add(lines * CACHE_LINE_BYTES);
        self.lines -= lines;
    }
}

/// The mapping. Unmapped when the last frame and the last [`Mapping`] are gone.
#[derive(Debug)]
pub(super) struct Slab {
    map: MmapRaw,
    /// Where the first frame begins, in bytes from the mapping's beginning: at a huge page's boundary.
    start: usize,
    /// Bytes of all frames.
    len: usize,
    /// Whether all of it lies in huge pages of the kernel's pool.
    reserved: bool,
}

/// Frames begin at such an address, so that huge pages fit, and user-space drivers take the memory.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Keeps the memory of one arena mapped, whatever becomes of the arena and its buffers: for devices that reach it by
/// its addresses. Gives no way to the bytes themselves. Clones are the same.
#[derive(Clone, Debug)]
pub struct Mapping(Arc<Slab>);

impl Mapping {
    /// Its first byte, for naming places to devices. The bytes belong to leases and frozen buffers.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.map.as_mut_ptr().wrapping_add(self.0.start)
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.0.len
    }

    /// Whether all of it lies in huge pages that the machine has reserved: they move only where somebody has that done.
    pub fn is_reserved(&self) -> bool {
        self.0.reserved
    }

    /// Its length up to the end of its last 2 MiB, all of which are mapped: what drivers take that know only such pages.
    pub fn whole_bytes(&self) -> usize {
        self.0.len.next_multiple_of(HUGE_PAGE_BYTES)
    }
}

impl Slab {
    /// Maps `chunks` chunks of zeroed memory and cuts it into that many frames.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub(super) fn frames(chunks: usize) -> io::Result<(Mapping, Vec<Frame>)> {
        let len = chunks
            .checked_mul(CHUNK_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // What is mapped and never touched takes no memory.
        let mapped = len
            .checked_next_multiple_of(HUGE_PAGE_BYTES)
            .and_then(|len| len.checked_add(HUGE_PAGE_BYTES))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new().len(mapped).map_anon()?;
        // Huge pages save TLB misses in every copy; without them everything works as well.
        let _ = map.advise(memmap2::Advice::HugePage);
        let slab = Arc::new(Slab {
            start: map.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES) - map.as_ptr().addr(),
            len,
            reserved: false,
            map: MmapRaw::from(map),
        });
        Ok(Self::cut(slab, chunks))
    }

    /// The same in huge pages of 2 MiB that the machine has reserved, all of which are there when this returns.
    ///
    /// # Errors
    /// When there are not enough, or this process may not have them.
    pub(super) fn reserved_frames(chunks: usize) -> io::Result<(Mapping, Vec<Frame>)> {
        let len = chunks
            .checked_mul(CHUNK_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = len
            .checked_next_multiple_of(HUGE_PAGE_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new()
            .len(mapped)
            .huge(Some(HUGE_PAGE_BYTES.trailing_zeros() as u8))
            .map_anon()?;
        // A control group may have fewer than the machine: a page that it refuses would end the process when it is touched.
        map.advise(memmap2::Advice::PopulateWrite)?;
        // A device without an IOMMU writes to where the pages are: a fork would make them pages of both, and move this side's.
        map.advise(memmap2::Advice::DontFork)?;
        let slab = Arc::new(Slab {
            start: 0,
            len,
            reserved: true,
            map: MmapRaw::from(map),
        });
        Ok(Self::cut(slab, chunks))
    }

    fn cut(slab: Arc<Self>, chunks: usize) -> (Mapping, Vec<Frame>) {
        let frames = (0..chunks).map(|n| Frame {
            slab: slab.clone(),
            offset: n * CHUNK_BYTES,
            class: BufferClass::Chunk,
        });
        let frames = frames.collect();
        (Mapping(slab), frames)
    }
}

/// The sole right to a range of a slab. Neither `Clone` nor constructible outside this module.
#[derive(Debug)]
pub(super) struct Frame {
    slab: Arc<Slab>,
    offset: usize,
    class: BufferClass,
}

impl Frame {
    pub(super) fn class(&self) -> BufferClass {
        self.class
    }

    /// Where the frame begins in its slab, in bytes.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the offset lies within the mapping, since `Slab::frames` starts frames at multiples of CHUNK_BYTES below
        // `len`, maps at least `start` bytes more than that, `split` and `join` stay inside their operands,
        // and the mapping is never shrunk. So the result is inside one allocation.
        let start = unsafe {
            self.slab
                .map
                .as_mut_ptr()
                .add(self.slab.start + self.offset)
        };
        // SAFETY: `start` is valid for `class.bytes()` bytes by the argument above, and the bytes are
        // initialised (an anonymous mapping is zeroed). The `Arc` keeps the mapping alive for the
        // borrow of `self`. No `&mut` to these bytes exists meanwhile: only `bytes_mut` makes one,
        // it needs `&mut self`, and no other frame covers them.
        unsafe { std::slice::from_raw_parts(start, self.class.bytes()) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`: the offset lies within the mapping.
        let start = unsafe {
            self.slab
                .map
                .as_mut_ptr()
                .add(self.slab.start + self.offset)
        };
        // SAFETY: valid, initialised and alive as in `bytes`. Unique: `&mut self` excludes every
        // other borrow through this frame, and no other frame covers these bytes.
        unsafe { std::slice::from_raw_parts_mut(start, self.class.bytes()) }
    }

    /// Cuts a frame into [`CHILDREN`] of the next smaller class.
    pub(super) fn split(self) -> Option<[Frame; CHILDREN]> {
        let class = self.class.child()?;
        Some(std::array::from_fn(|n| Frame {
            slab: self.slab.clone(),
            offset: self.offset + n * class.bytes(),
            class,
        }))
    }

    /// Makes one frame of all children of one parent, given in any order.
    ///
    /// # Errors
    /// The frames back, when they are not exactly the children of one parent.
    pub(super) fn join(mut children: Vec<Frame>) -> Result<Frame, Vec<Frame>> {
        children.sort_unstable_by_key(|frame| frame.offset);
        let Some(first) = children.first() else {
            return Err(children);
        };
        let class = match first.class {
            BufferClass::Page => BufferClass::SubBlock,
            BufferClass::SubBlock => BufferClass::Chunk,
            BufferClass::Chunk => return Err(children),
        };
        let whole = children.len() == CHILDREN
            && first.offset.is_multiple_of(class.bytes())
            && children.iter().enumerate().all(|(n, frame)| {
                frame.class == first.class
                    && Arc::ptr_eq(&frame.slab, &first.slab)
                    && frame.offset == first.offset + n * first.class.bytes()
            });
        if !whole {
            return Err(children);
        }
        Ok(Frame {
            slab: first.slab.clone(),
            offset: first.offset,
            class,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_frames_cover_the_parent_without_overlap_and_join_again() {
        let parent = Slab::frames(2).unwrap().1.pop().unwrap();
        let offset = parent.offset();
        let mut children = parent.split().unwrap();
        for (n, child) in children.iter_mut().enumerate() {
            child.bytes_mut().fill(n as u8 + 1);
        }
        let joined = Frame::join(children.into_iter().rev().collect()).unwrap();
        assert_eq!(joined.offset(), offset);
        for (n, piece) in joined.bytes().chunks(SUB_BLOCK_BYTES).enumerate() {
            assert!(piece.iter().all(|byte| *byte == n as u8 + 1));
        }
    }

    #[test]
    fn whole_huge_pages_are_mapped_under_every_chunk() {
        for chunks in [1, 2, 3, 5] {
            let (mapping, _) = Slab::frames(chunks).unwrap();
            let map = &mapping.0.map;
            let start = mapping.as_ptr().addr();
            assert!(start.is_multiple_of(HUGE_PAGE_BYTES));
            assert!(mapping.whole_bytes() >= mapping.len_bytes());
            assert!(mapping.whole_bytes().is_multiple_of(HUGE_PAGE_BYTES));
            assert!(start + mapping.whole_bytes() <= map.as_mut_ptr().addr() + map.len());
        }
    }

    #[test]
    fn join_refuses_what_is_not_one_whole_family() {
        let (_, mut frames) = Slab::frames(2).unwrap();
        let mut a: Vec<Frame> = frames.pop().unwrap().split().unwrap().into();
        let mut b: Vec<Frame> = frames.pop().unwrap().split().unwrap().into();
        std::mem::swap(&mut a[3], &mut b[3]);
        let a = Frame::join(a).unwrap_err();
        assert_eq!(a.len(), CHILDREN);
        let mut b = b;
        b.pop();
        assert_eq!(Frame::join(b).unwrap_err().len(), CHILDREN - 1);
        assert!(Frame::join(Vec::new()).is_err());
    }
}
