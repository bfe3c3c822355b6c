//! All devices of one core: opened, looked at, armed, closed when they are of no more use, and opened again when wanted.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use forebay_engine::arena::Mapping;
use forebay_engine::ports::Time;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::limits::REOPEN_PAUSE_MS;
use crate::rail::{Rail, RailConfig};
use crate::status::Completion;
use crate::{Verbs, VerbsError};

/// One of the core's devices, open or not.
struct Place {
    config: RailConfig,
    rail: Option<Rail>,
    /// When it was last tried to open it, or closed.
    tried_at: Time,
}

/// A core's devices.
pub(crate) struct Rails {
    places: Vec<Place>,
    verbs: Verbs,
    arena: Mapping,
    /// Readable when the channel of any rail is.
    epoll: OwnedFd,
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
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| no_epoll(&error))?;
        let closed = |config: &RailConfig| Place {
            config: config.clone(),
            rail: None,
            tried_at: now,
        };
        let mut rails = Rails {
            places: configs.iter().map(closed).collect(),
            verbs: *verbs,
            arena: arena.clone(),
            epoll,
        };
        let mut failed = None;
        for at in 0..rails.len() {
            if let Err(error) = rails.try_open(at, now) {
                tracing::warn!("{error}");
                failed = Some(error);
            }
        }
        match failed {
            Some(error) if rails.places.iter().all(|place| place.rail.is_none()) => Err(error),
            _ => Ok(rails),
        }
    }

    fn try_open(&mut self, at: usize, now: Time) -> Result<(), VerbsError> {
        let place = &mut self.places[at];
        place.tried_at = now;
        let rail = Rail::open(&self.verbs, &place.config, &self.arena)?;
        let data = EventData::new_u64(at as u64);
        epoll::add(&self.epoll, &rail.channel, data, EventFlags::IN)
            .map_err(|error| no_epoll(&error))?;
        place.rail = Some(rail);
        Ok(())
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
    /// Why there is none.
    pub fn wanted(&mut self, at: usize, now: Time) -> Result<&Rail, VerbsError> {
        let place = &self.places[at];
        let pause = Duration::from_millis(REOPEN_PAUSE_MS);
        if place.rail.is_none() && place.tried_at + pause <= now {
            self.try_open(at, now)?;
            tracing::info!(
                "RDMA device {} is used again",
                self.places[at].config.device
            );
        }
        self.usable(at).ok_or_else(gone)
    }

    /// It is of no more use. False when that is known, or it is closed.
    pub fn give_up(&mut self, at: usize, why: &VerbsError) -> bool {
        let place = &mut self.places[at];
        let Some(rail) = place.rail.as_mut().filter(|rail| !rail.broken) else {
            return false;
        };
        tracing::error!("RDMA device {} is closed: {why}", place.config.device);
        rail.broken = true;
        // What stays of it, should the device not let go, must not be readable for ever.
        if let Err(error) = epoll::delete(&self.epoll, &rail.channel) {
            tracing::debug!("{error}");
        }
        true
    }

    /// Closes those that are of no more use and not `in_use`.
    pub fn close(&mut self, now: Time, in_use: impl Fn(usize) -> bool) {
        for (at, place) in self.places.iter_mut().enumerate() {
            if place.rail.as_ref().is_some_and(|rail| rail.broken) && !in_use(at) {
                place.rail = None;
                place.tried_at = now;
            }
        }
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
        if rail.channel.take_events()? == 0 && rail.armed || !connected {
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

fn no_epoll(error: &dyn fmt::Display) -> VerbsError {
    VerbsError::Unusable {
        object: "an epoll descriptor for RDMA".into(),
        what: format!("{error}; look at the limit on open files (ulimit -n)"),
    }
}
