//! Forebay's command line, as a library: the only place where adapters are chosen and wired.
//!
//! | module | holds |
//! |---|---|
//! | [`host`] | runs engine cores on threads of this machine |
//! | [`units`] | sizes, durations and modes as people write them |

#![forbid(unsafe_code)]

pub mod host;
pub mod units;
