//! Every bound and time of this crate. Those of the protocol are in `forebay_engine::limits`.

use forebay_engine::limits::{CALL_BYTES_MAX, PAYLOAD_PARTS_MAX};
use forebay_engine::wire::header::{ANSWER_BYTES, CHECKSUMS_MAX, REQUEST_BYTES};

/// How long a queue pair waits for an acknowledgement, as the exponent of 4.096 us: 537 ms. Long enough for an
/// emulated guest on a busy machine; a peer that is gone is told by its connection, not by this.
pub const ACK_TIMEOUT_EXPONENT: u8 = 17;
/// How often unacknowledged work is sent again before it fails. The wire format has three bits.
pub const RETRIES_MAX: u8 = 7;
/// How often work is sent again to a peer that has no receive posted. Seven would mean for ever.
pub const RECEIVER_NOT_READY_RETRIES_MAX: u8 = 6;
/// What such a peer is asked to be given until the next try, by the table of the InfiniBand specification:
/// 0.64 ms. The kernel's SoftRoCE does not work well with shorter ones.
pub const RECEIVER_NOT_READY_TIMER: u8 = 12;
/// READs that one queue pair has under way, each way, where the device can so many.
pub const READS_UNDER_WAY_MAX: u8 = 16;
/// Hops that a packet may take between routed (RoCEv2) peers.
pub const HOPS_MAX: u8 = 64;
/// Completions that one look at a queue takes.
pub const COMPLETIONS_A_POLL: usize = 16;
/// Largest message that a queue pair carries. The specification's bound is 2 GiB.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Device memory mappings begin on such a boundary.
pub const PAGE_BYTES: usize = 4096;

/// Bytes that travel along with the making of a connection, at most: what InfiniBand's leave after rdma_cm's own.
pub const PRIVATE_BYTES_MAX: usize = 56;

/// How long making a connection may take, from asking over TCP to its first message.
pub const INTRODUCE_MS: u64 = 5_000;
/// How long the kernel may look for an address or a route.
pub const RESOLVE_MS: u64 = 2_000;
/// Requests for connections that wait to be looked at.
pub const BACKLOG: i32 = 256;
/// An address that cannot be listened at (its device is away) is tried again after so long.
pub const LISTEN_PAUSE_MS: u64 = 5_000;
/// A connection that carried nothing for so long is closed by who asks on it,
pub const IDLE_S: u64 = 300;
/// and after so long by who serves on it: the asker's machine may be gone.
pub const IDLE_SERVING_S: u64 = 2 * IDLE_S;
/// One that is to make room for another has carried nothing for so long.
pub const IDLE_FOR_ROOM_S: u64 = 5;
/// A link on which so many bytes are asked for at once gets a connection by each rail.
pub const STRIPE_BYTES: u64 = 1 << 20;
/// When one of those could not be made, it is tried again after so long.
pub const STRIPE_PAUSE_S: u64 = 60;
/// A connection that held for so long is made the same way again.
pub const HELD_S: u64 = 60;
/// A core whose device broke tries to open it again after so long.
pub const REOPEN_PAUSE_MS: u64 = 5_000;
/// A port that is down is looked at again after so long, though its device tells nothing.
pub const LOOK_PAUSE_MS: u64 = 5_000;
/// A core that does not sleep looks so often whether a device tells of a port; one that sleeps is woken.
pub const NEWS_PAUSE_MS: u64 = 100;
/// Of one port a line is logged in so long,
pub const PORT_LINE_S: u64 = 60;
/// but so many at once after it was quiet: its going down, and its coming up.
pub const PORT_LINES: u32 = 2;
/// Events that a core takes of a device at once.
pub const NEWS_A_TURN: usize = 64;

/// Bytes of a ticket, by which a peer that was proven over TCP is known to rdma_cm.
pub const TICKET_BYTES: usize = 16;
/// How long a ticket lets in.
pub const TICKET_LIFE_MS: u64 = 5_000;
/// Tickets that one member has open: as many as cores of other members may be introduced within the life of one.
pub const TICKETS_MAX: usize = 4_096;
/// Addresses in one offer: one for each rail.
pub const OFFER_ADDRESSES_MAX: usize = 8;

/// Bytes of the place where an answer's bytes go, as it travels: address 8, key 4, length 4.
pub const DESTINATION_BYTES: usize = 16;
/// Bytes of a request's first message.
pub const REQUEST_MESSAGE_BYTES: usize = REQUEST_BYTES + DESTINATION_BYTES;
/// The longest message: an answer with a checksum for each page of a chunk.
pub const SLOT_BYTES: usize = ANSWER_BYTES + 4 * CHECKSUMS_MAX;
/// Messages that a request consists of at most: its first one, and those with a call's body.
pub const REQUEST_MESSAGES_MAX: usize = 1 + CALL_BYTES_MAX.div_ceil(SLOT_BYTES);
/// Receives that the serving end keeps posted for each connection, and so messages that may be on their way to it.
pub const RECEIVES: u16 = 128;
/// A request that was given up is not answered for so long: the connection is ended, so that its lease can come back.
pub const FLUSH_MS: u64 = 250;
/// A connection that ended waits for so long for its receives to come back before its queue pair is destroyed all
/// the same.
pub const DRAIN_MS: u64 = 250;
/// A queue pair that the device did not destroy is tried again after so long.
pub const DESTROY_PAUSE_MS: u64 = 1_000;
/// A new connection is tried out with a write of so many bytes before anything is asked on it: two packets of the longest kind.
pub const TRIAL_BYTES: usize = 8_192;
/// What is not written by then is not going to come.
pub const TRIAL_MS: u64 = 3_000;
/// Messages of a trial: one that is answered by a message alone, and one by the write as well.
pub const TRIALS: u16 = 2;
/// Sends and writes that a connection has under way.
pub const SENDS: u32 = 128;
/// Work between two completions that are asked for, at most.
pub const UNSIGNALLED_MAX: u64 = SENDS as u64 / 4;
/// Messages under way that are too long to travel inline, or answers.
pub const SEND_SLOTS: usize = 64;
/// Pieces of memory that one write is gathered from, where the device can so many.
pub const ELEMENTS_MAX: u32 = PAYLOAD_PARTS_MAX as u32;
/// Completions that one core takes before its disk, its origin and its readers have their turn.
pub const COMPLETIONS_A_TURN: usize = 256;
/// Connections of one core by one device, both ways, where its configuration does not say and the device has as many
/// completions. Each has some 200 KiB of locked memory.
pub const CONNECTIONS_MAX: usize = 256;

const _: () = {
    // Unsignalled work is bounded below half the queue, and a call's question fits.
    assert!(2 * UNSIGNALLED_MAX < SENDS as u64);
    assert!(SEND_SLOTS >= REQUEST_MESSAGES_MAX);
    assert!(PAYLOAD_PARTS_MAX < SENDS as usize);
    assert!(REQUEST_MESSAGE_BYTES <= 128, "a request travels inline");
    assert!(REQUEST_MESSAGE_BYTES <= SLOT_BYTES);
    // With its cancel, and room for the next one.
    assert!(RECEIVES as usize >= 2 * (REQUEST_MESSAGES_MAX + 1) + TRIALS as usize);
    assert!(TRIAL_BYTES <= forebay_engine::limits::CHUNK_BYTES);
};
