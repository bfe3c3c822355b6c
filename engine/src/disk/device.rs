//! The region log of one core on one device: its state, its operations, its turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use slab::Slab;

use super::flush::{Flush, Waits};
use super::geometry::Geometry;
use super::health::Faults;
use super::layout::Queue;
use super::log::Buffers;
use super::ops::{Op, Ops};
use super::pins::Stale;
use super::policy::Admission;
use super::reads::Reads;
use super::reclaim::Reclaim;
use super::recovery::Recovery;
use super::regions::{Regions, State};
use super::stream::Stream;
use super::tier::Tier;
use super::writer::Batch;
use super::{DeviceSeat, DeviceShared, DeviceState, DeviceStats};
use crate::arena::Lease;
use crate::identity::BlockId;
use crate::limits::{
    DEVICE_FAULT_FORGIVEN_S, DEVICE_FAULTS_MAX, DEVICE_RECLAIM_READ_S_MAX,
    DEVICE_RECOVERY_READ_S_MAX, DEVICE_WRITE_S_MAX, DISK_POLL_BUDGET, PAGE_BYTES,
};
use crate::ports::{BlockDevice, DeviceError, DeviceEvent, DeviceOp, Full, Time};

/// How often entries in other cores' regions are looked at, in turns that come anyway.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// After "no space" the log does not grow for this long.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(30);
/// Free regions that are no room: those that reclaim sees to, and one that each stream opens ahead.
const ROOM_SPARE: usize = super::reclaim::FREE_MIN + 2;

/// How much room the log may take.
#[derive(Debug)]
pub(super) struct Allowance {
    /// Regions that may take room.
    pub regions_max: usize,
    /// The device was full: no more regions than then, until that time.
    full: Option<(usize, Time)>,
}

pub(super) struct Log<D: BlockDevice> {
    device: D,
    pub shared: Arc<DeviceShared>,
    pub geometry: Geometry,
    pub number: u8,
    pub regions: Regions,
    pub ops: Ops,
    /// Operations that the device had no room for, in order.
    out: VecDeque<DeviceOp>,
    pub streams: [Stream; 2],
    pub batches: Slab<Batch>,
    pub flush: Flush,
    pub reads: Reads,
    pub reclaim: Option<Reclaim>,
    pub recovery: Option<Recovery>,
    /// Batches that were ever begun.
    pub batches_begun: u64,
    /// Regions in which nothing lived, and how many batches had been begun then.
    pub emptied: BTreeMap<u32, u64>,
    /// Regions that are empty but for readers.
    pub lingering: Vec<u32>,
    /// Regions whose headers are to be made void; how many are to be free then, and how many to be given back to the
    /// device.
    pub discards: VecDeque<u32>,
    pub voiding: usize,
    pub discarding: usize,
    /// No free region is given back to the device before.
    pub discard_after: Time,
    /// Regions where pins are to be written.
    pub stale: Stale,
    /// Where a checksum failed last, and when: a damaged table is one fault, not one for each entry.
    pub last_damage: Option<(u32, Time)>,
    /// Writes and flushes under way, and when one of them ended last or the first began.
    writes: usize,
    writes_moved: Time,
    /// The last look for completions ended for want of one.
    found_nothing: bool,
    pub now: Time,
    /// When other cores' regions are looked at next.
    next_sweep: Time,
    /// No region is emptied before.
    pub reclaim_after: Time,
    /// The last region of which little lived could not be emptied: the next is chosen by its age.
    pub sparse_failed: bool,
    pub settling: bool,
    /// Something was to be written since the start: until then no room is made. See `Log::want_writes`.
    pub writes_wanted: bool,
    pub admission: Admission,
    /// Of the last fill's block.
    pub last_queue: Option<(BlockId, Queue)>,
    pub allowance: Allowance,
    /// What it could not read, and what it could not write or flush: one that only reads is of use.
    faults: Faults,
    write_faults: Faults,
    pub state: DeviceState,
    pub stats: DeviceStats,
}

