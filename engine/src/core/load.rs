//! A load's life: sub-blocks on their way from the disk tier into the memory index. To the disk what
//! a fill is to the origin.
//!
//! ```text
//! planned -> queued -> running -> installed
//!              |          | missed: planned again, from the origin
//!              moved or gone meanwhile: planned again
//! ```
//!
//! One load is one device read: a whole chunk, or one sub-block. The disk tier bounds how long it
//! takes, so a load has no timer of its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::Core;
use super::disk_events::Ticket;
use super::group::Reach;
use super::index::{BlockKey, Mask, Piece, Promise, mask};
use super::plan::{Ask, Planned, next_piece, place};
use crate::arena::{Denied, Lease, Share};
use crate::disk::{DiskMiss, DiskRead};
use crate::errors::ReadError;
use crate::identity::{BlockId, ObjectVersion};
use crate::limits::{
    FILLS_PER_CORE_MAX, PAGE_BYTES, PAGES_PER_SUB_BLOCK, PREFETCH_LOADS_PER_CORE_MAX,
    SUB_BLOCK_BYTES, SUB_BLOCKS_PER_BLOCK,
};
use crate::ports::{Class, Platform, Time};

/// Names a load; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoadKey {
    pub slot: usize,
    pub id: u64,
}

#[derive(Debug)]
pub(super) struct Load {
    id: u64,
    object: Arc<ObjectVersion>,
    block: BlockKey,
    at: BlockId,
    first_sub: usize,
    subs: usize,
    len_bytes: usize,
    class: Class,
    deadline: Time,
    /// The farthest that anyone who waits for it may go.
    reach: Reach,
    for_peer: bool,
    running: bool,
    /// Counts as one of the prefetches under way, also when it has become urgent since.
    begun_as_prefetch: bool,
}

impl Load {
    fn mask(&self) -> Mask {
        mask(self.first_sub, self.subs)
    }

    /// Pages of the block.
    fn pages(&self) -> Range<u32> {
        let first = (self.first_sub * PAGES_PER_SUB_BLOCK) as u32;
        first..first + self.len_bytes.div_ceil(PAGE_BYTES) as u32
    }

    /// Bytes of the object.
    fn bytes(&self) -> Range<u64> {
        let start = self.at.offset() + (self.first_sub * SUB_BLOCK_BYTES) as u64;
        start..start + self.len_bytes as u64
    }
}

/// Loads, queued and under way.
#[derive(Debug, Default)]
pub(super) struct Loads {
    all: slab::Slab<Load>,
    demand: VecDeque<LoadKey>,
    prefetch: VecDeque<LoadKey>,
    prefetches_running: usize,
}

impl Loads {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    fn get(&mut self, key: LoadKey) -> Option<&mut Load> {
        self.all.get_mut(key.slot).filter(|load| load.id == key.id)
    }

    fn remove(&mut self, key: LoadKey) -> Option<Load> {
        self.get(key)?;
        let load = self.all.remove(key.slot);
        if load.running && load.begun_as_prefetch {
            self.prefetches_running -= 1;
        }
        Some(load)
    }

    fn enqueue(&mut self, key: LoadKey, class: Class) {
        match class {
            Class::Demand => self.demand.push_back(key),
            Class::Prefetch | Class::WarmUp => self.prefetch.push_back(key),
        }
    }

    /// The next prefetch that still is one; those that became urgent stand in the other queue too.
    fn next_prefetch(&mut self) -> Option<LoadKey> {
        while let Some(key) = self.prefetch.pop_front() {
            if self
                .get(key)
                .is_some_and(|load| load.class != Class::Demand)
            {
                return Some(key);
            }
        }
        None
    }

    /// Keeps the prefetch queue from outgrowing the loads while nothing can start.
    fn drop_promoted(&mut self) {
        if self.prefetch.len() > 2 * self.all.len() + 64 {
            let all = &self.all;
            self.prefetch.retain(|key| {
                all.get(key.slot)
                    .is_some_and(|load| load.id == key.id && load.class != Class::Demand)
            });
        }
    }
}

/// How an attempt to start a load went.
enum Start {
    Started,
    /// There is nothing to start any more, or something else in its place.
    Stale,
    NoMemory,
    DeviceFull,
}

