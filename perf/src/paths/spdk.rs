//! The disk tier of a whole core on SPDK's target, which this path starts for itself.

use std::path::Path as FilePath;

use anyhow::{Context, Result};
use forebay_nvme_spdk::{Environment, Namespace, OpenOptions, QueueOptions};
use forebay_tests::devices::target::SpdkTarget;

use super::Work;
use super::core;

const TARGET_MIB: u32 = 1_024;

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

pub(super) fn disk_4k(_: &FilePath) -> Result<Box<dyn Work>> {
    let target = SpdkTarget::start_with(TARGET_MIB)?;
    let transport_id = target.add("pinned", core::CAPACITY_BYTES, 4096)?;
    let environment = Environment::start(&Default::default())?;
    let address = transport_id.parse().context("the target's address")?;
    let namespace = Namespace::open(&environment, &address, &OpenOptions::default())?;
    let work = core::from_disk(4 << 10, true, |arena, _| {
        Ok(namespace.queue_pair(&arena.mapping(), &QueueOptions::default())?)
    })?;
    Ok(Box::new(OnTarget {
        work,
        _target: target,
    }))
}
