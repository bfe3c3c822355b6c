//! How far work has come that someone waits for: a bar on a terminal, a line every few seconds elsewhere; both on
//! standard error.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::units::show_duration;

/// Where there is no terminal, a line each so often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The bar moves, and the rate is taken, so often at most.
const STEP_EVERY: Duration = Duration::from_millis(100);
/// The rate is that of so long: what needs no work goes by much faster than the rest.
const RATE_OVER: Duration = Duration::from_secs(10);

/// Progress of one piece of work.
pub struct Progress {
    bar: Option<ProgressBar>,
    /// When a line was printed.
    told: Instant,
    /// What was done, in whatever unit, and when.
    lately: VecDeque<(Instant, u64)>,
}

impl Progress {
    /// Of work that begins now.
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

    /// Shows that `done` of `total` is done, where it is time to; `line` says it, and is told how much is done a second.
    pub fn show(&mut self, done: u64, total: u64, line: impl FnOnce(f64) -> String) {
        self.show_at(Instant::now(), done, total, line);
    }

    fn show_at(&mut self, now: Instant, done: u64, total: u64, line: impl FnOnce(f64) -> String) {
        let is_soon = |(at, _): &(Instant, u64)| now.duration_since(*at) < STEP_EVERY;
        if self.lately.back().is_some_and(is_soon) {
            return;
        }
        let rate = self.rate(now, done);
        match &self.bar {
            Some(bar) => {
                bar.set_length(total.max(1));
                bar.set_position(done);
                bar.set_message(line(rate));
            }
            None if now.duration_since(self.told) >= LINE_EVERY => {
                self.told = now;
                eprintln!("{}", line(rate));
            }
            None => {}
        }
    }

    /// What is done from now on is something else: the rate begins anew.
    pub fn begin_part(&mut self) {
        self.lately.clear();
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

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

/// How long `left` takes at `rate` a second: `15.0 s`, or `?` where nothing moves.
pub fn rest(left: u64, rate: f64) -> String {
    match Duration::try_from_secs_f64((left as f64 / rate.max(1e-9)).ceil()) {
        Ok(rest) if rate > 0.0 => show_duration(rest),
        _ => "?".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        progress.begin_part();
        assert_eq!(progress.rate(at(32), 7), 0.0);
    }

    #[test]
    fn off_a_terminal_a_line_comes_every_few_seconds() {
        let mut progress = Progress::start();
        progress.bar = None;
        let start = progress.told;
        let mut lines = Vec::new();
        for ms in [100, 4_900, 5_000, 5_050, 5_100, 10_100, 10_200] {
            let now = start + Duration::from_millis(ms);
            progress.show_at(now, ms, 20_000, |rate| {
                lines.push((ms, rate.round()));
                String::new()
            });
        }
        assert_eq!(lines, [(5_000, 1_000.0), (10_100, 1_000.0)]);
    }

    #[test]
    fn the_rest_is_known_once_something_moves() {
        assert_eq!(rest(75 << 20, (5 << 20) as f64), "15.0 s");
        assert_eq!(rest(1, 0.0), "?");
    }
}
