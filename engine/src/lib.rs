//! Forebay's engine: what a cache node decides, and nothing that touches the outside.
//!
//! The engine has no sockets, no files, no threads and no clock of its own. Everything it needs
//! from the world comes through six ports ([`ports`]); everything a front end asks comes through
//! one ring per core ([`ring`], wrapped by [`client::Client`]). One [`core::Core`] owns one slice
//! of the cache and is driven by calling [`core::Core::turn`], by a pinned thread in production
//! and by the simulator in tests. `docs/architecture.md` tells the whole story.
//!
//! | module | holds |
//! |---|---|
//! | [`limits`] | every constant bound, checked at compile time where possible |
//! | [`identity`] | object versions, blocks, stripes, slots |
//! | [`checksum`] | the seeded crc32c of one page |
//! | [`arena`] | the buffer arena: [`arena::Lease`] and [`arena::Frozen`] (the only unsafe code) |
//! | [`ports`] | the six traits that adapters implement |
//! | [`ring`], [`client`] | how front ends hand work to cores |
//! | [`placement`] | which member of the group owns which slot |
//! | [`wire`] | what travels between members, byte by byte |
//! | [`disk`] | the disk tier: a region log on block devices |
//! | [`core`] | the turn loop and its machines: read, fill, metadata; index, S3-FIFO, ledger |

#![deny(unsafe_code)]

pub mod arena;
pub mod checksum;
pub mod client;
pub mod core;
pub mod disk;
pub mod errors;
pub mod identity;
pub mod limits;
pub mod placement;
pub mod ports;
pub mod ring;
pub mod stats;
pub mod wire;
