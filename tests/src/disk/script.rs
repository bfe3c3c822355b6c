//! The run that carries operations out over any number of lives of a process.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use forebay_engine::disk::DiskStats;
use forebay_engine::disk::layout::{EntryRecord, RegionHeader};
use forebay_engine::identity::BlockId;
use forebay_engine::limits::{PAGE_BYTES, PAGES_PER_SUB_BLOCK, READ_BYTES_MAX};
use forebay_engine::ports::Clock;

use super::check::{Durable, at_rest, found, on_media};
use super::media::{PageName, Platter, claims, pages_of};
use super::model::{Model, Tally};
use super::node::{Node, NodeConfig};
use super::ops::{End, Op};
use super::universe::Universe;
use crate::sim::bay::Bay;
use crate::sim::clock::SimClock;
use crate::sim::rng::SimRng;

/// Virtual time that anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Sub-blocks of the longest piece that is kept at a time: 1 MiB.
const PIECE_SUB_BLOCKS: u32 = 16;
/// Pages of the longest read.
const READ_PAGES_MAX: u32 = (READ_BYTES_MAX / PAGE_BYTES) as u32;

/// A run before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where everything else comes from.
    pub seed: u64,
    /// Size, region size and sector size of each device, in bytes.
    pub devices: Vec<(u64, u32, u32)>,
    /// Bytes of all blocks that may be kept, about.
    pub universe_bytes: u64,
    /// The first process.
    pub node: NodeConfig,
    /// Pages that are there are not kept again, as a core does it.
    pub keep_once: bool,
    /// Devices are at fault.
    pub faulty: bool,
}

/// A run.
#[derive(Debug)]
pub struct Run {
    /// What it began as.
    pub plan: Plan,
    /// The devices.
    pub bays: Vec<Bay>,
    /// The model.
    pub model: Model,
    /// Evictions over all lives, in bytes.
    pub evicted_bytes: u64,
    clock: SimClock,
    rng: SimRng,
    node: Node,
    regions_first: Vec<u32>,
    incarnation: u64,
    cores: usize,
}

