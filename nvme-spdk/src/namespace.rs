//! A namespace, opened once and shared by the queue pairs of all cores.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::arena::Mapping;
use forebay_engine::ports::DeviceGeometry;

use crate::address::Address;
use crate::controller::Controller;
use crate::device::{QueueOptions, SpdkDevice};
use crate::driver::{ConnectOptions, Identity, QueuePair, RawNamespace, queue_pages};
use crate::environment::{Environment, behind, free_huge_pages};
use crate::error::{Change, Loss, OpenError, QueueError};
use crate::fingerprint::Fingerprint;
use crate::watch::{Lost, Observed, Still};

/// Sectors that the engine's pages fit.
const SECTORS_BYTES: [u32; 2] = [512, 4096];
/// A command that takes longer: the controller hangs. Longer than any drive takes that works, and than the engine waits for
/// a read.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A target refuses a queue pair's number until it has seen that the connection which had it before is closed.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How long after such a refusal it is asked again.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// How a namespace is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Bytes to be used, rounded down to whole sectors; the namespace's size without.
    pub capacity_bytes: Option<u64>,
    /// Writes and discards end in `DeviceError::ReadOnly`.
    pub read_only: bool,
    /// A command that takes longer means that the controller hangs: it is given up. Of the first namespace that is opened on
    /// a controller.
    pub timeout: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: None,
            read_only: false,
            timeout: TIMEOUT,
        }
    }
}

/// An opened namespace. Each core makes a queue pair of its own on it.
#[derive(Debug)]
pub struct Namespace {
    raw: RawNamespace,
    address: Address,
    geometry: DeviceGeometry,
    identity: Identity,
    read_only: bool,
    opened: Arc<Opened>,
    can_flush: bool,
    can_discard: bool,
    transfer_bytes_max: u32,
    environment: Arc<Environment>,
    // After the namespace, which is part of it.
    controller: Arc<Controller>,
}

impl Namespace {
    /// Attaches to the controller at `address`, unless this process has, and opens one of its namespaces. Blocks for as long
    /// as that takes. Writes nothing.
    ///
    /// # Errors
    /// [`OpenError`]; its text names the address.
    pub fn open(
        environment: &Arc<Environment>,
        address: &Address,
        options: &OpenOptions,
    ) -> Result<Arc<Self>, OpenError> {
        let connect = ConnectOptions {
            timeout: options.timeout,
            registers_bytes: 0,
        };
        let controller = environment.controller(address, connect)?;
        // No look at it while the controller's thread may exchange it; and it is compared from then on.
        controller.watch.around(|still| {
            let namespace = Self::find(environment, &controller, address, options, still)?;
            let observed: Arc<dyn Observed> = namespace.opened.clone();
            controller.watch.observe(Arc::downgrade(&observed));
            Ok(namespace)
        })
    }

    fn find(
        environment: &Arc<Environment>,
        controller: &Arc<Controller>,
        address: &Address,
        options: &OpenOptions,
        still: &Still,
    ) -> Result<Arc<Self>, OpenError> {
        let raw = controller.raw().namespace(address.namespace(), still);
        let raw = raw.map_err(|found| OpenError::NoNamespace {
            address: address.to_string(),
            namespace: address.namespace().unwrap_or(0),
            found,
        })?;
        let geometry = geometry(&raw, address, options, still)?;
        Ok(Arc::new(Self {
            read_only: options.read_only || raw.is_write_protected(still),
            identity: controller.raw().identity(),
            geometry,
            opened: Arc::new(Opened {
                raw: raw.again(),
                fingerprint: raw.fingerprint(still),
                used_bytes: geometry.capacity_bytes,
                lost: Lost::default(),
            }),
            can_flush: raw.can_flush(still),
            can_discard: raw.can_discard(still),
            transfer_bytes_max: raw.transfer_bytes_max(still),
            environment: environment.clone(),
            raw,
            address: address.clone(),
            controller: controller.clone(),
        }))
    }

    /// A queue pair for the calling thread. What is under way has its buffers in the arena that `arena` belongs to. That a PCI
    /// device reaches them is known only when [`SpdkDevice::check_memory`] has tried it.
    ///
    /// # Errors
    /// [`QueueError`]; its text names the address.
    pub fn queue_pair(
        self: &Arc<Self>,
        arena: &Mapping,
        options: &QueueOptions,
    ) -> Result<SpdkDevice, QueueError> {
        let address = || self.address.to_string();
        if let Some(loss) = self.loss() {
            return Err(QueueError::Lost {
                address: address(),
                loss,
            });
        }
        // Through a network the bytes are copied by the kernel's sockets, from and to any memory.
        let memory = match self.address.pci() {
            Some(pci) => Some(self.environment.register(arena, behind(&pci)?)),
            None => None,
        };
        let memory = memory.transpose().map_err(|why| QueueError::Memory {
            address: address(),
            why,
        })?;
        let depth = options.depth();
        let last = Instant::now() + CONNECT_PATIENCE;
        loop {
            if let Some(queue) = QueuePair::new(self.clone(), memory.clone(), depth) {
                return Ok(SpdkDevice::new(queue, options));
            }
            if self.is_pci() || self.loss().is_some() || Instant::now() >= last {
                return Err(self.refused(options));
            }
            std::thread::sleep(CONNECT_PAUSE);
        }
    }

