//! One core: its slice of the cache, and the turn that drives it.
//!
//! | file | role |
//! |---|---|
//! | `read` | a read's life, from the ring to its answer |
//! | `reader` | whom reads are for, and those that wait for room |
//! | `hit` | reads answered from memory by a short way, and taken ahead |
//! | `ahead` | checking pages ahead of a sequential reader, in idle turns |
//! | `direct` | small reads answered straight from disk |
//! | `plan` | where each missing sub-block comes from |
//! | `group` | whose a stripe is, and who is asked for what is missing |
//! | `pull` | a pull's life: missing sub-blocks on their way from another member |
//! | `serve` | peers' requests |
//! | `fill` | a fill's life: missing sub-blocks on their way from the origin (the single flight) |
//! | `load` | a load's life: missing sub-blocks on their way from the disk tier |
//! | `jobs` | warming, counting and dropping what is cached of a range |
//! | `handover` | a member that leaves: offering what it holds to those who own it now |
//! | `takeover` | a new owner: fetching what a member that leaves has |
//! | `keep` | handing what arrived to the disk tier |
//! | `disk_events` | the disk tier's part of a turn |
//! | `memory` | buffers, with eviction |
//! | `findings` | what is remembered of the origin's answers to questions for names |
//! | `outage` | whether the origin answers |
//! | `refusal` | whether the origin refuses this node |
//! | `elsewhere` | peers that ask for what lies at another endpoint than this node's origin |
//! | `metadata` | HEADs and listing pages, shared by all who ask meanwhile |
//! | `index` | which sub-blocks are present, promised, waited for |
//! | `s3fifo` | what to evict |
//! | `timers`, `retry` | deadlines, back-off |
//! | `limit` | ceilings on bytes per second |
//! | `log_gate` | one line a span for each kind of failure |

mod ahead;
mod direct;
mod disk_events;
mod elsewhere;
mod fill;
mod findings;
mod group;
mod handover;
mod hit;
mod index;
mod jobs;
mod keep;
mod limit;
mod load;
mod log_gate;
mod memory;
mod metadata;
mod outage;
mod plan;
mod pull;
mod read;
mod reader;
mod refusal;
mod retry;
mod s3fifo;
mod serve;
mod takeover;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ahead::Ahead;
use direct::Directs;
use elsewhere::Elsewhere;
use fill::{FillKey, Fills};
use findings::Findings;
use group::{Group, Reach};
use handover::Handover;
use hit::{Coming, HitClock};
use index::{Index, StableMap};
use jobs::{JobKey, Jobs};
use limit::Ceiling;
use load::Loads;
use log_gate::LogGate;
use metadata::{Finding, LookupKey, Lookups};
use outage::Outages;
use plan::Ask;
use pull::{PullKey, Pulls};
use read::Read;
use reader::Lanes;
use refusal::Refusals;
use serve::Serving;
use takeover::Takes;
use timers::{Due, Timers};

use crate::arena::{Arena, Share};
use crate::client::{PrefetchRequest, Request};
use crate::disk::Disk;
use crate::limits::{
    ATTEMPTS_PER_DEADLINE, DISK_ARENA_SHARE, METADATA_PER_CORE_MAX, OBJECT_BYTES_MAX, POLL_BUDGET,
    READ_BYTES_MAX, READS_PER_CORE_MAX, RING_AHEAD, RING_BUDGET,
};
use crate::ports::{
    Class, Clock, FetchTag, Membership, Origin, OriginEvent, OriginTag, PeerId, Platform, Time,
    Transport,
};
use crate::ring::CoreRing;
use crate::stats::CoreStats;

/// What a core is made of.
#[allow(missing_debug_implementations)]
pub struct Parts<P: Platform> {
    /// Its disk tier.
    pub disk: Disk<P::Device>,
    /// Its connections to peers.
    pub transport: P::Transport,
    /// Its way to object storage.
    pub origin: P::Origin,
    /// Its view of the group.
    pub membership: P::Membership,
    /// The process's clock.
    pub clock: P::Clock,
    /// Its randomness.
    pub rng: P::Rng,
    /// Its buffers.
    pub arena: Arena,
    /// Its ring.
    pub ring: Arc<CoreRing<P::Reply>>,
}

