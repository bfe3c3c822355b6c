//! What a core counts. Plain numbers, copied out on request; cores are added up by the asker.

use std::fmt;

use hdrhistogram::Histogram;

use crate::disk::DiskStats;

mod handover;

pub use handover::{HandoverStats, TakeoverStats};

/// Why bytes were read from the origin. Every byte that arrives is booked once, so the reasons
/// add up to what the origin itself counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// A reader asked, and this node never held the bytes (as far as its ghosts remember).
    Cold,
    /// Read ahead of any reader.
    Prefetch,
    /// Arrived, but in an attempt that failed before they were whole; read again.
    Retry,
    /// Of a block that had been evicted not long ago, or that a device held and could not give back.
    Evicted,
    /// The member that owns the bytes, or owned them before, did not answer, or does not reach the origin.
    RingMoved,
    /// A time to live had ended.
    Expired,
    /// Arrived for a version that the origin no longer has.
    VersionChanged,
    /// The cached bytes had failed their checksum.
    Checksum,
}

impl Reason {
    /// All reasons, in the order of their booking.
    pub const ALL: [Reason; 8] = [
        Reason::Cold,
        Reason::Prefetch,
        Reason::Retry,
        Reason::Evicted,
        Reason::RingMoved,
        Reason::Expired,
        Reason::VersionChanged,
        Reason::Checksum,
    ];

    /// The name that users see.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Cold => "cold",
            Reason::Prefetch => "prefetch",
            Reason::Retry => "retry",
            Reason::Evicted => "evicted",
            Reason::RingMoved => "ring-moved",
            Reason::Expired => "expired",
            Reason::VersionChanged => "version-changed",
            Reason::Checksum => "checksum",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The miss ledger: origin bytes by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger([u64; Reason::ALL.len()]);

impl Ledger {
    /// Books `bytes`.
    pub fn book(&mut self, reason: Reason, bytes: u64) {
        self.0[reason as usize] += bytes;
    }

    /// Bytes booked under `reason`.
    pub fn bytes(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// All bytes that came from the origin.
    pub fn total_bytes(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// The origin refuses a node: its credentials, or its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For how long, nanoseconds.
    pub since_ns: u64,
    /// How long ago it did so last, nanoseconds.
    pub last_ns: u64,
    /// Its words.
    pub error: Box<str>,
}

/// Counters of one core, or of several added up.
#[derive(Clone, Debug)]
pub struct CoreStats {
    /// Reads answered with bytes.
    pub reads: u64,
    /// Bytes they got.
    pub read_bytes: u64,
    /// Reads answered from memory without waiting.
    pub memory_hits: u64,
    /// Bytes of those.
    pub memory_hit_bytes: u64,
    /// Reads that waited for the disk tier and needed nothing from farther away.
    pub disk_hits: u64,
    /// Bytes of those.
    pub disk_hit_bytes: u64,
    /// Reads that waited for another member and needed nothing from the origin by themselves.
    pub group_hits: u64,
    /// Bytes of those.
    pub group_hit_bytes: u64,
    /// Reads that waited for the origin.
    pub misses: u64,
    /// Bytes of those.
    pub miss_bytes: u64,
    /// Of the misses, reads that joined a fetch already under way.
    pub joined: u64,
    /// Reads answered with an error.
    pub read_errors: u64,
    /// Of those, by deadline.
    pub read_timeouts: u64,
    /// Reads that wait now.
    pub reads_waiting: u64,
    /// GETs sent, attempts counted each.
    pub gets: u64,
    /// HEADs sent.
    pub heads: u64,
    /// Listing pages asked for.
    pub lists: u64,
    /// Attempts after a failed one.
    pub retries: u64,
    /// Attempts that failed, of every kind but "not found" and cancellation.
    pub origin_errors: u64,
    /// Questions for names that were answered as last known, because the origin did not answer.
    pub stale_answers: u64,
    /// How often it was found that the origin does not answer, on each core.
    pub outages: u64,
    /// How long it has not answered now, nanoseconds; 0: it does, as far as is known.
    pub outage_ns: u64,
    /// How an attempt failed last, while it does not answer.
    pub outage_error: Option<Box<str>>,
    /// How long ago the origin gave something, nanoseconds; none: it never did.
    pub granted_ns: Option<u64>,
    /// It refuses this node, and has given nothing since on that core.
    pub refusal: Option<Refusal>,
    /// Requests for bytes sent to other members, attempts counted each.
    pub pulls: u64,
    /// Bytes that other members sent.
    pub pulled_bytes: u64,
    /// Requests to other members that were not answered.
    pub peer_failures: u64,
    /// Requests of other members answered with bytes.
    pub serves: u64,
    /// Bytes of those.
    pub served_bytes: u64,
    /// Requests of other members answered without: not cached, not the owner, name needed, busy.
    pub serves_declined: u64,
    /// Requests of other members that failed here.
    pub serve_errors: u64,
    /// Requests of other nodes that were for another endpoint than this node's origin.
    pub elsewhere: u64,
    /// Origin bytes by reason.
    pub ledger: Ledger,
    /// A member that leaves: what it hands over.
    pub handover: HandoverStats,
    /// What was taken over from members that leave.
    pub takeover: TakeoverStats,
    /// Blocks evicted.
    pub evictions: u64,
    /// Pages that failed their checksum.
    pub checksum_failures: u64,
    /// Prefetches dropped for want of room.
    pub prefetch_dropped: u64,
    /// Blocks in the index.
    pub blocks: u64,
    /// Arena size.
    pub memory_bytes: u64,
    /// Of that, in huge pages that the machine has reserved.
    pub memory_reserved_bytes: u64,
    /// Bytes of the arena that cache.
    pub memory_used_bytes: u64,
    /// Bytes of the arena in flight.
    pub memory_in_flight_bytes: u64,
    /// Latency of reads answered from memory, nanoseconds.
    pub hit_latency_ns: Histogram<u64>,
    /// Latency of reads that waited for another member, nanoseconds.
    pub group_latency_ns: Histogram<u64>,
    /// Latency of reads answered from disk, nanoseconds.
    pub disk_latency_ns: Histogram<u64>,
    /// The disk tier.
    pub disk: DiskStats,
    /// Latency of reads that waited for the origin, nanoseconds.
    pub miss_latency_ns: Histogram<u64>,
}

/// Longest latency that the histograms tell apart.
const LATENCY_NS_MAX: u64 = 1 << 37;

impl Default for CoreStats {
    fn default() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).expect("constant bounds are valid");
        Self {
            reads: 0,
            read_bytes: 0,
            memory_hits: 0,
            memory_hit_bytes: 0,
            disk_hits: 0,
            disk_hit_bytes: 0,
            group_hits: 0,
            group_hit_bytes: 0,
            misses: 0,
            miss_bytes: 0,
            joined: 0,
            read_errors: 0,
            read_timeouts: 0,
            reads_waiting: 0,
            gets: 0,
            heads: 0,
            lists: 0,
            retries: 0,
            origin_errors: 0,
            stale_answers: 0,
            outages: 0,
            outage_ns: 0,
            outage_error: None,
            granted_ns: None,
            refusal: None,
            pulls: 0,
            pulled_bytes: 0,
            peer_failures: 0,
            serves: 0,
            served_bytes: 0,
            serves_declined: 0,
            serve_errors: 0,
            elsewhere: 0,
            ledger: Ledger::default(),
            handover: HandoverStats::default(),
            takeover: TakeoverStats::default(),
            evictions: 0,
            checksum_failures: 0,
            prefetch_dropped: 0,
            blocks: 0,
            memory_bytes: 0,
            memory_reserved_bytes: 0,
            memory_used_bytes: 0,
            memory_in_flight_bytes: 0,
            hit_latency_ns: histogram(),
            disk_latency_ns: histogram(),
            group_latency_ns: histogram(),
            disk: DiskStats::default(),
            miss_latency_ns: histogram(),
        }
    }
}

impl CoreStats {
    /// The refusal that nothing given since, on any core, has made void.
    pub fn standing_refusal(&self) -> Option<&Refusal> {
        let refusal = self.refusal.as_ref()?;
        let is_void = self.granted_ns.is_some_and(|ns| ns < refusal.last_ns);
        (!is_void).then_some(refusal)
    }

