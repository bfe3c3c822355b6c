//! The log on a real file or namespace, in a process that kills itself: what `forebay-crash-victim` runs, and what its
//! parent looks at afterwards.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_engine::arena::{Arena, Denied, Frozen, Lease, Share};
use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::LogId;
use forebay_engine::disk::{
    Buffers, DeviceSeat, DeviceShared, Disk, DiskConfig, DiskEvent, DiskMiss, DiskRead, DiskStats,
    Fill,
};
use forebay_engine::identity::BlockId;
use forebay_engine::limits::{PAGE_BYTES, PAGES_PER_SUB_BLOCK};
use forebay_engine::ports::{BlockDevice, DeviceEvent, DeviceGeometry, DeviceOp, Full, Time};
use forebay_nvme_uring::{OpenOptions, UringDevice, UringFile};

use super::media::{PageName, Platter, check_claims, claims, pages_of};
use super::universe::Universe;
use crate::sim::rng::SimRng;

/// Eleven regions of 2 MiB: few enough that regions are reclaimed within the script.
const GEOMETRY: Geometry = Geometry {
    region_bytes: 2 << 20,
    regions: 11,
};
const LOG: LogId = LogId(0x0f0e_beef);
const ARENA_BYTES: usize = 48 << 20;
const UNIVERSE_BYTES: u64 = 48 << 20;
/// Real time that anything may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a step of the script keeps at most, in sub-blocks.
const PIECE_SUB_BLOCKS: u64 = 16;

/// The blocks of a script.
pub fn universe(seed: u64) -> Universe {
    Universe::mixed(seed, UNIVERSE_BYTES)
}

/// A device that kills its process when a given write is accepted.
#[derive(Debug)]
pub struct Deadly<D> {
    inner: D,
    writes: Rc<Cell<u64>>,
    /// Number of the write, from 1.
    at: Option<u64>,
}

impl<D: BlockDevice> BlockDevice for Deadly<D> {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        let write = matches!(op, DeviceOp::Write { .. });
        self.inner.submit(op)?;
        let writes = self.writes.get() + u64::from(write);
        self.writes.set(writes);
        if write && self.at == Some(writes) {
            // Every other time the kernel has it already.
            if writes.is_multiple_of(2) {
                self.inner.commit();
            }
            die();
        }
        Ok(())
    }

    fn commit(&mut self) {
        self.inner.commit();
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        self.inner.poll()
    }

    fn nap(&mut self) -> Option<Duration> {
        self.inner.nap()
    }

    fn loss(&self) -> Option<String> {
        self.inner.loss()
    }
}

/// SIGKILL: no destructor runs, no buffer is written.
fn die() -> ! {
    let me = rustix::process::getpid();
    let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

struct Pool(Arena);

impl Buffers for Pool {
    fn lease(&mut self, len_bytes: usize) -> Result<Lease, Denied> {
        self.0.lease(len_bytes, Share::Disk)
    }

    fn freeze(&mut self, lease: Lease) -> Frozen {
        self.0.freeze(lease)
    }
}

/// Where the log lies. Outlives the processes that use it.
pub trait Medium {
    /// Its queue pairs.
    type Device: BlockDevice;

    /// A queue pair whose buffers come from `arena`.
    ///
    /// # Errors
    /// When none can be made.
    fn queue_pair(&self, arena: &Arena) -> Result<Self::Device>;

    /// What reads past the log, and waits for it.
    ///
    /// # Errors
    /// When there can be none.
    fn reader(&self) -> Result<Reader<'_>>;
}

/// Fills bytes from an offset.
pub type Reader<'a> = Box<dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a>;

impl Medium for Arc<UringFile> {
    type Device = UringDevice;

    fn queue_pair(&self, arena: &Arena) -> Result<UringDevice> {
        Ok(UringFile::queue_pair(self, arena.addresses(), 64)?)
    }

    fn reader(&self) -> Result<Reader<'_>> {
        Ok(Box::new(|offset_bytes, bytes| {
            let read = self.read_at(offset_bytes, bytes.len())?;
            bytes.copy_from_slice(&read);
            Ok(())
        }))
    }
}

#[cfg(feature = "spdk")]
impl Medium for Arc<forebay_nvme_spdk::Namespace> {
    type Device = forebay_nvme_spdk::SpdkDevice;

    fn queue_pair(&self, arena: &Arena) -> Result<Self::Device> {
        let options = forebay_nvme_spdk::QueueOptions::default();
        Ok(forebay_nvme_spdk::Namespace::queue_pair(
            self,
            &arena.mapping(),
            &options,
        )?)
    }

