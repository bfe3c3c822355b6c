//! All devices of one core: opened, looked at, armed, closed when they are of no more use, and opened again when wanted.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use forebay_engine::arena::Mapping;
use forebay_engine::ports::Time;
use forebay_engine::ring::Doorbell;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::events::DeviceEvent;
use crate::limits::{LOOK_PAUSE_MS, NEWS_A_TURN, REOPEN_PAUSE_MS};
use crate::rail::{Opened, Port, Rail, RailConfig};
use crate::status::Completion;
use crate::{Parcel, Verbs, VerbsError};

const LOOK_PAUSE: Duration = Duration::from_millis(LOOK_PAUSE_MS);

/// One of the core's devices, open or not.
struct Place {
    config: RailConfig,
    rail: Option<Rail>,
    /// It is being opened by another thread, which tells.
    opening: Option<Receiver<Opened>>,
    health: Health,
    /// When it was last tried to open it, or closed.
    tried_at: Time,
}

impl Place {
    /// Whether its device is open, and of use.
    fn is_open(&self) -> bool {
        self.rail.as_ref().is_some_and(|rail| !rail.broken)
    }
}

/// How a port was when it was last looked at.
#[derive(Debug, Default)]
struct Health {
    /// Why it reaches no peer, if it does not.
    down: Option<String>,
    seen_at: Time,
}

impl Health {
    /// When it is looked at again, whether the device tells of it or not: that it is down may not be true, where it was asked in vain.
    fn look_at(&self) -> Time {
        match self.down {
            Some(_) => self.seen_at + LOOK_PAUSE,
            None => Time::NEVER,
        }
    }

    /// It is so now: what has changed by that.
    fn seen(&mut self, port: Port, now: Time) -> Option<Port> {
        self.seen_at = now;
        let before = match &port {
            Port::Down(why) => self.down.replace(why.clone()),
            Port::Up | Port::Moved => self.down.take(),
        };
        match (port, before) {
            (Port::Up, None) | (Port::Down(_), Some(_)) => None,
            // What is connected by it ended when it went down.
            (Port::Up | Port::Moved, Some(_)) => Some(Port::Up),
            (changed, None) => Some(changed),
        }
    }
}

/// What becomes of a device's port, for who tells people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortNews {
    /// It reaches no peer, and why.
    Down(String),
    /// It does again.
    Up,
    /// The device was closed: nothing is known of it any more.
    Closed,
}

/// What a core's devices told.
#[derive(Debug)]
pub(crate) enum News {
    /// A queue pair is in error, wherever it is.
    InError { address: u64 },
    /// The port reaches no peer any more.
    Down { at: usize, why: String },
    /// What is connected by the port is lost; it may be connected again.
    Moved { at: usize },
    /// The port reaches peers again, or for the first time.
    Up { at: usize },
    /// The device is of no more use.
    Broken { at: usize, why: VerbsError },
}

/// A core's devices.
pub(crate) struct Rails {
    places: Vec<Place>,
    verbs: Verbs,
    arena: Mapping,
    /// Readable when the channel of any rail is, or `news`.
    epoll: OwnedFd,
    /// Readable when any device has told something unasked.
    news: OwnedFd,
}

impl Rails {
    /// Opens them. One that cannot be opened now is tried again when a connection wants it.
    ///
    /// # Errors
    /// The last one's, when none can be opened.
    pub fn open(
        verbs: &Verbs,
        configs: &[RailConfig],
        arena: &Mapping,
        now: Time,
    ) -> Result<Rails, VerbsError> {
        let new = || epoll::create(CreateFlags::CLOEXEC).map_err(|error| no_epoll(&error));
        let (epoll, news) = (new()?, new()?);
        epoll::add(&epoll, &news, EventData::new_u64(u64::MAX), EventFlags::IN)
            .map_err(|error| no_epoll(&error))?;
        let mut rails = Rails {
            places: Vec::new(),
            verbs: *verbs,
            arena: arena.clone(),
            epoll,
            news,
        };
        let mut failed = None;
        for config in configs {
            let at = rails.place(config, now);
            if let Err(error) = rails.open_now(at, now) {
                tracing::warn!("{error}");
                failed = Some(error);
            }
        }
        match failed {
            Some(error) if rails.places.iter().all(|place| place.rail.is_none()) => Err(error),
            _ => Ok(rails),
        }
    }

