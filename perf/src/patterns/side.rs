//! A side of a scenario whose files somebody shows.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::blocks::Reader;
use super::{Target, Work};
use crate::ceilings::Ceiling;
use crate::ceilings::device::Device;
use crate::ceilings::fuse::NullFuse;
use crate::ceilings::memory::MemoryCopy;
use crate::counters::{Watch, Watched};
use crate::layers::noise_file;
use crate::outcome::Span;
use crate::pace::Order;
use crate::plan::Plan;
use crate::run;
use crate::scenario::Kind;
use crate::side::{Side, Turn, span};

/// Of what is said to come from disk, so much must; how much did is told.
const DISK_SHARE_MIN: f64 = 0.5;
/// And so much where it is compared with a disk: the rest would make Forebay's share of it larger.
const COMPARED_SHARE_MIN: f64 = 0.95;
/// Of a data set that members of a group have, so much may be answered from the reader's own memory.
const OWN_SHARE_MAX: f64 = 0.5;

/// Somebody's files, and what is done with them.
pub struct MountSide {
    target: Box<dyn Target>,
    work: Work,
    plan: Plan,
    /// Whether it is Forebay, whose caching is held to what the scenario says.
    strict: bool,
    origin_bytes: u64,
    peer_bytes: Option<u64>,
    read_bytes: u64,
    /// Bytes that came from disk, and those that had to.
    disk_bytes: Option<(u64, u64)>,
}

impl MountSide {
    /// Forebay's, which fails when it does not measure what the scenario says.
    pub fn forebay(target: Box<dyn Target>, work: Work, plan: &Plan) -> MountSide {
        MountSide {
            target,
            work,
            plan: plan.clone(),
            strict: true,
            origin_bytes: 0,
            peer_bytes: None,
            read_bytes: 0,
            disk_bytes: None,
        }
    }

    /// A peer's, whose caching is told.
    pub fn peer(target: Box<dyn Target>, work: Work, plan: &Plan) -> MountSide {
        MountSide {
            strict: false,
            ..MountSide::forebay(target, work, plan)
        }
    }

    /// Nothing in memory that may not be there.
    fn before(&mut self, turn: &Turn) -> Result<()> {
        self.target.renew()?;
        let memory_only =
            self.strict && self.work.tier() == "memory" && !self.work.uses_page_cache();
        if !memory_only {
            run::drop_caches()?;
        }
        if self.work.scenario().kind() != Kind::List && !self.work.is_cold() {
            // Names and attributes are known before anything is timed.
            know(&self.target.root()?.join(self.work.directory(turn)))?;
        }
        Ok(())
    }

    fn measure(&mut self, turn: &Turn) -> Result<Span> {
        let mut processes = self.target.watched()?;
        processes.insert(0, Watched::Own("readers".to_owned()));
        let (origin, peers) = (self.target.origin_bytes()?, self.target.peer_bytes()?);
        let disk = self.target.disk_bytes()?;
        let watch = Watch::start(&processes)?;
        let mut ran = self.work.run(self.target.root()?, turn)?;
        let (mut costs, busy) = watch.stop()?;
        costs.append(&mut ran.costs);
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let fetched = since(self.target.origin_bytes()?, origin).unwrap_or(0);
        let given = since(self.target.peer_bytes()?, peers);
        self.origin_bytes += fetched;
        self.read_bytes += ran.bytes;
        self.peer_bytes = given
            .map(|given| given + self.peer_bytes.unwrap_or(0))
            .or(self.peer_bytes);
        let from_disk = since(self.target.disk_bytes()?, disk).filter(|_| !self.work.is_cold());
        if let Some(from_disk) = from_disk {
            let (came, wanted) = self.disk_bytes.unwrap_or_default();
            let wanted = wanted + self.work.device_bytes(ran.bytes);
            self.disk_bytes = Some((came + from_disk, wanted));
        }
        if self.strict {
            self.check(ran.bytes, fetched, given, from_disk)?;
        }
        let mut measured = span(&ran.paced, &self.work.load(turn), ran.bytes, costs, busy);
        measured.first_byte_us = ran.first_byte_us;
        Ok(measured)
    }
}

