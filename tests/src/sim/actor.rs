//! The workload: actors that ask, wait for their answers, think, and ask again.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::errors::ReadError;
use forebay_engine::identity::{Bucket, ObjectVersion};
use forebay_engine::limits::{BLOCK_BYTES, READ_BYTES_MAX, STRIPE_BYTES, SUB_BLOCK_BYTES};
use forebay_engine::ports::ListRequest;

use super::board::{Answered, Outcome, Question};
use super::bucket::entry_name;
use super::rng::SimRng;

/// How an actor behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Reads an object from its start, `read_bytes` at a time, and says that it will want more.
    Sequential {
        /// Bytes of each read.
        read_bytes: u32,
        /// Bytes that it says it will want.
        want_bytes: u32,
    },
    /// Reads 4 KiB anywhere.
    Random,
    /// Many readers of one range at the same moment.
    Burst {
        /// How many.
        readers: u32,
    },
    /// Reads across the borders of blocks and stripes.
    Crossing,
    /// Reads nothing, beyond the end, across the end, and more than allowed.
    Edges,
    /// Reads all of a small object.
    Whole,
    /// Asks for attributes.
    Heads,
    /// Walks listings, page by page.
    Lists,
    /// Asks for bytes ahead, and reads some of them later.
    Prefetcher,
    /// Asks for more at once than a core's tables hold.
    Flood {
        /// How many reads.
        reads: u32,
    },
}

/// What an actor asks for.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Bytes.
    Read {
        /// Of which version.
        object: Arc<ObjectVersion>,
        /// First byte.
        offset: u64,
        /// How many.
        len_bytes: u32,
        /// How many soon.
        want_bytes: u32,
    },
    /// Bytes ahead.
    Prefetch {
        /// Of which version.
        object: Arc<ObjectVersion>,
        /// First byte.
        offset: u64,
        /// How many.
        len_bytes: u64,
    },
    /// Attributes.
    Head(Arc<str>),
    /// A listing page.
    List(ListRequest),
}

/// One source of work.
#[derive(Debug)]
pub struct Actor {
    habit: Habit,
    rng: SimRng,
    object: Arc<ObjectVersion>,
    /// Rounds of asking left.
    rounds: u32,
    /// Answers it waits for.
    waiting: u32,
    /// Asks that the engine had no room for.
    backlog: Vec<Ask>,
    position: u64,
    reopen: bool,
    listing: Option<ListRequest>,
    listed: Vec<String>,
}

impl Actor {
    /// An actor that asks `rounds` times about `object`.
    pub fn new(habit: Habit, rng: SimRng, object: Arc<ObjectVersion>, rounds: u32) -> Self {
        Self {
            habit,
            rng,
            object,
            rounds,
            waiting: 0,
            backlog: Vec::new(),
            position: 0,
            reopen: false,
            listing: None,
            listed: Vec::new(),
        }
    }

    /// Whether nothing is left to ask or to wait for.
    pub fn is_done(&self) -> bool {
        self.rounds == 0 && self.waiting == 0 && self.backlog.is_empty()
    }

    /// Asks no more; waits for what is under way.
    pub fn retire(&mut self) {
        self.rounds = 0;
        self.backlog.clear();
    }

    /// What it asks next; each read, HEAD and page must be answered through [`Actor::on_answer`] or
    /// given back through [`Actor::on_full`].
    pub fn next_asks(&mut self) -> Vec<Ask> {
        let mut asks = std::mem::take(&mut self.backlog);
        if asks.is_empty() && self.waiting == 0 && self.rounds > 0 {
            self.rounds -= 1;
            asks = self.round();
        }
        self.waiting += asks
            .iter()
            .filter(|ask| !matches!(ask, Ask::Prefetch { .. }))
            .count() as u32;
        asks
    }

    /// The engine was full: asks again later.
    pub fn on_full(&mut self, ask: Ask) {
        self.waiting -= 1;
        self.backlog.push(ask);
    }

    /// An answer came. Returns after what time the actor wants to go on, and a whole listing when
    /// its last page came.
    pub fn on_answer(&mut self, answered: &Answered) -> (Duration, Option<(String, Vec<String>)>) {
        self.waiting -= 1;
        let mut whole = None;
        match (&answered.asked.question, &answered.outcome) {
            (_, Outcome::ReadFailed(ReadError::VersionChanged)) => self.reopen = true,
            (Question::Head(_), Outcome::Head(Ok(meta))) if self.reopen => {
                self.object = Arc::new(meta.version(&self.object.bucket));
                self.position = 0;
                self.reopen = false;
            }
            (Question::List(request), Outcome::List(Ok(page))) => {
                self.listed.extend(
                    page.entries
                        .iter()
                        .map(|entry| entry_name(entry).to_owned()),
                );
                self.listing = page.next.clone().map(|next| {
                    // A walk goes on to its end whatever the number of rounds.
                    self.rounds += 1;
                    ListRequest {
                        continuation: Some(next),
                        ..request.clone()
                    }
                });
                if self.listing.is_none() {
                    whole = Some((request.prefix.to_string(), std::mem::take(&mut self.listed)));
                }
            }
            _ => {}
        }
        (self.think(), whole)
    }

