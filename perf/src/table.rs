//! Outcomes for people.

use std::fmt::Write;

use crate::outcome::{CeilingOutcome, Outcome, SideOutcome, Span, Spread};
use crate::recorder::Begun;
use crate::scenario::{Kind, Scenario};

const KIB: f64 = 1024.0;

/// Bytes per second, as people say it.
pub fn rate(bytes_per_s: f64) -> String {
    let units = ["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"];
    let (mut value, mut unit) = (bytes_per_s, 0);
    while value >= KIB && unit + 1 < units.len() {
        value /= KIB;
        unit += 1;
    }
    format!("{} {}", digits(value), units[unit])
}

/// Three digits, or a whole number that has more.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        abs if abs >= 100.0 => format!("{value:.0}"),
        abs if abs >= 10.0 => format!("{value:.1}"),
        abs if abs >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Microseconds, as people say it.
pub(crate) fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", digits(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", digits(us / 1e3)),
        us => format!("{} us", digits(us)),
    }
}

pub(crate) fn operations(per_s: f64) -> String {
    match per_s {
        per_s if per_s >= 1e6 => format!("{} M/s", digits(per_s / 1e6)),
        per_s if per_s >= 1e4 => format!("{} k/s", digits(per_s / 1e3)),
        per_s => format!("{} /s", digits(per_s)),
    }
}

/// One span in a line.
pub fn span(span: &Span) -> String {
    let mut line = format!("{:>10}", operations(span.operations_per_s()));
    if span.bytes > 0 {
        let _ = write!(line, " {:>11}", rate(span.bytes_per_s()));
    }
    let _ = write!(line, " in {}", time(span.elapsed_s * 1e6));
    if !span.costs.is_empty() {
        let us = span.cpu_us_per_operation();
        let _ = write!(line, ", processor {} each", time(us));
    }
    if let Some(p99) = span.latency.as_ref().and_then(|latency| latency.at(99.0)) {
        let _ = write!(line, ", p99 {}", time(p99));
    }
    if span.unfinished > 0 {
        let _ = write!(line, ", {} never begun", span.unfinished);
    }
    line
}

fn spread(spread: &Spread, shown: impl Fn(f64) -> String) -> String {
    format!(
        "{} ({} to {})",
        shown(spread.median),
        shown(spread.min),
        shown(spread.max)
    )
}

/// The whole of an outcome.
pub fn outcome(outcome: &Outcome) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "scenario  {}", outcome.scenario);
    let _ = writeln!(text, "command   {}", outcome.command);
    let _ = writeln!(text, "{}", how(outcome));
    let _ = writeln!(text, "machine   {}", outcome.machine);
    if outcome.machine.hardware_counters != "yes" {
        let _ = writeln!(
            text,
            "          instructions and cycles: {}",
            outcome.machine.hardware_counters
        );
    }
    for one in &outcome.sides {
        side(&mut text, one);
    }
    for verdict in &outcome.verdicts {
        let _ = writeln!(
            text,
            "verdict   {}: {:.3} of {}: {} (medians {} in {} to {}, and {} in {} to {})",
            verdict.quantity,
            verdict.ratio,
            verdict.against,
            verdict.word,
            digits(verdict.first.median),
            digits(verdict.first.low),
            digits(verdict.first.high),
            digits(verdict.second.median),
            digits(verdict.second.low),
            digits(verdict.second.high),
        );
    }
    for limit in &outcome.ceilings {
        let _ = writeln!(text, "limit     {}", ceiling(limit));
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "note      {note}");
    }
    for why in &outcome.failed {
        let _ = writeln!(text, "FAILED    {why}");
    }
    let _ = writeln!(text, "{}", headline(outcome));
    text
}

/// How much was measured, and by which build.
pub(crate) fn how(outcome: &Outcome) -> String {
    let spans = outcome.sides.first().map_or(0, |side| side.spans.len());
    let kind = outcome.scenario.parse::<Scenario>();
    let each = match kind.is_ok_and(|scenario| scenario.kind().is_pattern()) {
        true => "whole passes".to_owned(),
        false => format!("spans of {}", time(outcome.span_s * 1e6)),
    };
    format!(
        "run       {spans} {each} of a side, warm-up {}, seed {}\nbuild     forebay-perf {}, {}",
        time(outcome.warm_up_s * 1e6),
        outcome.seed,
        outcome.version,
        outcome.build
    )
}

