//! A member's RDMA: its rails, the thread that makes connections, and the way from one to the other.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crossbeam_queue::SegQueue;
use forebay_engine::arena::Arena;
use forebay_engine::ports::{Clock, PeerCore, PeerId, Time};
use forebay_engine::ring::Doorbell;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, eventfd};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::control::Control;
use crate::gids;
use crate::introduce::{Ends, Offer, Refused, Session, Tickets};
use crate::inventory::Rail;
use crate::limits::TICKET_BYTES;
use crate::linked::LinkedTransport;
use crate::links::{LinkStatus, Links};
use crate::numa;
use crate::ports::{Line, Ports};
use crate::rails::PortNews;
use crate::seat::{Seat, ToControl, ToCore};
use crate::{Cm, RailConfig, Verbs, VerbsError};

/// Asks the member of `Ends::acceptor` over TCP for an [`Offer`], and tells what came of it. Does not wait.
pub type Invite = Box<dyn Fn(Ends, Told) + Send>;

/// Where an [`Invite`] tells what came of it. One that is dropped counts as no answer, after some seconds.
pub struct Told {
    shared: Arc<Shared>,
    ends: Ends,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoOffer {
    /// For people.
    pub why: String,
    /// The peer has no RDMA at all: it is asked more rarely.
    pub lacks: bool,
    /// A connection was made, and carries nothing, or nothing long.
    pub carries_nothing: bool,
}

impl From<String> for NoOffer {
    fn from(why: String) -> Self {
        NoOffer {
            why,
            lacks: false,
            carries_nothing: false,
        }
    }
}

impl From<&str> for NoOffer {
    fn from(why: &str) -> Self {
        NoOffer::from(why.to_owned())
    }
}

impl Told {
    pub(crate) fn new(shared: Arc<Shared>, ends: Ends) -> Told {
        Told { shared, ends }
    }

