//! How `--memory` is divided.
//!
//! | part | without a disk | with disks |
//! |---|---|---|
//! | origin's buffers | 1/8, from 4 to 64 MiB | the same |
//! | index of the disk tier | - | 1/16: 64 bytes for each entry |
//! | checksum tables of the disk tier | - | 1/32 |
//! | index and checksums of the memory tier | 1/16 of the rest | the same |
//! | arenas, in whole MiB for each core | what is left | the same |

use anyhow::{Result, bail};
use forebay_engine::limits::{ARENA_BYTES_MIN, CHUNK_BYTES, DISK_ENTRY_BYTES, INDEX_SHARE};

use super::cores::Machine;
use crate::units::Bytes;

/// The default of `--memory` lies between these.
const DEFAULT_MIN_BYTES: u64 = 256 << 20;
const DEFAULT_MAX_BYTES: u64 = 8 << 30;
/// The default of `--memory` is one part in this many of the machine's (or control group's).
const DEFAULT_SHARE: u64 = 10;
/// The origin's buffers may take one part in this many of `--memory`, within the bounds below.
const ORIGIN_SHARE: u64 = 8;
const ORIGIN_MIN_BYTES: u64 = 4 << 20;
const ORIGIN_MAX_BYTES: u64 = 64 << 20;
/// One GET's share of the origin's buffers: what its connection holds of a body on its way.
const GET_BUFFERS_BYTES: u64 = 512 << 10;
/// With disks, their index takes one part in this many of `--memory`.
const DISK_INDEX_SHARE: u64 = 16;
/// With disks, checksum tables take one part in this many of `--memory`.
const DISK_TABLES_SHARE: u64 = 32;
/// GETs under way at a time lie between these whatever the origin's buffers are.
const GETS_MIN: u64 = 8;
const GETS_MAX: u64 = 128;

/// What `--memory` is spent on. The parts add up to at most `total_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The ceiling over everything.
    pub total_bytes: u64,
    /// Each core's arena, whole chunks.
    pub arena_bytes_per_core: usize,
    /// Index and checksums of all cores.
    pub index_bytes: u64,
    /// Buffers of the origin's connections.
    pub origin_bytes: u64,
    /// The disk tier's index of all cores; 0 without a disk.
    pub disk_index_bytes: u64,
    /// Cached checksum tables of all cores; 0 without a disk.
    pub disk_tables_bytes: u64,
}

/// `--memory` when it is not given: a tenth of the machine's or the control group's memory, at
/// least 256 MiB and at most 8 GiB.
pub fn default_memory_bytes(machine: &Machine) -> u64 {
    (machine.usable_memory_bytes() / DEFAULT_SHARE).clamp(DEFAULT_MIN_BYTES, DEFAULT_MAX_BYTES)
}

impl MemoryPlan {
    /// Divides `total_bytes` among `cores` cores, with or without disks, as the table at the head of this
    /// module says.
    ///
    /// # Errors
    /// When a core would get less than the engine can work with.
    pub fn new(total_bytes: u64, cores: usize, disks: bool) -> Result<Self> {
        let plan = Self::divide(total_bytes, cores.max(1), disks);
        if plan.arena_bytes_per_core < ARENA_BYTES_MIN {
            bail!(
                "--memory {} leaves {} for each of {cores} engine cores, and a core needs {}: \
                 give --memory at least {}, or fewer --cores",
                Bytes(total_bytes),
                Bytes(plan.arena_bytes_per_core as u64),
                Bytes(ARENA_BYTES_MIN as u64),
                Bytes(smallest_bytes(cores.max(1), disks)),
            );
        }
        Ok(plan)
    }

    /// Entries that the disk index of one core may hold.
    pub fn disk_entries_per_core(&self, cores: usize) -> usize {
        let entries = self.disk_index_bytes / cores.max(1) as u64 / DISK_ENTRY_BYTES as u64;
        usize::try_from(entries).unwrap_or(usize::MAX)
    }

    /// Checksum tables that one core may cache.
    pub fn disk_tables_bytes_per_core(&self, cores: usize) -> usize {
        usize::try_from(self.disk_tables_bytes / cores.max(1) as u64).unwrap_or(usize::MAX)
    }

    /// GETs that the origin may have under way at a time, over all cores, so that their buffers
    /// stay within [`Self::origin_bytes`].
    pub fn gets_max(&self) -> usize {
        (self.origin_bytes / GET_BUFFERS_BYTES).clamp(GETS_MIN, GETS_MAX) as usize
    }