/// What a core is told once.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// This core, from 0.
    pub core: usize,
    /// How many there are.
    pub cores: usize,
    /// `--io-timeout`: every request's span from asking to its deadline.
    pub io_timeout: Duration,
    /// This node in its group. Of no meaning on a node of its own.
    pub me: PeerId,
    /// `--keep-copies`: disks keep what other members own, too.
    pub keep_copies: bool,
    /// `--attr-ttl`: how long the owner of a name remembers what the origin said of it, in a group.
    pub attr_ttl: Duration,
    /// `--negative-ttl`: how long it remembers that there is nothing of a name.
    pub negative_ttl: Duration,
    /// `--stale-max`: how old an answer to a question for a name may be that is given while the origin does not answer.
    pub stale_max: Duration,
    /// Where its origin is, as [`crate::identity::Bucket::endpoint`] spells it: what peers ask of another is declined.
    /// None: it is asked for everything.
    pub endpoint: Option<Arc<str>>,
    /// This core's part of `--origin-limit`, bytes per second of GETs; none: no limit.
    pub origin_limit: Option<u64>,
    /// This core's part of `--peer-limit`, bytes per second asked of other members, and as many given to them.
    pub peer_limit: Option<u64>,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Something was done: turn again before sleeping.
    pub progressed: bool,
    /// When the core must turn again at the latest; `Time::NEVER` when nothing is scheduled.
    pub wake_at: Time,
}

/// How much one turn may do before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Requests taken from the ring.
    pub requests: usize,
    /// Completions taken from each port.
    pub completions: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            requests: RING_BUDGET,
            completions: POLL_BUDGET,
        }
    }
}

/// Whose operation at the origin a tag names.
#[derive(Clone, Copy, Debug)]
enum Tagged {
    Fill(FillKey),
    Lookup(LookupKey),
    Pull(PullKey),
    Describe(PullKey),
    Job(JobKey, FetchTag),
    /// A block offered to its new owner.
    Offer(FetchTag),
    /// Asked of this member.
    Question(LookupKey, PeerId),
}

/// One core. Not `Send`: it is made on the thread that turns it.
#[allow(missing_debug_implementations)]
pub struct Core<P: Platform> {
    parts: Parts<P>,
    config: CoreConfig,
    index: Index,
    reads: slab::Slab<Read<P::Reply>>,
    lanes: Lanes,
    fills: Fills,
    loads: Loads,
    pulls: Pulls,
    serving: Serving,
    group: Group,
    directs: Directs,
    /// Reads and prefetches that came while the disk tier recovers.
    held: VecDeque<Request<P::Reply>>,
    coming: Coming<P::Reply>,
    hit_clock: HitClock,
    /// They are held no longer than this; set by the first turn.
    hold_until: Option<Time>,
    /// See [`memory::DiskBuffers`].
    evict_for_disk_after: Time,
    /// Fills, and their bytes, that were not handed to the disk tier for want of memory.
    keeps_refused: (u64, u64),
    lookups: Lookups,
    findings: Findings,
    outages: Outages,
    refusals: Refusals,
    elsewhere: Elsewhere,
    jobs: Jobs,
    handover: Handover,
    takes: Takes,
    timers: Timers,
    tags: StableMap<u64, Tagged>,
    stats: CoreStats,
    ahead: Ahead,
    fill_log: LogGate,
    lookup_log: LogGate,
    checksum_log: LogGate,
    peer_log: LogGate,
    origin_ceiling: Ceiling,
    pull_ceiling: Ceiling,
    serve_ceiling: Ceiling,
    /// When the present turn began.
    now: Time,
    /// Where a read that lies in several pieces is put together.
    bounce: Vec<u8>,
    get_bytes_max: usize,
    last_id: u64,
    /// Turns so far, modulo 2^32.
    turns: u32,
    shutting_down: bool,
}

