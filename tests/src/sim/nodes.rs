//! Nodes: their disks, their processes, and how these end and others start on the same disks.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::client::Client;
use forebay_engine::identity::{ObjectId, Slot};
use forebay_engine::limits::{
    PAGE_BYTES, PAGES_PER_SUB_BLOCK, RANKS, SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK,
};
use forebay_engine::placement::Placement;
use forebay_engine::ports::{Clock, PeerCore, Time};

use super::audit::sub_blocks;
use super::bay::Bay;
use super::board::Ticket;
use super::roster::peer_of;
use super::scenario::{End, NodePlan, Scenario};
use super::seat::{Process, Seat, seat};
use super::world::{Event, World};
use crate::disk::media::{Platter, claims};

/// Virtual time that an orderly end may take, beside what the origin needs to end cancelled GETs.
const ORDERLY_END_MAX: Duration = Duration::from_secs(60);

/// A process: its cores, and the front end's way to them.
pub(super) struct Life {
    pub seats: Vec<Seat>,
    pub client: Client<Ticket>,
}

impl Life {
    /// Starts a process.
    pub fn start(process: &Process<'_>) -> io::Result<Self> {
        let mut seats = Vec::new();
        let mut rings = Vec::new();
        for core in 0..process.cores {
            let (seat, ring) = seat(core, process)?;
            seats.push(seat);
            rings.push(ring);
        }
        let clock = Arc::new(process.clock.clone());
        let client = Client::new(rings.into(), clock, process.scenario.io_timeout);
        Ok(Self { seats, client })
    }

    pub fn is_quiet(&self) -> bool {
        self.seats.iter().all(Seat::is_quiet)
    }

    /// Tells all cores of a view.
    pub fn tell(&self, placement: &Arc<Placement>) {
        for seat in &self.seats {
            seat.membership.tell(placement.clone());
        }
    }
}

/// An orderly end under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    began: Time,
    /// Cores of the next process.
    cores: usize,
}

/// A node of the world.
pub(super) struct Node {
    pub plan: NodePlan,
    pub bays: Vec<Bay>,
    /// The present process, if there is one.
    pub life: Option<Life>,
    /// Processes that have ended.
    pub lives: u64,
    pub ending: Option<Ending>,
    pub paused_until: Option<Time>,
    /// A later view does not overtake an earlier one.
    pub told_until: Time,
    /// It will not come back.
    pub is_lost: bool,
}

impl Node {
    /// A node with empty disks and no process.
    pub fn new(scenario: &Scenario, number: usize) -> Self {
        let plan = scenario.nodes[number].clone();
        let sizes = (0..).zip(&plan.disks.sizes);
        let bays = sizes.map(|(disk, (capacity, region, sector))| {
            let seed = (scenario.seed * 8 + number as u64) * 8 + disk;
            Bay::new(seed, *capacity, *region, *sector)
        });
        Self {
            bays: bays.collect(),
            plan,
            life: None,
            lives: 0,
            ending: None,
            paused_until: None,
            told_until: Time(0),
            is_lost: false,
        }
    }

    /// Its cores that run: none while it is off or paused.
    pub fn seats(&self) -> &[Seat] {
        match &self.life {
            Some(life) if self.paused_until.is_none() => &life.seats,
            _ => &[],
        }
    }

    /// Whether its readers may ask.
    pub fn takes_questions(&self) -> bool {
        self.life.is_some() && self.ending.is_none()
    }
}

