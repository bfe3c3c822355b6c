//! One core's transport over RDMA, with connections that the control thread makes when they are first wanted.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::Mapping;
use forebay_engine::ports::{
    Clock, FetchTag, Full, PeerCore, PeerId, Time, Transport, TransportEvent, TransportOp,
};
use forebay_engine::ring::Doorbell;

use crate::asking::Grant;
use crate::auto::{Linked, Readiness};
use crate::endpoint::{NoOffer, Shared, devices, verbs};
use crate::limits::{INTRODUCE_MS, STRIPE_BYTES, STRIPE_PAUSE_S};
use crate::links::{LinkRecord, LinkState};
use crate::rails::PortNews;
use crate::seat::{Seat, ToControl, ToCore};
use crate::{CmId, ConnectSteps, ConnectionId, PrepareStep, RailConfig, RdmaTransport, VerbsError};

/// A connection that is not there yet, or will not be.
#[derive(Debug)]
enum Wanted {
    /// Asked of the control thread, which answers.
    Since(Time),
    /// Why there is none; told once.
    Failed(NoOffer),
}

/// What a connection is to the control thread and to people.
#[derive(Debug)]
struct Known {
    by: CmId,
    peer: PeerCore,
    asks: bool,
    /// Of one that the peer asks on: the address that it comes from.
    at: Option<IpAddr>,
    /// Requests go over it.
    is_up: bool,
    /// It is tried out.
    is_trying: bool,
}

/// Kept failures of links that nobody asks for any more.
const FAILED_MAX: usize = 4_096;

/// What has the connections. In tests something else than [`RdmaTransport`] does.
pub(crate) trait Connections: Transport {
    fn offer(&mut self, prepare: &PrepareStep) -> Result<(ConnectionId, u32), VerbsError>;
    fn accept(
        &mut self,
        from: PeerId,
        prepare: &PrepareStep,
        connect: &ConnectSteps,
    ) -> Result<(ConnectionId, u32, Grant), VerbsError>;
    fn begin(
        &mut self,
        id: ConnectionId,
        to: PeerCore,
        connect: &ConnectSteps,
        grant: Grant,
    ) -> Result<bool, VerbsError>;
    fn take_proven(&mut self) -> Vec<ConnectionId>;
    fn close(&mut self, id: ConnectionId, why: &'static str);
    fn record(&mut self, id: ConnectionId, record: Arc<LinkRecord>);
    fn lose(&mut self, device: &str);
    fn add(&mut self, device: &RailConfig) -> bool;
    fn reaches(&self, to: PeerCore) -> bool;
    fn lanes(&self, to: PeerCore) -> usize;
    fn has_room(&self, device: &str) -> bool;
    fn devices_to(&self, to: PeerCore) -> Vec<String>;
    fn under_way_bytes(&self, to: PeerCore) -> u64;
    fn take_ended(&mut self) -> Vec<(ConnectionId, String)>;
    fn take_ports(&mut self) -> Vec<(String, PortNews)>;
    fn why_down(&self) -> Option<String>;
}

impl Connections for RdmaTransport {
    fn offer(&mut self, prepare: &PrepareStep) -> Result<(ConnectionId, u32), VerbsError> {
        RdmaTransport::offer(self, prepare)
    }

    fn accept(
        &mut self,
        from: PeerId,
        prepare: &PrepareStep,
        connect: &ConnectSteps,
    ) -> Result<(ConnectionId, u32, Grant), VerbsError> {
        RdmaTransport::accept(self, from, prepare, connect)
    }

    fn begin(
        &mut self,
        id: ConnectionId,
        to: PeerCore,
        connect: &ConnectSteps,
        grant: Grant,
    ) -> Result<bool, VerbsError> {
        RdmaTransport::begin(self, id, to, connect, grant)
    }

    fn take_proven(&mut self) -> Vec<ConnectionId> {
        RdmaTransport::take_proven(self)
    }

    fn close(&mut self, id: ConnectionId, why: &'static str) {
        RdmaTransport::close(self, id, why);
    }

    fn record(&mut self, id: ConnectionId, record: Arc<LinkRecord>) {
        RdmaTransport::record(self, id, record);
    }

    fn lose(&mut self, device: &str) {
        RdmaTransport::lose(self, device);
    }

