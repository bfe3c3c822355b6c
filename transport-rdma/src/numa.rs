//! Which part of a machine's memory (NUMA node) a device and a thread are near to, as Linux tells in `/sys`.

use std::fs;
use std::ops::RangeInclusive;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The node of an RDMA device; none on a machine with one node, or where the firmware does not say.
pub(crate) fn of_device(device: &str) -> Option<u32> {
    let path = format!("/sys/class/infiniband/{device}/device/numa_node");
    // -1 where it is not known.
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The node of all processors that the calling thread may run on; none when they are of several.
pub(crate) fn of_this_thread() -> Option<u32> {
    let allowed = sched_getaffinity(None).ok()?;
    let nodes = fs::read_dir("/sys/devices/system/node").ok()?;
    nodes.flatten().find_map(|entry| {
        let node = entry.file_name().to_str()?.strip_prefix("node")?.parse();
        let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        node.ok().filter(|_: &u32| has_all(&allowed, &list))
    })
}

/// Whether a list such as `0-3,8-11` has all processors of a set.
fn has_all(allowed: &CpuSet, list: &str) -> bool {
    let ranges: Vec<_> = list.trim().split(',').filter_map(range).collect();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    allowed.count() > 0 && cpus.all(|cpu| ranges.iter().any(|range| range.contains(&cpu)))
}

fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_near_to_the_node_that_has_all_of_its_processors() {
        let mut allowed = CpuSet::new();
        assert!(!has_all(&allowed, "0-3"), "none are near to nothing");
        allowed.set(2);
        allowed.set(9);
        assert!(has_all(&allowed, "0-3,8-11\n"));
        assert!(has_all(&allowed, "2,9"));
        for list in ["0-3", "8-11", "", "2-", "x"] {
            assert!(!has_all(&allowed, list), "{list}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_near_to_nothing() {
        assert_eq!(of_device("no-such-device"), None);
    }
}