    /// Adds a device, which is opened meanwhile.
    pub fn add(&mut self, config: &RailConfig, doorbell: Option<&Arc<Doorbell>>, now: Time) {
        let at = self.place(config, now);
        self.begin_to_open(at, doorbell, now);
    }

    fn place(&mut self, config: &RailConfig, now: Time) -> usize {
        self.places.push(Place {
            config: config.clone(),
            rail: None,
            opening: None,
            health: Health::default(),
            tried_at: now,
        });
        self.places.len() - 1
    }

    /// Opens a device while nobody is served yet.
    fn open_now(&mut self, at: usize, now: Time) -> Result<(), VerbsError> {
        let rail = Rail::open(&self.verbs, &self.places[at].config, &self.arena)?;
        self.opened(at, rail, now)
    }

    fn begin_to_open(&mut self, at: usize, doorbell: Option<&Arc<Doorbell>>, now: Time) {
        let place = &mut self.places[at];
        place.tried_at = now;
        let (config, arena) = (place.config.clone(), self.arena.clone());
        match Rail::open_aside(self.verbs, config, arena, doorbell.cloned()) {
            Ok(told) => place.opening = Some(told),
            Err(error) => tracing::warn!("no thread to open RDMA devices: {error}"),
        }
    }

    fn opened(&mut self, at: usize, mut rail: Rail, now: Time) -> Result<(), VerbsError> {
        let place = &mut self.places[at];
        let data = EventData::new_u64(at as u64);
        epoll::add(&self.epoll, &rail.channel, data, EventFlags::IN)
            .map_err(|error| no_epoll(&error))?;
        if let Some(fd) = rail.device.events_fd() {
            let data = EventData::new_u64(at as u64);
            epoll::add(&self.news, fd, data, EventFlags::IN).map_err(|error| no_epoll(&error))?;
        }
        // After its events are listened to: what changes from here on is told.
        place.health = Health::default();
        place.health.seen(rail.examine(), now);
        place.rail = Some(rail);
        Ok(())
    }

    /// Whether a device is being opened.
    pub fn is_opening(&self) -> bool {
        self.places.iter().any(|place| place.opening.is_some())
    }