    fn add(&mut self, device: &RailConfig) -> bool {
        RdmaTransport::add(self, device)
    }

    fn reaches(&self, to: PeerCore) -> bool {
        RdmaTransport::reaches(self, to)
    }

    fn lanes(&self, to: PeerCore) -> usize {
        RdmaTransport::lanes(self, to)
    }

    fn has_room(&self, device: &str) -> bool {
        RdmaTransport::has_room(self, device)
    }

    fn devices_to(&self, to: PeerCore) -> Vec<String> {
        RdmaTransport::devices_to(self, to)
    }

    fn under_way_bytes(&self, to: PeerCore) -> u64 {
        RdmaTransport::under_way_bytes(self, to)
    }

    fn take_ended(&mut self) -> Vec<(ConnectionId, String)> {
        RdmaTransport::take_ended(self)
    }

    fn take_ports(&mut self) -> Vec<(String, PortNews)> {
        RdmaTransport::take_ports(self)
    }

    fn why_down(&self) -> Option<String> {
        RdmaTransport::why_down(self)
    }
}

/// The engine's way to peers by RDMA, for one core, which makes its connections. It never leaves that core's thread.
pub struct LinkedTransport<T = RdmaTransport> {
    transport: T,
    shared: Arc<Shared>,
    core: u16,
    seat: Arc<Seat>,
    clock: Box<dyn Clock>,
    wanted: BTreeMap<PeerCore, Wanted>,
    known: BTreeMap<ConnectionId, Known>,
    /// Devices of this core.
    rails: usize,
    /// Links that have fewer connections than there are rails; until then no other is tried.
    not_wider_before: BTreeMap<PeerCore, Time>,
    /// A port came up since the links were last asked for.
    revived: bool,
}

impl<T: fmt::Debug> fmt::Debug for LinkedTransport<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkedTransport")
            .field("core", &self.core)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl LinkedTransport {
    pub(crate) fn open(
        shared: Arc<Shared>,
        (core, seat): (u16, Arc<Seat>),
        arena: Mapping,
        doorbell: Arc<Doorbell>,
        clock: impl Clock + Clone + 'static,
    ) -> Result<LinkedTransport, VerbsError> {
        let devices = devices(&shared.rails());
        let transport = RdmaTransport::new(
            &verbs()?,
            &devices,
            &arena,
            shared.credit_bytes,
            Box::new(clock.clone()),
        )?;
        let transport = transport
            .armed_for_sleep(doorbell)
            .telling_ends()
            .trying_out();
        let mut linked = LinkedTransport::over(transport, shared, (core, seat), Box::new(clock));
        linked.rails = devices.len();
        Ok(linked)
    }

    /// Readable when a completion came after [`Transport::poll`] had none: the core's thread waits for it too.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.transport.fd()
    }
}

impl<T> LinkedTransport<T> {
    fn over(
        transport: T,
        shared: Arc<Shared>,
        (core, seat): (u16, Arc<Seat>),
        clock: Box<dyn Clock>,
    ) -> Self {
        LinkedTransport {
            transport,
            shared,
            core,
            seat,
            clock,
            wanted: BTreeMap::new(),
            known: BTreeMap::new(),
            rails: 1,
            not_wider_before: BTreeMap::new(),
            revived: false,
        }
    }
}

