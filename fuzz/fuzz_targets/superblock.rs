#![no_main]
//! Whatever the first page of a device holds: a superblock that encodes to the same bytes, or a reason.

use forebay_engine::disk::layout::Superblock;
use forebay_engine::limits::PAGE_BYTES;
use forebay_fuzz::{LOG, repaired, seed};
use libfuzzer_sys::fuzz_target;

fn real(owner: &str, region_bytes: u32, sector_bytes: u32) -> Vec<u8> {
    let superblock = Superblock {
        log: LOG,
        region_bytes,
        sector_bytes,
        created_ns: 1_790_000_000_123_456_789,
        owner: owner.into(),
    };
    superblock.encode().into_vec()
}

fn check(bytes: &[u8]) {
    match Superblock::decode(bytes) {
        Ok(superblock) => assert_eq!(*superblock.encode(), bytes[..PAGE_BYTES]),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fuzz_target!(
    init: seed(&[real("train/node-7", 16 << 20, 4096), real("", 2 << 20, 512)]),
    |data: &[u8]| {
        check(data);
        check(&repaired(data, &real("", 2 << 20, 512), 1));
    }
);
