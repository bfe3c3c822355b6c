//! `forebay stats`: what a mount reads, once or live; what a group does.

mod group;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::choose_named;
use crate::args::StatsArgs;
use crate::control::client::ControlClient;
use crate::control::disk_report::DeviceCounts;
use crate::control::report::{PeerCounts, Percentiles, StatsReport, Tiers};
use crate::output::{json, percent, print, table};
use crate::units::{Bytes, show_duration};

/// Lines between two headers of the live view.
const LINES_PER_HEADER: usize = 20;

/// Runs the command.
///
/// # Errors
/// When the mount is not there or does not answer.
pub fn run(args: &StatsArgs) -> Result<()> {
    let (client, status) = choose_named(args.mount_point.as_deref())?;
    if args.group {
        let stats = client.group_stats()?.with_context(|| {
            format!(
                "{} is in no group: it was started without --peers and --listen",
                status.name()
            )
        })?;
        let text = match args.json {
            true => json(&stats, true)?,
            false => group::all(&stats),
        };
        return print(&text).map(drop);
    }
    match args.interval {
        Some(interval) => live(&client, interval, args.json),
        None => {
            let stats = client.stats()?;
            let text = if args.json {
                json(&stats, true)?
            } else {
                all(&stats)
            };
            print(&text).map(drop)
        }
    }
}

