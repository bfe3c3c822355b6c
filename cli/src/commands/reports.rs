//! What a daemon tells through its control socket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::client::{Client, Reply};
use forebay_engine::stats::CoreStats;
use forebay_fuse::{FuseReply, Namespace};
use forebay_membership::record::Usage;

use crate::assembly::Assembly;
use crate::cache::{Cache, WatchedCache};
use crate::control::disk_report::DiskStatus;
use crate::control::report::{
    MemoryStatus, NamespaceCounts, RefusalStatus, StatsReport, StatusReport,
};
use crate::control::server::Reports;
use crate::group::Group;
use crate::group::draining::{DrainReport, DrainState};
use crate::group::stats::{GroupCounts, GroupStats, TellCounts};
use crate::group::weight::{DisksOut, Seen};
use crate::host::core_stats;
use crate::host::cores::Spin;

/// How long cores may take to tell their counters.
const CORES_TIMEOUT: Duration = Duration::from_secs(2);

/// A daemon's reports.
pub struct DaemonReports<R: Reply> {
    client: Client<R>,
    namespace: Box<dyn Fn() -> NamespaceCounts + Send + Sync>,
    since: Instant,
    cache: WatchedCache,
    group: Option<Arc<Group>>,
    fixed: StatusReport,
}

impl<R: Reply> DaemonReports<R> {
    /// Reports of what `assembly` runs from now on, and tells its group how full it is. `fixed` says what it is;
    /// `namespace` counts names and files; `drained` is told when this member has handed over what it holds.
    pub fn start(
        fixed: StatusReport,
        assembly: &Assembly<R>,
        namespace: impl Fn() -> NamespaceCounts + Send + Sync + 'static,
        drained: impl Fn(DrainReport) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let config = assembly.engine.config();
        let spin = match config.cores.spin {
            Spin::Forever => "always",
            Spin::For(Duration::ZERO) => "never",
            Spin::For(_) => "briefly",
        };
        let fixed = StatusReport {
            endpoint: assembly.bucket("").endpoint.clone(),
            region: assembly.origin.region().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            core_cpus: config.cores.cpus.clone(),
            spin: spin.to_owned(),
            io_timeout_ms: u64::try_from(config.io_timeout.as_millis()).unwrap_or(u64::MAX),
            memory: MemoryStatus {
                limit_bytes: config.memory.total_bytes,
                ..MemoryStatus::default()
            },
            ..fixed
        };
        let reports = Arc::new(Self {
            client: assembly.engine.client(),
            namespace: Box::new(namespace),
            since: Instant::now(),
            cache: assembly
                .cache
                .as_ref()
                .map(Cache::watched)
                .unwrap_or_default(),
            group: assembly.group.clone(),
            fixed,
        });
        if let Some(group) = &assembly.group {
            group.tell_counts(counts_of(&reports));
            let reports = reports.clone();
            group.publish_usage(move || reports.seen());
            let client = assembly.engine.client();
            let cores = client.cores();
            let counts = move || {
                let all = core_stats(&client, CORES_TIMEOUT);
                let mut sum = CoreStats::default();
                all.iter().for_each(|core| sum.add(core));
                (all.len() == cores).then_some(sum.handover)
            };
            group.watch_handover(cores, counts, drained);
        }
        reports
    }
}

/// How full the cache of the node is that tells this: the disks, or without any that holds something the memory.
fn usage(status: &StatusReport) -> Usage {
    let drain = status.group.as_ref().and_then(|group| group.drain.as_ref());
    let runs = |drain: &&DrainReport| drain.state == DrainState::Running && drain.counted;
    let left_bytes = drain.filter(runs).map(|drain| drain.left_bytes);
    match status.disks.iter().map(|disk| disk.capacity_bytes).sum() {
        0 => Usage {
            left_bytes,
            cached_bytes: status.memory.cached_bytes,
            capacity_bytes: status.memory.arena_bytes,
        },
        capacity_bytes => Usage {
            left_bytes,
            cached_bytes: status.disks.iter().map(|disk| disk.cached_bytes).sum(),
            capacity_bytes,
        },
    }
}