impl<D: BlockDevice> std::fmt::Debug for Log<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("name", &self.shared.name)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<D: BlockDevice> Log<D> {
    pub fn new(seat: DeviceSeat<D>, number: u8, tier: &Tier) -> Self {
        let DeviceSeat { device, shared } = seat;
        let (core, cores) = (tier.config.core, tier.config.cores);
        let geometry = shared.geometry;
        let regions = Regions::new(geometry, core, cores, tier.config.incarnation);
        let forgiven = Duration::from_secs(DEVICE_FAULT_FORGIVEN_S);
        Self {
            device,
            geometry,
            number,
            recovery: Some(Recovery::new(&regions)),
            regions,
            ops: Ops::default(),
            out: VecDeque::new(),
            streams: Stream::both(tier.config.write_bytes_max),
            batches: Slab::new(),
            flush: Flush::default(),
            reads: Reads::default(),
            reclaim: None,
            batches_begun: 0,
            emptied: BTreeMap::new(),
            lingering: Vec::new(),
            discards: VecDeque::new(),
            voiding: 0,
            discarding: 0,
            discard_after: Time(0),
            stale: Stale::default(),
            last_damage: None,
            found_nothing: false,
            writes: 0,
            writes_moved: Time(0),
            now: Time(0),
            next_sweep: Time(0),
            reclaim_after: Time(0),
            sparse_failed: false,
            settling: false,
            writes_wanted: false,
            admission: Admission::default(),
            last_queue: None,
            allowance: Allowance {
                regions_max: usize::MAX,
                full: None,
            },
            faults: Faults::new(DEVICE_FAULTS_MAX, forgiven),
            write_faults: Faults::new(DEVICE_FAULTS_MAX, forgiven),
            state: DeviceState::Recovering,
            stats: DeviceStats {
                name: shared.name.clone(),
                ..DeviceStats::default()
            },
            shared,
        }
    }

    /// Where page `page` of region `region` is.
    pub fn offset_bytes(&self, region: u32, page: u32) -> u64 {
        self.geometry.offset_bytes(region) + u64::from(page) * PAGE_BYTES as u64
    }

    pub fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Whether new bytes may be written.
    pub fn is_writable(&self) -> bool {
        self.state == DeviceState::Serving
    }

    /// Whether what it holds may be read.
    pub fn is_readable(&self) -> bool {
        matches!(self.state, DeviceState::Serving | DeviceState::ReadOnly(_))
    }

    /// Whether nothing is under way or waits to be written.
    pub fn is_quiet(&self) -> bool {
        match self.state {
            DeviceState::Retired(_) => true,
            DeviceState::ReadOnly(_) => self.ops.is_empty(),
            DeviceState::Recovering | DeviceState::Serving => {
                self.ops.is_empty()
                    && self.batches.is_empty()
                    && self.flush.is_idle()
                    && self.recovery.is_none()
                    && self.streams.iter().all(Stream::is_empty)
            }
        }
    }

    /// Closes what is staged without waiting for more; a flush follows each header from now on.
    pub fn settle(&mut self) {
        self.settling = true;
        self.stale.hurry();
        if self.is_writable() {
            self.flush.request(Waits::Nobody);
        }
    }

    /// Submits, or queues until there is room.
    pub fn submit(&mut self, op: DeviceOp) {
        if !matches!(op, DeviceOp::Read { .. }) {
            if self.writes == 0 {
                self.writes_moved = self.now;
            }
            self.writes += 1;
        }
        if !self.out.is_empty() {
            return self.out.push_back(op);
        }
        if let Err(Full(op)) = self.device.submit(op) {
            self.out.push_back(op);
        }
    }

    /// Submits a reader's read, before all that is queued.
    ///
    /// # Errors
    /// The operation back, when the device is full.
    pub fn submit_now(&mut self, op: DeviceOp) -> Result<(), DeviceOp> {
        self.device.submit(op).map_err(|Full(op)| op)
    }

    fn drain_out(&mut self) {
        while let Some(op) = self.out.pop_front() {
            if let Err(Full(op)) = self.device.submit(op) {
                return self.out.push_front(op);
            }
        }
    }

