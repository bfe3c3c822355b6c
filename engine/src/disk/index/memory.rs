//! Large tables of small records, zeroed, mapped at once and touched as they fill.

use memmap2::MmapMut;

/// As many records of `N` bytes as were asked for. In huge pages where the system has them: a lookup in a
/// table of millions of records waits for the address translation as long as for the record itself.
pub(super) struct Table<const N: usize> {
    map: MmapMut,
}

impl<const N: usize> Table<N> {
    /// A table of `len` records of zeros.
    ///
    /// # Panics
    /// When there is no memory for it, as any allocation does.
    pub fn new(len: usize) -> Self {
        let bytes = len.saturating_mul(N).max(1);
        let map = MmapMut::map_anon(bytes)
            .unwrap_or_else(|error| panic!("no memory for a table of {bytes} bytes: {error}"));
        // Without huge pages everything works as well.
        let _ = map.advise(memmap2::Advice::HugePage);
        Self { map }
    }

    pub fn get(&self, at: usize) -> &[u8; N] {
        let bytes = &self.map[at * N..];
        bytes.first_chunk().expect("within the table")
    }

    pub fn get_mut(&mut self, at: usize) -> &mut [u8; N] {
        let bytes = &mut self.map[at * N..];
        bytes.first_chunk_mut().expect("within the table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_zero_at_first_and_keep_to_themselves() {
        let mut table = Table::<40>::new(1000);
        assert_eq!([0, 999].map(|at| *table.get(at)), [[0; 40]; 2]);
        *table.get_mut(1) = [7; 40];
        assert_eq!([0, 1, 2].map(|at| table.get(at)[0]), [0, 7, 0]);
        assert_eq!([0, 1, 2].map(|at| table.get(at)[39]), [0, 7, 0]);
    }

    #[test]
    fn a_table_of_nothing_can_be_made() {
        Table::<4>::new(0);
    }
}
