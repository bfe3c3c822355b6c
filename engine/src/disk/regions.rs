//! The regions of one device that this core owns: which are free, which hold what, which goes next.

use std::collections::VecDeque;

use super::geometry::Geometry;
use super::layout::{EntryRecord, Queue};
use crate::arena::Lease;

/// What a region is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Holds nothing. `punched`: takes no room on the device either.
    Free { punched: bool },
    /// Its header is on its way to stable media.
    Opening,
    /// Batches are appended.
    Open,
    /// Full; its footer is being written.
    Sealing,
    /// Complete on the device.
    Sealed,
    /// Could not be written to its end: readable, and gone at the next reclaim.
    Abandoned,
    /// What is worth keeping is being moved out of it.
    Reclaiming,
    /// Emptied; its header is being made void, so that the next run does not find what was in it.
    Voiding,
    /// Its contents are being given back to the device.
    Discarding,
}

/// What is known of an unsealed region in memory: after sealing it is read from the footer.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Entries, in the order of appending.
    pub records: Vec<EntryRecord>,
    /// Checksum of each page from the region's first on; 0 for header pages.
    pub checksums: Vec<u32>,
}

/// One region.
#[derive(Debug)]
pub(super) struct Region {
    state: State,
    pub queue: Queue,
    pub generation: u32,
    pub sequence: u64,
    /// Pages appended so far, headers included; a sealed region counts whole.
    pub used_pages: u32,
    /// Entries in the footer, and where its table begins.
    pub entries: u32,
    pub entry_table_page: u32,
    /// Of the entry table and of the checksum table in the footer.
    pub table_crcs: [u32; 2],
    /// Reads under way; a region is overwritten only when there are none.
    pub readers: u32,
    pub held: Option<Box<Held>>,
    /// Its trailer, until the tables that it describes last.
    pub trailer: Option<Lease>,
    /// The device had no room for all of it: to be given back before it is used again.
    pub partial: bool,
    /// Written under another number of cores: other cores may have entries here.
    pub rehomed: bool,
    /// A write to it failed for a reason that will come back: not to be opened again.
    pub bad: bool,
}

impl Region {
    pub fn state(&self) -> State {
        self.state
    }

    fn blank() -> Self {
        Self {
            state: State::Free { punched: true },
            queue: Queue::Small,
            generation: 0,
            sequence: 0,
            used_pages: 0,
            entries: 0,
            entry_table_page: 0,
            table_crcs: [0; 2],
            readers: 0,
            held: None,
            trailer: None,
            partial: false,
            rehomed: false,
            bad: false,
        }
    }
}

/// The regions that core `core` of `cores` owns: `core`, `core + cores`, ...
#[derive(Debug)]
pub(super) struct Regions {
    core: u32,
    cores: u32,
    all: Vec<Region>,
    /// Free ones, those that take room on the device first.
    free: VecDeque<u32>,
    /// Sealed and abandoned ones, oldest first.
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Regions that take no room on the device.
    punched: usize,
    /// Regions that hold something, by queue.
    holding: [usize; 2],
    /// Of the region opened last.
    pub sequence: u64,
    /// Another number in each run.
    pub run: u64,
}

impl Regions {
    pub fn new(geometry: Geometry, core: usize, cores: usize, incarnation: u64) -> Self {
        let (core, cores) = (core as u32, cores.max(1) as u32);
        let count = geometry.regions.saturating_sub(core).div_ceil(cores);
        Self {
            core,
            cores,
            all: (0..count).map(|_| Region::blank()).collect(),
            free: VecDeque::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            punched: count as usize,
            holding: [0; 2],
            sequence: incarnation,
            run: incarnation,
        }
    }

