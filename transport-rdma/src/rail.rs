//! What one core has of one device: everything that its connections share.

use forebay_engine::arena::Arena;

use crate::limits::{CONNECTIONS_MAX, ELEMENTS_MAX, RECEIVES, SENDS};
use crate::{
    Access, CompletionChannel, CompletionQueue, Device, MemoryRegion, PortAddress,
    ProtectionDomain, QueuePair, QueuePairSize, Verbs, VerbsError,
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
            connections_max: CONNECTIONS_MAX,
        }
    }
}

/// One core's device, domain, completions and arena.
pub(crate) struct Rail {
    pub at: PortAddress,
    pub queue: CompletionQueue,
    pub channel: CompletionChannel,
    /// All leases and frozen buffers.
    pub arena: MemoryRegion,
    pub domain: ProtectionDomain,
    pub elements: u32,
    pub connections_max: usize,
}

impl Rail {
    pub fn open(verbs: &Verbs, config: &RailConfig, arena: &Arena) -> Result<Rail, VerbsError> {
        let device: Device = verbs.open(&config.device)?;
        let at = device.port_address(config.port, config.gid_index)?;
        let domain = ProtectionDomain::new(&device)?;
        let channel = CompletionChannel::new(&device)?;
        let of_one = u64::from(SENDS) + u64::from(RECEIVES);
        let entries = u32::try_from(config.connections_max as u64 * of_one).unwrap_or(u32::MAX);
        let queue = CompletionQueue::with_channel(&channel, entries)?;
        let access = Access {
            remote_write: true,
            ..Access::LOCAL
        };
        let arena = MemoryRegion::over_arena(&domain, arena, access)?;
        Ok(Rail {
            at,
            queue,
            channel,
            arena,
            domain,
            elements: device.elements_max().min(ELEMENTS_MAX),
            connections_max: config.connections_max,
        })
    }

    /// A queue pair that allows peers nothing and is not connected.
    pub fn queue_pair(&self) -> Result<QueuePair, VerbsError> {
        let size = QueuePairSize {
            sends: SENDS,
            receives: u32::from(RECEIVES),
            elements: self.elements,
            inline_bytes: crate::limits::REQUEST_MESSAGE_BYTES as u32,
        };
        let pair = QueuePair::new(&self.domain, &self.queue, &self.queue, size)?;
        pair.prepare(&self.at, Access::LOCAL)?;
        Ok(pair)
    }
}
