//! What the control thread and the cores tell each other.

use std::net::IpAddr;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use forebay_engine::ports::PeerCore;
use forebay_engine::ring::Doorbell;

use crate::asking::Grant;
use crate::endpoint::NoOffer;
use crate::introduce::{Ends, Offer, Session};
use crate::{CmId, ConnectSteps, ConnectionId, PrepareStep, RailConfig};

/// What the control thread tells a core.
pub(crate) enum ToCore {
    /// Make your end of a connection to ask on.
    Offer {
        by: CmId,
        to: PeerCore,
        prepare: PrepareStep,
    },
    /// Make your end of a connection that a peer, which was proven, asks on.
    Accept {
        by: CmId,
        from: PeerCore,
        /// The address that it comes from.
        at: Option<IpAddr>,
        prepare: PrepareStep,
        connect: ConnectSteps,
    },
    /// The peer has accepted: ask on it.
    Begin {
        by: CmId,
        id: ConnectionId,
        to: PeerCore,
        connect: ConnectSteps,
        grant: Grant,
    },
    /// End it.
    Close { id: ConnectionId, why: &'static str },
    /// A device goes away: close it.
    Lost { device: String },
    /// The devices that there are: some may be new.
    Devices(Vec<RailConfig>),
    /// There will be no connection to ask on.
    Unavailable { to: PeerCore, why: NoOffer },
}

/// What the control thread is told.
pub(crate) enum ToControl {
    /// A core wants to ask another.
    Want {
        core: u16,
        to: PeerCore,
        /// Devices by which it reaches it already.
        without: Vec<String>,
    },
    /// What the other said over TCP.
    Invited {
        ends: Ends,
        invited: Result<(Session, Offer), NoOffer>,
    },
    Offered {
        core: u16,
        by: CmId,
        offered: Result<(ConnectionId, u32), String>,
    },
    Accepted {
        core: u16,
        by: CmId,
        accepted: Result<(ConnectionId, u32, Grant), String>,
    },
    Begun {
        by: CmId,
        begun: Result<(), String>,
    },
    /// The core's end is gone, or as good as gone.
    Ended {
        by: CmId,
    },
    /// There are more rails.
    Rails,
    Stop,
}

/// Where a core is reached.
pub(crate) struct Seat {
    pub arrivals: SegQueue<ToCore>,
    /// The NUMA node that the core is on, where that is known.
    pub node: Option<u32>,
    doorbell: Arc<Doorbell>,
}

impl Seat {
    pub fn new(doorbell: Arc<Doorbell>, node: Option<u32>) -> Arc<Seat> {
        Arc::new(Seat {
            arrivals: SegQueue::new(),
            node,
            doorbell,
        })
    }

    pub fn tell(&self, what: ToCore) {
        self.arrivals.push(what);
        self.doorbell.ring();
    }
}
