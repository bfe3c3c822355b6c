//! How people write sizes, durations and modes, and how they read them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use forebay_engine::limits::SUB_BLOCK_BYTES;

/// A size. Parses `256` (MiB), `512KiB`, `1.5GiB`, `4G` (GiB), `10GB` (decimal); shows the
/// largest binary unit that needs no more than one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "`{text}` is no size: write a number of MiB (`512`) or a number with a unit (`512MiB`, `7TiB`, `1.5G`, `10GB`)"
            )
        };
        let text_trimmed = text.trim();
        let split = text_trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text_trimmed.len());
        let (number, unit) = text_trimmed.split_at(split);
        let scale: u128 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "m" | "mi" | "mib" => 1 << 20,
            "b" => 1,
            "k" | "ki" | "kib" => 1 << 10,
            "g" | "gi" | "gib" => 1 << 30,
            "t" | "ti" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(refused()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || fraction.len() > 9 {
            return Err(refused());
        }
        let digits = |text: &str| match text {
            "" => Ok(0u128),
            _ => text.parse::<u64>().map(u128::from).map_err(|_| refused()),
        };
        let parts = digits(fraction)? * scale / 10u128.pow(fraction.len() as u32);
        let bytes = digits(whole)?
            .checked_mul(scale)
            .and_then(|bytes| bytes.checked_add(parts));
        bytes
            .and_then(|bytes| u64::try_from(bytes).ok())
            .map(Bytes)
            .ok_or_else(|| format!("`{text}` is too large"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1 << 10 {
            return write!(f, "{} B", self.0);
        }
        let power = (self.0.ilog2() / 10) as usize;
        let unit = 1u128 << (10 * power);
        let tenths = (u128::from(self.0) * 10 + unit / 2) / unit;
        let (whole, tenth) = (tenths / 10, tenths % 10);
        match tenth {
            0 => write!(f, "{whole} {}", UNITS[power - 1]),
            _ => write!(f, "{whole}.{tenth} {}", UNITS[power - 1]),
        }
    }
}

/// The least rate that means anything: the smallest part that is fetched passes in a second.
const RATE_MIN: Bytes = Bytes(SUB_BLOCK_BYTES as u64);

/// Bytes per second, as a ceiling.
///
/// # Errors
/// What is wrong with the text, for people.
pub fn parse_rate(text: &str) -> Result<Bytes, String> {
    match text.parse()? {
        rate if rate < RATE_MIN => Err(format!(
            "{rate} a second are too few: give at least {RATE_MIN}; leave it out for no limit"
        )),
        rate => Ok(rate),
    }
}

/// A parser of whole numbers within a range.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text
            .trim()
            .parse()
            .ok()
            .filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| {
                let (first, last) = (range.start(), range.end());
                format!("`{text}` is not possible: write a whole number from {first} to {last}")
            })
    }
}

/// What a switch may be told: true, yes, on, 1 and their opposites.
///
/// # Errors
/// What is wrong with the text, for people.
pub fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Ok(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Ok(false),
        _ => Err(format!(
            "`{text}` is neither yes nor no: write `true` or `false`"
        )),
    }
}

/// A part of a whole, from 0 to below 1: `0.1`, `.25`, or in percent, `10%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    millionths: u32,
}

impl Share {
    /// This share of `whole`, rounded up.
    pub fn of(self, whole: u64) -> u64 {
        // Less than `whole`, or equal to it.
        (u128::from(whole) * u128::from(self.millionths)).div_ceil(1_000_000) as u64
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = match text.trim().strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 1e4),
            None => (text.trim(), 1e6),
        };
        let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let value = number.parse::<f64>().ok().filter(|_| plain);
        match value.map(|value| (value * scale).round()) {
            Some(millionths) if millionths < 1e6 => Ok(Self {
                millionths: millionths as u32,
            }),
            _ => Err(format!(
                "`{text}` is no share: write a number from 0 to below 1, such as 0.1"
            )),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.millionths) / 1e6)
    }
}

/// A duration: `30s`, `5m`, `1h`, `2d`, `250ms`, `10us`, or a bare number of seconds.
///
/// # Errors
/// What is wrong with the text, for people.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refused = || {
        format!("`{text}` is no duration: write `1s`, `5m`, `250ms`, or a bare number of seconds")
    };
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let nanos_per_unit: u128 = match unit.trim() {
        "us" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(refused()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return Err(refused());
    }
    let digits = |text: &str| match text {
        "" => Ok(0u128),
        _ => text.parse::<u64>().map(u128::from).map_err(|_| refused()),
    };
    let nanos = digits(whole)? * nanos_per_unit
        + digits(fraction)? * nanos_per_unit / 10u128.pow(fraction.len() as u32);
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| format!("`{text}` is too long"))
}

