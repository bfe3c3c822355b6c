//! What the control API answers; the keys of `status --json` and `stats --json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_engine::stats::{CoreStats, Reason};
use serde::{Deserialize, Serialize};

use super::disk_report::{DiskCounts, DiskStatus};
use crate::group::report::GroupReport;

/// `/status`: what a mount is, or a member without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Where it is mounted; left out for a member without a mount.
    #[serde(default, skip_serializing_if = "is_nowhere")]
    pub mount_point: PathBuf,
    /// `serve:GROUP/NODE`, the name of a member without a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve: Option<String>,
    /// `s3://bucket/prefix/`; of a member without a mount, what it looked at when it started.
    pub source: String,
    /// The endpoint as identities spell it.
    pub endpoint: String,
    /// The region that requests are signed for.
    pub region: String,
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the mount answered first.
    pub uptime_seconds: f64,
    /// One for each engine core: its CPU, or null when it is not pinned.
    pub core_cpus: Vec<Option<usize>>,
    /// Whether idle cores spin before they sleep, or always: `never`, `briefly`, `always`.
    pub spin: String,
    /// Milliseconds after which a read ends with EIO.
    pub io_timeout_ms: u64,
    /// Memory.
    pub memory: MemoryStatus,
    /// Each directory or device of the cache on disk; none without `--cache-dir`.
    #[serde(default)]
    pub disks: Vec<DiskStatus>,
    /// The cache group; null for a node on its own.
    #[serde(default)]
    pub group: Option<GroupReport>,
    /// How long S3 has not answered, as far as is known; 0: it does.
    #[serde(default)]
    pub s3_silent_seconds: f64,
    /// How an attempt failed last, while it does not answer.
    #[serde(default)]
    pub s3_error: Option<String>,
    /// S3 refuses this node, and has given it nothing since; null when it does not.
    #[serde(default)]
    pub s3_refusal: Option<RefusalStatus>,
    /// Where the daemon logs to; null for standard error.
    pub log_file: Option<PathBuf>,
}

fn is_nowhere(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

impl StatusReport {
    /// How people name it in commands: the mount point, or `serve:GROUP/NODE`.
    pub fn name(&self) -> String {
        let mount_point = || self.mount_point.display().to_string();
        self.serve.clone().unwrap_or_else(mount_point)
    }
}

/// S3 refuses a node: its credentials, their rights, or its region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// For how long.
    pub since_seconds: f64,
    /// How long ago it did so last.
    pub last_seconds: f64,
    /// Its words.
    pub error: String,
}

/// A mount's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// `--memory`.
    pub limit_bytes: u64,
    /// Buffers of all cores.
    pub arena_bytes: u64,
    /// Of those, bytes in huge pages that the machine has reserved.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Of those, bytes that cache.
    pub cached_bytes: u64,
    /// Of those, bytes on their way from the origin or to readers.
    pub in_flight_bytes: u64,
    /// The daemon's resident memory.
    pub resident_bytes: u64,
}

/// `/stats`: what a mount did since it began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatsReport {
    /// Seconds since the mount answered first.
    pub uptime_seconds: f64,
    /// Engine cores that answered; fewer than there are when one does not keep up.
    pub cores: usize,
    /// All reads.
    pub reads: ReadCounts,
    /// Hits and bytes for each tier that answered.
    pub tiers: Tiers,
    /// What went to the origin.
    pub origin: OriginCounts,
    /// What went to other members and came from them.
    #[serde(default)]
    pub peers: PeerCounts,
    /// What the memory tier holds.
    pub cache: CacheCounts,
    /// What the cache on disk holds and did.
    #[serde(default)]
    pub disk: DiskCounts,
    /// Latencies by outcome, since the mount began.
    pub latency: Latencies,
    /// Names and files.
    pub namespace: NamespaceCounts,
}

/// All reads that front ends sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReadCounts {
    /// Answered with bytes.
    pub answered: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Answered with an error.
    pub errors: u64,
    /// Of those, because `--io-timeout` had passed.
    pub timeouts: u64,
    /// Waiting now.
    pub waiting: u64,
}