impl MountSide {
    /// That what was measured is what the scenario says, from the bytes of each source.
    fn check(
        &self,
        read: u64,
        fetched: u64,
        given: Option<u64>,
        from_disk: Option<u64>,
    ) -> Result<()> {
        let kind = self.work.scenario().kind();
        if self.work.is_cold() {
            ensure!(
                kind == Kind::List || fetched >= self.work.touched_bytes().min(read),
                "only {fetched} bytes came from the origin: not a measurement of a cold read"
            );
            return Ok(());
        }
        ensure!(
            fetched == 0,
            "{fetched} bytes came from the origin: not a measurement of what is cached"
        );
        let share = |bytes: u64| bytes as f64 / read.max(1) as f64;
        if let Some(given) = given {
            let own = 1.0 - share(given);
            ensure!(
                own <= OWN_SHARE_MAX,
                "{:.0} % of the bytes came from the reader's own memory: not a measurement of the group; \
                 a smaller memory=, or more data=",
                100.0 * own
            );
        }
        if let Some(from_disk) = from_disk {
            // A whole pass reads everything once after a start; timed spans may come round again.
            let compared = self.plan.ceilings || kind.is_pattern();
            enough_from_disk(from_disk, self.work.device_bytes(read), compared)?;
        }
        Ok(())
    }
}

/// That a span of the disk tier read the disk, for the bytes that it had to give.
fn enough_from_disk(from_disk: u64, wanted: u64, compared: bool) -> Result<()> {
    let share = from_disk as f64 / wanted.max(1) as f64;
    let least = if compared {
        COMPARED_SHARE_MIN
    } else {
        DISK_SHARE_MIN
    };
    ensure!(
        share >= least,
        "{:.1} % of the bytes came from memory, and {:.0} % may: not a measurement of the disk tier; more data=, less memory=, or a shorter --span",
        100.0 * (1.0 - share),
        100.0 * (1.0 - least)
    );
    Ok(())
}

fn know(dir: &Path) -> Result<()> {
    let said = || format!("listing {}", dir.display());
    for entry in std::fs::read_dir(dir).with_context(said)? {
        entry?.metadata().with_context(said)?;
    }
    Ok(())
}

impl Side for MountSide {
    fn name(&self) -> &str {
        self.target.name()
    }

    fn version(&self) -> String {
        self.target.version()
    }

    fn prepare(&mut self) -> Result<()> {
        let last = self.plan.repeats as u64;
        let objects = self.work.objects(last);
        self.target.start(&objects, self.work.data_bytes())
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        if !self.work.is_cold() {
            if self.work.scenario().kind() != Kind::List {
                self.target.fill()?;
            }
            // A peer's cache is filled by reading; and a mount's first reads are not like its later ones.
            self.work.run(self.target.root()?, turn)?;
        }
        if !self.work.is_cold() && !self.strict && self.work.scenario().kind() != Kind::List {
            // What a timed span did not reach is read once too.
            read_all(&self.target.root()?.join(self.work.directory(turn)))?;
        }
        Ok(())
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        self.before(turn)?;
        self.measure(turn)
    }

    fn clean(&mut self) -> Result<()> {
        self.target.end()
    }

    fn device_bytes(&self, span: &Span) -> u64 {
        self.work.device_bytes(span.bytes)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        notes.extend(self.work.trace().map(|trace| trace.to_string()));
        let name = self.target.name();
        if self.origin_bytes > 0 {
            notes.push(format!(
                "{name}: {} bytes came from the origin for {} that were read",
                self.origin_bytes, self.read_bytes
            ));
            if self.work.is_cold() {
                notes.push(format!("{name}: the S3 server runs in the readers' process, and its processor time is in theirs"));
            }
        }
        if let Some((came, wanted)) = self.disk_bytes {
            let percent = 100.0 * came as f64 / wanted.max(1) as f64;
            notes.push(format!(
                "{name}: {came} bytes were read from disk for {wanted} that it had to give ({percent:.1} %)"
            ));
        }
        if let Some(given) = self.peer_bytes {
            notes.push(format!(
                "{name}: {given} bytes came from other members for {} that were read",
                self.read_bytes
            ));
        }
        notes
    }

