//! The buffer arena of one core: frames by class, leased, frozen, given back.
//!
//! A [`Lease`] is move-only and writable; it may travel to another thread while it is filled
//! (the origin's runtime, a device queue) and finds its way home when it is dropped anywhere.
//! A filled lease freezes into a [`Frozen`], which readers of the core share by counting.
//!
//! Bytes that cannot be evicted (leases in flight) are counted by [`Share`], and each share has
//! reserved room that the others cannot take, so that serving peers and filling for waiting
//! readers stay possible whatever prefetch and readers hold.

#[allow(unsafe_code)]
mod memory;

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_queue::SegQueue;

pub(crate) use memory::Near;
pub use memory::{BufferClass, Mapping};
use memory::{CHILDREN, Frame, HUGE_PAGE_BYTES, Slab};

use crate::limits::{CHUNK_BYTES, PAGE_BYTES};

/// On whose behalf a lease is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Share {
    /// Readers of this node that wait.
    Demand,
    /// Bytes ahead of readers.
    Prefetch,
    /// Peers.
    Serve,
    /// The disk tier's own work: headers, tables, what reclaim moves.
    Disk,
}

/// Number of shares.
const SHARES: usize = 4;

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No free frame of this size: evict and ask again.
    Memory,
    /// The share's room is used up: leases must come back first.
    Share,
}

/// What a frame counts as while it is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    InFlight(Share),
    Frozen,
}

type Returns = SegQueue<(Frame, Use)>;

/// The sole right to fill a buffer. Dropped anywhere, its frame returns to its core's arena.
#[derive(Debug)]
pub struct Lease {
    // None only while `drop` or `freeze` takes it out.
    frame: Option<Frame>,
    len: u32,
    usage: Use,
    home: Arc<Returns>,
}

impl Lease {
    /// Bytes of this lease that are to be filled: at most the class's.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no byte is to be filled. Never so for a lease from [`Arena::lease`].
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The class.
    pub fn class(&self) -> BufferClass {
        self.frame
            .as_ref()
            .expect("a lease has a frame until it is dropped")
            .class()
    }

    /// The bytes to read.
    pub fn bytes(&self) -> &[u8] {
        let frame = self
            .frame
            .as_ref()
            .expect("a lease has a frame until it is dropped");
        &frame.bytes()[..self.len as usize]
    }

    /// All bytes of the class.
    fn whole(&self) -> &[u8] {
        self.frame
            .as_ref()
            .expect("a lease has a frame until it is dropped")
            .bytes()
    }

    /// The bytes to fill. What they hold before is whatever the last use left.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let frame = self
            .frame
            .as_mut()
            .expect("a lease has a frame until it is dropped");
        &mut frame.bytes_mut()[..self.len as usize]
    }

    /// Makes the lease shorter; the rest of the buffer stays with it, unused. Longer than it is
    /// changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Makes the lease as long as its buffer is again.
    pub fn lengthen(&mut self) {
        self.len = self.class().bytes() as u32;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.home.push((frame, self.usage));
        }
    }
}

/// Filled bytes that readers of one core share. The frame returns when the last one is gone.
#[derive(Clone, Debug)]
pub struct Frozen {
    lease: Rc<Lease>,
    start: u32,
    len: u32,
}

impl Deref for Frozen {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let start = self.start as usize;
        &self.lease.whole()[start..start + self.len as usize]
    }
}

impl Frozen {
    /// Bytes of the arena that this buffer occupies.
    pub fn footprint_bytes(&self) -> usize {
        self.lease.class().bytes()
    }

    /// The same bytes up to the end of their last page: what a device writes. Zeros follow what was
    /// filled.
    pub fn padded(&self) -> Frozen {
        let end = (self.start + self.len).next_multiple_of(PAGE_BYTES as u32);
        Frozen {
            lease: self.lease.clone(),
            start: self.start,
            len: end - self.start,
        }
    }

    /// Part of the same bytes; clipped to what there is.
    pub fn slice(&self, range: Range<usize>) -> Frozen {
        let end = range.end.min(self.len as usize) as u32;
        let start = range.start.min(end as usize) as u32;
        Frozen {
            lease: self.lease.clone(),
            start: self.start + start,
            len: end - start,
        }
    }
}

