use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::disk::geometry::{Geometry, REGION_BYTES_MIN};
use crate::identity::{BlockId, ObjectId};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};

const LOG: LogId = LogId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
const OTHER: LogId = LogId(LOG.0 ^ 1);

fn superblock() -> Superblock {
    Superblock {
        log: LOG,
        region_bytes: 16 << 20,
        sector_bytes: 4096,
        created_ns: 1_790_000_000_123_456_789,
        owner: "train/node-7".into(),
    }
}

fn region_header() -> RegionHeader {
    RegionHeader {
        region: 77,
        generation: 3,
        sequence: 1 << 40,
        queue: Queue::Main,
        core: 2,
        cores: 8,
        tenant: 0,
    }
}

fn void_header() -> VoidHeader {
    VoidHeader {
        region: 77,
        generation: 3,
    }
}

fn entry(number: u32, region_page: u32, len_bytes: u32) -> EntryRecord {
    EntryRecord {
        block: BlockId {
            object: ObjectId(u128::from(number) << 70 | 5),
            index: number * 3,
        },
        first_page: 16,
        len_bytes,
        region_page,
        pinned: number.is_multiple_of(2),
        hits: (number % 4) as u8,
    }
}

/// A batch of so many entries of two pages and a bit.
fn batch(entries: u32) -> BatchHeader {
    let data_pages = entries * 3;
    let begins = 9 + BatchHeader::header_pages(entries as usize, data_pages as usize) as u32;
    BatchHeader {
        region: 77,
        generation: 3,
        page: 9,
        data_pages,
        run: 1_790_000_000,
        chain: region_header().chain(LOG),
        entries: (0..entries)
            .map(|n| entry(n, begins + n * 3, 8193 + n))
            .collect(),
        checksums: (0..data_pages)
            .map(|n| n.wrapping_mul(0x9e37_79b9))
            .collect(),
    }
}

fn trailer() -> Trailer {
    Trailer {
        region: 77,
        generation: 3,
        sequence: 1 << 40,
        entries: 200,
        entry_table_page: 4000,
        entries_crc: 0xdead_beef,
        checksums_crc: 0x0bad_cafe,
    }
}

fn page_of(encode: impl FnOnce(&mut [u8])) -> Vec<u8> {
    // Not zeroed: an encoder must not leave what was there before.
    let mut page = vec![0xa5; PAGE_BYTES];
    encode(&mut page);
    page
}

fn bytes_of(batch: &BatchHeader) -> Vec<u8> {
    let pages = BatchHeader::header_pages(batch.entries.len(), batch.checksums.len());
    let mut bytes = vec![0xa5; pages * PAGE_BYTES];
    batch.encode(LOG, &mut bytes);
    bytes
}

/// Logs outlive versions: when one of these changes, so must the format's version.
#[test]
fn golden_bytes() {
    let mut entries = vec![0xa5; PAGE_BYTES];
    let entries_crc = encode_entries(&batch(3).entries, &mut entries);
    let mut checksums = vec![0xa5; PAGE_BYTES];
    let checksums_crc = encode_checksums(&batch(3).checksums, &mut checksums);
    let hashes: Vec<String> = [
        superblock().encode().into_vec(),
        page_of(|page| region_header().encode(LOG, page)),
        bytes_of(&batch(3)),
        bytes_of(&batch(200)),
        page_of(|page| trailer().encode(LOG, page)),
        entries,
        checksums,
        page_of(|page| void_header().encode(LOG, page)),
    ]
    .iter()
    .map(|bytes| blake3::hash(bytes).to_hex()[..16].to_owned())
    .collect();
    let numbers = format!(
        "{entries_crc:08x} {checksums_crc:08x} {:016x} {:016x}",
        region_header().chain(LOG),
        batch(3).next_chain(LOG)
    );
    assert_eq!(
        hashes.join(" "),
        "ebbb653cf96b7d3b 0d93e815628ea553 b328d685e6290efc a90a45ff817d603a 10aa79157e8bda9d \
         90c07965cfff2826 88f6b2ae5e642db2 9cfd0999d35b60a2"
    );
    assert_eq!(
        numbers,
        "f14934cb b9269fa1 217e98aec0db2b38 8b4cbc49f3d21fbd"
    );
}

