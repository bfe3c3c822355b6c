//! The plain model: which pages were kept, which must be found, and what is wrong with an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_engine::disk::{DiskEvent, DiskMiss};
use forebay_engine::identity::BlockId;
use forebay_engine::limits::PAGE_BYTES;

use super::media::PageName;
use super::universe::Universe;

/// What is known of one page of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Page {
    /// It was kept at some time, in this life or before: it may be found.
    ever: bool,
    /// A `Settled` event is due.
    pending: bool,
    /// It was forgotten in this life and not kept since: it must not be found.
    forgotten: bool,
    /// It is on disk: it must be found, but for reclaim.
    expected: bool,
}

/// A read on its way.
#[derive(Clone, Debug)]
struct Asked {
    block: BlockId,
    pages: Range<u32>,
    /// The block was forgotten meanwhile.
    forgotten: bool,
}

/// What a run has come to; shown, and asserted on so that no test proves nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes that were taken to be kept.
    pub kept_bytes: u64,
    /// Bytes that were not.
    pub refused_bytes: u64,
    /// Reads that brought right bytes.
    pub hits: u64,
    /// Reads that brought nothing: reclaimed, failed their checksum, failed by the device, slow.
    pub misses: [u64; 4],
    /// Pages that were settled and are not found any more.
    pub lost_pages: u64,
    /// Entries found by recoveries.
    pub recovered_pages: u64,
}

/// The model.
#[derive(Debug)]
pub struct Model {
    /// Which blocks there are.
    pub universe: Universe,
    pages: BTreeMap<BlockId, Vec<Page>>,
    /// Pinned blocks, and which of their pages were on disk then.
    pinned: BTreeMap<BlockId, BTreeSet<u32>>,
    asked: BTreeMap<u64, Asked>,
    tickets: u64,
    /// Devices are at fault: reads may miss for it.
    pub faulty: bool,
    /// The number of cores has changed: entries lie in regions of other cores.
    pub rehomed: bool,
    /// Pages that regions of other cores than their own hold.
    foreign: BTreeSet<PageName>,
    /// Bytes that were settled in this life and are not found any more.
    pub lost_bytes: u64,
    /// Bytes that were refused in this life.
    pub refused_bytes: u64,
    /// Counts over all lives.
    pub tally: Tally,
}

impl Model {
    /// Nothing kept yet.
    pub fn new(universe: Universe) -> Self {
        let pages = universe.blocks().map(|(block, _)| {
            let pages = universe.pages(block) as usize;
            (block, vec![Page::default(); pages])
        });
        Self {
            pages: pages.collect(),
            universe,
            pinned: BTreeMap::new(),
            asked: BTreeMap::new(),
            tickets: 0,
            faulty: false,
            rehomed: false,
            foreign: BTreeSet::new(),
            lost_bytes: 0,
            refused_bytes: 0,
            tally: Tally::default(),
        }
    }

    fn range(&mut self, block: BlockId, pages: Range<u32>) -> &mut [Page] {
        let all = self.pages.get_mut(&block).map_or(&mut [][..], |all| all);
        let end = all.len().min(pages.end as usize);
        &mut all[(pages.start as usize).min(end)..end]
    }

    fn page(&self, (block, page): PageName) -> Page {
        let pages = self.pages.get(&block);
        pages
            .and_then(|pages| pages.get(page as usize))
            .copied()
            .unwrap_or_default()
    }

    /// The disk tier took pages, or refused them.
    pub fn handed_in(&mut self, block: BlockId, pages: Range<u32>, taken: bool) {
        let bytes = self.universe.bytes_of(block, pages.clone()) as u64;
        if !taken {
            self.refused_bytes += bytes;
            self.tally.refused_bytes += bytes;
            return;
        }
        self.tally.kept_bytes += bytes;
        // What replaces a pinned entry is pinned by whoever pins it again.
        self.pinned.remove(&block);
        for page in pages.clone() {
            self.foreign.remove(&(block, page));
        }
        for page in self.range(block, pages) {
            page.ever = true;
            page.pending = true;
            page.forgotten = false;
        }
    }

    /// Whether any of these pages is on disk or on its way there.
    pub fn holds_any(&self, block: BlockId, mut pages: Range<u32>) -> bool {
        pages.any(|number| {
            let page = self.page((block, number));
            page.expected || page.pending
        })
    }

    /// A block was forgotten.
    pub fn forgotten(&mut self, block: BlockId) {
        for page in self.range(block, 0..u32::MAX) {
            page.expected = false;
            page.forgotten = true;
        }
        for asked in self.asked.values_mut() {
            asked.forgotten |= asked.block == block;
        }
        self.pinned.remove(&block);
    }

    /// A block was pinned, with these pages on disk.
    pub fn pinned(&mut self, block: BlockId, pages: BTreeSet<u32>) {
        self.pinned.insert(block, pages);
    }

    /// A block was unpinned.
    pub fn unpinned(&mut self, block: BlockId) {
        self.pinned.remove(&block);
    }

