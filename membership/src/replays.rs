//! Datagrams that came before.
//!
//! A recorded datagram tells nothing new, but a question that is sent again from a forged address would be answered
//! there, at many times its length.

use std::collections::HashSet;

use crate::seal::SKEW_MAX_MS;

/// So many are remembered at least; twice as many at most (about 3 MiB in the largest groups).
const REMEMBERED_MIN: usize = 1 << 17;

/// Remembers proofs for as long as their datagrams would be taken, as far as there is room.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    recent: HashSet<u64>,
    earlier: HashSet<u64>,
    /// When `recent` was begun, milliseconds since 1970.
    begun_ms: u64,
}

impl Replays {
    /// Whether a datagram with this proof is the first of its kind; from now on it is not.
    pub fn is_new(&mut self, mac: &[u8], now_ms: u64) -> bool {
        let mut first = [0; 8];
        for (to, from) in first.iter_mut().zip(mac) {
            *to = *from;
        }
        let proof = u64::from_le_bytes(first);
        let is_old = now_ms.abs_diff(self.begun_ms) > 2 * SKEW_MAX_MS;
        if is_old || self.recent.len() >= REMEMBERED_MIN {
            self.earlier = std::mem::take(&mut self.recent);
            self.begun_ms = now_ms;
        }
        !self.earlier.contains(&proof) && self.recent.insert(proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_counts_once_while_its_datagram_would_be_taken() {
        let mut replays = Replays::default();
        let now = 1_800_000_000_000;
        assert!(replays.is_new(&[7; 32], now));
        assert!(replays.is_new(&[8; 32], now));
        for later in [0, 1_000, SKEW_MAX_MS, 2 * SKEW_MAX_MS] {
            assert!(!replays.is_new(&[7; 32], now + later), "{later} ms later");
        }
        // The next generation still knows the last one.
        assert!(replays.is_new(&[9; 32], now + 2 * SKEW_MAX_MS + 1));
        assert!(!replays.is_new(&[7; 32], now + 2 * SKEW_MAX_MS + 2));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut replays = Replays::default();
        for n in 0..5 * REMEMBERED_MIN as u64 {
            assert!(replays.is_new(&n.to_le_bytes(), 1));
        }
        assert!(replays.recent.len() + replays.earlier.len() <= 2 * REMEMBERED_MIN);
        let last = 5 * REMEMBERED_MIN as u64 - 1;
        assert!(!replays.is_new(&(last + 1 - REMEMBERED_MIN as u64).to_le_bytes(), 1));
    }
}
