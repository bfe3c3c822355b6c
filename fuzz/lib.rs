//! What the fuzz targets share: seeds, and inputs that get past the checksum.

pub mod tier;

use std::path::Path;

use forebay_engine::disk::layout::{EntryRecord, LogId};
use forebay_engine::identity::{BlockId, ObjectId};
use forebay_engine::limits::PAGE_BYTES;

/// The log that every target expects.
pub const LOG: LogId = LogId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

/// Bytes of magic, version and log: left as the encoder writes them in repaired inputs.
const HEAD_BYTES: usize = 32;

/// Gives real encodings, without the zeros and the crc at their end, as first inputs.
pub fn seed(encodings: &[Vec<u8>]) {
    let bodies = encodings.iter().map(|bytes| {
        let body = &bytes[..bytes.len() - 4];
        let len = body
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 1);
        &body[..len]
    });
    seed_as_is(&bodies.collect::<Vec<_>>());
}

/// Writes first inputs into the directory that `FOREBAY_FUZZ_SEEDS` names, if there is one.
pub fn seed_as_is(inputs: &[&[u8]]) {
    let Some(dir) = std::env::var_os("FOREBAY_FUZZ_SEEDS") else {
        return;
    };
    for input in inputs {
        let name = blake3::hash(input).to_hex();
        std::fs::write(Path::new(&dir).join(&name[..16]), input).expect("seeds are written");
    }
}

/// `data` as so many pages: a structure that begins as `real` does, with a crc that holds. A fuzzer does
/// not find those.
pub fn repaired(data: &[u8], real: &[u8], pages: usize) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(pages * PAGE_BYTES, 0);
    bytes[..HEAD_BYTES].copy_from_slice(&real[..HEAD_BYTES]);
    seal(&mut bytes);
    bytes
}

/// Puts the crc that holds at the end.
pub fn seal(bytes: &mut [u8]) {
    let (body, crc) = bytes.split_last_chunk_mut::<4>().expect("whole pages");
    *crc = crc_fast::crc32_iscsi(body).to_le_bytes();
}

/// An entry at a page of a region.
pub fn entry(number: u32, region_page: u32, len_bytes: u32) -> EntryRecord {
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
