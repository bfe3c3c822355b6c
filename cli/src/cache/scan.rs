//! Reads a log region by region, for tools: one region in memory at a time, no index.

use anyhow::Result;
use forebay_engine::checksum::BlockSeed;
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::{
    BatchHeader, EntryRecord, LogId, RegionHeader, Trailer, VoidHeader, decode_checksums,
    decode_entries,
};
use forebay_engine::disk::walk::Walk;
use forebay_engine::limits::{CHUNK_BYTES, PAGE_BYTES};
use forebay_engine::ports::BlockDevice;

use super::blocking::{Blocking, in_words};

/// Pages read at a time while entries are checked.
const WINDOW_PAGES: u32 = (8 * CHUNK_BYTES / PAGE_BYTES) as u32;
/// The smallest part of a page that a device writes.
const SECTOR_BYTES: usize = 512;

/// What a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Full, with a footer.
    Sealed,
    /// Without a footer: being filled, or left so by a crash.
    Open,
    /// Holds nothing of this log.
    Free,
    /// It was being opened when the daemon or the machine stopped: its header is written in part, and
    /// nothing behind it.
    Unfinished,
    /// Its header is not what was written: what lay in it is lost.
    Damaged,
    /// Its header cannot be read.
    Unreadable,
}

impl State {
    /// The name that users see.
    pub fn name(self) -> &'static str {
        match self {
            State::Sealed => "sealed",
            State::Open => "open",
            State::Free => "free",
            State::Unfinished => "unfinished",
            State::Damaged => "damaged",
            State::Unreadable => "unreadable",
        }
    }
}

/// One region, as its own structures describe it.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its number.
    pub number: u32,
    /// What it is.
    pub state: State,
    /// Its header, when it has a whole one.
    pub header: Option<RegionHeader>,
    /// Its entries, by page. Some may have been replaced since by others in younger regions.
    pub entries: Vec<EntryRecord>,
    /// Checksum of each page from the region's first on; empty unless asked for.
    pub checksums: Vec<u32>,
    /// What is wrong with its structures.
    pub troubles: Vec<String>,
}

impl Region {
    fn without_header(number: u32, state: State) -> Self {
        Self {
            number,
            state,
            header: None,
            entries: Vec::new(),
            checksums: Vec::new(),
            troubles: Vec::new(),
        }
    }

    /// Bytes of its entries.
    pub fn entry_bytes(&self) -> u64 {
        let bytes = self.entries.iter().map(|entry| u64::from(entry.len_bytes));
        bytes.sum()
    }
}

/// What checking one entry came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Pages that were looked at.
    pub pages: u64,
    /// Pages that are not what was written.
    pub wrong: u64,
    /// Pages that the device could not read.
    pub unreadable: u64,
}

impl Checked {
    /// Whether any page is bad.
    pub fn is_bad(&self) -> bool {
        self.wrong + self.unreadable > 0
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Checked) {
        self.pages += other.pages;
        self.wrong += other.wrong;
        self.unreadable += other.unreadable;
    }
}

/// Reads regions of one log.
#[derive(Debug)]
pub struct Scanner<D> {
    device: Blocking<D>,
    log: LogId,
    geometry: Geometry,
    /// Regions that were never written may hold anything: a block device's, not a file's.
    is_used: bool,
}

impl<D: BlockDevice> Scanner<D> {
    /// Of the log on `device`; `is_used` when it may have held something else before.
    pub fn new(device: Blocking<D>, log: LogId, geometry: Geometry, is_used: bool) -> Self {
        Self {
            device,
            log,
            geometry,
            is_used,
        }
    }

