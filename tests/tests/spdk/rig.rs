//! Two queue pairs of SPDK's under the device port's suite.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::arena::{Arena, Mapping};
use forebay_engine::ports::BlockDevice;
use forebay_nvme_spdk::{Namespace, QueueOptions, SpdkDevice};
use forebay_tests::conformance::block_device::DeviceRig;

/// Two queue pairs on one namespace; none before the arena is known. `wrap` puts devices over them.
pub struct SpdkRig<D, W> {
    namespace: Arc<Namespace>,
    depth: usize,
    wrap: W,
    reserved: bool,
    arena: Option<Mapping>,
    device: Option<D>,
    other: Option<D>,
}

impl<D: BlockDevice, W: Fn(SpdkDevice) -> D> SpdkRig<D, W> {
    pub fn new(namespace: &Arc<Namespace>, depth: usize, wrap: W) -> Self {
        Self {
            namespace: namespace.clone(),
            depth,
            wrap,
            reserved: false,
            arena: None,
            device: None,
            other: None,
        }
    }

    /// With buffers in reserved huge pages.
    pub fn in_reserved_pages(mut self) -> Self {
        self.reserved = true;
        self
    }

    fn queue_pair(&self) -> D {
        let options = QueueOptions {
            depth: self.depth,
            ..QueueOptions::default()
        };
        let arena = self.arena.as_ref().expect("lent before");
        (self.wrap)(
            self.namespace
                .queue_pair(arena, &options)
                .expect("a queue pair"),
        )
    }
}

impl<D: BlockDevice, W: Fn(SpdkDevice) -> D> DeviceRig for SpdkRig<D, W> {
    type Device = D;

    fn map(&self, capacity_bytes: usize) -> std::io::Result<Arena> {
        match self.reserved {
            true => Arena::in_reserved_pages(capacity_bytes),
            false => Arena::new(capacity_bytes),
        }
    }

    fn lend(&mut self, arena: &Arena) {
        self.arena = Some(arena.mapping());
        self.device = Some(self.queue_pair());
        self.other = Some(self.queue_pair());
    }

    fn device(&mut self) -> &mut D {
        self.device.as_mut().unwrap()
    }

    fn pump(&mut self) {
        self.device().commit();
        let nap = self.device().nap().unwrap_or_default();
        std::thread::sleep(nap.max(Duration::from_micros(10)));
    }

    fn reopen(&mut self) {
        self.device = None;
        self.device = Some(self.queue_pair());
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.device, &mut self.other);
    }
}