    /// Takes completions, advances every machine, submits. True when something was done; and when to
    /// turn again at the latest.
    pub fn turn(&mut self, now: Time, tier: &mut Tier, buffers: &mut impl Buffers) -> (bool, Time) {
        self.now = now;
        let mut progressed = self.take_completions(now, tier, buffers);
        // One that is at rest is retired when it is lost, and not with the next read.
        if self.is_readable() && self.device.loss().is_some() {
            self.fault(now, DeviceError::Gone, tier);
            progressed = true;
        }
        let mut wake_at = self.give_up_slow_reads(now, tier);
        wake_at = wake_at.min(self.give_up_slow_writes(tier));
        wake_at = wake_at.min(self.give_up_slow_recovery(tier));
        wake_at = wake_at.min(self.give_up_slow_reclaim(tier));
        if matches!(self.state, DeviceState::Retired(_)) {
            self.drain_out();
            self.device.commit();
            return (progressed, wake_at.min(self.nap_until(now)));
        }
        progressed |= self.turn_recovery(now, tier, buffers);
        if self.is_recovering() {
            // The other cores' look at their regions ends without an event of ours.
            wake_at = wake_at.min(now + Duration::from_millis(1));
        }
        progressed |= self.start_table_reads(buffers);
        if self.next_sweep <= now && !self.reads.foreign.is_empty() {
            self.next_sweep = now + SWEEP_EVERY;
            self.sweep_foreign(tier);
        }
        if self.is_writable() {
            self.look_at_allowance(now);
            progressed |= self.turn_writer(now, tier, buffers);
            progressed |= self.turn_reclaim(now, tier, buffers);
            wake_at = wake_at.min(self.next_close(now));
            if self.must_shrink() && self.discard_after > now {
                wake_at = wake_at.min(self.discard_after);
            }
            wake_at = wake_at.min(self.stale.due_at().max(now + Duration::from_millis(1)));
        }
        if self.waits_for_buffers() {
            // Buffers come back without an event of ours.
            wake_at = wake_at.min(now + Duration::from_millis(1));
        }
        if self.flush.is_due() {
            let tag = self.ops.begin(Op::Flush);
            self.flush.start();
            self.submit(DeviceOp::Flush { tag });
        }
        self.drain_out();
        self.device.commit();
        (progressed, wake_at.min(self.nap_until(now)))
    }

    /// When a device that signals nothing is to be polled again.
    fn nap_until(&mut self, now: Time) -> Time {
        self.device.nap().map_or(Time::NEVER, |nap| now + nap)
    }

    /// Writes that do not end hold buffers and regions for ever: past the bound the device is retired.
    fn give_up_slow_writes(&mut self, tier: &mut Tier) -> Time {
        if self.writes == 0 || matches!(self.state, DeviceState::Retired(_)) {
            return Time::NEVER;
        }
        let until = self.writes_moved + Duration::from_secs(DEVICE_WRITE_S_MAX);
        if until <= self.now {
            self.retire(
                tier,
                format!("no write or flush has ended for {DEVICE_WRITE_S_MAX} s"),
            );
            return Time::NEVER;
        }
        until
    }

    /// Other cores wait for this one's headers, and fills for the end of recovery: past the bound the device is
    /// retired. Readers wait for neither.
    fn give_up_slow_recovery(&mut self, tier: &mut Tier) -> Time {
        let until = match &self.recovery {
            Some(recovery) => recovery.gives_up_at(),
            None => Time::NEVER,
        };
        if until <= self.now {
            self.retire(
                tier,
                format!(
                    "no read has ended for {DEVICE_RECOVERY_READ_S_MAX} s while what earlier runs left was looked for"
                ),
            );
            return Time::NEVER;
        }
        until
    }

    /// What reclaim reads is nobody's read: without a bound of its own nothing would be kept any more, and nobody told.
    fn give_up_slow_reclaim(&mut self, tier: &mut Tier) -> Time {
        let until = match &self.reclaim {
            Some(reclaim) => reclaim.gives_up_at(),
            None => Time::NEVER,
        };
        if until <= self.now {
            self.retire(
                tier,
                format!(
                    "no read has ended for {DEVICE_RECLAIM_READ_S_MAX} s while room was being made"
                ),
            );
            return Time::NEVER;
        }
        until
    }

    fn waits_for_buffers(&self) -> bool {
        let writes = self.reclaim.is_some()
            || !self.discards.is_empty()
            || self.streams.iter().any(|stream| !stream.sealing.is_empty());
        self.reads.wants_tables() || (self.is_writable() && writes)
    }

