#![no_main]
//! Whatever page 0 of a region holds: a header, or that of an emptied region, that encodes to the same bytes, or none.

use forebay_engine::disk::layout::{Queue, RegionHeader, VoidHeader, chain_of};
use forebay_engine::limits::PAGE_BYTES;
use forebay_fuzz::{LOG, repaired, seed};
use libfuzzer_sys::fuzz_target;

fn encoded(header: &RegionHeader) -> Vec<u8> {
    let mut page = vec![0xa5; PAGE_BYTES];
    header.encode(LOG, &mut page);
    page
}

fn real(queue: Queue, sequence: u64) -> Vec<u8> {
    encoded(&RegionHeader {
        region: 77,
        generation: 3,
        sequence,
        queue,
        core: 2,
        cores: 8,
        tenant: 0,
    })
}

fn void() -> Vec<u8> {
    let header = VoidHeader {
        region: 77,
        generation: 3,
    };
    let mut page = vec![0xa5; PAGE_BYTES];
    header.encode(LOG, &mut page);
    page
}

fn check(bytes: &[u8]) {
    if let Some(header) = VoidHeader::decode(LOG, bytes) {
        let mut page = vec![0xa5; PAGE_BYTES];
        header.encode(LOG, &mut page);
        assert_eq!(page, bytes[..PAGE_BYTES]);
    }
    if let Some(header) = RegionHeader::decode(LOG, bytes) {
        assert_eq!(encoded(&header), bytes[..PAGE_BYTES]);
        assert_eq!(header.chain(LOG), chain_of(&bytes[..PAGE_BYTES]));
    }
}

fuzz_target!(
    init: seed(&[real(Queue::Small, 1), real(Queue::Main, u64::MAX), void()]),
    |data: &[u8]| {
        check(data);
        check(&repaired(data, &void(), 1));
        check(&repaired(data, &real(Queue::Small, 1), 1));
    }
);
