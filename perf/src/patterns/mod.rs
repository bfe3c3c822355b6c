//! What users do with a mount, and a mount's reads as a layer: [`Work`] on a [`Target`].
//!
//! | file | work |
//! |---|---|
//! | [`blocks`] | `fuse`, `group`: blocks of one file |
//! | [`files`] | `epoch`, `stream`, `checkpoint-load`: whole files |
//! | [`tensors`] | `safetensors`: ranges of a mapped file, by processes |
//! | [`names`] | `list`: directories |
//! | [`replay`] | `trace`: recorded accesses |
//!
//! Data of a warm scenario is `pass-0/...`; a cold one reads `pass-N/...` in its span N, which nobody read before.

pub mod blocks;
pub mod files;
pub mod names;
pub mod replay;
pub mod side;
pub mod tensors;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use crate::counters::{Cost, Watched};
use crate::pace::{Load, Order, Paced};
use crate::recorder::Begun;
use crate::scenario::{Kind, Scenario};
use crate::side::Turn;
use crate::trace::Trace;

/// Whose files are read.
pub trait Target {
    /// How reports call it.
    fn name(&self) -> &str;

    /// What it is, in which version.
    fn version(&self) -> String;

    /// Shows these objects (key, bytes) as files; `data_bytes` is what one pass reads.
    ///
    /// # Errors
    /// What could not be started.
    fn start(&mut self, objects: &[(String, u64)], data_bytes: u64) -> Result<()>;

    /// Where the files are.
    ///
    /// # Errors
    /// When it was not started.
    fn root(&self) -> Result<&Path>;

    /// Brings everything where it is to be before it is read; what the work's own first pass brings need not be.
    ///
    /// # Errors
    /// When not all of it is there.
    fn fill(&mut self) -> Result<()> {
        Ok(())
    }

    /// Before each span: forgets what may not be in memory when it is read.
    ///
    /// # Errors
    /// What did not start again.
    fn renew(&mut self) -> Result<()> {
        Ok(())
    }

    /// The processes that work for it.
    ///
    /// # Errors
    /// When one is gone.
    fn watched(&self) -> Result<Vec<Watched>>;

    /// Bytes that came from the origin up to now; none where there is no origin.
    ///
    /// # Errors
    /// When nobody tells.
    fn origin_bytes(&self) -> Result<Option<u64>>;

    /// Bytes that other members gave up to now; none outside of a group.
    ///
    /// # Errors
    /// When nobody tells.
    fn peer_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Bytes that its disks were read for up to now; none where it tells of no disk.
    ///
    /// # Errors
    /// When nobody tells.
    fn disk_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Ends in order.
    ///
    /// # Errors
    /// What did not end.
    fn end(&mut self) -> Result<()>;
}

/// What one span of work did.
#[derive(Debug, Default)]
pub struct Ran {
    /// Operations, time, latencies.
    pub paced: Paced,
    /// Bytes that they brought.
    pub bytes: u64,
    /// From opening a file to its first byte, in the middle of all readers, where that is looked at.
    pub first_byte_us: Option<f64>,
    /// Of processes that have ended since.
    pub costs: Vec<Cost>,
}

/// What is done with files.
#[derive(Clone, Debug)]
pub struct Work {
    scenario: Scenario,
    trace: Option<Arc<Trace>>,
}

impl Work {
    /// Of a scenario of a mount, but no trace.
    pub fn new(scenario: &Scenario) -> Work {
        Work {
            scenario: scenario.clone(),
            trace: None,
        }
    }

    /// Of any scenario of a mount.
    ///
    /// # Errors
    /// When it needs a file that cannot be read.
    pub fn open(scenario: &Scenario) -> Result<Work> {
        let trace = (scenario.kind() == Kind::Trace)
            .then(|| Trace::of(scenario))
            .transpose()?;
        Ok(Work {
            trace,
            ..Work::new(scenario)
        })
    }

    /// What is replayed.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// The scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Whether what a span reads was never read before.
    pub fn is_cold(&self) -> bool {
        self.scenario.has("state") && self.scenario.word("state") == "cold"
    }

