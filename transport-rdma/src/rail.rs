//! What one core has of one device: everything that its connections share.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use forebay_engine::arena::Mapping;
use forebay_engine::ring::Doorbell;

use crate::limits::{CONNECTIONS_MAX, ELEMENTS_MAX, RECEIVES, SENDS, TRIAL_BYTES};
use crate::{
    Access, ArenaRegion, CompletionChannel, CompletionQueue, Device, Gid, MemoryRegion, Parcel,
    PrepareStep, ProtectionDomain, QueuePair, QueuePairSize, Verbs, VerbsError,
};

/// Which device, by which of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailConfig {
    /// The device's name, such as `mlx5_0`.
    pub device: String,
    /// Its port; the first is 1.
    pub port: u8,
    /// The entry of the port's table of GIDs that peers reach it by.
    pub gid_index: u8,
    /// What is in that entry, where it is known: then the port need not be up, nor the entry be there, when it is opened.
    pub gid: Option<Gid>,
    /// Connections at once, both ways; the completion queue has room for all their work.
    pub connections_max: usize,
}

impl RailConfig {
    /// A device with the usual bounds.
    pub fn new(device: String, port: u8, gid_index: u8) -> RailConfig {
        RailConfig {
            device,
            port,
            gid_index,
            gid: None,
            connections_max: CONNECTIONS_MAX,
        }
    }
}

/// How a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Peers reach this node by it, as before.
    Up,
    /// They do, but by another LID: what is connected is lost.
    Moved,
    /// They do not, and why.
    Down(String),
}

/// By what a port is reached.
#[derive(Clone, Copy, Debug)]
struct Reached {
    port: u8,
    /// Where the GID was seen first; the kernel may put it elsewhere.
    gid_index: u8,
    gid: Gid,
    lid: u16,
}

/// One core's device, domain, completions and arena.
pub(crate) struct Rail {
    pub queue: CompletionQueue,
    pub channel: CompletionChannel,
    /// All leases and frozen buffers.
    pub arena: ArenaRegion,
    /// Where peers write, and what is written to them, when a connection is tried out. Nobody looks at it.
    pub trial: MemoryRegion,
    pub domain: ProtectionDomain,
    pub device: Device,
    /// By what its port is reached.
    at: Reached,
    pub elements: u32,
    pub connections_max: usize,
    /// The channel will tell of the next completion.
    pub armed: bool,
    /// It is of no more use: to be closed once nothing is made from it.
    pub broken: bool,
}

impl Rail {
    pub fn open(verbs: &Verbs, config: &RailConfig, arena: &Mapping) -> Result<Rail, VerbsError> {
        let device: Device = verbs.open(&config.device)?;
        let (port, gid_index) = (config.port, config.gid_index);
        let at = match config.gid {
            // Told now rather than with the first connection.
            None => {
                let at = device.port_address(port, gid_index)?;
                (at.gid, at.lid)
            }
            // How the port is, `examine` tells.
            Some(gid) => (gid, device.port(port)?.lid),
        };
        let (gid, lid) = at;
        let at = Reached {
            port,
            gid_index,
            gid,
            lid,
        };
        let domain = ProtectionDomain::new(&device)?;
        let channel = CompletionChannel::new(&device)?;
        let of_one = SENDS + u32::from(RECEIVES);
        let possible = (device.completions_max() / of_one) as usize;
        let connections_max = config.connections_max.min(possible);
        if connections_max == 0 {
            return Err(VerbsError::Unusable {
                object: format!("RDMA device {}", config.device),
                what: format!("its completion queues have no room for {of_one} completions"),
            });
        }
        let queue = CompletionQueue::with_channel(&channel, connections_max as u32 * of_one)?;
        let of_peers = Access {
            remote_write: true,
            ..Access::LOCAL
        };
        let trial = MemoryRegion::new(&domain, TRIAL_BYTES, of_peers)?;
        let arena = lent(&domain, arena.clone())?;
        Ok(Rail {
            queue,
            channel,
            arena,
            trial,
            domain,
            elements: device.elements_max().min(ELEMENTS_MAX),
            connections_max,
            device,
            at,
            armed: false,
            broken: false,
        })
    }

    /// The same on a thread of its own: to register much memory takes long. What came of it is told once, and the doorbell rung.
    pub fn open_aside(
        verbs: Verbs,
        config: RailConfig,
        arena: Mapping,
        doorbell: Option<Arc<Doorbell>>,
    ) -> std::io::Result<Receiver<Opened>> {
        let (tell, told) = channel();
        let name = "rdma-open".to_owned();
        std::thread::Builder::new().name(name).spawn(move || {
            // Where nobody waits for it any more, it is closed here.
            let _ = tell.send(Rail::open(&verbs, &config, &arena).map(packed));
            if let Some(doorbell) = doorbell {
                doorbell.ring();
            }
        })?;
        Ok(told)
    }

    /// Looks at its port, of which something is not as it was.
    pub fn examine(&mut self) -> Port {
        let (device, at) = (&self.device, self.at);
        let down = |what: &str| Port::Down(format!("its port {} {what}", at.port));
        let info = match device.port(at.port) {
            Ok(info) => info,
            Err(error) => return Port::Down(error.to_string()),
        };
        if !info.active {
            return down("is down: set its link up");
        }
        match device.has_gid(at.port, at.gid_index, at.gid) {
            Ok(true) => {}
            Ok(false) => return down("has lost the address of this node: give it back"),
            Err(error) => return Port::Down(error.to_string()),
        }
        match std::mem::replace(&mut self.at.lid, info.lid) == info.lid {
            true => Port::Up,
            false => Port::Moved,
        }
    }

    /// A queue pair that allows peers nothing and is prepared for a connection.
    pub fn queue_pair(&self, prepare: &PrepareStep) -> Result<QueuePair, VerbsError> {
        let size = QueuePairSize {
            sends: SENDS,
            receives: u32::from(RECEIVES),
            elements: self.elements,
            inline_bytes: crate::limits::REQUEST_MESSAGE_BYTES as u32,
        };
        let pair = QueuePair::new(&self.domain, &self.queue, &self.queue, size)?;
        pair.prepare_by(prepare, Access::LOCAL)?;
        Ok(pair)
    }
}

/// What came of opening a device on another thread.
pub(crate) type Opened = Result<Parcel<Rail>, VerbsError>;

#[allow(unsafe_code)]
fn packed(rail: Rail) -> Parcel<Rail> {
    // SAFETY: all that a rail has was made by `Rail::open`, from a device that was opened there, and is kept in the rail's fields alone; nothing
    // else was given a handle. The arena's mapping is counted with locks, and may be sent.
    unsafe { Parcel::new(rail) }
}

/// The arena, for peers to write answers into.
#[allow(unsafe_code)]
fn lent(domain: &ProtectionDomain, arena: Mapping) -> Result<ArenaRegion, VerbsError> {
    // SAFETY: 1. The key goes to `Asking` only, which tells it with addresses of leases that it owns. It makes no reference
    // to a lease's bytes after it has told of them, and lets go of one for an answer, behind which nothing is written, or
    // for a `Destroyed`, which the connection's own queue pair gives when it is destroyed (`transport::destroy`).
    // `late_writes` goes through every order of that. 2. Queue pairs of this domain are made by `Rail::queue_pair`, and
    // let peers write from `RdmaTransport::begin` on, for which the peer must have proven that it is of the group. The
    // members of a group trust each other's processes not to write elsewhere (decision 25, "Who may write where").
    unsafe { ArenaRegion::writable_by_peers(domain, arena) }
}
