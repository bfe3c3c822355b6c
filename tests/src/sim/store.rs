//! The simulated object store itself: its objects, how it behaves, and its exact count of what it sent.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::arena::Lease;
use forebay_engine::errors::OriginErrorKind;
use forebay_engine::identity::{ObjectId, ObjectVersion};
use forebay_engine::limits::SUB_BLOCK_BYTES;
use forebay_engine::ports::Time;

use super::bucket::SimBucket;

/// What will become of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It works.
    Whole,
    /// It fails after this many bytes of body.
    Fail(OriginErrorKind, u64),
    /// Nothing more happens after this many bytes.
    Hang(u64),
}

/// How the origin behaves. Chances are per mille of the operations.
#[derive(Clone, Debug, Default)]
pub struct OriginProfile {
    /// Time to the first byte: from, to.
    pub latency: (Duration, Duration),
    /// Bandwidth of one GET, bytes per second: from, to.
    pub bytes_per_s: (u64, u64),
    /// Operations that one core may have under way.
    pub ops_max: usize,
    /// What goes wrong while faults are on.
    pub faults: OriginFaults,
}

/// What goes wrong, each per mille of the operations.
#[derive(Clone, Debug, Default)]
pub struct OriginFaults {
    /// 503 SlowDown.
    pub throttled: u32,
    /// 500, or the connection is reset: before the first byte, or between bytes.
    pub unavailable: u32,
    /// The body ends early.
    pub short: u32,
    /// No answer, or no more bytes, until the engine cancels or the deadline passes.
    pub hang: u32,
    /// 403.
    pub denied: u32,
    /// A hundred times the latency.
    pub slow: u32,
    /// `Full`, while other operations are under way.
    pub full: u32,
}

/// Deliberate defects, to prove that the checkers see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginDefect {
    /// One bit of one body is wrong.
    WrongByte,
    /// One lease never comes back.
    LeakedLease,
    /// A byte is counted by the service only.
    UnbookedBytes,
    /// A sub-block is noted as sent twice.
    SentTwice,
}

/// A sub-block was sent once more.
#[derive(Clone, Copy, Debug)]
pub struct SentAgain {
    /// Which.
    pub sub_block: (ObjectId, u64),
    /// When.
    pub at: Time,
}

/// The service: its objects and its count.
#[derive(Debug)]
pub struct OriginStore {
    /// What it holds.
    pub bucket: SimBucket,
    /// What becomes of every GET from now on, and, where it says so, of every HEAD and LIST.
    pub forced: Option<(Fate, bool)>,
    /// Nodes that hear nothing from the service: neither an answer nor a refusal.
    pub cut_off: BTreeSet<usize>,
    /// Faults happen only while this is set.
    pub faults_on: bool,
    /// Bytes of object bodies that left the service.
    pub sent_bytes: u64,
    /// How often each whole or part of a sub-block (number within the object) was sent.
    pub sent_sub_blocks: BTreeMap<(ObjectId, u64), u32>,
    /// Each sending of one that had been sent before.
    pub sent_again: Vec<SentAgain>,
    /// GETs that began a body.
    pub bodies: u64,
    /// When a 403 was last sent.
    pub denied_at: Option<Time>,
    /// A defect still to be shown.
    pub defect: Option<OriginDefect>,
    pub(super) leaked: Vec<Lease>,
}

impl OriginStore {
    /// A service with the objects of `bucket`.
    pub fn new(bucket: SimBucket) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            bucket,
            forced: None,
            cut_off: BTreeSet::new(),
            faults_on: false,
            sent_bytes: 0,
            sent_sub_blocks: BTreeMap::new(),
            sent_again: Vec::new(),
            bodies: 0,
            denied_at: None,
            defect: None,
            leaked: Vec::new(),
        }))
    }

    pub(super) fn send(&mut self, at: Time, object: &ObjectVersion, offset: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        self.sent_bytes += len_bytes;
        let first = offset / SUB_BLOCK_BYTES as u64;
        let last = (offset + len_bytes - 1) / SUB_BLOCK_BYTES as u64;
        if self.take_defect(OriginDefect::SentTwice) {
            *self.sent_sub_blocks.entry((object.id, first)).or_default() += 1;
        }
        for number in first..=last {
            let times = self.sent_sub_blocks.entry((object.id, number)).or_default();
            *times += 1;
            if *times > 1 {
                let sub_block = (object.id, number);
                self.sent_again.push(SentAgain { sub_block, at });
            }
        }
    }

    pub(super) fn take_defect(&mut self, defect: OriginDefect) -> bool {
        let shown = self.defect == Some(defect);
        if shown {
            self.defect = None;
        }
        shown
    }
}