/// Free frames of one class below a chunk, by their parent's offset, so that whole families join.
#[derive(Debug, Default)]
struct Families {
    free: BTreeMap<usize, Vec<Frame>>,
}

/// The buffers of one core.
#[derive(Debug)]
pub struct Arena {
    chunks: Vec<Frame>,
    sub_blocks: Families,
    pages: Families,
    home: Arc<Returns>,
    capacity_bytes: usize,
    free_bytes: usize,
    in_flight_bytes: [usize; SHARES],
    frozen_bytes: usize,
    reserved_bytes: [usize; SHARES],
    mapping: Mapping,
}

impl Arena {
    /// Maps `capacity_bytes`, rounded down to whole chunks.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn new(capacity_bytes: usize) -> io::Result<Self> {
        Slab::frames(capacity_bytes / CHUNK_BYTES).map(Self::of)
    }

    /// The same in huge pages of 2 MiB that the machine has reserved. All of them are there at once.
    ///
    /// # Errors
    /// When there are not enough, or this process may not have them.
    pub fn in_reserved_pages(capacity_bytes: usize) -> io::Result<Self> {
        Slab::reserved_frames(capacity_bytes / CHUNK_BYTES).map(Self::of)
    }

    fn of((mapping, mut chunks): (Mapping, Vec<Frame>)) -> Self {
        chunks.reverse();
        let capacity_bytes = chunks.len() * CHUNK_BYTES;
        let mut reserved_bytes = [0; SHARES];
        reserved_bytes[Share::Demand as usize] = capacity_bytes / 4;
        reserved_bytes[Share::Serve as usize] = capacity_bytes / 8;
        Self {
            chunks,
            sub_blocks: Families::default(),
            pages: Families::default(),
            home: Arc::default(),
            capacity_bytes,
            free_bytes: capacity_bytes,
            in_flight_bytes: [0; SHARES],
            frozen_bytes: 0,
            reserved_bytes,
            mapping,
        }
    }

    /// Bytes in all.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Bytes in no lease and no frozen buffer.
    pub fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Bytes in leases.
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes.iter().sum()
    }

    /// Bytes in frozen buffers.
    pub fn frozen_bytes(&self) -> usize {
        self.frozen_bytes
    }

    /// A buffer for `len` bytes (1 to a chunk), of the smallest class that holds them.
    ///
    /// # Errors
    /// [`Denied::Share`] when the share's room is used up, [`Denied::Memory`] when no frame is free.
    pub fn lease(&mut self, len: usize, share: Share) -> Result<Lease, Denied> {
        let class = BufferClass::fitting(len)
            .filter(|_| len > 0)
            .ok_or(Denied::Memory)?;
        self.reclaim();
        if self.in_flight_bytes[share as usize] + class.bytes() > self.room_bytes(share) {
            return Err(Denied::Share);
        }
        let frame = self.take(class).ok_or(Denied::Memory)?;
        self.free_bytes -= class.bytes();
        self.in_flight_bytes[share as usize] += class.bytes();
        Ok(Lease {
            frame: Some(frame),
            len: len as u32,
            usage: Use::InFlight(share),
            home: self.home.clone(),
        })
    }

    /// What `share` may have in flight at most, now: everything but the others' reservations, or
    /// what they use beyond those.
    fn room_bytes(&self, share: Share) -> usize {
        let others: usize = (0..SHARES)
            .filter(|other| *other != share as usize)
            .map(|other| self.reserved_bytes[other].max(self.in_flight_bytes[other]))
            .sum();
        self.capacity_bytes.saturating_sub(others)
    }

    /// Buffers in which a device can be tried out before it is used: of what is free one chunk in each 2 MiB, and the last
    /// one, whatever shares have room for. Those with the highest addresses first, so that given back in this order they are
    /// taken from the beginning again.
    pub fn probes(&mut self) -> Vec<Lease> {
        self.reclaim();
        let last = self.capacity_bytes.saturating_sub(CHUNK_BYTES);
        let chunks = std::mem::take(&mut self.chunks);
        let (mut probes, rest): (Vec<Frame>, Vec<Frame>) = chunks.into_iter().partition(|frame| {
            frame.offset().is_multiple_of(HUGE_PAGE_BYTES) || frame.offset() == last
        });
        self.chunks = rest;
        probes.sort_by_key(|frame| std::cmp::Reverse(frame.offset()));
        let bytes = probes.len() * CHUNK_BYTES;
        self.free_bytes -= bytes;
        self.in_flight_bytes[Share::Disk as usize] += bytes;
        let lease = |frame| Lease {
            frame: Some(frame),
            len: CHUNK_BYTES as u32,
            usage: Use::InFlight(Share::Disk),
            home: self.home.clone(),
        };
        probes.into_iter().map(lease).collect()
    }

    /// Makes a filled lease readable by many. Only leases of this arena.
    pub fn freeze(&mut self, mut lease: Lease) -> Frozen {
        debug_assert!(
            Arc::ptr_eq(&lease.home, &self.home),
            "the lease belongs to another core"
        );
        if let Use::InFlight(share) = lease.usage {
            self.in_flight_bytes[share as usize] -= lease.class().bytes();
            self.frozen_bytes += lease.class().bytes();
            lease.usage = Use::Frozen;
        }
        let len = lease.len;
        lease.len = (len as usize).next_multiple_of(PAGE_BYTES) as u32;
        lease.bytes_mut()[len as usize..].fill(0);
        Frozen {
            lease: Rc::new(lease),
            start: 0,
            len,
        }
    }

    /// Cuts a filled lease of a chunk's class into leases of its sub-blocks, as many as have bytes; any other is
    /// given back as it is. What no byte is in comes free.
    pub fn cut(&mut self, mut lease: Lease) -> Vec<Lease> {
        let len = lease.len();
        let frame = match lease.frame.take() {
            Some(frame) if frame.class() == BufferClass::Chunk => frame,
            frame => {
                lease.frame = frame;
                return vec![lease];
            }
        };
        let child_bytes = BufferClass::SubBlock.bytes();
        let children = frame.split().into_iter().flatten().enumerate();
        // Those past the end are dropped, and come home as leases do.
        let leases = children.map(|(n, frame)| Lease {
            frame: Some(frame),
            len: len.saturating_sub(n * child_bytes).min(child_bytes) as u32,
            usage: lease.usage,
            home: self.home.clone(),
        });
        leases.filter(|lease| !lease.is_empty()).collect()
    }

    /// Sets `share`'s reserved room, in bytes.
    pub fn reserve(&mut self, share: Share, bytes: usize) {
        self.reserved_bytes[share as usize] = bytes.min(self.capacity_bytes / 4);
    }

    /// The addresses of all its buffers: what a device may register as fixed memory. One mapping
    /// that lives as long as any buffer of it.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.mapping.as_ptr() as usize;
        start..start + self.capacity_bytes
    }

    /// A handle that keeps all its buffers mapped, for devices that may reach them after the arena is gone.
    pub fn mapping(&self) -> Mapping {
        self.mapping.clone()
    }

    /// Takes back the frames of dropped leases. [`Arena::lease`] does so by itself.
    pub fn reclaim(&mut self) {
        while let Some((frame, usage)) = self.home.pop() {
            let bytes = frame.class().bytes();
            match usage {
                Use::InFlight(share) => self.in_flight_bytes[share as usize] -= bytes,
                Use::Frozen => self.frozen_bytes -= bytes,
            }
            self.free_bytes += bytes;
            self.give(frame);
        }
    }

    fn families(&mut self, class: BufferClass) -> Option<&mut Families> {
        match class {
            BufferClass::Page => Some(&mut self.pages),
            BufferClass::SubBlock => Some(&mut self.sub_blocks),
            BufferClass::Chunk => None,
        }
    }

    fn take(&mut self, class: BufferClass) -> Option<Frame> {
        let parent_class = match class {
            BufferClass::Chunk => return self.chunks.pop(),
            BufferClass::SubBlock => BufferClass::Chunk,
            BufferClass::Page => BufferClass::SubBlock,
        };
        let families = self.families(class)?;
        if let Some(mut family) = families.free.first_entry() {
            let frame = family.get_mut().pop();
            if family.get().is_empty() {
                family.remove();
            }
            return frame;
        }
        let parent = self.take(parent_class)?;
        let offset = parent.offset();
        let mut children: Vec<Frame> = parent.split()?.into();
        children.reverse();
        let frame = children.pop();
        self.families(class)?.free.insert(offset, children);
        frame
    }

    fn give(&mut self, frame: Frame) {
        let parent_bytes = match frame.class() {
            BufferClass::Chunk => return self.chunks.push(frame),
            BufferClass::SubBlock => BufferClass::Chunk.bytes(),
            BufferClass::Page => BufferClass::SubBlock.bytes(),
        };
        let parent = frame.offset() / parent_bytes * parent_bytes;
        let Some(families) = self.families(frame.class()) else {
            return;
        };
        let family = families.free.entry(parent).or_default();
        family.push(frame);
        if family.len() == CHILDREN {
            let family = families.free.remove(&parent).unwrap_or_default();
            match Frame::join(family) {
                Ok(whole) => self.give(whole),
                Err(_) => unreachable!("frames are grouped by their parent"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SUB_BLOCK_BYTES;

    const MIB: usize = 1 << 20;

    #[test]
    fn frames_come_home_from_any_thread_and_join_to_chunks() {
        let mut arena = Arena::new(4 * MIB).unwrap();
        let mut leases = Vec::new();
        while let Ok(lease) = arena.lease(PAGE_BYTES, Share::Serve) {
            leases.push(lease);
        }
        assert!(leases.len() > 2 * MIB / PAGE_BYTES);
        std::thread::spawn(move || drop(leases)).join().unwrap();
        arena.reclaim();
        assert_eq!(arena.free_bytes(), 4 * MIB);
        assert_eq!(arena.chunks.len(), 4);
        assert!(arena.pages.free.is_empty() && arena.sub_blocks.free.is_empty());
    }

    #[test]
    fn probes_lie_in_every_huge_page_and_come_back() {
        for chunks in [1, 2, 5, 8] {
            let mut arena = Arena::new(chunks * MIB).unwrap();
            let start = arena.addresses().start;
            let probes = arena.probes();
            let at = |lease: &Lease| (lease.bytes().as_ptr().addr() - start) / MIB;
            let places: Vec<usize> = probes.iter().map(at).collect();
            let mut expected: Vec<usize> = (0..chunks).step_by(2).chain([chunks - 1]).collect();
            expected.dedup();
            expected.reverse();
            assert_eq!(places, expected);
            assert_eq!(arena.free_bytes(), (chunks - expected.len()) * MIB);
            drop(probes);
            arena.reclaim();
            assert_eq!(
                (arena.free_bytes(), arena.in_flight_bytes()),
                (chunks * MIB, 0)
            );
        }
    }

    #[test]
    fn a_share_never_takes_what_another_has_reserved() {
        let mut arena = Arena::new(16 * MIB).unwrap();
        let mut held = Vec::new();
        while let Ok(lease) = arena.lease(CHUNK_BYTES, Share::Prefetch) {
            held.push(lease);
        }
        assert_eq!(held.len(), 16 - 4 - 2);
        assert_eq!(arena.lease(1, Share::Prefetch).unwrap_err(), Denied::Share);
        while let Ok(lease) = arena.lease(CHUNK_BYTES, Share::Demand) {
            held.push(lease);
        }
        assert_eq!(held.len(), 14, "the reservation for peers stays");
        assert!(arena.lease(CHUNK_BYTES, Share::Serve).is_ok());
    }

    #[test]
    fn frozen_bytes_are_shared_and_counted_until_the_last_is_gone() {
        let mut arena = Arena::new(2 * MIB).unwrap();
        let mut lease = arena.lease(SUB_BLOCK_BYTES - 1, Share::Demand).unwrap();
        lease.bytes_mut().fill(7);
        let frozen = arena.freeze(lease);
        let again = frozen.clone();
        assert_eq!(
            (arena.in_flight_bytes(), arena.frozen_bytes()),
            (0, SUB_BLOCK_BYTES)
        );
        drop(frozen);
        arena.reclaim();
        assert!(again.iter().all(|byte| *byte == 7) && again.len() == SUB_BLOCK_BYTES - 1);
        drop(again);
        arena.reclaim();
        assert_eq!(arena.free_bytes(), 2 * MIB);
    }

    #[test]
    fn what_a_device_writes_ends_in_zeros() {
        let mut arena = Arena::new(2 * MIB).unwrap();
        let mut dirty = arena.lease(2 * PAGE_BYTES, Share::Demand).unwrap();
        dirty.bytes_mut().fill(9);
        drop(dirty);
        let mut lease = arena.lease(2 * PAGE_BYTES, Share::Demand).unwrap();
        lease.truncate(PAGE_BYTES + 1);
        let frozen = arena.freeze(lease);
        let padded = frozen.padded();
        assert_eq!(
            (frozen.len(), padded.len()),
            (PAGE_BYTES + 1, 2 * PAGE_BYTES)
        );
        assert!(padded[..PAGE_BYTES + 1].iter().all(|byte| *byte == 9));
        assert!(padded[PAGE_BYTES + 1..].iter().all(|byte| *byte == 0));
        let tail = frozen.slice(PAGE_BYTES..3 * PAGE_BYTES);
        assert_eq!((tail.len(), tail.padded().len()), (1, PAGE_BYTES));
        let at = padded.as_ptr() as usize;
        assert!(arena.addresses().start <= at && at + padded.len() <= arena.addresses().end);
    }

    #[test]
    fn buffers_begin_where_huge_pages_do() {
        for mib in [1, 2, 7] {
            let arena = Arena::new(mib * MIB).unwrap();
            assert_eq!(arena.addresses().start % (2 * MIB), 0);
            assert_eq!(arena.addresses().len(), mib * MIB);
            assert_eq!(arena.mapping().len_bytes(), mib * MIB);
        }
    }

    #[test]
    fn a_mapping_outlives_its_arena_at_the_same_addresses() {
        let arena = Arena::new(2 * MIB).unwrap();
        let (mapping, addresses) = (arena.mapping(), arena.addresses());
        assert_eq!(mapping.as_ptr() as usize, addresses.start);
        assert_eq!(mapping.len_bytes(), addresses.len());
        drop(arena);
        // Nothing else is mapped there while the handle lives.
        let other = Arena::new(2 * MIB).unwrap().addresses();
        assert!(other.end <= addresses.start || addresses.end <= other.start);
        drop(mapping);
    }

    #[test]
    fn a_chunk_is_cut_into_sub_blocks_that_come_home_one_by_one() {
        let mut arena = Arena::new(2 * MIB).unwrap();
        let mut lease = arena.lease(2 * SUB_BLOCK_BYTES + 5, Share::Demand).unwrap();
        for (n, part) in lease.bytes_mut().chunks_mut(SUB_BLOCK_BYTES).enumerate() {
            part.fill(n as u8 + 1);
        }
        let parts = arena.cut(lease);
        let lens: Vec<usize> = parts.iter().map(Lease::len).collect();
        assert_eq!(lens, [SUB_BLOCK_BYTES, SUB_BLOCK_BYTES, 5]);
        for (n, part) in parts.iter().enumerate() {
            assert_eq!(part.class(), BufferClass::SubBlock);
            assert!(part.bytes().iter().all(|byte| *byte == n as u8 + 1));
        }
        arena.reclaim();
        assert_eq!(arena.in_flight_bytes(), 3 * SUB_BLOCK_BYTES);
        let frozen: Vec<Frozen> = parts.into_iter().map(|part| arena.freeze(part)).collect();
        assert_eq!(arena.frozen_bytes(), 3 * SUB_BLOCK_BYTES);
        drop(frozen);
        arena.reclaim();
        assert_eq!((arena.free_bytes(), arena.chunks.len()), (2 * MIB, 2));
        // A small one is what it was.
        let lease = arena.lease(PAGE_BYTES, Share::Demand).unwrap();
        let parts = arena.cut(lease);
        assert_eq!((parts.len(), parts[0].class()), (1, BufferClass::Page));
    }

    #[test]
    fn lengths_that_no_class_holds_are_refused() {
        let mut arena = Arena::new(2 * MIB).unwrap();
        assert!(arena.lease(0, Share::Demand).is_err());
        assert!(arena.lease(CHUNK_BYTES + 1, Share::Demand).is_err());
    }
}