fn side(text: &mut String, side: &SideOutcome) {
    let summary = &side.summary;
    let _ = writeln!(text, "{}: {}", side.name, side.version);
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "  {name:<22} {value}");
        }
    };
    row(
        "throughput",
        summary.bytes_per_s.map(|one| spread(&one, rate)),
    );
    row(
        "operations",
        summary.operations_per_s.map(|one| spread(&one, operations)),
    );
    row(
        "a span takes",
        summary.elapsed_s.map(|one| spread(&one, |s| time(s * 1e6))),
    );
    let offered = side.spans.first().and_then(|span| span.offered_per_s);
    let unfinished: u64 = side.spans.iter().map(|span| span.unfinished).sum();
    row(
        "arrive",
        offered.map(|rate| format!("{rate} /s, {unfinished} never begun")),
    );
    row(
        "first byte after",
        summary.first_byte_us.map(|one| spread(&one, time)),
    );
    row("latency", latencies(side, unfinished));
    row(
        "processor time",
        summary.cpu_us_per_operation.map(|one| {
            let gib = summary.cpu_s_per_gib;
            let gib = gib.map_or_else(String::new, |one| format!(", {} s/GiB", digits(one.median)));
            let busy = summary.processors.map_or(0.0, |one| one.median);
            format!(
                "{} each{gib}, {} processors busy",
                spread(&one, time),
                digits(busy)
            )
        }),
    );
    if let Some(last) = side.spans.last() {
        costs(text, last);
    }
}

/// From when an operation's time counts, in words.
pub(crate) fn from_when(begun: Begun) -> &'static str {
    match begun {
        Begun::Arrival => "from arrival",
        Begun::EndOfTheOneBefore => "from the end of the one before",
        Begun::Submission => "from submission: what waits before is not seen",
    }
}

/// Percentiles, and from when they count; `unfinished` operations are in none.
fn latencies(side: &SideOutcome, unfinished: u64) -> Option<String> {
    let latency = side.spans.iter().find_map(|span| span.latency.as_ref())?;
    let from = from_when(latency.from);
    let mut names: Vec<(&String, &Spread)> = side.summary.latency_us.iter().collect();
    // p99.9 before p99 is how text sorts.
    names.sort_by(|one, other| one.1.median.total_cmp(&other.1.median));
    let all = names
        .iter()
        .map(|(name, one)| format!("{name} {}", time(one.median)));
    let all: Vec<String> = all.collect();
    let without = match unfinished {
        0 => String::new(),
        given_up => format!("; without {given_up} that were given up"),
    };
    let all = if all.is_empty() {
        "too few operations in each span".to_owned()
    } else {
        all.join(", ")
    };
    Some(format!("{all} ({from}{without})"))
}

/// What each process used in a span.
fn costs(text: &mut String, span: &Span) {
    for cost in &span.costs {
        let switches = match (cost.voluntary_switches, cost.involuntary_switches) {
            (Some(voluntary), Some(involuntary)) => {
                format!(", {voluntary} waits, {involuntary} times put off its processor")
            }
            _ => String::new(),
        };
        let counted = match (cost.instructions, cost.cycles) {
            (Some(instructions), Some(cycles)) if cycles > 0 => format!(
                ", {instructions} instructions, {:.2} each cycle",
                instructions as f64 / cycles as f64
            ),
            _ => String::new(),
        };
        let used = time(cost.cpu_s * 1e6);
        let name = "  of the last span";
        let _ = writeln!(text, "  {name:<22} {}: {used}{switches}{counted}", cost.who);
    }
}

/// What a limit can do.
pub(crate) fn limit_value(limit: &CeilingOutcome) -> String {
    in_unit(limit.value.median, &limit.unit)
}

/// A number of a limit's.
pub(crate) fn in_unit(value: f64, unit: &str) -> String {
    match unit {
        "bytes/s" => rate(value),
        "operations/s" => operations(value),
        unit => format!("{} {unit}", digits(value)),
    }
}

fn ceiling(limit: &CeilingOutcome) -> String {
    let value = match limit.unit.as_str() {
        "bytes/s" | "operations/s" => spread(&limit.value, |value| in_unit(value, &limit.unit)),
        _ => limit_value(limit),
    };
    format!(
        "{}: {value}; {:.0} % of it reached",
        limit.name,
        100.0 * limit.share
    )
}

