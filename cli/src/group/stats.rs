//! What a whole group did: the counters of its members, added up and one by one.
//!
//! They travel over control connections, which every member answers and a take-only client can open too: nothing of
//! it passes through the engine's cores or their connections. Clients listen nowhere, so nobody hears of their reads
//! but the client itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_membership::follow::ask_stats;
use forebay_membership::record::Listed;
use forebay_transport_tcp::Endpoint;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::control::disk_report::{DeviceCounts, DiskCounts};
use crate::control::report::{
    OriginCounts, PeerCounts, ReadCounts, StatsReport, TierCounts, Tiers,
};

/// Members answer within this, or are named as not answering.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Members asked at a time.
const ASKED_MAX: usize = 128;

/// Tells this node's counters; may wait. None when the node is ending.
pub type TellCounts = Arc<dyn Fn() -> Option<GroupCounts> + Send + Sync>;

/// `/group-stats`: what a group did since its members began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStats {
    /// The group's name.
    pub group: String,
    /// All rows added up.
    pub total: GroupCounts,
    /// Each member, sorted by name; last this node, when it is a client.
    pub members: Vec<MemberStats>,
}

/// One member's row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberStats {
    /// Its name.
    pub node: String,
    /// `member` or `client`.
    pub role: String,
    /// Whether it is the node that was asked.
    pub this: bool,
    /// What it did; null when it does not answer.
    pub counts: Option<GroupCounts>,
    /// Why it does not answer.
    pub error: Option<String>,
}

/// What one node did, or several added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupCounts {
    /// Reads of its front end.
    pub reads: ReadCounts,
    /// Hits and bytes for each place that answered.
    pub tiers: Tiers,
    /// What it read from the origin.
    pub origin: OriginCounts,
    /// What went to other members and came from them.
    pub peers: PeerCounts,
    /// Its memory.
    pub memory: MemoryUse,
    /// Its disks.
    pub disk: DiskUse,
}

/// Memory of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUse {
    /// Buffers of all cores.
    pub arena_bytes: u64,
    /// Of those, bytes that cache.
    pub cached_bytes: u64,
}

/// Disks of nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskUse {
    /// Directories and devices.
    pub devices: u64,
    /// Of those, such that are retired or read-only.
    pub devices_failed: u64,
    /// Bytes that they hold at most.
    pub capacity_bytes: u64,
    /// Bytes of what is cached.
    pub cached_bytes: u64,
    /// Bytes of fills written.
    pub filled_bytes: u64,
    /// Bytes that reclaim wrote again.
    pub reinserted_bytes: u64,
    /// Bytes of headers, tables and padding.
    pub overhead_bytes: u64,
    /// Bytes written for each byte of fills; 0 before there is any.
    pub write_amplification: f64,
    /// Bytes of fills that were not kept.
    pub dropped_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

impl From<&StatsReport> for GroupCounts {
    fn from(stats: &StatsReport) -> Self {
        Self {
            reads: stats.reads.clone(),
            tiers: stats.tiers.clone(),
            origin: stats.origin.clone(),
            peers: stats.peers.clone(),
            memory: MemoryUse {
                arena_bytes: stats.cache.arena_bytes,
                cached_bytes: stats.cache.cached_bytes,
            },
            disk: DiskUse::from(&stats.disk),
        }
    }
}

impl From<&DiskCounts> for DiskUse {
    fn from(disk: &DiskCounts) -> Self {
        let mut all = Self::default();
        for device in &disk.devices {
            all.add(&Self {
                devices: 1,
                devices_failed: u64::from(matches!(&*device.state, "retired" | "read_only")),
                capacity_bytes: capacity_bytes(device),
                cached_bytes: device.live_bytes,
                filled_bytes: device.filled_bytes,
                reinserted_bytes: device.reinserted_bytes,
                overhead_bytes: device.overhead_bytes,
                write_amplification: 0.0,
                dropped_bytes: device.dropped_bytes,
                read_bytes: device.read_bytes,
            });
        }
        all
    }
}

/// What it can hold now; of one that takes nothing new what it holds.
fn capacity_bytes(device: &DeviceCounts) -> u64 {
    let unused = device.regions_lost.saturating_add(device.regions_out);
    let regions = device.regions.saturating_sub(unused);
    (regions * device.region_bytes).max(device.live_bytes)
}

/// Adds what a peer told: it may be anything.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

