//! `forebay-perf sweep`: a scenario at several values of one setting, or of two. All points are measured once in each round, one
//! after the other and from another one on each time, so that the machine's moods hit all of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::outcome::{Outcome, SCHEMA, SideOutcome, Span, Spread};
use crate::plan::{MeasureArgs, Plan};
use crate::run::Run;
use crate::scenario::Scenario;
use crate::{budget, interrupt, session, sides, table};

/// More points than these are a slip of the pen.
const POINTS_MAX: usize = 64;

/// What is measured at which values.
#[derive(Debug, clap::Args)]
pub struct SweepArgs {
    /// The layer or pattern, and the settings that stay.
    scenario: String,
    /// A setting and its values: `depth=1,2,4`, `block=4KiB,64KiB`, or `depth=1..64` for each double of the one before. Given twice:
    /// each value of the first with each of the second.
    #[arg(long, required = true)]
    over: Vec<String>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// A setting that changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimension {
    /// Its name.
    pub name: String,
    /// Its values, in the order in which they were given.
    pub values: Vec<String>,
}

/// The scenario at one value of each dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Which.
    pub at: BTreeMap<String, String>,
    /// What was measured; null when it failed in its first round.
    pub outcome: Option<Outcome>,
    /// Why it was not measured in each round.
    pub failed: Option<String>,
    /// Its throughput over that of the first point of its curve.
    pub scaling: Option<f64>,
    /// The same for each unit of a number that grew: 1 is linear.
    pub efficiency: Option<f64>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// [`SCHEMA`].
    pub schema: u32,
    /// This program's version.
    pub version: String,
    /// The scenario as it was given, with all settings; those of `over` have their first value.
    pub scenario: String,
    /// One or two settings; the first is along a curve, of the second each value has one.
    pub over: Vec<Dimension>,
    /// What scaling is of.
    pub quantity: String,
    /// In the order of the dimensions' values; the first dimension changes fastest.
    pub points: Vec<Point>,
}

impl Dimension {
    fn parse(text: &str, scenario: &Scenario) -> Result<Dimension> {
        let (name, values) = text.split_once('=').with_context(|| {
            format!("--over {text}: write SETTING=VALUE,VALUE,..., as depth=1,2,4")
        })?;
        // What people call it.
        let name = match name {
            "nodes" if scenario.has("members") => "members",
            name => name,
        };
        let mut all: Vec<String> = Vec::new();
        for value in values.split(',') {
            for value in doubled(scenario, name, value)? {
                ensure!(
                    !all.contains(&value),
                    "--over {text}: {value} is there twice"
                );
                all.push(value);
                ensure!(
                    all.len() <= POINTS_MAX,
                    "--over {text}: over {POINTS_MAX} values"
                );
            }
        }
        Ok(Dimension {
            name: name.to_owned(),
            values: all,
        })
    }
}

/// How a scenario writes a value of a setting; `A..B` is A, twice A, and so on up to B.
fn doubled(scenario: &Scenario, name: &str, value: &str) -> Result<Vec<String>> {
    let Some((from, to)) = value.split_once("..") else {
        return Ok(vec![scenario.written(name, value)?]);
    };
    let amount = |text: &str| -> Result<u64> {
        scenario.written(name, text)?;
        let number = scenario.amount(name, text);
        number.with_context(|| format!("{name}={value}: only numbers and sizes are doubled"))
    };
    let (mut at, end) = (amount(from)?, amount(to)?);
    ensure!(
        0 < at && at <= end,
        "{name}={value}: the first must be more than nothing, and no more than the last"
    );
    let suffix = match from.ends_with(|last: char| last.is_ascii_digit()) {
        true => "",
        false => "B",
    };
    let mut values = Vec::new();
    while at <= end {
        values.push(scenario.written(name, &format!("{at}{suffix}"))?);
        match at.checked_mul(2) {
            Some(twice) => at = twice,
            None => break,
        }
    }
    Ok(values)
}