/// What of the disks takes nothing new.
fn disks_out(disks: &[DiskStatus]) -> DisksOut {
    let out = disks.iter().filter(|disk| disk.out_bytes > 0);
    DisksOut {
        names: out.clone().map(|disk| disk.name.clone()).collect(),
        bytes: out.map(|disk| disk.out_bytes).sum(),
    }
}

impl<R: Reply> DaemonReports<R> {
    /// What the group's other members are told of this one.
    fn seen(&self) -> Seen {
        let cores = core_stats(&self.client, CORES_TIMEOUT);
        let status = self.status_of(&cores);
        Seen {
            usage: usage(&status),
            // A core that does not answer has not said how its disks are.
            out: (cores.len() == self.client.cores()).then(|| disks_out(&status.disks)),
        }
    }

    fn status_of(&self, cores: &[CoreStats]) -> StatusReport {
        let mut all = CoreStats::default();
        cores.iter().for_each(|core| all.add(core));
        let memory = MemoryStatus {
            arena_bytes: all.memory_bytes,
            reserved_bytes: all.memory_reserved_bytes,
            cached_bytes: all.memory_used_bytes,
            in_flight_bytes: all.memory_in_flight_bytes,
            resident_bytes: resident_bytes(),
            ..self.fixed.memory.clone()
        };
        let mut status = StatusReport {
            uptime_seconds: self.since.elapsed().as_secs_f64(),
            memory,
            disks: self.cache.status(&all.disk),
            s3_silent_seconds: all.outage_ns as f64 / 1e9,
            s3_error: all.outage_error.as_deref().map(str::to_owned),
            s3_refusal: all.standing_refusal().map(|refusal| RefusalStatus {
                since_seconds: refusal.since_ns as f64 / 1e9,
                last_seconds: refusal.last_ns as f64 / 1e9,
                error: refusal.error.to_string(),
            }),
            group: self.group.as_ref().map(|group| group.report()),
            ..self.fixed.clone()
        };
        // Its own row is as of now, not as the others were told.
        let own = usage(&status);
        if let Some(group) = &mut status.group {
            group.set_own_usage(&own);
            group.asked_elsewhere = all.elsewhere;
        }
        status
    }
}

impl<R: Reply> Reports for DaemonReports<R> {
    fn status(&self) -> StatusReport {
        self.status_of(&core_stats(&self.client, CORES_TIMEOUT))
    }

    fn stats(&self) -> StatsReport {
        let cores = core_stats(&self.client, CORES_TIMEOUT);
        StatsReport::new(
            &cores,
            (self.namespace)(),
            self.since.elapsed().as_secs_f64(),
        )
    }

    fn group_stats(&self) -> Option<GroupStats> {
        let group = self.group.as_ref()?;
        Some(group.stats(GroupCounts::from(&self.stats())))
    }
}

/// What this node tells others of its counters. It does not keep the reports, which keep the group.
fn counts_of<R: Reply>(reports: &Arc<DaemonReports<R>>) -> TellCounts {
    let reports = Arc::downgrade(reports);
    Arc::new(move || {
        let reports = reports.upgrade()?;
        Some(GroupCounts::from(&reports.stats()))
    })
}

/// A mount's names and files.
pub fn namespace_counts(namespace: &Namespace<FuseReply>) -> NamespaceCounts {
    let stats = namespace.stats();
    let counters = [
        ("inodes", stats.inodes),
        ("known_names", stats.known_names),
        ("open_files", stats.open_files),
        ("open_directories", stats.open_directories),
        ("lookups", stats.lookups),
        ("lookups_remembered", stats.lookups_remembered),
        ("revalidations", stats.revalidations),
        ("superseded", stats.superseded),
        ("stale_answers", stats.stale_answers),
        ("pages_listed", stats.pages_listed),
        ("reads_refused", stats.reads_refused),
        ("read_ahead_bytes", stats.read_ahead_bytes),
    ];
    NamespaceCounts {
        counters: counters
            .map(|(name, count)| (name.to_owned(), count))
            .into(),
        left_out: stats
            .left_out
            .into_iter()
            .map(|(kind, count)| (kind.name().to_owned(), count))
            .collect(),
    }
}

/// Resident memory of this process; 0 when the kernel does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_is_resident() {
        assert!(super::resident_bytes() > 1 << 20);
    }
}
