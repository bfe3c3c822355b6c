//! Memory as the engine's arena has it: in huge pages where the kernel gives them, so that a limit misses the TLB no more often.

use std::io;

use memmap2::{Advice, MmapMut};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that begin at a huge page's boundary.
#[derive(Debug)]
pub struct HugeBytes {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl HugeBytes {
    /// `len` zeros.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn new(len: usize) -> io::Result<HugeBytes> {
        let mapped = len
            .checked_next_multiple_of(HUGE_PAGE_BYTES)
            .and_then(|len| len.checked_add(HUGE_PAGE_BYTES))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapMut::map_anon(mapped)?;
        // Without them everything works as well, for the engine too.
        let _ = map.advise(Advice::HugePage);
        let begin = map.as_ptr().addr();
        Ok(HugeBytes {
            start: begin.next_multiple_of(HUGE_PAGE_BYTES) - begin,
            len,
            map,
        })
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }

    /// To write to it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's flags of the mapping that holds an address: `hg` is what was asked for.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let mut within = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|word| word.split_once('-'));
            let ends = range.and_then(|(from, to)| {
                let from = usize::from_str_radix(from, 16).ok()?;
                Some(from..usize::from_str_radix(to, 16).ok()?)
            });
            match ends {
                Some(ends) => within = ends.contains(&address),
                None if within && line.starts_with("VmFlags:") => return line.to_owned(),
                None => {}
            }
        }
        String::new()
    }

    #[test]
    fn limits_ask_for_huge_pages_as_the_arena_does() -> io::Result<()> {
        let mut huge = HugeBytes::new((4 << 20) + 1)?;
        huge.bytes_mut().fill(7);
        assert_eq!(huge.bytes().len(), (4 << 20) + 1);
        let begin = huge.bytes().as_ptr().addr();
        assert_eq!(begin % HUGE_PAGE_BYTES, 0);
        let advised = flags(begin);
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            assert!(advised.split(' ').any(|flag| flag == "hg"), "{advised}");
        } else {
            println!("SKIPPED: huge pages: this kernel has none");
        }
        assert!(HugeBytes::new(usize::MAX).is_err());
        Ok(())
    }
}