    fn reader(&self) -> Result<Reader<'_>> {
        let make = |arena: &mut Arena| Medium::queue_pair(self, arena);
        let mut device = forebay_cli::cache::blocking::Blocking::new(make)?;
        Ok(Box::new(move |offset_bytes, bytes| {
            Ok(device.read(offset_bytes, bytes)?)
        }))
    }
}

/// Bytes of the medium that the log takes.
pub fn log_bytes() -> u64 {
    GEOMETRY.offset_bytes(GEOMETRY.regions)
}

/// One core's disk tier on one real medium, and nothing else.
struct Lone<D: BlockDevice> {
    disk: Disk<Deadly<D>>,
    pool: Pool,
    universe: Universe,
    began: Instant,
    writes: Rc<Cell<u64>>,
    tickets: u64,
    reads: BTreeMap<u64, (BlockId, Range<u32>)>,
    missed: u64,
}

/// The medium at `path`, which is made when it is not there.
///
/// # Errors
/// When it cannot be opened.
pub fn open(path: &Path) -> Result<Arc<UringFile>> {
    let options = OpenOptions {
        capacity_bytes: Some(log_bytes()),
        create: true,
        ..OpenOptions::default()
    };
    Ok(UringFile::open(path, &options)?)
}

impl<D: BlockDevice> Lone<D> {
    fn start<M: Medium<Device = D>>(
        medium: &M,
        seed: u64,
        incarnation: u64,
        dies_at: Option<u64>,
    ) -> Result<Self> {
        let arena = Arena::new(ARENA_BYTES)?;
        let inner = medium.queue_pair(&arena)?;
        let writes: Rc<Cell<u64>> = Rc::default();
        let seat = DeviceSeat {
            device: Deadly {
                inner,
                writes: writes.clone(),
                at: dies_at,
            },
            shared: Arc::new(DeviceShared::new("file".into(), GEOMETRY, LOG)),
        };
        let config = DiskConfig {
            core: 0,
            cores: 1,
            entries_max: 10_000,
            tables_bytes_max: 64 << 10,
            write_bytes_max: 16 << 20,
            incarnation,
            read_timeout: PATIENCE,
            verify: true,
        };
        let mut lone = Self {
            disk: Disk::new(vec![seat], config),
            pool: Pool(arena),
            universe: universe(seed),
            began: Instant::now(),
            writes,
            tickets: 0,
            reads: BTreeMap::new(),
            missed: 0,
        };
        lone.until("recovery", |lone| !lone.disk.is_recovering())?;
        // Batches close at once: nobody waits for their age.
        lone.disk.settle();
        Ok(lone)
    }

    fn now(&self) -> Time {
        Time(0) + self.began.elapsed()
    }

    fn turn(&mut self) -> Result<bool> {
        let turn = self.disk.turn(self.now(), &mut self.pool);
        let mut some = turn.progressed;
        while let Some(event) = self.disk.next_event() {
            some = true;
            match event {
                DiskEvent::Settled { .. } => {}
                DiskEvent::Missed { ticket, why } => {
                    let asked = self.reads.remove(&ticket).context("an unknown ticket")?;
                    self.missed += 1;
                    ensure!(
                        why == DiskMiss::Reclaimed,
                        "a read of {asked:?} missed: {why:?}"
                    );
                }
                DiskEvent::Read { ticket, lease, .. } => {
                    let (block, pages) = self.reads.remove(&ticket).context("an unknown ticket")?;
                    self.universe
                        .check(block, pages.start, lease.bytes())
                        .map_err(anyhow::Error::msg)?;
                }
            }
        }
        Ok(some)
    }

    fn until(&mut self, what: &str, goal: impl Fn(&Self) -> bool) -> Result<()> {
        let last = Instant::now() + PATIENCE;
        while !goal(self) {
            if !self.turn()? {
                std::thread::sleep(Duration::from_micros(50));
            }
            if Instant::now() > last {
                bail!("{what} does not come: {:?}", self.disk.stats());
            }
        }
        Ok(())
    }

    fn keep(&mut self, block: BlockId, pages: Range<u32>) -> Result<()> {
        let len_bytes = self.universe.bytes_of(block, pages.clone());
        let lease = self.pool.0.lease(len_bytes, Share::Demand);
        let Ok(mut lease) = lease else {
            bail!("no buffer for a fill: {lease:?}");
        };
        self.universe.fill(block, pages.start, lease.bytes_mut());
        let fill = Fill {
            block,
            first_page: pages.start,
            bytes: self.pool.0.freeze(lease),
            checksums: self.universe.checksums(block, pages),
            wanted: block.object.0.is_multiple_of(4),
        };
        let now = self.now();
        ensure!(self.disk.keep(now, fill), "a fill was refused");
        Ok(())
    }

