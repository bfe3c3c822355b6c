//! Hugepages: fewer entries in the address tables of processors, disks and network cards.

use super::finding::Finding;
use super::machine::Files;
use crate::units::Bytes;

const AREA: &str = "memory";
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// What the kernel offers.
pub fn look(files: &Files) -> Vec<Finding> {
    vec![transparent(files), reserved(files)]
}

/// The memory tier asks for these by itself.
fn transparent(files: &Files) -> Finding {
    const OBJECT: &str = "transparent hugepages";
    match files.chosen(TRANSPARENT).as_deref() {
        Some("never") => Finding::warning(
            AREA,
            OBJECT,
            "never: the memory tier gets pages of 4 KiB",
            format!(
                "echo madvise > {TRANSPARENT} (transparent_hugepage=madvise on the kernel's command line)"
            ),
        ),
        Some(mode) => Finding::ok(AREA, OBJECT, mode),
        None => Finding::warning(
            AREA,
            OBJECT,
            "not in this kernel: the memory tier gets pages of 4 KiB",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE has them",
        ),
    }
}

fn reserved(files: &Files) -> Finding {
    const OBJECT: &str = "reserved hugepages";
    let value = |name| files.value("/proc/meminfo", name).unwrap_or(0);
    match value("HugePages_Total") {
        0 => Finding::absent(
            AREA,
            OBJECT,
            "none; SPDK starts for a PCI device only with some (`sysctl vm.nr_hugepages=512`)",
        ),
        total => Finding::ok(
            AREA,
            OBJECT,
            format!(
                "{total} of {}, {} free: SPDK's, and for buffers where it drives a PCI device",
                Bytes(value("Hugepagesize") << 10),
                value("HugePages_Free")
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn both_kinds_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::below(dir.path());
        assert_eq!(transparent(&files).verdict, Verdict::Warning);
        assert_eq!(reserved(&files).verdict, Verdict::Absent);
        let write = |path: &str, text: &str| {
            let path = files.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(TRANSPARENT, "always madvise [never]\n");
        assert!(transparent(&files).advice.unwrap().contains("madvise >"));
        write(TRANSPARENT, "always [madvise] never\n");
        assert_eq!(transparent(&files).verdict, Verdict::Ok);
        let text = "HugePages_Total: 8\nHugePages_Free: 3\nHugepagesize: 2048 kB\n";
        write("/proc/meminfo", text);
        assert!(reserved(&files).found.starts_with("8 of 2 MiB, 3 free"));
    }
}
