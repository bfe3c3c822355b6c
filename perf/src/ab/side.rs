//! Another build of Forebay as a side: its own forebay-perf measures each span.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::builds::Build;
use crate::interrupt;
use crate::outcome::{Outcome, Span};
use crate::plan::Plan;
use crate::scenario::Scenario;
use crate::side::{Side, Turn};

/// A build that runs a scenario.
#[derive(Debug)]
pub(super) struct BuildSide {
    build: Build,
    scenario: String,
    dir: PathBuf,
    warm_up: Duration,
}

impl BuildSide {
    pub fn new(build: &Build, scenario: &Scenario, plan: &Plan) -> BuildSide {
        BuildSide {
            build: build.clone(),
            scenario: scenario.to_string(),
            dir: plan.run.dir.clone(),
            warm_up: plan.warm_up,
        }
    }
}

impl Side for BuildSide {
    fn name(&self) -> &str {
        &self.build.name
    }

    fn version(&self) -> String {
        "a process for each span".to_owned()
    }

    fn prepare(&mut self) -> Result<()> {
        ensure!(
            self.build.program.is_file(),
            "{} is gone",
            self.build.program.display()
        );
        Ok(())
    }

    // Each process warms itself.
    fn warm(&mut self, _: &Turn) -> Result<()> {
        Ok(())
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        std::fs::create_dir_all(&self.dir)?;
        let json = tempfile::Builder::new()
            .suffix(".json")
            .tempfile_in(&self.dir)?;
        let ms = |span: Duration| format!("{}ms", span.as_millis().max(1));
        let done = Command::new(&self.build.program)
            .args(["run", &self.scenario, "--no-ceilings", "--repeats", "1"])
            .args(["--span", &ms(turn.span), "--warm-up", &ms(self.warm_up)])
            .args(["--seed", &turn.seed.to_string()])
            .args(["--dir".as_ref(), self.dir.as_os_str()])
            .args(["--json".as_ref(), json.path().as_os_str()])
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.build.program.display()))?;
        interrupt::check()?;
        if !done.status.success() {
            bail!("{}", String::from_utf8_lossy(&done.stderr).trim());
        }
        let outcome = Outcome::read(json.path())?;
        let side = outcome.sides.into_iter().next();
        let span = side.and_then(|side| side.spans.into_iter().next());
        span.context("it told of no span")
    }

    fn clean(&mut self) -> Result<()> {
        Ok(())
    }

    fn processors(&self) -> Option<(&'static str, f64)> {
        None
    }
}