    fn take_completions(&mut self, now: Time, tier: &mut Tier, buffers: &mut impl Buffers) -> bool {
        // After a rest one alone: a device that completes all it has in one go waits for its next read.
        let budget = match std::mem::take(&mut self.found_nothing) {
            true => 1,
            false => DISK_POLL_BUDGET,
        };
        for taken in 0..budget {
            let Some(event) = self.device.poll() else {
                self.found_nothing = true;
                return taken > 0;
            };
            if !matches!(event, DeviceEvent::Read { .. }) {
                self.writes = self.writes.saturating_sub(1);
                self.writes_moved = now;
            }
            let (tag, lease, result) = match event {
                DeviceEvent::Read { tag, lease, result } => (tag, Some(lease), result),
                DeviceEvent::Write { tag, result, .. }
                | DeviceEvent::Flush { tag, result }
                | DeviceEvent::Discard { tag, result } => (tag, None, result),
            };
            if let Some(op) = self.ops.end(tag) {
                self.completed(now, op, lease, result, tier, buffers);
            }
        }
        true
    }

    fn completed(
        &mut self,
        now: Time,
        op: Op,
        lease: Option<Lease>,
        result: Result<(), DeviceError>,
        tier: &mut Tier,
        buffers: &mut impl Buffers,
    ) {
        match (op, lease) {
            (Op::Read(slot), Some(lease)) => self.read_done(now, slot, lease, result, tier),
            (Op::Table(key), Some(lease)) => self.table_done(now, key, &lease, result, tier),
            (Op::ReclaimTables, Some(lease)) => self.reclaim_tables_done(now, lease, result, tier),
            (Op::ReclaimRead(keep, page), Some(lease)) => {
                self.reclaim_read_done(now, (keep, page), lease, result, tier, buffers)
            }
            (Op::Recovery(what), Some(lease)) => self.recovery_done(now, what, lease, result, tier),
            (Op::BatchData(batch), _) => self.batch_data_done(now, batch, result, tier),
            (Op::BatchHeader(batch), _) => self.batch_header_done(now, batch, result, tier),
            (Op::Flush, _) => self.flush_done(now, result, tier, buffers),
            (Op::RegionHeader(region), _) => self.region_header_done(now, region, result, tier),
            (Op::Tables(region), _) => self.tables_done(now, region, result, tier),
            (Op::Trailer(region), _) => self.trailer_done(now, region, result, tier),
            (Op::Void(region), _) => self.void_done(now, region, result, tier),
            (Op::Discard(region), _) => self.discard_done(now, region, result, tier),
            (_, None) => debug_assert!(false, "a read ends with its lease"),
        }
    }

    /// Books a failure of the device; retires it past the bound.
    pub fn fault(&mut self, now: Time, error: DeviceError, tier: &mut Tier) {
        match error {
            DeviceError::Gone => {
                let why = match self.device.loss() {
                    Some(loss) => format!("the device is gone: {loss}"),
                    None => "the device is gone".into(),
                };
                return self.retire(tier, why);
            }
            DeviceError::ReadOnly => return self.stop_writing(tier, error.to_string()),
            DeviceError::NoSpace => {
                let cap = self.regions.occupied().saturating_sub(1);
                let known = self
                    .allowance
                    .full
                    .replace((cap, now + NO_SPACE_PAUSE))
                    .is_some();
                if !known {
                    tracing::warn!(
                        device = self.shared.name,
                        "no space: the cache here gets smaller, and stops growing for a while"
                    );
                }
                return;
            }
            DeviceError::Media | DeviceError::Write | DeviceError::Range => {}
        }
        let why = || format!("{DEVICE_FAULTS_MAX} faults in a short time, the last: {error}");
        match error {
            // What is on it may well be readable.
            DeviceError::Write if self.write_faults.fault(now) => self.stop_writing(tier, why()),
            DeviceError::Write => {}
            _ if self.faults.fault(now) => self.retire(tier, why()),
            _ => {}
        }
        self.stop_if_mostly_bad(tier);
    }

    /// What is left of a device of which most regions cannot be written is not worth trying: each try is a fault, but so
    /// few are left that they do not come fast enough to be too many.
    pub fn stop_if_mostly_bad(&mut self, tier: &mut Tier) {
        if let Some((bad, all)) = self.regions.mostly_bad() {
            self.stop_writing(tier, format!("{bad} of {all} regions cannot be written"));
        }
    }

    /// Books something that is wrong though the device reported nothing.
    pub fn silent_fault(&mut self, now: Time, what: &str, tier: &mut Tier) {
        if self.faults.fault(now) {
            self.retire(
                tier,
                format!("{DEVICE_FAULTS_MAX} faults in a short time, the last: {what}"),
            );
        }
    }

