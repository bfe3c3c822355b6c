//! Attached controllers: each has a thread of its own, that attaches it, polls its admin queue, and shuts it down.
//!
//! These threads are no cores: attaching takes seconds, or minutes where packets vanish, and a core's turn must not wait. One
//! controller that does not answer keeps no other from its keep-alives. They sleep between looks, so they cost nothing.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::disarm::IDLE_WAIT;
use crate::driver::{ConnectOptions, HealthQuery, RawController, connect, enter};
use crate::error::{EnvironmentError, Loss, OpenError};
use crate::watch::{Watch, lock};

/// How often an admin queue is polled: keep-alives are due each some seconds, and a controller that is gone is told to cores
/// that sleep within this.
const ADMIN_PERIOD: Duration = Duration::from_millis(20);
/// How often a controller is asked for its health.
const HEALTH_PERIOD: Duration = Duration::from_secs(10);
/// How long the end of a controller's use waits until it is shut down, and who opens it again until that has happened.
/// A drive that was switched off before may not answer
/// a shutdown, which SPDK waits 10 s for.
const DETACH_WAIT: Duration = Duration::from_secs(15);
/// How often who opens it again looks.
const DETACH_PAUSE: Duration = Duration::from_millis(20);

/// SPDK attaches one controller at a time.
static ATTACHING: Mutex<()> = Mutex::new(());

/// All controllers of this process by transport id, from before they are attached until after they are shut down: SPDK
/// gives the same one to whoever attaches it a second time, and whoever detaches it first takes it from both.
#[derive(Debug, Default)]
pub(crate) struct Controllers(Mutex<BTreeMap<String, Weak<Controller>>>);

impl Controllers {
    /// The controller at `address`, attached now unless this process has it.
    pub(crate) fn open(
        self: &Arc<Self>,
        address: &Address,
        options: ConnectOptions,
    ) -> Result<Arc<Controller>, OpenError> {
        let id = address.transport_id();
        let last = Instant::now() + DETACH_WAIT;
        let others = loop {
            let mut known = lock(&self.0);
            match known.get(id) {
                None => {
                    let others: Vec<_> = known.values().filter_map(Weak::upgrade).collect();
                    known.insert(id.into(), Weak::new());
                    break others;
                }
                Some(one) => match one.upgrade().map(|one| (one.watch.lost.loss(), one)) {
                    Some((None, one)) => return Ok(one),
                    Some((Some(loss), one)) => {
                        // It may be the last handle: its end waits for the thread, which waits for `known`.
                        drop(known);
                        drop(one);
                        let address = address.to_string();
                        return Err(OpenError::Held { address, loss });
                    }
                    // It is attached or shut down by another thread just now.
                    None if Instant::now() > last => {
                        return Err(OpenError::Busy(address.to_string()));
                    }
                    None => {}
                },
            }
            drop(known);
            std::thread::sleep(DETACH_PAUSE);
        };
        let controller = Controller::attach(self, address, options, &others)?;
        lock(&self.0).insert(id.into(), Arc::downgrade(&controller));
        Ok(controller)
    }
}

/// An attached controller. Its thread shuts it down when the last namespace and queue pair on it are gone.
#[derive(Debug)]
pub(crate) struct Controller {
    /// None only while it is dropped.
    raw: Option<Arc<RawController>>,
    pub(crate) watch: Arc<Watch>,
    transport_id: String,
    address: String,
    /// Ends the thread; a mutex, since all cores share this.
    life: Option<Mutex<Sender<()>>>,
    /// Closed by the thread when the controller is shut down.
    detached: Mutex<Receiver<()>>,
}