/// Reads by the tier that had the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tiers {
    /// Answered from memory without waiting.
    pub memory: TierCounts,
    /// Waited for the cache on disk, and for nothing farther away.
    pub disk: TierCounts,
    /// Waited for other members, and not for the origin.
    pub group: TierCounts,
    /// Waited for the origin.
    pub origin: TierCounts,
    /// Of those, joined a fetch that was already under way.
    pub origin_joined: u64,
}

/// Reads of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierCounts {
    /// How many.
    pub hits: u64,
    /// Bytes they got.
    pub bytes: u64,
}

/// What went to the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginCounts {
    /// Bytes of bodies that arrived.
    pub bytes: u64,
    /// The same bytes by reason: `cold`, `prefetch`, `retry`, `evicted`, `ring-moved`, `expired`,
    /// `version-changed`, `checksum`. They add up to `bytes`.
    pub bytes_by_reason: BTreeMap<String, u64>,
    /// GETs sent, each attempt counted.
    pub gets: u64,
    /// HEADs sent.
    pub heads: u64,
    /// Listing pages asked for.
    pub lists: u64,
    /// Attempts after a failed one.
    pub retries: u64,
    /// Attempts of any kind that failed; that an object does not exist is no failure.
    pub errors: u64,
    /// Questions for names that were answered as last known, because the origin did not answer.
    pub stale_answers: u64,
    /// How often a core found that the origin does not answer.
    pub outages: u64,
}

/// What went to other members and came from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerCounts {
    /// Requests for bytes sent to other members, each attempt counted.
    pub asked: u64,
    /// Bytes that they sent.
    pub received_bytes: u64,
    /// Requests that they did not answer.
    pub failures: u64,
    /// Requests of others answered with bytes.
    pub served: u64,
    /// Bytes of those.
    pub served_bytes: u64,
    /// Requests of others answered without: not cached here, or not this member's.
    pub declined: u64,
    /// Requests of others that failed here.
    pub serve_errors: u64,
}

/// What the memory tier holds and lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheCounts {
    /// Buffers of all cores.
    pub arena_bytes: u64,
    /// Of those, bytes that cache.
    pub cached_bytes: u64,
    /// Of those, bytes in flight.
    pub in_flight_bytes: u64,
    /// Blocks in the index.
    pub blocks: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Pages that failed their checksum.
    pub checksum_failures: u64,
    /// Prefetches dropped for want of room.
    pub prefetch_dropped: u64,
}

/// Latencies by outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latencies {
    /// Reads answered from memory.
    pub hit: Percentiles,
    /// Reads that waited for the cache on disk.
    pub disk: Percentiles,
    /// Reads that waited for other members.
    pub group: Percentiles,
    /// Reads that waited for the origin.
    pub miss: Percentiles,
}

/// Percentiles in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Reads counted.
    pub count: u64,
    /// Half were faster.
    pub p50_us: f64,
    /// 90 % were faster.
    pub p90_us: f64,
    /// 99 % were faster.
    pub p99_us: f64,
    /// 99.9 % were faster.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// Names and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceCounts {
    /// Counters by name, as the file system tells them.
    #[serde(flatten)]
    pub counters: BTreeMap<String, u64>,
    /// Keys that cannot be shown as paths, by reason.
    pub left_out: BTreeMap<String, u64>,
}

