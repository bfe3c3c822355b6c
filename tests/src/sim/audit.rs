//! What must hold: for each answer, and for the whole run once it is over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_engine::errors::{OriginError, OriginErrorKind, ReadError};
use forebay_engine::identity::{ObjectId, ObjectVersion, Slot};
use forebay_engine::limits::{BACKOFF_MAX_MS, READ_BYTES_MAX, SUB_BLOCK_BYTES};
use forebay_engine::ports::Time;
use forebay_engine::stats::{CoreStats, Reason};

use super::board::{Answered, DEADLINE_SLACK, Outcome, Question};
use super::scenario::{Scenario, Weather};
use super::store::{OriginStore, SentAgain};

/// What a run has come to.
#[derive(Debug, Default)]
pub struct Facts {
    /// When faults ended; zero when there were none.
    pub healed_at: Option<Time>,
    /// When the cores were told to stop.
    pub stopped_at: Option<Time>,
    /// The shutdown found GETs under way: they were cancelled, and their bytes are booked as retry.
    pub cut_short: bool,
    /// Sub-blocks that readers or prefetches may have fetched.
    pub wanted: BTreeSet<(ObjectId, u64)>,
    /// Sub-blocks that some reader got, for each node.
    pub delivered: Vec<BTreeSet<(ObjectId, u64)>>,
    /// Reads that reached a core; those that cross a stripe count twice.
    pub parts: u64,
    /// Of those, parts of reads that died with their process.
    pub died_parts: u64,
    /// Counters of processes that have ended.
    pub past: CoreStats,
    /// Bytes that the origin had sent to processes that were killed before they took them.
    pub died_bytes: u64,
    /// Processes of each node that have ended.
    lives: Vec<u64>,
    /// On which nodes processes were told to end, when, and when their successors had started.
    restarts: Vec<(usize, Time, Time)>,
    /// Nodes whose process was told to end and has not ended.
    pub ends_began: BTreeMap<usize, Time>,
    /// A member ended, stood still or was killed.
    pub someone_was_away: bool,
    /// From when to when nodes may have had different views.
    differed: Vec<(Time, Time)>,
    /// The number of cores has changed.
    pub rehomed: bool,
    /// Sub-blocks that went with a process or a node, and how often they had been sent until then.
    pub forgotten: BTreeMap<(ObjectId, u64), u32>,
}

/// Two members that both take themselves for the owner may both fetch a sub-block, while views differ. The
/// second of them has asked the origin by their end, and is answered within this time.
const DIFFERING_VIEWS_SLACK: Duration = Duration::from_secs(1);

/// What an owner of names said may be on its way for so long.
const WAY_BACK_MAX: Duration = Duration::from_secs(3);

/// Owners of names remember what the origin said for so long.
pub const ATTR_TTL: Duration = Duration::from_secs(1);

/// The sub-blocks that a range touches.
pub fn sub_blocks(
    object: &ObjectVersion,
    offset: u64,
    len_bytes: u64,
) -> impl Iterator<Item = (ObjectId, u64)> {
    let id = object.id;
    let end = offset.saturating_add(len_bytes).min(object.size_bytes);
    let unit = SUB_BLOCK_BYTES as u64;
    let numbers = if offset < end {
        offset / unit..end.div_ceil(unit)
    } else {
        0..0
    };
    numbers.map(move |number| (id, number))
}

/// In how many parts a read travels: two when it crosses from one core's stripe to another's.
pub fn parts(object: &ObjectVersion, cores: usize, offset: u64, due_bytes: u64) -> u64 {
    if due_bytes == 0 {
        return 0;
    }
    let core = |at| Slot::of_stripe(object.id, at).core(cores);
    1 + u64::from(core(offset) != core(offset + due_bytes - 1))
}

