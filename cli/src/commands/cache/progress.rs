//! How far a check has come.

use crate::output::percent;
use crate::progress::{self, rest};
use crate::units::Bytes;

/// Progress of one check. What there is to read is known when all tables have been read.
pub(super) struct Progress {
    shown: progress::Progress,
    total_bytes: u64,
}

impl Progress {
    /// Of a check that begins now.
    pub fn start() -> Self {
        Self {
            shown: progress::Progress::start(),
            total_bytes: 0,
        }
    }

    /// The tables of `done` of `regions` regions were read.
    pub fn tables(&mut self, done: u64, regions: u64) {
        self.shown.show(done, regions, |_| {
            format!("tables of {done} of {regions} regions read")
        });
    }

    /// All tables were read: there is so much data.
    pub fn begin(&mut self, total_bytes: u64) {
        self.total_bytes = total_bytes;
        self.shown.begin_part();
    }

    /// So much of the data was read, with so many bad entries in it.
    pub fn data(&mut self, done_bytes: u64, bad_entries: u64) {
        let total_bytes = self.total_bytes;
        self.shown.show(done_bytes, total_bytes, |rate| {
            line(done_bytes, total_bytes, rate, bad_entries)
        });
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.shown.end();
    }
}

/// What has been read, of how much, how fast, and how long the rest takes at that rate.
fn line(done_bytes: u64, total_bytes: u64, rate: f64, bad_entries: u64) -> String {
    format!(
        "{} of {} checked ({}), {}/s, still {}, {bad_entries} bad entries",
        Bytes(done_bytes),
        Bytes(total_bytes),
        percent(done_bytes, total_bytes),
        Bytes(rate as u64),
        rest(total_bytes.saturating_sub(done_bytes), rate),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn rate_and_rest_follow_what_was_read() {
        let rate = (GIB / 2) as f64;
        assert_eq!(
            line(2 * GIB, 8 * GIB, rate, 3),
            "2 GiB of 8 GiB checked (25.0 %), 512 MiB/s, still 12.0 s, 3 bad entries"
        );
        let begin = line(0, 8 * GIB, 0.0, 0);
        assert!(begin.contains("still ?"), "{begin}");
        let end = line(8 * GIB, 8 * GIB, rate, 0);
        assert!(end.contains("(100.0 %), 512 MiB/s, still 0"), "{end}");
    }
}