impl DiskUse {
    fn add(&mut self, other: &Self) {
        add(&mut self.devices, other.devices);
        add(&mut self.devices_failed, other.devices_failed);
        add(&mut self.capacity_bytes, other.capacity_bytes);
        add(&mut self.cached_bytes, other.cached_bytes);
        add(&mut self.filled_bytes, other.filled_bytes);
        add(&mut self.reinserted_bytes, other.reinserted_bytes);
        add(&mut self.overhead_bytes, other.overhead_bytes);
        add(&mut self.dropped_bytes, other.dropped_bytes);
        add(&mut self.read_bytes, other.read_bytes);
        let mut written = self.filled_bytes;
        add(&mut written, self.reinserted_bytes);
        add(&mut written, self.overhead_bytes);
        self.write_amplification = match self.filled_bytes {
            0 => 0.0,
            filled => written as f64 / filled as f64,
        };
    }
}

impl GroupCounts {
    /// Adds another node's.
    pub fn add(&mut self, other: &Self) {
        let (reads, theirs) = (&mut self.reads, &other.reads);
        add(&mut reads.answered, theirs.answered);
        add(&mut reads.bytes, theirs.bytes);
        add(&mut reads.errors, theirs.errors);
        add(&mut reads.timeouts, theirs.timeouts);
        add(&mut reads.waiting, theirs.waiting);
        let tier = |tier: &mut TierCounts, theirs: &TierCounts| {
            add(&mut tier.hits, theirs.hits);
            add(&mut tier.bytes, theirs.bytes);
        };
        tier(&mut self.tiers.memory, &other.tiers.memory);
        tier(&mut self.tiers.disk, &other.tiers.disk);
        tier(&mut self.tiers.group, &other.tiers.group);
        tier(&mut self.tiers.origin, &other.tiers.origin);
        add(&mut self.tiers.origin_joined, other.tiers.origin_joined);
        add_origin(&mut self.origin, &other.origin);
        let (peers, theirs) = (&mut self.peers, &other.peers);
        add(&mut peers.asked, theirs.asked);
        add(&mut peers.received_bytes, theirs.received_bytes);
        add(&mut peers.failures, theirs.failures);
        add(&mut peers.served, theirs.served);
        add(&mut peers.served_bytes, theirs.served_bytes);
        add(&mut peers.declined, theirs.declined);
        add(&mut peers.serve_errors, theirs.serve_errors);
        add(&mut self.memory.arena_bytes, other.memory.arena_bytes);
        add(&mut self.memory.cached_bytes, other.memory.cached_bytes);
        self.disk.add(&other.disk);
    }
}

fn add_origin(origin: &mut OriginCounts, theirs: &OriginCounts) {
    add(&mut origin.bytes, theirs.bytes);
    let reasons: &mut BTreeMap<String, u64> = &mut origin.bytes_by_reason;
    for (reason, bytes) in &theirs.bytes_by_reason {
        add(reasons.entry(reason.clone()).or_default(), *bytes);
    }
    add(&mut origin.gets, theirs.gets);
    add(&mut origin.heads, theirs.heads);
    add(&mut origin.lists, theirs.lists);
    add(&mut origin.retries, theirs.retries);
    add(&mut origin.errors, theirs.errors);
    add(&mut origin.stale_answers, theirs.stale_answers);
    add(&mut origin.outages, theirs.outages);
}

impl GroupStats {
    /// Adds the rows up.
    pub fn new(group: &str, mut members: Vec<MemberStats>) -> Self {
        members.sort_by(|a, b| (&b.role, &a.node).cmp(&(&a.role, &b.node)));
        let mut total = GroupCounts::default();
        let told = members.iter().filter_map(|member| member.counts.as_ref());
        told.for_each(|counts| total.add(counts));
        Self {
            group: group.to_owned(),
            total,
            members,
        }
    }
}

/// Asks members, all at the same time, and waits no longer than the slowest may take.
pub async fn ask_all(endpoint: &Endpoint, members: Vec<Listed>) -> Vec<MemberStats> {
    let deadline = Instant::now() + ANSWER_MAX;
    let turns = Arc::new(Semaphore::new(ASKED_MAX));
    let mut asked = JoinSet::new();
    for member in members {
        let (endpoint, turns) = (endpoint.clone(), turns.clone());
        asked.spawn(async move {
            let answer = timeout_at(deadline, async {
                let _turn = turns.acquire().await;
                ask(&endpoint, &member.record.addresses).await
            });
            let late = || format!("no answer within {} s", ANSWER_MAX.as_secs());
            let counts = answer.await.unwrap_or_else(|_| Err(late()));
            MemberStats {
                node: member.record.node,
                role: "member".to_owned(),
                this: false,
                error: counts.as_ref().err().cloned(),
                counts: counts.ok(),
            }
        });
    }
    let mut told = Vec::with_capacity(asked.len());
    while let Some(member) = asked.join_next().await {
        told.extend(member.ok());
    }
    told
}

