//! Every bound of the engine, in one place. Units stand last in each name.
//!
//! A table, queue or buffer that grows with load has its limit here; what the limits must satisfy
//! together is checked at compile time at the end of this file.

/// A page: the unit of checksums.
pub const PAGE_BYTES: usize = 4 << 10;
/// A sub-block: the unit of presence and of fills.
pub const SUB_BLOCK_BYTES: usize = 64 << 10;
/// A block: the unit of identity and of eviction.
pub const BLOCK_BYTES: usize = 4 << 20;
/// A stripe: the unit of placement. One core (and later one owner) sees all of it.
pub const STRIPE_BYTES: usize = 16 << 20;
/// The largest buffer class, and the largest transfer.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Sub-blocks in a block: one bit each in a `u64`.
pub const SUB_BLOCKS_PER_BLOCK: usize = BLOCK_BYTES / SUB_BLOCK_BYTES;
/// Pages in a sub-block.
pub const PAGES_PER_SUB_BLOCK: usize = SUB_BLOCK_BYTES / PAGE_BYTES;
/// Chunks (largest buffers) in a block.
pub const CHUNKS_PER_BLOCK: usize = BLOCK_BYTES / CHUNK_BYTES;
/// Sub-blocks in a chunk.
pub const SUB_BLOCKS_PER_CHUNK: usize = CHUNK_BYTES / SUB_BLOCK_BYTES;
/// Blocks in a stripe.
pub const BLOCKS_PER_STRIPE: usize = STRIPE_BYTES / BLOCK_BYTES;

/// The longest read that a front end may ask for in one request.
pub const READ_BYTES_MAX: usize = CHUNK_BYTES;
/// The longest ranged GET. Long enough that its first byte's delay is a small part of it, short
/// enough that a sequential reader's window has several under way.
pub const GET_BYTES_MAX: usize = 2 * BLOCK_BYTES;
/// One GET takes at most one part in this many of a core's arena, so that several fit.
pub const GET_ARENA_SHARE: usize = 8;

/// The largest object: a block's index is 32 bits wide. S3's own limit is far below.
pub const OBJECT_BYTES_MAX: u64 = (u32::MAX as u64) * BLOCK_BYTES as u64;