#[test]
fn what_was_encoded_is_decoded() {
    assert_eq!(Superblock::decode(&superblock().encode()), Ok(superblock()));
    let page = page_of(|page| region_header().encode(LOG, page));
    assert_eq!(RegionHeader::decode(LOG, &page), Some(region_header()));
    assert_eq!(region_header().chain(LOG), chain_of(&page));
    let page = page_of(|page| void_header().encode(LOG, page));
    assert_eq!(VoidHeader::decode(LOG, &page), Some(void_header()));
    let page = page_of(|page| trailer().encode(LOG, page));
    assert_eq!(Trailer::decode(LOG, &page), Some(trailer()));
    for entries in [1, 3, 90, 512] {
        let batch = batch(entries);
        let mut bytes = bytes_of(&batch);
        let shape = BatchShape {
            header_pages: bytes.len() / PAGE_BYTES,
            data_pages: batch.data_pages as usize,
            entries: entries as usize,
        };
        assert_eq!(batch.next_chain(LOG), chain_of(&bytes));
        assert_eq!(BatchHeader::peek(LOG, &bytes), Some(shape));
        assert_eq!(BatchHeader::peek(LOG, &bytes[..PAGE_BYTES]), Some(shape));
        bytes.extend([7; PAGE_BYTES]);
        assert_eq!(
            BatchHeader::decode(LOG, &bytes),
            Some(batch),
            "more may follow"
        );
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    fn refused(mut bytes: Vec<u8>, what: &str, decodes: impl Fn(&[u8]) -> bool) {
        assert!(decodes(&bytes), "{what}");
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!decodes(&bytes), "{what}: bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
    let page = superblock().encode().into_vec();
    refused(page, "superblock", |bytes| {
        Superblock::decode(bytes).is_ok()
    });
    let page = page_of(|page| region_header().encode(LOG, page));
    refused(page, "region", |b| RegionHeader::decode(LOG, b).is_some());
    let page = page_of(|page| void_header().encode(LOG, page));
    refused(page, "void", |b| VoidHeader::decode(LOG, b).is_some());
    let page = page_of(|page| trailer().encode(LOG, page));
    refused(page, "trailer", |b| Trailer::decode(LOG, b).is_some());
    refused(bytes_of(&batch(3)), "batch", |bytes| {
        BatchHeader::decode(LOG, bytes).is_some() && BatchHeader::peek(LOG, bytes).is_some()
    });
    refused(bytes_of(&batch(120)), "long batch", |bytes| {
        BatchHeader::decode(LOG, bytes).is_some()
    });
}

#[test]
fn tables_are_covered_by_the_crcs_of_the_trailer() {
    let mut pages = vec![0xa5; PAGE_BYTES];
    let entries = batch(100).entries;
    let mut trailer = trailer();
    trailer.entries = entries.len() as u32;
    trailer.entries_crc = encode_entries(&entries, &mut pages);
    assert!(trailer.holds_entries(&pages));
    assert!(!trailer.holds_entries(&pages[..2048]), "too short");
    pages[4000] ^= 1;
    assert!(!trailer.holds_entries(&pages), "padding counts too");

    let checksums: Vec<u32> = (0..4096).collect();
    let mut pages = vec![0xa5; 4 * PAGE_BYTES];
    trailer.checksums_crc = encode_checksums(&checksums, &mut pages);
    assert!(trailer.holds_checksums(&pages));
    assert_eq!(*decode_checksums(&pages), *checksums);
    assert_eq!(
        *decode_checksums(&pages[PAGE_BYTES..2 * PAGE_BYTES]),
        checksums[1024..2048],
        "a page of the table alone"
    );
    pages[5] ^= 1;
    assert!(!trailer.holds_checksums(&pages));
}

#[test]
fn structures_of_another_log_or_kind_are_refused() {
    let region = page_of(|page| region_header().encode(LOG, page));
    let sealed = page_of(|page| trailer().encode(LOG, page));
    let batch = bytes_of(&batch(3));
    assert_eq!(RegionHeader::decode(OTHER, &region), None);
    assert_eq!(Trailer::decode(OTHER, &sealed), None);
    assert_eq!(BatchHeader::peek(OTHER, &batch), None);
    assert_eq!(BatchHeader::decode(OTHER, &batch), None);
    assert_eq!(RegionHeader::decode(LOG, &sealed), None);
    let void = page_of(|page| void_header().encode(LOG, page));
    assert_eq!(VoidHeader::decode(OTHER, &void), None);
    assert_eq!(VoidHeader::decode(LOG, &region), None);
    assert_eq!(RegionHeader::decode(LOG, &void), None);
    assert_eq!(Trailer::decode(LOG, &region), None);
    assert_eq!(BatchHeader::decode(LOG, &region), None);
    assert_ne!(region_header().chain(LOG), region_header().chain(OTHER));
    let again = BatchHeader {
        run: 2,
        ..self::batch(3)
    };
    assert_ne!(again.next_chain(LOG), self::batch(3).next_chain(LOG));
}

#[test]
fn entries_out_of_place_are_refused() {
    type Change = fn(&mut BatchHeader);
    let changes: [(&str, Change); 9] = [
        ("empty", |b| b.entries[1].len_bytes = 0),
        ("before the data", |b| b.entries[0].region_page -= 1),
        ("behind the data", |b| b.entries[2].region_page += 1),
        ("overlapping", |b| b.entries[1].region_page -= 1),
        ("out of order", |b| b.entries.swap(0, 1)),
        ("beyond its block", |b| b.entries[0].first_page = 1023),
        ("far away", |b| b.entries[2].region_page = u32::MAX),
        ("generation 0", |b| b.generation = 0),
        ("in the region header's page", |b| b.page = 0),
    ];
    for (what, change) in changes {
        let mut changed = batch(3);
        change(&mut changed);
        assert_eq!(
            BatchHeader::decode(LOG, &bytes_of(&changed)),
            None,
            "{what}"
        );
    }
    let mut nothing = batch(1);
    nothing.entries.clear();
    assert_eq!(BatchHeader::peek(LOG, &bytes_of(&nothing)), None);

    let geometry = Geometry::fit(REGION_BYTES_MIN, 1 << 30);
    let mut table = vec![0; PAGE_BYTES];
    let last = geometry.checksum_table_page() - 1;
    for (page, len_bytes, whole) in [
        (1, 1, true),
        (0, 1, false),
        (last, 1, true),
        (last, 4097, false),
    ] {
        encode_entries(&[entry(1, page, len_bytes)], &mut table);
        assert_eq!(
            decode_entries(&table, 1, &geometry).is_some(),
            whole,
            "{page}"
        );
    }
    assert_eq!(
        decode_entries(&table, 1 + PAGE_BYTES / ENTRY_BYTES, &geometry),
        None
    );
    assert_eq!(decode_entries(&table, usize::MAX, &geometry), None);
    assert_eq!(decode_entries(&table, 0, &geometry), Some(Vec::new()));
}

#[test]
fn a_trailer_belongs_to_one_life_of_its_region() {
    let header = region_header();
    assert!(trailer().is_of(&header));
    for other in [
        RegionHeader {
            region: 78,
            ..header
        },
        RegionHeader {
            generation: 4,
            ..header
        },
        RegionHeader {
            sequence: (1 << 40) + 1,
            ..header
        },
    ] {
        assert!(!trailer().is_of(&other), "{other:?}");
    }
}

#[test]
fn a_trailer_must_fit_its_region() {
    let geometry = Geometry::fit(16 << 20, 1 << 30);
    assert_eq!(geometry.checksum_table_page(), 4091);
    let fits = |entry_table_page, entries| {
        let trailer = Trailer {
            entry_table_page,
            entries,
            ..trailer()
        };
        trailer.fits(&geometry)
    };
    assert!(fits(4090, 128) && !fits(4090, 129) && !fits(4091, 1));
    for (entry_table_page, entries) in [(0, 1), (1, u32::MAX), (u32::MAX, u32::MAX), (16_384, 0)] {
        let trailer = Trailer {
            entry_table_page,
            entries,
            ..trailer()
        };
        let mut page = page_of(|page| trailer.encode(LOG, page));
        assert_eq!(Trailer::decode(LOG, &page), None, "{trailer:?}");
        page.truncate(100);
        assert_eq!(Trailer::decode(LOG, &page), None);
    }
}

/// A first page whose crc holds with another version.
fn of_version(version: u16) -> Vec<u8> {
    let mut page = superblock().encode().into_vec();
    page[8..10].copy_from_slice(&version.to_le_bytes());
    let crc = crc_fast::crc32_iscsi(&page[..PAGE_BYTES - 4]);
    page[PAGE_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    page
}

#[test]
fn other_versions_are_told_and_never_guessed_at() {
    let refused = |page: &[u8]| Superblock::decode(page).unwrap_err();
    assert_eq!(refused(&of_version(2)), NotOurs::Newer { version: 2 });
    assert_eq!(refused(&of_version(0)), NotOurs::Older { version: 0 });
    assert_eq!(
        refused(&of_version(9)).to_string(),
        "it is a Forebay cache of format 9, newer than this Forebay's 1: use a newer Forebay, or format it"
    );
    let mut flipped = superblock().encode();
    flipped[9] ^= 0x80;
    assert!(matches!(refused(&flipped), NotOurs::Damaged(_)));
    assert!(matches!(
        refused(&superblock().encode()[..4095]),
        NotOurs::Damaged(_)
    ));
    for field in [
        Superblock {
            region_bytes: 3 << 20,
            ..superblock()
        },
        Superblock {
            sector_bytes: 520,
            ..superblock()
        },
    ] {
        assert!(matches!(refused(&field.encode()), NotOurs::Damaged(_)));
    }
}

#[test]
fn what_else_is_on_a_device_is_told() {
    let refused = |bytes: &[u8]| Superblock::decode(bytes).unwrap_err();
    assert_eq!(refused(&[0; 128 << 10]), NotOurs::Blank);
    assert_eq!(refused(&[]), NotOurs::Blank);
    let with = |pieces: &[(usize, &[u8])]| {
        let mut bytes = vec![0; 128 << 10];
        for (offset, piece) in pieces {
            bytes[*offset..offset + piece.len()].copy_from_slice(piece);
        }
        refused(&bytes).to_string()
    };
    let holds = "it is no Forebay cache and not empty: it holds";
    for (pieces, what) in [
        (
            &[(1080, b"\x53\xef".as_slice())][..],
            "an ext2, ext3 or ext4 file system",
        ),
        (&[(0, b"XFSB")], "an XFS file system"),
        (&[(65_600, b"_BHRfS_M")], "a btrfs file system"),
        (
            &[(510, b"\x55\xaa"), (512, b"EFI PART")],
            "a GPT partition table",
        ),
        (&[(510, b"\x55\xaa")], "an MBR partition table"),
        (&[(512, b"LABELONE")], "an LVM physical volume"),
        (&[(4086, b"SWAPSPACE2")], "a swap area"),
        (&[(16_400, b"pool_guid")], "a ZFS pool"),
        (
            &[(4_096, b"\xfc\x4e\x2b\xa9")],
            "a member of an MD RAID array",
        ),
        (&[(0, b"LUKS\xba\xbe")], "a LUKS volume"),
        (&[(32 << 10, b"SKUL\xba\xbe")], "a LUKS volume"),
        (&[(100_000, b"x")], "unknown data"),
    ] {
        assert_eq!(with(pieces), format!("{holds} {what}"));
    }
    assert_eq!(refused(&[1]), NotOurs::Foreign("unknown data"));
}

#[test]
fn what_lies_at_a_devices_end_is_told() {
    let end = |pieces: &[(usize, &[u8])]| {
        let mut bytes = vec![0; 1 << 20];
        for (from_end, piece) in pieces {
            let at = bytes.len() - from_end;
            bytes[at..at + piece.len()].copy_from_slice(piece);
        }
        bytes
    };
    let blank = [0; 128 << 10];
    let refused = |end: &[u8]| Superblock::decode_device(&blank, end).unwrap_err();
    assert_eq!(refused(&end(&[])), NotOurs::Blank);
    assert_eq!(refused(&[]), NotOurs::Blank);
    assert_eq!(NotOurs::Blank.known(), None);
    for (pieces, what) in [
        // MD 1.0, and 0.90.
        (
            &[(8 << 10, b"\xfc\x4e\x2b\xa9".as_slice())][..],
            "a member of an MD RAID array",
        ),
        (
            &[(65_536 + 4_096, b"\xfc\x4e\x2b\xa9")],
            "a member of an MD RAID array",
        ),
        (
            &[(1_024, b"Intel Raid ISM Cfg Sig. 1.3.00")],
            "a member of an Intel (IMSM, VROC) RAID array",
        ),
        (
            &[(512, b"\xde\x11\xde\x11")],
            "a member of a DDF RAID array",
        ),
        (&[(512, b"EFI PART")], "a GPT partition table"),
        (&[(500_000, b"pool_guid")], "a ZFS pool"),
    ] {
        let found = refused(&end(pieces));
        assert_eq!(found, NotOurs::Foreign(what));
        assert_eq!(found.known(), Some(what));
    }
    let unknown = refused(&end(&[(77_777, b"x")]));
    assert_eq!(unknown, NotOurs::Foreign("unknown data"));
    assert_eq!(unknown.known(), None);
    // The beginning decides where it says something.
    let ours = superblock().encode();
    let raid = end(&[(8 << 10, b"\xfc\x4e\x2b\xa9")]);
    assert!(Superblock::decode_device(&ours, &raid).is_ok());
    let mut unknown = blank;
    unknown[77] = 1;
    let found = Superblock::decode_device(&unknown, &raid).unwrap_err();
    assert_eq!(found.known(), Some("a member of an MD RAID array"));
}

#[test]
fn a_long_owner_is_cut_between_letters() {
    let mut long = superblock();
    long.owner = "x".to_owned() + &"ä".repeat(400);
    let read = Superblock::decode(&long.encode()).unwrap();
    assert_eq!(read.owner.len(), 511);
    assert!(long.owner.starts_with(&read.owner));
}

fn any_entries(pages: Range<u32>) -> impl Strategy<Value = Vec<EntryRecord>> {
    let extent = (
        any::<u128>(),
        any::<u32>(),
        0..1024u16,
        1..=BLOCK_BYTES as u32,
        0..4u32,
        any::<bool>(),
        any::<u8>(),
    );
    proptest::collection::vec(extent, 1..60).prop_map(move |drawn| {
        let mut page = pages.start;
        let mut entries = Vec::new();
        for (object, index, first_page, len_bytes, gap, pinned, hits) in drawn {
            let room = (1024 - u32::from(first_page)) * PAGE_BYTES as u32;
            let entry = EntryRecord {
                block: BlockId {
                    object: ObjectId(object),
                    index,
                },
                first_page,
                len_bytes: len_bytes.min(room),
                region_page: page + gap,
                pinned,
                hits,
            };
            page += gap + entry.pages();
            if page > pages.end {
                break;
            }
            entries.push(entry);
        }
        entries
    })
}

proptest! {
    #[test]
    fn any_superblock_comes_back(
        log: u128,
        shift in 21..=26u32,
        small: bool,
        created_ns: u64,
        owner in "\\PC{0,128}",
    ) {
        let superblock = Superblock {
            log: LogId(log),
            region_bytes: 1 << shift,
            sector_bytes: if small { 512 } else { 4096 },
            created_ns,
            owner,
        };
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn any_region_header_comes_back(
        log: u128,
        numbers: (u32, u64, u32),
        generation in 1..u32::MAX,
        main: bool,
        core in 0..300u16,
        more in 1..300u16,
    ) {
        let header = RegionHeader {
            region: numbers.0,
            sequence: numbers.1,
            tenant: numbers.2,
            generation,
            core,
            queue: if main { Queue::Main } else { Queue::Small },
            cores: core + more,
        };
        let page = page_of(|page| header.encode(LogId(log), page));
        prop_assert_eq!(RegionHeader::decode(LogId(log), &page), Some(header));
    }

    #[test]
    fn any_batch_comes_back(
        entries in any_entries(0..12_000),
        region: u32,
        generation in 1..u32::MAX,
        chain: u64,
        page in 1..2000u32,
        spare in 0..4u32,
        seed: u32,
    ) {
        prop_assume!(!entries.is_empty());
        let last = entries.last().unwrap();
        let data_pages = last.region_page + last.pages() + spare;
        let begins = page + BatchHeader::header_pages(entries.len(), data_pages as usize) as u32;
        let batch = BatchHeader {
            region, generation, page, data_pages, chain,
            run: chain.rotate_left(9),
            entries: entries
                .into_iter()
                .map(|e| EntryRecord { region_page: e.region_page + begins, ..e })
                .collect(),
            checksums: (0..data_pages).map(|n| seed.wrapping_mul(n + 1)).collect(),
        };
        let bytes = bytes_of(&batch);
        prop_assert_eq!(BatchHeader::decode(LOG, &bytes[..bytes.len() - 1]), None);
        prop_assert_eq!(BatchHeader::decode(LOG, &bytes), Some(batch));
    }

    #[test]
    fn any_footer_comes_back(entries in any_entries(1..16_000), region: u32, generation in 1..u32::MAX) {
        let geometry = Geometry::fit(64 << 20, 1 << 30);
        let mut table = vec![0xa5; Trailer::entry_table_pages(entries.len()) * PAGE_BYTES];
        let entries_crc = encode_entries(&entries, &mut table);
        let trailer = Trailer {
            region,
            generation,
            sequence: u64::from(region) << 20,
            entries: entries.len() as u32,
            entry_table_page: 16_000,
            entries_crc,
            checksums_crc: generation,
        };
        let page = page_of(|page| trailer.encode(LOG, page));
        let read = Trailer::decode(LOG, &page).unwrap();
        prop_assert_eq!(read, trailer);
        prop_assert!(read.fits(&geometry) && read.holds_entries(&table));
        prop_assert_eq!(decode_entries(&table, entries.len(), &geometry), Some(entries));
    }

    #[test]
    fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        prop_assert!(Superblock::decode(&bytes).is_err());
        prop_assert_eq!(RegionHeader::decode(LOG, &bytes), None);
        prop_assert_eq!(BatchHeader::peek(LOG, &bytes), None);
        prop_assert_eq!(BatchHeader::decode(LOG, &bytes), None);
        prop_assert_eq!(Trailer::decode(LOG, &bytes), None);
    }
}
