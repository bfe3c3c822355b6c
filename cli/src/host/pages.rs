//! Buffers for devices that reach memory by themselves: in huge pages that the machine has reserved, where enough are free.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use forebay_engine::arena::Arena;

use crate::doctor::machine::Files;

/// Pages that stay free: SPDK takes some of its own for each queue pair.
const LEFT: u64 = 32;
const PAGE_BYTES: u64 = 2 << 20;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// One core at a time: what is free is looked at and taken.
static TAKING: Mutex<()> = Mutex::new(());

/// An arena for a device that reaches it by itself.
///
/// # Errors
/// The kernel's, when there is no memory at all.
pub fn arena_for_devices(capacity_bytes: usize) -> io::Result<Arena> {
    let _one = TAKING.lock().unwrap_or_else(|poison| poison.into_inner());
    let wanted = (capacity_bytes as u64).div_ceil(PAGE_BYTES);
    let free = free_pages(&Files::below(Path::new("/")));
    if free < wanted + LEFT {
        tracing::debug!(
            "{free} reserved huge pages are free, and {wanted} with {LEFT} more are wanted: buffers are in ordinary memory"
        );
        return Arena::new(capacity_bytes);
    }
    Arena::in_reserved_pages(capacity_bytes).or_else(|error| {
        tracing::warn!(
            "{free} reserved huge pages are free, and this process may not have {wanted} of them ({error}; its control group may have fewer): \
             buffers are in ordinary memory"
        );
        Arena::new(capacity_bytes)
    })
}

/// Pages of the pool that nobody has, nor was promised.
fn free_pages(files: &Files) -> u64 {
    let number = |name: &str| files.number(&format!("{POOL}/{name}")).unwrap_or(0);
    number("free_hugepages").saturating_sub(number("resv_hugepages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_pages_are_not_free() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::below(dir.path());
        assert_eq!(free_pages(&files), 0);
        std::fs::create_dir_all(files.path(POOL)).unwrap();
        let put = |name: &str, text: &str| {
            std::fs::write(files.path(&format!("{POOL}/{name}")), text).unwrap();
        };
        put("free_hugepages", "100\n");
        assert_eq!(free_pages(&files), 100);
        put("resv_hugepages", "30\n");
        assert_eq!(free_pages(&files), 70);
        put("resv_hugepages", "300\n");
        assert_eq!(free_pages(&files), 0);
    }

    #[test]
    fn without_enough_of_them_buffers_are_ordinary() {
        let here = free_pages(&Files::of_this_machine());
        let wanted = (here + 1) * PAGE_BYTES;
        let arena = arena_for_devices(wanted as usize).unwrap();
        assert_eq!(arena.capacity_bytes() as u64, wanted);
        assert!(!arena.mapping().is_reserved());
    }
}
