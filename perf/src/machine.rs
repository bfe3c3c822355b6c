//! The machine that was measured: what a reader of a result needs to judge it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::counters;

/// As far as the system tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Nodes of memory (NUMA).
    pub memory_nodes: usize,
    /// How clock rates are chosen; null where nothing says so, as in most guests.
    pub governor: Option<String>,
    /// `kvm`, `container`, ...; null on bare metal, as far as can be seen.
    pub virtualised: Option<String>,
    /// Linux and its release.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// All memory.
    pub memory_bytes: u64,
    /// Reserved huge pages.
    pub huge_pages: u64,
    /// Whether instructions and cycles are counted: `yes`, or why not.
    pub hardware_counters: String,
    /// The disk where files were made.
    pub disk: Disk,
}

/// What files lie on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// The directory.
    pub directory: String,
    /// The file system's kind.
    pub file_system: String,
    /// The device's name; null when the file system is on none.
    pub device: Option<String>,
    /// What it calls itself.
    pub model: Option<String>,
    /// The kernel's scheduler of it.
    pub scheduler: Option<String>,
    /// Whether it turns.
    pub rotational: Option<bool>,
}

impl Machine {
    /// Looks at this one; files lie in `dir`.
    pub fn here(dir: &Path) -> Machine {
        let info = read("/proc/cpuinfo").unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let os = read("/etc/os-release").unwrap_or_default();
        let memory = read("/proc/meminfo").unwrap_or_default();
        let number = |name: &str| {
            let found = after(&memory, name)?;
            found.split_whitespace().next()?.parse::<u64>().ok()
        };
        Machine {
            processor: after(&info, "model name")
                .or_else(|| after(&info, "CPU part"))
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: std::thread::available_parallelism().map_or(0, |n| n.get()),
            memory_nodes: nodes(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtualised: virtualised(&info),
            kernel: format!("Linux {kernel}"),
            system: after(&os, "PRETTY_NAME")
                .map(|name| name.trim_matches('"').to_owned())
                .unwrap_or_else(|| "unknown".to_owned()),
            memory_bytes: number("MemTotal").unwrap_or(0) * 1024,
            huge_pages: number("HugePages_Total").unwrap_or(0),
            hardware_counters: match counters::hardware_counters() {
                Ok(()) => "yes".to_owned(),
                Err(why) => format!("not available here: {why}"),
            },
            disk: Disk::of(dir),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = self.memory_bytes as f64 / (1u64 << 30) as f64;
        write!(
            f,
            "{} x {}, {gib:.0} GiB, {}, {}",
            self.processors, self.processor, self.kernel, self.system
        )?;
        match &self.virtualised {
            Some(how) => write!(f, ", virtualised ({how})")?,
            None => write!(f, ", not virtualised as far as can be seen")?,
        }
        if let Some(governor) = &self.governor {
            write!(f, ", governor {governor}")?;
        }
        let disk = &self.disk;
        write!(f, "; files on {}", disk.file_system)?;
        if let Some(device) = &disk.device {
            write!(f, " on {device}")?;
        }
        match &disk.model {
            Some(model) => write!(f, " ({model})"),
            None => Ok(()),
        }
    }
}

impl Disk {
    fn of(dir: &Path) -> Disk {
        // What does not exist yet will lie where its parent does.
        let there = dir.ancestors().find(|path| path.exists());
        let stat = there.and_then(|path| rustix::fs::stat(path).ok());
        let device = stat.and_then(|stat| {
            let (major, minor) = (
                rustix::fs::major(stat.st_dev),
                rustix::fs::minor(stat.st_dev),
            );
            fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
        });
        // A partition lies in its disk's directory.
        let whole = device
            .as_deref()
            .map(|device| match device.join("partition").exists() {
                true => device.parent().map(Path::to_path_buf).unwrap_or_default(),
                false => device.to_path_buf(),
            });
        let of_whole = |name: &str| read(&whole.as_ref()?.join(name).display().to_string());
        let name = |path: &PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
        Disk {
            directory: dir.display().to_string(),
            file_system: there
                .and_then(|path| rustix::fs::statfs(path).ok())
                .map_or_else(|| "unknown".to_owned(), |told| kind(told.f_type as u32)),
            device: device.as_ref().and_then(name),
            model: of_whole("device/model"),
            scheduler: of_whole("queue/scheduler"),
            rotational: of_whole("queue/rotational").map(|flag| flag == "1"),
        }
    }
}

/// Magic numbers of statfs(2).
fn kind(magic: u32) -> String {
    let name = match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x794c_7630 => "overlayfs",
        0x0102_1994 => "tmpfs",
        0x2fc1_2fc1 => "zfs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        _ => return format!("file system {magic:#x}"),
    };
    name.to_owned()
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// What stands behind `name` and a colon or an equals sign, in the first such line.
fn after(text: &str, name: &str) -> Option<String> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let value = rest.trim_start().strip_prefix([':', '='])?.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

fn nodes() -> usize {
    let entries = fs::read_dir("/sys/devices/system/node");
    let names = entries.into_iter().flatten().flatten();
    let nodes = names.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("node");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    nodes.count().max(1)
}

fn virtualised(cpuinfo: &str) -> Option<String> {
    let mut ways = Vec::new();
    if Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists() {
        ways.push("container".to_owned());
    }
    let flags = after(cpuinfo, "flags").unwrap_or_default();
    if flags.split_whitespace().any(|flag| flag == "hypervisor") {
        let vendor = read("/sys/class/dmi/id/sys_vendor");
        ways.push(vendor.map_or_else(|| "guest".to_owned(), |vendor| format!("guest of {vendor}")));
    }
    (!ways.is_empty()).then(|| ways.join(" in a "))
}

/// A time as people write it: `2026-12-01 03:22 UTC`.
pub(crate) fn utc(unix_s: u64) -> String {
    let (days, rest) = ((unix_s / 86_400) as i64, unix_s % 86_400);
    // Years that begin in March, so that a leap day is the last of its year; eras of 400 years are alike.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = match month {
        0..=9 => (month + 3, 0),
        _ => (month - 9, 1),
    };
    let year = era * 400 + year + next;
    let (hour, minute) = (rest / 3_600, rest / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let here = Machine::here(&std::env::temp_dir().join("not-there-yet"));
        assert!(here.processors > 0 && here.memory_bytes > 1 << 20);
        assert!(here.kernel.starts_with("Linux ") && here.kernel.len() > 8);
        assert!(!here.processor.is_empty() && here.memory_nodes > 0);
        let known = here.hardware_counters == "yes";
        assert!(known || here.hardware_counters.starts_with("not available here: "));
        let shown = here.to_string();
        assert!(
            shown.contains(&here.processor) && shown.contains("; files on "),
            "{shown}"
        );
    }

    #[test]
    fn lines_of_proc_are_read() {
        let info = "model name\t: Xeon @ 2 GHz\nflags\t\t: fpu hypervisor sse\nempty:\n";
        assert_eq!(after(info, "model name").as_deref(), Some("Xeon @ 2 GHz"));
        assert_eq!(after(info, "empty"), None);
        assert_eq!(
            after("PRETTY_NAME=\"Debian\"", "PRETTY_NAME").as_deref(),
            Some("\"Debian\"")
        );
        let how = virtualised("flags : fpu hypervisor\n").unwrap_or_default();
        assert!(how.contains("guest"), "{how}");
        assert_eq!(
            virtualised("flags : fpu sse\n").filter(|how| how != "container"),
            None
        );
    }

    #[test]
    fn times_are_written_as_dates() {
        for (unix_s, wanted) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_767_225_600, "2026-01-01 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(unix_s), wanted);
        }
    }
}
