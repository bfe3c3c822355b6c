//! What the logs of one core share: the index, the ghosts, the checksum pool, what is to be told.

use std::collections::{BTreeSet, VecDeque};

use super::ghosts::Ghosts;
use super::index::{DiskIndex, Extent, Place};
use super::layout::Queue;
use super::policy::{self, Heat};
use super::tables::{TableKey, Tables};
use super::{DiskConfig, DiskEvent};
use crate::identity::BlockId;
use crate::limits::{DEVICES_MAX, PAGE_BYTES};

/// When the index has no room for what recovery finds, one part in this many of it is cleared at a time: each time
/// the whole index is looked through.
const ROOM_SHARE: usize = 8;

/// Checksums in a page of a checksum table.
pub(super) const CHECKSUMS_PER_PAGE: usize = PAGE_BYTES / 4;

/// Entries of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    pub entries: u64,
    pub pages: u64,
    pub pinned: u64,
    pub pinned_pages: u64,
}

/// A region that recovery took entries from.
#[derive(Clone, Copy, Debug)]
struct Recovered {
    device: u8,
    region: u32,
    /// So many, or fewer since.
    entries: usize,
}

/// What the index's entries add up to.
#[derive(Debug)]
struct Books {
    live: [Live; DEVICES_MAX],
    /// How warm each region of each device is.
    heat: Vec<Vec<Heat>>,
    /// Regions of each device in which nothing lives any more since somebody looked.
    emptied: Vec<BTreeSet<u32>>,
}

#[derive(Debug)]
pub(super) struct Tier {
    pub config: DiskConfig,
    pub index: DiskIndex,
    pub ghosts: Ghosts,
    pub tables: Tables,
    pub events: VecDeque<DiskEvent>,
    /// Something was evicted: from now on the small queue keeps to its share.
    pub has_evicted: bool,
    /// Bytes that staged and running writes of fills hold.
    pub writing_bytes: usize,
    /// Extents that were ever put in.
    pub insertions: u64,
    books: Books,
    /// Regions that recovery took entries from, by queue, oldest first.
    recovered: [VecDeque<Recovered>; 2],
    /// Devices that are being recovered.
    recovering: usize,
}

impl Tier {
    pub fn new(config: DiskConfig) -> Self {
        Self {
            index: DiskIndex::new(config.entries_max),
            ghosts: Ghosts::new(config.entries_max),
            tables: Tables::new(config.tables_bytes_max),
            events: VecDeque::new(),
            has_evicted: false,
            writing_bytes: 0,
            insertions: 0,
            books: Books {
                live: [Live::default(); DEVICES_MAX],
                heat: Vec::new(),
                emptied: Vec::new(),
            },
            recovered: Default::default(),
            recovering: 0,
            config,
        }
    }

    pub fn live(&self, device: u8) -> Live {
        self.books.live[usize::from(device) % DEVICES_MAX]
    }

    /// One more device, of so many regions.
    pub fn add_device(&mut self, regions: u32) {
        let heat = vec![Heat::default(); regions as usize];
        self.books.heat.push(heat);
        self.books.emptied.push(BTreeSet::new());
        self.recovering += 1;
    }

    pub fn heat(&self, device: u8, region: u32) -> Heat {
        let regions = self.books.heat.get(usize::from(device));
        regions
            .and_then(|regions| regions.get(region as usize))
            .copied()
            .unwrap_or_default()
    }

    /// The region's heat, for changing it. Nothing known of it: none.
    pub fn heat_mut(&mut self, device: u8, region: u32) -> Option<&mut Heat> {
        self.books
            .heat
            .get_mut(usize::from(device))?
            .get_mut(region as usize)
    }

    /// Regions of a device in which nothing lives any more, as far as this core knows, since this was asked last.
    pub fn take_emptied(&mut self, device: u8) -> BTreeSet<u32> {
        let emptied = self.books.emptied.get_mut(usize::from(device));
        emptied.map(std::mem::take).unwrap_or_default()
    }

    /// The entry was read again.
    pub fn hit(&mut self, extent: &Extent) {
        let (device, region) = (extent.place.device(), extent.place.region());
        let Some(heat) = self.heat_mut(device, region) else {
            return;
        };
        if extent.stamp != heat.stamp {
            heat.hot_pages += u32::from(extent.pages);
            let stamp = heat.stamp;
            self.index
                .set_stamp(extent.block, extent.first_page, extent.place, stamp);
        }
    }

    /// Whether it was hit since its region was last looked at.
    pub fn is_hot(&self, extent: &Extent) -> bool {
        let heat = self.heat(extent.place.device(), extent.place.region());
        extent.stamp == heat.stamp
    }

    /// Puts an extent in, not hit; what it covers goes. False when the index is full.
    pub fn insert(&mut self, mut extent: Extent) -> bool {
        extent.stamp = 0;
        let books = &mut self.books;
        let inserted = self.index.insert(extent, &mut |gone| books.subtract(&gone));
        if inserted {
            self.insertions += 1;
            let account = &mut self.books.live[usize::from(extent.place.device()) % DEVICES_MAX];
            account.entries += 1;
            account.pages += u64::from(extent.pages);
            if extent.pinned {
                self.count_pinned(&extent, true);
            }
            if let Some(heat) = self.heat_mut(extent.place.device(), extent.place.region()) {
                heat.live_pages += u32::from(extent.pages);
                heat.taken_pages += u32::from(extent.pages);
            }
        }
        inserted
    }

