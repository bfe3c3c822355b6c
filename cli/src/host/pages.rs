//! Buffers for devices that reach memory by themselves: in huge pages that the machine has reserved, where enough are free.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use forebay_engine::arena::Arena;

use crate::doctor::machine::Files;

/// Pages that stay free beside what the driver takes for queue pairs: controllers want some, and tools.
const LEFT: u64 = 32;
const PAGE_BYTES: u64 = 2 << 20;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// One at a time: what is free is looked at and taken.
static TAKING: Mutex<()> = Mutex::new(());

/// An arena for a device that reaches it by itself, and for few operations.
///
/// # Errors
/// The kernel's, when there is no memory at all.
pub fn arena_for_devices(capacity_bytes: usize) -> io::Result<Arena> {
    arena_on(&Files::below(Path::new("/")), capacity_bytes)
}

fn arena_on(machine: &Files, capacity_bytes: usize) -> io::Result<Arena> {
    let _one = TAKING.lock().unwrap_or_else(|poison| poison.into_inner());
    let reserved = Wanted::new(1, capacity_bytes, 0).are_free(free_pages(machine));
    arena(capacity_bytes, reserved)
}

/// Whether the buffers of all cores go to reserved pages. Decided once, before any takes some: the driver must have its own for the last
/// core's queue pairs too, and without them the node would not start.
pub(super) fn are_reserved(cores: usize, bytes_per_core: usize, driver_pages: u64) -> bool {
    let wanted = Wanted::new(cores, bytes_per_core, driver_pages);
    let free = free_pages(&Files::below(Path::new("/")));
    let are_free = wanted.are_free(free);
    if !are_free && free > 0 {
        tracing::info!(
            "{free} reserved huge pages are free, and {} are wanted ({} for buffers, {} left to SPDK): buffers are in ordinary memory",
            wanted.all(),
            wanted.buffers,
            wanted.left
        );
    }
    are_free
}

/// An arena, in reserved pages if that was decided.
///
/// # Errors
/// The kernel's, when there is no memory at all.
pub(super) fn arena(capacity_bytes: usize, reserved: bool) -> io::Result<Arena> {
    if !reserved {
        return Arena::new(capacity_bytes);
    }
    Arena::in_reserved_pages(capacity_bytes).or_else(|error| {
        tracing::warn!(
            "enough reserved huge pages are free for {capacity_bytes} bytes of buffers, and this process does not get them ({error}; its control \
             group or memory node may have fewer, and Linux before 5.14 cannot tell): they are in ordinary memory"
        );
        Arena::new(capacity_bytes)
    })
}

/// Pages that a process wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    buffers: u64,
    left: u64,
}

impl Wanted {
    fn new(cores: usize, bytes_per_core: usize, driver_pages: u64) -> Self {
        let cores = cores as u64;
        Self {
            buffers: cores.saturating_mul((bytes_per_core as u64).div_ceil(PAGE_BYTES)),
            left: cores.saturating_mul(driver_pages).saturating_add(LEFT),
        }
    }

    fn all(self) -> u64 {
        self.buffers.saturating_add(self.left)
    }

    fn are_free(self, free: u64) -> bool {
        free >= self.all()
    }
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
    fn the_driver_has_pages_for_every_queue_pair() {
        // 16 cores with 64 MiB each, and 8 devices.
        let wanted = Wanted::new(16, 64 << 20, 8);
        assert_eq!((wanted.buffers, wanted.left), (512, 128 + 32));
        assert!(!wanted.are_free(512 + 32) && !wanted.are_free(671));
        assert!(wanted.are_free(672));
        assert_eq!(Wanted::new(1, (2 << 20) + 1, 0).all(), 2 + 32);
        assert!(!Wanted::new(usize::MAX, usize::MAX, u64::MAX).are_free(1 << 40));
    }

    #[test]
    fn without_enough_of_them_buffers_are_ordinary() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::below(dir.path());
        std::fs::create_dir_all(files.path(POOL)).unwrap();
        let free = (LEFT + 3).to_string();
        std::fs::write(files.path(&format!("{POOL}/free_hugepages")), free).unwrap();
        let wanted = 4 * PAGE_BYTES;
        let arena = arena_on(&files, wanted as usize).unwrap();
        assert_eq!(arena.capacity_bytes() as u64, wanted);
        assert!(!arena.mapping().is_reserved());
    }
}
