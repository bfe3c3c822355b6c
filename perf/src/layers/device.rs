//! `device`: blocks of a queue pair, without anything above it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use forebay_engine::arena::{Arena, Lease, Share};
use forebay_engine::ports::{BlockDevice, DeviceEvent, DeviceOp, DeviceTag, Full};
use forebay_nvme_uring::{OpenOptions, UringDevice, UringFile};
use rustix::event::{EventfdFlags, eventfd};
use tempfile::TempDir;

use super::noise_file;
use crate::ceilings::Ceiling;
use crate::ceilings::device::Device as DeviceCeiling;
use crate::ceilings::memory::MemoryCopy;
use crate::counters::Watched;
use crate::disk::driver::wait_at;
use crate::disk::memory::MemoryDevice;
use crate::outcome::Span;
use crate::pace::{self, Load, Order, Slots};
use crate::plan::Plan;
use crate::scenario::Scenario;
use crate::side::{Side, Turn, watched};

/// Frames of any class fit for each operation.
const FRAME_BYTES: usize = 1 << 20;

/// Bytes of an arena whose buffers fit for all operations of a scenario.
pub(super) fn arena_bytes(scenario: &Scenario) -> usize {
    scenario.count("depth") as usize * FRAME_BYTES + (16 << 20)
}

/// Reads of one queue pair.
pub(super) struct Reads<D> {
    // Before the arena's memory: what it has under way comes back first.
    device: D,
    arena: Arena,
    /// Buffers of slots that have nothing under way.
    leases: Vec<Option<Lease>>,
    block_bytes: u64,
    bell: Option<OwnedFd>,
}

impl<D: BlockDevice> Reads<D> {
    pub(super) fn new(
        device: D,
        mut arena: Arena,
        bell: Option<OwnedFd>,
        scenario: &Scenario,
    ) -> Result<Self> {
        let block_bytes = scenario.size("block");
        let lease = |_| {
            let lease = arena.lease(block_bytes as usize, Share::Demand);
            lease.map(Some).ok().context("no room for buffers")
        };
        let leases = (0..scenario.count("depth")).map(lease);
        Ok(Self {
            leases: leases.collect::<Result<_>>()?,
            device,
            arena,
            block_bytes,
            bell,
        })
    }
}

impl<D: BlockDevice> Slots for Reads<D> {
    fn begin(&mut self, slot: usize, place: u64) -> Result<()> {
        let lease = self.leases[slot].take().context("a slot is used twice")?;
        let op = DeviceOp::Read {
            tag: DeviceTag(slot as u64),
            offset_bytes: place * self.block_bytes,
            lease,
        };
        match self.device.submit(op) {
            Ok(()) => Ok(()),
            Err(Full(_)) => bail!("the queue pair does not take that many operations"),
        }
    }

    fn go_on(&mut self, ended: &mut Vec<usize>, most: Duration) -> Result<()> {
        self.device.commit();
        let before = ended.len();
        while let Some(event) = self.device.poll() {
            let DeviceEvent::Read { tag, lease, result } = event else {
                continue;
            };
            result.map_err(|error| anyhow::anyhow!("a read failed: {error:?}"))?;
            let slot = tag.0 as usize;
            self.leases[slot] = Some(lease);
            ended.push(slot);
        }
        // Buffers of the arena that came back from elsewhere; there are none, and it costs nothing.
        self.arena.reclaim();
        match &self.bell {
            Some(bell) if ended.len() == before => wait_at(bell, most),
            _ => Ok(()),
        }
    }
}

enum State {
    Uring {
        reads: Box<Reads<UringDevice>>,
        file: PathBuf,
        _dir: TempDir,
    },
    Memory(Box<Reads<MemoryDevice>>),
}

/// Forebay's side of `device`.
pub struct DeviceSide {
    scenario: Scenario,
    plan: Plan,
    state: Option<State>,
}

impl DeviceSide {
    /// Of a scenario of that kind.
    pub fn new(scenario: &Scenario, plan: &Plan) -> DeviceSide {
        DeviceSide {
            scenario: scenario.clone(),
            plan: plan.clone(),
            state: None,
        }
    }