impl<P: Platform> Core<P> {
    /// Makes loads of the sub-blocks `run`, which are on disk. What turns out not to be has to come from
    /// afar.
    pub(super) fn add_loads(&mut self, ask: &Ask<'_>, run: Range<u64>) -> Planned {
        let mut planned = Planned::default();
        let mut sub = run.start;
        while sub < run.end {
            let asked = sub * (SUB_BLOCK_BYTES as u64) < ask.demand.end;
            let class = if asked { ask.class } else { Class::Prefetch };
            if class != Class::Demand && self.loads.len() >= FILLS_PER_CORE_MAX {
                self.stats.prefetch_dropped += 1;
                return planned;
            }
            let (id, _) = place(ask.object, sub);
            let first_sub = (sub % SUB_BLOCKS_PER_BLOCK as u64) as usize;
            let (mut subs, mut len_bytes) = next_piece(ask.object, &(sub..run.end));
            if subs > 1 && !self.is_one_extent(id, first_sub, len_bytes) {
                (subs, len_bytes) = (1, SUB_BLOCK_BYTES);
            }
            if self.is_one_extent(id, first_sub, len_bytes) {
                let block = self.index.find_or_insert(id);
                let load = Load {
                    id: self.next_id(),
                    object: ask.object.clone(),
                    block,
                    at: id,
                    first_sub,
                    subs,
                    len_bytes,
                    class,
                    deadline: ask.deadline,
                    reach: ask.reach,
                    for_peer: ask.for_peer,
                    running: false,
                    begun_as_prefetch: false,
                };
                let key = self.promise_load(load);
                self.loads.enqueue(key, class);
            } else if ask.reach != Reach::Here {
                let from = self.bring_from_afar(ask, sub..sub + subs as u64);
                if asked {
                    planned |= from;
                }
            }
            sub += subs as u64;
        }
        planned
    }

    fn promise_load(&mut self, load: Load) -> LoadKey {
        let (block, brings, id) = (load.block, load.mask(), load.id);
        let slot = self.loads.all.insert(load);
        let key = LoadKey { slot, id };
        self.index.promise(block, Promise::Load(key), brings);
        key
    }

    /// Whether one device read brings these bytes of a block.
    fn is_one_extent(&self, id: BlockId, first_sub: usize, len_bytes: usize) -> bool {
        let first = (first_sub * PAGES_PER_SUB_BLOCK) as u32;
        let end = first + len_bytes.div_ceil(PAGE_BYTES) as u32;
        let extent = self.parts.disk.extent(id, first);
        extent.is_some_and(|pages| pages.start <= first && pages.end >= end)
    }

    /// Someone else needs what a load brings.
    pub(super) fn join_load(&mut self, key: LoadKey, ask: &Ask<'_>) {
        let Some(load) = self.loads.get(key) else {
            return;
        };
        load.deadline = load.deadline.max(ask.deadline);
        load.reach = load.reach.max(ask.reach);
        if ask.object.is_named() {
            // Who goes farther than the one that began it needs the name.
            load.object = ask.object.clone();
        }
        load.for_peer |= ask.for_peer;
        if ask.class == Class::Demand && load.class != Class::Demand {
            load.class = Class::Demand;
            if !load.running {
                self.loads.demand.push_back(key);
            }
        }
    }

    /// Starts what is queued, as far as the device and the arena have room.
    pub(super) fn start_loads(&mut self, now: Time) {
        while let Some(key) = self.loads.demand.pop_front() {
            if let Start::NoMemory | Start::DeviceFull = self.start_load(now, key) {
                self.loads.demand.push_front(key);
                return self.loads.drop_promoted();
            }
        }
        while self.loads.prefetches_running < PREFETCH_LOADS_PER_CORE_MAX {
            let Some(key) = self.loads.next_prefetch() else {
                break;
            };
            match self.start_load(now, key) {
                Start::Started | Start::Stale => {}
                Start::DeviceFull => return self.loads.prefetch.push_front(key),
                Start::NoMemory => {
                    self.stats.prefetch_dropped += 1;
                    self.abandon_load(key, &ReadError::Deadline);
                }
            }
        }
    }

    fn start_load(&mut self, now: Time, key: LoadKey) -> Start {
        let Some(load) = self.loads.get(key).filter(|load| !load.running) else {
            return Start::Stale;
        };
        if load.deadline <= now {
            self.abandon_load(key, &ReadError::Deadline);
            return Start::Stale;
        }
        let share = match load.class {
            Class::Demand if load.for_peer => Share::Serve,
            Class::Demand => Share::Demand,
            Class::Prefetch | Class::WarmUp => Share::Prefetch,
        };
        let (id, pages, first_sub, subs) = (load.at, load.pages(), load.first_sub, load.subs);
        let (len_bytes, block_bytes) = (load.len_bytes, load.object.block_len_bytes(id.index));
        if !self.is_one_extent(id, first_sub, len_bytes) {
            self.plan_load_again(key, None);
            return Start::Stale;
        }
        let lease = match self.lease(pages.len() * PAGE_BYTES, share) {
            Ok(lease) => lease,
            Err(Denied::Memory) if subs > 1 => {
                self.split_load(key);
                return Start::Stale;
            }
            Err(_) => return Start::NoMemory,
        };
        let read = DiskRead {
            ticket: Ticket::Load(key).encode(),
            block: id,
            block_bytes: block_bytes as u32,
            first_page: pages.start,
            lease,
        };
        if self.parts.disk.read(now, read).is_err() {
            return Start::DeviceFull;
        }
        if let Some(load) = self.loads.get(key) {
            load.running = true;
            load.begun_as_prefetch = load.class != Class::Demand;
            self.loads.prefetches_running += usize::from(share == Share::Prefetch);
        }
        Start::Started
    }