    fn think(&mut self) -> Duration {
        if self.rng.chance(700) {
            return Duration::ZERO;
        }
        let longest_us = *self.rng.pick(&[10, 1_000, 100_000]);
        Duration::from_micros(self.rng.below(longest_us))
    }

    fn round(&mut self) -> Vec<Ask> {
        if self.reopen {
            return vec![Ask::Head(self.object.key.clone())];
        }
        let size = self.object.size_bytes;
        match self.habit {
            Habit::Sequential {
                read_bytes,
                want_bytes,
            } => {
                if self.position >= size {
                    self.position = 0;
                }
                let ask = self.read(self.position, read_bytes, want_bytes);
                self.position += u64::from(read_bytes);
                vec![ask]
            }
            Habit::Random => {
                let offset = self.rng.below(size) & !4_095;
                vec![self.read(offset, 4_096, 0)]
            }
            Habit::Burst { readers } => {
                let len_bytes = self.rng.between(1, 4 * SUB_BLOCK_BYTES as u64) as u32;
                let offset = self.rng.below(size);
                (0..readers)
                    .map(|_| self.read(offset, len_bytes, 0))
                    .collect()
            }
            Habit::Crossing => vec![self.crossing()],
            Habit::Edges => vec![self.edge()],
            Habit::Whole => vec![self.read(0, READ_BYTES_MAX as u32, 0)],
            Habit::Heads => vec![Ask::Head(self.object.key.clone())],
            Habit::Lists => vec![self.list()],
            Habit::Prefetcher => {
                let offset = self.rng.below(size);
                let len_bytes = self.rng.between(1, 8 << 20);
                let later = offset + self.rng.below(len_bytes);
                let object = self.object.clone();
                vec![
                    Ask::Prefetch {
                        object,
                        offset,
                        len_bytes,
                    },
                    self.read(later, 65_536, 0),
                ]
            }
            Habit::Flood { reads } => (0..reads)
                .map(|number| {
                    let offset = u64::from(number) * SUB_BLOCK_BYTES as u64 % size;
                    self.read(offset, 512, 0)
                })
                .collect(),
        }
    }

    fn read(&self, offset: u64, len_bytes: u32, want_bytes: u32) -> Ask {
        Ask::Read {
            object: self.object.clone(),
            offset,
            len_bytes,
            want_bytes,
        }
    }

    fn crossing(&mut self) -> Ask {
        let unit = *self.rng.pick(&[
            SUB_BLOCK_BYTES,
            1 << 20,
            BLOCK_BYTES,
            STRIPE_BYTES,
            STRIPE_BYTES,
        ]) as u64;
        let borders = (self.object.size_bytes / unit).max(1);
        let border = unit * self.rng.between(1, borders);
        let len_bytes = self.rng.between(2, READ_BYTES_MAX as u64);
        let before = self.rng.between(1, len_bytes - 1);
        self.read(border - before.min(border), len_bytes as u32, 0)
    }

    fn edge(&mut self) -> Ask {
        let size = self.object.size_bytes;
        let some = self.rng.between(1, 100_000);
        match self.rng.below(6) {
            0 => self.read(self.rng.clone().below(size), 0, 0),
            1 => self.read(size, 4_096, 0),
            2 => self.read(size + some, 4_096, 0),
            3 => self.read(u64::MAX - some, READ_BYTES_MAX as u32, u32::MAX),
            4 => self.read(0, READ_BYTES_MAX as u32 + some as u32, 0),
            _ => self.read(size - some.min(size), 2 * some as u32, u32::MAX),
        }
    }

    fn list(&mut self) -> Ask {
        if let Some(next) = self.listing.take() {
            return Ask::List(next);
        }
        self.listed.clear();
        let bucket: Arc<Bucket> = self.object.bucket.clone();
        let prefix = *self.rng.pick(&["", "d0/", "d1/", "nothing/"]);
        let entries_max = self.rng.between(1, 20) as u32;
        Ask::List(ListRequest {
            bucket,
            prefix: prefix.into(),
            delimited: false,
            continuation: None,
            entries_max,
        })
    }
}