    fn ceilings(&self) -> Result<Vec<Box<dyn Ceiling>>> {
        let scenario = self.work.scenario();
        let mut limits: Vec<Box<dyn Ceiling>> = Vec::new();
        let turn = Turn {
            number: 0,
            span: Duration::ZERO,
            seed: 0,
        };
        let blocks = matches!(scenario.kind(), Kind::Fuse | Kind::Group);
        if blocks {
            let reader = Reader::named(scenario.word("reader"));
            let (block_bytes, load) = (scenario.size("block"), self.work.load(&turn));
            let dir = tempfile::Builder::new().prefix("forebay-perf-").tempdir()?;
            limits.push(Box::new(NullFuse::start(dir, reader, block_bytes, load)?));
            limits.push(Box::new(MemoryCopy::new(
                block_bytes as usize,
                load.order == Order::Random,
            )?));
        }
        if scenario.kind() != Kind::List && self.work.tier() == "disk" {
            limits.push(Box::new(disk(
                &self.plan,
                scenario,
                self.work.data_bytes(),
            )?));
        }
        Ok(limits)
    }
}

/// A bare ring on a file of the same disk, as deep as readers with read-ahead are.
fn disk(plan: &Plan, scenario: &crate::scenario::Scenario, data_bytes: u64) -> Result<DiskLimit> {
    const BYTES_MAX: u64 = 1 << 30;
    const SEQUENTIAL: (u64, usize) = (1 << 20, 8);
    let dir = plan.run.scratch()?;
    let file = dir.path().join("limit");
    let random = scenario.has("order") && scenario.word("order") == "random";
    let (block_bytes, depth) = match random {
        true => (scenario.size("block"), scenario.count("depth") as usize),
        false => SEQUENTIAL,
    };
    let len_bytes = data_bytes.min(BYTES_MAX).max(block_bytes * depth as u64);
    noise_file(&file, len_bytes)?;
    Ok(DiskLimit {
        device: Device {
            file,
            offset_bytes: 0,
            len_bytes,
            block_bytes,
            depth,
            order: if random {
                Order::Random
            } else {
                Order::Sequential
            },
        },
        _dir: dir,
    })
}

/// A device's ceiling with its own file.
#[derive(Debug)]
struct DiskLimit {
    device: Device,
    _dir: tempfile::TempDir,
}

impl Ceiling for DiskLimit {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn unit(&self) -> crate::ceilings::Unit {
        self.device.unit()
    }

    fn measure(&mut self, seed: u64) -> Result<f64> {
        self.device.measure(seed)
    }
}

/// Reads every file below a directory.
fn read_all(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        crate::interrupt::check()?;
        let path = entry?.path();
        crate::load::read_once(&path, crate::load::Cache::Through)?;
    }
    Ok(())
}

impl std::fmt::Debug for MountSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountSide").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_with_a_disk_comes_from_it() {
        assert!(enough_from_disk(95, 100, true).is_ok());
        assert!(enough_from_disk(200, 100, true).is_ok());
        let refused = enough_from_disk(94, 100, true).expect_err("too little");
        let said = refused.to_string();
        assert!(
            said.contains("6.0 % of the bytes came from memory, and 5 % may"),
            "{said}"
        );
        assert!(enough_from_disk(94, 100, false).is_ok());
        assert!(enough_from_disk(49, 100, false).is_err());
        assert!(enough_from_disk(0, 0, true).is_err());
    }
}
