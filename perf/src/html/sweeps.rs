//! Curves of a sweep.

use super::svg::{Line, Lines};
use super::{
    OPERATIONS, RATES, TIMES, circumstances, escaped, figure, notes, plain, round_time, unit,
    with_key,
};
use crate::outcome::{Spread, Summary};
use crate::sweep::{Point, Sweep};
use crate::table;

type Quantity = fn(&Summary) -> Option<Spread>;

/// Everything of one sweep.
pub(super) fn section(file: &str, sweep: &Sweep) -> String {
    let over: Vec<&str> = sweep.over.iter().map(|one| one.name.as_str()).collect();
    let kind = sweep.scenario.split(':').next().unwrap_or_default();
    let title = format!("{kind} over {}", over.join(" and "));
    let mut text = format!("<h2>{}</h2>\n", escaped(&title));
    let outcomes = || {
        sweep
            .points
            .iter()
            .filter_map(|point| point.outcome.as_ref())
    };
    if let Some(first) = outcomes().next() {
        text += &circumstances(file, first);
        text += "<p>The scenario above is that of the first point. Points were measured in turns.</p>\n";
    }
    text += &notes(sweep.notes().iter());
    let failed = sweep
        .points
        .iter()
        .filter_map(|point| point.failed.as_ref());
    text += &notes(failed.clone());
    text += &curves(sweep, "Throughput", &RATES, |all| all.bytes_per_s);
    text += &curves(sweep, "Operations", &OPERATIONS, |all| all.operations_per_s);
    text += &scaling(sweep);
    for (name, quantity) in [
        (
            "p50",
            (|all| all.latency_us.get("p50").copied()) as Quantity,
        ),
        ("p99", |all| all.latency_us.get("p99").copied()),
    ] {
        text += &latency(sweep, name, quantity);
    }
    text += &curves(sweep, "Processor time of an operation", &TIMES, |all| {
        all.cpu_us_per_operation
    });
    text + &everything(sweep)
}

fn places(sweep: &Sweep) -> (Vec<String>, String) {
    let first = sweep.over.first();
    first.map_or_else(Default::default, |first| {
        (first.values.clone(), first.name.clone())
    })
}

fn lines(sweep: &Sweep, of: impl Fn(&Point) -> Option<Spread>) -> Vec<Line> {
    let curves = sweep.curves().into_iter().map(|(name, points)| Line {
        name,
        points: points
            .iter()
            .map(|point| of(point).map(|one| (one.median, one.min, one.max)))
            .collect(),
        is_ideal: false,
    });
    curves.collect()
}

fn is_empty(lines: &[Line]) -> bool {
    lines
        .iter()
        .all(|line| line.points.iter().all(Option::is_none))
}

/// Rows of places, columns of curves.
fn rows(sweep: &Sweep, lines: &[Line], shown: &dyn Fn(f64) -> String) -> Vec<Vec<String>> {
    let (places, along) = places(sweep);
    let mut rows = vec![vec![along]];
    rows[0].extend(lines.iter().map(|line| line.name.clone()));
    rows.extend(places.into_iter().enumerate().map(|(number, place)| {
        let cells = lines.iter().map(|line| {
            let point = line.points.get(number).copied().flatten();
            point.map_or_else(|| "-".to_owned(), |(value, _, _)| shown(value))
        });
        std::iter::once(place).chain(cells).collect()
    }));
    rows
}

fn curves(sweep: &Sweep, title: &str, units: &[(f64, &'static str)], of: Quantity) -> String {
    let raw = lines(sweep, |point| of(&point.side()?.summary));
    if is_empty(&raw) {
        return String::new();
    }
    let all = raw.iter().flat_map(|line| line.points.iter().flatten());
    let most = all.map(|(_, _, high)| *high).fold(0.0, f64::max);
    let (factor, unit) = unit(most, units);
    let mut scaled = raw;
    for point in scaled
        .iter_mut()
        .flat_map(|line| line.points.iter_mut().flatten())
    {
        *point = (point.0 / factor, point.1 / factor, point.2 / factor);
    }
    let rows = rows(sweep, &scaled, &table::digits);
    let (places, along) = places(sweep);
    let chart = Lines {
        title: format!("{title}, {unit}"),
        places,
        along,
        lines: scaled,
        logarithmic: false,
        shown: plain,
    };
    figure(title, unit, &with_key(&chart), &rows)
}

fn latency(sweep: &Sweep, name: &str, of: Quantity) -> String {
    let lines = lines(sweep, |point| of(&point.side()?.summary));
    if is_empty(&lines) {
        return String::new();
    }
    let rows = rows(sweep, &lines, &table::time);
    let (places, along) = places(sweep);
    let title = format!("Latency, {name}");
    let chart = Lines {
        title: title.clone(),
        places,
        along,
        lines,
        logarithmic: true,
        shown: round_time,
    };
    figure(
        &title,
        "each mark several times the one below",
        &with_key(&chart),
        &rows,
    )
}

/// Against the first point, and what it would be if it were linear.
fn scaling(sweep: &Sweep) -> String {
    let flat = |value: f64| Spread {
        median: value,
        min: value,
        max: value,
    };
    let mut lines = lines(sweep, |point| point.scaling.map(flat));
    if is_empty(&lines) {
        return String::new();
    }
    let rows = rows(sweep, &lines, &|value| format!("{value:.2}"));
    let linear = sweep.curves().into_iter().next().map(|(_, points)| {
        let each = points.iter().map(|point| {
            let linear = point.scaling? / point.efficiency?;
            Some((linear, linear, linear))
        });
        each.collect::<Vec<_>>()
    });
    let linear = linear.unwrap_or_default();
    if linear.iter().any(Option::is_some) {
        lines.push(Line {
            name: "linear".to_owned(),
            points: linear,
            is_ideal: true,
        });
    }
    let (places, along) = places(sweep);
    let chart = Lines {
        title: "Scaling against the first point".to_owned(),
        places,
        along,
        lines,
        logarithmic: false,
        shown: plain,
    };
    let unit = format!("{} over those of the first point", sweep.quantity);
    figure("Scaling", &unit, &with_key(&chart), &rows)
}

/// All numbers, as on the terminal.
fn everything(sweep: &Sweep) -> String {
    let mut text = String::from(
        "<figure class=\"all\">\n<figcaption>All points</figcaption>\n<div class=\"wide\">\n",
    );
    for (name, points) in sweep.curves() {
        if sweep.over.len() > 1 {
            text += &format!("<p>{}</p>\n", escaped(&name));
        }
        let mut rows = vec![sweep.head()];
        rows.extend(points.iter().map(|point| sweep.row(point)));
        text += &super::cells(&rows);
    }
    text + "</div>\n</figure>\n"
}
