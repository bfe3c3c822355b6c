//! Which of this process's memory is in reserved huge pages.

use std::ops::Range;

/// Whether all of a range is, by what the kernel says of this process's mappings.
pub(crate) fn in_reserved_huge_pages(range: Range<usize>) -> bool {
    std::fs::read_to_string("/proc/self/smaps").is_ok_and(|smaps| covers(&smaps, range))
}

/// Whether mappings with the flag `ht` (they use huge pages of the pool) cover a range; they are in the order of their
/// addresses.
fn covers(smaps: &str, range: Range<usize>) -> bool {
    let mut covered = range.start;
    let mut mapping = 0..0;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let huge = flags.split_whitespace().any(|flag| flag == "ht");
            if huge && mapping.contains(&covered) {
                covered = mapping.end;
            }
        } else if let Some(range) = addresses(line) {
            mapping = range;
        }
    }
    covered >= range.end
}

/// Of a mapping's first line, which begins `7f0000000000-7f0000200000 rw-p`.
fn addresses(line: &str) -> Option<Range<usize>> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    let hex = |digits| usize::from_str_radix(digits, 16).ok();
    Some(hex(start)?..hex(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wholly_in_the_pool_counts() {
        let smaps = "200000-600000 rw-p 00000000 00:0f 7 /anon_hugepage (deleted)\nSize: 4096 kB\nKernelPageSize: 2048 kB\nVmFlags: rd wr mr mw me de ht sd \n\
                     600000-800000 rw-s 00000000 00:0f 8 /dev/hugepages/x\nVmFlags: rd wr sh ht\n\
                     800000-a00000 rw-p 00000000 00:00 0\nAnonHugePages: 2048 kB\nVmFlags: rd wr mr mw me ac hg sd\n";
        for (range, expected) in [
            (0x200000..0x600000, true),
            (0x400000..0x800000, true),
            (0x200000..0x800001, false),
            (0x800000..0xa00000, false),
            (0x100000..0x400000, false),
            (0xa00000..0xc00000, false),
        ] {
            assert_eq!(covers(smaps, range.clone()), expected, "{range:x?}");
        }
        let here = std::ptr::from_ref(&smaps) as usize;
        assert!(!in_reserved_huge_pages(here..here + 8));
    }
}
