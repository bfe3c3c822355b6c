//! Which registered buffer an address lies in.

use std::ops::Range;

/// The range is registered in pieces of this size, each when it is first used: so a large arena takes
/// neither time nor memory before. A multiple of the arena's largest buffer, so that none lies across two; the size of a
/// huge page, which is what a first use costs anyway.
const PIECE_BYTES_MIN: usize = 2 << 20;
/// The kernel's table has room for so many.
const PIECES_MAX: usize = 1 << 14;

/// An address range in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FixedBuffers {
    range: Range<usize>,
    piece_bytes: usize,
    /// Whether the kernel knows the piece.
    registered: Vec<bool>,
}

impl FixedBuffers {
    pub(crate) fn over(range: Range<usize>) -> Self {
        let smallest = range.len().div_ceil(PIECES_MAX);
        let piece_bytes = smallest.next_power_of_two().max(PIECE_BYTES_MIN);
        let pieces = range.len().div_ceil(piece_bytes);
        Self {
            range,
            piece_bytes,
            registered: vec![false; pieces],
        }
    }

    /// How many pieces there are.
    pub(crate) fn pieces(&self) -> usize {
        self.registered.len()
    }

    /// Address and length of a piece.
    pub(crate) fn piece(&self, index: usize) -> Range<usize> {
        let start = self.range.start + index * self.piece_bytes;
        start..self.range.end.min(start + self.piece_bytes)
    }

    pub(crate) fn is_registered(&self, index: usize) -> bool {
        self.registered[index]
    }

    pub(crate) fn set_registered(&mut self, index: usize) {
        self.registered[index] = true;
    }

    /// The number of the piece that holds `len_bytes` at `address`; none when no single piece does.
    pub(crate) fn index(&self, address: usize, len_bytes: usize) -> Option<usize> {
        let last = address.checked_add(len_bytes.checked_sub(1)?)?;
        if address < self.range.start || last >= self.range.end {
            return None;
        }
        let index = (address - self.range.start) / self.piece_bytes;
        ((last - self.range.start) / self.piece_bytes == index).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_its_piece_or_in_none() {
        const PIECE: usize = PIECE_BYTES_MIN;
        let start = 7 << 20;
        let fixed = FixedBuffers::over(start..start + PIECE * 5 / 2);
        assert_eq!(fixed.pieces(), 3);
        assert_eq!(fixed.piece(2), start + 2 * PIECE..start + PIECE * 5 / 2);
        assert_eq!(fixed.index(start, 1), Some(0));
        assert_eq!(fixed.index(start + PIECE - 4096, 4096), Some(0));
        assert_eq!(fixed.index(start + PIECE, 4096), Some(1));
        assert_eq!(fixed.index(start + PIECE - 4096, 8192), None);
        let end = start + PIECE * 5 / 2;
        assert_eq!(fixed.index(end - 1, 1), Some(2));
        assert_eq!(fixed.index(end - 1, 2), None);
        assert_eq!(fixed.index(start - 1, 1), None);
        assert_eq!(fixed.index(start, 0), None);
        assert_eq!(fixed.index(usize::MAX, 2), None);
        let none = FixedBuffers::over(0..0);
        assert_eq!((none.index(0, 1), none.pieces()), (None, 0));
    }

    #[test]
    fn a_large_range_has_larger_pieces_and_not_more() {
        for gib in [1, 31, 32, 33, 500] {
            let fixed = FixedBuffers::over(0..gib << 30);
            assert!(fixed.pieces() <= PIECES_MAX, "{gib} GiB");
            assert_eq!(fixed.piece(fixed.pieces() - 1).end, gib << 30);
            assert!(fixed.piece_bytes < 1 << 30, "the kernel's limit");
        }
    }
}
