//! What limits can do, measured between the spans of the same run.
//!
//! | file | limit |
//! |---|---|
//! | [`memory`] | copying in memory |
//! | [`checksum`] | a loop that reads and checks the same pages |
//! | [`device`] | the disk, by a bare ring |
//! | [`socket`] | the loopback interface, by a bare socket |
//! | [`fuse`] | FUSE itself, by a server that answers with zeros |
//!
//! The time of one processor, or of all, follows from the spans themselves.

pub mod checksum;
pub mod device;
pub mod fuse;
mod huge;
pub mod memory;
pub mod socket;

use std::time::Duration;

use anyhow::Result;

/// One measurement of a limit.
pub const MEASURE: Duration = Duration::from_millis(250);

/// In what a limit is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes per second.
    Bytes,
    /// Operations per second.
    Operations,
}

impl Unit {
    /// As outcomes write it.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes/s",
            Unit::Operations => "operations/s",
        }
    }
}

/// A limit.
pub trait Ceiling {
    /// How reports call it.
    fn name(&self) -> &str;

    /// Of what it tells.
    fn unit(&self) -> Unit;

    /// Measures it once.
    ///
    /// # Errors
    /// When it cannot be measured.
    fn measure(&mut self, seed: u64) -> Result<f64>;
}
