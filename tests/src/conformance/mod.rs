//! One suite for each port. The same suite runs over simulated and real adapters.
//!
//! A suite is generic over a rig: the adapter, and what moves the world it lives in. It returns what
//! it found wrong, so that each suite can be shown to fail on adapters that are broken on purpose.

pub mod block_device;
pub mod origin;
pub mod transport;

/// What a suite found wrong.
pub type Verdict = Result<(), String>;

/// Fails with the text unless the condition holds.
macro_rules! demand {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use demand;
