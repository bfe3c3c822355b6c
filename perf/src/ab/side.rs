//! Another build of Forebay as a side: its own forebay-perf measures each span.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::builds::Build;
use crate::interrupt;
use crate::outcome::Span;
use crate::plan::Plan;
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
    pub fn new(build: &Build, scenario: &str, plan: &Plan) -> BuildSide {
        BuildSide {
            build: build.clone(),
            scenario: scenario.to_owned(),
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
        read(&std::fs::read_to_string(json.path())?)
    }

    fn clean(&mut self) -> Result<()> {
        Ok(())
    }

    fn processors(&self) -> Option<(&'static str, f64)> {
        None
    }
}

/// The first span of an outcome, whatever its schema: what it does not tell is not compared.
fn read(outcome: &str) -> Result<Span> {
    let outcome: Value = serde_json::from_str(outcome).context("it told no JSON")?;
    let span = &outcome["sides"][0]["spans"][0];
    let told = |name: &str| {
        let value = &span[name];
        (!value.is_null()).then_some(value)
    };
    let needed = |name: &str| told(name).with_context(|| format!("its outcome has no {name}"));
    let number = |name: &str| needed(name)?.as_f64().context("no number");
    Ok(Span {
        operations: needed("operations")?.as_u64().context("no number")?,
        bytes: needed("bytes")?.as_u64().context("no number")?,
        elapsed_s: number("elapsed_s")?,
        offered_per_s: told("offered_per_s").and_then(Value::as_u64),
        unfinished: told("unfinished").and_then(Value::as_u64).unwrap_or(0),
        first_byte_us: told("first_byte_us").and_then(Value::as_f64),
        latency: told("latency").and_then(|value| serde_json::from_value(value.clone()).ok()),
        costs: told("costs")
            .and_then(|value| serde_json::from_value(value.clone()).ok())
            .unwrap_or_default(),
        machine_busy_s: number("machine_busy_s").unwrap_or(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_schema_is_read_as_far_as_it_goes() {
        let span = |more: &str| {
            let text = format!(
                "{{\"schema\": 99, \"sides\": [{{\"spans\": [{{\"operations\": 5, \"bytes\": 10, \"elapsed_s\": 0.5{more}}}]}}]}}"
            );
            read(&text)
        };
        let read_one = span("").expect("that is enough");
        assert_eq!(
            (read_one.operations, read_one.operations_per_s()),
            (5, 10.0)
        );
        assert!(read_one.costs.is_empty() && read_one.latency.is_none());
        let costs = ", \"costs\": [{\"who\": \"it\", \"cpu_s\": 0.25, \"voluntary_switches\": null, \
                      \"involuntary_switches\": null, \"instructions\": null, \"cycles\": null, \"later\": 1}]";
        assert_eq!(span(costs).expect("it is one").cpu_s(), 0.25);
        assert_eq!(span(", \"costs\": 7").expect("it is one").cpu_s(), 0.0);
        let refused = read("{\"sides\": []}").expect_err("there is no span");
        assert!(refused.to_string().contains("no operations"), "{refused:#}");
        assert!(read("").is_err());
    }
}