/// One line each `interval` until the mount ends or the reader of the lines is gone.
fn live(client: &ControlClient, interval: Duration, as_json: bool) -> Result<()> {
    let mut before = client.stats()?;
    let mut due = Instant::now();
    for line in 0.. {
        due += interval;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = match client.stats() {
            Ok(now) => now,
            Err(_) if !crate::control::sockets::is_alive(client.socket()) => {
                eprintln!("forebay: the mount has ended");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let text = match as_json {
            true => json(&now, false)?,
            false if line % LINES_PER_HEADER == 0 => {
                format!("{HEADER}\n{}\n", rates(&before, &now))
            }
            false => format!("{}\n", rates(&before, &now)),
        };
        if !print(&text)? {
            return Ok(());
        }
        before = now;
    }
    Ok(())
}

const HEADER: &str = "   reads/s     read/s  memory    disk   origin/s  GET/s  retry/s  waiting  errors    hit p50/p99 us     disk p50/p99 us      miss p50/p99 us   written/s";

/// Rates between two reports; latencies are since the mount began.
fn rates(before: &StatsReport, now: &StatsReport) -> String {
    let seconds = (now.uptime_seconds - before.uptime_seconds).max(1e-3);
    let rate = |get: fn(&StatsReport) -> u64| get(now).saturating_sub(get(before)) as f64 / seconds;
    let bytes = |get: fn(&StatsReport) -> u64| Bytes(rate(get) as u64).to_string();
    let since = |get: fn(&StatsReport) -> u64| get(now).saturating_sub(get(before));
    let hits = since(|stats| stats.tiers.memory.hits);
    let disk = since(|stats| stats.tiers.disk.hits);
    let group = since(|stats| stats.tiers.group.hits);
    let all = hits + disk + group + since(|stats| stats.tiers.origin.hits);
    let pair = |p: &Percentiles| format!("{:.0}/{:.0}", p.p50_us, p.p99_us);
    format!(
        "{:>10.0} {:>10} {:>7} {:>7} {:>10} {:>6.0} {:>8.0} {:>8} {:>7} {:>17} {:>19} {:>20} {:>11}",
        rate(|stats| stats.reads.answered),
        bytes(|stats| stats.reads.bytes),
        percent(hits, all),
        percent(disk, all),
        bytes(|stats| stats.origin.bytes),
        rate(|stats| stats.origin.gets),
        rate(|stats| stats.origin.retries),
        now.reads.waiting,
        now.reads.errors.saturating_sub(before.reads.errors),
        pair(&now.latency.hit),
        pair(&now.latency.disk),
        pair(&now.latency.miss),
        bytes(written_bytes),
    )
}

/// Bytes written to all disks.
fn written_bytes(stats: &StatsReport) -> u64 {
    let written = |device: &DeviceCounts| {
        device.filled_bytes + device.reinserted_bytes + device.overhead_bytes
    };
    stats.disk.devices.iter().map(written).sum()
}

/// Every counter, for people.
fn all(stats: &StatsReport) -> String {
    let mut sections = vec![reads(stats), origin(stats), latency(stats), cache(stats)];
    if stats.peers != PeerCounts::default() {
        sections.push(peers(stats));
    }
    if !stats.disk.devices.is_empty() {
        sections.push(disk(stats));
    }
    sections.push(namespace(stats));
    sections.join("\n")
}

fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn reads(stats: &StatsReport) -> String {
    let tiers = &stats.tiers;
    let total = hits(tiers);
    let tier = |name: &str, hits: u64, bytes: u64| {
        vec![
            name.to_owned(),
            hits.to_string(),
            percent(hits, total),
            Bytes(bytes).to_string(),
        ]
    };
    let rows = [
        cells(["READS", "hits", "share", "bytes"]),
        tier("memory", tiers.memory.hits, tiers.memory.bytes),
        tier("disk", tiers.disk.hits, tiers.disk.bytes),
        tier("group", tiers.group.hits, tiers.group.bytes),
        tier("origin", tiers.origin.hits, tiers.origin.bytes),
        tier("all", stats.reads.answered, stats.reads.bytes),
    ];
    let reads = &stats.reads;
    format!(
        "{}joined a fetch under way {}, waiting {}, errors {} (of those timeouts {})\n",
        table(&rows, &[1, 2, 3]),
        stats.tiers.origin_joined,
        reads.waiting,
        reads.errors,
        reads.timeouts
    )
}

fn origin(stats: &StatsReport) -> String {
    let origin = &stats.origin;
    let row = |name: &str, bytes: u64| {
        vec![
            name.to_owned(),
            Bytes(bytes).to_string(),
            percent(bytes, origin.bytes),
        ]
    };
    let mut rows = vec![cells(["ORIGIN", "bytes", "share"])];
    rows.extend(
        origin
            .bytes_by_reason
            .iter()
            .filter(|(_, bytes)| **bytes > 0)
            .map(|(name, bytes)| row(name, *bytes)),
    );
    rows.push(row("all", origin.bytes));
    format!(
        "{}GETs {}, HEADs {}, LISTs {}, failed attempts {}, retries {}, names answered as last known {}\n",
        table(&rows, &[1, 2]),
        origin.gets,
        origin.heads,
        origin.lists,
        origin.errors,
        origin.retries,
        origin.stale_answers
    )
}

/// What went to other members and came from them.
fn peers(stats: &StatsReport) -> String {
    let peers = &stats.peers;
    format!(
        "PEERS  received {} in {} requests (not answered {}); served {} in {} requests (declined {}, failed {})\n",
        Bytes(peers.received_bytes),
        peers.asked,
        peers.failures,
        Bytes(peers.served_bytes),
        peers.served,
        peers.declined,
        peers.serve_errors
    )
}

/// Reads that were answered, from wherever.
fn hits(tiers: &Tiers) -> u64 {
    tiers.memory.hits + tiers.disk.hits + tiers.group.hits + tiers.origin.hits
}

fn latency(stats: &StatsReport) -> String {
    let shown = |micros: f64| show_duration(Duration::from_nanos((micros * 1e3) as u64));
    let row = |name: &str, p: &Percentiles| {
        let times = [p.p50_us, p.p90_us, p.p99_us, p.p999_us, p.max_us];
        [name.to_owned(), p.count.to_string()]
            .into_iter()
            .chain(times.map(shown))
            .collect::<Vec<_>>()
    };
    let rows = [
        cells(["LATENCY", "reads", "p50", "p90", "p99", "p99.9", "max"]),
        row("memory", &stats.latency.hit),
        row("disk", &stats.latency.disk),
        row("group", &stats.latency.group),
        row("origin", &stats.latency.miss),
    ];
    table(&rows, &[1, 2, 3, 4, 5, 6])
}

fn cache(stats: &StatsReport) -> String {
    let cache = &stats.cache;
    format!(
        "CACHE  {} of {} in {} blocks, in flight {}; evicted blocks {}, dropped prefetches {}, checksum failures {}\n",
        Bytes(cache.cached_bytes),
        Bytes(cache.arena_bytes),
        cache.blocks,
        Bytes(cache.in_flight_bytes),
        cache.evictions,
        cache.prefetch_dropped,
        cache.checksum_failures
    )
}

/// The cache on disk, a block of lines for each device.
fn disk(stats: &StatsReport) -> String {
    let disk = &stats.disk;
    let mut text = format!(
        "DISK  index {}, checksum tables {} (pages read {})\n",
        Bytes(disk.index_bytes),
        Bytes(disk.tables_bytes),
        disk.table_reads
    );
    disk.devices
        .iter()
        .for_each(|device| text.push_str(&one_device(device)));
    text
}

fn one_device(device: &DeviceCounts) -> String {
    let bytes = |bytes| Bytes(bytes).to_string();
    let why = match device.why.as_str() {
        "" => String::new(),
        why => format!(": {why}"),
    };
    let amplification = match device.filled_bytes {
        0 => "-".into(),
        _ => format!("{:.2}", device.write_amplification),
    };
    let recovery = Duration::try_from_secs_f64(device.recovery_seconds).unwrap_or_default();
    let lines = [
        format!("{}  {}{why}", device.name, device.state.replace('_', "-")),
        format!(
            "  regions   {} of {}: small {}, main {}, free {}, not used {}; reclaimed {}",
            device.regions,
            bytes(device.region_bytes),
            device.regions_small,
            device.regions_main,
            device.regions_free,
            device.regions_lost,
            device.regions_reclaimed
        ),
        format!(
            "  entries   {} with {} (pinned {} with {}), fragmentation {:.1} %; evicted {} with {}",
            device.entries,
            bytes(device.live_bytes),
            device.entries_pinned,
            bytes(device.pinned_bytes),
            device.fragmentation * 100.0,
            device.entries_evicted,
            bytes(device.evicted_bytes)
        ),
        format!(
            "  written   fills {}, again {}, headers and tables {}: amplification {amplification}; fills dropped {} with {}",
            bytes(device.filled_bytes),
            bytes(device.reinserted_bytes),
            bytes(device.overhead_bytes),
            device.fills_dropped,
            bytes(device.dropped_bytes)
        ),
        format!(
            "  read      {} reads with {}; errors {}, checksum failures {}, given up as slow {}, write errors {}",
            device.reads,
            bytes(device.read_bytes),
            device.read_errors,
            device.checksum_failures,
            device.slow_reads,
            device.write_errors
        ),
        format!(
            "  recovery  {} entries in {}, {} read, damaged batches {}",
            device.recovered_entries,
            show_duration(recovery),
            bytes(device.recovery_bytes),
            device.batches_damaged
        ),
    ];
    lines.join("\n") + "\n"
}

fn namespace(stats: &StatsReport) -> String {
    let names = &stats.namespace;
    let list = |counts: &std::collections::BTreeMap<String, u64>| {
        counts
            .iter()
            .map(|(name, count)| format!("{} {count}", name.replace('_', " ")))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let left_out: std::collections::BTreeMap<_, _> = names
        .left_out
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| (name.clone(), *count))
        .collect();
    let mut text = format!("NAMES  {}\n", list(&names.counters));
    if !left_out.is_empty() {
        text.push_str(&format!(
            "keys that are no paths and were left out: {}\n",
            list(&left_out)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use forebay_engine::stats::{CoreStats, Reason};

    use super::*;
    use crate::control::report::NamespaceCounts;

    fn report(reads: u64, uptime_seconds: f64) -> StatsReport {
        let mut core = CoreStats {
            reads,
            read_bytes: reads << 20,
            memory_hits: reads,
            ..CoreStats::default()
        };
        core.ledger.book(Reason::Prefetch, 3 << 20);
        let mut names = NamespaceCounts::default();
        names.counters.insert("open_files".into(), 4);
        names.left_out.insert("dot_component".into(), 2);
        names.left_out.insert("shadowed".into(), 0);
        StatsReport::new(&[core], names, uptime_seconds)
    }

    #[test]
    fn every_device_has_its_lines() {
        let mut report = report(5, 1.0);
        assert!(!all(&report).contains("DISK"));
        report.disk.devices = vec![
            DeviceCounts {
                name: "/nvme0".into(),
                state: "read_only".into(),
                why: "a write failed".into(),
                filled_bytes: 4,
                write_amplification: 1.25,
                ..DeviceCounts::default()
            },
            DeviceCounts {
                name: "/nvme1".into(),
                state: "serving".into(),
                ..DeviceCounts::default()
            },
        ];
        let text = all(&report);
        for part in [
            "/nvme0  read-only: a write failed",
            "/nvme1  serving\n",
            "amplification 1.25",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn everything_is_in_the_table() {
        let text = all(&report(5, 1.0));
        for part in [
            "memory",
            "100.0 %",
            "prefetch",
            "3 MiB",
            "GETs 0",
            "p99.9",
            "open files 4",
            "dot component 2",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(
            !text.contains("shadowed") && !text.contains("ring-moved"),
            "zeroes are left out:\n{text}"
        );
    }

    #[test]
    fn rates_are_differences() {
        let line = rates(&report(100, 10.0), &report(300, 12.0));
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields[0..3], ["100", "100", "MiB"]);
        // After a restart counters go back; rates stay at zero.
        assert!(
            rates(&report(300, 12.0), &report(1, 1.0))
                .trim_start()
                .starts_with('0')
        );
    }
}
