//! The deterministic simulator: the production core on simulated ports and virtual time.
//!
//! | module | holds |
//! |---|---|
//! | [`world`] | cores, clock and actors of one run, and the loop that moves time |
//! | [`scenario`] | what a seed means: sizes, faults, actors |
//! | [`actor`] | the workload: what one reader asks next |
//! | [`board`] | what was asked, what was answered, what is wrong with an answer |
//! | [`audit`] | what must hold for a whole run |
//! | [`bucket`] | objects whose bytes follow from their identity |
//! | [`store`], [`origin`] | the simulated object store, and one core's client of it |
//! | [`device`], [`bay`] | simulated disks: media that lose power, queue pairs that go wrong |
//! | [`network`] | a simulated network: the seam for the group |
//! | `lives` | how processes end and others start on the same disks |
//! | `seat` | a core and when it has a reason to turn |
//! | [`clock`], [`rng`], [`schedule`], [`trace`] | time, chance, order, and the event hash |
//!
//! `cargo run -p forebay-tests --bin forebay-sim -- --seed N --verbose` replays one seed.

pub mod actor;
pub mod audit;
pub mod bay;
pub mod board;
pub mod bucket;
pub mod clock;
pub mod device;
mod lives;
pub mod network;
pub mod origin;
#[cfg(test)]
mod origin_world;
#[cfg(test)]
mod proofs;
pub mod rng;
pub mod scenario;
pub mod schedule;
mod seat;
pub mod store;
pub mod trace;
pub mod world;

pub use seat::SimPlatform;
