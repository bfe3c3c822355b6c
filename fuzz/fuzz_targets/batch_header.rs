#![no_main]
//! Whatever stands where a batch should begin: a header that encodes to the same bytes, or none.

use forebay_engine::disk::layout::BatchHeader;
use forebay_engine::limits::PAGE_BYTES;
use forebay_fuzz::{LOG, entry, repaired, seal, seed};
use libfuzzer_sys::fuzz_target;

fn encoded(header: &BatchHeader) -> Vec<u8> {
    let pages = BatchHeader::header_pages(header.entries.len(), header.checksums.len());
    let mut bytes = vec![0xa5; pages * PAGE_BYTES];
    header.encode(LOG, &mut bytes);
    bytes
}

fn real(entries: u32) -> Vec<u8> {
    let data_pages = entries * 3;
    let begins = 9 + BatchHeader::header_pages(entries as usize, data_pages as usize) as u32;
    encoded(&BatchHeader {
        region: 77,
        generation: 3,
        page: 9,
        data_pages,
        run: 7,
        chain: 0x0123_4567_89ab_cdef,
        entries: (0..entries)
            .map(|n| entry(n, begins + n * 3, 8193 + n))
            .collect(),
        checksums: (1..=data_pages).collect(),
    })
}

fn check(bytes: &[u8]) {
    let shape = BatchHeader::peek(LOG, bytes);
    let Some(header) = BatchHeader::decode(LOG, bytes) else {
        return;
    };
    let shape = shape.expect("what can be decoded can be peeked at");
    assert_eq!(header.entries.len(), shape.entries);
    assert_eq!(header.checksums.len(), shape.data_pages);
    assert_eq!(encoded(&header), bytes[..shape.header_pages * PAGE_BYTES]);
    let begins = header.page + shape.header_pages as u32;
    let mut free = begins;
    for entry in &header.entries {
        assert!(entry.region_page >= free, "behind the one before");
        free = entry.region_page + entry.pages();
    }
    assert!(free <= begins + header.data_pages);
}

fuzz_target!(
    init: seed(&[real(1), real(3), real(100)]),
    |data: &[u8]| {
        check(data);
        let mut bytes = repaired(data, &real(1), data.len().div_ceil(PAGE_BYTES).max(1));
        check(&bytes);
        // The first page alone tells how long the header is; make it that long.
        if let Some(shape) = BatchHeader::peek(LOG, &bytes) {
            bytes.resize(shape.header_pages * PAGE_BYTES, 0);
            seal(&mut bytes);
            check(&bytes);
        }
    }
);
