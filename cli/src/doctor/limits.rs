//! Open files and locked memory.

use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use super::machine::Files;
use crate::units::Bytes;

const AREA: &str = "limits";
/// Enough for the connections of a group of a thousand members.
const OPEN_FILES: u64 = 65_536;
/// Number of CAP_IPC_LOCK, which lifts the limit on locked memory.
const IPC_LOCK: u32 = 14;
/// What raises the limit on locked memory, where members run.
const RAISE: &str = "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity (systemd), `memlock unlimited` in \
                     /etc/security/limits.conf, PropagateResourceLimitsExcept=MEMLOCK (Slurm), or the capability IPC_LOCK \
                     (containers)";

/// The limits of this process, which daemons started from here inherit; none is no limit. `rdma_devices` is how many a node
/// would register its memory with.
pub fn look(files: &Files, memory_bytes: u64, rdma_devices: usize) -> Vec<Finding> {
    let hard = getrlimit(Resource::Nofile).maximum;
    let locked = match is_free_to_lock(files) {
        true => None,
        false => getrlimit(Resource::Memlock).current,
    };
    vec![
        open_files(hard),
        locked_memory(locked, memory_bytes, rdma_devices),
    ]
}

fn is_free_to_lock(files: &Files) -> bool {
    let status = files.text("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> IPC_LOCK & 1 == 1)
}

fn open_files(hard: Option<u64>) -> Finding {
    const OBJECT: &str = "open files";
    match hard {
        Some(hard) if hard < OPEN_FILES => Finding::warning(
            AREA,
            OBJECT,
            format!("at most {hard}"),
            format!(
                "raise the hard limit to {OPEN_FILES} (LimitNOFILE=, /etc/security/limits.conf): each core of a member holds \
                 connections to each other member"
            ),
        ),
        Some(hard) => Finding::ok(AREA, OBJECT, format!("at most {hard}")),
        None => Finding::ok(AREA, OBJECT, "no limit"),
    }
}

fn locked_memory(limit: Option<u64>, memory_bytes: u64, rdma_devices: usize) -> Finding {
    const OBJECT: &str = "locked memory";
    let Some(limit) = limit else {
        return Finding::ok(AREA, OBJECT, "no limit");
    };
    let mut found = format!("{} for --memory {}", Bytes(limit), Bytes(memory_bytes));
    if rdma_devices > 1 {
        found += &format!(", which counts for each of {rdma_devices} RDMA devices");
    }
    // The kernel counts the same pages once for each device.
    let needed_bytes = memory_bytes.saturating_mul(rdma_devices.max(1) as u64);
    match (limit >= needed_bytes, rdma_devices > 0) {
        (true, _) => Finding::ok(AREA, OBJECT, found),
        (false, true) => Finding::problem(
            AREA,
            OBJECT,
            format!(
                "{found}: its buffers cannot be registered for RDMA, and disks are read with more work"
            ),
            RAISE,
        ),
        (false, false) => Finding::warning(
            AREA,
            OBJECT,
            format!(
                "{found}: buffers are not registered with io_uring, each disk read costs a little more"
            ),
            RAISE,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn limits_are_held_against_what_is_needed() {
        assert_eq!(open_files(Some(1024)).verdict, Verdict::Warning);
        assert_eq!(open_files(Some(1 << 20)).verdict, Verdict::Ok);
        assert_eq!(open_files(None).verdict, Verdict::Ok);
        let locked = |limit, rdma| locked_memory(limit, 1 << 30, usize::from(rdma)).verdict;
        assert_eq!(locked(Some(8 << 20), false), Verdict::Warning);
        assert_eq!(locked(Some(8 << 20), true), Verdict::Problem);
        assert_eq!(locked(Some(1 << 30), true), Verdict::Ok);
        assert_eq!(locked(None, true), Verdict::Ok);
        // Each device counts the same memory.
        let found = locked_memory(Some(1 << 30), 1 << 30, 2);
        assert_eq!(found.verdict, Verdict::Problem);
        assert!(found.found.contains("each of 2"), "{}", found.found);
        assert_eq!(
            locked_memory(Some(2 << 30), 1 << 30, 2).verdict,
            Verdict::Ok
        );
    }

    #[test]
    fn a_capability_lifts_the_limit_on_locked_memory() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::below(dir.path());
        assert!(!is_free_to_lock(&files));
        std::fs::create_dir_all(files.path("/proc/self")).unwrap();
        for (bits, free) in [("0000000000004000", true), ("0000000000003fff", false)] {
            let text = format!("Name:\tx\nCapEff:\t{bits}\n");
            std::fs::write(files.path("/proc/self/status"), text).unwrap();
            assert_eq!(is_free_to_lock(&files), free);
        }
    }
}
