//! iperf3 and ucx_perftest as sides of `transport:via=tcp`.

use std::time::Duration;

use anyhow::Result;

use super::Peer;
use crate::counters::Cost;
use crate::network::ucx::Test;
use crate::network::{iperf3, ucx};
use crate::outcome::Span;
use crate::process;
use crate::scenario::Scenario;
use crate::side::{Side, Turn};
use crate::turns::Measured;

/// Gets before it is known how many a second there are.
const FIRST_GETS: u64 = 2_000;

fn span(who: &str, done: &Measured, busy: Duration) -> Result<Span> {
    Ok(Span {
        operations: done.ios,
        bytes: done.bytes,
        elapsed_s: done.elapsed.as_secs_f64(),
        offered_per_s: None,
        unfinished: 0,
        first_byte_us: None,
        latency: None,
        costs: vec![Cost {
            who: who.to_owned(),
            cpu_s: done.cpu.as_secs_f64(),
            voluntary_switches: None,
            involuntary_switches: None,
            instructions: None,
            cycles: None,
        }],
        machine_busy_s: process::machine_busy()?.saturating_sub(busy).as_secs_f64(),
    })
}

/// One stream, which nobody asks for.
#[derive(Debug)]
pub struct Iperf3 {
    block_bytes: usize,
}

impl Iperf3 {
    /// In writes of the scenario's blocks.
    pub fn new(scenario: &Scenario) -> Iperf3 {
        Iperf3 {
            block_bytes: scenario.size("block") as usize,
        }
    }
}

impl Side for Iperf3 {
    fn name(&self) -> &str {
        "iperf3"
    }

    fn version(&self) -> String {
        format!("{} (one stream, without -Z)", Peer::Iperf3.version())
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn warm(&mut self, _: &Turn) -> Result<()> {
        Ok(())
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let busy = process::machine_busy()?;
        let done = iperf3::run(self.block_bytes, turn.span)?;
        span("iperf3, both ends", &done, busy)
    }

    fn clean(&mut self) -> Result<()> {
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let words = "iperf3 sends without being asked and checks nothing: its operations are writes of a block; it runs for whole seconds";
        vec![words.to_owned()]
    }
}

/// Gets, each asked for as ours.
#[derive(Debug)]
pub struct Ucx {
    block_bytes: usize,
    depth: usize,
    per_s: f64,
}

impl Ucx {
    /// Of the scenario's blocks and depth.
    pub fn new(scenario: &Scenario) -> Ucx {
        Ucx {
            block_bytes: scenario.size("block") as usize,
            depth: scenario.count("depth") as usize,
            per_s: FIRST_GETS as f64,
        }
    }

    fn run(&mut self, count: u64) -> Result<Measured> {
        let done = ucx::run(Test::Gets, self.block_bytes, self.depth, count)?;
        self.per_s = done.iops();
        Ok(done)
    }
}

impl Side for Ucx {
    fn name(&self) -> &str {
        "ucx"
    }

    fn version(&self) -> String {
        match ucx::version() {
            Ok(version) => format!("{version} (ucx_perftest ucp_get, TCP)"),
            Err(_) => "ucx_perftest".to_owned(),
        }
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn warm(&mut self, _: &Turn) -> Result<()> {
        self.run(FIRST_GETS).map(drop)
    }

    fn span(&mut self, turn: &Turn) -> Result<Span> {
        let busy = process::machine_busy()?;
        // It counts gets instead of looking at the clock.
        let count = (self.per_s * turn.span.as_secs_f64()).max(100.0) as u64;
        let done = self.run(count)?;
        span("ucx_perftest, both ends", &done, busy)
    }

    fn clean(&mut self) -> Result<()> {
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let words = "ucx_perftest's processor time has its start and warm-up in it";
        vec![words.to_owned()]
    }
}