#[allow(private_bounds, reason = "nobody else has another one")]
impl<T: Connections> LinkedTransport<T> {
    fn arrived(&mut self, arrival: ToCore) {
        match arrival {
            ToCore::Offer { by, to, prepare } => {
                let device = prepare.device();
                // One of several does not take the place of another link's only one.
                let offered = match self.transport.reaches(to) && !self.transport.has_room(device) {
                    true => Err(VerbsError::Unusable {
                        object: format!("RDMA device {device} on this core"),
                        what: "it has no room for a link's second connection".into(),
                    }),
                    false => self.transport.offer(&prepare),
                };
                if let Ok((id, _)) = &offered {
                    self.know(*id, by, (to, None), true);
                }
                let offered = offered.map_err(|error| error.to_string());
                let core = self.core;
                self.shared.tell(ToControl::Offered { core, by, offered });
            }
            ToCore::Accept {
                by,
                from,
                at,
                prepare,
                connect,
            } => {
                // One that the peer has given up, though nobody was told.
                let before = self.known.iter();
                let before =
                    before.filter(|(_, known)| !known.asks && known.peer == from && known.at == at);
                for id in before.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.transport.close(id, "the peer has made another");
                }
                let accepted = self.transport.accept(from.peer, &prepare, &connect);
                if let Ok((id, ..)) = &accepted {
                    self.know(*id, by, (from, at), false);
                    self.is_up(*id);
                }
                let accepted = accepted.map_err(|error| error.to_string());
                let core = self.core;
                self.shared.tell(ToControl::Accepted { core, by, accepted });
            }
            ToCore::Begin {
                by,
                id,
                to,
                connect,
                grant,
            } => {
                let begun = self.transport.begin(id, to, &connect, grant);
                match begun {
                    Ok(true) => self.is_up(id),
                    Ok(false) => {
                        let known = self.known.get_mut(&id);
                        known.into_iter().for_each(|known| known.is_trying = true);
                    }
                    Err(_) => {}
                }
                let begun = begun.map(|_| ()).map_err(|error| error.to_string());
                self.shared.tell(ToControl::Begun { by, begun });
            }
            ToCore::Close { id, why } => self.transport.close(id, why),
            ToCore::Lost { device } => self.transport.lose(&device),
            ToCore::Devices(devices) => self.take_devices(&devices),
            ToCore::Unavailable { to, why } => self.failed(to, why),
        }
    }

    fn know(
        &mut self,
        id: ConnectionId,
        by: CmId,
        (peer, at): (PeerCore, Option<IpAddr>),
        asks: bool,
    ) {
        let record = self.shared.links.record(self.core, peer, asks);
        self.transport.record(id, record);
        let known = Known {
            by,
            peer,
            asks,
            at,
            is_up: false,
            is_trying: false,
        };
        self.known.insert(id, known);
    }

    fn is_up(&mut self, id: ConnectionId) {
        if let Some(known) = self.known.get_mut(&id) {
            (known.is_up, known.is_trying) = (true, false);
            let (peer, asks) = (known.peer, known.asks);
            if asks {
                self.wanted.remove(&peer);
            }
            let record = self.shared.links.record(self.core, peer, asks);
            record.set(LinkState::Up);
            record.set_connections(self.count(peer, asks));
        }
    }

    /// Connections of a link that are up.
    fn count(&self, peer: PeerCore, asks: bool) -> usize {
        let all = self.known.values();
        all.filter(|known| known.is_up && known.peer == peer && known.asks == asks)
            .count()
    }

    fn failed(&mut self, to: PeerCore, no: NoOffer) {
        // One of several: the others carry on.
        if self.transport.reaches(to) {
            tracing::debug!(peer = to.peer.0, "RDMA: no further connection: {}", no.why);
            let at = self.clock.now() + Duration::from_secs(STRIPE_PAUSE_S);
            let now = self.clock.now();
            if self.not_wider_before.len() >= FAILED_MAX {
                self.not_wider_before.retain(|_, until| now < *until);
            }
            self.not_wider_before.insert(to, at);
            self.wanted.remove(&to);
            return;
        }
        if self.wanted.len() >= FAILED_MAX {
            self.wanted
                .retain(|_, wanted| matches!(wanted, Wanted::Since(_)));
        }
        let record = self.shared.links.record(self.core, to, true);
        record.down(no.why.clone());
        self.wanted.insert(to, Wanted::Failed(no));
    }

    /// Wants a further connection of a link that is asked for much at once, if there is a rail without one.
    fn widen(&mut self, to: PeerCore, len_bytes: usize) {
        // No connection at all is begun by `prepare`.
        if !(1..self.rails).contains(&self.transport.lanes(to)) {
            return;
        }
        let asked_bytes = self.transport.under_way_bytes(to) + len_bytes as u64;
        if asked_bytes < STRIPE_BYTES || self.wanted.contains_key(&to) {
            return;
        }
        let without = self.transport.devices_to(to);
        let now = self.clock.now();
        match self.not_wider_before.get(&to) {
            Some(until) if now < *until => return,
            _ => _ = self.not_wider_before.remove(&to),
        }
        self.wanted.insert(to, Wanted::Since(now));
        let core = self.core;
        self.shared.tell(ToControl::Want { core, to, without });
    }

    /// Opens the devices that are new.
    fn take_devices(&mut self, devices: &[RailConfig]) {
        let new = devices.iter().filter(|device| self.transport.add(device));
        let count = new.count();
        self.rails += count;
        if count > 0 {
            self.revive();
        }
    }

    /// There is a way that there was not before: links are tried again.
    fn revive(&mut self) {
        self.revived = true;
        self.not_wider_before.clear();
        // Of when there was none.
        self.wanted
            .retain(|_, wanted| matches!(wanted, Wanted::Since(_)));
    }

    /// Tells of ports that went down or came up.
    fn look_at_ports(&mut self) {
        for (device, news) in self.transport.take_ports() {
            if news == PortNews::Up {
                self.revive();
            }
            self.shared.port(&device, news);
        }
    }

    /// Tells of connections that have ended by themselves.
    fn look_for_ends(&mut self) {
        for (id, why) in self.transport.take_ended() {
            let Some(known) = self.known.remove(&id) else {
                continue;
            };
            let record = (self.shared.links).record(self.core, known.peer, known.asks);
            let left = self.count(known.peer, known.asks);
            record.set_connections(left);
            // Another may have taken its place, or be being made.
            let other = self.known.values();
            let is_other = |other: &Known| other.peer == known.peer && other.asks == known.asks;
            match other.into_iter().any(is_other) {
                false => record.down(why.clone()),
                true if left == 0 => record.set(LinkState::Connecting),
                true => {}
            }
            self.shared.tell(ToControl::Ended { by: known.by });
            // Whoever waits for it is told: it was made, and is of no use.
            if known.is_trying {
                let no = NoOffer {
                    carries_nothing: true,
                    ..NoOffer::from(why)
                };
                self.failed(known.peer, no);
            }
        }
    }
}