/// Asks one member at its first address, and at the next ones too when that fails or says nothing for a while.
async fn ask(endpoint: &Endpoint, addresses: &[SocketAddr]) -> Result<GroupCounts, String> {
    let head_start = ANSWER_MAX / (addresses.len() as u32 + 1);
    let mut why = "no address of it is known".to_owned();
    let (mut rest, mut asked) = (addresses.iter(), JoinSet::new());
    loop {
        if let Some(address) = rest.next() {
            asked.spawn(ask_at(endpoint.clone(), *address));
        }
        tokio::select! {
            told = asked.join_next() => match told {
                Some(Ok(Ok(counts))) => return Ok(counts),
                Some(Ok(Err(error))) => why = error,
                Some(Err(error)) => why = error.to_string(),
                None => return Err(why),
            },
            () = sleep(head_start), if rest.len() > 0 => {}
        }
    }
}

async fn ask_at(endpoint: Endpoint, address: SocketAddr) -> Result<GroupCounts, String> {
    let connected = endpoint.connect_control(address).await;
    let (_, mut stream) = connected.map_err(|error| error.to_string())?;
    let told = ask_stats(&mut stream).await;
    let told = told.map_err(|error| format!("{address}: {error}"))?;
    serde_json::from_value(told)
        .map_err(|error| format!("{address}: it told something else: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::disk_report::DeviceCounts;

    fn row(node: &str, role: &str, counts: Option<GroupCounts>) -> MemberStats {
        MemberStats {
            node: node.into(),
            role: role.into(),
            error: counts.is_none().then(|| "no answer within 3 s".into()),
            counts,
            ..MemberStats::default()
        }
    }

    #[test]
    fn rows_add_up_and_who_does_not_answer_counts_for_nothing() {
        let mut stats = StatsReport::default();
        stats.reads.answered = 4;
        stats.tiers.group.hits = 3;
        stats.origin.bytes = 7;
        stats.origin.bytes_by_reason.insert("cold".into(), 7);
        stats.peers.served_bytes = 9;
        stats.disk.devices = vec![DeviceCounts {
            state: "retired".into(),
            filled_bytes: 100,
            overhead_bytes: 10,
            ..DeviceCounts::default()
        }];
        let counts = GroupCounts::from(&stats);
        let rows = vec![
            row("c", "client", Some(counts.clone())),
            row("b", "member", Some(counts)),
            row("a", "member", None),
        ];
        let group = GroupStats::new("g", rows);
        let names: Vec<&str> = group.members.iter().map(|row| &*row.node).collect();
        assert_eq!(names, ["a", "b", "c"], "clients last");
        let total = &group.total;
        assert_eq!((total.reads.answered, total.tiers.group.hits), (8, 6));
        assert_eq!(total.origin.bytes_by_reason["cold"], 14);
        assert_eq!(total.peers.served_bytes, 18);
        assert_eq!((total.disk.devices, total.disk.devices_failed), (2, 2));
        assert!((total.disk.write_amplification - 1.1).abs() < 1e-9);
    }

    #[test]
    fn whatever_a_peer_tells_adds_up_to_something() {
        let most = u64::MAX;
        let told = serde_json::json!({
            "reads": {"answered": most, "bytes": most, "errors": most, "timeouts": most, "waiting": most},
            "origin": {"bytes": most, "bytes_by_reason": {"cold": most, "": most}, "gets": most, "errors": most},
            "peers": {"asked": most, "served_bytes": most},
            "memory": {"arena_bytes": most, "cached_bytes": most},
            "disk": {"devices": most, "filled_bytes": most, "reinserted_bytes": most, "overhead_bytes": most},
        });
        let counts: GroupCounts = serde_json::from_value(told).unwrap();
        let rows = ["a", "b"].map(|node| row(node, "member", Some(counts.clone())));
        let total = GroupStats::new("g", rows.into()).total;
        assert_eq!(
            (total.reads.bytes, total.origin.bytes_by_reason["cold"]),
            (most, most)
        );
        assert_eq!(
            (total.disk.filled_bytes, total.disk.write_amplification),
            (most, 1.0)
        );
    }

    #[test]
    fn what_another_version_does_not_tell_counts_as_nothing() {
        let told = serde_json::json!({"origin": {"bytes": 5}, "later": 1});
        let counts: GroupCounts = serde_json::from_value(told).unwrap();
        assert_eq!(counts.origin.bytes, 5);
        assert_eq!(counts.disk, DiskUse::default());
    }
}
