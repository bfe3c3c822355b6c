//! Bus errors (SIGBUS): the registers of a PCI device that went away, or memory that failed.
//!
//! SPDK's handler is there from the moment the program is loaded, and returns whatever the error was: a thread with any other error than at
//! a register would take it again, without end. So errors end the process, as they do without SPDK, but for those at the registers
//! of an attached controller: there this puts memory that reads as ones, as a device does that is not there.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

/// Controllers whose registers are guarded; an error at those of more ends the process.
const PLACES_MAX: usize = 256;
/// Errors that SPDK's own handler may see within one attachment, when nothing is known of the registers yet.
const ATTACH_ERRORS_MAX: u32 = 8;
/// What of a place's beginning reads as ones: the registers, and doorbells, which nobody reads.
const ONES_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;

// What a place is.
const FREE: usize = 0;
const BEGUN: usize = 1;
const THERE: usize = 2;
const REPLACING: usize = 3;
const REPLACED: usize = 4;

/// Registers that are mapped.
struct Place {
    state: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
}

static PLACES: [Place; PLACES_MAX] = [const {
    Place {
        state: AtomicUsize::new(FREE),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; PLACES_MAX];

/// SPDK's handler; 0 before [`reset`], or where there is none.
static SPDKS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Errors that are left to SPDK's handler on this thread.
    static ATTACHING: Cell<u32> = const { Cell::new(0) };
}

/// Registers whose bus errors are survived, as long as this is there.
#[derive(Debug)]
pub(super) struct Guard(usize);

impl Guard {
    /// None when too many are guarded.
    ///
    /// # Safety
    /// The range is mapped, in whole pages, for as long as the guard lives, and only read and written as registers are: it may become
    /// other memory at any time.
    pub(super) unsafe fn new(range: Range<usize>) -> Option<Self> {
        let index = PLACES.iter().position(|place| {
            let taken =
                place
                    .state
                    .compare_exchange(FREE, BEGUN, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        })?;
        let place = &PLACES[index];
        place.start.store(range.start, Ordering::Relaxed);
        place.end.store(range.end, Ordering::Relaxed);
        place.state.store(THERE, Ordering::Release);
        Some(Self(index))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        PLACES[self.0].state.store(FREE, Ordering::Release);
    }
}

/// Has bus errors end the process.
pub(crate) fn reset() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Some(before) = set(libc::SIG_DFL)
            && before.sa_flags & libc::SA_SIGINFO != 0
        {
            SPDKS.store(before.sa_sigaction, Ordering::Release);
        }
    });
}

/// The same, but for registers that are guarded.
pub(crate) fn guard_registers() {
    reset();
    let handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    set(handler as usize);
}

/// Attaches, on this thread.
pub(super) fn while_attaching<T>(attach: impl FnOnce() -> T) -> T {
    ATTACHING.set(ATTACH_ERRORS_MAX);
    let attached = attach();
    ATTACHING.set(0);
    attached
}

/// What was there before; none when the kernel refuses, which it does for no such signal.
fn set(handler: usize) -> Option<libc::sigaction> {
    // SAFETY: numbers, a set of numbers and an optional function, for which zeros are values.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both live until the call has returned. The handler is the default, or takes what SA_SIGINFO gives, and does only what may be
    // done in one.
    let outcome = unsafe { libc::sigaction(libc::SIGBUS, &action, &mut before) };
    (outcome == 0).then_some(before)
}