    fn arena(&self) -> Result<Arena> {
        Arena::new(arena_bytes(&self.scenario)).context("no memory for buffers")
    }

    fn open(&self, file: &std::path::Path) -> Result<Reads<UringDevice>> {
        let opened = UringFile::open(file, &OpenOptions::default())?;
        ensure!(
            opened.is_direct(),
            "{} takes no O_DIRECT: give --dir on another file system",
            file.display()
        );
        let arena = self.arena()?;
        let depth = self.scenario.count("depth") as usize;
        let mut device = opened.queue_pair(arena.addresses(), depth)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).context("no eventfd")?;
        device.signal_at(bell.as_fd())?;
        Reads::new(device, arena, Some(bell), &self.scenario)
    }

    fn load(&self, turn: &Turn) -> Load {
        load_of(&self.scenario, turn)
    }
}

/// The load that a scenario with blocks of data names.
pub(crate) fn load_of(scenario: &Scenario, turn: &Turn) -> Load {
    let blocks = match scenario.has("data") {
        true => scenario.size("data") / scenario.size("block"),
        false => 1,
    };
    let order = match scenario.has("order") {
        true => Order::named(scenario.word("order")),
        false => Order::Sequential,
    };
    Load {
        blocks,
        order,
        depth: scenario.count("depth") as usize,
        rate: scenario.rate(),
        span: turn.span,
        seed: turn.seed,
    }
}

impl Side for DeviceSide {
    fn name(&self) -> &str {
        "Forebay"
    }

    fn version(&self) -> String {
        format!("{} (the adapter alone)", env!("CARGO_PKG_VERSION"))
    }

    fn prepare(&mut self) -> Result<()> {
        let bytes = self.scenario.size("data");
        self.state = Some(match self.scenario.word("on") {
            "memory" => {
                let device = MemoryDevice::filled(bytes as usize);
                State::Memory(Box::new(Reads::new(
                    device,
                    self.arena()?,
                    None,
                    &self.scenario,
                )?))
            }
            _ => {
                let dir = self.plan.run.scratch()?;
                let file = dir.path().join("blocks");
                noise_file(&file, bytes)?;
                State::Uring {
                    reads: Box::new(self.open(&file)?),
                    file,
                    _dir: dir,
                }
            }
        });
        Ok(())
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        self.span(turn).map(drop)
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let load = self.load(turn);
        let block = self.scenario.size("block");
        let here = [Watched::Own("adapter and load".to_owned())];
        match &mut self.state {
            Some(State::Uring { reads, .. }) => {
                watched(&here, &load, block, || pace::slots(&mut **reads, &load))
            }
            Some(State::Memory(reads)) => {
                watched(&here, &load, block, || pace::slots(&mut **reads, &load))
            }
            None => bail!("the device was not prepared"),
        }
    }

    fn clean(&mut self) -> Result<()> {
        self.state = None;
        Ok(())
    }

    fn processors(&self) -> Option<(&'static str, f64)> {
        // The device in memory has always ended: nobody waits for it.
        (self.scenario.word("on") == "uring").then_some(("one processor", 1.0))
    }

    fn ceilings(&self) -> Result<Vec<Box<dyn Ceiling>>> {
        let load = self.load(&Turn {
            number: 0,
            span: Duration::ZERO,
            seed: 0,
        });
        let block_bytes = self.scenario.size("block");
        let random = load.order == Order::Random;
        let copy = MemoryCopy::new(block_bytes as usize, random)?;
        Ok(match &self.state {
            Some(State::Uring { file, .. }) => vec![Box::new(DeviceCeiling {
                file: file.clone(),
                offset_bytes: 0,
                len_bytes: self.scenario.size("data"),
                block_bytes,
                depth: load.depth,
                order: load.order,
            })],
            _ => vec![Box::new(copy)],
        })
    }
}

impl std::fmt::Debug for DeviceSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceSide").finish_non_exhaustive()
    }
}