    /// Adds another core's counters.
    pub fn add(&mut self, other: &CoreStats) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.memory_hits += other.memory_hits;
        self.memory_hit_bytes += other.memory_hit_bytes;
        self.disk_hits += other.disk_hits;
        self.disk_hit_bytes += other.disk_hit_bytes;
        self.group_hits += other.group_hits;
        self.group_hit_bytes += other.group_hit_bytes;
        self.misses += other.misses;
        self.miss_bytes += other.miss_bytes;
        self.joined += other.joined;
        self.read_errors += other.read_errors;
        self.read_timeouts += other.read_timeouts;
        self.reads_waiting += other.reads_waiting;
        self.gets += other.gets;
        self.heads += other.heads;
        self.lists += other.lists;
        self.retries += other.retries;
        self.origin_errors += other.origin_errors;
        self.stale_answers += other.stale_answers;
        self.outages += other.outages;
        self.outage_ns = self.outage_ns.max(other.outage_ns);
        self.outage_error = self
            .outage_error
            .take()
            .or_else(|| other.outage_error.clone());
        self.granted_ns = [self.granted_ns, other.granted_ns]
            .into_iter()
            .flatten()
            .min();
        let refusals = [self.refusal.take(), other.refusal.clone()];
        self.refusal = refusals
            .into_iter()
            .flatten()
            .min_by_key(|refusal| refusal.last_ns);
        self.pulls += other.pulls;
        self.pulled_bytes += other.pulled_bytes;
        self.peer_failures += other.peer_failures;
        self.serves += other.serves;
        self.served_bytes += other.served_bytes;
        self.serves_declined += other.serves_declined;
        self.serve_errors += other.serve_errors;
        self.elsewhere += other.elsewhere;
        for reason in Reason::ALL {
            self.ledger.book(reason, other.ledger.bytes(reason));
        }
        self.handover.add(&other.handover);
        self.takeover.add(&other.takeover);
        self.evictions += other.evictions;
        self.checksum_failures += other.checksum_failures;
        self.prefetch_dropped += other.prefetch_dropped;
        self.blocks += other.blocks;
        self.memory_bytes += other.memory_bytes;
        self.memory_reserved_bytes += other.memory_reserved_bytes;
        self.memory_used_bytes += other.memory_used_bytes;
        self.memory_in_flight_bytes += other.memory_in_flight_bytes;
        let _ = self.hit_latency_ns.add(&other.hit_latency_ns);
        let _ = self.disk_latency_ns.add(&other.disk_latency_ns);
        let _ = self.group_latency_ns.add(&other.group_latency_ns);
        self.disk.add(&other.disk);
        let _ = self.miss_latency_ns.add(&other.miss_latency_ns);
    }
}