    pub fn core(&self) -> u32 {
        self.core
    }

    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// Regions owned.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Numbers of all regions owned.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let (core, cores) = (self.core, self.cores);
        (0..self.all.len() as u32).map(move |n| core + n * cores)
    }

    pub fn is_own(&self, region: u32) -> bool {
        region % self.cores == self.core && ((region / self.cores) as usize) < self.all.len()
    }

    pub fn get(&self, region: u32) -> Option<&Region> {
        if region % self.cores != self.core {
            return None;
        }
        self.all.get((region / self.cores) as usize)
    }

    pub fn get_mut(&mut self, region: u32) -> Option<&mut Region> {
        if region % self.cores != self.core {
            return None;
        }
        self.all.get_mut((region / self.cores) as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.all.iter()
    }

    /// After recovery: puts every free region into the free list, those that take room first.
    pub fn collect_free(&mut self) {
        let mut free: Vec<u32> = self.numbers().collect();
        free.retain(|number| {
            self.get(*number)
                .is_some_and(|region| matches!(region.state, State::Free { .. }) && !region.bad)
        });
        let punched = |number: &u32| {
            self.get(*number)
                .is_some_and(|region| region.state == State::Free { punched: true })
        };
        free.sort_by_key(punched);
        self.free = free.into();
    }

    /// Takes a free region; only one that takes room already, unless `allow_growth`.
    pub fn take_free(&mut self, allow_growth: bool) -> Option<u32> {
        let first = *self.free.front()?;
        let takes_room = self
            .get(first)
            .is_some_and(|region| region.state == State::Free { punched: false });
        if !takes_room && !allow_growth {
            return None;
        }
        self.free.pop_front()
    }

    /// Free regions that may be opened now.
    pub fn usable(&self, allow_growth: bool) -> usize {
        if allow_growth {
            return self.free.len();
        }
        let takes_room = |region: &&u32| {
            self.get(**region)
                .is_some_and(|region| region.state == State::Free { punched: false })
        };
        // Nobody asks for more than these.
        self.free
            .iter()
            .take(super::reclaim::FREE_MIN)
            .take_while(takes_room)
            .count()
    }

    /// Free regions that may be opened, of which at most `growth` take more room on the device; no more than there are.
    pub fn room(&self, growth: usize) -> usize {
        let taking = self.free.len().saturating_sub(self.punched);
        self.free.len().min(taking + self.punched.min(growth))
    }

    /// The region holds nothing any more. Its header is still there: see [`Regions::free`].
    pub fn vacate(&mut self, region: u32, state: State) {
        let Some(entry) = self.get_mut(region) else {
            return;
        };
        let queue = entry.queue;
        entry.used_pages = 0;
        entry.entries = 0;
        entry.held = None;
        entry.rehomed = false;
        self.holding[queue as usize] -= 1;
        self.set_state(region, state);
    }

    /// A region that holds nothing can be opened.
    pub fn free(&mut self, region: u32, punched: bool) {
        self.set_state(region, State::Free { punched });
        if self.get(region).is_none_or(|entry| entry.bad) {
            return;
        }
        // Room that is already taken is used before the file grows.
        if punched {
            self.free.push_back(region);
        } else {
            self.free.push_front(region);
        }
    }

    /// The region holds nothing any more, and nothing on the device says that it does.
    pub fn release(&mut self, region: u32, punched: bool) {
        self.vacate(region, State::Free { punched });
        self.free(region, punched);
    }

    /// A free region is to be used otherwise than to be opened. False when it cannot be written.
    pub fn unfree(&mut self, region: u32) -> bool {
        let before = self.free.len();
        self.free.retain(|free| *free != region);
        self.free.len() < before
    }

    /// A free region that takes room on the device, for giving it back.
    pub fn take_unpunched(&mut self) -> Option<u32> {
        self.take_free(false)
    }

    /// Whether the device holds only a part of the region; not any more from here on.
    pub fn take_partial(&mut self, region: u32) -> bool {
        self.get_mut(region)
            .is_some_and(|entry| std::mem::take(&mut entry.partial))
    }

    /// A free region was given back to the device; or could not be, and is left alone until the next start.
    pub fn discarded(&mut self, region: u32, done: bool) {
        self.set_state(region, State::Free { punched: true });
        match self.get_mut(region) {
            Some(entry) if done && !entry.bad => self.free.push_back(region),
            Some(entry) => entry.bad = true,
            None => {}
        }
    }

    /// The region's contents are final: it joins its queue as the youngest.
    pub fn enqueue(&mut self, region: u32) {
        let Some(queue) = self.get(region).map(|region| region.queue) else {
            return;
        };
        match queue {
            Queue::Small => self.small.push_back(region),
            Queue::Main => self.main.push_back(region),
        }
    }

    /// Takes the oldest region of a queue.
    pub fn take_oldest(&mut self, queue: Queue) -> Option<u32> {
        match queue {
            Queue::Small => self.small.pop_front(),
            Queue::Main => self.main.pop_front(),
        }
    }

    /// The oldest region of a queue.
    pub fn oldest(&self, queue: Queue) -> Option<u32> {
        match queue {
            Queue::Small => self.small.front().copied(),
            Queue::Main => self.main.front().copied(),
        }
    }

    /// The complete regions of a queue, oldest first.
    pub fn members(&self, queue: Queue) -> impl Iterator<Item = u32> + '_ {
        let members = match queue {
            Queue::Small => &self.small,
            Queue::Main => &self.main,
        };
        members.iter().copied()
    }

    /// All complete regions.
    pub fn queue_members(&self) -> impl Iterator<Item = u32> + '_ {
        self.small.iter().chain(&self.main).copied()
    }

    /// Takes a complete region out of its queue, wherever it stands.
    pub fn dequeue(&mut self, region: u32) {
        self.small.retain(|member| *member != region);
        self.main.retain(|member| *member != region);
    }

    /// How many regions cannot be written, and how many there are, when those are more than half.
    pub fn mostly_bad(&self) -> Option<(usize, usize)> {
        let (bad, all) = (
            self.all.iter().filter(|region| region.bad).count(),
            self.all.len(),
        );
        (2 * bad > all).then_some((bad, all))
    }

    /// Drops buffers that wait to be written.
    pub fn drop_buffers(&mut self) {
        for region in &mut self.all {
            region.trailer = None;
        }
    }

    /// Complete regions of a queue.
    pub fn queued(&self, queue: Queue) -> usize {
        match queue {
            Queue::Small => self.small.len(),
            Queue::Main => self.main.len(),
        }
    }

    /// Regions of a queue that hold something, open ones included.
    pub fn count(&self, queue: Queue) -> usize {
        self.holding[queue as usize]
    }

    /// The region begins to hold something, for `queue`.
    pub fn hold(&mut self, region: u32, queue: Queue, state: State) {
        if let Some(entry) = self.get_mut(region) {
            entry.queue = queue;
            self.holding[queue as usize] += 1;
        }
        self.set_state(region, state);
    }

    /// Regions that take room on the device.
    pub fn occupied(&self) -> usize {
        self.all.len() - self.punched
    }

    /// The only way for a region's state to change: what takes room is counted along.
    pub fn set_state(&mut self, region: u32, state: State) {
        let Some(entry) = self.get_mut(region) else {
            return;
        };
        let takes_none = |state| usize::from(state == State::Free { punched: true });
        let before = takes_none(std::mem::replace(&mut entry.state, state));
        self.punched = self.punched + takes_none(state) - before;
    }

    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}
