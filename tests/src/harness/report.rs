//! What commands print for programs.

use anyhow::{Context, Result};
use serde_json::Value;

/// What the daemon counted, as far as the demo and the figures need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads answered from memory without waiting.
    pub memory_hits: u64,
    /// Bytes of those.
    pub memory_hit_bytes: u64,
    /// Reads that waited for the cache on disk, and for nothing farther away.
    pub disk_hits: u64,
    /// Bytes of those.
    pub disk_hit_bytes: u64,
    /// Bytes that the cache on disk could not keep up with.
    pub disk_dropped_bytes: u64,
    /// Reads that waited for the origin.
    pub misses: u64,
    /// Bytes of those.
    pub miss_bytes: u64,
    /// Reads answered with an error.
    pub read_errors: u64,
    /// Bytes that came from the origin, whatever the reason.
    pub origin_bytes: u64,
}

impl Stats {
    /// From `stats --json`.
    ///
    /// # Errors
    /// When a number is missing.
    pub(super) fn of(report: &Report) -> Result<Self> {
        let number = |pointer| report.number(&[pointer]);
        Ok(Self {
            memory_hits: number("/tiers/memory/hits")?,
            memory_hit_bytes: number("/tiers/memory/bytes")?,
            disk_hits: number("/tiers/disk/hits")?,
            disk_hit_bytes: number("/tiers/disk/bytes")?,
            disk_dropped_bytes: report.sum("/disk/devices", "dropped_bytes")?,
            misses: number("/tiers/origin/hits")?,
            miss_bytes: number("/tiers/origin/bytes")?,
            read_errors: number("/reads/errors")?,
            origin_bytes: number("/origin/bytes")?,
        })
    }
}

/// The JSON that a command printed.
#[derive(Debug)]
pub struct Report {
    pub(super) command: String,
    pub(super) json: Value,
}

impl Report {
    /// All of it.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// What number `key` adds up to over the objects of the array at `pointer`.
    pub(super) fn sum(&self, pointer: &str, key: &str) -> Result<u64> {
        let missing = || format!("forebay {} --json has no {pointer}", self.command);
        let all = self.json.pointer(pointer).and_then(Value::as_array);
        let numbers = all
            .with_context(missing)?
            .iter()
            .map(|one| one[key].as_u64());
        let sum: Option<u64> = numbers.sum();
        sum.with_context(|| format!("forebay {} --json: no {key} in {pointer}", self.command))
    }

    /// The number at the first of `pointers` that leads to one.
    pub(super) fn number(&self, pointers: &[&str]) -> Result<u64> {
        let found = pointers
            .iter()
            .find_map(|pointer| self.json.pointer(pointer)?.as_u64());
        found.with_context(|| {
            format!(
                "forebay {} --json has no {}: {}",
                self.command, pointers[0], self.json
            )
        })
    }
}
