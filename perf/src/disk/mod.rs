//! The engine's disk tier without the rest of the engine: what a core does with its `Disk`, in a loop.
//!
//! | file | holds |
//! |---|---|
//! | [`driver`] | an arena, a `Disk` and its turns |
//! | [`load`] | fills, random and sequential reads at a depth |
//! | [`file`] | a log on a file through io_uring |
//! | [`memory`] | a device in memory |
//! | [`cache`] | a `Disk` used as a cache of blocks of one size: hits, misses, write amplification |
//! | [`policy`] | a model of the log's replacement, for many settings at once |
//! | [`traces`] | sequences of requests: Zipf, scans, shuffled epochs |
//! | [`reference`] | the same requests to libcachesim |

pub mod cache;
pub mod driver;
pub mod file;
pub mod load;
pub mod memory;
pub mod policy;
pub mod reference;
pub mod traces;