    /// Where the regions are.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn pages(&mut self, region: u32, page: u32, pages: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; pages as usize * PAGE_BYTES];
        let offset = self.geometry.offset_bytes(region) + u64::from(page) * PAGE_BYTES as u64;
        self.device.read(offset, &mut bytes).map_err(in_words)?;
        Ok(bytes)
    }

    /// Region `number`; `with_checksums` for [`Scanner::check`].
    pub fn region(&mut self, number: u32, with_checksums: bool) -> Region {
        let page = match self.pages(number, 0, 1) {
            Ok(page) => page,
            Err(error) => {
                let mut region = Region::without_header(number, State::Unreadable);
                region.troubles.push(format!("header: {error:#}"));
                return region;
            }
        };
        let header = RegionHeader::decode(self.log, &page).filter(|header| header.region == number);
        let Some(header) = header else {
            return self.without_header(number, &page);
        };
        let mut region = Region {
            header: Some(header),
            ..Region::without_header(number, State::Open)
        };
        if !self.footer(&header, with_checksums, &mut region) {
            region.entries.clear();
            self.walk(&header, with_checksums, &mut region);
        }
        region
    }

    /// A region whose header is none.
    fn without_header(&mut self, number: u32, page: &[u8]) -> Region {
        let behind = self.behind(number);
        let mut region = Region::without_header(number, no_header(self.log, number, page, &behind));
        if region.state == State::Damaged {
            let trouble = "its header is damaged: what lay in it is lost, and comes from S3 again";
            region.troubles.push(trouble.into());
        }
        region
    }

    fn behind(&mut self, number: u32) -> Behind {
        let batch = self.first_batch(number);
        let batch = batch.filter(|batch| batch.region == number);
        let page = self.pages(number, self.geometry.trailer_page(), 1).ok();
        let trailer = page.and_then(|page| Trailer::decode(self.log, &page));
        let trailer = trailer.filter(|trailer| trailer.region == number);
        let generation = batch.as_ref().map(|batch| batch.generation);
        Behind {
            generation: generation.max(trailer.map(|trailer| trailer.generation)),
            chain: batch.map(|batch| batch.chain),
            torn: self.device.geometry().sector_bytes < PAGE_BYTES as u32,
            is_used: self.is_used,
        }
    }

    /// Reads the footer. False when there is none that can be used.
    fn footer(&mut self, header: &RegionHeader, with_checksums: bool, region: &mut Region) -> bool {
        let page = match self.pages(region.number, self.geometry.trailer_page(), 1) {
            Ok(page) => page,
            Err(error) => {
                region.troubles.push(format!("footer: {error:#}"));
                return false;
            }
        };
        let trailer = Trailer::decode(self.log, &page).filter(|trailer| {
            trailer.is_of(header) && trailer.entries > 0 && trailer.fits(&self.geometry)
        });
        let Some(trailer) = trailer else {
            return false;
        };
        let entries = trailer.entries as usize;
        let table_pages = Trailer::entry_table_pages(entries) as u32;
        let table = self.pages(region.number, trailer.entry_table_page, table_pages);
        let table = table.ok().filter(|table| trailer.holds_entries(table));
        let records = table.and_then(|table| decode_entries(&table, entries, &self.geometry));
        let Some(records) = records else {
            region
                .troubles
                .push("the entry table of its footer is damaged".into());
            return false;
        };
        region.entries = records;
        region.state = State::Sealed;
        if with_checksums {
            self.checksum_table(&trailer, region);
        }
        true
    }

    fn checksum_table(&mut self, trailer: &Trailer, region: &mut Region) {
        let (first, pages) = (
            self.geometry.checksum_table_page(),
            self.geometry.checksum_table_pages(),
        );
        match self.pages(region.number, first, pages) {
            Ok(table) => {
                if !trailer.holds_checksums(&table) {
                    region
                        .troubles
                        .push("the checksum table of its footer is damaged".into());
                }
                region.checksums = decode_checksums(&table).into_vec();
            }
            Err(error) => region.troubles.push(format!("checksum table: {error:#}")),
        }
    }

    /// Goes from batch header to batch header.
    fn walk(&mut self, header: &RegionHeader, with_checksums: bool, region: &mut Region) {
        let mut walk = Walk::new(self.log, self.geometry, *header);
        while let Some((page, pages)) = walk.needs() {
            let bytes = self.pages(region.number, page, pages);
            walk.take(&bytes.unwrap_or_default());
        }
        region
            .troubles
            .extend(walk.damaged().iter().map(|page| {
                format!(
                    "the batch at page {page} has a damaged header, or one that was being written when the machine \
                     stopped: what lay in it is lost, and comes from S3 again"
                )
            }));
        let (entries, checksums) = walk.into_parts();
        region.entries = entries;
        if with_checksums {
            region.checksums = checksums;
        }
    }

    /// The first batch of a region.
    fn first_batch(&mut self, region: u32) -> Option<BatchHeader> {
        let first = self.pages(region, 1, 1).ok()?;
        let header_pages = BatchHeader::peek(self.log, &first)?.header_pages as u32;
        let bytes = match header_pages {
            1 => first,
            _ if 1 + header_pages > self.geometry.checksum_table_page() => return None,
            _ => self.pages(region, 1, header_pages).ok()?,
        };
        BatchHeader::decode(self.log, &bytes)
    }

    /// Reads every page of every entry of `region`, which was read with its checksums, and tells how
    /// each entry fared, in order.
    pub fn check(&mut self, region: &Region, mut told: impl FnMut(&EntryRecord, Checked)) {
        let mut window = Window::default();
        for entry in &region.entries {
            let seed = BlockSeed::of(entry.block);
            let mut checked = Checked::default();
            for n in 0..entry.pages() {
                let page = entry.region_page + n;
                let len = (entry.len_bytes as usize - n as usize * PAGE_BYTES).min(PAGE_BYTES);
                checked.pages += 1;
                let known = region.checksums.get(page as usize);
                match (self.page_of(&mut window, region, page), known) {
                    (None, _) => checked.unreadable += 1,
                    (Some(bytes), Some(known)) => {
                        let number = u32::from(entry.first_page) + n;
                        let right = seed.checksum(number, &bytes[..len]) == *known;
                        checked.wrong += u64::from(!right);
                    }
                    // Its checksum is not known: it cannot be told from a wrong one.
                    (Some(_), None) => checked.wrong += 1,
                }
            }
            told(entry, checked);
        }
    }

    /// One page, from a window of many that was read at once; alone where the window cannot be read.
    fn page_of<'w>(
        &mut self,
        window: &'w mut Window,
        region: &Region,
        page: u32,
    ) -> Option<&'w [u8]> {
        if !window.pages().contains(&page) {
            let last = region.entries.last()?;
            let mut end = (last.region_page + last.pages()).min(page + WINDOW_PAGES);
            if page < window.narrow_until {
                end = page + 1;
            }
            window.first = page;
            window.bytes = match self.pages(region.number, page, end - page) {
                Ok(bytes) => bytes,
                Err(_) => {
                    window.narrow_until = window.narrow_until.max(end);
                    self.pages(region.number, page, 1).unwrap_or_default()
                }
            };
        }
        let at = page.checked_sub(window.first)? as usize * PAGE_BYTES;
        window.bytes.get(at..at + PAGE_BYTES)
    }
}

