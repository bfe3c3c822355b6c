//! fio as a side of `device` and `engine:tier=disk`, SPDK's own tool as one of `device:on=spdk`.

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::Peer;
use crate::counters::Cost;
use crate::fio::{self, Access, Engine, Job, Until};
use crate::layers::noise_file;
use crate::outcome::Span;
use crate::plan::Plan;
use crate::process;
use crate::scenario::Scenario;
use crate::side::{Side, Turn};

/// fio with a file of its own, of the same length on the same disk.
#[derive(Debug)]
pub struct Fio {
    scenario: Scenario,
    plan: Plan,
    dir: Option<TempDir>,
}

impl Fio {
    /// Of a scenario that reads a disk.
    pub fn new(scenario: &Scenario, plan: &Plan) -> Fio {
        Fio {
            scenario: scenario.clone(),
            plan: plan.clone(),
            dir: None,
        }
    }
}

impl Side for Fio {
    fn name(&self) -> &str {
        "fio"
    }

    fn version(&self) -> String {
        format!(
            "{} (io_uring, O_DIRECT, fixed buffers)",
            Peer::Fio.version()
        )
    }

    fn prepare(&mut self) -> Result<()> {
        let dir = self.plan.run.scratch()?;
        noise_file(&dir.path().join("blocks"), self.scenario.size("data"))?;
        self.dir = Some(dir);
        Ok(())
    }

    fn warm(&mut self, turn: &Turn) -> Result<()> {
        self.span(turn).map(drop)
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let dir = self.dir.as_ref().context("the file was not made")?;
        let busy = process::machine_busy()?;
        let (done, latency) = fio::run_timed(&Job {
            file: &dir.path().join("blocks"),
            engine: Engine::Uring,
            access: match self.scenario.word("order") {
                "sequential" => Access::Reads,
                _ => Access::RandomReads,
            },
            block_bytes: self.scenario.size("block"),
            depth: self.scenario.count("depth") as usize,
            extent: None,
            until: Until::Elapsed(turn.span),
            sync_every_bytes: None,
            fixed: true,
            lean: false,
            seed: turn.seed,
        })?;
        Ok(Span {
            operations: done.ios,
            bytes: done.bytes,
            elapsed_s: done.elapsed.as_secs_f64(),
            offered_per_s: None,
            unfinished: 0,
            first_byte_us: None,
            latency,
            costs: vec![Cost {
                who: "fio".to_owned(),
                cpu_s: done.cpu.as_secs_f64(),
                voluntary_switches: None,
                involuntary_switches: None,
                instructions: None,
                cycles: None,
            }],
            machine_busy_s: process::machine_busy()?.saturating_sub(busy).as_secs_f64(),
        })
    }

    fn clean(&mut self) -> Result<()> {
        self.dir = None;
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let words = "fio chooses its own places at random, counts times from submission, and tells its processor time as it saw it";
        vec![words.to_owned()]
    }
}

/// SPDK's own tool.
///
/// # Errors
/// When the command line names no namespace, or this program was built without SPDK.
#[cfg(not(feature = "spdk"))]
pub fn spdk(scenario: &Scenario, plan: &Plan) -> Result<Box<dyn Side>> {
    // Forebay's side says what is missing.
    crate::sides::forebay(scenario, plan)
}

/// SPDK's own tool.
///
/// # Errors
/// When the command line names no namespace.
#[cfg(feature = "spdk")]
pub fn spdk(scenario: &Scenario, plan: &Plan) -> Result<Box<dyn Side>> {
    Ok(Box::new(of_spdk::Tool::new(scenario, plan)?))
}

#[cfg(feature = "spdk")]
mod of_spdk {
    use anyhow::{Result, ensure};

    use super::{Cost, Plan, Scenario, Side, Span, Turn, process};
    use crate::layers::spdk_device::Named;
    use crate::spdk_perf;

    /// It reads all of the namespace, so that must be what the scenario reads.
    #[derive(Debug)]
    pub struct Tool {
        scenario: Scenario,
        named: Named,
    }

    impl Tool {
        pub fn new(scenario: &Scenario, plan: &Plan) -> Result<Tool> {
            Ok(Tool {
                scenario: scenario.clone(),
                named: Named::of(plan)?,
            })
        }
    }

    impl Side for Tool {
        fn name(&self) -> &str {
            "spdk"
        }

        fn version(&self) -> String {
            "spdk_nvme_perf".to_owned()
        }

        fn prepare(&mut self) -> Result<()> {
            let capacity_bytes = self.named.open()?.geometry().capacity_bytes;
            ensure!(
                self.scenario.size("data") == capacity_bytes,
                "spdk_nvme_perf reads all of {}: data={capacity_bytes}B",
                self.named.address
            );
            Ok(())
        }

        fn warm(&mut self, _: &Turn) -> Result<()> {
            Ok(())
        }

        fn span(&mut self, turn: &Turn) -> Result<Span> {
            let busy = process::machine_busy()?;
            let job = self.named.job(&self.scenario, turn.span)?;
            let (done, latency) = spdk_perf::run_timed(&job.as_job())?;
            Ok(Span {
                operations: done.ios,
                bytes: done.bytes,
                elapsed_s: done.elapsed.as_secs_f64(),
                offered_per_s: None,
                unfinished: 0,
                first_byte_us: None,
                latency,
                costs: vec![Cost {
                    who: "spdk_nvme_perf".to_owned(),
                    cpu_s: done.cpu.as_secs_f64(),
                    voluntary_switches: None,
                    involuntary_switches: None,
                    instructions: None,
                    cycles: None,
                }],
                machine_busy_s: process::machine_busy()?.saturating_sub(busy).as_secs_f64(),
            })
        }

        fn clean(&mut self) -> Result<()> {
            Ok(())
        }

        fn processors(&self) -> Option<(&'static str, f64)> {
            None
        }

        fn notes(&self) -> Vec<String> {
            let words = "spdk_nvme_perf chooses its own places at random, counts times from submission, measures whole seconds, and is taken to use \
                         one processor, where it polls; what the machine was busy with is with its start and its warm-up";
            vec![words.to_owned()]
        }
    }
}
