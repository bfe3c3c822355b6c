//! Randomness for jitter.

use forebay_engine::ports::Rng;

/// SplitMix64: small, fast, one `u64` of state. For jitter only, never for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    /// A generator whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator seeded by the kernel.
    pub fn from_os() -> Self {
        let mut seed = [0u8; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut seed, flags) {
            Ok(n) if n == seed.len() => Self::new(u64::from_ne_bytes(seed)),
            // Jitter needs difference between processes, not secrecy.
            _ => Self::new(u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        }
    }
}

impl Rng for SplitMix {
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_from_the_seed_and_differs_between_seeds() {
        let numbers = |seed| {
            let mut rng = SplitMix::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        // The first output of the published SplitMix64 for seed 0.
        assert_eq!(numbers(0)[0], 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn the_kernel_gives_different_seeds() {
        assert_ne!(
            SplitMix::from_os().next_u64(),
            SplitMix::from_os().next_u64()
        );
    }
}