/// Slots of the placement table.
pub const SLOTS: u32 = 65_536;
/// Members of a slot that a placement ranks: its owner, and two who stand in.
pub const RANKS: usize = 3;
/// Views before the present one that a core remembers.
pub const EARLIER_VIEWS_MAX: usize = 8;
/// A stand-in waits for the owner at most one part in this many of `--io-timeout`: whoever asked it waits too.
pub const STAND_IN_PATIENCE: u32 = 15;
/// A pull that waits for room at a peer looks again after so long.
pub const PULL_RETRY_MS: u64 = 20;
/// Owners in earlier views that are asked for a range before the origin is.
pub const EARLIER_OWNERS_MAX: usize = 2;
/// What one core remembers of the names of object versions that peers told it.
pub const NAMES_BYTES_MAX: usize = 8 << 20;
/// What one core remembers of the origin's answers about names that it owns.
pub const FINDINGS_BYTES_MAX: usize = 8 << 20;
/// Requests to peers that one core knows of, queued or under way. Prefetches beyond it are dropped.
pub const PULLS_PER_CORE_MAX: usize = 4_096;
/// Of those under way, prefetches.
pub const PREFETCH_PULLS_PER_CORE_MAX: usize = 64;
/// What peers' requests wait for in memory, and what is lent to peers, each takes at most one part in this many of
/// a core's arena.
pub const SERVE_ARENA_SHARE: usize = 4;
/// What warm-ups wait for in memory, and what readers wait for from this node's disks, takes at most one part in this
/// many of a core's arena each.
pub const HERE_ARENA_SHARE: usize = 8;
/// What warm-ups have read, or are reading, and the disks have not written yet takes at most one part in this many of
/// a core's arena. More than writes may hold would only wait for them, and be evicted meanwhile.
pub const WARM_ARENA_SHARE: usize = DISK_WRITE_SHARE;
/// Warm-ups, checks and evictions of ranges that one core has under way.
pub const JOBS_PER_CORE_MAX: usize = 1_024;
/// Blocks that one core of a member that leaves offers to others at a time,
pub const HANDOVER_CALLS_MAX: usize = 256;
/// and their bytes, or with `--peer-limit` what passes in so many seconds, if that is less.
pub const HANDOVER_BYTES_MAX: usize = 64 << 20;
/// See [`HANDOVER_BYTES_MAX`].
pub const HANDOVER_LIMITED_S: u64 = 4;
/// Blocks that one core is taking over from members that leave at a time; more are told to come back.
pub const TAKES_PER_CORE_MAX: usize = 1_024;
/// How often a range is asked for again at one peer that forgot a name.
pub const NEED_NAME_MAX: u8 = 3;
/// Serving members of one group.
pub const MEMBERS_MAX: usize = 4_096;
/// The longest question of a call to a peer: an object's description with a key of 1,024 bytes, a listing's prefix.
pub const CALL_BYTES_MAX: usize = 8 << 10;
/// The longest endpoint of a bucket's name on the wire.
pub const ENDPOINT_BYTES_MAX: usize = 1_024;
/// The longest name of a bucket on the wire.
pub const BUCKET_BYTES_MAX: usize = 255;
/// The longest ETag on the wire.
pub const ETAG_BYTES_MAX: usize = 1_024;
/// The longest continuation of a listing on the wire: an origin's, and a key behind which a cut page goes on.
pub const CONTINUATION_BYTES_MAX: usize = 4 << 10;
/// The longest text about a failure on the wire; a longer one is cut.
pub const DETAIL_BYTES_MAX: usize = 1_024;
/// The longest name of a group.
pub const GROUP_BYTES_MAX: usize = 255;
/// Bytes of answers that a member grants each connection at least: two transfers of the largest size.
pub const PEER_CREDIT_BYTES_MIN: usize = 2 * CHUNK_BYTES;
/// A request to a peer counts for at least so many bytes of its connection's credit, so that their number is bounded.
pub const PEER_REQUEST_BYTES_MIN: usize = PAGE_BYTES;
/// Fetches of one peer, of one urgency, that wait in one core's line; more are told to come back. It is what four
/// connections may ask at a time; one that asks and gives up in a loop could ask for ever.
pub const PEER_LINE_MAX: usize = 16_384;
/// Slices that one answer to a peer consists of: a chunk in sub-blocks.
pub const PAYLOAD_PARTS_MAX: usize = SUB_BLOCKS_PER_CHUNK;
/// Engine cores in one process.
pub const CORES_MAX: usize = 256;
/// Entries of a core's request ring. The kernel bounds what a mount has under way well below this
/// (`max_background` for read-ahead and asynchronous I/O, one for each thread that reads).
pub const RING_ENTRIES: usize = 16_384;
/// Reads that one core has accepted and not answered; more stay in the ring.
pub const READS_PER_CORE_MAX: usize = 16_384;
/// Metadata requests that one core has under way; more stay in the ring.
pub const METADATA_PER_CORE_MAX: usize = 4_096;
/// Peers whose questions about metadata one core is asking the origin; others are told to come again. The rest of
/// [`METADATA_PER_CORE_MAX`] is for this node's own.
pub const PEER_QUESTIONS_PER_CORE_MAX: usize = METADATA_PER_CORE_MAX / 2;
/// Fills that one core knows of, queued or running. Prefetches beyond it are dropped.
pub const FILLS_PER_CORE_MAX: usize = 4_096;
/// GETs that one core has at the origin at a time.
pub const GETS_PER_CORE_MAX: usize = 64;
/// Of those, GETs that only prefetch: the rest is for readers that wait.
pub const PREFETCH_GETS_PER_CORE_MAX: usize = 48;
/// Requests taken from the ring in one turn.
pub const RING_BUDGET: usize = 256;
/// Requests taken from the ring ahead of the one that is answered, so that their bytes come nearer meanwhile.
pub const RING_AHEAD: usize = 4;
/// Completions taken from one port in one turn.
pub const POLL_BUDGET: usize = 256;
/// Completions taken from one disk in one turn: few, so that what is asked for next reaches it while it
/// still has the rest to do.
pub const DISK_POLL_BUDGET: usize = 4;

/// The smallest arena that one core can work with.
pub const ARENA_BYTES_MIN: usize = 16 << 20;
/// Bytes that a block with one small piece takes beside its buffer: entry, map slot, queue links,
/// table of pieces, checksums, rounded up. `core::index` checks its part of it.
pub const INDEX_ENTRY_BYTES: usize = 1_216;
/// The index may take one part in this many of a core's memory.
pub const INDEX_SHARE: usize = 16;
/// Ghost entries kept for each sub-block that the memory tier could hold.
pub const GHOSTS_PER_SUB_BLOCK: usize = 4;
/// The hit counter of an S3-FIFO entry saturates here.
pub const HITS_MAX: u8 = 3;
/// S3-FIFO's small queue holds one part in this many of the memory tier.
pub const SMALL_QUEUE_SHARE: usize = 10;

/// First back-off after a failed origin attempt, before jitter.
pub const BACKOFF_FIRST_MS: u64 = 50;
/// Back-off grows to this, before jitter.
pub const BACKOFF_MAX_MS: u64 = 2_000;
/// An origin attempt without progress is given up after the deadline's span divided by this.
pub const ATTEMPTS_PER_DEADLINE: u32 = 3;
/// Times that bytes may fail their checksum within one read before the read fails: as often as all of its sub-blocks
/// may when peers send them wrong, twice each before they are read from the origin.
pub const CHECKSUM_RETRIES_MAX: u8 = 2 * (SUB_BLOCKS_PER_CHUNK as u8 + 1);

/// Reads shorter than this are not checked ahead of: their own check costs next to nothing.
pub const CHECK_AHEAD_BYTES_MIN: usize = 128 << 10;
/// A check ahead of a read counts for this long.
pub const CHECK_VALID_US: u64 = 1_000;

