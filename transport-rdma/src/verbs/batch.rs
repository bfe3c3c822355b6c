//! Work that is gathered in a turn and posted with one doorbell.

use std::ops::Range;

use super::abi::*;
use super::arena::ArenaRegion;
use super::memory::MemoryRegion;
use super::queue_pair::RemoteSlice;
use crate::PostError;

/// Sends and writes for one queue pair, in their order. Used again and again, so that a turn allocates nothing.
#[derive(Default)]
pub struct Batch {
    gathered: Vec<Gathered>,
    elements: Vec<ibv_sge>,
    inline: Vec<u8>,
    /// Only while it is posted.
    requests: Vec<ibv_send_wr>,
}

struct Gathered {
    work: u64,
    opcode: u32,
    flags: u32,
    target: Option<RemoteSlice>,
    elements: Range<usize>,
}

impl Gathered {
    fn is_inline(&self) -> bool {
        self.flags & IBV_SEND_INLINE != 0
    }
}

impl Batch {
    /// Whether there is nothing to post.
    pub fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// A message of bytes of the region that begin at `offset_bytes`. They must not change until it has completed.
    ///
    /// # Errors
    /// [`PostError`] when they do not lie there; nothing was gathered.
    pub fn send_at(
        &mut self,
        work: u64,
        region: &MemoryRegion,
        offset_bytes: usize,
        len_bytes: usize,
    ) -> Result<(), PostError> {
        let slice = region.slice(offset_bytes, len_bytes)?;
        let element = super::queue_pair::element(slice)?;
        self.gather(work, IBV_WR_SEND, 0, None, [element]);
        Ok(())
    }

    /// A short message, which is copied. At most [`super::QueuePair::inline_bytes`].
    pub fn send_inline(&mut self, work: u64, message: &[u8]) {
        // The place among the inline bytes, until their address is known.
        let element = ibv_sge {
            addr: self.inline.len() as u64,
            length: message.len() as u32,
            lkey: 0,
        };
        self.inline.extend_from_slice(message);
        self.gather(work, IBV_WR_SEND, IBV_SEND_INLINE, None, [element]);
    }