/// What is measured at each point, known to be right.
fn points(scenario: &Scenario, over: &[Dimension]) -> Result<Vec<(Point, Scenario)>> {
    let mut all = vec![(BTreeMap::new(), scenario.clone())];
    // The last first: so the first changes fastest.
    for dimension in over.iter().rev() {
        let mut next = Vec::new();
        for (at, _) in &all {
            for value in &dimension.values {
                let mut at: BTreeMap<String, String> = at.clone();
                at.insert(dimension.name.clone(), value.clone());
                next.push((at, scenario.clone()));
            }
        }
        all = next;
    }
    ensure!(
        all.len() <= POINTS_MAX,
        "{} points; {POINTS_MAX} at most",
        all.len()
    );
    let scenarios = all.into_iter().map(|(at, _)| {
        let settings: Vec<(&str, &str)> = at
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let scenario = scenario.with_all(&settings)?;
        let point = Point {
            at,
            outcome: None,
            failed: None,
            scaling: None,
            efficiency: None,
        };
        Ok((point, scenario))
    });
    scenarios.collect()
}

/// Measures, shows and writes. False when a point could not be measured.
///
/// # Errors
/// What is wrong with the arguments; when no point could be measured, or the outcome not be written.
pub fn sweep(args: &SweepArgs, run: Run) -> Result<bool> {
    let scenario: Scenario = args.scenario.parse()?;
    let over = args.over.iter();
    let over: Vec<Dimension> = over
        .map(|text| Dimension::parse(text, &scenario))
        .collect::<Result<_>>()?;
    ensure!(over.len() <= 2, "--over may be given once or twice");
    ensure!(
        over.len() < 2 || over[0].name != over[1].name,
        "{} is swept twice",
        over[0].name
    );
    let plan = args.measure.plan(run);
    let mut points = points(&scenario, &over)?;
    for (point, scenario) in &points {
        let side = sides::forebay(scenario, &plan);
        side.and_then(|_| budget::check(scenario, &plan, 1))
            .with_context(|| words(&point.at))?;
    }
    measure(&mut points, &plan)?;
    let mut swept = Sweep {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        scenario: points[0].1.to_string(),
        quantity: String::new(),
        over,
        points: points.into_iter().map(|(point, _)| point).collect(),
    };
    swept.scale();
    // First what was measured: a path that cannot be written must not lose it.
    print!("{}", swept.table());
    if let Some(path) = &args.measure.json {
        swept.write(path)?;
    }
    let failed = swept.points.iter().filter(|point| point.failed.is_some());
    match failed.count() {
        0 => Ok(true),
        all if all == swept.points.len() && swept.points[0].outcome.is_none() => {
            bail!("no point could be measured")
        }
        _ => Ok(false),
    }
}

/// Rounds over all points. One that fails is left out from then on, and the others go on.
fn measure(points: &mut [(Point, Scenario)], plan: &Plan) -> Result<()> {
    let count = points.len();
    let mut rounds: Vec<Vec<Outcome>> = vec![Vec::new(); count];
    for round in 0..plan.repeats {
        for position in 0..count {
            interrupt::check()?;
            let number = (position + round) % count;
            let (point, scenario) = &mut points[number];
            if point.failed.is_some() {
                continue;
            }
            println!(
                "round {} of {}: {}",
                round + 1,
                plan.repeats,
                words(&point.at)
            );
            let once = Plan {
                repeats: 1,
                seed: plan.seed.wrapping_add(round as u64),
                ..plan.clone()
            };
            let side = sides::forebay(scenario, &once);
            match side.and_then(|side| session::run(scenario, vec![side], &once)) {
                Ok(outcome) => rounds[number].push(outcome),
                Err(error) => {
                    // A signal is no fault of the point's.
                    interrupt::check()?;
                    println!("  FAILED: {error:#}");
                    point.failed = Some(format!("round {}: {error:#}", round + 1));
                }
            }
        }
    }
    for ((point, _), outcomes) in points.iter_mut().zip(rounds) {
        point.outcome = merged(outcomes, plan);
    }
    Ok(())
}

/// The outcomes of one point's rounds as one.
fn merged(outcomes: Vec<Outcome>, plan: &Plan) -> Option<Outcome> {
    let (first, rest) = outcomes.split_first()?;
    let mut whole = first.clone();
    whole.seed = plan.seed;
    let side = whole.sides.first_mut()?;
    let mut spans: Vec<Span> = side.spans.clone();
    for other in rest {
        spans.extend(other.sides.iter().flat_map(|side| side.spans.clone()));
        for note in &other.notes {
            if !whole.notes.contains(note) {
                whole.notes.push(note.clone());
            }
        }
    }
    *side = SideOutcome::new(&side.name, side.version.clone(), spans);
    for limit in &mut whole.ceilings {
        let all = outcomes.iter().flat_map(|one| &one.ceilings);
        let own: Vec<_> = all.filter(|other| other.name == limit.name).collect();
        let spread = |of: &dyn Fn(usize) -> f64| Spread::of((0..own.len()).map(of).collect());
        if let Some(value) = spread(&|n| own[n].value.median) {
            limit.value = value;
        }
        if let Some(share) = spread(&|n| own[n].share) {
            limit.share = share.median;
        }
    }
    whole.bind();
    Some(whole)
}

