#![no_main]
//! Whatever stands at the end of a region: a trailer, and the entries of the table it names.

use forebay_engine::disk::geometry::Geometry;
use forebay_engine::disk::layout::{
    ENTRY_BYTES, Trailer, decode_checksums, decode_entries, encode_checksums, encode_entries,
};
use forebay_engine::limits::PAGE_BYTES;
use forebay_fuzz::{LOG, entry, repaired, seed};
use libfuzzer_sys::fuzz_target;

fn encoded(trailer: &Trailer) -> Vec<u8> {
    let mut page = vec![0xa5; PAGE_BYTES];
    trailer.encode(LOG, &mut page);
    page
}

/// A trailer, or an entry table with its crc behind it.
fn real(entries: u32) -> [Vec<u8>; 2] {
    let list: Vec<_> = (0..entries)
        .map(|n| entry(n, 5 + n * 3, 8193 + n))
        .collect();
    let mut table = vec![0xa5; Trailer::entry_table_pages(list.len()) * PAGE_BYTES];
    let entries_crc = encode_entries(&list, &mut table);
    let trailer = Trailer {
        region: 77,
        generation: 3,
        sequence: 1 << 40,
        entries,
        entry_table_page: 500,
        entries_crc,
        checksums_crc: 0x0bad_cafe,
    };
    table.extend([0; 4]);
    [encoded(&trailer), table]
}

fn check_trailer(bytes: &[u8], geometry: &Geometry) {
    let Some(trailer) = Trailer::decode(LOG, bytes) else {
        return;
    };
    assert_eq!(encoded(&trailer), bytes[..PAGE_BYTES]);
    let table_pages = Trailer::entry_table_pages(trailer.entries as usize);
    let end = trailer.entry_table_page as usize + table_pages;
    assert_eq!(
        trailer.fits(geometry),
        end <= geometry.checksum_table_page() as usize
    );
}

fn check_tables(bytes: &[u8], geometry: &Geometry) {
    for count in [bytes.len() / ENTRY_BYTES, bytes.len() / ENTRY_BYTES + 1, 1] {
        let Some(entries) = decode_entries(bytes, count, geometry) else {
            continue;
        };
        let table = &bytes[..count * ENTRY_BYTES];
        let mut again = vec![0xa5; table.len()];
        encode_entries(&entries, &mut again);
        assert_eq!(again, table);
    }
    let checksums = decode_checksums(bytes);
    let mut again = vec![0xa5; checksums.len() * 4];
    encode_checksums(&checksums, &mut again);
    assert_eq!(again, bytes[..again.len()]);
}

fuzz_target!(
    init: seed(&[real(1), real(100)].concat()),
    |data: &[u8]| {
        let geometry = Geometry::fit(2 << 20, 1 << 30);
        check_trailer(data, &geometry);
        check_trailer(&repaired(data, &real(1)[0], 1), &geometry);
        check_tables(data, &geometry);
    }
);
