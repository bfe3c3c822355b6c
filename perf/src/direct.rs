//! O_DIRECT files and the aligned buffers they want.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// What O_DIRECT asks of a buffer's address: a page suffices everywhere.
const ALIGN_BYTES: usize = 4096;

/// A buffer whose first byte is page-aligned.
#[derive(Debug)]
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes.
    pub fn new(len: usize) -> Self {
        // Never grown afterwards, so the address stays.
        let bytes = vec![0; len + ALIGN_BYTES];
        let start = bytes.as_ptr().addr().next_multiple_of(ALIGN_BYTES) - bytes.as_ptr().addr();
        Self { bytes, start, len }
    }

    /// The aligned bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Opens `path` for reading past the page cache.
///
/// # Errors
/// What the system says, with the path.
pub fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned() {
        for len in [1, 4096, 1 << 20] {
            let mut buf = AlignedBuf::new(len);
            assert_eq!(buf.bytes().as_ptr().addr() % ALIGN_BYTES, 0);
            assert_eq!(buf.bytes().len(), len);
        }
    }
}
