//! Whether one side is faster: by the bootstrap intervals of the medians of their spans.

use serde::{Deserialize, Serialize};

use crate::load::Rng;
use crate::samples::Samples;

/// Resamples of each side.
const RESAMPLES: usize = 10_000;
/// Fixed: the same spans give the same verdict.
const SEED: u64 = 0x0f0e_ba11;
/// Fewer spans than these say nothing of their noise: with three, equal sides would be apart once in ten comparisons.
pub const SPANS_MIN: usize = 4;
/// Of the resampled medians, so many lie below, and above, the interval.
const TAIL: f64 = 0.025;

/// The verdict on the first side, against the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Its interval lies above the other's.
    Faster,
    /// Below.
    Slower,
    /// They meet.
    SameWithinNoise,
    /// There are too few spans to know the noise.
    TooFewSpans,
}

impl std::fmt::Display for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Word::Faster => "faster",
            Word::Slower => "slower",
            Word::SameWithinNoise => "same within noise",
            Word::TooFewSpans => "too few spans to tell",
        })
    }
}

/// A median and the interval in which it lies with 95 % of resamples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Of all spans.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// What the comparison of two sides says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The second side.
    pub against: String,
    /// Of which quantity, with its unit.
    pub quantity: String,
    /// The first side's.
    pub first: Interval,
    /// The second side's.
    pub second: Interval,
    /// The first median over the second.
    pub ratio: f64,
    /// The word.
    pub word: Word,
}

/// The interval of the median of `values`.
pub fn interval(values: &[f64]) -> Interval {
    let median = |values: Vec<f64>| Samples::new(values).median();
    let mut rng = Rng(SEED);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let picked = (0..values.len()).map(|_| {
                let at = rng.next() % values.len() as u64;
                values[at as usize]
            });
            median(picked.collect())
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let below = (RESAMPLES as f64 * TAIL) as usize;
    Interval {
        median: median(values.to_vec()),
        low: medians[below],
        high: medians[RESAMPLES - 1 - below],
    }
}

/// Compares a quantity of which more is better, one value for each span. None when a side has no span.
pub fn compare(against: &str, quantity: &str, first: &[f64], second: &[f64]) -> Option<Verdict> {
    if first.is_empty() || second.is_empty() {
        return None;
    }
    let (one, other) = (interval(first), interval(second));
    let word = if first.len().min(second.len()) < SPANS_MIN {
        Word::TooFewSpans
    } else if one.low > other.high {
        Word::Faster
    } else if one.high < other.low {
        Word::Slower
    } else {
        Word::SameWithinNoise
    };
    Some(Verdict {
        against: against.to_owned(),
        quantity: quantity.to_owned(),
        first: one,
        second: other,
        ratio: one.median / other.median,
        word,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(middle: f64, spread: f64, seed: u64) -> Vec<f64> {
        let mut rng = Rng(seed);
        let mut uniform = move || (rng.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        (0..9).map(|_| middle + spread * uniform()).collect()
    }

    fn word(first: &[f64], second: &[f64]) -> Word {
        compare("fio", "IOPS", first, second).map_or(Word::TooFewSpans, |verdict| verdict.word)
    }

    #[test]
    fn a_verdict_needs_more_than_noise() {
        let base = noisy(100.0, 10.0, 1);
        assert_eq!(word(&noisy(130.0, 10.0, 2), &base), Word::Faster);
        assert_eq!(word(&noisy(70.0, 10.0, 3), &base), Word::Slower);
        assert_eq!(word(&noisy(101.0, 10.0, 4), &base), Word::SameWithinNoise);
        // A fifth more, in noise of the same size, is none.
        assert_eq!(
            word(&noisy(120.0, 100.0, 5), &noisy(100.0, 100.0, 6)),
            Word::SameWithinNoise
        );
        assert_eq!(word(&base, &base), Word::SameWithinNoise);
        assert_eq!(word(&[9.0; 3], &[1.0; 3]), Word::TooFewSpans);
        assert_eq!(word(&[9.0; 4], &[1.0; 4]), Word::Faster);
        assert!(compare("fio", "IOPS", &[], &base).is_none());
    }

    #[test]
    fn the_same_spans_give_the_same_interval() {
        let values = noisy(50.0, 20.0, 7);
        let one = interval(&values);
        assert_eq!(one, interval(&values));
        assert!(one.low <= one.median && one.median <= one.high && one.low < one.high);
        let verdict = compare("fio", "IOPS", &[2.0; 5], &[1.0; 5]).expect("there are spans");
        assert_eq!((verdict.ratio, verdict.word), (2.0, Word::Faster));
    }
}