    /// What the peer said, and the session of that connection; or why it said nothing.
    pub fn tell(self, invited: Result<(Session, Offer), impl Into<NoOffer>>) {
        let ends = self.ends;
        let invited = invited.map_err(Into::into);
        self.shared.tell(ToControl::Invited { ends, invited });
    }
}

/// What an endpoint is started with.
pub struct EndpointConfig {
    /// Who this node is.
    pub me: PeerId,
    /// Its ways to peers; more may come later ([`Endpoint::add_rails`]).
    pub rails: Vec<Rail>,
    /// Whether others may ask this node: not of one that only takes.
    pub serves: bool,
    /// Engine cores of this node.
    pub cores: u16,
    /// Bytes of answers under way that each connection to this node is granted.
    pub credit_bytes: u32,
}

/// What the thread, the cores and the endpoint know together.
pub(crate) struct Shared {
    pub me: PeerId,
    rails: RwLock<Vec<Rail>>,
    pub credit_bytes: u32,
    pub clock: Box<dyn Clock + Send + Sync>,
    pub tickets: Mutex<Tickets>,
    pub links: Links,
    /// Where rails are listened at now.
    pub listening: Mutex<Vec<SocketAddr>>,
    /// Devices of which the kernel takes another GID than it should, and what to do.
    wrong_gids: Mutex<BTreeMap<String, String>>,
    /// How the ports of devices are.
    ports: Mutex<Ports>,
    seats: Mutex<Vec<Option<Arc<Seat>>>>,
    told: SegQueue<ToControl>,
    wake: rustix::fd::OwnedFd,
}

impl Shared {
    pub fn new(
        config: EndpointConfig,
        clock: impl Clock + Send + Sync + 'static,
    ) -> io::Result<Shared> {
        Ok(Shared {
            me: config.me,
            rails: RwLock::new(config.rails),
            credit_bytes: config.credit_bytes,
            clock: Box::new(clock),
            tickets: Mutex::new(Tickets::new()),
            links: Links::default(),
            listening: Mutex::default(),
            wrong_gids: Mutex::default(),
            ports: Mutex::default(),
            seats: Mutex::new((0..config.cores).map(|_| None).collect()),
            told: SegQueue::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn tell(&self, what: ToControl) {
        self.told.push(what);
        self.rouse();
    }

    /// Lets the thread look at everything.
    fn rouse(&self) {
        // The counter is drained at each wake-up, so it never comes near its limit.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub fn next(&self) -> Option<ToControl> {
        self.told.pop()
    }

    pub fn wake(&self) -> &rustix::fd::OwnedFd {
        &self.wake
    }

    /// What became of a device's port. Each core tells of it; people are told once, and not too often.
    pub fn port(&self, device: &str, news: PortNews) {
        let mut ports = self.ports.lock();
        match ports.changed(device, news, self.clock.now()) {
            Some(line) => line.write(),
            // The thread writes what is due later.
            None if ports.due_at().is_some() => self.rouse(),
            None => {}
        }
    }

    /// Tells of ports what was not told at once.
    pub fn write_due(&self) {
        let due = self.ports.lock().due(self.clock.now());
        due.iter().for_each(Line::write);
    }

    /// When that is due.
    pub fn due_at(&self) -> Option<Time> {
        self.ports.lock().due_at()
    }

    /// Which of its port's GIDs the kernel chose for a connection by a rail. What is wrong with it is told once, and shown.
    pub fn gid_taken(&self, rail: &Rail, took: Option<u8>) {
        let wrong = took.and_then(|took| gids::wrong(rail, took));
        let mut known = self.wrong_gids.lock();
        match wrong {
            Some(why) => {
                if known.insert(rail.device.clone(), why.clone()).is_none() {
                    tracing::warn!("RDMA device {why}");
                }
            }
            None => _ = known.remove(&rail.device),
        }
    }

    /// All rails, up or not.
    pub fn rails(&self) -> Vec<Rail> {
        self.rails.read().clone()
    }

    /// Rails whose ports reach peers, as far as is known.
    pub fn rails_up(&self) -> Vec<Rail> {
        let ports = self.ports.lock();
        let mut rails = self.rails();
        rails.retain(|rail| !ports.is_down(&rail.device));
        rails
    }

    /// The rail by a device.
    pub fn rail_of(&self, device: &str) -> Option<Rail> {
        let rails = self.rails.read();
        rails.iter().find(|rail| rail.device == device).cloned()
    }

    /// Takes rails that there were not before, or by another port; those.
    pub fn add_rails(&self, found: &[Rail]) -> Vec<Rail> {
        let mut rails = self.rails.write();
        let mut new = Vec::new();
        for rail in found {
            match rails.iter_mut().find(|known| known.ip == rail.ip) {
                Some(known) if (&known.device, known.port) == (&rail.device, rail.port) => continue,
                Some(known) => *known = rail.clone(),
                None => rails.push(rail.clone()),
            }
            new.push(rail.clone());
        }
        drop(rails);
        if !new.is_empty() {
            self.tell(ToControl::Rails);
            for seat in self.seats() {
                self.tell_devices(&seat);
            }
        }
        new
    }

    /// Tells a core which devices there are.
    fn tell_devices(&self, seat: &Seat) {
        seat.tell(ToCore::Devices(devices(&self.rails.read())));
    }

    /// All seats that are taken.
    pub fn seats(&self) -> Vec<Arc<Seat>> {
        self.seats.lock().iter().flatten().cloned().collect()
    }

    pub fn seat(&self, core: u16) -> Option<Arc<Seat>> {
        self.seats.lock().get(usize::from(core)).cloned().flatten()
    }

    /// Takes a core's seat, also from who has it.
    pub fn take_seat(&self, core: u16, seat: Arc<Seat>) {
        if let Some(place) = self.seats.lock().get_mut(usize::from(core)) {
            *place = Some(seat);
        }
    }

    /// Leaves a core's seat, unless another has taken it.
    pub fn leave(&self, core: u16, seat: &Arc<Seat>) {
        if let Some(place) = self.seats.lock().get_mut(usize::from(core))
            && place.as_ref().is_some_and(|other| Arc::ptr_eq(other, seat))
        {
            *place = None;
        }
    }
}

/// A member's RDMA. Clones are the same one; the last one that goes ends the thread. Whoever lets peers in holds one as long.
#[derive(Clone)]
pub struct Endpoint {
    shared: Arc<Shared>,
    _thread: Arc<Thread>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("rails", &self.shared.rails())
            .finish_non_exhaustive()
    }
}

/// An [`Endpoint`] that ends all the same when all others are gone.
#[derive(Clone, Debug)]
pub struct WeakEndpoint {
    shared: Weak<Shared>,
    thread: Weak<Thread>,
}

impl WeakEndpoint {
    /// The endpoint, while there is one.
    pub fn upgrade(&self) -> Option<Endpoint> {
        let (shared, thread) = (self.shared.upgrade()?, self.thread.upgrade()?);
        Some(Endpoint {
            shared,
            _thread: thread,
        })
    }
}

struct Thread(Arc<Shared>, Option<JoinHandle<()>>);

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.tell(ToControl::Stop);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

impl Endpoint {
    /// Listens at the rails' addresses, and makes connections from now on.
    ///
    /// # Errors
    /// What of RDMA this machine lacks: the library, rdma_cm, or a descriptor for them. A rail that cannot be listened at
    /// now is none: it is tried again.
    pub fn start(
        config: EndpointConfig,
        invite: Invite,
        clock: impl Clock + Send + Sync + 'static,
    ) -> Result<Endpoint, VerbsError> {
        let unusable = |error: io::Error| VerbsError::Unusable {
            object: "RDMA's control thread".into(),
            what: format!("cannot be started: {error}"),
        };
        let cm = Cm::new()?;
        let serves = config.serves;
        let shared = Arc::new(Shared::new(config, clock).map_err(unusable)?);
        let mut control = Control::new(cm, shared.clone(), invite, serves);
        // Peers can be told at once where.
        control.listen();
        let thread = std::thread::Builder::new()
            .name("rdma-cm".into())
            .spawn(move || control.run())
            .map_err(unusable)?;
        Ok(Endpoint {
            _thread: Arc::new(Thread(shared.clone(), Some(thread))),
            shared,
        })
    }

    /// Lets one core of a peer in, which was proven over the TCP connection of `session`: what that is to be told.
    ///
    /// # Errors
    /// Why not.
    pub fn offer(&self, session: Session, from: PeerCore, core: u16) -> Result<Offer, Refused> {
        let shared = &self.shared;
        let up = shared.rails_up();
        let mut at = shared.listening.lock().clone();
        at.retain(|at| up.iter().any(|rail| rail.ip == at.ip()));
        if at.is_empty() || shared.seat(core).is_none() {
            return Err(Refused::Core);
        }
        let mut random = [0; TICKET_BYTES];
        match getrandom(&mut random, GetRandomFlags::empty()) {
            Ok(TICKET_BYTES) => {}
            _ => return Err(Refused::Busy),
        }
        let acceptor = PeerCore {
            peer: shared.me,
            core,
        };
        let ends = Ends {
            asker: from,
            acceptor,
        };
        let now = shared.clock.now();
        let ticket = shared.tickets.lock().issue(session, ends, random, now)?;
        Ok(Offer { ticket, at })
    }

    /// The transport of one core, to be made and used on its thread: opens the devices there and registers its arena.
    /// `doorbell` wakes that thread, which must also wait for [`LinkedTransport::fd`].
    ///
    /// # Errors
    /// What a device or its limits do not allow.
    pub fn transport(
        &self,
        core: u16,
        arena: &Arena,
        doorbell: Arc<Doorbell>,
        clock: impl Clock + Clone + 'static,
    ) -> Result<LinkedTransport, VerbsError> {
        let seat = Seat::new(doorbell.clone(), numa::of_this_thread());
        let made = LinkedTransport::open(
            self.shared.clone(),
            (core, seat.clone()),
            arena.mapping(),
            doorbell,
            clock,
        )?;
        self.shared.take_seat(core, seat.clone());
        // Rails may have been added since it looked.
        self.shared.tell_devices(&seat);
        Ok(made)
    }

    /// This member's rails, up or not.
    pub fn rails(&self) -> Vec<Rail> {
        self.shared.rails()
    }

    /// Takes rails that were found later: listens at their addresses, and lets every core open their devices. Those of them
    /// that are new.
    pub fn add_rails(&self, found: &[Rail]) -> Vec<Rail> {
        self.shared.add_rails(found)
    }

    /// The same, without keeping it.
    pub fn downgrade(&self) -> WeakEndpoint {
        WeakEndpoint {
            shared: Arc::downgrade(&self.shared),
            thread: Arc::downgrade(&self._thread),
        }
    }

    /// Addresses of rails that are listened at now.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.shared.listening.lock().clone()
    }

    /// Devices whose port reaches no peer now, and why.
    pub fn down(&self) -> Vec<String> {
        self.shared.ports.lock().down()
    }

    /// Of which devices the kernel takes another GID than it should, and what to do.
    pub fn wrong_gids(&self) -> Vec<String> {
        self.shared.wrong_gids.lock().values().cloned().collect()
    }

    /// Every connection between cores, and those that should be there.
    pub fn links(&self) -> Vec<LinkStatus> {
        self.shared.links.status()
    }

    /// Forgets links that are down and whose peer is not `known` any more.
    pub fn retain_links(&self, known: impl Fn(PeerCore) -> bool) {
        self.shared.links.retain(known);
    }
}

/// The devices of rails: each once, whatever the number of its addresses.
pub(crate) fn devices(rails: &[Rail]) -> Vec<RailConfig> {
    let mut devices: Vec<RailConfig> = Vec::new();
    for rail in rails {
        if !devices.iter().any(|device| device.device == rail.device) {
            devices.push(RailConfig {
                gid: rail.gid,
                ..RailConfig::new(rail.device.clone(), rail.port, rail.gid_index)
            });
        }
    }
    devices
}

/// Libibverbs, for one core.
pub(crate) fn verbs() -> Result<Verbs, VerbsError> {
    Verbs::load()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn rail(device: &str, last: u8) -> Rail {
        Rail {
            device: device.into(),
            port: 1,
            gid_index: 3,
            gid: None,
            forces_gid: false,
            ip: IpAddr::from([10, 0, 0, last]),
            node: None,
            marking: Default::default(),
        }
    }

    #[test]
    fn a_device_is_opened_once_whatever_its_addresses() {
        let rails = [rail("a", 1), rail("b", 2), rail("a", 3)];
        let names: Vec<_> = devices(&rails).into_iter().map(|one| one.device).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
