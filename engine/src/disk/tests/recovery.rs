//! What a run finds of those before it.

use super::*;

/// Three blocks in a batch each, in one region.
fn three_batches() -> Bench {
    let mut bench = Bench::new(2 << 20, 32);
    for n in 1..=3 {
        bench.keep_block(block(n), 50_000);
        bench.settle();
    }
    bench
}

fn found(bench: &Bench) -> [bool; 3] {
    [1, 2, 3].map(|n| bench.disk.extent(block(n), 0).is_some())
}

fn damaged(bench: &Bench) -> u64 {
    bench.disk.stats().devices[0].batches_damaged
}

type Damage = fn(&mut [u8]);

const DAMAGES: [(&str, Damage); 4] = [
    ("a flipped bit in an entry", |page| page[75] ^= 1),
    ("another generation", |page| page[36] ^= 1),
    ("noise", |page| {
        page.iter_mut().zip(0..).for_each(|(byte, n): (_, u32)| {
            *byte = (n.wrapping_mul(2_654_435_761) >> 24) as u8;
        });
    }),
    ("zeros", |page| page.fill(0)),
];

#[test]
fn a_damaged_batch_header_costs_its_batch_alone() {
    for (what, damage) in DAMAGES {
        for lost in 1..=3 {
            let mut bench = three_batches();
            let at = bench.header_of(block(lost));
            damage(&mut bench.media.borrow_mut().bytes[at..at + PAGE_BYTES]);
            let before = bench.media.borrow().read_bytes;
            bench.restart();
            let read = bench.media.borrow().read_bytes - before;
            assert!(read < 4 << 20, "{read} bytes read");
            let left = [1, 2, 3].map(|n| n != lost);
            assert_eq!(found(&bench), left, "{what} in batch {lost}");
            // The last one is told from the end of the log by what is left of it.
            let is_told = lost < 3 || what.contains("entry");
            assert_eq!(
                damaged(&bench),
                u64::from(is_told),
                "{what} in batch {lost}"
            );
            for n in (1..=3).filter(|n| *n != lost) {
                bench.read(block(n), 50_000, 0, 13).unwrap();
            }
            // It comes again; what the region then holds is found as a whole.
            bench.keep_block(block(lost), 50_000);
            bench.settle();
            for _ in 0..2 {
                bench.restart();
                assert_eq!(found(&bench), [true; 3], "{what} in batch {lost}");
                assert_eq!(damaged(&bench), 0, "{what} in batch {lost}");
            }
        }
    }
}

#[test]
fn a_batch_header_that_cannot_be_read_costs_its_batch_alone() {
    let mut bench = three_batches();
    let at = bench.header_of(block(2)) as u64;
    bench.media.borrow_mut().unreadable = Some(at);
    bench.restart();
    assert_eq!(found(&bench), [true, false, true]);
    assert_eq!(damaged(&bench), 1);
}

/// Zeros are no sign of the end: they may be what a batch holds.
#[test]
fn a_batch_header_that_never_came_before_zeros_costs_its_batch_alone() {
    for pages in [2, 14] {
        let mut bench = three_batches();
        let at = bench.header_of(block(2));
        bench.media.borrow_mut().bytes[at..at + pages * PAGE_BYTES].fill(0);
        bench.restart();
        assert_eq!(found(&bench), [true, false, true], "{pages}");
    }
}

/// A batch whose header a power cut took is written again, the same as before: the header that followed it
/// then must not continue it, since its data is the next to be overwritten.
#[test]
fn a_batch_written_again_is_not_continued_by_what_followed_it_before() {
    let mut bench = three_batches();
    let [lost, next] = [2, 3].map(|n| bench.header_of(block(n)));
    let kept = bench.media.borrow().bytes[next..next + PAGE_BYTES].to_vec();
    for at in [lost, next] {
        bench.media.borrow_mut().bytes[at..at + PAGE_BYTES].fill(0);
    }
    bench.restart();
    assert_eq!(found(&bench), [true, false, false]);
    bench.keep_block(block(2), 50_000);
    bench.settle();
    assert_eq!(bench.header_of(block(2)), lost, "written to the same place");
    bench.media.borrow_mut().bytes[next..next + PAGE_BYTES].copy_from_slice(&kept);
    bench.restart();
    assert_eq!(found(&bench), [true, true, false]);
}

/// Generations begin again when a region's header is lost: what lay in it then is of the same one.
#[test]
fn batches_of_an_earlier_life_of_their_region_are_void() {
    let mut bench = three_batches();
    let region = bench.header_of(block(1)) - PAGE_BYTES;
    bench.media.borrow_mut().bytes[region..region + PAGE_BYTES].fill(0);
    bench.restart();
    assert_eq!(found(&bench), [false; 3]);
    bench.keep_block(block(9), 1_000);
    bench.settle();
    let at = bench.header_of(block(9));
    assert_eq!(at, region + PAGE_BYTES, "the region is used again");
    for damage in [false, true] {
        if damage {
            bench.media.borrow_mut().bytes[at + 75] ^= 1;
        }
        bench.restart();
        assert_eq!(found(&bench), [false; 3]);
        assert_eq!(bench.disk.extent(block(9), 0).is_some(), !damage);
    }
}

#[test]
fn an_index_that_is_too_small_for_all_keeps_the_youngest() {
    let mut bench = Bench::new(2 << 20, 64);
    for n in 0..400 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    bench.restart_with(100);
    let entries = bench.disk.stats().devices[0].entries;
    assert!((80..=100).contains(&entries), "{entries}");
    let kept: Vec<u64> = (0..400).filter(|n| bench.is_whole(*n, 100_000)).collect();
    assert!(
        (330..400).all(|n| kept.contains(&n)),
        "the youngest are kept: {kept:?}"
    );
    assert!(bench.disk.was_evicted(block(kept[0] - 1)));
    // Room is made for what comes.
    for n in 400..500 {
        bench.keep_block(block(n), 100_000);
    }
    bench.settle();
    assert!((470..500).all(|n| bench.is_whole(n, 100_000)));
}
