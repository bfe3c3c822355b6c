//! Work that is cut into steps.

use super::*;

#[test]
fn a_turn_decides_on_a_bounded_number_of_entries() {
    let mut bench = Bench::new(4 << 20, 12);
    let evicted = |bench: &Bench| bench.disk.stats().devices[0].entries_evicted;
    let (mut n, mut most, mut before) = (0, 0, 0);
    while evicted(&bench) < 3_000 {
        for _ in 0..32 {
            n += u64::from(bench.keep(block(n), 0, 4096));
        }
        bench.turn();
        bench.take_settled();
        let now = evicted(&bench);
        most = most.max(now - before);
        before = now;
        assert!(n < 100_000, "nothing is evicted");
    }
    assert_eq!(most, 256, "a region has about a thousand entries");
}
