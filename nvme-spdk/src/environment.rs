//! SPDK in this process: started once, with one thread that does all that waits: attaching, detaching, and the admin queues.
//!
//! That thread is no core: attaching a controller takes seconds, and a core's turn must not wait. It sleeps between looks, so
//! it costs nothing.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use forebay_engine::arena::Mapping;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::address::{Address, PciAddress};
use crate::driver::{ConnectOptions, RawController, Registration, StartOptions, connect, start};
use crate::error::{EnvironmentError, Loss, OpenError};

/// How often admin queues are polled: keep-alives are due each some seconds, and a controller that is gone is told to cores
/// that sleep within this.
const ADMIN_PERIOD: Duration = Duration::from_millis(20);
/// How long the end of a controller's use waits until it is shut down.
const DETACH_WAIT: Duration = Duration::from_secs(10);
/// Free huge pages of 2 MiB below which SPDK is started without them, when it drives no PCI device.
const HUGE_PAGES_MIN: u64 = 64;
/// Ordinary memory for SPDK then.
const ORDINARY_MIB: u32 = 128;

/// What SPDK is started for.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentOptions {
    /// The only PCI devices that may be touched. All that this process will ever drive: it starts once.
    pub pci: Vec<PciAddress>,
}

/// SPDK, started. It lives as long as the process.
#[derive(Debug)]
pub struct Environment {
    commands: Mutex<Sender<Command>>,
    pci: Vec<PciAddress>,
    controllers: Mutex<Vec<Weak<Controller>>>,
    memory: Mutex<Vec<Weak<Registration>>>,
}

static STARTED: OnceLock<Arc<Environment>> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// What the thread is asked for.
enum Command {
    Attach {
        transport_id: String,
        options: ConnectOptions,
        watch: Arc<Watch>,
        answer: Sender<Result<Option<Arc<RawController>>, ()>>,
    },
    Detach {
        controller: Arc<RawController>,
        done: Sender<()>,
    },
}

impl Environment {
    /// Starts SPDK, or gives what was started before, if that was for these devices too.
    ///
    /// # Errors
    /// When SPDK refuses; or runs already, without one of the devices.
    pub fn start(options: &EnvironmentOptions) -> Result<Arc<Self>, EnvironmentError> {
        let _one = lock(&STARTING);
        if let Some(started) = STARTED.get() {
            return match options.pci.iter().find(|pci| !started.pci.contains(pci)) {
                Some(missing) => Err(EnvironmentError::Started(missing.to_string())),
                None => Ok(started.clone()),
            };
        }
        let (commands, asked) = channel();
        let (started, outcome) = channel();
        let pci = options.pci.clone();
        std::thread::Builder::new()
            .name("spdk-admin".into())
            .spawn(move || match start_here(pci) {
                Ok(()) => {
                    let _ = started.send(Ok(()));
                    serve(&asked);
                }
                Err(errno) => drop(started.send(Err(EnvironmentError::Refused { errno }))),
            })
            .map_err(EnvironmentError::Thread)?;
        outcome.recv().unwrap_or(Err(EnvironmentError::Ended))?;
        let environment = Arc::new(Self {
            commands: Mutex::new(commands),
            pci: options.pci.clone(),
            controllers: Mutex::default(),
            memory: Mutex::default(),
        });
        Ok(STARTED.get_or_init(|| environment).clone())
    }

    /// The controller at `address`: one attachment for all its namespaces.
    pub(crate) fn controller(
        self: &Arc<Self>,
        address: &Address,
        options: ConnectOptions,
    ) -> Result<Arc<Controller>, OpenError> {
        if let Some(pci) = address.pci().filter(|pci| !self.pci.contains(pci)) {
            return Err(OpenError::NotAllowed(pci.to_string()));
        }
        let mut known = lock(&self.controllers);
        known.retain(|one| one.strong_count() > 0);
        let transport_id = address.transport_id();
        let same =
            |one: &Arc<Controller>| one.transport_id == transport_id && one.watch.loss().is_none();
        if let Some(one) = known.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(one);
        }
        let watch = Arc::new(Watch::new(options.timeout));
        let (answer, answered) = channel();
        self.ask(Command::Attach {
            transport_id: transport_id.into(),
            options,
            watch: watch.clone(),
            answer,
        })?;
        let raw = answered.recv().map_err(|_| EnvironmentError::Ended)?;
        let raw = raw
            .map_err(|()| OpenError::Address(transport_id.into()))?
            .ok_or_else(|| OpenError::Attach(address.to_string()))?;
        let controller = Arc::new(Controller {
            raw: Some(raw),
            watch,
            transport_id: transport_id.into(),
            environment: self.clone(),
        });
        known.push(Arc::downgrade(&controller));
        Ok(controller)
    }

    /// Makes an arena known to PCI devices, once for all queue pairs.
    pub(crate) fn register(&self, mapping: &Mapping) -> Result<Arc<Registration>, i32> {
        let mut known = lock(&self.memory);
        known.retain(|one| one.strong_count() > 0);
        if let Some(one) = known
            .iter()
            .filter_map(Weak::upgrade)
            .find(|one| one.covers(mapping))
        {
            return Ok(one);
        }
        let new = Arc::new(Registration::new(mapping.clone())?);
        known.push(Arc::downgrade(&new));
        Ok(new)
    }

    fn ask(&self, command: Command) -> Result<(), EnvironmentError> {
        lock(&self.commands)
            .send(command)
            .map_err(|_| EnvironmentError::Ended)
    }
}

