//! Leaving with everything: the daemon's side of `forebay drain` and of `--group-weight 0`.
//!
//! The weight 0 travels by gossip; the engine's cores hand over what they hold as soon as their view says so, and count.
//! Here that is started, stopped and watched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_engine::stats::HandoverStats;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::running::Group;

/// The cores are asked so often how far they are.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The other members are told so often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What a drain is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainState {
    /// It was not asked for.
    #[default]
    None,
    /// What is held is handed over.
    Running,
    /// Each block was handed over, or refused.
    Done,
    /// The member has its weight again.
    Stopped,
    /// The member was ended before all was handed over.
    Ended,
}

/// How far a member is with handing over what it holds; the answer of `/drain`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrainReport {
    /// `serve:GROUP/NODE`, or the mount point.
    pub name: String,
    /// What it is at.
    pub state: DrainState,
    /// How long it has taken.
    pub seconds: f64,
    /// Every core has looked through all that it holds once: the following are of all of them. Before that they are of
    /// some.
    pub counted: bool,
    /// Bytes that were to be handed over, as counted first.
    pub bytes: u64,
    /// Bytes that are still to be handed over.
    pub left_bytes: u64,
    /// The same in blocks of up to 4 MiB.
    pub left_blocks: u64,
    /// Bytes that went to other members; what those had already is not counted.
    pub given_bytes: u64,
    /// Blocks of those.
    pub given_blocks: u64,
    /// Bytes for which the members that own them now have no room.
    pub refused_bytes: u64,
    /// Blocks of those.
    pub refused_blocks: u64,
    /// Offers that failed; they are repeated.
    pub failures: u64,
    /// No other member has a weight: nobody can take anything now.
    pub without_heir: bool,
}

/// A drain of this member.
#[derive(Debug, Default)]
pub(super) struct Draining {
    inner: Mutex<Inner>,
    /// One begins or stops at a time: both take a while to tell the weight.
    turns: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    began: Option<Instant>,
    ended: Option<Instant>,
    state: DrainState,
    counted: bool,
    bytes: u64,
    counts: HandoverStats,
}

impl Draining {
    /// Begins once `announced`, which does nothing when it has begun already. Whether it begins now.
    async fn begin_when(&self, announced: impl Future<Output = Result<()>>) -> Result<bool> {
        let _turn = self.turns.lock().await;
        match self.state() {
            DrainState::Running => return Ok(false),
            DrainState::Done => bail!("it has handed over what it had already"),
            DrainState::None | DrainState::Stopped | DrainState::Ended => {}
        }
        announced.await?;
        self.begin();
        Ok(true)
    }

    /// Stops once `announced`.
    async fn stop_when(&self, announced: impl Future<Output = Result<()>>) -> Result<()> {
        let _turn = self.turns.lock().await;
        match self.state() {
            DrainState::Running => {}
            DrainState::Done => bail!("it is over"),
            DrainState::None | DrainState::Stopped | DrainState::Ended => {
                bail!("no drain is under way")
            }
        }
        announced.await?;
        self.end(DrainState::Stopped);
        Ok(())
    }

    /// Does what must not be done while this member hands over, or has: it is not needed then.
    pub(super) async fn unless_begun(
        &self,
        announced: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let _turn = self.turns.lock().await;
        match self.state() {
            DrainState::None | DrainState::Stopped => announced.await,
            DrainState::Running | DrainState::Done | DrainState::Ended => Ok(()),
        }
    }

    fn begin(&self) {
        *self.inner.lock() = Inner {
            began: Some(Instant::now()),
            state: DrainState::Running,
            ..Inner::default()
        };
    }

    fn end(&self, state: DrainState) {
        let mut inner = self.inner.lock();
        (inner.state, inner.ended) = (state, Some(Instant::now()));
    }

    fn state(&self) -> DrainState {
        self.inner.lock().state
    }

    /// Takes what `cores` cores say together. Whether all of them are done.
    fn note(&self, counts: HandoverStats, cores: u64) -> bool {
        let mut inner = self.inner.lock();
        let all_count = counts.cores_counted == cores;
        if all_count {
            inner.counted = true;
            let known = counts.left_bytes + counts.given_bytes + counts.refused_bytes;
            inner.bytes = inner.bytes.max(known);
        }
        inner.counts = counts;
        all_count && counts.cores_done == cores
    }

    fn report(&self) -> DrainReport {
        let inner = self.inner.lock();
        let counts = &inner.counts;
        let ended = inner.ended.unwrap_or_else(Instant::now);
        DrainReport {
            name: String::new(),
            state: inner.state,
            seconds: inner
                .began
                .map_or(0.0, |began| ended.duration_since(began).as_secs_f64()),
            counted: inner.counted,
            bytes: inner.bytes,
            left_bytes: counts.left_bytes,
            left_blocks: counts.left_blocks,
            given_bytes: counts.given_bytes,
            given_blocks: counts.given_blocks,
            refused_bytes: counts.refused_bytes,
            refused_blocks: counts.refused_blocks,
            failures: counts.failures,
            without_heir: counts.cores_without_heir > 0,
        }
    }
}

