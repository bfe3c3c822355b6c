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
use super::store::OriginStore;

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
    /// Sub-blocks that some reader got.
    pub delivered: BTreeSet<(ObjectId, u64)>,
    /// Reads that reached a core; those that cross a stripe count twice.
    pub parts: u64,
    /// Of those, parts of reads that died with their process.
    pub died_parts: u64,
    /// Counters of processes that have ended.
    pub past: CoreStats,
    /// Bytes that the origin had sent to processes that were killed before they took them.
    pub died_bytes: u64,
    /// When processes were told to end, and when their successors had started.
    restarts: Vec<(Time, Time)>,
    /// The number of cores has changed.
    pub rehomed: bool,
    /// Sub-blocks that no disk had after a restart, and how often they had been sent until then.
    pub forgotten: BTreeMap<(ObjectId, u64), u32>,
}

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
    /// A process has ended and another one has started: nothing is in memory.
    pub fn restarted(&mut self, began: Time, ended: Time) {
        self.restarts.push((began, ended));
        self.delivered.clear();
    }

    fn died(&mut self, question: &Question) {
        if let Question::Read { parts, .. } = question {
            self.died_parts += parts;
        }
    }

    /// Whether an operation was under way while a process was told to end.
    fn met_a_stop(&self, answered: &Answered) -> bool {
        let (asked, at) = (answered.asked.submitted, answered.at);
        let restart = |(began, ended): &(Time, Time)| asked <= *ended && at >= *began;
        self.stopped_at.is_some() || self.restarts.iter().any(restart)
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
                if answered.asked.life == self.restarts.len() as u64 {
                    let due = sub_blocks(object, *offset, *due_bytes as u64);
                    self.delivered.extend(due);
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
                    .saturating_sub(scenario.io_timeout);
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
            OriginErrorKind::Denied if store.denied_at.is_some_and(|at| at >= asked.submitted) => {
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
            "cores that answered with their counters",
            cores.len() as u64,
            scenario.restarts_done(self.restarts.len()) as u64,
        )?;
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
        let fair = matches!(scenario.weather, Weather::Calm | Weather::Tight);
        if !fair || scenario.disks.sizes.is_empty() || self.rehomed {
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
        let fair = matches!(scenario.weather, Weather::Calm | Weather::Tight);
        let impossible = |reason: Reason| match reason {
            Reason::RingMoved | Reason::Expired => true,
            Reason::Checksum => fair || scenario.disks.sizes.is_empty(),
            Reason::Retry => fair && !self.cut_short,
            Reason::VersionChanged => scenario.overwrites.is_empty(),
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
        let fair = matches!(scenario.weather, Weather::Calm | Weather::Tight);
        let devices = &all.disk.devices;
        let evicted = devices.iter().any(|device| device.entries_evicted > 0);
        !devices.is_empty() && (evicted || !fair || self.rehomed)
    }

    fn judge_single_flight(&self, store: &OriginStore, all: &CoreStats) -> Result<(), String> {
        for (sub_block, times) in &store.sent_sub_blocks {
            let before = self.forgotten.get(sub_block).copied().unwrap_or(0);
            if *times > 1 + before && !self.rehomed {
                return Err(format!("sub-block {sub_block:?} was fetched {times} times"));
            }
            if !self.wanted.contains(sub_block) {
                return Err(format!(
                    "sub-block {sub_block:?} was fetched but never asked for"
                ));
            }
        }
        let again: u64 = self.forgotten.values().copied().map(u64::from).sum();
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