/// Poison means that a thread panicked between two plain steps, after which the data is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An attached controller. The thread detaches it when the last namespace and queue pair on it are gone.
#[derive(Debug)]
pub(crate) struct Controller {
    /// None only while it is dropped.
    raw: Option<Arc<RawController>>,
    pub(crate) watch: Arc<Watch>,
    transport_id: String,
    pub(crate) environment: Arc<Environment>,
}

impl Controller {
    pub(crate) fn raw(&self) -> &RawController {
        self.raw.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let Some(controller) = self.raw.take() else {
            return;
        };
        let (done, detached) = channel();
        let asked = self.environment.ask(Command::Detach { controller, done });
        if asked.is_err() || detached.recv_timeout(DETACH_WAIT).is_err() {
            tracing::warn!("{} was not shut down in time", self.transport_id);
        }
    }
}

/// Whether a controller is still of use, for all threads; and whom to wake when it is not.
#[derive(Debug)]
pub(crate) struct Watch {
    loss: OnceLock<Loss>,
    wakers: Mutex<Vec<OwnedFd>>,
    timeout: Duration,
}

impl Watch {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            loss: OnceLock::new(),
            wakers: Mutex::default(),
            timeout,
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The first is kept.
    pub(crate) fn lose(&self, loss: Loss) {
        if self.loss.set(loss).is_err() {
            return;
        }
        for eventfd in lock(&self.wakers).iter() {
            // It fails only where the counter is full, and then the sleeper is awake.
            let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.loss.get().copied()
    }

    /// Signals there when the controller is lost.
    pub(crate) fn wake(&self, eventfd: OwnedFd) {
        lock(&self.wakers).push(eventfd);
    }
}

/// Starts SPDK on this thread, which may run where it might before.
fn start_here(pci: Vec<PciAddress>) -> Result<(), i32> {
    let allowed = sched_getaffinity(None).ok();
    let cpu = |set: &CpuSet| (0..CpuSet::MAX_CPU).find(|cpu| set.is_set(*cpu));
    let options = StartOptions {
        cpu: allowed.as_ref().and_then(cpu).unwrap_or(0),
        ordinary_mib: (pci.is_empty() && free_huge_pages() < HUGE_PAGES_MIN)
            .then_some(ORDINARY_MIB),
        pci,
    };
    let started = start(&options);
    if let Some(allowed) = &allowed {
        let _ = sched_setaffinity(None, allowed);
    }
    started
}

fn free_huge_pages() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// The thread's life: for as long as the process's, since the environment is never dropped.
fn serve(asked: &Receiver<Command>) {
    let mut attached: Vec<(Arc<RawController>, Arc<Watch>)> = Vec::new();
    loop {
        let command = match attached.is_empty() {
            true => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => asked.recv_timeout(ADMIN_PERIOD),
        };
        match command {
            Ok(Command::Attach {
                transport_id,
                options,
                watch,
                answer,
            }) => {
                let raw = connect(&transport_id, &options, &watch).map(|raw| raw.map(Arc::new));
                if let Ok(Some(raw)) = &raw {
                    attached.push((raw.clone(), watch));
                }
                let _ = answer.send(raw);
            }
            Ok(Command::Detach { controller, done }) => {
                attached.retain(|(one, _)| !Arc::ptr_eq(one, &controller));
                // The only handle now: the others were the list's and the one that came with the command.
                if let Some(raw) = Arc::into_inner(controller) {
                    raw.detach();
                }
                let _ = done.send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for (controller, watch) in &attached {
            if watch.loss().is_none() && !controller.poll_admin() {
                watch.lose(Loss::Removed);
            }
        }
    }
}
