//! The system's allocator, with a count for each thread of how often it was asked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Without a destructor and set at compile time: it may be touched before and after everything else of a thread.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    ASKED.set(ASKED.get().wrapping_add(1));
}

// SAFETY: every call is handed to the system's allocator as it came, and its answer back; counting touches a number of
// the thread's own, and neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps what `GlobalAlloc::alloc` asks of it, which is what `System` asks.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: what this allocator gave came from `System`, with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as in `dealloc`, and the caller keeps what is asked of the new size.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread has asked for memory.
pub fn allocations() -> u64 {
    ASKED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_counted_and_nothing_else() {
        let before = allocations();
        let mut bytes = Vec::<u8>::with_capacity(100);
        assert_eq!(allocations(), before + 1);
        bytes.extend([1; 100]);
        assert_eq!(allocations(), before + 1);
        bytes.push(1);
        drop(std::hint::black_box(bytes));
        assert_eq!(allocations(), before + 2);
    }
}