impl StatsReport {
    /// Adds the cores up.
    pub fn new(cores: &[CoreStats], namespace: NamespaceCounts, uptime_seconds: f64) -> Self {
        let mut all = CoreStats::default();
        cores.iter().for_each(|core| all.add(core));
        let by_reason = |reason: Reason| (reason.name().to_owned(), all.ledger.bytes(reason));
        Self {
            uptime_seconds,
            cores: cores.len(),
            reads: ReadCounts {
                answered: all.reads,
                bytes: all.read_bytes,
                errors: all.read_errors,
                timeouts: all.read_timeouts,
                waiting: all.reads_waiting,
            },
            tiers: Tiers {
                memory: TierCounts {
                    hits: all.memory_hits,
                    bytes: all.memory_hit_bytes,
                },
                disk: TierCounts {
                    hits: all.disk_hits,
                    bytes: all.disk_hit_bytes,
                },
                group: TierCounts {
                    hits: all.group_hits,
                    bytes: all.group_hit_bytes,
                },
                origin: TierCounts {
                    hits: all.misses,
                    bytes: all.miss_bytes,
                },
                origin_joined: all.joined,
            },
            origin: OriginCounts {
                bytes: all.ledger.total_bytes(),
                bytes_by_reason: Reason::ALL.into_iter().map(by_reason).collect(),
                gets: all.gets,
                heads: all.heads,
                lists: all.lists,
                retries: all.retries,
                errors: all.origin_errors,
                stale_answers: all.stale_answers,
                outages: all.outages,
            },
            peers: PeerCounts {
                asked: all.pulls,
                received_bytes: all.pulled_bytes,
                failures: all.peer_failures,
                served: all.serves,
                served_bytes: all.served_bytes,
                declined: all.serves_declined,
                serve_errors: all.serve_errors,
            },
            cache: CacheCounts {
                arena_bytes: all.memory_bytes,
                cached_bytes: all.memory_used_bytes,
                in_flight_bytes: all.memory_in_flight_bytes,
                blocks: all.blocks,
                evictions: all.evictions,
                checksum_failures: all.checksum_failures,
                prefetch_dropped: all.prefetch_dropped,
            },
            disk: DiskCounts::from(&all.disk),
            latency: Latencies {
                hit: percentiles(&all.hit_latency_ns),
                disk: percentiles(&all.disk_latency_ns),
                group: percentiles(&all.group_latency_ns),
                miss: percentiles(&all.miss_latency_ns),
            },
            namespace,
        }
    }
}

fn percentiles(histogram: &hdrhistogram::Histogram<u64>) -> Percentiles {
    if histogram.is_empty() {
        return Percentiles::default();
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Percentiles {
        count: histogram.len(),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: histogram.max() as f64 / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_add_up_and_the_reasons_add_up_to_the_total() {
        let mut core = CoreStats {
            reads: 3,
            memory_hits: 2,
            misses: 1,
            ..CoreStats::default()
        };
        core.ledger.book(Reason::Cold, 100);
        core.ledger.book(Reason::Retry, 7);
        core.hit_latency_ns.record(5_000).unwrap();
        let report = StatsReport::new(&[core.clone(), core], NamespaceCounts::default(), 1.0);
        assert_eq!(
            (
                report.cores,
                report.reads.answered,
                report.tiers.memory.hits
            ),
            (2, 6, 4)
        );
        assert_eq!(report.origin.bytes, 214);
        assert_eq!(
            report.origin.bytes_by_reason.values().sum::<u64>(),
            report.origin.bytes
        );
        assert_eq!(report.origin.bytes_by_reason["cold"], 200);
        assert_eq!(report.latency.hit.count, 2);
        assert!(
            (4.9..5.2).contains(&report.latency.hit.p50_us),
            "{report:?}"
        );
        assert_eq!(report.latency.miss, Percentiles::default());
    }

    #[test]
    fn the_documented_keys_are_the_json_keys() {
        let mut namespace = NamespaceCounts::default();
        namespace.counters.insert("inodes".into(), 4);
        let json = serde_json::to_value(StatsReport::new(&[], namespace, 0.0)).unwrap();
        for path in [
            "/reads/answered",
            "/tiers/memory/hits",
            "/tiers/disk/hits",
            "/tiers/group/hits",
            "/peers/received_bytes",
            "/tiers/origin/bytes",
            "/origin/bytes_by_reason/cold",
            "/origin/gets",
            "/cache/evictions",
            "/disk/devices",
            "/latency/disk/p50_us",
            "/latency/miss/p999_us",
            "/namespace/inodes",
            "/namespace/left_out",
        ] {
            assert!(json.pointer(path).is_some(), "{path} in {json}");
        }
    }
}