    /// Why SPDK has made no queue pair: it does not tell.
    fn refused(&self, options: &QueueOptions) -> QueueError {
        let address = self.address.to_string();
        let (wanted, free) = (self.queue_pages(options), free_huge_pages());
        // Without PCI devices SPDK may have other memory.
        match self.is_pci() && free < wanted {
            true => QueueError::Pages {
                address,
                wanted,
                free,
            },
            false => QueueError::Refused(address),
        }
    }

    /// Reserved huge pages of 2 MiB that SPDK takes for a queue pair like that, in a process that drives PCI devices.
    pub fn queue_pages(&self, options: &QueueOptions) -> u64 {
        queue_pages(self.transfer_bytes_max, options.depth())
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its number in its controller.
    pub fn number(&self) -> u32 {
        self.raw.number()
    }

    /// Size and granularity.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// Whether it takes no writes, or was opened so.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The controller's model, as its vendor calls it.
    pub fn model(&self) -> &str {
        &self.identity.model
    }

    /// The controller's serial number.
    pub fn serial(&self) -> &str {
        &self.identity.serial
    }

    /// What its controller said last of its health, which it is asked for each 10 s: the log page "SMART / Health Information". None
    /// before its first answer, or where it gives none.
    pub fn health(&self) -> Option<[u8; 512]> {
        self.controller.watch.health()
    }

    /// Why it is of no use any more; none as long as it is.
    pub fn loss(&self) -> Option<Loss> {
        (self.opened.lost.loss()).or_else(|| self.controller.watch.lost.loss())
    }

    /// Signals at `eventfd` when it is lost, as long as the caller has it.
    pub(crate) fn wake(&self, eventfd: &Arc<OwnedFd>) {
        self.opened.lost.wake(eventfd);
        self.controller.watch.lost.wake(eventfd);
    }

    /// What tells it from every other namespace in the world, as its vendor or target has given it: in hexadecimal, with its number.
    /// None where it has no such name.
    pub fn world_name(&self) -> Option<String> {
        let name = self.opened.fingerprint.world_name(self.number())?;
        // Some vendors give many drives one name; their serial numbers differ. A target's serial number is any.
        Some(match self.is_pci() {
            true => format!("{name} serial:{}", self.serial()),
            false => name,
        })
    }

    pub(crate) fn can_flush(&self) -> bool {
        self.can_flush
    }

    pub(crate) fn can_discard(&self) -> bool {
        self.can_discard
    }

    pub(crate) fn transfer_bytes_max(&self) -> u32 {
        self.transfer_bytes_max
    }

    pub(crate) fn controller(&self) -> &Controller {
        &self.controller
    }

    pub(crate) fn raw(&self) -> &RawNamespace {
        &self.raw
    }

    /// Whether the device reaches this machine's memory by itself.
    pub(crate) fn is_pci(&self) -> bool {
        self.address.pci().is_some()
    }
}

/// A namespace as it was opened: SPDK exchanges what it knows of it while it is in use. Compared by the controller's thread, which
/// must never be the last to have a [`Namespace`], so this is apart from it.
#[derive(Debug)]
struct Opened {
    raw: RawNamespace,
    fingerprint: Fingerprint,
    used_bytes: u64,
    lost: Lost,
}

impl Observed for Opened {
    fn change(&self, still: &Still) -> Option<Change> {
        match self.raw.is_active(still) {
            true => (self.fingerprint).change(&self.raw.fingerprint(still), self.used_bytes),
            false => Some(Change::Gone),
        }
    }

    fn lost(&self) -> &Lost {
        &self.lost
    }
}

fn geometry(
    raw: &RawNamespace,
    address: &Address,
    options: &OpenOptions,
    still: &Still,
) -> Result<DeviceGeometry, OpenError> {
    let (sector_bytes, metadata_bytes) = (raw.sector_bytes(still), raw.metadata_bytes(still));
    if !SECTORS_BYTES.contains(&sector_bytes) {
        return Err(OpenError::Sector {
            address: address.to_string(),
            sector_bytes,
        });
    }
    if metadata_bytes != 0 {
        return Err(OpenError::Metadata {
            address: address.to_string(),
            metadata_bytes,
        });
    }
    let have_bytes = raw.capacity_bytes(still);
    let want_bytes = options.capacity_bytes.unwrap_or(have_bytes);
    let capacity_bytes = want_bytes - want_bytes % u64::from(sector_bytes);
    if want_bytes > have_bytes || capacity_bytes == 0 {
        return Err(OpenError::Size {
            address: address.to_string(),
            have_bytes,
            want_bytes,
        });
    }
    Ok(DeviceGeometry {
        sector_bytes,
        capacity_bytes,
    })
}