impl<P: Platform> Core<P> {
    /// A core with an empty cache.
    pub fn new(mut parts: Parts<P>, config: CoreConfig) -> Self {
        let (arena_bytes, me) = (parts.arena.capacity_bytes(), config.me);
        let (origin_limit, peer_limit) = (config.origin_limit, config.peer_limit);
        let mut directs = Directs::default();
        if parts.disk.is_present() {
            let room = arena_bytes / DISK_ARENA_SHARE;
            parts.arena.reserve(Share::Disk, room);
            directs = Directs::new(arena_bytes);
        }
        Self {
            parts,
            config,
            index: Index::new(arena_bytes),
            reads: slab::Slab::new(),
            lanes: Lanes::default(),
            fills: Fills::default(),
            loads: Loads::default(),
            pulls: Pulls::default(),
            serving: Serving::default(),
            group: Group::new(me),
            directs,
            held: VecDeque::new(),
            coming: Coming::with_capacity(RING_AHEAD),
            hit_clock: HitClock::default(),
            hold_until: None,
            evict_for_disk_after: Time::default(),
            keeps_refused: (0, 0),
            lookups: Lookups::default(),
            findings: Findings::default(),
            outages: Outages::default(),
            refusals: Refusals::default(),
            elsewhere: Elsewhere::default(),
            jobs: Jobs::default(),
            handover: Handover::default(),
            takes: Takes::default(),
            timers: Timers::default(),
            tags: StableMap::default(),
            stats: CoreStats::default(),
            ahead: Ahead::default(),
            fill_log: LogGate::default(),
            lookup_log: LogGate::default(),
            checksum_log: LogGate::default(),
            peer_log: LogGate::default(),
            origin_ceiling: Ceiling::new(origin_limit),
            pull_ceiling: Ceiling::new(peer_limit),
            serve_ceiling: Ceiling::new(peer_limit),
            now: Time::default(),
            bounce: Vec::with_capacity(READ_BYTES_MAX),
            get_bytes_max: fill::get_bytes_max(arena_bytes),
            last_id: 0,
            turns: 0,
            shutting_down: false,
        }
    }

    /// Takes completions and requests, advances every machine that can advance, submits.
    /// Nothing else changes the core's state. Never waits.
    ///
    /// To sleep without losing a wake-up: announce it at the doorbell, turn once more as the last
    /// look, and wait only if that turn made no progress.
    pub fn turn(&mut self, budget: Budget) -> Turn {
        let now = self.parts.clock.now();
        self.turns = self.turns.wrapping_add(1);
        self.now = now;
        self.hit_clock = HitClock::default();
        self.adopt_view();
        let mut progressed = self.take_completions(now, budget.completions);
        progressed |= self.take_peers(now, budget.completions);
        progressed |= self.take_requests(now, budget.requests);
        progressed |= self.fire_timers(now);
        self.admit_reads(now);
        self.start_lookups(now);
        self.start_fills(now);
        let (disk_progressed, disk_wake_at) = self.turn_disk(now, budget.completions);
        progressed |= disk_progressed;
        if progressed || self.config.peer_limit.is_some() {
            self.wake_pulls();
        }
        // The transport sends when it is polled next: there must be another turn before the core sleeps.
        progressed |= self.go_on_leaving(now);
        progressed |= self.start_pulls(now);
        progressed |= self.flush_answers();
        self.parts.arena.reclaim();
        // A fill that was given up just now may have been the last that readers waited behind.
        progressed |= self.lanes.may_admit();
        if !progressed && self.ahead.has_work() {
            self.check_ahead();
            progressed = true;
        }
        let hold_until = match self.holds_reads(now) {
            true => self.hold_until.unwrap_or(Time::NEVER),
            false => Time::NEVER,
        };
        // Recovery may have ended in this turn.
        let held = !self.held.is_empty() && self.takes_requests(self.reads.len());
        progressed |= hold_until == Time::NEVER && held;
        Turn {
            progressed,
            wake_at: self
                .timers
                .next()
                .min(self.handover.wake_at())
                .min(self.serving.wake_at())
                .min(disk_wake_at)
                .min(self.parts.transport.wake_at())
                .min(self.ceilings_wake_at(now))
                .min(match self.pull_ceiling.is_free(now) {
                    true => self.pulls.wake_at(),
                    false => Time::NEVER,
                })
                .min(hold_until),
        }
    }

