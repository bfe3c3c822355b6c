//! The simulator's randomness: one small generator for each component, all from one seed.

use forebay_engine::ports::Rng;

/// SplitMix64. Small, fast, the same on every machine; not for secrets.
#[derive(Clone, Debug)]
pub struct SimRng {
    state: u64,
}

/// SplitMix64's finaliser: spreads every input bit over the whole word.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl SimRng {
    /// A generator for the run's `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            state: mix(seed ^ 0x6a09_e667_f3bc_c909),
        }
    }

    /// The generator of one component. Components draw independently, so that a change in one
    /// does not shift the others.
    pub fn component(seed: u64, name: &str, number: u64) -> Self {
        let folded = name
            .bytes()
            .fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
        Self::new(mix(folded.wrapping_add(number)))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// 0 to `limit` - 1; 0 when `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True in `per_mille` of 1,000 cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1_000) < u64::from(per_mille)
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

impl Rng for SimRng {
    fn next_u64(&mut self) -> u64 {
        self.bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_differ_and_repeat() {
        let draw = |seed, name, number| SimRng::component(seed, name, number).bits();
        assert_eq!(draw(1, "origin", 0), draw(1, "origin", 0));
        assert_ne!(draw(1, "origin", 0), draw(1, "origin", 1));
        assert_ne!(draw(1, "origin", 0), draw(1, "actor", 0));
        assert_ne!(draw(1, "origin", 0), draw(2, "origin", 0));
    }

    #[test]
    fn draws_stay_in_their_ranges_and_reach_both_ends() {
        let mut rng = SimRng::new(7);
        let drawn: Vec<u64> = (0..1_000).map(|_| rng.between(3, 6)).collect();
        assert_eq!(
            (drawn.iter().min(), drawn.iter().max()),
            (Some(&3), Some(&6))
        );
        assert_eq!(rng.below(0), 0);
        assert!(!(0..1_000).any(|_| rng.chance(0)) && (0..1_000).all(|_| rng.chance(1_000)));
    }
}
