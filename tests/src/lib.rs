//! Forebay's tests that need more than one crate: the deterministic simulator, the conformance
//! suites of the engine's ports, and an S3 server. Nothing here is part of the product.
//!
//! | module | holds |
//! |---|---|
//! | [`sim`] | the production core on simulated ports and virtual time |
//! | [`disk`] | the region log alone, compared with a plain model |
//! | [`conformance`] | one suite for each port, over simulated and real adapters |
//! | [`s3`] | an S3 server in this process, with faults and counts |
//! | [`devices`] | block devices that stack over others, and places for real ones |
//! | [`harness`] | the real programs as children: `forebay mount`, SeaweedFS |
//! | [`peer`] | a peer without an engine, for tests of transports |
//! | [`demo`] | what `make demo` runs |

#![forbid(unsafe_code)]

pub mod conformance;
pub mod demo;
pub mod devices;
pub mod disk;
pub mod harness;
pub mod peer;
pub mod s3;
pub mod sim;
