//! Bounds and times of the transport. Those of the protocol are in `forebay_engine::limits`.

use forebay_engine::limits::{CHUNK_BYTES, PAYLOAD_PARTS_MAX, PEER_CREDIT_BYTES_MIN};

/// Bytes of answers under way that a connection is granted.
pub const CREDIT_BYTES_DEFAULT: u32 = 16 << 20;
/// Time to connect to one address.
pub const CONNECT_MS: u64 = 1_000;
/// Time for the whole handshake.
pub const HANDSHAKE_MS: u64 = 2_000;
/// What a refused connection still sends is read for so long,
pub const FAREWELL_MS: u64 = 200;
/// and up to so many bytes, so that the refusal arrives.
pub const FAREWELL_BYTES_MAX: usize = 4 << 10;
/// Connections that have not proven anything yet.
pub const UNPROVEN_MAX: usize = 256;
/// Of those, from one address: a stranger alone does not keep members out.
pub const UNPROVEN_PER_ADDRESS_MAX: usize = 64;
/// Connections that one core answers on.
pub const SERVING_PER_CORE_MAX: usize = 16_384;
/// Proven control connections that nobody has taken yet.
pub const CONTROL_WAITING_MAX: usize = 64;

/// Proven connections for RDMA that nobody has taken yet.
pub const INTRODUCTIONS_WAITING_MAX: usize = 256;

/// First pause after a failed or broken connection.
pub const BACKOFF_FIRST_MS: u64 = 100;
/// The pause doubles up to this.
pub const BACKOFF_MAX_MS: u64 = 3_000;
/// A connection that carried nothing for so long is closed by who asks on it.
pub const IDLE_S: u64 = 300;
/// A connection on which a given-up request stays unanswered for so long is broken off: its credit is needed.
pub const GIVEN_UP_MS: u64 = 10_000;
/// Connections are looked at for the two limits above at most this often.
pub const SWEEP_MS: u64 = 1_000;

/// A host that does not acknowledge bytes for so long, or takes none, is gone.
pub const USER_TIMEOUT_MS: u32 = 6_000;
/// An idle connection is probed after so many seconds,
pub const KEEPALIVE_IDLE_S: u64 = 3;
/// every so many seconds,
pub const KEEPALIVE_INTERVAL_S: u64 = 1;
/// and is gone after so many probes without an answer.
pub const KEEPALIVE_PROBES: u32 = 4;

/// Bytes that a connection receives at once beside those that go straight to their lease.
pub const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Buffers of that size that a core keeps for the next connections with something to say.
pub const SPARE_BUFFERS_MAX: usize = 16;
/// Bytes taken from one connection before the next one has its turn.
pub const READ_BUDGET_BYTES: usize = 2 * CHUNK_BYTES;
/// Bytes taken from all connections of a core in one turn: what else the core has to do waits no longer.
pub const TURN_READ_BYTES: usize = 4 * CHUNK_BYTES;
/// Frames are handed to the socket in batches of so many bytes: what is urgent waits for one batch at most.
pub const WRITE_BATCH_BYTES: usize = 256 << 10;
/// Slices of one write.
pub const WRITE_SLICES_MAX: usize = 128;
/// Sockets looked at in one wait.
pub const WAIT_EVENTS_MAX: usize = 64;

const _: () = {
    assert!(CREDIT_BYTES_DEFAULT as usize >= PEER_CREDIT_BYTES_MIN);
    assert!(
        WRITE_SLICES_MAX > PAYLOAD_PARTS_MAX,
        "a frame goes out in one write"
    );
    assert!(WRITE_SLICES_MAX <= 1_024, "IOV_MAX");
    assert!(UNPROVEN_PER_ADDRESS_MAX < UNPROVEN_MAX);
};
