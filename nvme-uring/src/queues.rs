//! The two kinds of rings: the usual one, and the one with the wide entries that NVMe commands need.

use std::io;

use io_uring::{IoUring, Submitter, cqueue, squeue};

/// A ring with entries that hold a whole NVMe command and its result.
pub(crate) type WideRing = IoUring<squeue::Entry128, cqueue::Entry32>;

/// An entry for either kind; a wide one is for a wide ring only.
pub(crate) enum Entry {
    Plain(squeue::Entry),
    Wide(Box<squeue::Entry128>),
}

/// A ring of one of the two kinds.
pub(crate) enum Queues {
    Plain(IoUring),
    Wide(WideRing),
}

/// Does the same with the ring of either kind.
macro_rules! either {
    ($queues:expr, $ring:ident => $what:expr) => {
        match $queues {
            Queues::Plain($ring) => $what,
            Queues::Wide($ring) => $what,
        }
    };
}

impl Queues {
    pub fn submitter(&self) -> Submitter<'_> {
        either!(self, ring => ring.submitter())
    }

    /// Entries that wait for the next submit.
    pub fn waiting(&mut self) -> usize {
        either!(self, ring => ring.submission().len())
    }

    pub fn is_full(&mut self) -> bool {
        either!(self, ring => ring.submission().is_full())
    }

    pub fn submit(&self) -> io::Result<usize> {
        either!(self, ring => ring.submit())
    }

    /// Puts an entry into the queue; false when that has no room, or the entry is none for this kind of ring.
    ///
    /// # Safety
    /// What the entry names must stay valid until the kernel has completed it, or provably not seen it.
    pub unsafe fn push(&mut self, entry: Entry) -> bool {
        match (self, entry) {
            // SAFETY: by this function's condition.
            (Queues::Plain(ring), Entry::Plain(entry)) => unsafe {
                ring.submission().push(&entry).is_ok()
            },
            (Queues::Wide(ring), Entry::Plain(entry)) => {
                let entry = squeue::Entry128::from(entry);
                // SAFETY: by this function's condition.
                unsafe { ring.submission().push(&entry).is_ok() }
            }
            (Queues::Wide(ring), Entry::Wide(entry)) => {
                // SAFETY: by this function's condition.
                unsafe { ring.submission().push(&entry).is_ok() }
            }
            (Queues::Plain(_), Entry::Wide(_)) => false,
        }
    }

    /// The next completion: its entry's number, and what the kernel returned.
    pub fn next(&mut self) -> Option<(u64, i32)> {
        match self {
            Queues::Plain(ring) => {
                let done = ring.completion().next()?;
                Some((done.user_data(), done.result()))
            }
            Queues::Wide(ring) => {
                let done = ring.completion().next()?;
                Some((done.user_data(), done.result()))
            }
        }
    }

    pub fn has_completions(&mut self) -> bool {
        either!(self, ring => !ring.completion().is_empty())
    }

    /// Whether the kernel signals new completions at the eventfd.
    pub fn set_bell(&mut self, on: bool) {
        either!(self, ring => match on {
            true => ring.completion().enable_eventfd(),
            false => ring.completion().disable_eventfd(),
        });
    }

    /// Whether the kernel has completions that it writes down only when asked.
    pub fn has_unwritten(&mut self) -> bool {
        either!(self, ring => {
            let queue = ring.submission();
            queue.taskrun() || queue.cq_overflow()
        })
    }

    /// Whether it can wait for a time.
    pub fn waits_for_a_time(&self) -> bool {
        either!(self, ring => ring.params().is_feature_ext_arg())
    }
}
