//! How far a job is: a bar on a terminal, a line every few seconds elsewhere; both on standard error.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::report::{JobReport, JobState, Work};
use crate::output::percent;
use crate::units::{Bytes, show_duration};

/// Where there is no terminal, a line each so often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The rate is that of so long: what was cached already goes by much faster than the rest.
const RATE_OVER: Duration = Duration::from_secs(10);

/// Progress of one job.
pub struct Progress {
    bar: Option<ProgressBar>,
    told: Instant,
    /// Bytes gone through, and when.
    lately: VecDeque<(Instant, u64)>,
}

impl Progress {
    /// Of a job that begins now.
    pub fn start() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{bar:20} {msg}") {
                bar.set_style(style.progress_chars("## "));
            }
            bar
        });
        Self {
            bar,
            told: Instant::now(),
            lately: VecDeque::new(),
        }
    }

    /// Shows `report`, where it is time to.
    pub fn show(&mut self, report: &JobReport) {
        let now = Instant::now();
        let rate = self.rate(now, report.bytes_done);
        match &self.bar {
            Some(bar) => {
                bar.set_length(report.bytes.max(1));
                bar.set_position(report.bytes_done);
                bar.set_message(line(report, rate));
            }
            None if now.duration_since(self.told) >= LINE_EVERY => {
                self.told = now;
                eprintln!("{}", line(report, rate));
            }
            None => {}
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Bytes a second.
    fn rate(&mut self, now: Instant, bytes_done: u64) -> f64 {
        self.lately.push_back((now, bytes_done));
        let is_old = |at: &Instant| now.duration_since(*at) > RATE_OVER;
        while self.lately.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.lately.pop_front();
        }
        match self.lately.front() {
            Some((at, bytes)) if *at < now => {
                (bytes_done - bytes.min(&bytes_done)) as f64 / now.duration_since(*at).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// What was done, of how much, how fast, and how long the rest takes at that rate.
fn line(report: &JobReport, rate: f64) -> String {
    let files = match report.listed {
        true => format!("{} of {} files", report.files_done, report.files),
        false => format!("{} of {} files so far", report.files_done, report.files),
    };
    if report.state == JobState::Checking {
        return format!(
            "{files}, {} failed; looking whether all of it is cached",
            report.failed
        );
    }
    if report.work == Some(Work::Metadata) {
        return format!(
            "attributes of {} files, {} failed",
            report.files, report.failed
        );
    }
    let rest = report.bytes.saturating_sub(report.bytes_done) as f64 / rate.max(1e-9);
    let rest = match Duration::try_from_secs_f64(rest.ceil()) {
        Ok(rest) if rate > 0.0 && report.listed => show_duration(rest),
        _ => "?".into(),
    };
    let share = match report.listed {
        true => format!(" ({})", percent(report.bytes_done, report.bytes)),
        false => " known so far".into(),
    };
    format!(
        "{} of {}{share}, {}/s, still {rest}, {files}, {} failed",
        Bytes(report.bytes_done),
        Bytes(report.bytes),
        Bytes(rate as u64),
        report.failed,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn report() -> JobReport {
        JobReport {
            work: Some(Work::Warmup),
            listed: true,
            files: 20,
            files_done: 5,
            bytes: 100 * MIB,
            bytes_done: 25 * MIB,
            failed: 1,
            ..JobReport::default()
        }
    }

    #[test]
    fn share_and_rest_are_told_once_all_is_known() {
        let rate = (5 * MIB) as f64;
        assert_eq!(
            line(&report(), rate),
            "25 MiB of 100 MiB (25.0 %), 5 MiB/s, still 15.0 s, 5 of 20 files, 1 failed"
        );
        let listing = JobReport {
            listed: false,
            ..report()
        };
        assert_eq!(
            line(&listing, rate),
            "25 MiB of 100 MiB known so far, 5 MiB/s, still ?, 5 of 20 files so far, 1 failed"
        );
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut progress = Progress::start();
        let start = progress.told;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(progress.rate(at(0), 0), 0.0);
        assert_eq!(progress.rate(at(1), 1_000), 1_000.0);
        for seconds in 2..=30 {
            progress.rate(at(seconds), 1_000 + seconds * 10);
        }
        let rate = progress.rate(at(31), 1_310);
        assert!((9.0..=11.0).contains(&rate), "{rate}");
    }
}
