//! How processes end in the middle of a run, and others start on the same disks.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::client::Client;
use forebay_engine::identity::ObjectId;
use forebay_engine::limits::{PAGE_BYTES, PAGES_PER_SUB_BLOCK, SUB_BLOCKS_PER_BLOCK};
use forebay_engine::ports::Clock;

use super::audit::sub_blocks;
use super::board::Ticket;
use super::scenario::End;
use super::seat::{Process, Seat, seat};
use super::world::World;
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
}

impl World {
    /// What the cores say of themselves, for a failure.
    pub(super) fn describe(&self) -> String {
        let cores = self.life.seats.iter().enumerate().map(|(core, seat)| {
            let stats = seat.stats();
            let (used, flight) = (stats.memory_used_bytes, stats.memory_in_flight_bytes);
            format!(
                "  core {core}: {} reads wait; memory: {} bytes, {used} frozen, {flight} in flight; quiet: {}; {:?}\n",
                stats.reads_waiting,
                stats.memory_bytes,
                seat.is_quiet(),
                stats.disk.devices,
            )
        });
        cores.collect()
    }

    /// The process ends as `end` says, and another one starts with `cores` cores.
    pub(super) fn restart(&mut self, end: End, cores: usize) -> Result<(), String> {
        let began = self.clock.now();
        let open = self.board.open();
        let text = format_args!("restart {end:?} with {cores} cores, {open} open");
        self.trace.event(began, text);
        // Also what waits in a ring may send a GET before the core hears of the end.
        self.facts.cut_short = true;
        let before = self.life.seats.len();
        match end {
            End::Orderly => self.stop_orderly()?,
            End::PowerCut => self.cut_power(),
        }
        self.lives += 1;
        let shared: Vec<_> = (0..)
            .zip(&self.bays)
            .map(|(number, bay)| bay.shared(number))
            .collect();
        let process = Process {
            scenario: &self.scenario,
            clock: &self.clock,
            trace: &self.trace,
            store: &self.store,
            bays: &self.bays,
            shared: &shared,
            cores,
            life: self.lives,
        };
        let life = Life::start(&process).map_err(|error| format!("no new process: {error}"))?;
        // What of the old process is left dies here, its rings included.
        self.board.set_dying(end == End::PowerCut);
        drop(std::mem::replace(&mut self.life, life));
        self.board.set_dying(false);
        if end == End::PowerCut {
            for bay in &self.bays {
                bay.media.borrow_mut().power_cut(&mut self.rng);
            }
        }
        let now = self.clock.now();
        self.trace.event(now, format_args!("started"));
        self.facts.restarted(began, now);
        self.facts.rehomed |= before != cores;
        self.look_at_disks();
        Ok(())
    }

    fn stop_orderly(&mut self) -> Result<(), String> {
        self.life.client.shutdown();
        let last = self.clock.now() + self.scenario.io_timeout + ORDERLY_END_MAX;
        loop {
            self.settle()?;
            if self.life.seats.iter().all(Seat::is_quiet) {
                break;
            }
            if let Some(violation) = self.board.violation() {
                return Err(violation);
            }
            match self.life.seats.iter().filter_map(Seat::next_at).min() {
                Some(at) if at <= last => self.clock.advance_to(at),
                next => return Err(format!("an orderly end does not come; next event {next:?}")),
            }
        }
        let open = self.board.open();
        if open > 0 {
            return Err(format!("{open} operations open after an orderly end"));
        }
        for seat in &self.life.seats {
            let stats = seat.stats();
            if stats.memory_in_flight_bytes > 0 || stats.reads_waiting > 0 {
                return Err(format!(
                    "bytes in flight after shutdown, or reads that wait: {stats:?}"
                ));
            }
            self.facts.past.add(&stats);
        }
        Ok(())
    }

    fn cut_power(&mut self) {
        for seat in &self.life.seats {
            self.facts.past.add(&seat.stats());
            self.facts.died_bytes += seat.origin.unpolled_bytes();
        }
        for bay in &self.bays {
            bay.media.borrow_mut().fail_power();
        }
    }

    /// What was fetched and no disk has after a restart may be fetched again.
    fn look_at_disks(&mut self) {
        let mut there: BTreeSet<(ObjectId, u64)> = BTreeSet::new();
        for region in self
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
