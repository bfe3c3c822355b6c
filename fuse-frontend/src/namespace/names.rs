//! Which keys have a path, and what is counted about those that have none.
//!
//! | key | in the tree |
//! |---|---|
//! | `a/b` | file `b` in directory `a` |
//! | `a/` (a directory marker) | makes directory `a` exist, also when it is empty |
//! | `a` beside `a/b` | directory `a`; the object `a` is left out (`shadowed`) |
//! | `a//b`, `/a` | left out (`empty_component`) |
//! | `a/./b`, `a/../b` | left out (`dot_component`) |
//! | a component of more than 255 bytes | left out (`name_too_long`) |
//! | a component with a NUL byte | left out (`nul_byte`) |
//! | bytes that are no UTF-8 | left out (`not_utf8`; the origin's listing counts them) |
//! | a newline and anything else | as it is |
//!
//! What is left out is counted each time that a listing meets it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_engine::limits::NAME_BYTES_MAX;
use forebay_engine::ports::Time;

/// At most one line in the log for each of these spans.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Why a key is not in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeftOut {
    /// A directory has the same name.
    Shadowed,
    /// Two slashes in a row, or one at the beginning.
    EmptyComponent,
    /// A component is `.` or `..`.
    DotComponent,
    /// A component is longer than 255 bytes.
    NameTooLong,
    /// A component holds a NUL byte.
    NulByte,
    /// The key is no UTF-8.
    NotUtf8,
    /// The origin listed what was not asked for (a key without the prefix, a slash after it).
    NotAsked,
}

impl LeftOut {
    /// All kinds, in the order of their counters.
    pub const ALL: [LeftOut; 7] = [
        LeftOut::Shadowed,
        LeftOut::EmptyComponent,
        LeftOut::DotComponent,
        LeftOut::NameTooLong,
        LeftOut::NulByte,
        LeftOut::NotUtf8,
        LeftOut::NotAsked,
    ];

    /// The name that users see.
    pub fn name(self) -> &'static str {
        match self {
            LeftOut::Shadowed => "shadowed",
            LeftOut::EmptyComponent => "empty_component",
            LeftOut::DotComponent => "dot_component",
            LeftOut::NameTooLong => "name_too_long",
            LeftOut::NulByte => "nul_byte",
            LeftOut::NotUtf8 => "not_utf8",
            LeftOut::NotAsked => "not_asked",
        }
    }
}

/// Whether a directory can show `name`, one component of a key.
///
/// # Errors
/// Why it cannot.
pub fn check(name: &str) -> Result<(), LeftOut> {
    match name {
        "" => Err(LeftOut::EmptyComponent),
        "." | ".." => Err(LeftOut::DotComponent),
        _ if name.len() > NAME_BYTES_MAX => Err(LeftOut::NameTooLong),
        _ if name.contains('/') => Err(LeftOut::NotAsked),
        _ if name.contains('\0') => Err(LeftOut::NulByte),
        _ => Ok(()),
    }
}

/// Counts of what was left out.
#[derive(Debug, Default)]
pub struct LeftOutCounters {
    counts: [AtomicU64; LeftOut::ALL.len()],
    quiet_until_ns: AtomicU64,
}

impl LeftOutCounters {
    /// Counts `n` keys like `key` and says so in the log, unless something was said just now.
    pub(super) fn note(&self, kind: LeftOut, n: u64, key: &str, now: Time) {
        self.counts[kind as usize].fetch_add(n, Ordering::Relaxed);
        let quiet_until = self.quiet_until_ns.load(Ordering::Relaxed);
        if now.0 < quiet_until {
            return;
        }
        let next = (now + LOG_EVERY).0;
        let swapped = self.quiet_until_ns.compare_exchange(
            quiet_until,
            next,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if swapped.is_ok() {
            tracing::warn!(
                key = ?key,
                reason = kind.name(),
                "a key is no path and is left out of its directory; rename the object to see it \
                 (said at most every 10 s, see the counters)"
            );
        }
    }

    /// The count of one kind.
    pub fn get(&self, kind: LeftOut) -> u64 {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }
}