    /// Turns the load of a chunk into loads of its sub-blocks, when there is no contiguous chunk to
    /// be had.
    fn split_load(&mut self, key: LoadKey) {
        let Some(whole) = self.loads.remove(key) else {
            return;
        };
        self.index
            .unpromise(whole.block, Promise::Load(key), whole.mask());
        for n in (0..whole.subs).rev() {
            let part = Load {
                id: self.next_id(),
                object: whole.object.clone(),
                first_sub: whole.first_sub + n,
                subs: 1,
                len_bytes: SUB_BLOCK_BYTES.min(whole.len_bytes - n * SUB_BLOCK_BYTES),
                ..whole
            };
            let class = part.class;
            let key = self.promise_load(part);
            match class {
                Class::Demand => self.loads.demand.push_front(key),
                Class::Prefetch | Class::WarmUp => self.loads.prefetch.push_front(key),
            }
        }
    }

    /// The bytes of a load are here, and right.
    pub(super) fn loaded(
        &mut self,
        now: Time,
        key: LoadKey,
        mut lease: Lease,
        checksums: Rc<[u32]>,
    ) {
        let Some(load) = self.loads.remove(key) else {
            return;
        };
        lease.truncate(load.len_bytes);
        let bytes = self.parts.arena.freeze(lease);
        let seed = self.index.block(load.block).seed;
        let piece = Piece::checked(seed, load.first_sub, bytes, checksums, self.turns);
        self.index
            .install(load.block, load.first_sub, load.subs, piece);
        self.index.trust(load.block, load.mask());
        self.index
            .unpromise(load.block, Promise::Load(key), load.mask());
        self.wake_readers(now, load.block, load.mask());
    }

    /// The disk tier could not give the bytes: the origin is next, for whoever waits.
    pub(super) fn load_missed(&mut self, key: LoadKey, why: DiskMiss) {
        if self.shutting_down {
            return self.abandon_load(key, &ReadError::Shutdown);
        }
        self.plan_load_again(key, Some(why));
    }

    fn plan_load_again(&mut self, key: LoadKey, why: Option<DiskMiss>) {
        let Some(load) = self.loads.remove(key) else {
            return;
        };
        self.index
            .unpromise(load.block, Promise::Load(key), load.mask());
        let bytes = load.bytes();
        if load.reach == Reach::Here {
            // Whoever waits looks again, and finds that it is not here, whatever the disk says.
            let reason = why.map(super::disk_events::reason);
            for waiter in &self.index.block(load.block).waiters {
                let read = self.reads.get_mut(waiter.read.slot);
                if let Some(read) = read.filter(|read| read.id == waiter.read.id)
                    && waiter.needs & load.mask() != 0
                {
                    read.lost = read.lost.or(reason);
                }
            }
            self.wake_readers(self.now, load.block, load.mask());
            return self.index.forget_if_idle(load.block);
        }
        let planned = self.plan(&Ask {
            object: &load.object,
            want_end: bytes.end,
            demand: bytes,
            class: load.class,
            deadline: load.deadline,
            lost: why.map(super::disk_events::reason),
            reach: load.reach,
            for_peer: load.for_peer,
        });
        self.count_from(load.block, load.mask(), planned);
        self.index.forget_if_idle(load.block);
    }

    /// Notes for the readers that wait for these sub-blocks whether the origin had to be asked.
    fn count_from(&mut self, block: BlockKey, of: Mask, planned: Planned) {
        let Some(tier) = planned.tier() else {
            return;
        };
        for waiter in &self.index.block(block).waiters {
            if waiter.needs & of != 0 {
                Self::note_tier(&mut self.reads, waiter.read, tier);
            }
        }
    }

    /// Ends a load that is not running; whoever waits for it gets `error`.
    fn abandon_load(&mut self, key: LoadKey, error: &ReadError) {
        let Some(load) = self.loads.remove(key) else {
            return;
        };
        self.index
            .unpromise(load.block, Promise::Load(key), load.mask());
        self.fail_readers(std::iter::once((load.block, load.mask())), error);
        self.index.forget_if_idle(load.block);
    }

    /// Gives up what has not begun. What has ends by itself, soon.
    pub(super) fn cancel_loads(&mut self) {
        let all = self.loads.all.iter();
        let queued: Vec<LoadKey> = all
            .filter(|(_, load)| !load.running)
            .map(|(slot, load)| LoadKey { slot, id: load.id })
            .collect();
        for key in queued {
            self.abandon_load(key, &ReadError::Shutdown);
        }
    }
}
