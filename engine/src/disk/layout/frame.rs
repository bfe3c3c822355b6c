//! How every structure begins and ends, and cursors over its bytes.
//!
//! A structure is whole pages: magic 8, format version 2, zero 6, log identity 16, its own fields, zeros,
//! and in the last four bytes the crc32c of all before. Zeros are checked too, so that each structure has
//! one form only and every flipped bit is seen.

use super::LogId;
use crate::limits::PAGE_BYTES;

/// Version of the format. Magic, version and crc of the superblock keep their places in every version.
pub const FORMAT_VERSION: u16 = 1;

/// Bytes before a structure's own fields.
pub(super) const HEAD_BYTES: usize = 32;
/// Bytes of the crc at a structure's end.
pub(super) const CRC_BYTES: usize = 4;

/// First bytes of a structure.
pub(super) type Magic = [u8; 8];

/// The hash of an encoded header: what the next batch header carries as its `chain`.
pub fn chain_of(encoded: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("forebay region log chain v1");
    hasher.update(encoded);
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// Whether the crc at the end of `bytes` is that of all before.
pub(super) fn crc_holds(bytes: &[u8]) -> bool {
    bytes
        .split_last_chunk::<CRC_BYTES>()
        .is_some_and(|(body, crc)| crc_fast::crc32_iscsi(body) == u32::from_le_bytes(*crc))
}

/// Writes a structure from its head to its crc.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// Panics when `out` is not whole pages: the caller's fault, not input's.
    pub fn begin(out: &'a mut [u8], magic: Magic, log: LogId) -> Self {
        assert!(
            !out.is_empty() && out.len().is_multiple_of(PAGE_BYTES),
            "a structure is whole pages, not {} bytes",
            out.len()
        );
        let mut writer = Self { out, at: 0 };
        writer.bytes(&magic);
        writer.u16(FORMAT_VERSION);
        writer.bytes(&[0; 6]);
        writer.u128(log.0);
        writer
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.out[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }

    pub fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u128(&mut self, value: u128) {
        self.bytes(&value.to_le_bytes());
    }

    /// Zeros, then the crc.
    pub fn finish(self) {
        let (body, crc) = self
            .out
            .split_last_chunk_mut::<CRC_BYTES>()
            .expect("whole pages");
        body[self.at..].fill(0);
        *crc = crc_fast::crc32_iscsi(body).to_le_bytes();
    }
}

/// Reads a structure's fields; `None` as soon as something is not as it was written.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of any bytes, without head.
    pub fn over(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// A reader behind the head, when magic, version and log are ours.
    pub fn begin(bytes: &'a [u8], magic: Magic, log: LogId) -> Option<Self> {
        let mut reader = Self::over(bytes);
        let ours = reader.array()? == magic
            && reader.u16()? == FORMAT_VERSION
            && reader.array()? == [0; 6]
            && reader.u128()? == log.0;
        ours.then_some(reader)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*first)
    }

    pub fn bytes(&mut self, len_bytes: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.rest.split_at_checked(len_bytes)?;
        self.rest = rest;
        Some(first)
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }

    pub fn u128(&mut self) -> Option<u128> {
        Some(u128::from_le_bytes(self.array()?))
    }

    /// What is left, but for the crc, must be zero.
    pub fn finish(self) -> Option<()> {
        let (padding, _) = self.rest.split_last_chunk::<CRC_BYTES>()?;
        padding.iter().all(|byte| *byte == 0).then_some(())
    }
}