impl Facts {
    /// Of a run of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            delivered: vec![BTreeSet::new(); nodes],
            lives: vec![0; nodes],
            ..Self::default()
        }
    }

    /// A process has ended and another one starts: nothing is in memory.
    pub fn restarted(&mut self, node: usize, began: Time, ended: Time) {
        self.restarts.push((node, began, ended));
        self.ended(node);
    }

    /// A process has ended.
    pub fn ended(&mut self, node: usize) {
        self.lives[node] += 1;
        self.delivered[node].clear();
    }

    /// A new view came at `from`, and reached the last node at `to`.
    pub fn views_differed(&mut self, from: Time, to: Time) {
        if to > from {
            self.differed.push((from, to + DIFFERING_VIEWS_SLACK));
        }
    }

    fn died(&mut self, question: &Question) {
        if let Question::Read { parts, .. } = question {
            self.died_parts += parts;
        }
    }

    /// Whether an operation was under way while a process was told to end.
    fn met_a_stop(&self, answered: &Answered) -> bool {
        let (asked, at) = (answered.asked.submitted, answered.at);
        let its = answered.asked.node;
        let restart = |(node, began, ended): &(usize, Time, Time)| {
            *node == its && asked <= *ended && at >= *began
        };
        self.stopped_at.is_some()
            || self.ends_began.contains_key(&its)
            || self.restarts.iter().any(restart)
    }

    /// Judges one answer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn judge(
        &mut self,
        scenario: &Scenario,
        store: &OriginStore,
        answered: &Answered,
    ) -> Result<(), String> {
        let fault = match (&answered.asked.question, &answered.outcome) {
            (question, Outcome::Died) => {
                self.died(question);
                None
            }
            (
                Question::Read {
                    object,
                    offset,
                    len_bytes,
                    due_bytes,
                    instant,
                    ..
                },
                Outcome::Bytes,
            ) => {
                // What an earlier process delivered is in no memory any more.
                let node = answered.asked.node;
                if answered.asked.life == self.lives[node] {
                    let due = sub_blocks(object, *offset, *due_bytes as u64);
                    self.delivered[node].extend(due);
                }
                if *instant && answered.at != answered.asked.submitted {
                    Some("a read of bytes in memory waited")
                } else if *len_bytes as usize > READ_BYTES_MAX {
                    Some("a read longer than allowed got bytes")
                } else {
                    None
                }
            }
            (Question::Read { .. }, Outcome::ReadFailed(error)) => {
                self.judge_error(scenario, store, answered, error)
            }
            (Question::Head(_), Outcome::Head(Err(error)))
            | (Question::List(_), Outcome::List(Err(error))) => {
                self.judge_origin_error(scenario, store, answered, error)
            }
            (Question::Head(key), Outcome::Head(Ok(meta))) => {
                // A HEAD may join one that was sent before it, but none older than a time to live.
                let since = answered
                    .asked
                    .submitted
                    .since(Time(0))
                    .saturating_sub(scenario.io_timeout)
                    .saturating_sub(match scenario.group {
                        Some(_) => ATTR_TTL + WAY_BACK_MAX,
                        None => Duration::ZERO,
                    });
                let generations = store.bucket.generations(key);
                let known = generations
                    .iter()
                    .position(|generation| generation.meta() == *meta);
                let superseded = known
                    .and_then(|at| generations.get(at + 1))
                    .map(|next| next.since);
                match known {
                    None => Some("a HEAD told of a version that never was"),
                    Some(_) if superseded.is_some_and(|at| at < Time(0) + since) => {
                        Some("a HEAD told of a version that was superseded long ago")
                    }
                    Some(_) => None,
                }
            }
            (Question::List(request), Outcome::List(Ok(page))) => (page.entries.len()
                > request.entries_max as usize)
                .then_some("a page is longer than asked for"),
            _ => Some("an answer of the wrong kind"),
        };
        fault.map_or(Ok(()), |fault| Err(format!("{fault}: {answered:?}")))
    }

    /// Whether something that was under way after `since` may have met a fault.
    fn may_have_met_fault(&self, scenario: &Scenario, since: Time) -> bool {
        let faulty = matches!(scenario.weather, Weather::Storm | Weather::Flood);
        faulty
            && self
                .healed_at
                .is_none_or(|healed| since < healed + scenario.io_timeout)
    }

    fn judge_error(
        &self,
        scenario: &Scenario,
        store: &OriginStore,
        answered: &Answered,
        error: &ReadError,
    ) -> Option<&'static str> {
        let asked = &answered.asked;
        let Question::Read {
            object, len_bytes, ..
        } = &asked.question
        else {
            return None;
        };
        let superseded = store
            .bucket
            .current(&object.key)
            .is_none_or(|now| now.version.id != object.id);
        match error {
            ReadError::Invalid if *len_bytes as usize > READ_BYTES_MAX => None,
            ReadError::Shutdown if self.met_a_stop(answered) => None,
            ReadError::VersionChanged if superseded => None,
            ReadError::Deadline if answered.at < asked.deadline => {
                Some("a deadline passed too early")
            }
            ReadError::Deadline if scenario.weather == Weather::Flood => None,
            ReadError::Deadline if self.may_have_met_fault(scenario, asked.submitted) => None,
            ReadError::Origin(error) => self.judge_origin_error(scenario, store, answered, error),
            _ => Some("an error without a cause"),
        }
    }

    fn judge_origin_error(
        &self,
        scenario: &Scenario,
        store: &OriginStore,
        answered: &Answered,
        error: &OriginError,
    ) -> Option<&'static str> {
        let asked = &answered.asked;
        // No further attempt would have fitted, back-off and jitter included.
        let last_chance = answered.at + Duration::from_millis(BACKOFF_MAX_MS) + DEADLINE_SLACK;
        let faulty = self.may_have_met_fault(scenario, asked.submitted);
        match error.kind {
            OriginErrorKind::Denied
                if store.denied_at.is_some_and(|at| match scenario.group {
                    // It may have been told to another member, for all who ask.
                    Some(_) => at + WAY_BACK_MAX >= asked.submitted,
                    None => at >= asked.submitted,
                }) =>
            {
                None
            }
            // Metadata callbacks have no error of their own for this.
            OriginErrorKind::Cancelled if self.met_a_stop(answered) => None,
            kind if kind.is_transient() && faulty && last_chance >= asked.deadline => None,
            kind if kind.is_transient() && faulty => Some("the engine gave up before the deadline"),
            _ => Some("an origin error without a cause"),
        }
    }

    /// Judges a whole run: every operation answered, every core stopped.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn judge_run(
        &self,
        scenario: &Scenario,
        store: &OriginStore,
        cores: &[CoreStats],
    ) -> Result<(), String> {
        let mut last = CoreStats::default();
        cores.iter().for_each(|core| last.add(core));
        let mut all = self.past.clone();
        all.add(&last);
        let count = |what: &str, is: u64, should: u64| {
            if is == should {
                Ok(())
            } else {
                Err(format!("{what}: {is} instead of {should}"))
            }
        };
        count(
            "bytes in flight after shutdown",
            last.memory_in_flight_bytes,
            0,
        )?;
        count("reads that wait after shutdown", last.reads_waiting, 0)?;
        count(
            "bytes in the ledger, against the origin's own count",
            all.ledger.total_bytes() + self.died_bytes,
            store.sent_bytes,
        )?;
        let answered = all.reads + all.read_errors;
        if answered > self.parts || answered + self.died_parts < self.parts {
            return Err(format!(
                "reads counted by the cores: {answered} of {}, of which {} died",
                self.parts, self.died_parts
            ));
        }
        if all.gets < store.bodies {
            return Err(format!(
                "{} GETs counted, but the origin sent {} bodies",
                all.gets, store.bodies
            ));
        }
        self.judge_reasons(scenario, &all)?;
        if scenario.weather == Weather::Calm {
            self.judge_single_flight(store, &all)?;
        }
        self.judge_fetches(scenario, store, &all)
    }

    /// Without faults, what the disks hold is fetched once: what is fetched again was evicted from them,
    /// never got there, or was not there after a restart.
    fn judge_fetches(
        &self,
        scenario: &Scenario,
        store: &OriginStore,
        all: &CoreStats,
    ) -> Result<(), String> {
        let alone = scenario.group.is_none();
        if !alone || !scenario.is_fair() || !scenario.has_disks() || self.rehomed {
            return Ok(());
        }
        let mut again_bytes = 0;
        for (sub_block, times) in &store.sent_sub_blocks {
            let before = self.forgotten.get(sub_block).copied().unwrap_or(0);
            let since = times - before;
            again_bytes += u64::from(since.saturating_sub(1)) * SUB_BLOCK_BYTES as u64;
        }
        let devices = &all.disk.devices;
        let excused: u64 = devices
            .iter()
            .map(|device| device.evicted_bytes + device.dropped_bytes)
            .sum();
        // A sub-block may be evicted with some of its bytes, and is fetched whole.
        let entries: u64 = devices
            .iter()
            .map(|device| device.entries_evicted + device.fills_dropped)
            .sum();
        let excused = excused + 2 * entries * SUB_BLOCK_BYTES as u64;
        if again_bytes > excused {
            return Err(format!(
                "{again_bytes} bytes were fetched again, {excused} were evicted or not kept: {devices:?}"
            ));
        }
        Ok(())
    }

    fn judge_reasons(&self, scenario: &Scenario, all: &CoreStats) -> Result<(), String> {
        let fair = scenario.is_fair();
        let alone = scenario.group.is_none();
        let impossible = |reason: Reason| match reason {
            // Members stop one after the other.
            Reason::RingMoved => alone || (fair && !self.someone_was_away && !self.cut_short),
            Reason::Expired => true,
            Reason::Checksum => fair || (alone && !scenario.has_disks()),
            Reason::Retry => fair && !self.cut_short,
            Reason::VersionChanged => !scenario.has_overwrites(),
            Reason::Evicted => all.evictions == 0 && !self.disks_lost(scenario, all),
            Reason::Cold | Reason::Prefetch => false,
        };
        for reason in Reason::ALL {
            let bytes = all.ledger.bytes(reason);
            if bytes > 0 && impossible(reason) {
                return Err(format!(
                    "{bytes} bytes are booked as {reason}, which never happened"
                ));
            }
        }
        Ok(())
    }

    /// Whether something may have gone from the disks.
    fn disks_lost(&self, scenario: &Scenario, all: &CoreStats) -> bool {
        let fair = scenario.is_fair();
        let devices = &all.disk.devices;
        let evicted = devices.iter().any(|device| device.entries_evicted > 0);
        !devices.is_empty() && (evicted || !fair || self.rehomed)
    }

    /// How often a sub-block was sent once more for a reason that is known.
    fn excused(&self, store: &OriginStore, sub_block: &(ObjectId, u64)) -> u32 {
        let before = self.forgotten.get(sub_block).copied().unwrap_or(0);
        let known = |again: &SentAgain| {
            let at = &again.at;
            let differing = |(from, to): &(Time, Time)| at >= from && at <= to;
            // Who stops cancels what it fetches; a member that stops a little later reads it itself.
            let stopping = self.stopped_at.is_some_and(|stopped| *at >= stopped);
            stopping || self.differed.iter().any(differing)
        };
        let again = store.sent_again.iter();
        let its = again.filter(|again| again.sub_block == *sub_block);
        before + its.filter(|again| known(again)).count() as u32
    }

    fn judge_single_flight(&self, store: &OriginStore, all: &CoreStats) -> Result<(), String> {
        let mut again = 0;
        for (sub_block, times) in &store.sent_sub_blocks {
            if !self.wanted.contains(sub_block) {
                return Err(format!(
                    "sub-block {sub_block:?} was fetched but never asked for"
                ));
            }
            if *times > 1 {
                let excused = self.excused(store, sub_block);
                again += u64::from(excused);
                if *times > 1 + excused && !self.rehomed {
                    let again = store.sent_again.iter();
                    let at: Vec<Time> = again
                        .filter(|again| again.sub_block == *sub_block)
                        .map(|again| again.at)
                        .collect();
                    return Err(format!(
                        "sub-block {sub_block:?} was fetched {times} times, again at {at:?}"
                    ));
                }
            }
        }
        let limit = (self.wanted.len() as u64 + again) * SUB_BLOCK_BYTES as u64;
        if (store.sent_bytes > limit && !self.rehomed) || all.evictions > 0 {
            return Err(format!(
                "{} bytes fetched of {limit}, {} evictions",
                store.sent_bytes, all.evictions
            ));
        }
        Ok(())
    }
}