    /// Takes devices that were opened meanwhile.
    pub fn take_opened(&mut self, now: Time) -> Vec<News> {
        let mut news = Vec::new();
        for at in 0..self.places.len() {
            let told = self.places[at].opening.as_ref().map(Receiver::try_recv);
            let opened = match told {
                None | Some(Err(TryRecvError::Empty)) => continue,
                Some(Ok(opened)) => opened.map(Parcel::open),
                Some(Err(TryRecvError::Disconnected)) => Err(gone()),
            };
            self.places[at].opening = None;
            match opened.and_then(|rail| self.opened(at, rail, now)) {
                Ok(()) => {
                    tracing::info!("RDMA device {} is used", self.places[at].config.device);
                    news.push(match self.places[at].health.down.clone() {
                        None => News::Up { at },
                        Some(why) => News::Down { at, why },
                    });
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
        news
    }

    /// Why a device's port reaches no peer, if it does not.
    pub fn down(&self, at: usize) -> Option<&str> {
        self.places.get(at)?.health.down.as_deref()
    }

    /// How many there are, open or not.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The name of one.
    pub fn device(&self, at: usize) -> &str {
        self.places.get(at).map_or("", |place| &place.config.device)
    }

    /// Which one a device is.
    pub fn position(&self, device: &str) -> Option<usize> {
        let mut places = self.places.iter();
        places.position(|place| place.config.device == device)
    }

    /// One of them, unless it is closed or to be closed.
    pub fn usable(&self, at: usize) -> Option<&Rail> {
        let rail = self.places.get(at)?.rail.as_ref();
        rail.filter(|rail| !rail.broken)
    }

    /// The rail for a new connection; one that is closed is opened again, if that was not tried a moment ago.
    ///
    /// # Errors
    /// Why there is none; also while it is being opened.
    pub fn wanted(
        &mut self,
        at: usize,
        doorbell: Option<&Arc<Doorbell>>,
        now: Time,
    ) -> Result<&Rail, VerbsError> {
        let place = &self.places[at];
        let pause = Duration::from_millis(REOPEN_PAUSE_MS);
        if place.rail.is_none() && place.opening.is_none() && place.tried_at + pause <= now {
            self.begin_to_open(at, doorbell, now);
        }
        if self.places[at].opening.is_some() {
            return Err(VerbsError::Unusable {
                object: format!("RDMA device {}", self.places[at].config.device),
                what: "it is being opened".into(),
            });
        }
        let place = &self.places[at];
        if let Some(why) = &place.health.down {
            return Err(VerbsError::Unusable {
                object: format!("RDMA device {}", place.config.device),
                what: why.clone(),
            });
        }
        self.usable(at).ok_or_else(gone)
    }

    /// Why none of them reaches a peer; none when one does, or may when it is opened again.
    pub fn why_down(&self) -> Option<String> {
        let name = |place: &Place| place.config.device.clone();
        let why = |place: &Place| {
            let down = place.health.down.as_ref()?;
            Some(format!("{}: {down}", name(place)))
        };
        let all: Option<Vec<String>> = self.places.iter().map(why).collect();
        match all {
            Some(none) if none.is_empty() => {
                Some("no RDMA port has an address of this node".into())
            }
            all => all.map(|all| all.join("; ")),
        }
    }

    /// When ports that are down are looked at again.
    pub fn look_at(&self) -> Time {
        let open = self.places.iter().filter(|place| place.is_open());
        let looks = open.map(|place| place.health.look_at());
        looks.min().unwrap_or(Time::NEVER)
    }

    /// Whether a device has told something unasked.
    pub fn has_news(&self) -> bool {
        let now = Timespec::default();
        let mut told = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }];
        epoll::wait(&self.news, &mut told[..], Some(&now)).is_ok_and(|count| count > 0)
    }

    /// What devices have told, and what becomes of ports that are down.
    pub fn news(&mut self, now: Time) -> Vec<News> {
        let mut news = Vec::new();
        for at in 0..self.places.len() {
            self.news_of(at, now, &mut news);
        }
        news
    }

    fn news_of(&mut self, at: usize, now: Time, news: &mut Vec<News>) {
        let place = &mut self.places[at];
        let mut examine = place.health.look_at() <= now;
        let Some(rail) = place.rail.as_mut().filter(|rail| !rail.broken) else {
            return;
        };
        for _ in 0..NEWS_A_TURN {
            match rail.device.next_event() {
                Ok(None) => break,
                Ok(Some(DeviceEvent::QueuePair { address })) => {
                    news.push(News::InError { address });
                }
                Ok(Some(DeviceEvent::Port { port, kind })) => {
                    tracing::debug!(device = place.config.device, port, kind, "RDMA port event");
                    examine |= port == place.config.port;
                }
                Ok(Some(DeviceEvent::Other(kind))) => {
                    tracing::debug!(device = place.config.device, kind, "RDMA device event");
                }
                Ok(Some(event @ (DeviceEvent::CompletionQueue | DeviceEvent::Fatal))) => {
                    let why = broke(&place.config.device, event);
                    return news.push(News::Broken { at, why });
                }
                Err(why) => return news.push(News::Broken { at, why }),
            }
        }
        if examine {
            // Not what was told, but how it is now: of a port that came and went only the last is true.
            news.extend(match place.health.seen(rail.examine(), now) {
                None => None,
                Some(Port::Up) => Some(News::Up { at }),
                Some(Port::Moved) => Some(News::Moved { at }),
                Some(Port::Down(why)) => Some(News::Down { at, why }),
            });
        }
    }

    /// It is of no more use. False when that is known, or it is closed.
    pub fn give_up(&mut self, at: usize, why: &VerbsError) -> bool {
        let place = &mut self.places[at];
        // One that is on its way is closed where it is: the kernel waits for that, and tells of the end only once.
        place.opening = None;
        let Some(rail) = place.rail.as_mut().filter(|rail| !rail.broken) else {
            return false;
        };
        tracing::error!("RDMA device {} is closed: {why}", place.config.device);
        rail.broken = true;
        // What stays of it, should the device not let go, must not be readable for ever.
        let channel = epoll::delete(&self.epoll, &rail.channel);
        let events = match rail.device.events_fd() {
            Some(fd) => epoll::delete(&self.news, fd),
            None => Ok(()),
        };
        if let Err(error) = channel.and(events) {
            tracing::debug!("{error}");
        }
        true
    }

    /// Whether one is to be closed.
    pub fn has_broken(&self) -> bool {
        let mut open = self.places.iter().filter_map(|place| place.rail.as_ref());
        open.any(|rail| rail.broken)
    }

    /// Closes those that are of no more use and not `in_use`. Those of them whose port was down.
    pub fn close(&mut self, now: Time, in_use: impl Fn(usize) -> bool) -> Vec<String> {
        let mut were_down = Vec::new();
        for (at, place) in self.places.iter_mut().enumerate() {
            if place.rail.as_ref().is_some_and(|rail| rail.broken) && !in_use(at) {
                place.rail = None;
                place.tried_at = now;
                if place.health.down.take().is_some() {
                    were_down.push(place.config.device.clone());
                }
            }
        }
        were_down
    }

    /// Takes what has completed.
    ///
    /// # Errors
    /// When its completion queue is broken.
    pub fn look(&self, at: usize, completions: &mut Vec<Completion>) -> Result<(), VerbsError> {
        if let Some(rail) = self.usable(at) {
            rail.queue.poll(|completion| completions.push(completion))?;
        }
        Ok(())
    }

    /// Sees to it that the descriptor tells of the next completion. Whether the queue must be looked at once more: what completed
    /// before it was armed makes no event. Where nothing completes, because nobody is `connected`, it is not armed.
    ///
    /// # Errors
    /// When its completion queue or channel is broken.
    pub fn arm(&mut self, at: usize, connected: bool) -> Result<bool, VerbsError> {
        let rail = self.places[at].rail.as_mut().filter(|rail| !rail.broken);
        let Some(rail) = rail else {
            return Ok(false);
        };
        // An event was its only one: also where nobody is connected it is not armed any more.
        if rail.channel.take_events()? > 0 {
            rail.armed = false;
        }
        if rail.armed || !connected {
            return Ok(false);
        }
        rail.queue.arm()?;
        rail.armed = true;
        Ok(true)
    }

    /// Whether one would not tell of its next completion.
    pub fn is_blind(&self) -> bool {
        let usable = (0..self.len()).filter_map(|at| self.usable(at));
        usable.into_iter().any(|rail| !rail.armed)
    }
}

impl AsFd for Rails {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// What is said of a device that is not there any more.
pub(crate) fn gone() -> VerbsError {
    VerbsError::Unusable {
        object: "this core's RDMA device".into(),
        what: "it broke, or was removed; it is opened again when it is wanted".into(),
    }
}

fn broke(device: &str, event: DeviceEvent) -> VerbsError {
    VerbsError::Unusable {
        object: format!("RDMA device {device}"),
        what: match event {
            DeviceEvent::CompletionQueue => "its completion queue lost completions",
            _ => "it says that it does nothing any more",
        }
        .into(),
    }
}

fn no_epoll(error: &dyn fmt::Display) -> VerbsError {
    VerbsError::Unusable {
        object: "an epoll descriptor for RDMA".into(),
        what: format!("{error}; look at the limit on open files (ulimit -n)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down() -> Port {
        Port::Down("its state cannot be asked for".into())
    }

    #[test]
    fn a_port_that_is_down_is_looked_at_again_though_nobody_tells_of_it() {
        let mut health = Health::default();
        let at = |ms| Time(0) + Duration::from_millis(ms);
        assert_eq!(health.look_at(), Time::NEVER, "devices tell of it");
        assert_eq!(health.seen(down(), at(1)), Some(down()));
        assert_eq!(health.look_at(), at(1 + LOOK_PAUSE_MS));
        assert_eq!(health.seen(down(), at(7_000)), None, "told once");
        assert_eq!(health.look_at(), at(7_000 + LOOK_PAUSE_MS));
        // By another LID as well: nothing is connected any more.
        assert_eq!(health.seen(Port::Moved, at(9_000)), Some(Port::Up));
        assert_eq!(health.seen(Port::Up, at(9_001)), None);
        assert_eq!(health.seen(Port::Moved, at(9_002)), Some(Port::Moved));
        assert_eq!(health.look_at(), Time::NEVER);
    }
}
