//! `device:on=spdk`: blocks of a namespace that SPDK drives, without anything above the queue pair.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_nvme_spdk::{
    Address, Environment, EnvironmentOptions, Namespace, OpenOptions, QueueOptions, SpdkDevice,
};

use super::device::{Reads, arena_bytes, load_of};
use super::noise_on;
use crate::ceilings::memory::MemoryCopy;
use crate::ceilings::{Ceiling, Unit};
use crate::counters::Watched;
use crate::cpus;
use crate::disk::file::spdk_arena;
use crate::outcome::Span;
use crate::pace::{self, Order};
use crate::plan::Plan;
use crate::scenario::Scenario;
use crate::side::{Side, Turn, watched};
use crate::spdk_perf::{self, Job};

/// The namespace that a run names.
#[derive(Debug)]
pub struct Named {
    /// Where it is.
    pub address: Address,
    environment: Option<Arc<Environment>>,
}

impl Named {
    /// Looks at what the command line says.
    ///
    /// # Errors
    /// When it names none, or may not be overwritten.
    pub fn of(plan: &Plan) -> Result<Named> {
        let nvme = &plan.run.nvme;
        let name = nvme.spdk.as_deref().context(
            "on=spdk: name the namespace: --spdk-device pci:0000:5e:00.0, or SPDK's transport id",
        )?;
        let address = name.parse();
        let address: Address = address.with_context(|| format!("--spdk-device {name}"))?;
        ensure!(
            nvme.overwrite,
            "EVERYTHING on {name} WOULD BE LOST: add --overwrite-nvme when that is meant"
        );
        Ok(Named {
            address,
            environment: None,
        })
    }

    /// The scenario as a job for SPDK's tool.
    ///
    /// # Errors
    /// When the kernel does not tell of processors.
    pub fn job(&self, scenario: &Scenario, span: Duration) -> Result<ToolJob> {
        let transport_id = match self.address.pci() {
            Some(pci) => {
                let namespace = self.address.namespace();
                let namespace = namespace.map_or_else(String::new, |id| format!(" ns:{id}"));
                spdk_perf::pci(&pci.to_string()) + &namespace
            }
            None => self.address.to_string(),
        };
        Ok(ToolJob {
            transport_id,
            random: scenario.word("order") == "random",
            block_bytes: scenario.size("block") as usize,
            depth: scenario.count("depth") as usize,
            span,
            cpu: cpus::two()?[1],
        })
    }

    /// Opens it. Nobody else can have a PCI device meanwhile.
    ///
    /// # Errors
    /// What SPDK says.
    pub fn open(&mut self) -> Result<Arc<Namespace>> {
        let environment = match &self.environment {
            Some(environment) => environment.clone(),
            None => {
                let pci = self.address.pci().into_iter().collect();
                let started = Environment::start(&EnvironmentOptions { pci })?;
                self.environment.insert(started).clone()
            }
        };
        let options = OpenOptions::default();
        Ok(Namespace::open(&environment, &self.address, &options)?)
    }
}

/// What SPDK's tool is asked to do.
#[derive(Debug)]
pub struct ToolJob {
    transport_id: String,
    random: bool,
    block_bytes: usize,
    depth: usize,
    span: Duration,
    cpu: usize,
}

impl ToolJob {
    /// As the tool is told.
    pub fn as_job(&self) -> Job<'_> {
        Job {
            transport_id: &self.transport_id,
            random: self.random,
            block_bytes: self.block_bytes,
            depth: self.depth,
            span: self.span,
            cpu: self.cpu,
        }
    }
}

/// The device, by SPDK's own tool, which reads all of it.
#[derive(Debug)]
struct ByTool(ToolJob);

impl Ceiling for ByTool {
    fn name(&self) -> &str {
        "device (spdk_nvme_perf)"
    }

    fn unit(&self) -> Unit {
        Unit::Bytes
    }

    fn measure(&mut self, _: u64) -> Result<f64> {
        let done = spdk_perf::run(&self.0.as_job())?;
        Ok(done.bytes as f64 / done.elapsed.as_secs_f64())
    }
}

/// Forebay's side.
#[derive(Debug)]
pub struct SpdkSide {
    scenario: Scenario,
    named: Named,
}

impl SpdkSide {
    /// Of a scenario `device:on=spdk`.
    ///
    /// # Errors
    /// As [`Named::of`].
    pub fn new(scenario: &Scenario, plan: &Plan) -> Result<SpdkSide> {
        Ok(SpdkSide {
            scenario: scenario.clone(),
            named: Named::of(plan)?,
        })
    }

    /// Opened for each span: a peer has the device in between.
    fn reads(&mut self) -> Result<Reads<SpdkDevice>> {
        let namespace = self.named.open()?;
        let mut arena = spdk_arena(&namespace, arena_bytes(&self.scenario))?;
        let options = QueueOptions {
            depth: self.scenario.count("depth") as usize,
            ..QueueOptions::default()
        };
        let mut device = namespace.queue_pair(&arena.mapping(), &options)?;
        if self.named.address.pci().is_some() {
            device.check_memory(arena.probes())?;
        }
        Reads::new(device, arena, None, &self.scenario)
    }
}

impl Side for SpdkSide {
    fn name(&self) -> &str {
        "Forebay"
    }

    fn version(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        format!("{version} (the adapter alone, on {})", self.named.address)
    }

    /// Reads of what was never written are none.
    fn prepare(&mut self) -> Result<()> {
        let namespace = self.named.open()?;
        let (data, has) = (
            self.scenario.size("data"),
            namespace.geometry().capacity_bytes,
        );
        ensure!(
            data <= has,
            "data={data}B: {} has {has} bytes",
            self.named.address
        );
        let mut arena = spdk_arena(&namespace, 16 << 20)?;
        let mut device = namespace.queue_pair(&arena.mapping(), &QueueOptions::default())?;
        if self.named.address.pci().is_some() {
            device.check_memory(arena.probes())?;
        }
        noise_on(&mut device, &mut arena, data)
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        self.span(turn).map(drop)
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let mut reads = self.reads()?;
        let load = load_of(&self.scenario, turn);
        let here = [Watched::Own("adapter and load".to_owned())];
        // Where SPDK's tool is, too: who polls must not share a processor with a target that does.
        let cpu = cpus::two()?[1];
        watched(&here, &load, self.scenario.size("block"), || {
            cpus::pinned(Some(cpu), || pace::slots(&mut reads, &load))
        })
    }

    fn clean(&mut self) -> Result<()> {
        Ok(())
    }

    /// It polls.
    fn processors(&self) -> Option<(&'static str, f64)> {
        None
    }

    /// No bare ring reads what the kernel does not drive: SPDK's own tool tells what the device gives, where it is.
    fn ceilings(&self) -> Result<Vec<Box<dyn Ceiling>>> {
        let load = load_of(
            &self.scenario,
            &Turn {
                number: 0,
                span: Duration::ZERO,
                seed: 0,
            },
        );
        let block_bytes = self.scenario.size("block") as usize;
        let copy = MemoryCopy::new(block_bytes, load.order == Order::Random)?;
        let mut ceilings: Vec<Box<dyn Ceiling>> = vec![Box::new(copy)];
        if spdk_perf::program().is_ok() {
            let job = self.named.job(&self.scenario, Duration::from_secs(1))?;
            ceilings.push(Box::new(ByTool(job)));
        }
        Ok(ceilings)
    }

    fn notes(&self) -> Vec<String> {
        match spdk_perf::program() {
            Ok(_) => Vec::new(),
            Err(why) => vec![format!("what the device gives was not measured: {why}")],
        }
    }
}
