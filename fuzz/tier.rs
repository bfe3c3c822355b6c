//! A disk tier on a small device in memory: filled once, damaged as an input says, and recovered.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::{Arena, Denied, Frozen, Lease, Share};
use forebay_engine::checksum::BlockSeed;
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::Trailer;
use forebay_engine::disk::{
    Buffers, DeviceSeat, DeviceShared, Disk, DiskConfig, DiskEvent, DiskRead, Fill,
};
use forebay_engine::identity::{BlockId, ObjectId};
use forebay_engine::limits::PAGE_BYTES;
use forebay_engine::ports::{
    BlockDevice, DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full, Time,
};

use crate::{LOG, seal};

/// Smaller than a real one: an input is tried in a millisecond.
const GEOMETRY: Geometry = Geometry {
    region_bytes: 256 << 10,
    regions: 12,
};
/// Blocks in the image.
const BLOCKS: u32 = 60;

type Page = [u8; PAGE_BYTES];

/// What the device holds: the image, and pages that differ from it.
#[derive(Default)]
pub struct Media {
    image: Rc<Vec<u8>>,
    changed: BTreeMap<usize, Box<Page>>,
    unreadable: BTreeSet<usize>,
}

impl Media {
    fn page(&self, number: usize) -> &[u8] {
        match self.changed.get(&number) {
            Some(page) => &page[..],
            None => &self.image[number * PAGE_BYTES..][..PAGE_BYTES],
        }
    }

    fn page_mut(&mut self, number: usize) -> &mut Page {
        let image = &self.image[number * PAGE_BYTES..];
        self.changed.entry(number).or_insert_with(|| {
            let page: &Page = image.first_chunk().expect("within the image");
            Box::new(*page)
        })
    }

    fn pages(&self) -> usize {
        self.image.len() / PAGE_BYTES
    }
}

/// A queue pair.
struct Queue {
    media: Rc<RefCell<Media>>,
    done: VecDeque<DeviceEvent>,
}

impl Queue {
    fn pages_of(
        &self,
        offset_bytes: u64,
        len: usize,
    ) -> Result<std::ops::Range<usize>, DeviceError> {
        let first = offset_bytes as usize / PAGE_BYTES;
        let end = first + len / PAGE_BYTES;
        let aligned = (offset_bytes as usize | len).is_multiple_of(PAGE_BYTES);
        match aligned && end <= self.media.borrow().pages() {
            true => Ok(first..end),
            false => Err(DeviceError::Range),
        }
    }

    fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let pages = self.pages_of(offset_bytes, bytes.len())?;
        let media = self.media.borrow();
        for (number, to) in pages.zip(bytes.chunks_mut(PAGE_BYTES)) {
            if media.unreadable.contains(&number) {
                return Err(DeviceError::Media);
            }
            to.copy_from_slice(media.page(number));
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let pages = self.pages_of(offset_bytes, bytes.len())?;
        let mut media = self.media.borrow_mut();
        for (number, from) in pages.zip(bytes.chunks(PAGE_BYTES)) {
            media.page_mut(number).copy_from_slice(from);
        }
        Ok(())
    }
}

impl BlockDevice for Queue {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            sector_bytes: PAGE_BYTES as u32,
            capacity_bytes: self.media.borrow().image.len() as u64,
        }
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let event = match op {
            DeviceOp::Read {
                tag,
                offset_bytes,
                mut lease,
            } => {
                let result = self.read(offset_bytes, lease.bytes_mut());
                DeviceEvent::Read { tag, lease, result }
            }
            DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            } => {
                let result = self.write(offset_bytes, &bytes);
                DeviceEvent::Write { tag, bytes, result }
            }
            DeviceOp::Flush { tag } => DeviceEvent::Flush {
                tag,
                result: Ok(()),
            },
            DeviceOp::Discard { tag, .. } => DeviceEvent::Discard {
                tag,
                result: Ok(()),
            },
        };
        self.done.push_back(event);
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        self.done.pop_front()
    }
}

