//! Whom reads are for, and those of them that wait for room.

use std::collections::VecDeque;

use super::jobs::JobKey;
use super::read::ReadKey;
use super::serve::PeerReader;
use super::takeover::TakeKey;
use crate::client::{Answer, Reply};
use crate::limits::{HERE_ARENA_SHARE, SERVE_ARENA_SHARE};
use crate::ports::Class;

/// Whom a read is for.
#[derive(Debug)]
pub(super) enum Reader<R> {
    /// A reader of this node.
    Front(Answer<R>),
    /// A peer.
    Peer(PeerReader),
    /// A warm-up on this node.
    Job(JobKey),
    /// A block that is taken over from a member that leaves.
    Take(TakeKey),
}

impl<R: Reply> Reader<R> {
    /// Answers a reader of this node.
    pub fn data(self, bytes: &[u8]) {
        match self {
            Reader::Front(answer) => answer.data(bytes),
            Reader::Peer(_) | Reader::Job(_) | Reader::Take(_) => {
                debug_assert!(false, "only a front end takes bytes");
            }
        }
    }
}

impl<R> Reader<R> {
    /// Whether the bytes are checked by whoever gets them.
    pub fn trusts(&self) -> bool {
        matches!(self, Reader::Peer(peer) if !peer.verify)
    }

    pub fn is_front(&self) -> bool {
        matches!(self, Reader::Front(_))
    }

    /// The lane that it waits in, for bytes that are on this node or not.
    pub fn lane(&self, is_here: bool) -> LaneOf {
        match (self, is_here) {
            (Reader::Front(_), true) => LaneOf::FrontHere,
            (Reader::Front(_), false) => LaneOf::Front,
            (Reader::Peer(_), true) => LaneOf::PeerHere,
            (Reader::Peer(_), false) => LaneOf::Peer,
            (Reader::Job(_) | Reader::Take(_), _) => LaneOf::Job,
        }
    }

    pub fn is_peer(&self) -> bool {
        matches!(self, Reader::Peer(_))
    }
}

/// Who waits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneOf {
    /// This node's readers of what is on its disks: they do not wait for an origin that does not answer.
    FrontHere,
    Front,
    PeerHere,
    Peer,
    Job,
}

impl LaneOf {
    pub const ALL: [Self; 5] = [
        Self::FrontHere,
        Self::Front,
        Self::PeerHere,
        Self::Peer,
        Self::Job,
    ];

    /// How much of an arena the reads of this lane may wait for together.
    pub fn share_bytes(self, arena_bytes: usize) -> usize {
        match self {
            LaneOf::Front => arena_bytes / 2,
            LaneOf::FrontHere | LaneOf::Job => arena_bytes / HERE_ARENA_SHARE,
            LaneOf::Peer => arena_bytes / SERVE_ARENA_SHARE,
            LaneOf::PeerHere => arena_bytes / HERE_ARENA_SHARE / 2,
        }
    }
}

/// Reads that wait for bytes to come to memory, of one kind of reader.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Bytes that they need in memory, of those that fetch.
    pub admitted_bytes: usize,
    /// Those for whose bytes there is no room yet, in the order of their coming: someone waits for these,
    urgent: VecDeque<ReadKey>,
    /// and for these not yet.
    others: VecDeque<ReadKey>,
}

/// This node's readers, peers, warm-ups. None waits for the other's room: else two members whose readers
/// wait for each other would wait for ever.
#[derive(Debug, Default)]
pub(super) struct Lanes([Lane; 5]);

impl Lanes {
    pub fn of(&mut self, lane: LaneOf) -> &mut Lane {
        &mut self.0[lane as usize]
    }

    /// Whether someone waits for room where there is nothing to wait for.
    pub fn may_admit(&self) -> bool {
        let idle = |lane: &Lane| lane.admitted_bytes == 0 && lane.someone_waits();
        self.0.iter().any(idle)
    }
}

#[cfg(test)]
impl Lanes {
    pub fn admitted_bytes(&self) -> usize {
        self.0.iter().map(|lane| lane.admitted_bytes).sum()
    }

    pub fn someone_waits(&self) -> bool {
        self.0.iter().any(Lane::someone_waits)
    }
}

impl Lane {
    fn someone_waits(&self) -> bool {
        !self.urgent.is_empty() || !self.others.is_empty()
    }

    /// Whether a newcomer has to stand behind someone.
    pub fn has_line_for(&self, class: Class) -> bool {
        match class {
            Class::Demand => !self.urgent.is_empty(),
            Class::Prefetch | Class::WarmUp => self.someone_waits(),
        }
    }

    /// To the end of its line.
    pub fn wait(&mut self, key: ReadKey, class: Class) {
        match class {
            Class::Demand => self.urgent.push_back(key),
            Class::Prefetch | Class::WarmUp => self.others.push_back(key),
        }
    }

    /// Who is next; [`Lane::put_back`] if there is no room.
    pub fn next(&mut self) -> Option<ReadKey> {
        self.urgent.pop_front().or_else(|| self.others.pop_front())
    }

    pub fn put_back(&mut self, key: ReadKey, class: Class) {
        match class {
            Class::Demand => self.urgent.push_front(key),
            Class::Prefetch | Class::WarmUp => self.others.push_front(key),
        }
    }

    /// Readers whose bytes do not fit together would evict each other's for ever: only as many fetch at a
    /// time as fit `share_bytes`, the rest wait in the order of their coming.
    pub fn has_room_for(&self, footprint_bytes: usize, share_bytes: usize) -> bool {
        self.admitted_bytes == 0 || self.admitted_bytes + footprint_bytes <= share_bytes
    }
}