/// Takes no lock and no memory from the allocator.
unsafe extern "C" fn on_bus_error(signal: c_int, told: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives what SA_SIGINFO promises.
    let code = unsafe { (*told).si_code };
    // An instruction's, and no failure of memory.
    if (libc::BUS_ADRALN..=libc::BUS_OBJERR).contains(&code) {
        // SAFETY: as above.
        let info = unsafe { &*told };
        // SAFETY: such a one has an address.
        let address = unsafe { info.si_addr() } as usize;
        if replace(address) {
            return;
        }
        let left = ATTACHING.get();
        let spdks = SPDKS.load(Ordering::Acquire);
        if left > 0 && spdks != 0 {
            ATTACHING.set(left - 1);
            // SAFETY: it was SPDK's handler for the same signal, with SA_SIGINFO.
            let spdks: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(spdks) };
            // SAFETY: as the kernel would call it.
            unsafe { spdks(signal, told, context) };
            return;
        }
    }
    set(libc::SIG_DFL);
    // An instruction's comes again at once, and ends the process where it was; what was sent does not.
    if !(libc::BUS_ADRALN..=libc::BUS_MCEERR_AR).contains(&code) {
        // SAFETY: it may be called in a handler. It comes when this has returned.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Puts memory in the place of the registers at an address; whether there are any, and the access can be done again.
fn replace(address: usize) -> bool {
    let place = PLACES.iter().find(|place| {
        place.state.load(Ordering::Acquire) >= THERE
            && place.start.load(Ordering::Relaxed) <= address
            && address < place.end.load(Ordering::Relaxed)
    });
    let Some(place) = place else { return false };
    let mine =
        (place.state).compare_exchange(THERE, REPLACING, Ordering::AcqRel, Ordering::Relaxed);
    if mine.is_err() {
        // Another thread does it, or has.
        return true;
    }
    let start = place.start.load(Ordering::Relaxed);
    let len = place.end.load(Ordering::Relaxed) - start;
    let replaced = put_ones(start, len).is_ok();
    let state = if replaced { REPLACED } else { THERE };
    // Unless the guard is gone meanwhile.
    let _ = (place.state).compare_exchange(REPLACING, state, Ordering::AcqRel, Ordering::Relaxed);
    replaced
}

fn put_ones(start: usize, len: usize) -> rustix::io::Result<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, at a place where nothing is.
    let ones =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
    // SAFETY: at least so much was mapped just now, and nobody knows of it.
    unsafe { ones.cast::<u8>().write_bytes(0xff, len.min(ONES_BYTES)) };
    let to = start as *mut c_void;
    // At once: nobody sees anything but ones there.
    // SAFETY: `Guard::new`: it is mapped, in whole pages, and may become other memory.
    unsafe { rustix::mm::mremap_fixed(ones, len, len, MremapFlags::MAYMOVE, to) }.map(drop)
}

/// Whole pages that hold so many bytes.
pub(super) fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "FOREBAY_BUS_ERROR";
    const PAGES: usize = 3;

    /// A file's pages, of which the file is taken away.
    fn gone() -> usize {
        let path = std::env::temp_dir().join(format!("bus-error-{}", std::process::id()));
        let file = std::fs::File::options();
        let file = { file }
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let len = PAGES * PAGE_BYTES;
        file.set_len(len as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory.
        let at = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0).unwrap()
        };
        file.set_len(0).unwrap();
        at as usize
    }

    fn read(address: usize) -> u32 {
        // SAFETY: mapped, though perhaps gone, which the handler is for.
        unsafe { (address as *const u32).read_volatile() }
    }

    /// What the process under test does; it is this test's own program.
    fn act(what: &str) {
        // Nobody wants its core.
        let limit = Some(0);
        let none = rustix::process::Rlimit {
            current: limit,
            maximum: limit,
        };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        guard_registers();
        let at = gone();
        let len = PAGES * PAGE_BYTES;
        // SAFETY: mapped for good, and only read and written.
        let guard = unsafe { Guard::new(at..at + len) }.unwrap();
        match what {
            "registers" => {
                let threads: Vec<_> = (0..4)
                    .map(|n| std::thread::spawn(move || read(at + n * PAGE_BYTES / 2)))
                    .collect();
                for thread in threads {
                    assert_eq!(thread.join().unwrap(), u32::MAX);
                }
                let last = (at + len - 4) as *mut u32;
                // SAFETY: as in `read`.
                unsafe { last.write_volatile(7) };
                assert_eq!(read(at + len - 4), 7);
            }
            "elsewhere" => drop(read(gone())),
            "after" => {
                drop(guard);
                read(at);
            }
            "sent" => {
                // SAFETY: ends this process.
                unsafe { libc::raise(libc::SIGBUS) };
            }
            _ => panic!("{what}"),
        }
    }

    #[test]
    fn only_errors_at_registers_are_survived() {
        if let Ok(what) = std::env::var(CHILD) {
            return act(&what);
        }
        let ended = |what: &str| {
            let name = "driver::bus_error::tests::only_errors_at_registers_are_survived";
            let mut child = Command::new(std::env::current_exe().unwrap());
            let mut child = child
                .args(["--exact", name])
                .env(CHILD, what)
                .spawn()
                .unwrap();
            child.wait().unwrap()
        };
        assert!(ended("registers").success());
        for what in ["elsewhere", "after", "sent"] {
            assert_eq!(ended(what).signal(), Some(libc::SIGBUS), "{what}");
        }
    }
}