    pub fn remove(&mut self, block: BlockId, first_page: u16, place: Place) -> Option<Extent> {
        let gone = self.index.remove(block, first_page, place)?;
        self.books.subtract(&gone);
        Some(gone)
    }

    /// Books an extent as pinned, or not any more.
    pub fn count_pinned(&mut self, extent: &Extent, pinned: bool) {
        let account = &mut self.books.live[usize::from(extent.place.device()) % DEVICES_MAX];
        let pages = u64::from(extent.pages);
        if pinned {
            account.pinned += 1;
            account.pinned_pages += pages;
        } else {
            account.pinned = account.pinned.saturating_sub(1);
            account.pinned_pages = account.pinned_pages.saturating_sub(pages);
        }
    }

    pub fn remove_block(&mut self, block: BlockId) {
        let books = &mut self.books;
        self.index
            .remove_block(block, &mut |gone| books.subtract(&gone));
    }

    pub fn remove_where(&mut self, pred: impl Fn(&Extent) -> bool) {
        let books = &mut self.books;
        self.index
            .remove_where(pred, &mut |gone| books.subtract(&gone));
    }

    /// Recovery takes so many entries in from a region.
    pub fn recovers(&mut self, queue: Queue, (device, region): (u8, u32), entries: usize) {
        self.recovered[queue as usize].push_back(Recovered {
            device,
            region,
            entries,
        });
    }

    /// Forgets entries that recovery took in, whole regions in the order in which reclaim would empty them, but for
    /// what is pinned: at least one part in eight of the index, if there is as much. What went.
    pub fn make_room(&mut self) -> Live {
        let wanted = (self.index.capacity() / ROOM_SHARE).max(1);
        let mut sum = Live::default();
        while (sum.entries as usize) < wanted {
            let mut gone = BTreeSet::new();
            let mut entries = sum.entries as usize;
            while entries < wanted
                && let Some(next) = self.next_recovered()
            {
                gone.insert((next.device, next.region));
                entries += next.entries;
            }
            if gone.is_empty() {
                break;
            }
            self.has_evicted = true;
            let (books, ghosts) = (&mut self.books, &mut self.ghosts);
            self.index.remove_where(
                |extent| {
                    let place = (extent.place.device(), extent.place.region());
                    !extent.pinned && gone.contains(&place)
                },
                &mut |extent| {
                    sum.entries += 1;
                    sum.pages += u64::from(extent.pages);
                    books.subtract(&extent);
                    ghosts.remember(extent.block);
                },
            );
        }
        sum
    }

    /// The region that reclaim would empty next if there were no others than these.
    fn next_recovered(&mut self) -> Option<Recovered> {
        let [small, main] = &self.recovered;
        let (small, main) = (small.len(), main.len());
        let first = policy::reclaim_first(small, main, small + main, false);
        let [small, main] = &mut self.recovered;
        match first {
            Queue::Small => small.pop_front().or_else(|| main.pop_front()),
            Queue::Main => main.pop_front().or_else(|| small.pop_front()),
        }
    }

    /// Recovery of one more device is over, in one way or another.
    pub fn recovery_ended(&mut self) {
        self.recovering = self.recovering.saturating_sub(1);
        if self.recovering == 0 {
            self.recovered = Default::default();
        }
    }

    /// As many entries as the index may hold.
    pub fn is_full(&self) -> bool {
        self.index.len() >= self.config.entries_max
    }

    /// Nearly as many entries as the index may hold: reclaim before more come.
    pub fn is_crowded(&self) -> bool {
        self.index.len() >= self.config.entries_max - self.config.entries_max / 16
    }

    /// Puts a region's checksums into the pool.
    pub fn seed_tables(&mut self, device: u8, region: u32, generation: u32, checksums: &[u32]) {
        for (page, piece) in checksums.chunks(CHECKSUMS_PER_PAGE).enumerate() {
            let mut table = vec![0; CHECKSUMS_PER_PAGE];
            table[..piece.len()].copy_from_slice(piece);
            let key = TableKey {
                device,
                region,
                generation,
                page: page as u16,
            };
            self.tables.insert(key, table.into_boxed_slice());
        }
    }

    pub fn index_bytes(&self) -> u64 {
        (self.index.memory_bytes() + self.ghosts.memory_bytes()) as u64
    }
}

impl Books {
    /// An entry is not in the index any more.
    fn subtract(&mut self, gone: &Extent) {
        let (device, region) = (usize::from(gone.place.device()), gone.place.region());
        let account = &mut self.live[device % DEVICES_MAX];
        account.entries = account.entries.saturating_sub(1);
        account.pages = account.pages.saturating_sub(u64::from(gone.pages));
        if gone.pinned {
            account.pinned = account.pinned.saturating_sub(1);
            account.pinned_pages = account.pinned_pages.saturating_sub(u64::from(gone.pages));
        }
        let heat = self.heat.get_mut(device);
        if let Some(heat) = heat.and_then(|all| all.get_mut(region as usize)) {
            let pages = u32::from(gone.pages);
            heat.live_pages = heat.live_pages.saturating_sub(pages);
            if gone.stamp == heat.stamp {
                heat.hot_pages = heat.hot_pages.saturating_sub(pages);
            }
            if heat.live_pages == 0
                && let Some(emptied) = self.emptied.get_mut(device)
            {
                emptied.insert(region);
            }
        }
    }
}
