//! Medians, spreads and verdicts.

/// The measured values of one quantity.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// At least one value, none of them NaN.
    pub fn new(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "a figure without a sample");
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The middle value; of an even number, the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        if self.0.len() % 2 == 1 {
            self.0[middle]
        } else {
            (self.0[middle - 1] + self.0[middle]) / 2.0
        }
    }

    /// The smallest value.
    pub fn min(&self) -> f64 {
        self.0[0]
    }

    /// The largest value.
    pub fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }
}

/// What a figure has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Below(f64),
    /// Nothing: the value is only told.
    None,
}

impl Target {
    /// Whether `measured` reaches it.
    pub fn reached_by(self, measured: f64) -> bool {
        match self {
            Target::AtLeast(least) => measured >= least,
            Target::AtMost(most) => measured <= most,
            Target::Below(bound) => measured < bound,
            Target::None => true,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtLeast(least) => write!(f, ">={least}"),
            Target::AtMost(most) => write!(f, "<={most}"),
            Target::Below(bound) => write!(f, "<{bound}"),
            Target::None => f.write_str("-"),
        }
    }
}

/// One measured part of a figure.
#[derive(Clone, Debug)]
pub struct Part {
    /// What distinguishes it within the figure, one word.
    pub name: &'static str,
    /// The value that counts.
    pub measured: f64,
    /// What it has to reach.
    pub target: Target,
    /// The absolute values behind it and their spread, in words.
    pub detail: String,
}

impl Part {
    /// Whether the target was reached. A value that rounds to the target is not rounded first.
    pub fn ok(&self) -> bool {
        self.target.reached_by(self.measured)
    }

    /// `ok` or `short`.
    pub fn verdict(&self) -> &'static str {
        if self.ok() { "ok" } else { "short" }
    }
}

/// The line that ends a figure: `NAME measured target ok|short`, a part each between commas.
pub fn closing_line(name: &str, parts: &[Part]) -> String {
    let single = parts.len() == 1;
    let join = |of: &dyn Fn(&Part) -> String| parts.iter().map(of).collect::<Vec<_>>().join(",");
    let measured = join(&|part| match single {
        true => format!("{:.4}", part.measured),
        false => format!("{}={:.4}", part.name, part.measured),
    });
    let target = join(&|part| match single {
        true => part.target.to_string(),
        false => format!("{}{}", part.name, part.target),
    });
    let verdict = if parts.iter().all(Part::ok) {
        "ok"
    } else {
        "short"
    };
    format!("{name} {measured} {target} {verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Samples::new(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Samples::new(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        let one = Samples::new(vec![5.0]);
        assert_eq!((one.min(), one.median(), one.max()), (5.0, 5.0, 5.0));
    }

    #[test]
    fn a_miss_is_short() {
        let part = |name, measured, target| Part {
            name,
            measured,
            target,
            detail: String::new(),
        };
        let good = part("seq", 0.9, Target::AtLeast(0.9));
        let bad = part("rand", 0.79999, Target::AtLeast(0.8));
        assert_eq!(
            closing_line("f", std::slice::from_ref(&good)),
            "f 0.9000 >=0.9 ok"
        );
        assert_eq!(
            closing_line("f", &[good, bad]),
            "f seq=0.9000,rand=0.8000 seq>=0.9,rand>=0.8 short"
        );
        assert!(!Target::Below(1.0).reached_by(1.0));
        assert!(Target::AtMost(16.0).reached_by(16.0));
    }
}
