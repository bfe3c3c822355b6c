//! The disk tier of a whole core on SPDK's target, which this path starts for itself.

use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_engine::ports::{BlockDevice, DeviceEvent, DeviceGeometry, DeviceOp, Full};
use forebay_nvme_spdk::{Environment, Namespace, OpenOptions, QueueOptions};
use forebay_tests::devices::target::SpdkTarget;

use super::Work;
use super::core;

const TARGET_MIB: u32 = 1_024;
/// The target has answered by then.
const REST: Duration = Duration::from_millis(2);

struct OnTarget {
    // Before what it reads from.
    work: Box<dyn Work>,
    _target: SpdkTarget,
}

impl Work for OnTarget {
    fn operate(&mut self, count: u64) -> Result<()> {
        self.work.operate(count)
    }
}

/// Sleeps when it has handed something over, so that what is looked for is there: how often a core looks in vain says how fast the
/// target is and how slow valgrind makes the core, and nothing of what an operation takes.
#[derive(Debug)]
struct Rested<D> {
    device: D,
    handed_over: bool,
}

impl<D: BlockDevice> BlockDevice for Rested<D> {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn submit(&mut self, op: DeviceOp) -> Result<(), Full<DeviceOp>> {
        self.handed_over = true;
        self.device.submit(op)
    }

    fn commit(&mut self) {
        self.device.commit();
        if std::mem::take(&mut self.handed_over) {
            std::thread::sleep(REST);
        }
    }

    fn poll(&mut self) -> Option<DeviceEvent> {
        self.device.poll()
    }

    fn nap(&mut self) -> Option<Duration> {
        self.device.nap()
    }

    fn loss(&self) -> Option<String> {
        self.device.loss()
    }
}

pub(super) fn disk_4k(_: &FilePath) -> Result<Box<dyn Work>> {
    let target = SpdkTarget::start_with(TARGET_MIB)?;
    let transport_id = target.add("pinned", core::CAPACITY_BYTES, 4096)?;
    let environment = Environment::start(&Default::default())?;
    let address = transport_id.parse().context("the target's address")?;
    let namespace = Namespace::open(&environment, &address, &OpenOptions::default())?;
    let work = core::from_disk(4 << 10, true, |arena, _| {
        Ok(Rested {
            device: namespace.queue_pair(&arena.mapping(), &QueueOptions::default())?,
            handed_over: false,
        })
    })?;
    Ok(Box::new(OnTarget {
        work,
        _target: target,
    }))
}
