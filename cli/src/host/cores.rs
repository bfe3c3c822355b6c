//! Which CPUs engine cores run on, and whether they may spin there.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use forebay_engine::limits::CORES_MAX;

use super::cgroup::CgroupLimits;

/// How long a core spins without progress before it parks.
pub const SPIN_US: u64 = 50;
/// One engine core for so many CPUs, when `--cores` is not given.
pub const CPUS_PER_CORE: usize = 8;
/// At most so many engine cores when `--cores` is not given.
pub const CORES_DEFAULT_MAX: usize = 4;

/// `--cores`: a number, or a list of CPUs such as `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoresArg {
    /// So many, on CPUs that are chosen.
    Count(usize),
    /// One on each of these CPUs; sorted, each once.
    List(Vec<usize>),
}

impl FromStr for CoresArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HINT: &str = "give a number of cores (`2`) or a list of CPUs (`0,2-3`, `5,`)";
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .map_err(|_| format!("`{text}` is no number: {HINT}"))
        };
        if !text.contains([',', '-']) {
            return match number(text)? {
                0 => Err(format!("at least one core is needed: {HINT}")),
                n if n > CORES_MAX => Err(format!("at most {CORES_MAX} cores are supported")),
                n => Ok(CoresArg::Count(n)),
            };
        }
        let mut cpus = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(format!("`{part}` runs backwards: {HINT}"));
            }
            if last - first >= CORES_MAX {
                return Err(format!("at most {CORES_MAX} cores are supported"));
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        match cpus.len() {
            0 => Err(format!("the list is empty: {HINT}")),
            n if n > CORES_MAX => Err(format!("at most {CORES_MAX} cores are supported")),
            _ => Ok(CoresArg::List(cpus)),
        }
    }
}

impl fmt::Display for CoresArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoresArg::Count(n) => write!(f, "{n}"),
            CoresArg::List(cpus) => {
                let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
                write!(f, "{},", cpus.join(","))
            }
        }
    }
}

/// `--poll`: when an idle core may spin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Poll {
    /// Up to 50 us after the last work, then park; park at once under a CPU quota, or when no
    /// CPU would be left that does not spin.
    #[default]
    Auto,
    /// Always: for those who dedicate CPUs to the engine's cores.
    Always,
}

/// When a core's thread stops spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// After so long without progress; zero: never spins.
    For(Duration),
    /// Never.
    Forever,
}

impl Spin {
    /// Whether it does at all.
    pub fn spins(self) -> bool {
        self != Self::For(Duration::ZERO)
    }
}

/// What the machine offers to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs of the affinity mask, sorted.
    pub cpus: Vec<usize>,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// What control groups leave of both.
    pub cgroup: CgroupLimits,
}

impl Machine {
    /// Looks at the machine. Call it before any thread is pinned.
    ///
    /// # Errors
    /// When the affinity mask cannot be read.
    pub fn read() -> Result<Self> {
        let ids =
            core_affinity::get_core_ids().context("cannot read this process's CPU affinity")?;
        let mut cpus: Vec<usize> = ids.into_iter().map(|core| core.id).collect();
        cpus.sort_unstable();
        let info = rustix::system::sysinfo();
        let memory_bytes = info.totalram as u64 * u64::from(info.mem_unit.max(1));
        Ok(Self {
            cpus,
            memory_bytes,
            cgroup: CgroupLimits::read(),
        })
    }

    /// CPUs that this process can keep busy: its mask's, or fewer under a quota. At least one.
    pub fn usable_cpus(&self) -> usize {
        let quota = self
            .cgroup
            .cpu_millis
            .map_or(usize::MAX, |millis| millis.div_ceil(1000) as usize);
        self.cpus.len().min(quota).max(1)
    }

    /// Memory of the machine or of the process's control group, whichever is less.
    pub fn usable_memory_bytes(&self) -> u64 {
        self.memory_bytes
            .min(self.cgroup.memory_bytes.unwrap_or(u64::MAX))
    }
}

/// Where engine cores run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePlan {
    /// One for each core, in order: the CPU that it is pinned to, or none.
    pub cpus: Vec<Option<usize>>,
    /// How long each spins.
    pub spin: Spin,
}

impl CorePlan {
    /// Chooses. Without `--cores`: one core for 8 usable CPUs, at least 1 and at most 4, so that
    /// the job keeps the rest. A number takes the mask's last CPUs (interrupts and single-threaded
    /// work gather on the first); beyond one for each CPU, cores stay unpinned.
    ///
    /// # Errors
    /// When a listed CPU is not available to this process.
    pub fn new(cores: Option<&CoresArg>, poll: Poll, machine: &Machine) -> Result<Self> {
        let cpus = match cores {
            None => last_cpus(default_cores(machine), machine),
            Some(CoresArg::Count(n)) => last_cpus(*n, machine),
            Some(CoresArg::List(cpus)) => {
                if let Some(cpu) = cpus.iter().find(|cpu| !machine.cpus.contains(cpu)) {
                    bail!(
                        "--cores names CPU {cpu}, which is not available to this process; \
                         available are {}: choose among those, or widen the process's CPU set",
                        ranges(&machine.cpus)
                    );
                }
                cpus.iter().copied().map(Some).collect()
            }
        };
        let spin = match poll {
            Poll::Always => Spin::Forever,
            Poll::Auto if may_spin(cpus.len(), machine) => {
                Spin::For(Duration::from_micros(SPIN_US))
            }
            Poll::Auto => Spin::For(Duration::ZERO),
        };
        Ok(Self { cpus, spin })
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        self.cpus.len()
    }
}