    /// Where the data is when it is read; names are no data.
    pub fn tier(&self) -> &'static str {
        match self.scenario.has("tier") {
            true => self.scenario.word("tier"),
            false => "memory",
        }
    }

    /// The directory that a span reads.
    pub fn directory(&self, turn: &Turn) -> String {
        format!("pass-{}", if self.is_cold() { turn.number } else { 0 })
    }

    /// Keys and bytes of all objects, for spans up to number `last`.
    pub fn objects(&self, last: u64) -> Vec<(String, u64)> {
        let passes = if self.is_cold() { last + 1 } else { 1 };
        let pass = self.pass_objects();
        (0..passes)
            .flat_map(|n| {
                let pass = pass.iter();
                pass.map(move |(name, bytes)| (format!("pass-{n}/{name}"), *bytes))
            })
            .collect()
    }

    /// Those of one pass.
    fn pass_objects(&self) -> Vec<(String, u64)> {
        let scenario = &self.scenario;
        match scenario.kind() {
            Kind::Epoch | Kind::Stream => {
                let size = scenario.size("size");
                let files = 0..scenario.count("files");
                files.map(|n| (files::name(n), size)).collect()
            }
            Kind::CheckpointLoad | Kind::Safetensors => {
                vec![(files::name(0), scenario.size("size"))]
            }
            Kind::List => names::objects(scenario.count("objects"), scenario.count("directories")),
            Kind::Trace => replay::objects(self.trace()),
            _ => vec![(files::name(0), scenario.size("data"))],
        }
    }

    /// Bytes of one pass.
    pub fn data_bytes(&self) -> u64 {
        u64::try_from(self.amount().1).unwrap_or(u64::MAX)
    }

    /// Objects of one pass, and their bytes together.
    pub fn amount(&self) -> (u128, u128) {
        let scenario = &self.scenario;
        let (objects, bytes) = match scenario.kind() {
            Kind::Epoch | Kind::Stream => (scenario.count("files"), scenario.size("size")),
            Kind::CheckpointLoad | Kind::Safetensors => (1, scenario.size("size")),
            Kind::List => (scenario.count("objects"), names::OBJECT_BYTES),
            Kind::Trace => return self.trace().map_or((0, 0), Trace::amount),
            _ => (1, scenario.size("data")),
        };
        let (objects, bytes) = (u128::from(objects), u128::from(bytes));
        (objects, objects * bytes)
    }

    /// Of so many bytes that readers got in a span, those that a disk must have given: one file that all read is read from it once,
    /// the others have it from the page cache or from memory.
    pub fn device_bytes(&self, read: u64) -> u64 {
        match self.scenario.kind() {
            Kind::Safetensors | Kind::CheckpointLoad => read.min(self.data_bytes()),
            Kind::Trace => read.min(self.touched_bytes()),
            _ => read,
        }
    }

    /// Bytes of one pass that are read at all.
    pub fn touched_bytes(&self) -> u64 {
        self.trace()
            .map_or_else(|| self.data_bytes(), Trace::touched_bytes)
    }

    /// The load that a span of blocks is.
    pub fn load(&self, turn: &Turn) -> Load {
        match self.scenario.kind() {
            Kind::Fuse | Kind::Group => crate::layers::device::load_of(&self.scenario, turn),
            // A pass: begun is what ends the one before.
            _ => Load {
                blocks: 1,
                order: Order::Sequential,
                depth: 1,
                rate: self.trace().and_then(|trace| trace.rate(&self.scenario)),
                span: turn.span,
                seed: turn.seed,
            },
        }
    }

    /// From when times count.
    pub fn begun(&self, turn: &Turn) -> Begun {
        self.load(turn).begun()
    }

    /// One span under `root`.
    ///
    /// # Errors
    /// The first read that fails.
    pub fn run(&self, root: &Path, turn: &Turn) -> Result<Ran> {
        let dir = root.join(self.directory(turn));
        match self.scenario.kind() {
            Kind::Epoch => files::epoch(&dir, &self.scenario, turn),
            Kind::Stream => files::stream(&dir, &self.scenario),
            Kind::CheckpointLoad => files::checkpoint(&dir, &self.scenario),
            Kind::Safetensors => tensors::run(&dir.join(files::name(0)), &self.scenario, turn),
            Kind::List => names::list(&dir, self.scenario.word("attributes") == "yes"),
            Kind::Trace => replay::run(&dir, &self.scenario, self.trace()),
            _ => blocks::run(&dir.join(files::name(0)), &self.scenario, &self.load(turn)),
        }
    }

    /// Whether reads go through the page cache, which then is dropped before each span.
    pub fn uses_page_cache(&self) -> bool {
        !self.scenario.has("reader") || self.scenario.word("reader") != "direct"
    }
}