    /// No reads, no writes from here on; what it held is forgotten.
    fn retire(&mut self, tier: &mut Tier, why: String) {
        if matches!(self.state, DeviceState::Retired(_)) {
            return;
        }
        tracing::error!(
            device = self.shared.name,
            why,
            "device retired until the next start; its blocks come from elsewhere"
        );
        self.state = DeviceState::Retired(why);
        if let Some(recovery) = self.recovery.take() {
            tier.recovery_ended();
            if !recovery.has_looked() {
                // The other cores do not wait for what cannot be read.
                self.shared.rehome.looked.fetch_add(1, Ordering::AcqRel);
            }
        }
        self.drop_writes(tier);
        self.drop_batches(tier);
        self.end_all_reads(tier);
        let number = self.number;
        tier.remove_where(|extent| extent.place.device() == number);
        self.stale.forget_all(|_| true);
    }

    /// Reads go on, writes stop.
    pub fn stop_writing(&mut self, tier: &mut Tier, why: String) {
        if !self.is_readable() || matches!(self.state, DeviceState::ReadOnly(_)) {
            return;
        }
        tracing::warn!(
            device = self.shared.name,
            why,
            "device takes no writes; what it holds is still read"
        );
        self.state = DeviceState::ReadOnly(why);
        self.drop_writes(tier);
    }

    /// Whoever changes `allowed_bytes` wakes the core: this is no more than a look at it.
    fn look_at_allowance(&mut self, now: Time) {
        let allowed = self.shared.allowed_bytes.load(Ordering::Relaxed);
        let all = u64::from(self.geometry.regions.max(1));
        let allowed = (allowed / u64::from(self.geometry.region_bytes)).min(all);
        let own = self.regions.len() as u64;
        let mut max = (allowed * own / all) as usize;
        if let Some((cap, until)) = self.allowance.full {
            if until <= now {
                self.allowance.full = None;
            } else {
                max = max.min(cap);
            }
        }
        self.allowance.regions_max = max;
    }

    /// Whether one more region may take room on the device.
    pub fn may_grow(&self) -> bool {
        self.regions.occupied() < self.allowance.regions_max
    }

    /// Bytes that it takes before anything must be evicted for them.
    pub fn room_bytes(&self, tier: &Tier) -> u64 {
        if !self.is_writable() || tier.is_crowded() || self.must_shrink() {
            return 0;
        }
        let growth = (self.allowance.regions_max).saturating_sub(self.regions.occupied());
        let spare = self.regions.room(growth).saturating_sub(ROOM_SPARE);
        // Headers and tables take less than a sixteenth of a region.
        let bytes = u64::from(self.geometry.region_bytes) / 16 * 15;
        (spare as u64 * bytes).saturating_sub(tier.writing_bytes as u64)
    }

    /// Whether more regions take room than may, those that are on their way out left aside.
    pub fn must_evict(&self) -> bool {
        let leaving = self.voiding + self.discarding;
        self.regions.occupied() > self.allowance.regions_max.saturating_add(leaving)
    }

    /// Whether more regions take room than may.
    pub fn must_shrink(&self) -> bool {
        self.regions.occupied() > self.allowance.regions_max
    }

    pub fn counters(&self, tier: &Tier) -> DeviceStats {
        let mut stats = self.stats.clone();
        let live = tier.live(self.number);
        stats.state = self.state.clone();
        stats.region_bytes = u64::from(self.geometry.region_bytes);
        stats.regions = self.regions.len() as u64;
        if self.state.is_out() {
            stats.regions_out = stats.regions;
        }
        for region in self.regions.iter() {
            match region.state() {
                State::Free { .. } if region.bad => stats.regions_lost += 1,
                State::Free { .. } | State::Voiding | State::Discarding => stats.regions_free += 1,
                _ => stats.used_bytes += u64::from(region.used_pages) * PAGE_BYTES as u64,
            }
        }
        stats.regions_small = self.regions.count(Queue::Small) as u64;
        stats.regions_main = self.regions.count(Queue::Main) as u64;
        stats.entries = live.entries;
        stats.entries_pinned = live.pinned;
        stats.pinned_bytes = live.pinned_pages * PAGE_BYTES as u64;
        stats.live_bytes = live.pages * PAGE_BYTES as u64;
        stats
    }
}
