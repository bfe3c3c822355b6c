//! What waits to be written to one of the queues, and the region that it goes to.

use std::rc::Rc;
use std::time::Duration;

use super::index::Extent;
use crate::arena::Frozen;
use crate::identity::BlockId;
use crate::limits::{BATCH_BYTES_MAX, BATCH_DELAY_MS, BATCH_ENTRIES_MAX, PAGE_BYTES};
use crate::ports::Time;

/// Where a part comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// The origin (or a peer).
    Fill {
        /// See [`super::Fill::wanted`].
        wanted: bool,
    },
    /// An entry that reclaim keeps.
    Reclaim(Extent),
}

impl From {
    pub fn is_fill(&self) -> bool {
        matches!(self, From::Fill { .. })
    }
}

/// Pages of one block that are to be written.
#[derive(Debug)]
pub(super) struct Part {
    pub block: BlockId,
    pub first_page: u32,
    pub bytes: Frozen,
    pub checksums: Rc<[u32]>,
    /// Its first page's place in `checksums`.
    pub checksum_at: usize,
    pub from: From,
}

/// What is to be told when a part is written, or is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub block: BlockId,
    pub first_page: u32,
    pub pages: u32,
    pub from: From,
}

impl Part {
    pub fn pages(&self) -> u32 {
        self.bytes.len().div_ceil(PAGE_BYTES) as u32
    }

    /// Whether reclaim moves it.
    pub fn is_moved(&self) -> bool {
        matches!(self.from, From::Reclaim(_))
    }

    pub fn done(&self) -> Done {
        Done {
            block: self.block,
            first_page: self.first_page,
            pages: self.pages(),
            from: self.from,
        }
    }

    /// Cuts off the first `pages` pages.
    pub fn split_off_front(&mut self, pages: u32) -> Part {
        let at = pages as usize * PAGE_BYTES;
        let front = Part {
            block: self.block,
            first_page: self.first_page,
            bytes: self.bytes.slice(0..at),
            checksums: self.checksums.clone(),
            checksum_at: self.checksum_at,
            from: self.from,
        };
        self.bytes = self.bytes.slice(at..self.bytes.len());
        self.first_page += pages;
        self.checksum_at += pages as usize;
        front
    }

    pub fn page_checksums(&self) -> &[u32] {
        let end = (self.checksum_at + self.pages() as usize).min(self.checksums.len());
        &self.checksums[self.checksum_at.min(end)..end]
    }
}

/// The region that a stream appends to.
#[derive(Debug)]
pub(super) struct Open {
    pub region: u32,
    pub generation: u32,
    /// Where the next batch begins.
    pub page: u32,
    pub chain: u64,
    /// Batches that are not done.
    pub batches: u32,
    /// A batch failed: nothing more may be appended, nor the region be sealed.
    pub broken: bool,
}

/// Appending to one of the queues.
#[derive(Debug)]
pub(super) struct Stream {
    /// A batch closes when it is so long.
    batch_bytes: usize,
    pub staged: Vec<Part>,
    pub staged_pages: u64,
    pub oldest: Option<Time>,
    pub open: Option<Open>,
    /// The region after it: opened ahead, so that appending does not wait for its header.
    pub next: Option<Open>,
    /// A region's header is on its way to stable media.
    pub opening: bool,
    /// Full regions whose batches are not all done.
    pub sealing: Vec<Open>,
    /// Close what is staged without waiting for more.
    pub hurry: bool,
    /// Somebody waits for what is staged: close it by then.
    close_by: Option<Time>,
}

impl Stream {
    /// Both streams, for writes that may hold so many bytes in all.
    pub fn both(write_bytes_max: usize) -> [Stream; 2] {
        let batch_bytes = (write_bytes_max / 4).clamp(PAGE_BYTES, BATCH_BYTES_MAX);
        [(), ()].map(|()| Stream {
            batch_bytes,
            staged: Vec::new(),
            staged_pages: 0,
            oldest: None,
            open: None,
            next: None,
            opening: false,
            sealing: Vec::new(),
            hurry: false,
            close_by: None,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.sealing.is_empty()
    }

    pub fn stage(&mut self, now: Time, part: Part) {
        if self.staged.is_empty() {
            self.close_by = None;
        }
        self.staged_pages += u64::from(part.pages());
        self.oldest.get_or_insert(now);
        self.staged.push(part);
    }

    /// Takes out the parts that `gone` says so of.
    pub fn unstage(&mut self, mut gone: impl FnMut(&Part) -> bool) {
        self.staged.retain(|part| !gone(part));
        self.staged_pages = self.staged.iter().map(|part| u64::from(part.pages())).sum();
        if self.staged.is_empty() {
            self.oldest = None;
        }
    }

    /// Whether as much is staged as one batch takes.
    pub fn has_batch(&self) -> bool {
        self.staged_pages * PAGE_BYTES as u64 >= self.batch_bytes as u64
            || self.staged.len() >= BATCH_ENTRIES_MAX
    }

    pub fn is_due(&self, now: Time, settling: bool) -> bool {
        let full = self.has_batch();
        !self.staged.is_empty() && (full || settling || self.hurry || self.closes_at() <= now)
    }

    pub fn closes_at(&self) -> Time {
        let Some(oldest) = self.oldest else {
            return Time::NEVER;
        };
        // Not while there is no region to write to: being due would count as being stuck.
        let has_region = self.open.is_some() || self.next.is_some();
        let awaited = self.close_by.filter(|_| has_region).unwrap_or(Time::NEVER);
        (oldest + Duration::from_millis(BATCH_DELAY_MS)).min(awaited)
    }

    /// Closes what is staged at `by` at the latest.
    pub fn close_by(&mut self, by: Time) {
        if !self.staged.is_empty() {
            self.close_by = Some(self.close_by.map_or(by, |sooner| sooner.min(by)));
        }
    }

    /// The open region of this number, whether it is still appended to or not.
    pub fn find(&mut self, region: u32) -> Option<&mut Open> {
        self.open
            .iter_mut()
            .chain(&mut self.sealing)
            .find(|open| open.region == region)
    }
}

/// Whether `part` goes on where `last` ends, in one entry.
pub(super) fn continues(last: &Part, part: &Part) -> bool {
    last.block == part.block
        && last.from == part.from
        && last.first_page + last.pages() == part.first_page
        && last.bytes.len().is_multiple_of(PAGE_BYTES)
}