impl Group {
    /// How far this member is with handing over.
    pub fn drain_report(&self) -> DrainReport {
        let name = format!("{}/{}", self.plan().group, self.plan().node);
        DrainReport {
            name,
            ..self.draining.report()
        }
    }

    /// Begins to hand over: tells the others that the weight is 0. Nothing when it has begun.
    ///
    /// # Errors
    /// When there is nothing that could be handed over, or nobody who could take it.
    pub async fn start_drain(&self) -> Result<()> {
        if !self.plan().is_member() {
            bail!(
                "this node only takes from its group (--no-sharing): it has no share to hand over"
            );
        }
        let announced = async {
            if !self.has_heir() {
                bail!(
                    "no other member of group {} has a weight: nobody can take over what this one holds (`forebay stop` \
                     or `umount` ends it all the same; its cache directory stays for its next start)",
                    self.plan().group
                );
            }
            self.set_weight(0).await
        };
        if self.draining.begin_when(announced).await? {
            self.drain_begins.notify_one();
        }
        Ok(())
    }

    /// Ends handing over: this member gets its weight back. What was handed over stays where it is, too.
    ///
    /// # Errors
    /// When there is no drain, it is over, or there is no weight to go back to.
    pub async fn stop_drain(&self) -> Result<()> {
        let announced = async {
            let weight = self.weight.now();
            if weight == 0 {
                bail!(
                    "this member was started with --group-weight 0: start it again with another weight to keep it"
                );
            }
            self.set_weight(weight).await
        };
        self.draining.stop_when(announced).await?;
        // Nothing is left to hand over: the others are to hear that at once, too.
        self.usage_due.notify_one();
        Ok(())
    }

    /// Watches what the cores say of handing over, whenever this member's weight is 0. `counts` asks all `cores` of
    /// them (none when one does not answer), and may wait; `over` is told when they are done.
    pub fn watch_handover(
        self: &Arc<Self>,
        cores: usize,
        counts: impl Fn() -> Option<HandoverStats> + Send + Sync + 'static,
        over: impl Fn(DrainReport) + Send + Sync + 'static,
    ) {
        if !self.plan().is_member() {
            return;
        }
        if self.weight.now() == 0 {
            self.draining.begin();
            self.drain_begins.notify_one();
        }
        let (group, counts) = (Arc::downgrade(self), Arc::new(counts));
        let begins = self.drain_begins.clone();
        self.runtime().spawn(async move {
            loop {
                begins.notified().await;
                let mut told = Instant::now();
                loop {
                    let counts = counts.clone();
                    let Ok(counts) = tokio::task::spawn_blocking(move || counts()).await else {
                        return;
                    };
                    let Some(group) = group.upgrade() else { return };
                    if group.draining.state() != DrainState::Running {
                        break;
                    }
                    let done =
                        counts.is_some_and(|counts| group.draining.note(counts, cores as u64));
                    if done {
                        group.draining.end(DrainState::Done);
                        group.usage_due.notify_one();
                        over(group.drain_report());
                        break;
                    }
                    if told.elapsed() >= TELL_EVERY {
                        told = Instant::now();
                        group.usage_due.notify_one();
                    }
                    drop(group);
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_done_when_all_cores_are_and_the_whole_is_what_was_counted_first() {
        let draining = Draining::default();
        assert_eq!(draining.report().state, DrainState::None);
        draining.begin();
        let counts = HandoverStats {
            cores_leaving: 2,
            cores_counted: 1,
            left_bytes: 50,
            ..HandoverStats::default()
        };
        assert!(!draining.note(counts, 2));
        let report = draining.report();
        assert_eq!(
            (report.counted, report.bytes),
            (false, 0),
            "one core still counts"
        );
        let counts = HandoverStats {
            cores_counted: 2,
            left_bytes: 70,
            given_bytes: 30,
            cores_done: 1,
            ..counts
        };
        assert!(!draining.note(counts, 2));
        assert!(draining.report().counted);
        let counts = HandoverStats {
            left_bytes: 0,
            given_bytes: 60,
            refused_bytes: 10,
            refused_blocks: 1,
            cores_done: 2,
            ..counts
        };
        assert!(draining.note(counts, 2));
        draining.end(DrainState::Done);
        let report = draining.report();
        assert_eq!((report.bytes, report.left_bytes), (100, 0));
    }

    #[tokio::test]
    async fn who_asks_while_it_begins_begins_nothing_again() {
        let draining = Draining::default();
        let announced = std::sync::atomic::AtomicU32::new(0);
        let announce = async || {
            announced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        let (first, second) = tokio::join!(
            draining.begin_when(announce()),
            draining.begin_when(announce())
        );
        assert_eq!((first.unwrap(), second.unwrap()), (true, false));
        assert_eq!(announced.load(std::sync::atomic::Ordering::Relaxed), 1);
        // Nor does one that stops it end what another has begun meanwhile.
        let (stopped, begun) = tokio::join!(
            draining.stop_when(announce()),
            draining.begin_when(announce())
        );
        stopped.unwrap();
        assert!(begun.unwrap());
        assert_eq!(draining.report().state, DrainState::Running);
    }
}
