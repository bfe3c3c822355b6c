//! Peers' fetches that wait until they may be looked at: a line for each peer, and the peers take turns.

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
    /// No line is empty.
    of: BTreeMap<PeerId, VecDeque<Asked>>,
    /// Whose turn was the last.
    last: Option<PeerId>,
}

impl Lines {
    /// The first request of the next peer that may have its turn.
    fn next(&mut self, may: impl Fn(PeerId) -> bool) -> Option<Asked> {
        let last = self.last.unwrap_or(PeerId(0));
        let behind = self.of.range((Bound::Excluded(last), Bound::Unbounded));
        let mut peers = behind.chain(self.of.range(..=last)).map(|(peer, _)| *peer);
        let peer = peers.find(|peer| may(*peer))?;
        self.last = Some(peer);
        let line = self.of.get_mut(&peer)?;
        let asked = line.pop_front();
        if line.is_empty() {
            self.of.remove(&peer);
        }
        asked
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Someone waits for these,
    urgent: Lines,
    /// and for these not yet.
    others: Lines,
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.urgent.of.is_empty() && self.others.of.is_empty()
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
        line.push_back(asked);
        Ok(())
    }

    /// The next of a peer that may be given something.
    pub fn next(&mut self, may: impl Fn(PeerId) -> bool) -> Option<Asked> {
        self.urgent.next(&may).or_else(|| self.others.next(&may))
    }
}
