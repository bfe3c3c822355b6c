//! The deterministic simulator: the production core on simulated ports and virtual time.
//!
//! | module | holds |
//! |---|---|
//! | [`world`] | nodes, clock and actors of one run, and the loop that moves time |
//! | `nodes` | how processes end and others start on the same disks |
//! | `changes` | what happens to nodes and group in the middle of a run |
//! | `asking` | how actors' questions reach the nodes |
//! | [`scenario`], `groups` | what a seed means: sizes, faults, actors |
//! | [`actor`] | the workload: what one reader asks next |
//! | [`board`] | what was asked, what was answered, what is wrong with an answer |
//! | [`audit`] | what must hold for a whole run |
//! | [`bucket`] | objects whose bytes follow from their identity |
//! | [`store`], [`origin`] | the simulated object store, and one core's client of it |
//! | [`device`], [`bay`] | simulated disks: media that lose power, queue pairs that go wrong |
//! | [`network`] | the simulated network between nodes |
//! | [`roster`] | the simulated membership |
//! | [`model`] | how long things take in a group of thousands, at measured costs |
//! | `seat` | a core and when it has a reason to turn |
//! | [`clock`], [`rng`], [`schedule`], [`trace`] | time, chance, order, and the event hash |
//!
//! `cargo run -p forebay-tests --bin forebay-sim -- --seed N --verbose` replays one seed.

pub mod actor;
mod asking;
pub mod audit;
pub mod bay;
pub mod board;
pub mod bucket;
mod changes;
pub mod clock;
pub mod device;
mod groups;
pub mod model;
pub mod network;
mod nodes;
pub mod origin;
#[cfg(test)]
mod origin_world;
#[cfg(test)]
mod proofs;
pub mod rng;
pub mod roster;
pub mod scenario;
pub mod schedule;
mod seat;
pub mod store;
pub mod trace;
pub mod world;

pub use seat::SimPlatform;
