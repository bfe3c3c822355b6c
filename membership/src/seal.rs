//! Datagrams that only the group's members can make.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | `FBG` and the version |
//! | 8 | which group |
//! | 8 | when it was sealed, milliseconds since 1970 |
//! | 4, 1, 1 | message, part, parts ([`crate::fragments`]) |
//! | ... | payload |
//! | 32 | keyed BLAKE3 over all that precedes |
//!
//! Numbers are little-endian. A datagram that is recorded and sent again is dropped ([`crate::replays`]); one that is
//! no longer remembered changes nothing, since chitchat takes only newer versions and later heartbeats.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::identity::group_tag;
use crate::secret::Secret;

const MAGIC: [u8; 4] = *b"FBG\x01";
const HEADER_BYTES: usize = 26;
const MAC_BYTES: usize = 32;

/// Clocks of two members may differ by so much.
pub const SKEW_MAX_MS: u64 = 5 * 60 * 1000;

/// Payload of one datagram: with headers it fits the smallest packet that IPv6 and overlay networks carry, so that
/// nothing depends on IP fragments, which many of them drop.
pub const PAYLOAD_BYTES_MAX: usize = 1_150;

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Not a datagram of ours, or of another version.
    Foreign,
    /// Of another group.
    OtherGroup,
    /// Its sender does not know the group's secret.
    Unproven,
    /// From another machine, although there is no secret.
    NotLoopback,
    /// Sealed at a time too far from this clock's; milliseconds ahead of it.
    Skewed(i64),
    /// It came before.
    Replayed,
    /// Sealed by a member, but not readable: another version of the software.
    Unreadable,
}

/// How many datagrams were dropped, by reason.
#[derive(Debug, Default)]
pub struct DropCounts {
    foreign: AtomicU64,
    other_group: AtomicU64,
    unproven: AtomicU64,
    not_loopback: AtomicU64,
    skewed: AtomicU64,
    replayed: AtomicU64,
    unreadable: AtomicU64,
}

impl DropCounts {
    /// Counts one; returns how many there are now.
    pub(crate) fn count(&self, why: Dropped) -> u64 {
        let counter = match why {
            Dropped::Foreign => &self.foreign,
            Dropped::OtherGroup => &self.other_group,
            Dropped::Unproven => &self.unproven,
            Dropped::NotLoopback => &self.not_loopback,
            Dropped::Skewed(_) => &self.skewed,
            Dropped::Replayed => &self.replayed,
            Dropped::Unreadable => &self.unreadable,
        };
        counter.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Names and counts.
    pub fn read(&self) -> [(&'static str, u64); 7] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("foreign", of(&self.foreign)),
            ("other_group", of(&self.other_group)),
            ("unproven", of(&self.unproven)),
            ("not_loopback", of(&self.not_loopback)),
            ("skewed", of(&self.skewed)),
            ("replayed", of(&self.replayed)),
            ("unreadable", of(&self.unreadable)),
        ]
    }
}

/// Part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    /// Which message of its sender.
    pub message: u32,
    /// Which part of it, from 0.
    pub part: u8,
    /// How many there are, at least 1.
    pub parts: u8,
    /// The bytes.
    pub payload: &'a [u8],
}

/// Seals and opens a group's datagrams.
#[derive(Clone, Debug)]
pub(crate) struct Sealer {
    key: [u8; 32],
    group: u64,
    has_secret: bool,
}

impl Sealer {
    /// For a group. Without a secret only loopback is trusted.
    pub fn new(group: &str, secret: Option<&Secret>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("forebay gossip v1");
        let secret_bytes = secret.map(Secret::bytes).unwrap_or_default();
        hasher.update(&(secret_bytes.len() as u64).to_le_bytes());
        hasher.update(secret_bytes);
        hasher.update(group.as_bytes());
        Self {
            key: *hasher.finalize().as_bytes(),
            group: group_tag(group),
            has_secret: secret.is_some(),
        }
    }

    /// Appends a sealed datagram to `out`.
    pub fn seal(&self, part: &Part<'_>, now_ms: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend(MAGIC);
        out.extend(self.group.to_le_bytes());
        out.extend(now_ms.to_le_bytes());
        out.extend(part.message.to_le_bytes());
        out.extend([part.part, part.parts]);
        out.extend(part.payload);
        let mac = blake3::keyed_hash(&self.key, &out[start..]);
        out.extend(mac.as_bytes());
    }

    /// Whether datagrams may go to, or be taken from, an address.
    pub fn may_reach(&self, address: SocketAddr) -> bool {
        self.has_secret || is_loopback(address.ip())
    }

    /// The proof at the end of a datagram.
    pub fn proof(datagram: &[u8]) -> &[u8] {
        &datagram[datagram.len().saturating_sub(MAC_BYTES)..]
    }