/// Cores when `--cores` is not given.
pub fn default_cores(machine: &Machine) -> usize {
    (machine.usable_cpus() / CPUS_PER_CORE).clamp(1, CORES_DEFAULT_MAX)
}

/// Spinning under a quota burns time that the work would need; spinning on every CPU takes it
/// from whoever would bring work.
fn may_spin(cores: usize, machine: &Machine) -> bool {
    machine.cgroup.cpu_millis.is_none() && cores < machine.cpus.len()
}

fn last_cpus(cores: usize, machine: &Machine) -> Vec<Option<usize>> {
    if cores > machine.cpus.len() {
        return vec![None; cores];
    }
    machine.cpus[machine.cpus.len() - cores..]
        .iter()
        .copied()
        .map(Some)
        .collect()
}

/// `0-3,8` for people.
fn ranges(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpus: usize) -> Machine {
        Machine {
            cpus: (0..cpus).collect(),
            memory_bytes: 1 << 34,
            cgroup: CgroupLimits::default(),
        }
    }

    #[test]
    fn numbers_and_lists_parse() {
        assert_eq!("2".parse(), Ok(CoresArg::Count(2)));
        assert_eq!("0,2-3".parse(), Ok(CoresArg::List(vec![0, 2, 3])));
        assert_eq!("5,".parse(), Ok(CoresArg::List(vec![5])));
        assert_eq!("3-3,1,3".parse(), Ok(CoresArg::List(vec![1, 3])));
        for cores in ["7", "1,2,9,"] {
            let parsed: CoresArg = cores.parse().unwrap();
            assert_eq!(parsed.to_string(), cores);
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        for text in [
            "",
            "0",
            "x",
            "1-",
            "3-1",
            ",",
            "-",
            "1,x",
            "0-99999",
            "257",
            "18446744073709551616",
        ] {
            let error = text.parse::<CoresArg>().unwrap_err();
            assert!(error.len() > 20, "{text}: {error}");
        }
    }

    #[test]
    fn the_default_leaves_room_for_the_job() {
        let cores = |cpus| default_cores(&machine(cpus));
        assert_eq!([1, 2, 8, 16, 31, 32, 256].map(cores), [1, 1, 1, 2, 3, 4, 4]);
        let mut limited = machine(64);
        limited.cgroup.cpu_millis = Some(16_500);
        assert_eq!(default_cores(&limited), 2);
        limited.cgroup.cpu_millis = Some(100);
        assert_eq!((default_cores(&limited), limited.usable_cpus()), (1, 1));
    }

    #[test]
    fn a_number_takes_the_last_cpus_and_too_many_stay_unpinned() {
        let plan = |cores: &str, cpus| {
            CorePlan::new(Some(&cores.parse().unwrap()), Poll::Auto, &machine(cpus)).unwrap()
        };
        assert_eq!(plan("2", 8).cpus, [Some(6), Some(7)]);
        assert_eq!(plan("3", 2).cpus, [None; 3]);
        assert_eq!(plan("1,", 2).cpus, [Some(1)]);
    }

    #[test]
    fn a_cpu_that_is_not_available_is_named_with_those_that_are() {
        let mut machine = machine(4);
        machine.cpus = vec![0, 1, 2, 6];
        let cores = "1,4".parse().unwrap();
        let error = CorePlan::new(Some(&cores), Poll::Auto, &machine)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("CPU 4") && error.contains("0-2,6"),
            "{error}"
        );
    }

    #[test]
    fn nobody_spins_on_the_last_cpu_or_under_a_quota() {
        let spin = |cores: &str, poll, machine: &Machine| {
            CorePlan::new(Some(&cores.parse().unwrap()), poll, machine)
                .unwrap()
                .spin
        };
        let brief = Spin::For(Duration::from_micros(SPIN_US));
        assert_eq!(spin("1", Poll::Auto, &machine(2)), brief);
        assert_eq!(
            spin("2", Poll::Auto, &machine(2)),
            Spin::For(Duration::ZERO)
        );
        assert_eq!(spin("2", Poll::Always, &machine(2)), Spin::Forever);
        let mut limited = machine(8);
        limited.cgroup.cpu_millis = Some(4_000);
        assert_eq!(spin("1", Poll::Auto, &limited), Spin::For(Duration::ZERO));
        assert!(!spin("1", Poll::Auto, &limited).spins());
        assert!(brief.spins() && Spin::Forever.spins());
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = Machine::read().unwrap();
        assert!(!machine.cpus.is_empty() && machine.memory_bytes > 1 << 20);
    }
}
