//! Sequences of requests for blocks, by number.

use crate::load::Rng;

/// A sequence, and from where on it is counted: what comes before fills the cache.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What distinguishes it, one word.
    pub name: &'static str,
    /// Blocks, in the order of requests.
    pub requests: Vec<u32>,
    /// The first request that counts.
    pub counted_from: usize,
}

impl Trace {
    /// Requests that count.
    pub fn counted(&self) -> usize {
        self.requests.len() - self.counted_from
    }
}

/// `requests` requests over `blocks` blocks, of which the one of rank r is asked for in proportion to
/// r^-`skew`. The second half counts.
pub fn zipf(name: &'static str, blocks: u32, skew: f64, requests: usize, seed: u64) -> Trace {
    let mut sums = Vec::with_capacity(blocks as usize);
    let mut sum = 0.0;
    for rank in 1..=blocks {
        sum += f64::from(rank).powf(-skew);
        sums.push(sum);
    }
    let mut rng = Rng::of(seed, 0);
    // A block's number says nothing of its rank.
    let numbers = shuffled(blocks, &mut rng);
    let requests: Vec<u32> = (0..requests)
        .map(|_| {
            let at = (rng.next() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let rank = sums.partition_point(|sum| *sum < at);
            numbers[rank.min(numbers.len() - 1)]
        })
        .collect();
    Trace {
        name,
        counted_from: requests.len() / 2,
        requests,
    }
}

/// After every `every` requests of `trace`, `length` blocks that nobody else asks for.
pub fn with_scans(name: &'static str, trace: Trace, every: usize, length: usize) -> Trace {
    let mut next = trace.requests.iter().max().map_or(0, |most| most + 1);
    let mut requests = Vec::new();
    let mut counted_from = 0;
    for (number, request) in trace.requests.into_iter().enumerate() {
        if number > 0 && number % every == 0 {
            requests.extend(next..next + length as u32);
            next += length as u32;
        }
        if number == trace.counted_from {
            counted_from = requests.len();
        }
        requests.push(request);
    }
    Trace {
        name,
        requests,
        counted_from,
    }
}

/// All of `blocks` blocks once in each of `epochs` epochs, every time in another order. The first three epochs do
/// not count.
pub fn epochs(name: &'static str, blocks: u32, epochs: usize, seed: u64) -> Trace {
    let mut rng = Rng::of(seed, 0);
    Trace {
        name,
        requests: (0..epochs)
            .flat_map(|_| shuffled(blocks, &mut rng))
            .collect(),
        counted_from: 3.min(epochs) * blocks as usize,
    }
}

fn shuffled(blocks: u32, rng: &mut Rng) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..blocks).collect();
    for last in (1..numbers.len()).rev() {
        let other = (rng.next() % (last as u64 + 1)) as usize;
        numbers.swap(last, other);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_each_block_once() {
        let trace = epochs("e", 100, 4, 1);
        assert_eq!((trace.requests.len(), trace.counted()), (400, 100));
        for epoch in trace.requests.chunks(100) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
        }
        assert_ne!(trace.requests[..100], trace.requests[100..200]);
    }

    #[test]
    fn the_most_asked_for_block_has_its_share() {
        let trace = zipf("z", 1_000, 1.0, 100_000, 7);
        let mut counts = vec![0u32; 1_000];
        for request in &trace.requests {
            counts[*request as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // 1 / H(1000) = 0.1336; the second half of that.
        assert!((12_500..14_300).contains(&counts[0]), "{}", counts[0]);
        assert!((6_000..7_400).contains(&counts[1]), "{}", counts[1]);
    }

    #[test]
    fn scans_ask_for_new_blocks() {
        let trace = with_scans("s", zipf("z", 10, 1.0, 100, 1), 25, 5);
        assert_eq!(trace.requests.len(), 100 + 3 * 5);
        let scanned = trace.requests.iter().filter(|block| **block > 9);
        assert_eq!(scanned.count(), 15);
        assert_eq!(trace.counted_from, 50 + 2 * 5);
    }
}
