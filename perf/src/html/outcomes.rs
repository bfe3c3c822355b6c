//! Charts of what was measured by one side or several.

use super::svg::{Bar, Bars, Line, Lines};
use super::{
    OPERATIONS, RATES, TIMES, Told, circumstances, drawn, escaped, figure, notes, percentiles,
    round_time, unit, with_key,
};
use crate::outcome::{Outcome, SideOutcome, Spread, Summary};
use crate::table;

/// Throughputs of all outcomes, where there are several.
pub(super) fn overview(told: &[(String, Told)]) -> String {
    let outcomes = told.iter().filter_map(|(file, told)| match told {
        // Two may be of the same scenario.
        Told::Outcome(outcome) => {
            let summary = &outcome.sides.first()?.summary;
            Some((format!("{file}: {}", table::short_name(outcome)), summary))
        }
        Told::Sweep(_) => None,
    });
    let outcomes: Vec<(String, &Summary)> = outcomes.collect();
    if outcomes.len() < 2 {
        return String::new();
    }
    let of = |quantity: fn(&Summary) -> Option<Spread>| -> Vec<(String, Spread)> {
        let all = outcomes.iter();
        all.filter_map(|(name, summary)| Some((name.clone(), quantity(summary)?)))
            .collect()
    };
    let mut text = String::from("<section>\n<h2>All together</h2>\n");
    let bytes = of(|summary| summary.bytes_per_s);
    text += &spreads("Throughput", &bytes, &RATES, table::rate);
    let operations = of(|summary| summary.operations_per_s);
    text += &spreads("Operations", &operations, &OPERATIONS, table::operations);
    text + "</section>\n"
}

/// Everything of one outcome.
pub(super) fn section(file: &str, outcome: &Outcome) -> String {
    let mut text = format!(
        "<h2>{}</h2>\n{}",
        escaped(&table::headline(outcome)),
        circumstances(file, outcome)
    );
    text += &notes(outcome.notes.iter());
    let failed: Vec<String> = outcome
        .failed
        .iter()
        .map(|why| format!("FAILED {why}"))
        .collect();
    text += &notes(failed.iter());
    let of = |quantity: fn(&Summary) -> Option<Spread>| -> Vec<(String, Spread)> {
        let sides = outcome.sides.iter();
        sides
            .filter_map(|side| Some((side_name(side), quantity(&side.summary)?)))
            .collect()
    };
    let bytes = of(|summary| summary.bytes_per_s);
    text += &spreads("Throughput", &bytes, &RATES, table::rate);
    let operations = of(|summary| summary.operations_per_s);
    text += &spreads("Operations", &operations, &OPERATIONS, table::operations);
    text += &latencies(outcome);
    let each = of(|summary| summary.cpu_us_per_operation);
    text += &spreads("Processor time of an operation", &each, &TIMES, table::time);
    let gib = of(|summary| summary.cpu_s_per_gib);
    text += &spreads("Processor time of a GiB", &gib, &[(1.0, "s")], |seconds| {
        table::time(seconds * 1e6)
    });
    text += &limits(outcome);
    text + &verdicts(outcome)
}

fn side_name(side: &SideOutcome) -> String {
    match side.version.as_str() {
        "" => side.name.clone(),
        version => format!("{}: {version}", side.name),
    }
}