    fn divide(total_bytes: u64, cores: usize, disks: bool) -> Self {
        let origin_bytes = (total_bytes / ORIGIN_SHARE).clamp(ORIGIN_MIN_BYTES, ORIGIN_MAX_BYTES);
        let of_disks = |share| if disks { total_bytes / share } else { 0 };
        let disk_index_bytes = of_disks(DISK_INDEX_SHARE);
        let disk_tables_bytes = of_disks(DISK_TABLES_SHARE);
        let rest = total_bytes
            .saturating_sub(origin_bytes)
            .saturating_sub(disk_index_bytes + disk_tables_bytes);
        let index_bytes = rest / INDEX_SHARE as u64;
        let chunks = (rest - index_bytes) / CHUNK_BYTES as u64 / cores as u64;
        let arena_bytes_per_core = usize::try_from(chunks)
            .unwrap_or(0)
            .saturating_mul(CHUNK_BYTES);
        Self {
            total_bytes,
            arena_bytes_per_core,
            index_bytes,
            origin_bytes,
            disk_index_bytes,
            disk_tables_bytes,
        }
    }
}

/// The smallest `--memory`, in whole MiB, that gives each core enough.
fn smallest_bytes(cores: usize, disks: bool) -> u64 {
    let mut total = (cores * ARENA_BYTES_MIN) as u64;
    while MemoryPlan::divide(total, cores, disks).arena_bytes_per_core < ARENA_BYTES_MIN {
        total += 1 << 20;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::CgroupLimits;
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_parts_stay_within_the_whole() {
        for mib in [64, 100, 256, 1000, 4096, 65_536, 1 << 20] {
            for (cores, disks) in [1, 2, 3, 7]
                .into_iter()
                .flat_map(|n| [(n, true), (n, false)])
            {
                let Ok(plan) = MemoryPlan::new(mib * MIB, cores, disks) else {
                    continue;
                };
                let arenas = plan.arena_bytes_per_core as u64 * cores as u64;
                let of_disks = plan.disk_index_bytes + plan.disk_tables_bytes;
                let parts = arenas + plan.index_bytes + plan.origin_bytes + of_disks;
                // What is missing is less than a chunk of each core's.
                assert!(parts <= mib * MIB && parts + (cores as u64 + 1) * MIB > mib * MIB);
                assert!(
                    arenas >= mib * MIB / 2,
                    "{mib} MiB, {cores} cores: only {arenas} in arenas"
                );
            }
        }
    }

    #[test]
    fn disks_get_their_share_of_the_whole() {
        let plan = MemoryPlan::new(1024 * MIB, 2, true).unwrap();
        assert_eq!(plan.disk_index_bytes, 64 * MIB);
        assert_eq!(plan.disk_tables_bytes, 32 * MIB);
        assert_eq!(plan.disk_entries_per_core(2), 512 << 10);
        assert_eq!(plan.disk_tables_bytes_per_core(2), 16 << 20);
        let without = MemoryPlan::new(1024 * MIB, 2, false).unwrap();
        assert_eq!(without.disk_entries_per_core(2), 0);
        assert!(without.arena_bytes_per_core > plan.arena_bytes_per_core);
    }

    #[test]
    fn gets_fit_into_the_origins_buffers() {
        for (mib, gets) in [(40, 10), (128, 32), (512, 128), (65_536, 128)] {
            assert_eq!(
                MemoryPlan::new(mib * MIB, 1, false).unwrap().gets_max(),
                gets
            );
        }
        assert_eq!(MemoryPlan::divide(0, 1, true).gets_max(), 8);
    }

    #[test]
    fn too_little_says_how_much_is_enough() {
        let error = MemoryPlan::new(20 * MIB, 2, false).unwrap_err().to_string();
        assert!(
            error.contains("20 MiB") && error.contains("2 engine cores"),
            "{error}"
        );
        let enough = smallest_bytes(2, false);
        assert!(error.contains(&Bytes(enough).to_string()), "{error}");
        assert!(MemoryPlan::new(enough, 2, false).is_ok());
        assert!(MemoryPlan::new(enough - MIB, 2, false).is_err());
        assert!(MemoryPlan::new(enough, 2, true).is_err());
        assert!(MemoryPlan::new(0, 1, true).is_err());
        assert!(MemoryPlan::new(u64::MAX, 1, true).is_ok());
    }

    #[test]
    fn the_default_follows_the_machine_and_its_control_group() {
        let machine = |gib: u64, cgroup_mib: Option<u64>| Machine {
            cpus: vec![0],
            memory_bytes: gib << 30,
            cgroup: CgroupLimits {
                cpu_millis: None,
                memory_bytes: cgroup_mib.map(|mib| mib * MIB),
            },
        };
        assert_eq!(default_memory_bytes(&machine(1, None)), 256 * MIB);
        assert_eq!(default_memory_bytes(&machine(20, None)), 2 << 30);
        assert_eq!(default_memory_bytes(&machine(2048, None)), 8 << 30);
        assert_eq!(
            default_memory_bytes(&machine(2048, Some(10_000))),
            1000 * MIB
        );
    }
}