    /// Begins a read of what lies from `page` on; how many pages.
    fn read(&mut self, block: BlockId, page: u32, pages_max: u32) -> Result<u32> {
        let Some(extent) = self.disk.extent(block, page) else {
            return Ok(0);
        };
        let pages = page..extent.end.min(page + pages_max);
        let count = pages.end - pages.start;
        let Ok(lease) = self
            .pool
            .0
            .lease(count as usize * PAGE_BYTES, Share::Demand)
        else {
            bail!("no buffer for a read");
        };
        self.tickets += 1;
        let read = DiskRead {
            ticket: self.tickets,
            block,
            block_bytes: self.universe.len_bytes(block),
            first_page: page,
            lease,
        };
        self.reads.insert(self.tickets, (block, pages));
        let now = self.now();
        if self.disk.read(now, read).is_err() {
            bail!("the device is full of reads");
        }
        Ok(count)
    }

    fn rest(&mut self) -> Result<()> {
        self.until("rest", |lone| lone.disk.is_quiet() && lone.reads.is_empty())
    }
}

/// Runs the script on `medium`; it ends the process at write number `dies_at`. Returns the number of
/// writes, if it lives.
///
/// # Errors
/// When something is wrong with the log or with the medium.
pub fn victim(medium: &impl Medium, seed: u64, dies_at: Option<u64>) -> Result<(u64, DiskStats)> {
    let mut lone = Lone::start(medium, seed, 1, dies_at)?;
    let mut rng = SimRng::component(seed, "victim", 0);
    let mut block_number = 0;
    for step in 0..64u64 {
        let (block, _) = lone.universe.block(block_number);
        let pages = lone.universe.pages(block);
        block_number += 1;
        let per = PAGES_PER_SUB_BLOCK as u32;
        let piece = (rng.between(1, PIECE_SUB_BLOCKS) as u32 * per).min(pages);
        lone.keep(block, 0..piece)?;
        if piece < pages && rng.chance(500) {
            let end = (piece + PIECE_SUB_BLOCKS as u32 * per).min(pages);
            lone.keep(block, piece..end)?;
        }
        if step.is_multiple_of(3) {
            lone.rest()?;
        }
        for _ in 0..2 {
            // What is read is hot, and is moved when its region is reclaimed.
            let (block, _) = lone.universe.block(rng.below(block_number as u64) as usize);
            lone.read(block, 0, 16)?;
        }
    }
    lone.rest()?;
    Ok((lone.writes.get(), lone.disk.stats()))
}

/// Looks at what a dead process left on `medium`: every entry that it names is whole and right, the log
/// finds exactly those, and goes on. Returns how many pages there are.
///
/// # Errors
/// What is wrong.
pub fn survivor(medium: &impl Medium, seed: u64) -> Result<usize> {
    let named = look(medium, seed)?;
    let mut lone = Lone::start(medium, seed, 2, None)?;
    let mut found = BTreeSet::new();
    let blocks: Vec<(BlockId, u32)> = lone.universe.blocks().collect();
    for (block, _) in blocks {
        let mut page = 0;
        while page < lone.universe.pages(block) {
            let count = lone.read(block, page, 256)?;
            found.extend((page..page + count).map(|page| (block, page)));
            page += count.max(1);
            if lone.reads.len() >= 16 {
                lone.until("reads", |lone| lone.reads.is_empty())?;
            }
        }
    }
    lone.rest()?;
    let evicted: u64 = lone
        .disk
        .stats()
        .devices
        .iter()
        .map(|device| device.evicted_bytes)
        .sum();
    let missing = named.difference(&found).count();
    ensure!(
        missing as u64 * PAGE_BYTES as u64 <= evicted,
        "{missing} pages are named by the file and not found: {:?}",
        lone.disk.stats()
    );
    if let Some(page) = found.difference(&named).next() {
        bail!("{page:?} is found, and the file does not name it");
    }
    ensure!(
        lone.missed == 0 || evicted > 0,
        "{} reads missed",
        lone.missed
    );
    for number in 0..8 {
        let (block, _) = lone.universe.block(number);
        let pages = lone.universe.pages(block).min(64);
        lone.keep(block, 0..pages)?;
    }
    lone.rest()?;
    drop(lone);
    look(medium, seed)?;
    Ok(found.len())
}

/// Reads every page that the medium names, past the log.
fn look(medium: &impl Medium, seed: u64) -> Result<BTreeSet<PageName>> {
    let reader = RefCell::new(medium.reader()?);
    let platter = Platter {
        log: LOG,
        geometry: GEOMETRY,
        read: Box::new(|at, bytes| {
            (reader.borrow_mut())(at, bytes).expect("the medium can be read");
        }),
    };
    let claimed = claims(&platter);
    check_claims(&platter, &universe(seed), &claimed).map_err(anyhow::Error::msg)?;
    Ok(pages_of(&claimed))
}
