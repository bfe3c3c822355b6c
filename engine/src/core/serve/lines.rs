//! Peers' fetches that wait until they may be looked at: a line for each peer, and the peers take turns. Whose time is
//! over leaves its line, wherever it stands.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::limits::PEER_LINE_MAX;
use crate::ports::{Class, PeerFetch, PeerId, RequestHandle, Time};

/// A request that waits for what is lent to come back.
#[derive(Debug)]
pub(super) struct Asked {
    pub handle: RequestHandle,
    pub peer: PeerId,
    pub fetch: PeerFetch,
    pub deadline: Time,
}

/// Peers' lines of one urgency.
#[derive(Debug, Default)]
struct Lines {
    /// No line is empty, and each is in the order of its numbers.
    of: BTreeMap<PeerId, VecDeque<(u64, Asked)>>,
    /// Whose turn was the last.
    last: Option<PeerId>,
}

impl Lines {
    /// The first request of the next peer that may have its turn, and its number.
    fn next(&mut self, may: impl Fn(PeerId) -> bool) -> Option<(u64, Asked)> {
        let last = self.last.unwrap_or(PeerId(0));
        let behind = self.of.range((Bound::Excluded(last), Bound::Unbounded));
        let mut peers = behind.chain(self.of.range(..=last)).map(|(peer, _)| *peer);
        let peer = peers.find(|peer| may(*peer))?;
        self.last = Some(peer);
        self.take(peer, |_| Some(0))
    }

    /// The request of that number, when it is here.
    fn remove(&mut self, peer: PeerId, number: u64) -> Option<Asked> {
        let find = |line: &VecDeque<(u64, Asked)>| {
            line.binary_search_by_key(&number, |(number, _)| *number)
                .ok()
        };
        self.take(peer, find).map(|(_, asked)| asked)
    }

    fn take(
        &mut self,
        peer: PeerId,
        at: impl FnOnce(&VecDeque<(u64, Asked)>) -> Option<usize>,
    ) -> Option<(u64, Asked)> {
        let line = self.of.get_mut(&peer)?;
        let taken = line.remove(at(line)?);
        if line.is_empty() {
            self.of.remove(&peer);
        }
        taken
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Someone waits for these,
    urgent: Lines,
    /// and for these not yet.
    others: Lines,
    /// When the time of each is over, by its number.
    deadlines: BTreeMap<(Time, u64), PeerId>,
    last_number: u64,
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    /// When the time of the first is over.
    pub fn deadline(&self) -> Time {
        let first = self.deadlines.first_key_value();
        first.map_or(Time::NEVER, |((deadline, _), _)| *deadline)
    }

    /// A request goes to the end of its line, or back when its peer has as many there as it may.
    pub fn push(&mut self, asked: Asked) -> Result<(), Asked> {
        let lines = match asked.fetch.class {
            Class::Demand => &mut self.urgent,
            Class::Prefetch | Class::WarmUp => &mut self.others,
        };
        let line = lines.of.entry(asked.peer).or_default();
        if line.len() >= PEER_LINE_MAX {
            return Err(asked);
        }
        self.last_number += 1;
        let number = self.last_number;
        self.deadlines.insert((asked.deadline, number), asked.peer);
        line.push_back((number, asked));
        Ok(())
    }

    /// The next of a peer that may be given something.
    pub fn next(&mut self, may: impl Fn(PeerId) -> bool) -> Option<Asked> {
        let next = self.urgent.next(&may).or_else(|| self.others.next(&may));
        let (number, asked) = next?;
        self.deadlines.remove(&(asked.deadline, number));
        Some(asked)
    }

    /// One whose time is over at `now`.
    pub fn expired(&mut self, now: Time) -> Option<Asked> {
        if self.deadline() > now {
            return None;
        }
        let ((_, number), peer) = self.deadlines.pop_first()?;
        let urgent = self.urgent.remove(peer, number);
        urgent.or_else(|| self.others.remove(peer, number))
    }
}