    /// Whether reads wait for the disk tier to find what earlier runs left: a bounded time, since
    /// without it they can be answered too.
    fn holds_reads(&self, now: Time) -> bool {
        !self.shutting_down
            && self.hold_until.is_none_or(|until| now < until)
            && self.parts.disk.is_recovering()
    }

    /// Whether nothing waits, and nothing is at the origin or on its way from or to disk: after a
    /// shutdown, the core may be dropped.
    pub fn is_quiet(&self) -> bool {
        self.reads.is_empty()
            && self.held.is_empty()
            && self.coming.is_empty()
            && self.fills.len() == 0
            && self.loads.len() == 0
            && self.pulls.len() == 0
            && self.serving.is_quiet()
            && self.parts.disk.is_quiet()
            && self.lookups.len() == 0
            && self.jobs.len() == 0
            && self.takes.len() == 0
            && self.tags.is_empty()
    }

    /// The arena, for its accounts.
    pub fn arena(&self) -> &Arena {
        &self.parts.arena
    }

    /// The counters as of now.
    pub fn stats(&self) -> CoreStats {
        let mut stats = self.stats.clone();
        stats.reads_waiting = (self.reads.len() + self.held.len()) as u64;
        stats.evictions = self.index.evictions;
        stats.blocks = self.index.len() as u64;
        stats.disk = self.parts.disk.stats();
        stats.handover = self.handover_stats();
        stats.outage_ns = self.outages.longest(self.now).as_nanos() as u64;
        let outage_error = || self.outages.last_error.clone();
        stats.outage_error = (stats.outage_ns > 0).then(outage_error).flatten();
        (stats.granted_ns, stats.refusal) = self.refusals.told(self.now);
        if let Some(device) = stats.disk.devices.first_mut() {
            device.fills_dropped += self.keeps_refused.0;
            device.dropped_bytes += self.keeps_refused.1;
        }
        stats.memory_bytes = self.parts.arena.capacity_bytes() as u64;
        if self.parts.arena.mapping().is_reserved() {
            stats.memory_reserved_bytes = stats.memory_bytes;
        }
        stats.memory_used_bytes = self.parts.arena.frozen_bytes() as u64;
        stats.memory_in_flight_bytes = self.parts.arena.in_flight_bytes() as u64;
        stats
    }

    /// Ids of reads, fills and lookups, and tags at the origin: one counter, nothing twice.
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn take_completions(&mut self, now: Time, budget: usize) -> bool {
        for taken in 0..budget {
            let Some(event) = self.parts.origin.poll() else {
                return taken > 0;
            };
            match event {
                OriginEvent::Filled { tag, lease } => {
                    if let Some(Tagged::Fill(key)) = self.tags.get(&tag.0).copied() {
                        self.part_filled(now, key, lease);
                    }
                }
                OriginEvent::Progress { tag } => {
                    if let Some(Tagged::Fill(key)) = self.tags.get(&tag.0).copied() {
                        self.get_progressed(now, key);
                    }
                }
                OriginEvent::GetDone {
                    tag,
                    result,
                    unfilled,
                    wasted_bytes,
                } => {
                    drop(unfilled);
                    if let Some(Tagged::Fill(key)) = self.tags.remove(&tag.0) {
                        self.get_done(now, key, result, wasted_bytes);
                    }
                }
                OriginEvent::Head { tag, result } => {
                    self.found(now, tag, result.map(Finding::Head))
                }
                OriginEvent::List { tag, result } => {
                    self.found(now, tag, result.map(|page| Finding::List(Arc::new(page))));
                }
            }
        }
        budget > 0
    }