impl Controller {
    fn attach(
        registry: &Arc<Controllers>,
        address: &Address,
        options: ConnectOptions,
        others: &[Arc<Self>],
    ) -> Result<Arc<Self>, OpenError> {
        let transport_id = address.transport_id().to_owned();
        let watch = Arc::new(Watch::new(options.timeout));
        let (life, lives) = channel();
        let (answer, answered) = channel();
        let (detaching, detached) = channel::<()>();
        // Given up by whoever has it last: this call, or the thread.
        let entry = Entry {
            registry: registry.clone(),
            transport_id: transport_id.clone(),
        };
        unless_unplugged(address, others)?;
        let (id, watched) = (transport_id.clone(), watch.clone());
        std::thread::Builder::new()
            .name("spdk-admin".into())
            .spawn(move || {
                let _told_when_all_is_done = detaching;
                let _entry = entry;
                let attached = {
                    let _one = lock(&ATTACHING);
                    connect(&id, &options, &watched)
                };
                let attached = attached.map(|raw| raw.map(Arc::new));
                let raw = attached.as_ref().ok().cloned().flatten();
                let _ = answer.send(attached);
                if let Some(raw) = raw {
                    serve(raw, &watched, &lives);
                }
            })
            .map_err(EnvironmentError::Thread)?;
        let raw = answered.recv().map_err(|_| EnvironmentError::Ended)?;
        let raw = raw
            .map_err(|()| OpenError::Address(transport_id.clone()))?
            .map_or_else(
                // It may have been pulled meanwhile.
                || unless_unplugged(address, others).and(Err(not_attached(address))),
                Ok,
            )?;
        Ok(Arc::new(Self {
            raw: Some(raw),
            watch,
            transport_id,
            address: address.to_string(),
            life: Some(Mutex::new(life)),
            detached: Mutex::new(detached),
        }))
    }

    pub(crate) fn raw(&self) -> &RawController {
        self.raw.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        drop(self.raw.take());
        drop(self.life.take());
        if lock(&self.detached).recv_timeout(DETACH_WAIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{} was not shut down in time", self.transport_id);
        }
    }
}

/// While the kernel wants a PCI device back, SPDK attaches to no other, and ends what the former has under way.
fn unless_unplugged(address: &Address, others: &[Arc<Controller>]) -> Result<(), OpenError> {
    let unplugged = others.iter().find(|other| other.raw().is_unplugged());
    match unplugged.filter(|_| address.pci().is_some()) {
        Some(other) => Err(OpenError::Unplugged {
            address: address.to_string(),
            other: other.address.clone(),
        }),
        None => Ok(()),
    }
}

fn not_attached(address: &Address) -> OpenError {
    OpenError::Attach(address.to_string())
}

/// A controller's place among all.
struct Entry {
    registry: Arc<Controllers>,
    transport_id: String,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.registry.0).remove(&self.transport_id);
    }
}

/// A thread's life, until nobody has the controller any more.
fn serve(raw: Arc<RawController>, watch: &Watch, lives: &Receiver<()>) {
    let mut health = HealthQuery::new();
    let mut asked: Option<Instant> = None;
    // Since when it shall be disarmed.
    let mut wanted: Option<Instant> = None;
    while let Err(RecvTimeoutError::Timeout) = lives.recv_timeout(ADMIN_PERIOD) {
        // One that is kept by what never ended is served to the end of the process.
        let Some(_within) = enter() else {
            return std::mem::forget(raw);
        };
        if watch.wants_disarmed() {
            let since = wanted.get_or_insert_with(Instant::now);
            if raw.disarm(since.elapsed() >= IDLE_WAIT) {
                watch.set_disarmed();
            }
        }
        if watch.lost.loss().is_some() {
            continue;
        }
        if asked.is_none_or(|asked| asked.elapsed() >= HEALTH_PERIOD) {
            asked = Some(Instant::now());
            health.ask(&raw);
        }
        if !watch.around(|still| raw.poll_admin(still)) {
            watch.lost.lose(Loss::Removed);
        }
        if let Some(page) = health.answer() {
            watch.set_health(page);
        }
    }
    let Some(_within) = enter() else {
        return std::mem::forget(raw);
    };
    // The only handle now: the `Controller` gives up its own before it ends this thread.
    if let Some(raw) = Arc::into_inner(raw) {
        raw.detach();
    }
}