struct ArenaBuffers(Arena);

impl Buffers for ArenaBuffers {
    fn lease(&mut self, len_bytes: usize) -> Result<Lease, Denied> {
        self.0.lease(len_bytes, Share::Disk)
    }

    fn freeze(&mut self, lease: Lease) -> Frozen {
        self.0.freeze(lease)
    }
}

/// Kept from input to input: mapping an arena takes longer than all the rest.
pub struct Bench {
    image: Rc<Vec<u8>>,
    /// Pages of headers and tables: what is damaged is one of these more often than data.
    structures: Vec<usize>,
    buffers: ArenaBuffers,
}

/// A run of the tier, on one or two cores.
struct Run<'a> {
    media: Rc<RefCell<Media>>,
    buffers: &'a mut ArenaBuffers,
    disks: Vec<Disk<Queue>>,
    now: Time,
    tickets: u64,
}

/// How long block `n` is: from one page to a few sub-blocks.
fn len_bytes(n: u32) -> usize {
    [100_000, 4096, 30_000, 1, 70_000, 131_072][n as usize % 6]
}

fn block(n: u32) -> BlockId {
    BlockId {
        object: ObjectId(u128::from(n + 1) * 0x0123_4567_89ab_cdef_fedc_ba98_7654_3211),
        index: n % 3,
    }
}

/// The bytes of a page of a block, by its identity.
fn fill_page(block: BlockId, page: u32, bytes: &mut [u8]) {
    let mut x = block.object.0 as u64 ^ u64::from(block.index) << 40 ^ u64::from(page);
    for word in bytes.chunks_mut(8) {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ 0x55;
        let len = word.len();
        word.copy_from_slice(&x.to_le_bytes()[..len]);
    }
}

impl<'a> Run<'a> {
    fn new(media: Media, cores: usize, incarnation: u64, buffers: &'a mut ArenaBuffers) -> Self {
        let mut run = Self {
            media: Rc::new(RefCell::new(media)),
            buffers,
            disks: Vec::new(),
            now: Time(1),
            tickets: 0,
        };
        run.start(cores, incarnation);
        run
    }

    fn start(&mut self, cores: usize, incarnation: u64) {
        let shared = Arc::new(DeviceShared::new("mem".into(), GEOMETRY, LOG));
        self.disks = (0..cores)
            .map(|core| {
                let device = Queue {
                    media: self.media.clone(),
                    done: VecDeque::new(),
                };
                let config = DiskConfig {
                    core,
                    cores,
                    entries_max: 400,
                    tables_bytes_max: 64 << 10,
                    write_bytes_max: 4 << 20,
                    incarnation: incarnation << 32,
                    read_timeout: Duration::from_secs(1),
                    verify: true,
                };
                let shared = shared.clone();
                Disk::new(vec![DeviceSeat { device, shared }], config)
            })
            .collect();
        self.run_until(|disk| !disk.is_recovering());
    }

    fn turn(&mut self) {
        let mut progressed = false;
        for disk in &mut self.disks {
            progressed |= disk.turn(self.now, self.buffers).progressed;
        }
        if !progressed {
            self.now = self.now + Duration::from_millis(1);
        }
    }

    fn run_until(&mut self, goal: impl Fn(&Disk<Queue>) -> bool) {
        for _ in 0..20_000 {
            if self.disks.iter().all(&goal) {
                return;
            }
            self.turn();
            for disk in &mut self.disks {
                while let Some(event) = disk.next_event() {
                    assert!(matches!(event, DiskEvent::Settled { .. }), "{event:?}");
                }
            }
        }
        panic!("never: {:?}", self.disks[0].stats());
    }

