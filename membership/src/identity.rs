//! Ids of members.

use forebay_engine::placement::PeerId;

/// The id of a node in a group: 64 bits of BLAKE3 over both names, so that a member that restarts with its
/// cache owns the same slots.
pub fn peer_id(group: &str, node: &str) -> PeerId {
    let mut hasher = blake3::Hasher::new_derive_key("forebay peer id v1");
    hasher.update(&(group.len() as u64).to_le_bytes());
    hasher.update(group.as_bytes());
    hasher.update(node.as_bytes());
    PeerId(first_u64(hasher.finalize().as_bytes()))
}

/// Tells groups apart on the wire.
pub(crate) fn group_tag(group: &str) -> u64 {
    first_u64(&blake3::derive_key(
        "forebay gossip group tag v1",
        group.as_bytes(),
    ))
}

pub(crate) fn first_u64(hash: &[u8; 32]) -> u64 {
    let mut first = [0u8; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first)
}

/// As it is written for people and in JSON: 16 hexadecimal digits.
pub(crate) fn hex(id: u64) -> String {
    format!("{id:016x}")
}

/// Reads what [`hex`] writes; nothing else.
pub(crate) fn from_hex(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_fixed_and_do_not_run_names_together() {
        // Caches on disk belong to slots by these ids: they must never change.
        assert_eq!(peer_id("train", "gpu1"), PeerId(0x3dc5_7131_a117_ec7f));
        assert_ne!(peer_id("train", "gpu1"), peer_id("train", "gpu2"));
        assert_ne!(peer_id("train", "gpu1"), peer_id("trai", "ngpu1"));
        assert_ne!(group_tag("a"), group_tag("b"));
    }

    #[test]
    fn hexadecimal() {
        for id in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(from_hex(&hex(id)), Some(id));
        }
        for text in [
            "",
            "1",
            "+123456789abcdef",
            "g000000000000000",
            "00000000000000000",
        ] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }
}
