//! How far a drain is: a bar on a terminal, a line every few seconds elsewhere; both on standard error.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::group::draining::DrainReport;
use crate::output::percent;
use crate::units::{Bytes, show_duration};

/// Where there is no terminal, a line each so often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The rate is that of so long.
const RATE_OVER: Duration = Duration::from_secs(10);

/// Progress of one drain.
pub struct Progress {
    bar: Option<ProgressBar>,
    told: Instant,
    /// Bytes gone through, and when.
    lately: VecDeque<(Instant, u64)>,
}

impl Progress {
    /// Of a drain that begins now.
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
    pub fn show(&mut self, report: &DrainReport) {
        let now = Instant::now();
        let rate = match report.counted {
            true => self.rate(now, done_bytes(report)),
            false => 0.0,
        };
        match &self.bar {
            Some(bar) => {
                bar.set_length(report.bytes.max(1));
                bar.set_position(done_bytes(report));
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
    fn rate(&mut self, now: Instant, done: u64) -> f64 {
        self.lately.push_back((now, done));
        let is_old = |at: &Instant| now.duration_since(*at) > RATE_OVER;
        while self.lately.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.lately.pop_front();
        }
        match self.lately.front() {
            Some((at, first)) if *at < now => {
                done.saturating_sub(*first) as f64 / now.duration_since(*at).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

fn done_bytes(report: &DrainReport) -> u64 {
    report.bytes.saturating_sub(report.left_bytes)
}

/// What was gone through, of how much, how fast, and how long the rest takes at that rate.
pub fn line(report: &DrainReport, rate: f64) -> String {
    if report.without_heir {
        return "waiting: no other member has a weight".into();
    }
    if !report.counted {
        return "looking at what there is".into();
    }
    let rest = report.left_bytes as f64 / rate.max(1e-9);
    let rest = match Duration::try_from_secs_f64(rest.ceil()) {
        Ok(rest) if rate > 0.0 => show_duration(rest),
        _ => "?".into(),
    };
    let mut text = format!(
        "{} of {} ({}), {}/s, still {rest}, {} handed over",
        Bytes(done_bytes(report)),
        Bytes(report.bytes),
        percent(done_bytes(report), report.bytes),
        Bytes(rate as u64),
        Bytes(report.given_bytes),
    );
    if report.refused_blocks > 0 {
        text.push_str(&format!(", {} without room", Bytes(report.refused_bytes)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn share_rate_and_rest_are_told_once_all_is_counted() {
        let mut report = DrainReport {
            bytes: 100 * MIB,
            left_bytes: 75 * MIB,
            given_bytes: 20 * MIB,
            ..DrainReport::default()
        };
        assert_eq!(line(&report, 1.0), "looking at what there is");
        report.counted = true;
        let rate = (5 * MIB) as f64;
        assert_eq!(
            line(&report, rate),
            "25 MiB of 100 MiB (25.0 %), 5 MiB/s, still 15.0 s, 20 MiB handed over"
        );
        report.refused_blocks = 1;
        report.refused_bytes = MIB;
        assert!(line(&report, 0.0).ends_with("still ?, 20 MiB handed over, 1 MiB without room"));
    }
}