/// `engine 1MiB memory: 11.2 GiB/s, 94 % of memory copy; bound by memory copy`.
pub fn headline(outcome: &Outcome) -> String {
    let mut line = short_name(outcome);
    let Some(first) = outcome.sides.first() else {
        return line;
    };
    let summary = &first.summary;
    let reached = match (summary.bytes_per_s, summary.operations_per_s) {
        (Some(bytes), _) => rate(bytes.median),
        (None, Some(each)) => operations(each.median),
        (None, None) => "nothing measured".to_owned(),
    };
    let _ = write!(line, ": {reached}");
    let bound = outcome.bound_by.as_ref();
    let limits = outcome.ceilings.iter();
    let nearest = limits.max_by(|one, other| one.share.total_cmp(&other.share));
    if let Some(limit) = nearest {
        let _ = write!(line, ", {:.0} % of {}", 100.0 * limit.share, limit.name);
    }
    match (bound, nearest) {
        (Some(bound), _) => {
            let _ = write!(line, "; bound by {bound}");
        }
        (None, Some(_)) => line.push_str("; bound by nothing that was measured"),
        (None, None) => {}
    }
    line
}

/// What tells outcomes apart at a glance.
pub(crate) fn short_name(outcome: &Outcome) -> String {
    match outcome.scenario.parse::<Scenario>() {
        Ok(scenario) => short(&scenario),
        Err(_) => outcome.scenario.clone(),
    }
}

/// What tells scenarios apart at a glance.
fn short(scenario: &Scenario) -> String {
    let mut line = scenario.kind().name().to_owned();
    let settings = scenario.settings();
    let wanted: &[&str] = match scenario.kind() {
        Kind::Epoch | Kind::Stream => &["files", "size", "tier", "state"],
        Kind::Safetensors | Kind::CheckpointLoad => &["size", "tier", "state"],
        Kind::List => &["objects", "state"],
        Kind::Trace => &["file", "speed", "tier", "state"],
        _ => &["on", "via", "reader", "block", "order", "tier"],
    };
    for key in wanted {
        if let Some(value) = settings.get(*key) {
            let _ = match *key {
                "files" | "objects" => write!(line, " {value} {key}"),
                _ => write!(line, " {value}"),
            };
        }
    }
    line
}

/// Every scenario with its settings.
pub fn list() -> String {
    let mut text = String::new();
    for kind in Kind::ALL {
        let _ = writeln!(text, "{}: {}", kind.name(), kind.meaning());
        for key in kind.keys() {
            let values = key.values.to_string();
            let _ = writeln!(
                text,
                "  {:<12} {:<22} {:<11} {}",
                key.name,
                values,
                format!("[{}]", key.default),
                key.meaning
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Latency;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(rate(12_025_908_428.0), "11.2 GiB/s");
        assert_eq!([rate(1.0), rate(2048.0)], ["1.00 B/s", "2.00 KiB/s"]);
        assert_eq!(
            [time(0.5), time(1_500.0), time(2e6)],
            ["0.500 us", "1.50 ms", "2.00 s"]
        );
        assert_eq!(
            [operations(12.0), operations(12_000.0), operations(2e6)],
            ["12.0 /s", "12.0 k/s", "2.00 M/s"]
        );
    }

    #[test]
    fn latencies_say_what_they_are_without() {
        let told = (1.0, 2.0, 3.0);
        let span = Span {
            operations: 100,
            bytes: 0,
            elapsed_s: 1.0,
            offered_per_s: Some(100),
            unfinished: 7,
            first_byte_us: None,
            latency: Latency::told(Begun::Arrival, 100, told, vec![(50.0, 2.0)]),
            costs: Vec::new(),
            machine_busy_s: 0.0,
        };
        let of = SideOutcome::new("Forebay", String::new(), vec![span]);
        let mut text = String::new();
        side(&mut text, &of);
        let wanted = "p50 2.00 us (from arrival; without 7 that were given up)";
        assert!(text.contains(wanted), "{text}");
        let whole = latencies(&of, 0);
        assert_eq!(whole.as_deref(), Some("p50 2.00 us (from arrival)"));
    }

    #[test]
    fn every_scenario_is_listed_with_its_settings() {
        let text = list();
        for kind in Kind::ALL {
            assert!(text.contains(&format!("{}: ", kind.name())));
            for key in kind.keys() {
                assert!(text.contains(&format!("  {} ", key.name)), "{}", key.name);
            }
        }
    }
}