    /// Blocks that are pinned.
    pub fn pinned_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.pinned.keys().copied()
    }

    /// Whether a page must never be lost.
    pub fn is_pinned(&self, (block, page): PageName) -> bool {
        let pages = self.pinned.get(&block);
        pages.is_some_and(|pages| pages.contains(&page))
    }

    /// Bytes of pinned blocks.
    pub fn pinned_bytes(&self) -> u64 {
        let lengths = self
            .pinned
            .keys()
            .map(|block| self.universe.len_bytes(*block));
        lengths.map(u64::from).sum()
    }

    /// A read begins; its ticket.
    pub fn ask(&mut self, block: BlockId, pages: Range<u32>) -> u64 {
        self.tickets += 1;
        let asked = Asked {
            block,
            pages,
            forgotten: false,
        };
        self.asked.insert(self.tickets, asked);
        self.tickets
    }

    /// A read was not taken.
    pub fn withdraw(&mut self, ticket: u64) {
        self.asked.remove(&ticket);
    }

    /// Reads without an answer.
    pub fn open_reads(&self) -> usize {
        self.asked.len()
    }

    /// Judges what the disk tier told.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn judge(&mut self, event: DiskEvent) -> Result<(), String> {
        match event {
            DiskEvent::Read {
                ticket,
                lease,
                checksums,
            } => {
                let asked = self.answered(ticket)?;
                let Asked { block, pages, .. } = asked;
                if lease.len() != (pages.end - pages.start) as usize * PAGE_BYTES {
                    return Err(format!("read {ticket} got {} bytes", lease.len()));
                }
                self.universe
                    .check(block, pages.start, lease.bytes())
                    .map_err(|wrong| format!("read {ticket} got a {wrong}"))?;
                if checksums[..] != self.universe.checksums(block, pages)[..] {
                    return Err(format!("read {ticket} of {block:?} got wrong checksums"));
                }
                self.tally.hits += 1;
                Ok(())
            }
            DiskEvent::Missed { ticket, why } => {
                let asked = self.answered(ticket)?;
                self.tally.misses[why as usize] += 1;
                match why {
                    DiskMiss::Reclaimed => {}
                    _ if self.faulty => {
                        for page in self.range(asked.block, asked.pages) {
                            page.expected = false;
                        }
                    }
                    why => return Err(format!("{asked:?} missed by {why:?} without a fault")),
                }
                Ok(())
            }
            DiskEvent::Settled {
                block,
                first_page,
                pages,
            } => self.settled(block, first_page..first_page + pages),
        }
    }

    fn answered(&mut self, ticket: u64) -> Result<Asked, String> {
        self.asked
            .remove(&ticket)
            .ok_or_else(|| format!("read {ticket} was answered twice, or never asked"))
    }

    fn settled(&mut self, block: BlockId, pages: Range<u32>) -> Result<(), String> {
        let count = (pages.end - pages.start) as usize;
        let range = self.range(block, pages.clone());
        if range.len() != count || range.iter().any(|page| !page.ever) {
            return Err(format!("pages {pages:?} of {block:?} settled, never kept"));
        }
        for page in range {
            page.expected = !page.forgotten;
            page.pending = false;
        }
        Ok(())
    }

    /// Pages whose `Settled` event has not come.
    pub fn pending_pages(&self) -> usize {
        let pages = self.pages.values().flatten();
        pages.filter(|page| page.pending).count()
    }

    /// Why a page must not be found, when it must not.
    pub fn objection(&self, page: PageName) -> Option<&'static str> {
        let page = self.page(page);
        match (page.ever, page.forgotten) {
            (false, _) => Some("was never kept"),
            (true, true) => Some("was forgotten"),
            (true, false) => None,
        }
    }

    /// All pages that must be found, but for reclaim.
    pub fn expected(&self) -> impl Iterator<Item = PageName> {
        self.pages.iter().flat_map(|(block, pages)| {
            let numbered = pages.iter().zip(0..);
            numbered
                .filter(|(page, _)| page.expected)
                .map(|(_, number)| (*block, number))
        })
    }

    /// These pages are gone: counts them, expects them no more.
    pub fn lose(&mut self, lost: &[PageName]) {
        for (block, page) in lost {
            let bytes = self.universe.bytes_of(*block, *page..page + 1) as u64;
            self.lost_bytes += bytes;
            self.tally.lost_pages += 1;
            for page in self.range(*block, *page..page + 1) {
                page.expected = false;
            }
        }
    }

    /// Whether a page lies in another core's region.
    pub fn is_foreign(&self, page: PageName) -> bool {
        self.foreign.contains(&page)
    }

    /// These pages are gone, as they may: expects them no more.
    pub fn lose_uncounted(&mut self, lost: &[PageName]) {
        for (block, page) in lost {
            self.tally.lost_pages += 1;
            for page in self.range(*block, *page..page + 1) {
                page.expected = false;
            }
        }
    }

    /// A new process has found these pages, `foreign` ones in other cores' regions.
    pub fn new_life(&mut self, found: &BTreeSet<PageName>, foreign: BTreeSet<PageName>) {
        self.foreign = foreign;
        self.asked.clear();
        self.lost_bytes = 0;
        self.refused_bytes = 0;
        self.tally.recovered_pages += found.len() as u64;
        for (block, pages) in &mut self.pages {
            for (page, number) in pages.iter_mut().zip(0..) {
                page.pending = false;
                page.forgotten = false;
                page.expected = found.contains(&(*block, number));
            }
        }
    }
}
