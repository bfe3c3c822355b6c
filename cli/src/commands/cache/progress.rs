//! How far a check has come: a bar on a terminal, a line every few seconds elsewhere; both on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::percent;
use crate::units::{Bytes, show_duration};

/// Where there is no terminal, a line each so often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// On a terminal the bar moves so often at most.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Progress of one check. What there is to read is known when all tables have been read.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    told: Instant,
    /// When the data's reading began.
    began: Instant,
    total_bytes: u64,
}

impl Progress {
    /// Of a check that begins now.
    pub fn start() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
                bar.set_style(style.progress_chars("## "));
            }
            bar
        });
        let now = Instant::now();
        Self {
            bar,
            told: now,
            began: now,
            total_bytes: 0,
        }
    }

    /// The tables of `done` of `regions` regions were read.
    pub fn tables(&mut self, done: u64, regions: u64) {
        if self.is_due(Instant::now()) {
            self.show(
                done,
                regions,
                format!("tables of {done} of {regions} regions read"),
            );
        }
    }

    /// All tables were read: there is so much data.
    pub fn begin(&mut self, total_bytes: u64) {
        self.total_bytes = total_bytes;
        self.began = Instant::now();
    }

    /// So much of the data was read, with so many bad entries in it.
    pub fn data(&mut self, done_bytes: u64, bad_entries: u64) {
        let now = Instant::now();
        if self.is_due(now) {
            let spent = now.duration_since(self.began);
            let text = line(done_bytes, self.total_bytes, spent, bad_entries);
            self.show(done_bytes, self.total_bytes, text);
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let every = match self.bar {
            Some(_) => BAR_EVERY,
            None => LINE_EVERY,
        };
        let due = now.duration_since(self.told) >= every;
        if due {
            self.told = now;
        }
        due
    }

    fn show(&self, done: u64, total: u64, text: String) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(text);
            }
            None => eprintln!("{text}"),
        }
    }
}

/// What has been read, of how much, how fast, and how long the rest takes at that rate.
fn line(done_bytes: u64, total_bytes: u64, spent: Duration, bad_entries: u64) -> String {
    let per_second = done_bytes as f64 / spent.as_secs_f64().max(1e-9);
    let rest = total_bytes.saturating_sub(done_bytes) as f64 / per_second.max(1e-9);
    let rest = match Duration::try_from_secs_f64(rest.ceil()) {
        Ok(rest) if done_bytes > 0 => show_duration(rest),
        _ => "?".into(),
    };
    format!(
        "{} of {} checked ({}), {}/s, still {rest}, {bad_entries} bad entries",
        Bytes(done_bytes),
        Bytes(total_bytes),
        percent(done_bytes, total_bytes),
        Bytes(per_second as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn rate_and_rest_follow_what_was_read() {
        assert_eq!(
            line(2 * GIB, 8 * GIB, Duration::from_secs(4), 3),
            "2 GiB of 8 GiB checked (25.0 %), 512 MiB/s, still 12.0 s, 3 bad entries"
        );
        let begin = line(0, 8 * GIB, Duration::ZERO, 0);
        assert!(begin.contains("still ?"), "{begin}");
        let end = line(8 * GIB, 8 * GIB, Duration::from_secs(1), 0);
        assert!(end.contains("(100.0 %), 8 GiB/s, still 0"), "{end}");
    }

    #[test]
    fn off_a_terminal_a_line_comes_every_few_seconds() {
        let mut progress = Progress::start();
        progress.bar = None;
        let start = progress.told;
        let at = |ms: u64| start + Duration::from_millis(ms);
        let due: Vec<bool> = [100, 4_900, 5_000, 5_100, 10_100, 10_200]
            .map(|ms| progress.is_due(at(ms)))
            .to_vec();
        assert_eq!(due, [false, false, true, false, true, false]);
    }
}