impl<T: Connections> Linked for LinkedTransport<T> {
    fn reaches(&self, to: PeerCore) -> bool {
        self.transport.reaches(to)
    }

    fn prepare(&mut self, to: PeerCore) -> Readiness {
        if self.transport.reaches(to) {
            return Readiness::Ready;
        }
        if let Some(why) = self.transport.why_down() {
            return Readiness::Unavailable(why);
        }
        let now = self.clock.now();
        match self.wanted.get(&to) {
            // The control thread ends it before; should it be gone, nobody waits for it for ever.
            Some(Wanted::Since(since))
                if now.since(*since) < Duration::from_millis(2 * INTRODUCE_MS) =>
            {
                return Readiness::Connecting;
            }
            Some(Wanted::Failed(_)) => {
                if let Some(Wanted::Failed(no)) = self.wanted.remove(&to) {
                    return match (no.lacks, no.carries_nothing) {
                        (true, _) => Readiness::Lacking(no.why),
                        (_, true) => Readiness::Useless(no.why),
                        _ => Readiness::Unavailable(no.why),
                    };
                }
            }
            _ => {}
        }
        let core = self.core;
        self.wanted.insert(to, Wanted::Since(now));
        self.shared
            .links
            .record(core, to, true)
            .set(LinkState::Connecting);
        let without = Vec::new();
        self.shared.tell(ToControl::Want { core, to, without });
        Readiness::Connecting
    }

    fn take_revival(&mut self) -> bool {
        std::mem::take(&mut self.revived)
    }
}

impl<T: Connections> Transport for LinkedTransport<T> {
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, op: TransportOp) -> Result<(), Full<TransportOp>> {
        if let TransportOp::Fetch { to, lease, .. } = &op {
            self.widen(*to, lease.len());
        }
        self.transport.submit(op)
    }

    fn poll(&mut self) -> Option<TransportEvent> {
        while let Some(arrival) = self.seat.arrivals.pop() {
            self.arrived(arrival);
        }
        let event = self.transport.poll();
        for id in self.transport.take_proven() {
            self.is_up(id);
        }
        self.look_at_ports();
        self.look_for_ends();
        event
    }

    fn cancel(&mut self, tag: FetchTag) {
        self.transport.cancel(tag);
    }

    fn wake_at(&self) -> Time {
        self.transport.wake_at()
    }
}

impl<T> Drop for LinkedTransport<T> {
    fn drop(&mut self) {
        self.shared.leave(self.core, &self.seat);
        for known in self.known.values() {
            self.shared.tell(ToControl::Ended { by: known.by });
        }
    }
}

#[cfg(test)]
#[path = "linked_tests.rs"]
mod tests;
