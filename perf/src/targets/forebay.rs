//! The real `forebay mount` of a bucket in this process.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};

use crate::bench::Bench;
use crate::counters::Watched;
use crate::group::disk_read_bytes;
use crate::patterns::Target;
use crate::plan::Plan;
use crate::scenario::Scenario;

const MIB: u64 = 1 << 20;
/// Where nothing else is said, not less than this.
const MEMORY_MIN: u64 = 128 * MIB;
/// And this for timed reads from disk: what they come round to again must not be in memory.
const TIMED_MIN: u64 = 64 * MIB;
/// The data set over the memory of timed reads from disk, where it is that large.
pub(super) const TIMED_SHARE: u64 = 16;

/// One daemon on its own.
pub struct ForebayMount {
    scenario: Scenario,
    plan: Plan,
    bench: Option<Bench>,
    on_disk: bool,
    flags: Vec<OsString>,
}

impl ForebayMount {
    /// Of a scenario of a mount.
    pub fn new(scenario: &Scenario, plan: &Plan) -> ForebayMount {
        ForebayMount {
            on_disk: scenario.has("tier") && scenario.word("tier") == "disk",
            scenario: scenario.clone(),
            plan: plan.clone(),
            bench: None,
            flags: Vec::new(),
        }
    }

    /// With more flags of `forebay mount`.
    pub fn with_flags(mut self, flags: &[&str]) -> ForebayMount {
        self.flags = flags.iter().map(OsString::from).collect();
        self
    }

    /// The daemon's process.
    ///
    /// # Errors
    /// When it was not started.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.bench()?.pid())
    }

    fn bench(&self) -> Result<&Bench> {
        self.bench.as_ref().context("forebay was not mounted")
    }
}

/// `--memory` for so much data.
pub(super) fn memory(scenario: &Scenario, data_bytes: u64, on_disk: bool) -> String {
    let wanted = scenario.size_or_auto("memory");
    let chosen = wanted.unwrap_or_else(|| match on_disk {
        true if !scenario.kind().is_pattern() => (data_bytes / TIMED_SHARE).max(TIMED_MIN),
        // So that the data set is four times the memory, where it is that large.
        true => (data_bytes / 4).max(MEMORY_MIN),
        false => data_bytes.saturating_mul(2).max(MEMORY_MIN),
    });
    format!("{}MiB", chosen.div_ceil(MIB))
}

/// `--cache-size` for so much data.
pub(super) fn cache_size(data_bytes: u64) -> String {
    format!(
        "{}MiB",
        data_bytes.saturating_add(data_bytes / 2).div_ceil(MIB) + 1024
    )
}

impl Target for ForebayMount {
    fn name(&self) -> &str {
        "Forebay"
    }

    fn version(&self) -> String {
        format!("{} (forebay mount)", env!("CARGO_PKG_VERSION"))
    }

    fn start(&mut self, objects: &[(String, u64)], data_bytes: u64) -> Result<()> {
        let dir = self.plan.run.scratch()?;
        let mut flags = self.flags.clone();
        // What is on disk of all passes of a cold scenario stays there.
        let all = objects.iter().map(|(_, bytes)| *bytes);
        let all = all.fold(0, u64::saturating_add);
        if self.on_disk {
            let cache = dir.path().join("cache");
            std::fs::create_dir(&cache)?;
            flags.extend(["--cache-dir".into(), cache.into()]);
            // What else lies on the disk shall not shrink the cache meanwhile.
            flags.extend(["--cache-size".into(), cache_size(all).into()]);
            flags.extend(["--free-space-ratio", "0"].map(OsString::from));
        }
        let bytes = if self.on_disk { data_bytes } else { all };
        let memory = memory(&self.scenario, bytes, self.on_disk);
        let bench = Bench::start_in(dir, objects, &memory, &flags)?;
        bench.bucket().shape(&self.scenario);
        self.bench = Some(bench);
        Ok(())
    }

    fn root(&self) -> Result<&Path> {
        Ok(self.bench()?.point())
    }

    fn fill(&mut self) -> Result<()> {
        self.bench()?.warm_up()
    }

    fn renew(&mut self) -> Result<()> {
        if self.on_disk {
            let bench = self.bench.take().context("forebay was not mounted")?;
            self.bench = Some(bench.remount()?);
        }
        Ok(())
    }

    fn watched(&self) -> Result<Vec<Watched>> {
        let pid = self.bench()?.pid();
        Ok(vec![Watched::Other("forebay mount".to_owned(), pid)])
    }

    fn origin_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(self.bench()?.server().counters().body_bytes))
    }

    fn disk_bytes(&self) -> Result<Option<u64>> {
        let told = self.on_disk.then(|| disk_read_bytes(self.bench()?.point()));
        told.transpose()
    }

    fn end(&mut self) -> Result<()> {
        self.bench.take().map_or(Ok(()), Bench::end)
    }
}

impl std::fmt::Debug for ForebayMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForebayMount").finish_non_exhaustive()
    }
}
