//! The few calls that the compiler cannot check: a bare ring, a mapping, and what the kernel counted for this process.

mod map;
mod ring;
mod usage;

pub use map::Mapping;
pub use ring::Ring;
pub use usage::{Usage, own_usage};