impl Run {
    /// Starts the first process, on empty devices.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn new(plan: Plan) -> Result<Self, String> {
        let universe = Universe::mixed(plan.seed, plan.universe_bytes);
        Self::with_universe(plan, universe)
    }

    /// The same with given blocks.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn with_universe(plan: Plan, universe: Universe) -> Result<Self, String> {
        let bays: Vec<Bay> = (0..)
            .zip(&plan.devices)
            .map(|(number, (capacity, region, sector))| {
                Bay::new(plan.seed * 8 + number, *capacity, *region, *sector)
            })
            .collect();
        let clock = SimClock::default();
        let node = Node::start(plan.node.clone(), &bays, &clock, plan.seed, 1);
        let mut model = Model::new(universe);
        model.faulty = plan.faulty;
        let mut run = Self {
            regions_first: bays.iter().map(|bay| bay.geometry.regions).collect(),
            rng: SimRng::component(plan.seed, "run", 0),
            cores: plan.node.cores,
            plan,
            bays,
            model,
            evicted_bytes: 0,
            clock,
            node,
            incarnation: 1,
        };
        run.until("recovery", Node::has_recovered)?;
        Ok(run)
    }

    /// What the run has come to.
    pub fn tally(&self) -> &Tally {
        &self.model.tally
    }

    /// Counters of the process that lives.
    pub fn stats(&self) -> DiskStats {
        self.node.stats()
    }

    /// The process that lives.
    pub fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.node.is_off()
    }

    /// Carries one operation out. Nothing happens while the power is off.
    ///
    /// # Errors
    /// What is wrong.
    pub fn perform(&mut self, op: Op) -> Result<(), String> {
        if self.is_off() {
            return Ok(());
        }
        match op {
            Op::Keep { block, from, len } => self.keep(block, from, len),
            Op::Read { block, page, len } => self.read(block, page, len),
            Op::Touch(block) => {
                let (block, _) = self.model.universe.block(block.into());
                self.node.disk_mut(block).touch(block);
                Ok(())
            }
            Op::Forget(block) => {
                let (block, _) = self.model.universe.block(block.into());
                self.node.disk_mut(block).forget(block);
                self.model.forgotten(block);
                Ok(())
            }
            Op::Pin(block) => self.pin(block),
            Op::Unpin(block) => {
                let (block, _) = self.model.universe.block(block.into());
                let unpinned = self.node.disk_mut(block).pin(block, false);
                unpinned.expect("nothing refuses an unpin");
                self.model.unpinned(block);
                Ok(())
            }
            Op::Pass(millis) => self.pass(Duration::from_millis(u64::from(millis) % 500)),
            Op::Rest => self.rest(),
            Op::Allow { bay, part } => {
                let bay = usize::from(bay) % self.bays.len();
                // Below an eighth a core would have no region to write to.
                let part = u64::from(part.max(64));
                let bytes = self.bays[bay].data_bytes() * part / 255;
                self.node.allow(bay, bytes);
                self.pass(Duration::from_millis(1_100))
            }
            Op::Restart { end, cores } => self.restart(end, usize::from(cores) % 3 + 1),
            Op::Resize { bay, part } => {
                let bay = usize::from(bay) % self.bays.len();
                let first = u64::from(self.regions_first[bay]);
                let least = first / 2;
                let regions = least + (first - least) * u64::from(part) / 255;
                self.resize(bay, regions as u32)
            }
        }
    }

    fn keep(&mut self, block: u16, from: u8, len: u8) -> Result<(), String> {
        let (block, _) = self.model.universe.block(block.into());
        let pages = self.model.universe.pages(block);
        let subs = pages.div_ceil(PAGES_PER_SUB_BLOCK as u32);
        let from = u32::from(from) % subs;
        let end = (from + 1 + u32::from(len) % 64).min(subs);
        let mut sub = from;
        while sub < end && !self.is_off() {
            // Pieces end where chunks do, as a core's buffers.
            let next = ((sub / PIECE_SUB_BLOCKS + 1) * PIECE_SUB_BLOCKS).min(end);
            let per = PAGES_PER_SUB_BLOCK as u32;
            let piece = sub * per..(next * per).min(pages);
            if !self.plan.keep_once || !self.model.holds_any(block, piece.clone()) {
                self.keep_piece(block, piece)?;
            }
            sub = next;
        }
        Ok(())
    }

    fn keep_piece(&mut self, block: BlockId, pages: Range<u32>) -> Result<(), String> {
        for _ in 0..1_000 {
            match self.node.keep(&self.model.universe, block, pages.clone()) {
                Some(taken) => {
                    self.model.handed_in(block, pages, taken);
                    // A refusal means that the device is behind: wait a little, as an origin would.
                    let wait = if taken { 0 } else { 3 };
                    return self.pass(Duration::from_millis(wait));
                }
                None => self.pass(Duration::from_millis(1))?,
            }
        }
        Err("there is never a buffer for a fill".into())
    }

    fn read(&mut self, block: u16, page: u16, len: u16) -> Result<(), String> {
        let (block, _) = self.model.universe.block(block.into());
        let page = u32::from(page) % self.model.universe.pages(block);
        let Some(extent) = self.node.disk(block).extent(block, page) else {
            return Ok(());
        };
        let len = 1 + u32::from(len) % READ_PAGES_MAX;
        self.read_pages(block, page..extent.end.min(page + len))
            .map(drop)
    }

    /// Begins a read; false when it was not taken.
    fn read_pages(&mut self, block: BlockId, pages: Range<u32>) -> Result<bool, String> {
        let ticket = self.model.ask(block, pages.clone());
        let block_bytes = self.model.universe.len_bytes(block);
        let taken = self.node.read(ticket, block, block_bytes, pages);
        if !taken {
            self.model.withdraw(ticket);
        }
        Ok(taken)
    }

    fn pin(&mut self, block: u16) -> Result<(), String> {
        let (block, len_bytes) = self.model.universe.block(block.into());
        let data: u64 = self.bays.iter().map(Bay::data_bytes).min().unwrap_or(0);
        // Small enough that reclaim works with what is left, on one core of three.
        if self.model.pinned_bytes() + u64::from(len_bytes) <= data / 24 {
            self.pin_block(block);
        }
        Ok(())
    }

    fn pin_block(&mut self, block: BlockId) {
        let disk = self.node.disk_mut(block);
        // Far below what may be pinned.
        disk.pin(block, true).expect("a small pin fits");
        let pages = 0..self.model.universe.pages(block);
        let there = pages.filter(|page| disk.extent(block, *page).is_some());
        let there = there.collect();
        self.model.pinned(block, there);
    }

    /// Lets some time pass.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    pub fn pass(&mut self, span: Duration) -> Result<(), String> {
        let until = self.clock.now() + span;
        loop {
            for event in self.node.settle()? {
                self.model.judge(event)?;
            }
            let next = self.node.next_at().filter(|at| *at <= until);
            match next.filter(|_| !self.is_off()) {
                Some(at) => self.clock.advance_to(at),
                None => {
                    self.clock.advance_to(until);
                    return Ok(());
                }
            }
        }
    }

    /// Lets things happen until `goal`, or until the power fails.
    fn until(&mut self, what: &str, goal: impl Fn(&Node) -> bool) -> Result<(), String> {
        let last = self.clock.now() + PATIENCE;
        loop {
            for event in self.node.settle()? {
                self.model.judge(event)?;
            }
            if self.is_off() || goal(&self.node) {
                return Ok(());
            }
            match self.node.next_at() {
                Some(at) if at <= last => self.clock.advance_to(at),
                next => {
                    let why = if next.is_some() {
                        "in time"
                    } else {
                        "while everything sleeps"
                    };
                    let stats = self.node.stats();
                    return Err(format!("{what} does not come {why}: {stats:?}"));
                }
            }
        }
    }

    /// Waits until nothing is under way, and looks at everything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn rest(&mut self) -> Result<(), String> {
        self.until("rest", Node::is_quiet)?;
        if self.is_off() {
            return Ok(());
        }
        at_rest(&mut self.node, &mut self.model)
    }

    /// Reads everything that the disk tier says it holds.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read_everything(&mut self) -> Result<(), String> {
        let all = found(&self.node, &self.model)?;
        let mut rest = all.iter().copied().peekable();
        while let Some((block, page)) = rest.next() {
            let mut end = page + 1;
            while end - page < READ_PAGES_MAX
                && rest.next_if(|next| *next == (block, end)).is_some()
            {
                end += 1;
            }
            let mut page = page;
            while page < end && !self.is_off() {
                // Reclaimed meanwhile, perhaps: what is expected is compared at rest.
                let Some(extent) = self.node.disk(block).extent(block, page) else {
                    page += 1;
                    continue;
                };
                let piece = page..extent.end.min(end);
                if self.read_pages(block, piece.clone())? {
                    page = piece.end;
                } else {
                    self.pass(Duration::from_millis(1))?;
                }
            }
        }
        self.rest()
    }

    /// The process ends, and another one starts.
    ///
    /// # Errors
    /// What is wrong with what it finds.
    pub fn restart(&mut self, end: End, cores: usize) -> Result<(), String> {
        if end == End::Orderly {
            self.node.settle_disks();
            self.rest()?;
            // The power may have failed in the middle of it.
            let end = if self.is_off() { End::PowerCut } else { end };
            return self.replace(end, cores);
        }
        self.replace(end, cores)
    }

    fn resize(&mut self, bay: usize, regions: u32) -> Result<(), String> {
        self.node.settle_disks();
        self.rest()?;
        if self.is_off() {
            return Ok(());
        }
        let bay = &mut self.bays[bay];
        bay.geometry.regions = regions;
        if self.rng.chance(500) {
            // A file is cut; a block device keeps what lies behind.
            let sectors = bay.capacity_bytes() / u64::from(bay.sector_bytes);
            bay.media.borrow_mut().truncate(sectors);
        }
        let cores = self.node.config().cores;
        self.replace(End::Killed, cores)
    }

    fn replace(&mut self, end: End, cores: usize) -> Result<(), String> {
        let stats = self.node.stats();
        let evicted = stats.devices.iter().map(|device| device.evicted_bytes);
        self.evicted_bytes += evicted.sum::<u64>();
        let durable = (end == End::PowerCut).then(|| Durable::read(&self.bays));
        for bay in &self.bays {
            if end == End::PowerCut {
                bay.media.borrow_mut().fail_power();
            }
        }
        self.incarnation += 1;
        let config = NodeConfig {
            cores,
            ..self.plan.node.clone()
        };
        let seed = self.plan.seed;
        // Queue pairs of the old process first: some of what they have under way arrives.
        let none = Node::start(config.clone(), &[], &self.clock, seed, self.incarnation);
        std::mem::replace(&mut self.node, none).end()?;
        if end == End::PowerCut {
            for bay in &self.bays {
                bay.media.borrow_mut().power_cut(&mut self.rng);
            }
        }
        let claimed = on_media(&self.bays, &self.model, durable.as_ref())?;
        let expected: Vec<PageName> = self.model.expected().collect();
        let whole = end == End::Orderly;
        self.model.rehomed |= cores != self.cores;
        self.cores = cores;
        self.node = Node::start(config, &self.bays, &self.clock, seed, self.incarnation);
        self.model.new_life(&BTreeSet::new(), BTreeSet::new());
        self.until("recovery", Node::has_recovered)?;
        if self.is_off() {
            return Ok(());
        }
        let found = found(&self.node, &self.model)?;
        if !self.model.faulty {
            let must = expected.iter().filter(|_| whole);
            self.compare(&claimed, &found, must)?;
        }
        let foreign = self.foreign();
        self.model.new_life(&found, foreign);
        let pinned: Vec<BlockId> = self.model.pinned_blocks().collect();
        for block in pinned {
            self.pin_block(block);
        }
        Ok(())
    }

    /// What recovery found must be what the devices claim, but for what was evicted since.
    fn compare<'a>(
        &self,
        claimed: &BTreeSet<PageName>,
        found: &BTreeSet<PageName>,
        expected: impl Iterator<Item = &'a PageName>,
    ) -> Result<(), String> {
        if let Some(page) = found.difference(claimed).next() {
            return Err(format!("{page:?} was recovered, and no device names it"));
        }
        let stats = self.node.stats();
        let evicted: u64 = stats
            .devices
            .iter()
            .map(|device| device.evicted_bytes)
            .sum();
        let entries: u64 = stats.devices.iter().map(|device| device.entries).sum();
        if entries >= self.plan.node.entries_max as u64 * 7 / 8 {
            // The index is full: not all that the devices hold fits into it.
            return Ok(());
        }
        // Where every region was full, some were emptied for what comes.
        let made_room = stats
            .devices
            .iter()
            .map(|device| match device.regions_free {
                free if free <= 2 * self.cores as u64 => free * device.region_bytes,
                _ => 0,
            });
        let evicted = evicted + made_room.sum::<u64>();
        let mut missing: BTreeSet<PageName> = claimed.difference(found).copied().collect();
        missing.extend(expected.filter(|page| !found.contains(*page)));
        if missing.len() as u64 * PAGE_BYTES as u64 > evicted {
            let some: Vec<_> = missing
                .iter()
                .take(2)
                .map(|page| (page, self.named_by(page)))
                .collect();
            return Err(format!(
                "{} pages were not recovered, {} of them not even on media, and {evicted} bytes evicted: \
                 {some:?}; {stats:?}",
                missing.len(),
                missing.difference(claimed).count()
            ));
        }
        Ok(())
    }

    /// Pages that regions of other cores than their own name, also where their own does: which of two entries
    /// the index holds is its affair.
    fn foreign(&self) -> BTreeSet<PageName> {
        let mut foreign = BTreeSet::new();
        for region in self
            .bays
            .iter()
            .flat_map(|bay| claims(&Platter::of(bay, false)))
        {
            let owner = region.header.region as usize % self.cores;
            let pages = pages_of(&[region]);
            foreign.extend(
                pages
                    .into_iter()
                    .filter(|page| self.node.core_of(page.0) != owner),
            );
        }
        foreign
    }

    /// The headers of the regions that name a page, for messages.
    fn named_by(&self, (block, page): &PageName) -> Vec<(RegionHeader, bool, EntryRecord)> {
        let regions = self
            .bays
            .iter()
            .flat_map(|bay| claims(&Platter::of(bay, false)));
        let entries = regions.flat_map(|region| {
            let (header, sealed) = (region.header, region.sealed);
            region
                .entries
                .into_iter()
                .map(move |(entry, _)| (header, sealed, entry))
        });
        entries
            .filter(|(_, _, entry)| {
                let first = u32::from(entry.first_page);
                entry.block == *block && (first..first + entry.pages()).contains(page)
            })
            .collect()
    }

    /// Ends in order, and looks at everything once more.
    ///
    /// # Errors
    /// What is wrong.
    pub fn finish(mut self) -> Result<(Tally, DiskStats), String> {
        if self.is_off() {
            self.restart(End::PowerCut, 2)?;
        }
        self.rest()?;
        self.read_everything()?;
        let cores = self.node.config().cores;
        self.restart(End::Orderly, cores)?;
        self.read_everything()?;
        let (tally, stats) = (self.model.tally.clone(), self.node.stats());
        self.node.end()?;
        Ok((tally, stats))
    }
}
