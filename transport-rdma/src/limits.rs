//! Every bound and time of this crate.

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
