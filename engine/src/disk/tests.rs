//! The tier alone, on a device in memory.

mod forget;
mod hangs;
mod pins;
mod recovery;
mod rehomed;
mod room;
mod steps;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::geometry::Geometry;
use super::layout::{BatchHeader, LogId};
use super::*;
use crate::arena::{Arena, Denied, Share};
use crate::checksum::BlockSeed;
use crate::identity::ObjectId;
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES, PAGE_BYTES, SUB_BLOCK_BYTES};
use crate::ports::{DeviceError, DeviceEvent, DeviceGeometry, DeviceOp, Full};

/// What all queue pairs of a test see.
#[derive(Default)]
struct Media {
    bytes: Vec<u8>,
    /// Fails every write with this.
    write_error: Option<DeviceError>,
    read_error: Option<DeviceError>,
    /// A page that cannot be read.
    unreadable: Option<u64>,
    /// Reads after so many never end.
    reads_left: Option<u32>,
    /// It is gone, for a reason that it knows.
    loss: Option<String>,
    /// Writes and flushes never end.
    hangs: bool,
    /// Writes wait, or those that begin with these bytes, until they are let go.
    holds_writes: bool,
    holds: Option<Vec<u8>>,
    /// The next write that begins with these bytes finds no space.
    no_space_for: Option<Vec<u8>>,
    /// Each write that begins with these bytes fails with this.
    fails: Option<(&'static [u8], DeviceError)>,
    /// The next flush fails; or so many behind writes that begin with these bytes.
    flush_fails: bool,
    flush_fails_behind: Option<(&'static [u8], u32)>,
    hung: Vec<(Completions, DeviceOp)>,
    read_bytes: u64,
    written_bytes: u64,
}

impl Media {
    fn must_wait(&mut self, op: &DeviceOp) -> bool {
        match op {
            DeviceOp::Read { .. } => match &mut self.reads_left {
                Some(0) => true,
                Some(left) => {
                    *left -= 1;
                    false
                }
                None => false,
            },
            DeviceOp::Write { bytes, .. } => {
                let held = self.holds.as_ref();
                self.hangs || self.holds_writes || held.is_some_and(|held| bytes.starts_with(held))
            }
            DeviceOp::Flush { .. } | DeviceOp::Discard { .. } => self.hangs,
        }
    }
}

/// What a queue pair has done.
type Completions = Rc<RefCell<VecDeque<DeviceEvent>>>;

#[derive(Clone)]
struct MemDevice {
    media: Rc<RefCell<Media>>,
    done: Completions,
}

impl BlockDevice for MemDevice {
    fn loss(&self) -> Option<String> {
        self.media.borrow().loss.clone()
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            sector_bytes: 4096,
            capacity_bytes: self.media.borrow().bytes.len() as u64,
        }
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        if self.done.borrow().len() >= 64 {
            return Err(Full(op));
        }
        let mut media = self.media.borrow_mut();
        if media.must_wait(&op) {
            media.hung.push((self.done.clone(), op));
            return Ok(());
        }
        let event = match op {
            DeviceOp::Read {
                tag,
                offset_bytes,
                mut lease,
            } => {
                let at = offset_bytes as usize;
                media.read_bytes += lease.len() as u64;
                let len = lease.len();
                lease
                    .bytes_mut()
                    .copy_from_slice(&media.bytes[at..at + len]);
                let mut result = media.read_error.map_or(Ok(()), Err);
                if media
                    .unreadable
                    .is_some_and(|page| (offset_bytes..offset_bytes + len as u64).contains(&page))
                {
                    result = Err(DeviceError::Media);
                }
                DeviceEvent::Read { tag, lease, result }
            }
            DeviceOp::Write {
                tag,
                offset_bytes,
                bytes,
            } => {
                assert!(bytes.len().is_multiple_of(PAGE_BYTES));
                media.written_bytes += bytes.len() as u64;
                let at = offset_bytes as usize;
                let mut result = media.write_error.map_or(Ok(()), Err);
                let wanted = |start: &Vec<u8>| bytes.starts_with(start);
                if media.no_space_for.as_ref().is_some_and(wanted) {
                    media.no_space_for = None;
                    result = Err(DeviceError::NoSpace);
                }
                if let Some((start, error)) = media.fails
                    && bytes.starts_with(start)
                {
                    result = Err(error);
                }
                if let Some((start, left)) = &mut media.flush_fails_behind
                    && *left > 0
                    && bytes.starts_with(start)
                {
                    *left -= 1;
                    media.flush_fails = true;
                }
                if result.is_ok() {
                    media.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                DeviceEvent::Write { tag, bytes, result }
            }
            DeviceOp::Flush { tag } => DeviceEvent::Flush {
                tag,
                result: match std::mem::take(&mut media.flush_fails) {
                    true => Err(DeviceError::Write),
                    false => Ok(()),
                },
            },
            DeviceOp::Discard { tag, .. } => DeviceEvent::Discard {
                tag,
                result: Ok(()),
            },
        };
        self.done.borrow_mut().push_back(event);
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        self.done.borrow_mut().pop_front()
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

struct Bench {
    media: Rc<RefCell<Media>>,
    geometry: Geometry,
    disk: Disk<MemDevice>,
    buffers: ArenaBuffers,
    now: Time,
    incarnation: u64,
    tickets: u64,
    settled: u64,
    /// What is kept was asked for by name.
    wanted: bool,
}

const BLOCK: u32 = BLOCK_BYTES as u32;

fn block(n: u64) -> BlockId {
    BlockId {
        object: ObjectId(u128::from(n) * 0x1234_5678_9abc_def1),
        index: (n % 7) as u32,
    }
}

/// The bytes that page `page` of a block holds, by its identity.
fn fill_page(block: BlockId, page: u32, bytes: &mut [u8]) {
    let mut x = block.object.0 as u64 ^ u64::from(block.index) << 40 ^ u64::from(page);
    for word in bytes.chunks_mut(8) {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ 0x55;
        let len = word.len();
        word.copy_from_slice(&x.to_le_bytes()[..len]);
    }
}

impl Bench {
    fn new(region_bytes: u32, regions: u32) -> Self {
        let geometry = Geometry {
            region_bytes,
            regions,
        };
        let media = Rc::new(RefCell::new(Media {
            bytes: vec![0; geometry.offset_bytes(regions) as usize],
            ..Media::default()
        }));
        let disk = Self::disk(&media, geometry, 1, 1);
        let mut bench = Self {
            media,
            geometry,
            disk,
            buffers: ArenaBuffers(Arena::new(64 << 20).unwrap()),
            now: Time(1),
            incarnation: 1,
            tickets: 0,
            settled: 0,
            wanted: false,
        };
        bench.run_until(|bench| !bench.disk.is_recovering());
        bench
    }

    fn disk(
        media: &Rc<RefCell<Media>>,
        geometry: Geometry,
        incarnation: u64,
        cores: usize,
    ) -> Disk<MemDevice> {
        let shared = Arc::new(DeviceShared::new("mem".into(), geometry, LogId(7)));
        Self::disk_of_core(media, shared, incarnation, (0, cores))
    }

    fn disk_of_core(
        media: &Rc<RefCell<Media>>,
        shared: Arc<DeviceShared>,
        incarnation: u64,
        (core, cores): (usize, usize),
    ) -> Disk<MemDevice> {
        let device = MemDevice {
            media: media.clone(),
            done: Rc::default(),
        };
        let config = Self::config(incarnation, (core, cores));
        Disk::new(vec![DeviceSeat { device, shared }], config)
    }

    fn config(incarnation: u64, (core, cores): (usize, usize)) -> DiskConfig {
        DiskConfig {
            core,
            cores,
            entries_max: 100_000,
            tables_bytes_max: 1 << 20,
            write_bytes_max: 32 << 20,
            incarnation: incarnation << 32,
            read_timeout: Duration::from_secs(1),
            verify: true,
        }
    }

    fn restart(&mut self) {
        self.incarnation += 1;
        self.disk = Self::disk(&self.media, self.geometry, self.incarnation, 1);
        self.run_until(|bench| !bench.disk.is_recovering());
    }

    /// The next run has room for so many entries.
    fn restart_with(&mut self, entries_max: usize) {
        self.incarnation += 1;
        let shared = Arc::new(DeviceShared::new("mem".into(), self.geometry, LogId(7)));
        let device = MemDevice {
            media: self.media.clone(),
            done: Rc::default(),
        };
        let config = DiskConfig {
            entries_max,
            ..Self::config(self.incarnation, (0, 1))
        };
        self.disk = Disk::new(vec![DeviceSeat { device, shared }], config);
        self.run_until(|bench| !bench.disk.is_recovering());
    }

    /// The next run's cores, when each has found what there is.
    fn next_cores(&mut self, cores: usize) -> Vec<Disk<MemDevice>> {
        self.incarnation += 1;
        let shared = Arc::new(DeviceShared::new("mem".into(), self.geometry, LogId(7)));
        let disk = |core| {
            let shared = shared.clone();
            Self::disk_of_core(&self.media, shared, self.incarnation, (core, cores))
        };
        let mut disks: Vec<_> = (0..cores).map(disk).collect();
        while disks.iter().any(Disk::is_recovering) {
            for disk in &mut disks {
                disk.turn(self.now, &mut self.buffers);
            }
            self.now = self.now + Duration::from_millis(1);
        }
        disks
    }

    /// Where on the device the header is of the batch that holds this block alone.
    fn header_of(&self, block: BlockId) -> usize {
        let media = self.media.borrow();
        let mut pages = media.bytes.chunks(PAGE_BYTES).enumerate();
        let found = pages.find_map(|(number, page)| {
            let header = BatchHeader::decode(LogId(7), page)?;
            (header.entries[0].block == block).then_some(number * PAGE_BYTES)
        });
        found.unwrap()
    }

    fn turn(&mut self) -> bool {
        let turn = self.disk.turn(self.now, &mut self.buffers);
        if !turn.progressed {
            self.now = self.now + Duration::from_millis(1);
        }
        turn.progressed
    }

    fn run_until(&mut self, goal: impl Fn(&Bench) -> bool) {
        for _ in 0..200_000 {
            if goal(self) {
                return;
            }
            self.turn();
            self.take_settled();
        }
        panic!("never: {:?}", self.disk.stats());
    }

    fn take_settled(&mut self) {
        while let Some(event) = self.disk.next_event() {
            match event {
                DiskEvent::Settled { pages, .. } => self.settled += u64::from(pages),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    fn keep(&mut self, block: BlockId, first_page: u32, len_bytes: usize) -> bool {
        let mut lease = self.buffers.0.lease(len_bytes, Share::Demand).unwrap();
        for (n, page) in lease.bytes_mut().chunks_mut(PAGE_BYTES).enumerate() {
            fill_page(block, first_page + n as u32, page);
        }
        let bytes = self.buffers.0.freeze(lease);
        let checksums = BlockSeed::of(block).checksums(first_page, &bytes);
        self.disk.keep(
            self.now,
            Fill {
                block,
                first_page,
                bytes,
                checksums,
                wanted: self.wanted,
            },
        )
    }

    /// Keeps a whole block of `len_bytes`, in chunks.
    fn keep_block(&mut self, block: BlockId, len_bytes: usize) {
        for start in (0..len_bytes).step_by(CHUNK_BYTES) {
            let len = CHUNK_BYTES.min(len_bytes - start);
            while !self.keep(block, (start / PAGE_BYTES) as u32, len) {
                self.turn();
                self.take_settled();
            }
        }
        for _ in 0..20 {
            self.turn();
        }
        self.take_settled();
    }

    /// The device does what it was made to wait with.
    fn let_go(&mut self) {
        let mut media = self.media.borrow_mut();
        (media.holds_writes, media.holds) = (false, None);
        let hung = std::mem::take(&mut media.hung);
        drop(media);
        for (done, op) in hung {
            let media = self.media.clone();
            assert!(MemDevice { media, done }.submit(op).is_ok());
        }
    }

    fn settle(&mut self) {
        self.disk.settle();
        self.run_until(|bench| bench.disk.is_quiet());
    }

    /// Reads and compares pages; what the tier says of them.
    fn read(
        &mut self,
        block: BlockId,
        block_bytes: u32,
        page: u32,
        pages: u32,
    ) -> Result<(), DiskMiss> {
        let lease = self
            .buffers
            .0
            .lease(pages as usize * PAGE_BYTES, Share::Demand)
            .unwrap();
        self.tickets += 1;
        let read = DiskRead {
            ticket: self.tickets,
            block,
            block_bytes,
            first_page: page,
            lease,
        };
        self.disk.read(self.now, read).unwrap();
        for _ in 0..1000 {
            self.turn();
            while let Some(event) = self.disk.next_event() {
                match event {
                    DiskEvent::Read {
                        lease, checksums, ..
                    } => {
                        assert_eq!(checksums.len(), pages as usize);
                        for (n, got) in lease.bytes().chunks(PAGE_BYTES).enumerate() {
                            let number = page + n as u32;
                            let len = PAGE_BYTES.min((block_bytes - number * 4096) as usize);
                            let mut want = vec![0; len];
                            fill_page(block, number, &mut want);
                            assert_eq!(got[..len], want);
                        }
                        return Ok(());
                    }
                    DiskEvent::Missed { why, .. } => return Err(why),
                    DiskEvent::Settled { pages, .. } => self.settled += u64::from(pages),
                }
            }
        }
        panic!("a read never ended");
    }

    fn is_whole(&self, n: u64, len_bytes: u32) -> bool {
        let subs = len_bytes.div_ceil(SUB_BLOCK_BYTES as u32);
        self.disk.present(block(n), len_bytes).count_ones() == subs
    }
}

#[test]
fn blocks_are_read_back_and_found_again_by_the_next_run() {
    let mut bench = Bench::new(4 << 20, 64);
    let lens = [BLOCK, 100_000, 1, 4096, 70_000, BLOCK - 5];
    for (n, len) in lens.iter().enumerate() {
        bench.keep_block(block(n as u64), *len as usize);
    }
    bench.settle();
    for round in 0..3 {
        for (n, len) in lens.iter().enumerate() {
            let n = n as u64;
            assert!(bench.is_whole(n, *len), "block {n} in round {round}");
            let pages = len.div_ceil(4096);
            let mut page = 0;
            while page < pages {
                let extent = bench.disk.extent(block(n), page).unwrap();
                assert_eq!(extent.start, page);
                let some = (extent.end - page).min(256);
                bench.read(block(n), *len, page, some).unwrap();
                page += some;
            }
        }
        let before = bench.media.borrow().read_bytes;
        bench.restart();
        let read = bench.media.borrow().read_bytes - before;
        // Behind the last batch of each open region it looks for more.
        assert!(read < 9 << 20, "recovery read {read} bytes");
    }
    assert_eq!(
        bench.settled,
        lens.iter()
            .map(|len| u64::from(len.div_ceil(4096)))
            .sum::<u64>()
    );
}

#[test]
fn contiguous_parts_become_one_entry() {
    let mut bench = Bench::new(16 << 20, 32);
    bench.keep_block(block(1), BLOCK_BYTES);
    bench.settle();
    assert_eq!(bench.disk.stats().devices[0].entries, 1);
}

#[test]
fn churn_of_ten_times_the_size_keeps_to_its_bounds() {
    let mut bench = Bench::new(2 << 20, 32);
    let total = 64 << 20;
    let mut n = 0;
    let mut written = 0;
    while written < 10 * total {
        let len = [BLOCK_BYTES / 4, 100_000, 300_000, 5_000][(n % 4) as usize];
        bench.keep_block(block(n), len);
        if n % 5 == 0 && bench.disk.extent(block(0), 0).is_some() {
            let _ = bench.read(block(0), BLOCK / 4, 0, 16);
        }
        written += len;
        n += 1;
    }
    bench.settle();
    let stats = bench.disk.stats();
    let device = &stats.devices[0];
    assert_eq!(device.fills_dropped, 0);
    assert!(device.live_bytes > total as u64 / 2, "{device:#?}");
    assert!(device.used_bytes <= total as u64);
    assert!(
        bench.is_whole(0, BLOCK / 4),
        "what is read all the time stays"
    );
    assert!(
        device.write_amplification() < 1.5,
        "{}",
        device.write_amplification()
    );
    drop(bench.disk);
    bench.buffers.0.reclaim();
    assert_eq!(
        bench.buffers.0.free_bytes(),
        bench.buffers.0.capacity_bytes()
    );
}

#[test]
fn a_hundred_kilobyte_object_wastes_less_than_six_percent() {
    let mut bench = Bench::new(4 << 20, 64);
    for n in 0..1_000 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    let device = bench.disk.stats().devices[0].clone();
    let waste = device.used_bytes as f64 / (1_000.0 * 100_000.0);
    assert!(waste < 1.06, "{waste}");
}

/// A region whose header is lost begins again at generation 1: the footer of its first life, also of
/// generation 1, must not come back to life with it.
#[test]
fn a_footer_of_an_earlier_life_of_its_region_is_void() {
    let mut bench = Bench::new(256 << 10, 12);
    (0..20).for_each(|n| bench.keep_block(block(n), 100_000));
    bench.settle();
    for region in 0..12 {
        let at = bench.geometry.offset_bytes(region) as usize;
        bench.media.borrow_mut().bytes[at..at + PAGE_BYTES].fill(0);
    }
    bench.restart();
    assert!(bench.disk.extent(block(0), 0).is_none());
    (1000..1005).for_each(|n| bench.keep_block(block(n), 100_000));
    bench.settle();
    bench.restart();
    assert!((1000..1005).all(|n| bench.is_whole(n, 100_000)));
    assert!((0..20).all(|n| bench.disk.extent(block(n), 0).is_none()));
}

#[test]
fn what_cannot_be_moved_stays_where_it_was() {
    let mut bench = Bench::new(2 << 20, 32);
    bench.keep_block(block(0), 100_000);
    bench.settle();
    bench.disk.pin(block(0), true).unwrap();
    let mut page = vec![0; PAGE_BYTES];
    fill_page(block(0), 0, &mut page);
    bench.media.borrow_mut().no_space_for = Some(page);
    let mut n = 1;
    while bench.media.borrow().no_space_for.is_some() {
        bench.keep_block(block(n), 300_000);
        n += 1;
        assert!(n < 5_000, "reclaim never moved the pinned entry");
    }
    for _ in 0..100 {
        bench.keep_block(block(n), 300_000);
        n += 1;
    }
    assert!(bench.is_whole(0, 100_000));
    bench.read(block(0), 100_000, 0, 25).unwrap();
}

#[test]
fn a_damaged_entry_table_leaves_nothing_in_the_index() {
    let mut bench = Bench::new(2 << 20, 32);
    for n in 0..400 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    let geometry = bench.geometry;
    let mut damaged = 0;
    for region in 0..geometry.regions {
        let at = geometry.offset_bytes(region) as usize;
        let mut media = bench.media.borrow_mut();
        let trailer_at = at + geometry.trailer_page() as usize * PAGE_BYTES;
        let trailer = &media.bytes[trailer_at..trailer_at + PAGE_BYTES];
        if let Some(trailer) = layout::Trailer::decode(LogId(7), trailer) {
            media.bytes[at + trailer.entry_table_page as usize * PAGE_BYTES] ^= 1;
            damaged += 1;
        }
    }
    assert!(damaged > 5);
    for n in 400..2_000 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    for n in 0..400 {
        if bench.disk.extent(block(n), 0).is_some() {
            bench.read(block(n), 100_000, 0, 16).unwrap();
        }
    }
    assert!(bench.disk.stats().devices[0].checksum_failures > 0);
}

#[test]
fn a_region_that_nothing_names_is_not_warm() {
    assert!(!policy::Heat::default().is_warm(512));
}

#[test]
fn a_failed_table_read_is_one_fault_and_costs_one_region() {
    let mut bench = Bench::new(2 << 20, 32);
    for n in 0..200 {
        bench.keep_block(block(n), 30_000);
    }
    bench.settle();
    bench.restart();
    bench.media.borrow_mut().read_error = Some(DeviceError::Media);
    assert_eq!(bench.read(block(0), 30_000, 0, 8), Err(DiskMiss::Device));
    bench.media.borrow_mut().read_error = None;
    let missed = (0..200)
        .filter(|n| !bench.is_whole(*n, 30_000))
        .collect::<Vec<_>>();
    assert!(missed.len() < 80, "{missed:?}");
    assert_eq!(bench.disk.stats().devices[0].state, DeviceState::Serving);
}