impl World {
    /// What the cores say of themselves, for a failure.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let seats = node.life.iter().flat_map(|life| &life.seats);
            for (core, seat) in seats.enumerate() {
                let stats = seat.stats();
                let (used, flight) = (stats.memory_used_bytes, stats.memory_in_flight_bytes);
                text += &format!(
                    "  node {number} core {core}: {} reads wait; memory: {} bytes, {used} frozen, {flight} in flight; quiet: {}; lent to the network: {}; {:?}\n",
                    stats.reads_waiting,
                    stats.memory_bytes,
                    seat.is_quiet(),
                    seat.transport.under_way(),
                    stats.disk.devices,
                );
            }
        }
        text
    }

    /// A process starts on a node that has none.
    pub(super) fn start(&mut self, number: usize, cores: usize) -> Result<(), String> {
        let node = &mut self.nodes[number];
        let shared: Vec<_> = (0..)
            .zip(&node.bays)
            .map(|(disk, bay)| bay.shared(disk))
            .collect();
        let process = Process {
            scenario: &self.scenario,
            plan: &node.plan,
            clock: &self.clock,
            trace: &self.trace,
            store: &self.store,
            network: &self.network,
            bays: &node.bays,
            shared: &shared,
            cores,
            node: number,
            life: node.lives,
        };
        let life = Life::start(&process).map_err(|error| format!("no new process: {error}"))?;
        node.life = Some(life);
        let text = format_args!("node {number} starts with {cores} cores");
        self.trace.event(self.clock.now(), text);
        self.enter_group(number);
        Ok(())
    }

    /// A process is told to end, or ends at once.
    pub(super) fn end(&mut self, number: usize, end: End, cores: usize) -> Result<(), String> {
        let began = self.clock.now();
        let open = self.board.open();
        let node = &mut self.nodes[number];
        let Some(life) = node.life.as_ref().filter(|_| node.ending.is_none()) else {
            return Ok(());
        };
        let text = format_args!("node {number} ends {end:?}, then {cores} cores, {open} open");
        self.trace.event(began, text);
        // Also what waits in a ring may send a GET before the core hears of the end.
        self.facts.cut_short = true;
        match end {
            End::Orderly => {
                life.client.shutdown();
                node.ending = Some(Ending { began, cores });
                self.facts.ends_began.insert(number, began);
                self.forget_node(number);
                Ok(())
            }
            End::PowerCut => {
                self.kill(number);
                self.facts.restarted(number, began, began);
                self.start(number, cores)?;
                self.has_restarted(number, cores);
                Ok(())
            }
        }
    }

    /// Goes on with orderly ends whose cores are quiet.
    pub(super) fn follow_endings(&mut self) -> Result<bool, String> {
        let now = self.clock.now();
        let mut some = false;
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            let (Some(ending), Some(life)) = (node.ending, &node.life) else {
                continue;
            };
            if !life.is_quiet() {
                if now > ending.began + self.scenario.io_timeout + ORDERLY_END_MAX {
                    return Err(format!("an orderly end of node {number} does not come"));
                }
                continue;
            }
            some = true;
            for seat in &life.seats {
                let stats = seat.stats();
                if stats.memory_in_flight_bytes > 0 || stats.reads_waiting > 0 {
                    return Err(format!(
                        "bytes in flight after shutdown, or reads that wait: {stats:?}"
                    ));
                }
                self.facts.past.add(&stats);
            }
            let rehomed = life.seats.len() != ending.cores;
            node.ending = None;
            node.lives += 1;
            self.leave_network(number);
            drop(self.nodes[number].life.take());
            self.facts.ends_began.remove(&number);
            self.facts.restarted(number, ending.began, now);
            self.facts.rehomed |= rehomed;
            self.start(number, ending.cores)?;
            self.has_restarted(number, ending.cores);
        }
        Ok(some)
    }

    pub(super) fn has_restarted(&mut self, number: usize, cores: usize) {
        let node = &mut self.nodes[number];
        self.facts.rehomed |= node.plan.cores != cores;
        node.plan.cores = cores;
        match self.scenario.group {
            None => self.look_at_disks(number),
            Some(_) => self.forget_node(number),
        }
    }

    fn leave_network(&mut self, number: usize) {
        let cores = self.nodes[number]
            .life
            .as_ref()
            .map_or(0, |l| l.seats.len());
        for core in 0..cores as u16 {
            let peer = peer_of(number);
            self.network.leave(PeerCore { peer, core });
        }
    }

    /// The power fails: what is under way dies, what disks had not flushed may be lost.
    pub(super) fn kill(&mut self, number: usize) {
        self.forget_node(number);
        let node = &mut self.nodes[number];
        node.ending = None;
        node.paused_until = None;
        node.lives += 1;
        for seat in node.life.iter().flat_map(|life| &life.seats) {
            self.facts.past.add(&seat.stats());
            self.facts.died_bytes += seat.origin.unpolled_bytes();
        }
        for bay in &node.bays {
            bay.media.borrow_mut().fail_power();
        }
        self.leave_network(number);
        // Its rings included.
        self.board.set_dying(true);
        drop(self.nodes[number].life.take());
        self.board.set_dying(false);
        for bay in &self.nodes[number].bays {
            bay.media.borrow_mut().power_cut(&mut self.rng);
        }
    }

    /// Its process stands still until `until`.
    pub(super) fn pause(&mut self, number: usize, until: Time) {
        let node = &mut self.nodes[number];
        if node.life.is_some() && node.ending.is_none() {
            node.paused_until = Some(until);
            self.board.excuse(number, until);
            self.plan.push(until, Event::Resume(number));
        }
    }

    /// What a member holds may be fetched once more when it ends: what it owned in any view, and, once some
    /// member has been away, what it held in another's stead.
    pub(super) fn forget_node(&mut self, number: usize) {
        if self.scenario.group.is_none() {
            return;
        }
        let ranks = match self.facts.someone_was_away {
            true => RANKS,
            false => 1,
        };
        let peer = peer_of(number);
        let store = self.store.borrow();
        for (sub_block, times) in &store.sent_sub_blocks {
            let (object, number) = *sub_block;
            let slot = Slot::of_stripe(object, number * SUB_BLOCK_BYTES as u64);
            let stood = |view: &Arc<Placement>| {
                let mut ranked = view.ranked(slot).take(ranks);
                ranked.any(|member| member.id == peer)
            };
            if self.views.iter().any(stood) {
                self.facts.forgotten.insert(*sub_block, *times);
            }
        }
        self.facts.someone_was_away = true;
    }

    /// What was fetched and no disk has after a restart may be fetched again.
    fn look_at_disks(&mut self, number: usize) {
        let mut there: BTreeSet<(ObjectId, u64)> = BTreeSet::new();
        for region in self.nodes[number]
            .bays
            .iter()
            .flat_map(|bay| claims(&Platter::of(bay, false)))
        {
            for (entry, _) in region.entries {
                let end = u32::from(entry.first_page) + entry.pages();
                let short = !(entry.len_bytes as usize).is_multiple_of(PAGE_BYTES);
                let per = PAGES_PER_SUB_BLOCK as u32;
                let first = u32::from(entry.first_page).div_ceil(per);
                // An entry that does not end in a whole page ends with its object.
                let last = if short { end.div_ceil(per) } else { end / per };
                let of_block = u64::from(entry.block.index) * SUB_BLOCKS_PER_BLOCK as u64;
                there.extend((first..last).map(|sub| {
                    let number = of_block + u64::from(sub);
                    (entry.block.object, number)
                }));
            }
        }
        let store = self.store.borrow();
        let keys = store.bucket.keys();
        let versions = keys.flat_map(|key| store.bucket.generations(key));
        for generation in versions {
            let object = &generation.version;
            for sub_block in sub_blocks(object, 0, object.size_bytes) {
                let times = store.sent_sub_blocks.get(&sub_block).copied().unwrap_or(0);
                if !there.contains(&sub_block) {
                    // All that was sent so far is forgotten, but for what it says of before.
                    self.facts.forgotten.insert(sub_block, times);
                }
            }
        }
    }
}