/// A bar for each, and the numbers beside them.
fn spreads(
    title: &str,
    all: &[(String, Spread)],
    units: &[(f64, &'static str)],
    shown: fn(f64) -> String,
) -> String {
    if all.is_empty() {
        return String::new();
    }
    let most = all.iter().map(|(_, spread)| spread.max).fold(0.0, f64::max);
    let (factor, unit) = unit(most, units);
    let bars = all.iter().enumerate().map(|(number, (name, spread))| Bar {
        label: name.clone(),
        value: spread.median / factor,
        spread: Some((spread.min / factor, spread.max / factor)),
        shown: shown(spread.median),
        series: number,
    });
    let bars = Bars {
        title: format!("{title}, {unit}"),
        bars: bars.collect(),
        mark: None,
    };
    let mut rows = vec![["", "median", "least", "most"].map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|(name, spread)| {
        let numbers = [spread.median, spread.min, spread.max].map(shown);
        std::iter::once(name.clone()).chain(numbers).collect()
    }));
    figure(title, unit, &drawn(&bars), &rows)
}

fn latencies(outcome: &Outcome) -> String {
    let sides = || outcome.sides.iter();
    let names = percentiles(sides().flat_map(|side| side.summary.latency_us.keys()));
    if names.is_empty() {
        return String::new();
    }
    let at = |side: &SideOutcome, name: &String| side.summary.latency_us.get(name).copied();
    let lines = sides().map(|side| Line {
        name: side.name.clone(),
        points: names
            .iter()
            .map(|name| at(side, name).map(|one| (one.median, one.min, one.max)))
            .collect(),
        is_ideal: false,
    });
    let lines = Lines {
        title: "Latency by percentile".to_owned(),
        places: names.clone(),
        along: "percentile".to_owned(),
        lines: lines.collect(),
        logarithmic: true,
        shown: round_time,
    };
    let mut rows = vec![vec![String::new()]];
    for side in sides() {
        rows[0].push(side.name.clone());
    }
    rows.extend(names.iter().map(|name| {
        let cells = sides().map(|side| {
            at(side, name).map_or_else(|| "-".to_owned(), |one| table::time(one.median))
        });
        std::iter::once(name.clone()).chain(cells).collect()
    }));
    let from = outcome.sides.iter().map(|side| {
        let from = side.spans.iter().find_map(|span| span.latency.as_ref());
        Some(format!("{}: {}", side.name, table::from_when(from?.from)))
    });
    let from: Vec<String> = from.flatten().collect();
    let unit = format!("each mark several times the one below; {}", from.join("; "));
    figure("Latency", &unit, &with_key(&lines), &rows)
}

fn limits(outcome: &Outcome) -> String {
    if outcome.ceilings.is_empty() {
        return String::new();
    }
    let bars = outcome.ceilings.iter().map(|limit| Bar {
        label: format!("{}: {}", limit.name, table::limit_value(limit)),
        value: 100.0 * limit.share,
        spread: None,
        shown: format!("{:.0} %", 100.0 * limit.share),
        series: match outcome.bound_by.as_deref() == Some(&limit.name) {
            true => 1,
            false => 0,
        },
    });
    let bars = Bars {
        title: "Share of each limit that was reached, %".to_owned(),
        bars: bars.collect(),
        mark: Some((100.0, "the limit")),
    };
    let head = ["limit", "it can", "least", "most", "reached"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(outcome.ceilings.iter().map(|limit| {
        let value = limit.value;
        let numbers = [value.median, value.min, value.max];
        let numbers = numbers.map(|value| table::in_unit(value, &limit.unit));
        let share = format!("{:.0} %", 100.0 * limit.share);
        std::iter::once(limit.name.clone())
            .chain(numbers)
            .chain([share])
            .collect()
    }));
    let unit = match &outcome.bound_by {
        Some(name) => format!("% of each that was reached; bound by {name}"),
        None => "% of each that was reached; bound by none of them".to_owned(),
    };
    figure("Limits", &unit, &drawn(&bars), &rows)
}

fn verdicts(outcome: &Outcome) -> String {
    if outcome.verdicts.is_empty() {
        return String::new();
    }
    let first = outcome.sides.first().map_or("", |side| side.name.as_str());
    let bars = outcome.verdicts.iter().map(|verdict| Bar {
        label: format!(
            "{} against {}: {}",
            verdict.quantity, verdict.against, verdict.word
        ),
        value: verdict.ratio,
        // The worst against the best, and the other way round.
        spread: Some((
            verdict.first.low / verdict.second.high,
            verdict.first.high / verdict.second.low,
        ))
        .filter(|(low, high)| low.is_finite() && high.is_finite()),
        shown: format!("{:.3}", verdict.ratio),
        series: match verdict.word {
            crate::verdict::Word::Faster => 2,
            crate::verdict::Word::Slower => 1,
            _ => 7,
        },
    });
    let bars = Bars {
        title: "Ratios of medians; more is better".to_owned(),
        bars: bars.collect(),
        mark: Some((1.0, "equal")),
    };
    let head = ["quantity", "against", "ratio", "verdict", "medians"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(outcome.verdicts.iter().map(|verdict| {
        vec![
            verdict.quantity.clone(),
            verdict.against.clone(),
            format!("{:.3}", verdict.ratio),
            verdict.word.to_string(),
            format!(
                "{} ({} to {}) and {} ({} to {})",
                table::digits(verdict.first.median),
                table::digits(verdict.first.low),
                table::digits(verdict.first.high),
                table::digits(verdict.second.median),
                table::digits(verdict.second.low),
                table::digits(verdict.second.high),
            ),
        ]
    }));
    let unit = format!("{first} over the other side; more is better");
    figure("Verdicts", &unit, &drawn(&bars), &rows)
}
