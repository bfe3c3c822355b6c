//! Which registered buffer an address lies in.

use std::ops::Range;

/// The kernel takes at most so many bytes as one buffer. A multiple of the arena's largest buffer, so
/// that none lies across two.
const PIECE_BYTES: usize = 1 << 30;

/// An address range, registered in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FixedBuffers {
    range: Range<usize>,
}

impl FixedBuffers {
    pub(crate) fn over(range: Range<usize>) -> Self {
        Self { range }
    }

    /// Address and length of each piece, in the order of their numbers.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (usize, usize)> {
        let Range { start, end } = self.range.clone();
        (start..end)
            .step_by(PIECE_BYTES)
            .map(move |at| (at, PIECE_BYTES.min(end - at)))
    }

    /// The number of the piece that holds `len_bytes` at `address`; none when no single piece does.
    pub(crate) fn index(&self, address: usize, len_bytes: usize) -> Option<u16> {
        let last = address.checked_add(len_bytes.checked_sub(1)?)?;
        if address < self.range.start || last >= self.range.end {
            return None;
        }
        let index = (address - self.range.start) / PIECE_BYTES;
        if (last - self.range.start) / PIECE_BYTES != index {
            return None;
        }
        u16::try_from(index).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_its_piece_or_in_none() {
        let start = 7 << 20;
        let fixed = FixedBuffers::over(start..start + PIECE_BYTES * 5 / 2);
        let pieces: Vec<_> = fixed.pieces().collect();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[2], (start + 2 * PIECE_BYTES, PIECE_BYTES / 2));
        assert_eq!(fixed.index(start, 1), Some(0));
        assert_eq!(fixed.index(start + PIECE_BYTES - 4096, 4096), Some(0));
        assert_eq!(fixed.index(start + PIECE_BYTES, 4096), Some(1));
        assert_eq!(fixed.index(start + PIECE_BYTES - 4096, 8192), None);
        let end = start + PIECE_BYTES * 5 / 2;
        assert_eq!(fixed.index(end - 1, 1), Some(2));
        assert_eq!(fixed.index(end - 1, 2), None);
        assert_eq!(fixed.index(start - 1, 1), None);
        assert_eq!(fixed.index(start, 0), None);
        assert_eq!(fixed.index(usize::MAX, 2), None);
        assert_eq!(FixedBuffers::default().index(0, 1), None);
        assert_eq!(FixedBuffers::default().pieces().count(), 0);
    }
}
