//! Forebay's tests that need more than one crate: the deterministic simulator and the conformance
//! suites of the engine's ports.
//!
//! | module | holds |
//! |---|---|
//! | [`sim`] | the production core on simulated ports and virtual time |

#![forbid(unsafe_code)]

pub mod sim;