/// `depth=4, block=4KiB`.
fn words(at: &BTreeMap<String, String>) -> String {
    let words = at.iter().map(|(name, value)| format!("{name}={value}"));
    words.collect::<Vec<_>>().join(", ")
}

impl Point {
    /// Its side, when it was measured.
    pub fn side(&self) -> Option<&SideOutcome> {
        self.outcome.as_ref()?.sides.first()
    }
}

impl Sweep {
    /// Points in curves: along the first dimension, one for each value of the second, with what tells them apart.
    pub fn curves(&self) -> Vec<(String, &[Point])> {
        let along = self.over.first().map_or(1, |first| first.values.len());
        let name = |number: usize| match self.over.get(1) {
            Some(second) => {
                let value = second.values.get(number).map_or("", String::as_str);
                format!("{}={value}", second.name)
            }
            None => "Forebay".to_owned(),
        };
        let chunks = self.points.chunks(along.max(1)).enumerate();
        chunks
            .map(|(number, points)| (name(number), points))
            .collect()
    }

    /// Bytes where the size of an operation changes, else operations.
    fn scale(&mut self) {
        let changes_size = |one: &Dimension| ["block", "size"].contains(&one.name.as_str());
        let in_bytes = self.over.iter().any(changes_size);
        self.quantity = match in_bytes {
            true => "bytes/s",
            false => "operations/s",
        }
        .to_owned();
        let rate = |point: &Point| {
            let summary = &point.side()?.summary;
            let rate = match in_bytes {
                true => summary.bytes_per_s,
                false => summary.operations_per_s,
            };
            rate.map(|rate| rate.median)
        };
        let Some(first) = self.over.first() else {
            return;
        };
        let (name, along) = (first.name.clone(), first.values.len().max(1));
        for curve in self.points.chunks_mut(along) {
            let base = curve.first().and_then(rate);
            let least = curve.first().and_then(|point| point.number(&name));
            for point in curve {
                point.scaling = rate(point).zip(base).map(|(rate, base)| rate / base);
                let grew = point.number(&name).zip(least);
                let grew = grew.map(|(now, least)| now / least);
                point.efficiency = point
                    .scaling
                    .zip(grew)
                    .map(|(scaling, grew)| scaling / grew);
            }
        }
    }

    /// What a reader must know of its points. Of those that differ in numbers only, the first.
    pub fn notes(&self) -> Vec<String> {
        let mut said: Vec<(String, &String, usize)> = Vec::new();
        let outcomes = self
            .points
            .iter()
            .filter_map(|point| point.outcome.as_ref());
        for note in outcomes.flat_map(|outcome| &outcome.notes) {
            let words: String = note
                .chars()
                .filter(|letter| !letter.is_ascii_digit())
                .collect();
            match said.iter_mut().find(|(known, _, _)| *known == words) {
                Some((_, _, alike)) => *alike += 1,
                None => said.push((words, note, 0)),
            }
        }
        let said = said.into_iter().map(|(_, note, alike)| match alike {
            0 => note.clone(),
            alike => format!("{note} (and {alike} like it)"),
        });
        said.collect()
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!("scenario  {}\n", self.scenario);
        if let Some(first) = self.points.iter().find_map(|point| point.outcome.as_ref()) {
            let _ = writeln!(text, "machine   {}", first.machine);
            let _ = writeln!(text, "{}", table::how(first));
        }
        for (name, points) in self.curves() {
            if self.over.len() > 1 {
                let _ = writeln!(text, "{name}");
            }
            let mut rows = vec![self.head()];
            rows.extend(points.iter().map(|point| self.row(point)));
            text += &aligned(&rows);
        }
        for note in self.notes() {
            let _ = writeln!(text, "note      {note}");
        }
        text
    }

