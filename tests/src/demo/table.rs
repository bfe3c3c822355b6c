//! What the demo came to, in one table.

use std::fmt;

use super::verify::Passed;
use crate::harness::Stats;

/// The numbers of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) first: Passed,
    pub(super) second: Passed,
    pub(super) stats: Stats,
    /// Bytes of all object versions that were read whole.
    pub(super) unique_bytes: u64,
    /// What the server itself counted, where it does.
    pub(super) origin_count: Option<u64>,
    pub(super) restarted: Restarted,
}

/// The numbers of the pass after the restart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restarted {
    pub(super) passed: Passed,
    pub(super) stats: Stats,
    pub(super) origin_count: Option<u64>,
}

impl Table {
    /// Origin bytes over unique bytes, by the larger of both counts.
    pub(super) fn origin_ratio(&self) -> f64 {
        let origin = self.stats.origin_bytes.max(self.origin_count.unwrap_or(0));
        origin as f64 / self.unique_bytes as f64
    }

    /// Origin bytes after the restart, by the larger of both counts.
    pub(super) fn restarted_origin_bytes(&self) -> u64 {
        let Restarted {
            stats,
            origin_count,
            ..
        } = &self.restarted;
        stats.origin_bytes.max(origin_count.unwrap_or(0))
    }

    /// Reads and bytes of one daemon's life by tier.
    fn tiers(f: &mut fmt::Formatter<'_>, when: &str, stats: &Stats) -> fmt::Result {
        let all = (stats.memory_hit_bytes + stats.disk_hit_bytes + stats.miss_bytes).max(1);
        let share = |bytes: u64| 100.0 * bytes as f64 / all as f64;
        writeln!(f, "{when:<26}{:>10}{:>12}{:>9}", "reads", "MiB", "share")?;
        for (tier, reads, bytes) in [
            ("memory", stats.memory_hits, stats.memory_hit_bytes),
            ("waited for the disk", stats.disk_hits, stats.disk_hit_bytes),
            ("waited for S3", stats.misses, stats.miss_bytes),
        ] {
            writeln!(
                f,
                "{tier:<26}{reads:>10}{:>12.1}{:>8.1}%",
                mib(bytes),
                share(bytes)
            )?;
        }
        writeln!(f)
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            first,
            second,
            stats,
            ..
        } = self;
        Self::tiers(f, "tier", stats)?;
        Self::tiers(f, "tier, after the restart", &self.restarted.stats)?;
        writeln!(
            f,
            "{:<36}{:>12.1} MiB",
            "unique bytes read",
            mib(self.unique_bytes)
        )?;
        writeln!(
            f,
            "{:<36}{:>12.1} MiB",
            "origin bytes, Forebay's count",
            mib(stats.origin_bytes)
        )?;
        if let Some(count) = self.origin_count {
            writeln!(
                f,
                "{:<36}{:>12.1} MiB",
                "origin bytes, the server's count",
                mib(count)
            )?;
        }
        writeln!(
            f,
            "{:<36}{:>12.4}",
            "origin bytes / unique bytes",
            self.origin_ratio()
        )?;
        writeln!(
            f,
            "{:<36}{:>12.1} MiB",
            "origin bytes after the restart",
            mib(self.restarted_origin_bytes())
        )?;
        for (name, pass) in [
            ("first pass, with comparing", first),
            ("second pass, with comparing", second),
            ("after the restart, with comparing", &self.restarted.passed),
        ] {
            let rate = mib(pass.bytes) / pass.elapsed.as_secs_f64();
            writeln!(f, "{name:<36}{rate:>12.0} MiB/s")?;
        }
        Ok(())
    }
}