    fn found(
        &mut self,
        now: Time,
        tag: OriginTag,
        result: Result<Finding, crate::errors::OriginError>,
    ) {
        if let Some(Tagged::Lookup(key)) = self.tags.remove(&tag.0) {
            self.lookup_done(now, key, result);
        }
    }

    /// Whether one more request may be taken, besides `reads` reads.
    fn takes_requests(&self, reads: usize) -> bool {
        reads < READS_PER_CORE_MAX && self.lookups.len() < METADATA_PER_CORE_MAX
    }

    fn take_requests(&mut self, now: Time, budget: usize) -> bool {
        let limit = self.config.io_timeout / ATTEMPTS_PER_DEADLINE;
        self.hold_until.get_or_insert(now + limit);
        let holds = self.holds_reads(now);
        for taken in 0..budget {
            let reads = self.reads.len() + if holds { self.held.len() } else { 0 };
            if !self.takes_requests(reads) {
                return taken > 0;
            }
            let held = if holds { None } else { self.held.pop_front() };
            let Some(request) = held.or_else(|| self.next_request()) else {
                return taken > 0;
            };
            match request {
                Request::Read(_) | Request::Prefetch(_) | Request::Range(_) if holds => {
                    self.held.push_back(request)
                }
                Request::Read(read) => self.accept_read(now, read),
                Request::Prefetch(prefetch) => self.accept_prefetch(now, prefetch),
                Request::Range(range) => self.accept_range(now, range),
                Request::Head(head) => self.accept_head(now, head),
                Request::List(list) => self.accept_list(now, list),
                Request::Stats(request) => (request.reply)(Box::new(self.stats())),
                Request::Shutdown => self.shut_down(),
            }
        }
        budget > 0
    }

    /// When something goes on that a ceiling holds up.
    fn ceilings_wake_at(&self, now: Time) -> Time {
        let held = [
            (&self.origin_ceiling, self.fills.are_queued()),
            (&self.pull_ceiling, self.pulls.are_queued()),
            (&self.serve_ceiling, self.serving.are_queued()),
        ];
        let held = held
            .into_iter()
            .filter(|(ceiling, queued)| *queued && !ceiling.is_free(now));
        held.map(|(ceiling, _)| ceiling.free_at())
            .min()
            .unwrap_or(Time::NEVER)
    }

    /// Takes over a new view, if there is one.
    fn adopt_view(&mut self) {
        if let Some(placement) = self.parts.membership.poll() {
            self.parts
                .arena
                .reserve(Share::Serve, self.parts.arena.capacity_bytes() / 8);
            self.group.adopt(placement);
            self.reroute_pulls();
            self.reroute_lookups();
        }
    }

    fn accept_prefetch(&mut self, now: Time, request: PrefetchRequest) {
        let PrefetchRequest {
            object,
            offset,
            len_bytes,
            deadline,
        } = request;
        let end = offset
            .saturating_add(u64::from(len_bytes))
            .min(object.size_bytes)
            .min(OBJECT_BYTES_MAX);
        if !self.shutting_down && offset < end && deadline > now {
            self.plan(&Ask {
                object: &object,
                demand: offset..end,
                want_end: end,
                class: Class::Prefetch,
                deadline,
                lost: None,
                reach: Reach::READER,
                for_peer: false,
            });
        }
    }

    fn fire_timers(&mut self, now: Time) -> bool {
        let mut fired = false;
        while let Some(due) = self.timers.expired(now) {
            fired = true;
            match due {
                Due::Read(key) => self.time_out_read(key),
                Due::Fill(key) => self.fill_due(key),
                Due::Lookup(key) => self.lookup_due(now, key),
                Due::Pull(key) => self.pull_due(key),
                Due::Job(key) => self.job_due(now, key),
                Due::Take(key) => self.take_due(now, key),
                Due::Probe => self.probe_due(now),
            }
        }
        fired
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        self.refuse_all_jobs();
        self.end_handover();
        self.end_all_takes();
        self.refuse_all_reads();
        self.refuse_all_lookups();
        self.cancel_fills();
        self.cancel_loads();
        self.cancel_pulls();
        self.parts.disk.settle();
    }
}