    fn keep(&mut self, n: u32) {
        let block = block(n);
        let Ok(mut lease) = self.buffers.0.lease(len_bytes(n), Share::Demand) else {
            return;
        };
        for (page, bytes) in (0..).zip(lease.bytes_mut().chunks_mut(PAGE_BYTES)) {
            fill_page(block, page, bytes);
        }
        let bytes = self.buffers.0.freeze(lease);
        let checksums = BlockSeed::of(block).checksums(0, &bytes);
        let core = n as usize % self.disks.len();
        let fill = Fill {
            block,
            first_page: 0,
            bytes,
            checksums,
            wanted: block.object.0.is_multiple_of(4),
        };
        self.disks[core].keep(self.now, fill);
        (0..4).for_each(|_| self.turn());
    }

    fn settle(&mut self) {
        self.disks.iter_mut().for_each(Disk::settle);
        self.run_until(Disk::is_quiet);
    }

    /// Reads what is said to be there, at most `pages_max` of each extent: right bytes, or none. How many
    /// blocks had some.
    fn check(&mut self, pages_max: u32) -> usize {
        let mut found = 0;
        for n in 0..BLOCKS + 10 {
            for core in 0..self.disks.len() {
                let whole = len_bytes(n).div_ceil(PAGE_BYTES) as u32;
                let mut page = 0;
                while page < whole {
                    let Some(pages) = self.disks[core].extent(block(n), page) else {
                        break;
                    };
                    let count = (pages.end.min(whole) - page).min(pages_max);
                    found += usize::from(self.read(core, n, page, count));
                    page = pages.end.max(page + 1);
                }
            }
        }
        found
    }

    fn read(&mut self, core: usize, n: u32, first_page: u32, pages: u32) -> bool {
        let len = pages as usize * PAGE_BYTES;
        let Ok(lease) = self.buffers.0.lease(len, Share::Demand) else {
            panic!("buffers are lost");
        };
        self.tickets += 1;
        let read = DiskRead {
            ticket: self.tickets,
            block: block(n),
            block_bytes: len_bytes(n) as u32,
            first_page,
            lease,
        };
        if self.disks[core].read(self.now, read).is_err() {
            panic!("the device is never full");
        }
        for _ in 0..2_000 {
            self.turn();
            while let Some(event) = self.disks[core].next_event() {
                match event {
                    DiskEvent::Read { lease, ticket, .. } => {
                        assert_eq!(ticket, self.tickets);
                        compare(n, first_page, lease.bytes());
                        return true;
                    }
                    DiskEvent::Missed { .. } => return false,
                    DiskEvent::Settled { .. } => {}
                }
            }
        }
        panic!("a read never ended");
    }
}

fn compare(n: u32, first_page: u32, bytes: &[u8]) {
    let mut right = [0; PAGE_BYTES];
    for (number, page) in (first_page..).zip(bytes.chunks(PAGE_BYTES)) {
        let len = (len_bytes(n) - number as usize * PAGE_BYTES).min(PAGE_BYTES);
        fill_page(block(n), number, &mut right[..len]);
        assert!(page[..len] == right[..len], "wrong bytes of block {n}");
    }
}

impl Bench {
    /// Writes the image: some regions sealed, some reclaimed, some open.
    pub fn new() -> Self {
        let mut buffers = ArenaBuffers(Arena::new(32 << 20).expect("memory for an arena"));
        let media = Media {
            image: Rc::new(vec![0; GEOMETRY.offset_bytes(GEOMETRY.regions) as usize]),
            ..Media::default()
        };
        let mut run = Run::new(media, 1, 1, &mut buffers);
        (0..BLOCKS).for_each(|n| run.keep(n));
        run.settle();
        assert!(
            run.check(u32::MAX) > BLOCKS as usize / 4,
            "{:?}",
            run.disks[0].stats()
        );
        let media = run.media.clone();
        drop(run);
        let media = media.borrow();
        let image: Vec<u8> = (0..media.pages())
            .flat_map(|number| media.page(number).iter().copied())
            .collect();
        Self {
            structures: structures(&image),
            image: Rc::new(image),
            buffers,
        }
    }

