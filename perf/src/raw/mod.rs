//! The little that the compiler cannot check: a bare ring, a mapping, what the kernel counted for this process, and an allocator
//! that counts.

mod alloc;
mod map;
mod ring;
mod usage;

pub use alloc::allocations;
pub use map::Mapping;
pub use ring::Ring;
pub use usage::{Usage, own_usage};
