//! How long operations took: one histogram for each thread, added up when the span is over.
//!
//! An operation's time begins when it should have begun: at its arrival where operations arrive by a rate, at the end of the one
//! before where each begins as one ends. A server that stalls is so seen in the times of all that had to wait for it.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Nanoseconds that are told apart from nothing. A larger one costs digits: all below 2,048 times it are told apart by its power of two.
const LOWEST_NS: u64 = 1;
/// Longer ones count as so long.
const HIGHEST_NS: u64 = 100_000_000_000;
const DIGITS: u8 = 3;
/// A percentile with fewer operations beyond it says more of chance than of what is measured.
const BEYOND_MIN: f64 = 10.0;
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Times of one thread, or of all together.
#[derive(Clone, Debug)]
pub struct Recorder(Histogram<u64>);

impl Default for Recorder {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS);
        match histogram {
            Ok(histogram) => Self(histogram),
            Err(error) => unreachable!("the bounds are constants: {error}"),
        }
    }
}

impl Recorder {
    /// One operation took so long.
    pub fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(ns);
    }

    /// Adds another thread's.
    ///
    /// # Errors
    /// None, with recorders of this program.
    pub fn add(&mut self, other: &Recorder) -> Result<()> {
        self.0.add(&other.0).context("histograms do not fit")
    }

    /// Operations recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Each time that was met, in nanoseconds, and how often: for another process.
    pub fn pairs(&self) -> Vec<(u64, u64)> {
        let met = self.0.iter_recorded();
        met.map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }

    /// What [`Recorder::pairs`] told.
    pub fn add_pairs(&mut self, pairs: &[(u64, u64)]) {
        for (ns, count) in pairs {
            self.0.saturating_record_n(*ns, *count);
        }
    }

    /// What is told of them; none when nothing was recorded.
    pub fn summary(&self, from: Begun) -> Option<Latency> {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |percentile: f64| (percentile, us(self.0.value_at_percentile(percentile)));
        let (least, most) = (us(self.0.min()), us(self.0.max()));
        let told = (least, self.0.mean() / 1e3, most);
        let percentiles = PERCENTILES.into_iter().map(at).collect();
        Latency::told(from, self.0.len(), told, percentiles)
    }
}

/// From when an operation's time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Begun {
    /// Its arrival, whether or not anybody was free.
    Arrival,
    /// The end of the operation before it.
    EndOfTheOneBefore,
    /// When a peer handed it in, which is later than it should have begun where the peer stalled.
    Submission,
}

/// One percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// 0 to 100.
    pub percentile: f64,
    /// Microseconds.
    pub us: f64,
}

/// How long operations took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From when.
    pub from: Begun,
    /// Operations.
    pub count: u64,
    /// The shortest, microseconds.
    pub min_us: f64,
    /// On average.
    pub mean_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Up to that with at least ten operations beyond it.
    pub percentiles: Vec<Percentile>,
}

impl Latency {
    /// Of what somebody measured, in microseconds; percentiles that too few operations lie beyond are left out. None when nothing
    /// was measured.
    pub fn told(
        from: Begun,
        count: u64,
        (min_us, mean_us, max_us): (f64, f64, f64),
        mut percentiles: Vec<(f64, f64)>,
    ) -> Option<Latency> {
        // The last term: 100 - 99.9 is a little less than 0.1 in this arithmetic.
        let enough =
            |percentile: f64| count as f64 * (100.0 - percentile) / 100.0 >= BEYOND_MIN - 1e-6;
        percentiles.sort_by(|one, other| one.0.total_cmp(&other.0));
        let kept = percentiles
            .into_iter()
            .filter(|(percentile, _)| enough(*percentile));
        (count > 0).then(|| Latency {
            from,
            count,
            min_us,
            mean_us,
            max_us,
            percentiles: kept
                .map(|(percentile, us)| Percentile { percentile, us })
                .collect(),
        })
    }

    /// A percentile, where there were enough operations for it.
    pub fn at(&self, percentile: f64) -> Option<f64> {
        let found = self.percentiles.iter();
        let mut found = found.filter(|one| one.percentile == percentile);
        found.next().map(|one| one.us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: u64) -> Recorder {
        let mut recorder = Recorder::default();
        for n in 1..=count {
            recorder.record(Duration::from_micros(n));
        }
        recorder
    }

    #[test]
    fn no_percentile_has_fewer_than_ten_operations_beyond_it() {
        let last = |count| {
            let summary = of(count).summary(Begun::Arrival);
            summary.and_then(|told| told.percentiles.last().map(|last| last.percentile))
        };
        assert_eq!(last(19), None);
        assert_eq!(last(20), Some(50.0));
        assert_eq!(last(999), Some(95.0));
        assert_eq!(last(1_000), Some(99.0));
        assert_eq!(last(9_999), Some(99.0));
        assert_eq!(last(10_000), Some(99.9));
        assert_eq!(last(99_999), Some(99.9));
        assert_eq!(last(100_000), Some(99.99));
        assert!(Recorder::default().summary(Begun::Arrival).is_none());
    }

    #[test]
    fn threads_add_up_and_so_do_processes() -> Result<()> {
        let mut sum = of(1_000);
        sum.add(&of(1_000))?;
        let mut other = Recorder::default();
        other.add_pairs(&sum.pairs());
        for recorder in [sum, other] {
            let told = recorder.summary(Begun::Arrival).context("recorded")?;
            assert_eq!(told.count, 2_000);
            let (p50, p99) = (told.at(50.0), told.at(99.0));
            assert!(p50.is_some_and(|us| (us - 500.0).abs() < 2.0), "{p50:?}");
            assert!(p99.is_some_and(|us| (us - 990.0).abs() < 2.0), "{p99:?}");
        }
        Ok(())
    }

    #[test]
    fn short_times_have_three_digits() {
        let mut recorder = Recorder::default();
        for _ in 0..100 {
            recorder.record(Duration::from_nanos(601));
        }
        let told = recorder.summary(Begun::Arrival);
        assert_eq!(told.and_then(|told| told.at(50.0)), Some(0.601));
    }

    #[test]
    fn times_out_of_bounds_are_kept() {
        let mut recorder = Recorder::default();
        recorder.record(Duration::ZERO);
        recorder.record(Duration::from_secs(1_000));
        assert_eq!(recorder.count(), 2);
    }
}