/// A duration that is not zero.
///
/// # Errors
/// What is wrong with the text, for people.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it must be longer than zero, such as `30s`".into()),
        span => Ok(span),
    }
}

/// Permission bits in octal: `644`, `0755`, `0o444`; at most 7777.
///
/// # Errors
/// What is wrong with the text, for people.
pub fn parse_mode(text: &str) -> Result<u16, String> {
    let digits = text.trim().trim_start_matches("0o");
    match u16::from_str_radix(digits, 8) {
        Ok(mode) if mode <= 0o7777 && !digits.starts_with('+') => Ok(mode),
        _ => Err(format!(
            "`{text}` is no mode: write permission bits in octal, such as 0644"
        )),
    }
}

/// A duration for people: `850 ns`, `3.2 us`, `47 ms`, `12.0 s`, `3m20s`, `2d4h`.
pub fn show_duration(span: Duration) -> String {
    let (seconds, nanos) = (span.as_secs(), span.as_nanos() as f64);
    match seconds {
        0 if nanos < 1e3 => format!("{nanos:.0} ns"),
        0 if nanos < 1e6 => format!("{:.1} us", nanos / 1e3),
        0 => format!("{:.1} ms", nanos / 1e6),
        1..60 => format!("{:.1} s", nanos / 1e9),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let parsed = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        for (text, bytes) in [
            ("256", 256 << 20),
            ("256m", 256 << 20),
            ("512KiB", 512 << 10),
            ("7TiB", 7 << 40),
            ("4G", 4 << 30),
            ("1.5GiB", 3 << 29),
            ("10GB", 10_000_000_000),
            ("2 MB", 2_000_000),
            ("100b", 100),
            ("0", 0),
            ("16777215.5TiB", (16_777_215 << 40) + (1 << 39)),
        ] {
            assert_eq!(parsed(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "x",
            "MiB",
            "1.2.3",
            "-1",
            "1e9",
            "5PB",
            ".",
            "99999999999999999999",
            "16777216TiB",
            "+5",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares() {
        let of = |text: &str, whole| text.parse::<Share>().map(|share| share.of(whole));
        for (text, part) in [
            ("0.1", 100),
            ("0", 0),
            (".25", 250),
            ("10%", 100),
            ("0.999", 999),
        ] {
            assert_eq!(of(text, 1000), Ok(part), "{text}");
        }
        assert_eq!(of("0.1", 1), Ok(1));
        assert!(of("0.999999", u64::MAX).unwrap() < u64::MAX);
        assert_eq!("0.1".parse::<Share>().unwrap().to_string(), "0.1");
        for text in [
            "", "1", "1.0", "-0.1", "x", "nan", "inf", "1e-1", "100%", "%",
        ] {
            assert!(of(text, 1000).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_for_people() {
        let shown = |bytes| Bytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1 << 10), "1 KiB");
        assert_eq!(shown(3 << 29), "1.5 GiB");
        assert_eq!(shown((1 << 30) - 1), "1024 MiB");
        assert_eq!(shown(u64::MAX), "16 EiB");
    }

    #[test]
    fn durations() {
        for (text, millis) in [
            ("1s", 1_000),
            ("30", 30_000),
            ("0", 0),
            ("0.5", 500),
            ("5m", 300_000),
            ("250ms", 250),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "1x",
            "-1s",
            "1 5s",
            "999999999999999999d",
            "..",
            "1.5.2s",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_span("0s").is_err() && parse_span("1ms").is_ok());
    }

    #[test]
    fn modes() {
        assert_eq!(parse_mode("644"), Ok(0o644));
        assert_eq!(parse_mode("0755"), Ok(0o755));
        assert_eq!(parse_mode("0o444"), Ok(0o444));
        for text in ["", "8", "rwx", "10000", "-1", "+7", "0o"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_for_people() {
        let shown = |nanos| show_duration(Duration::from_nanos(nanos));
        assert_eq!(shown(850), "850 ns");
        assert_eq!(shown(3_200), "3.2 us");
        assert_eq!(shown(47_000_000), "47.0 ms");
        assert_eq!(shown(12_000_000_000), "12.0 s");
        assert_eq!(shown(200_000_000_000), "3m20s");
        assert_eq!(shown(187_200_000_000_000), "2d4h");
    }
}