    /// What [`Sweep::row`] has.
    pub fn head(&self) -> Vec<String> {
        let first = self.over.first().map_or("", |first| first.name.as_str());
        let rest = [
            "throughput",
            "operations",
            "p50",
            "p99",
            "processor each",
            "scaling",
            "efficiency",
            "nearest limit",
        ];
        std::iter::once(first)
            .chain(rest)
            .map(str::to_owned)
            .collect()
    }

    /// A point's numbers; `-` is what was not measured.
    pub fn row(&self, point: &Point) -> Vec<String> {
        let none = || "-".to_owned();
        let first = self.over.first();
        let mut row = vec![
            first
                .and_then(|first| point.at.get(&first.name).cloned())
                .unwrap_or_else(none),
        ];
        let summary = point.side().map(|side| &side.summary);
        let mut cell = |value: Option<Spread>, shown: &dyn Fn(f64) -> String| {
            row.push(value.map_or_else(none, |value| shown(value.median)));
        };
        cell(summary.and_then(|all| all.bytes_per_s), &table::rate);
        cell(summary.and_then(|all| all.operations_per_s), &|per_s| {
            table::operations(per_s)
        });
        for name in ["p50", "p99"] {
            let value = summary.and_then(|all| all.latency_us.get(name).copied());
            cell(value, &table::time);
        }
        cell(
            summary.and_then(|all| all.cpu_us_per_operation),
            &table::time,
        );
        let number = |value: Option<f64>| value.map_or_else(none, |value| format!("{value:.2}"));
        row.push(number(point.scaling));
        row.push(number(point.efficiency));
        let limits = point.outcome.iter().flat_map(|outcome| &outcome.ceilings);
        let nearest = limits.max_by(|one, other| one.share.total_cmp(&other.share));
        row.push(match (&point.failed, nearest) {
            (Some(why), _) => format!("FAILED: {why}"),
            (None, Some(limit)) => format!("{:.0} % of {}", 100.0 * limit.share, limit.name),
            (None, None) => none(),
        });
        row
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Point {
    /// A setting's value where it is a number above nothing, as of cores and depths; of a size efficiency says nothing.
    fn number(&self, name: &str) -> Option<f64> {
        let number: f64 = self.at.get(name)?.parse().ok()?;
        (number > 0.0).then_some(number)
    }
}

/// Columns as wide as they must be; the last one as it is.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == columns {
                let _ = write!(line, "  {cell}");
            } else {
                let _ = write!(line, "  {cell:>width$}", width = width(column));
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubled_values_are_written_as_scenarios_write_them() -> Result<()> {
        let scenario: Scenario = "device".parse()?;
        let of = |text: &str| Dimension::parse(text, &scenario).map(|one| one.values);
        assert_eq!(of("depth=1..9")?, ["1", "2", "4", "8"]);
        assert_eq!(of("depth=3,8..16")?, ["3", "8", "16"]);
        assert_eq!(
            of("block=4KiB..16KiB,1MiB")?,
            ["4KiB", "8KiB", "16KiB", "1MiB"]
        );
        assert_eq!(of("block=4096B")?, ["4KiB"]);
        let group: Scenario = "group".parse()?;
        assert_eq!(Dimension::parse("nodes=1,2", &group)?.name, "members");
        assert!(of("nodes=1,2").is_err());
        Ok(())
    }

    #[test]
    fn the_first_setting_changes_fastest_and_all_are_looked_at_together() -> Result<()> {
        // Each alone would not do: depth=32 of 1 MiB takes more data than the one before it has.
        let scenario: Scenario = "device:data=1MiB".parse()?;
        let over = ["depth=1,2", "data=64MiB,128MiB"];
        let over: Vec<Dimension> = over
            .iter()
            .map(|text| Dimension::parse(text, &scenario))
            .collect::<Result<_>>()?;
        let points = points(&scenario, &over)?;
        let at: Vec<String> = points.iter().map(|(point, _)| words(&point.at)).collect();
        let wanted = [
            "data=64MiB, depth=1",
            "data=64MiB, depth=2",
            "data=128MiB, depth=1",
            "data=128MiB, depth=2",
        ];
        assert_eq!(at, wanted);
        assert_eq!(points[3].1.size("data"), 128 << 20);
        Ok(())
    }
}