/// What lies behind a header that is none.
#[derive(Clone, Copy, Debug, Default)]
struct Behind {
    /// The youngest generation of the region that its first batch or its footer tells of.
    generation: Option<u32>,
    /// The first batch's: the hash of the header.
    chain: Option<u64>,
    /// The device may write a part of a page.
    torn: bool,
    /// It may have held something else before.
    is_used: bool,
}

/// What region `number` of `log` is whose first page holds no header of it.
fn no_header(log: LogId, number: u32, page: &[u8], behind: &Behind) -> State {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if is_zero(page) {
        return State::Free;
    }
    if behind.torn && is_zero(&page[..page.len() - SECTOR_BYTES]) {
        // The end of a header, or what is left of one that was being voided.
        return State::Unfinished;
    }
    let void = VoidHeader::fields(log, page).filter(|void| void.region == number);
    if let Some(void) = void {
        // What lies behind is void either way; its end may still be that of the header before.
        return match VoidHeader::decode(log, page) == Some(void) {
            true => State::Free,
            false if behind.torn => State::Unfinished,
            false => State::Damaged,
        };
    }
    let fields = RegionHeader::fields(log, page).filter(|header| header.region == number);
    if let Some(header) = fields {
        // Nothing was appended yet; or its end alone is another's: it was being replaced or voided, when nothing in
        // the region was needed any more.
        let is_young = behind
            .generation
            .is_none_or(|known| known < header.generation);
        let is_whole = behind.torn && behind.chain == Some(header.chain(log));
        return match is_young || is_whole {
            true => State::Unfinished,
            false => State::Damaged,
        };
    }
    let never_ours = behind.is_used && behind.generation.is_none();
    match never_ours || RegionHeader::is_of_another(log, page) {
        true => State::Free,
        false => State::Damaged,
    }
}

