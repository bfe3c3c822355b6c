//! What a span cost each process: processor time, switches, and instructions and cycles where the machine counts them.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

use crate::{process, raw};

const GONE: &str = "it is gone";

/// What one process used in a span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Which process.
    pub who: String,
    /// Processor time, user and system.
    pub cpu_s: f64,
    /// Times that a thread waited; null where the kernel does not tell.
    pub voluntary_switches: Option<u64>,
    /// Times that a thread's processor was taken away.
    pub involuntary_switches: Option<u64>,
    /// Instructions, user and kernel; null where the machine does not count them.
    pub instructions: Option<u64>,
    /// Cycles.
    pub cycles: Option<u64>,
}

/// A process that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// This one: the readers, and what they read from where that lives here.
    Own(String),
    /// Another one.
    Other(String, u32),
}

/// Watches processes for a span.
#[derive(Debug)]
pub struct Watch {
    processes: Vec<(Watched, Counts, Hard)>,
    busy: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    cpu: Duration,
    voluntary: Option<u64>,
    involuntary: Option<u64>,
}

/// Counters of the processor; none where they are not to be had.
#[derive(Debug, Default)]
struct Hard(Vec<(Counter, Counter)>);

impl Hard {
    fn of(watched: &Watched) -> Hard {
        let opened = match watched {
            Watched::Own(_) => counters(None).map(|both| vec![both]),
            // A counter follows one thread, and those that it starts later.
            Watched::Other(_, pid) => threads_of(*pid)
                .into_iter()
                .map(|thread| counters(Some(thread)))
                .collect(),
        };
        Hard(opened.unwrap_or_default())
    }

    fn read(mut self) -> (Option<u64>, Option<u64>) {
        if self.0.is_empty() {
            return (None, None);
        }
        let (mut instructions, mut cycles) = (Some(0u64), Some(0u64));
        for (one, other) in &mut self.0 {
            let add = |sum: Option<u64>, counter: &mut Counter| {
                Some(sum?.saturating_add(counter.read().ok()?))
            };
            instructions = add(instructions, one);
            cycles = add(cycles, other);
        }
        (instructions, cycles)
    }
}

fn counters(thread: Option<i32>) -> std::io::Result<(Counter, Counter)> {
    let open = |event: Hardware| {
        let mut builder = Builder::new(event);
        match thread {
            Some(thread) => builder.observe_pid(thread),
            None => builder.observe_self(),
        };
        let mut counter = builder
            .inherit(true)
            .include_kernel()
            .exclude_hv(true)
            .build()?;
        counter.enable()?;
        Ok::<_, std::io::Error>(counter)
    };
    Ok((open(Hardware::INSTRUCTIONS)?, open(Hardware::CPU_CYCLES)?))
}

/// Whether instructions and cycles are counted here, else why not.
pub fn hardware_counters() -> Result<(), String> {
    counters(None).map(drop).map_err(|error| {
        let why = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
                "this machine has no counters (a guest without them, mostly)"
            }
            Some(libc::EACCES | libc::EPERM) => {
                "not permitted: sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON"
            }
            Some(libc::ENOSYS) => {
                "the kernel, or a container's seccomp profile, has no perf_event_open"
            }
            _ => return error.to_string(),
        };
        format!("{why}: {error}")
    })
}

fn threads_of(pid: u32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let names = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Of a process's living threads: the kernel adds up none that have ended.
fn switches(pid: u32) -> (Option<u64>, Option<u64>) {
    let (mut voluntary, mut involuntary) = (None::<u64>, None::<u64>);
    for thread in threads_of(pid) {
        // It may just have ended.
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
        for line in status.unwrap_or_default().lines() {
            let number = |line: &str| line.trim().parse::<u64>().ok();
            if let Some(rest) = line.strip_prefix("voluntary_ctxt_switches:") {
                voluntary = Some(voluntary.unwrap_or(0) + number(rest).unwrap_or(0));
            }
            if let Some(rest) = line.strip_prefix("nonvoluntary_ctxt_switches:") {
                involuntary = Some(involuntary.unwrap_or(0) + number(rest).unwrap_or(0));
            }
        }
    }
    (voluntary, involuntary)
}

fn counts(watched: &Watched) -> Result<Counts> {
    match watched {
        Watched::Own(_) => {
            let usage = raw::own_usage();
            Ok(Counts {
                cpu: usage.cpu,
                voluntary: Some(usage.voluntary_switches),
                involuntary: Some(usage.involuntary_switches),
            })
        }
        Watched::Other(who, pid) => {
            let (voluntary, involuntary) = switches(*pid);
            let cpu = process::processor_time_exact(*pid);
            Ok(Counts {
                cpu: cpu.map_err(|error| error.context(format!("{who}: {GONE}")))?,
                voluntary,
                involuntary,
            })
        }
    }
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// When a process is gone.
    pub fn start(watched: &[Watched]) -> Result<Watch> {
        let hard: Vec<Hard> = watched.iter().map(Hard::of).collect();
        let before = watched.iter().map(counts).collect::<Result<Vec<_>>>()?;
        let busy = process::machine_busy()?;
        let processes = watched.iter().cloned().zip(before).zip(hard);
        Ok(Watch {
            processes: processes
                .map(|((who, before), hard)| (who, before, hard))
                .collect(),
            busy,
        })
    }

    /// What each used since, and what the whole machine did, other work included.
    ///
    /// # Errors
    /// When a process is gone.
    pub fn stop(self) -> Result<(Vec<Cost>, Duration)> {
        let busy = process::machine_busy()?.saturating_sub(self.busy);
        let mut costs = Vec::new();
        for (watched, before, hard) in self.processes {
            let now = counts(&watched)?;
            let (instructions, cycles) = hard.read();
            // Switches of threads that ended meanwhile are gone.
            let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
            let (Watched::Own(who) | Watched::Other(who, _)) = watched;
            costs.push(Cost {
                who,
                cpu_s: now.cpu.saturating_sub(before.cpu).as_secs_f64(),
                voluntary_switches: since(now.voluntary, before.voluntary),
                involuntary_switches: since(now.involuntary, before.involuntary),
                instructions,
                cycles,
            });
        }
        Ok((costs, busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    #[test]
    fn each_process_pays_for_itself() -> Result<()> {
        let child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()?;
        let child = crate::network::Killed(child);
        let watch = Watch::start(&[
            Watched::Own("here".to_owned()),
            Watched::Other("there".to_owned(), child.0.id()),
        ])?;
        let start = Instant::now();
        let busy = loop {
            std::thread::sleep(Duration::from_millis(50));
            let busy = process::processor_time_exact(child.0.id())?;
            if busy > Duration::from_millis(200) || start.elapsed() > Duration::from_secs(20) {
                break busy;
            }
        };
        let (costs, machine) = watch.stop()?;
        assert_eq!(
            (costs[0].who.as_str(), costs[1].who.as_str()),
            ("here", "there")
        );
        assert!(
            costs[1].cpu_s > 0.1 && costs[1].cpu_s > costs[0].cpu_s,
            "{costs:?} {busy:?}"
        );
        assert!(costs[0].voluntary_switches > Some(0), "{costs:?}");
        assert!(machine >= Duration::from_millis(100), "{machine:?}");
        match hardware_counters() {
            Ok(()) => assert!(costs[1].instructions > Some(1_000), "{costs:?}"),
            Err(why) => assert!(!why.is_empty() && costs[0].instructions.is_none()),
        }
        let pid = child.0.id();
        drop(child);
        assert!(Watch::start(&[Watched::Other("there".to_owned(), pid)]).is_err());
        Ok(())
    }
}