    /// Damages the image as `input` says, recovers, reads, writes, recovers again: right bytes or none.
    pub fn try_input(&mut self, input: &[u8]) {
        let mut media = Media {
            image: self.image.clone(),
            ..Media::default()
        };
        let mut input = Input(input);
        let (cores, again) = (
            1 + usize::from(input.u8() % 2),
            1 + usize::from(input.u8() % 2),
        );
        while !input.0.is_empty() && media.changed.len() < 64 {
            self.damage(&mut media, &mut input);
        }
        let intact = media.changed.is_empty() && media.unreadable.is_empty();
        let mut run = Run::new(media, cores, 2, &mut self.buffers);
        let found = run.check(4);
        assert!(
            !intact || found > BLOCKS as usize / 4,
            "nothing was damaged"
        );
        (BLOCKS..BLOCKS + 10).for_each(|n| run.keep(n));
        run.settle();
        run.check(1);
        run.start(again, 3);
        run.check(2);
    }

    fn damage(&self, media: &mut Media, input: &mut Input<'_>) {
        let page = self.pick(input);
        match input.u8() % 8 {
            0 => *media.page_mut(page) = [0; PAGE_BYTES],
            1 => {
                let other: Page = *media.page(self.pick(input)).first_chunk().expect("a page");
                *media.page_mut(page) = other;
            }
            2 => drop(media.unreadable.insert(page)),
            what => {
                let at = usize::from(input.u16()) % PAGE_BYTES;
                let len = usize::from(input.u8() % 17).min(PAGE_BYTES - at);
                for byte in &mut media.page_mut(page)[at..at + len] {
                    *byte = input.u8();
                }
                if what > 4 {
                    // As if a bug of ours had written it: the crcs hold.
                    repair(media, page);
                }
            }
        }
    }

    fn pick(&self, input: &mut Input<'_>) -> usize {
        match input.u8() {
            255 => usize::from(input.u16()) % (self.image.len() / PAGE_BYTES),
            n => self.structures[usize::from(n) % self.structures.len()],
        }
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

/// Pages of the image that begin with a magic, and the tables before each trailer.
fn structures(image: &[u8]) -> Vec<usize> {
    let mut pages = Vec::new();
    for (number, page) in image.chunks(PAGE_BYTES).enumerate() {
        if page.starts_with(b"FBregion") || page.starts_with(b"FBbatch") {
            pages.push(number);
        }
        if let Some(trailer) = Trailer::decode(LOG, page) {
            let region_begins = number - GEOMETRY.trailer_page() as usize;
            pages.extend(region_begins + trailer.entry_table_page as usize..=number);
        }
    }
    assert!(!pages.is_empty() && pages.len() < 255, "{}", pages.len());
    pages
}

/// Makes the crc of a changed structure hold, and those of a footer's tables.
fn repair(media: &mut Media, page: usize) {
    let data_begins = GEOMETRY.offset_bytes(0) as usize / PAGE_BYTES;
    let region_pages = GEOMETRY.region_pages() as usize;
    let Some(in_region) = page.checked_sub(data_begins).map(|at| at % region_pages) else {
        return;
    };
    if media.page(page).starts_with(b"FB") {
        seal(&mut media.page_mut(page)[..]);
    }
    let trailer_page = page - in_region + GEOMETRY.trailer_page() as usize;
    let Some(mut trailer) = Trailer::decode(LOG, media.page(trailer_page)) else {
        return;
    };
    if !trailer.fits(&GEOMETRY) {
        return;
    }
    let table_page = page - in_region + trailer.entry_table_page as usize;
    let table_pages = Trailer::entry_table_pages(trailer.entries as usize);
    let crc = |first: usize, count: usize| {
        let bytes: Vec<u8> = (first..first + count)
            .flat_map(|number| media.page(number).iter().copied())
            .collect();
        crc_fast::crc32_iscsi(&bytes)
    };
    trailer.entries_crc = crc(table_page, table_pages);
    trailer.checksums_crc = crc(
        page - in_region + GEOMETRY.checksum_table_page() as usize,
        GEOMETRY.checksum_table_pages() as usize,
    );
    trailer.encode(LOG, media.page_mut(trailer_page));
}

/// Bytes of an input, zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }
}