    /// What is in a datagram.
    pub fn open<'a>(
        &self,
        datagram: &'a [u8],
        from: SocketAddr,
        now_ms: u64,
    ) -> Result<Part<'a>, Dropped> {
        if datagram.len() < HEADER_BYTES + MAC_BYTES || datagram[..4] != MAGIC {
            return Err(Dropped::Foreign);
        }
        if !self.may_reach(from) {
            return Err(Dropped::NotLoopback);
        }
        let (sealed, mac) = datagram.split_at(datagram.len() - MAC_BYTES);
        let (header, payload) = sealed.split_at(HEADER_BYTES);
        if u64_at(header, 4) != self.group {
            return Err(Dropped::OtherGroup);
        }
        let mut stated = [0u8; MAC_BYTES];
        stated.copy_from_slice(mac);
        // Compares in constant time.
        if blake3::keyed_hash(&self.key, sealed) != blake3::Hash::from_bytes(stated) {
            return Err(Dropped::Unproven);
        }
        let sealed_ms = u64_at(header, 12);
        if sealed_ms.abs_diff(now_ms) > SKEW_MAX_MS {
            return Err(Dropped::Skewed(sealed_ms.wrapping_sub(now_ms) as i64));
        }
        let (part, parts) = (header[24], header[25]);
        if part >= parts {
            return Err(Dropped::Unreadable);
        }
        Ok(Part {
            message: u32::from_le_bytes([header[20], header[21], header[22], header[23]]),
            part,
            parts,
            payload,
        })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0u8; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

/// Loopback, also when it is an IPv4 address in IPv6's clothes.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Milliseconds since 1970; 0 when the clock stands before that.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn near() -> SocketAddr {
        "127.0.0.1:7440".parse().unwrap()
    }

    fn far() -> SocketAddr {
        "192.0.2.7:7440".parse().unwrap()
    }

    fn sealer(group: &str, secret: &str) -> Sealer {
        let secret = (!secret.is_empty()).then(|| Secret::new(secret.as_bytes(), "").unwrap());
        Sealer::new(group, secret.as_ref())
    }

    fn part(payload: &[u8]) -> Part<'_> {
        Part {
            message: 0xdead_beef,
            part: 1,
            parts: 3,
            payload,
        }
    }

    fn sealed(sealer: &Sealer, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal(&part(payload), NOW, &mut out);
        out
    }

    #[test]
    fn members_open_what_members_sealed_and_nobody_else_can() {
        let ours = sealer("train", "s");
        let datagram = sealed(&ours, b"hello");
        assert_eq!(ours.open(&datagram, far(), NOW), Ok(part(b"hello")));
        let open = |sealer: Sealer| sealer.open(&datagram, far(), NOW);
        assert_eq!(open(sealer("train", "t")), Err(Dropped::Unproven));
        assert_eq!(open(sealer("eval", "s")), Err(Dropped::OtherGroup));
        assert_eq!(open(sealer("train", "")), Err(Dropped::NotLoopback));
        let open_near = sealer("train", "").open(&datagram, near(), NOW);
        assert_eq!(open_near, Err(Dropped::Unproven));
    }

    #[test]
    fn without_a_secret_only_loopback() {
        let ours = sealer("train", "");
        let datagram = sealed(&ours, b"hello");
        assert!(ours.open(&datagram, near(), NOW).is_ok());
        assert!(
            ours.open(&datagram, "[::1]:1".parse().unwrap(), NOW)
                .is_ok()
        );
        let mapped = "[::ffff:127.0.0.1]:1".parse().unwrap();
        assert!(ours.open(&datagram, mapped, NOW).is_ok());
        assert_eq!(ours.open(&datagram, far(), NOW), Err(Dropped::NotLoopback));
        // Who has a secret does not listen to who has none.
        let open = sealer("train", "s").open(&datagram, near(), NOW);
        assert_eq!(open, Err(Dropped::Unproven));
    }

    #[test]
    fn old_and_future_datagrams_are_dropped_and_the_skew_is_named() {
        let ours = sealer("train", "s");
        let datagram = sealed(&ours, b"");
        assert!(ours.open(&datagram, far(), NOW + SKEW_MAX_MS).is_ok());
        assert!(ours.open(&datagram, far(), NOW - SKEW_MAX_MS).is_ok());
        let late = ours.open(&datagram, far(), NOW + SKEW_MAX_MS + 1);
        assert_eq!(late, Err(Dropped::Skewed(-300_001)));
        let early = ours.open(&datagram, far(), NOW - SKEW_MAX_MS - 1);
        assert_eq!(early, Err(Dropped::Skewed(300_001)));
    }

    proptest! {
        #[test]
        fn no_changed_byte_passes(at in 0usize..80, flip in 1u8..) {
            let ours = sealer("train", "s");
            let mut datagram = sealed(&ours, b"hello, members of this");
            prop_assume!(at < datagram.len());
            datagram[at] ^= flip;
            prop_assert!(ours.open(&datagram, far(), NOW).is_err());
        }

        #[test]
        fn nonsense_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            prop_assert!(sealer("g", "s").open(&bytes, near(), NOW).is_err());
            bytes.splice(0..0, MAGIC);
            prop_assert!(sealer("g", "s").open(&bytes, near(), NOW).is_err());
        }
    }

    #[test]
    fn drops_are_counted_by_reason() {
        let counts = DropCounts::default();
        assert_eq!(counts.count(Dropped::Unproven), 1);
        assert_eq!(counts.count(Dropped::Unproven), 2);
        counts.count(Dropped::Skewed(7));
        let read = counts.read();
        let of = |name: &str| read.iter().find(|(known, _)| *known == name).unwrap().1;
        assert_eq!((of("unproven"), of("skewed"), of("foreign")), (2, 1, 0));
    }
}