/// Pages that were read at once.
#[derive(Debug, Default)]
struct Window {
    first: u32,
    bytes: Vec<u8>,
    /// Pages before this are read one by one: some of them cannot be read.
    narrow_until: u32,
}

impl Window {
    fn pages(&self) -> std::ops::Range<u32> {
        self.first..self.first + (self.bytes.len() / PAGE_BYTES) as u32
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::disk::layout::Queue;

    use super::*;

    const LOG: LogId = LogId(7);

    fn header(generation: u32, sequence: u64) -> RegionHeader {
        RegionHeader {
            region: 3,
            generation,
            sequence,
            queue: Queue::Small,
            core: 0,
            cores: 1,
            tenant: 0,
        }
    }

    fn page(header: &RegionHeader) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        header.encode(LOG, &mut page);
        page
    }

    fn void_page(generation: u32) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        let region = 3;
        VoidHeader { region, generation }.encode(LOG, &mut page);
        page
    }

    #[test]
    fn an_emptied_region_is_free() {
        let page = void_page(4);
        assert_eq!(told(&page, &old(false)), State::Free);
        let mut damaged = page;
        damaged[36] ^= 1;
        assert_eq!(told(&damaged, &old(false)), State::Damaged);
    }

    /// What lies behind an old header of generation 4.
    fn old(torn: bool) -> Behind {
        Behind {
            generation: Some(4),
            chain: Some(header(4, 9).chain(LOG)),
            torn,
            is_used: false,
        }
    }

    fn told(page: &[u8], behind: &Behind) -> State {
        assert_eq!(RegionHeader::decode(LOG, page), None);
        no_header(LOG, 3, page, behind)
    }

    #[test]
    fn a_flipped_bit_is_damage_and_says_so() {
        let whole = page(&header(4, 9));
        for at in (0..64).chain([600, 2048, 4000]) {
            let mut page = whole.clone();
            page[at] ^= 4;
            // A younger generation than what lies behind is the same as a header of which the end is missing.
            let grown = (37..40).contains(&at);
            for torn in [false, true] {
                let state = told(&page, &old(torn));
                assert_eq!(state == State::Damaged, !grown, "byte {at}: {state:?}");
            }
        }
        let mut page = whole.clone();
        page[4095] ^= 1;
        assert_eq!(told(&page, &old(false)), State::Damaged);
        let garbage = vec![0x5a; PAGE_BYTES];
        assert_eq!(told(&garbage, &Behind::default()), State::Damaged);
    }

    /// Every cut of a write over what may lie there, at every sector.
    #[test]
    fn half_a_header_is_one_that_was_being_written() {
        let (before, after) = (page(&header(4, 9)), page(&header(5, 22)));
        let zeros = vec![0; PAGE_BYTES];
        let none = Behind {
            torn: true,
            ..Behind::default()
        };
        let void = void_page(4);
        for (from, to, behind) in [
            (&before, &void, old(true)),
            (&void, &after, old(true)),
            (&zeros, &after, none),
            (&zeros, &after, old(true)),
            (&before, &after, old(true)),
            (&before, &zeros, old(true)),
        ] {
            let mut seen = 0;
            // Sectors arrive in any order.
            for arrived in 0u32..256 {
                let mut page = from.clone();
                for sector in (0..8).filter(|sector| arrived >> sector & 1 == 1) {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    page[range.clone()].copy_from_slice(&to[range]);
                }
                if page == *from || page == *to {
                    continue;
                }
                seen += 1;
                assert_eq!(told(&page, &behind), State::Unfinished, "{arrived:08b}");
            }
            assert!(seen > 100, "{seen}");
        }
    }

    #[test]
    fn what_was_on_a_device_before_is_no_damage() {
        let mut others = vec![0; PAGE_BYTES];
        header(9, 9).encode(LogId(8), &mut others);
        let garbage = vec![0x5a; PAGE_BYTES];
        let used = Behind {
            is_used: true,
            ..Behind::default()
        };
        assert_eq!(told(&others, &used), State::Free);
        assert_eq!(told(&garbage, &used), State::Free);
        assert_eq!(told(&vec![0; PAGE_BYTES], &old(false)), State::Free);
        // There is something of this log behind it.
        let behind = Behind {
            is_used: true,
            ..old(true)
        };
        assert_eq!(told(&garbage, &behind), State::Damaged);
    }
}
