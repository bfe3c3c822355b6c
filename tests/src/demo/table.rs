//! What the demo came to, in one table: what each step has to read from S3, and what it did.

use std::fmt;

/// One line: a number of bytes that is known before, and what was measured.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) what: &'static str,
    pub(super) expected: u64,
    /// By Forebay's own count.
    pub(super) measured: u64,
    /// By the S3 server's count, where there is one and the line is of what it sent.
    pub(super) server: Option<u64>,
    /// What Forebay says for what reasons it read from S3.
    pub(super) reasons: Vec<(String, u64)>,
    /// So much more may be, for the reason that is told.
    pub(super) excused: Option<(u64, &'static str)>,
}

impl Claim {
    fn holds(&self) -> bool {
        let most = self.expected + self.excused.map_or(0, |(bytes, _)| bytes);
        let within = |bytes: u64| (self.expected..=most).contains(&bytes);
        within(self.measured) && self.server.is_none_or(within)
    }

    /// Why Forebay read it from S3, for people.
    pub(super) fn reasons(&self) -> String {
        let told = self.reasons.iter();
        let told = told.map(|(reason, bytes)| format!("{reason} {}", grouped(*bytes)));
        told.collect::<Vec<_>>().join(", ")
    }

    fn is_exact(&self) -> bool {
        self.measured == self.expected && self.server.is_none_or(|bytes| bytes == self.expected)
    }

    fn verdict(&self) -> &'static str {
        match (self.holds(), self.is_exact()) {
            (true, true) => "ok",
            (true, false) => "ok *",
            (false, _) => "WRONG",
        }
    }
}

/// All lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) claims: Vec<Claim>,
}

impl Table {
    /// The lines that do not hold.
    pub(super) fn broken(&self) -> Vec<&'static str> {
        let broken = self.claims.iter().filter(|claim| !claim.holds());
        broken.map(|claim| claim.what).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |what: &str, numbers: [&str; 3], verdict: &str| {
            let [expected, measured, server] = numbers;
            writeln!(
                f,
                "{what:<54}{expected:>14}{measured:>14}{server:>14}  {verdict}"
            )
        };
        line("bytes", ["expected", "Forebay says", "S3 server"], "")?;
        for claim in &self.claims {
            let server = claim.server.map_or_else(|| "-".to_owned(), grouped);
            let numbers = [&grouped(claim.expected), &grouped(claim.measured), &server];
            line(claim.what, numbers.map(String::as_str), claim.verdict())?;
        }
        for claim in self
            .claims
            .iter()
            .filter(|claim| claim.holds() && !claim.is_exact())
        {
            let (bytes, reason) = claim.excused.unwrap_or_default();
            writeln!(
                f,
                "* {}: up to {} more, {reason}",
                claim.what,
                grouped(bytes)
            )?;
        }
        for claim in self.claims.iter().filter(|claim| !claim.holds()) {
            writeln!(f, "{}, by reason: {}", claim.what, claim.reasons())?;
        }
        Ok(())
    }
}

/// 1234567 as 1,234,567.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(measured: u64, server: Option<u64>, excused: Option<(u64, &'static str)>) -> Claim {
        Claim {
            what: "a claim",
            expected: 1_000,
            measured,
            server,
            reasons: vec![("cold".into(), 7)],
            excused,
        }
    }

    #[test]
    fn a_number_that_is_not_as_claimed_is_told() {
        for (measured, server, excused, verdict) in [
            (1_000, None, None, "ok"),
            (1_000, Some(1_000), None, "ok"),
            (999, None, None, "WRONG"),
            (1_001, None, None, "WRONG"),
            (1_000, Some(1_001), None, "WRONG"),
            (1_001, Some(1_001), Some((1, "a reason")), "ok *"),
            (1_002, None, Some((1, "a reason")), "WRONG"),
            (999, None, Some((1, "a reason")), "WRONG"),
        ] {
            let claim = claim(measured, server, excused);
            assert_eq!(claim.verdict(), verdict, "{claim:?}");
            let table = Table {
                claims: vec![claim],
            };
            assert_eq!(table.broken().is_empty(), verdict != "WRONG");
            let told = table.to_string().contains("up to 1 more, a reason");
            assert_eq!(told, verdict == "ok *");
            let reasons = table.to_string().contains("by reason: cold 7");
            assert_eq!(reasons, verdict == "WRONG");
        }
    }

    #[test]
    fn digits_are_grouped() {
        let all = [0, 999, 1_000, 123_456, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1,000", "123,456", "1,234,567"]);
    }
}