/// One line of each kind of failure is logged in so many seconds; the rest is counted.
pub const LOG_EVERY_S: u64 = 10;

/// Longest key that S3 allows.
pub const KEY_BYTES_MAX: usize = 1_024;
/// Longest file name that Linux allows.
pub const NAME_BYTES_MAX: usize = 255;
/// Entries asked for in one listing page.
pub const LIST_PAGE_ENTRIES: u32 = 1_000;

/// Memory that one entry of the disk index takes, its hash bucket and its ghost included.
pub const DISK_ENTRY_BYTES: usize = 64;
/// Devices of one core.
pub const DEVICES_MAX: usize = 64;
/// A batch of the region log closes when it holds so many bytes,
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// so many entries,
pub const BATCH_ENTRIES_MAX: usize = 512;
/// or is so old.
pub const BATCH_DELAY_MS: u64 = 100;
/// One that a warm-up waits for closes this soon while others are about to bring more, else at once.
pub const BATCH_AWAITED_MS: u64 = 5;
/// A read from a device that takes longer is given up: the bytes come from the next source.
pub const DEVICE_READ_MS_MAX: u64 = 1_000;
/// A device of whose writes and flushes none ends for so many seconds is retired.
pub const DEVICE_WRITE_S_MAX: u64 = 60;
/// So is a device of whose reads for recovery none ends for so many seconds.
pub const DEVICE_RECOVERY_READ_S_MAX: u64 = 60;
/// And so is one of whose reads for reclaim none ends for so many seconds: without them no room is made any more.
pub const DEVICE_RECLAIM_READ_S_MAX: u64 = 60;
/// Faults after which a device is retired; one is forgiven every [`DEVICE_FAULT_FORGIVEN_S`].
pub const DEVICE_FAULTS_MAX: u32 = 64;
/// One fault is forgiven in so many seconds.
pub const DEVICE_FAULT_FORGIVEN_S: u64 = 10;
/// Writes may hold one part in this many of the arena; fills beyond it are not kept.
pub const DISK_WRITE_SHARE: usize = 4;
/// With what reclaim moves, and what is not cached any more but still being written, writes may hold one
/// part in this many: the rest is for the reads that are admitted and for the disk tier's own buffers.
pub const DISK_HELD_SHARE: usize = 2;
/// One part in this many of a core's arena is reserved for the disk tier's own buffers.
pub const DISK_ARENA_SHARE: usize = 8;
/// After eviction brought the disk tier no buffer, nothing more is evicted for it for so long.
pub const DISK_EVICTION_PAUSE_MS: u64 = 10;
/// A read of at most so many bytes is answered from disk without bringing its sub-blocks to memory,
pub const DIRECT_READ_BYTES_MAX: usize = 32 << 10;
/// until the sub-block that it begins in was read so so many times not long ago.
pub const DIRECT_READS_MAX: u32 = 2;
/// One counter of such reads for so many bytes of memory: a counter is shared, and a sub-block keeps
/// it only while it is read more often than the others together.
pub const DIRECT_COUNTER_BYTES: usize = 4 * SUB_BLOCK_BYTES;
/// Reads from disk ahead of readers that one core has under way at a time.
pub const PREFETCH_LOADS_PER_CORE_MAX: usize = 32;

/// The default of `--io-timeout`.
pub const IO_TIMEOUT_DEFAULT_MS: u64 = 30_000;

const _: () = {
    assert!(SUB_BLOCKS_PER_BLOCK == u64::BITS as usize);
    assert!(BLOCK_BYTES.is_multiple_of(CHUNK_BYTES) && CHUNK_BYTES.is_multiple_of(SUB_BLOCK_BYTES));
    assert!(STRIPE_BYTES.is_multiple_of(BLOCK_BYTES) && SUB_BLOCK_BYTES.is_multiple_of(PAGE_BYTES));
    assert!(
        READ_BYTES_MAX <= CHUNK_BYTES,
        "a read touches two blocks at most"
    );
    assert!(
        GET_BYTES_MAX <= STRIPE_BYTES,
        "a fill stays within one core's stripe"
    );
    assert!(
        PREFETCH_GETS_PER_CORE_MAX < GETS_PER_CORE_MAX,
        "readers keep GETs of their own"
    );
    assert!(
        ARENA_BYTES_MIN >= 4 * 2 * CHUNK_BYTES,
        "two-part reads of several readers fit"
    );
    assert!(SLOTS.is_power_of_two() && CORES_MAX <= SLOTS as usize);
    assert!(
        ENDPOINT_BYTES_MAX + BUCKET_BYTES_MAX + KEY_BYTES_MAX + ETAG_BYTES_MAX + 256
            <= CALL_BYTES_MAX
            && ENDPOINT_BYTES_MAX + BUCKET_BYTES_MAX + KEY_BYTES_MAX + CONTINUATION_BYTES_MAX + 256
                <= CALL_BYTES_MAX,
        "every question fits"
    );
    assert!(BACKOFF_FIRST_MS > 0 && BACKOFF_FIRST_MS <= BACKOFF_MAX_MS);
};
