//! The figures: each measures something and says whether its target was reached.
//!
//! Targets are the project's, written down before anything was measured. A figure that misses its
//! target says `short`; neither the target nor the load is changed for that.

mod amplification;
mod fuse_null;
mod idle;
mod one_fetch_local;

use anyhow::{Result, bail};

use crate::samples::Part;

/// Repetitions; medians of these count.
const REPETITIONS: usize = 5;

/// A figure by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Reads that hit the memory tier, against a null FUSE server.
    FuseNull,
    /// Origin bytes over bytes asked for.
    Amplification,
    /// Many readers of one cold object.
    OneFetchLocal,
    /// Processor time while idle, memory under load.
    Idle,
}

impl Figure {
    /// All figures, in the order of running.
    pub const ALL: [Figure; 4] = [
        Figure::FuseNull,
        Figure::Amplification,
        Figure::OneFetchLocal,
        Figure::Idle,
    ];

    /// The name on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Figure::FuseNull => "fuse-null",
            Figure::Amplification => "amplification",
            Figure::OneFetchLocal => "one-fetch-local",
            Figure::Idle => "idle",
        }
    }

    /// The figure called `name`.
    ///
    /// # Errors
    /// When there is none; the message lists all names.
    pub fn by_name(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|figure| figure.name() == name) {
            Some(figure) => Ok(figure),
            None => bail!(
                "no figure {name}; there are: {}",
                Self::ALL.map(Self::name).join(" ")
            ),
        }
    }

    /// Measures.
    ///
    /// # Errors
    /// When it could not be measured. A missed target is no error.
    pub fn measure(self) -> Result<Vec<Part>> {
        match self {
            Figure::FuseNull => fuse_null::measure(),
            Figure::Amplification => amplification::measure(),
            Figure::OneFetchLocal => one_fetch_local::measure(),
            Figure::Idle => idle::measure(),
        }
    }
}

const GIB: u64 = 1 << 30;
const MIB: f64 = (1 << 20) as f64;