    /// An RDMA WRITE of all `parts`, which lie in `region`, one after the other to `to`. They must not change until
    /// it has completed.
    ///
    /// # Errors
    /// [`PostError`] when one of them does not lie there; nothing was gathered.
    pub fn write<'a>(
        &mut self,
        work: u64,
        region: &ArenaRegion,
        parts: impl IntoIterator<Item = &'a [u8]>,
        to: RemoteSlice,
    ) -> Result<(), PostError> {
        let begun = self.elements.len();
        for part in parts {
            match region.element_of(part) {
                Ok(element) => self.elements.push(element),
                Err(error) => {
                    self.elements.truncate(begun);
                    return Err(error);
                }
            }
        }
        let elements = begun..self.elements.len();
        self.gathered.push(Gathered {
            work,
            opcode: IBV_WR_RDMA_WRITE,
            flags: 0,
            target: Some(to),
            elements,
        });
        Ok(())
    }

    /// An RDMA WRITE of bytes of the region that begin at `offset_bytes`. They must not change until it has completed.
    ///
    /// # Errors
    /// [`PostError`] when they do not lie there; nothing was gathered.
    pub fn write_at(
        &mut self,
        work: u64,
        region: &MemoryRegion,
        (offset_bytes, len_bytes): (usize, usize),
        to: RemoteSlice,
    ) -> Result<(), PostError> {
        let slice = region.slice(offset_bytes, len_bytes)?;
        let element = super::queue_pair::element(slice)?;
        self.gather(work, IBV_WR_RDMA_WRITE, 0, Some(to), [element]);
        Ok(())
    }

    /// An RDMA READ of bytes of the peer into the region, from `offset_bytes` on.
    ///
    /// # Errors
    /// [`PostError`] when that many do not lie there; nothing was gathered.
    pub fn read_at(
        &mut self,
        work: u64,
        region: &MemoryRegion,
        (offset_bytes, len_bytes): (usize, usize),
        from: RemoteSlice,
    ) -> Result<(), PostError> {
        let slice = region.slice(offset_bytes, len_bytes)?;
        let element = super::queue_pair::element(slice)?;
        self.gather(work, IBV_WR_RDMA_READ, 0, Some(from), [element]);
        Ok(())
    }

    /// Lets the last piece of work have a completion also when it succeeds.
    pub fn signal_last(&mut self) {
        if let Some(last) = self.gathered.last_mut() {
            last.flags |= IBV_SEND_SIGNALED;
        }
    }

    fn gather<const N: usize>(
        &mut self,
        work: u64,
        opcode: u32,
        flags: u32,
        target: Option<RemoteSlice>,
        elements: [ibv_sge; N],
    ) {
        let begun = self.elements.len();
        self.elements.extend(elements);
        self.gathered.push(Gathered {
            work,
            opcode,
            flags,
            target,
            elements: begun..begun + N,
        });
    }

    /// The most pieces of memory that one piece of work names.
    pub(super) fn elements_max(&self) -> usize {
        let counts = self.gathered.iter().map(|work| work.elements.len());
        counts.max().unwrap_or(0)
    }

    /// The longest inline message, in bytes.
    pub(super) fn inline_max(&self) -> usize {
        let inline = self.gathered.iter().filter(|work| work.is_inline());
        let lengths = inline.flat_map(|work| &self.elements[work.elements.clone()]);
        lengths
            .map(|element| element.length as usize)
            .max()
            .unwrap_or(0)
    }

    /// The first of the requests, each linked to the next. They stay valid until the batch is touched again, which
    /// must be to clear it.
    pub(super) fn linked(&mut self) -> *mut ibv_send_wr {
        let inline = self.inline.as_ptr().addr() as u64;
        for work in self.gathered.iter().filter(|work| work.is_inline()) {
            for element in &mut self.elements[work.elements.clone()] {
                element.addr += inline;
            }
        }
        let (count, elements) = (self.gathered.len(), self.elements.as_mut_ptr());
        self.requests.clear();
        self.requests.reserve(count);
        // Pointers among the requests are made before there are any, and no reference to one is made afterwards.
        let first = self.requests.as_mut_ptr();
        for (at, work) in self.gathered.iter().enumerate() {
            let mut request = ibv_send_wr::zeroed();
            request.wr_id = work.work;
            request.sg_list = elements.wrapping_add(work.elements.start);
            request.num_sge = work.elements.len() as i32;
            request.opcode = work.opcode;
            request.send_flags = work.flags;
            if let Some(target) = work.target {
                request.wr.remote_addr = target.address;
                request.wr.rkey = target.key;
            }
            if at + 1 < count {
                request.next = first.wrapping_add(at + 1);
            }
            self.requests.push(request);
        }
        self.requests.as_mut_ptr()
    }

    /// Forgets everything; what was posted stays under way.
    pub(super) fn clear(&mut self) {
        self.gathered.clear();
        self.elements.clear();
        self.inline.clear();
        self.requests.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_linked_in_its_order_with_its_bytes() {
        let mut batch = Batch::default();
        for round in 0..2_u8 {
            for work in 0..3_u8 {
                batch.send_inline(u64::from(work), &[round, work]);
            }
            batch.signal_last();
            assert_eq!((batch.elements_max(), batch.inline_max()), (1, 2));
            batch.linked();
            let inline = batch.inline.as_ptr().addr() as u64;
            assert_eq!(batch.inline, [round, 0, round, 1, round, 2]);
            for (at, request) in batch.requests.iter().enumerate() {
                assert_eq!(request.wr_id, at as u64);
                assert_eq!(batch.elements[at].addr, inline + 2 * at as u64);
                let signalled = request.send_flags & IBV_SEND_SIGNALED != 0;
                assert_eq!(signalled, at == 2);
                let next = batch.requests.get(at + 1);
                assert_eq!(
                    request.next.cast_const(),
                    next.map_or(std::ptr::null(), |next| next)
                );
            }
            batch.clear();
            assert!(batch.is_empty());
        }
    }
}
