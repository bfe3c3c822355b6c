#![no_main]
//! Whatever became of a device since it was written: the tier starts, and serves right bytes or none.

use std::cell::RefCell;

use forebay_fuzz::tier::Bench;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

fuzz_target!(
    init: {
        // Kinds of damage: none, a zeroed page, a copied one, an unreadable one, changed bytes, and
        // changed bytes with crcs that hold.
        forebay_fuzz::seed_as_is(&[
            &[0, 0],
            &[1, 0],
            &[0, 1, 0, 0],
            &[0, 0, 3, 1, 9],
            &[0, 0, 5, 2],
            &[0, 0, 0, 3, 40, 0, 2, 7, 7],
            &[1, 1, 7, 6, 40, 0, 4, 1, 2, 3, 4],
            &[0, 0, 2, 6, 64, 0, 4, 1, 2, 3, 4, 8, 6, 72, 0, 1, 9],
        ]);
    },
    |data: &[u8]| BENCH.with_borrow_mut(|bench| bench.try_input(data))
);
