//! `forebay-perf report`: outcomes as one page of HTML. Charts are SVG within it, and a table beside each has the same numbers: nothing
//! is fetched, and no script runs.

mod outcomes;
mod svg;
mod sweeps;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::svg::{Bars, Lines, SERIES, escaped};
use crate::outcome::{Outcome, SCHEMA};
use crate::sweep::Sweep;
use crate::{machine, table};

const STYLE: &str = include_str!("style.css");
/// A larger file is none of ours, or a page that no browser shows.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Which outcomes, and where the page goes.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// What run, compare and sweep wrote with --json.
    #[arg(required = true)]
    outcomes: Vec<PathBuf>,
    /// The page that is written.
    #[arg(long, short, value_name = "PAGE.html")]
    output: PathBuf,
}

/// What a file holds.
#[derive(Clone, Debug)]
pub enum Told {
    /// Of run or compare.
    Outcome(Box<Outcome>),
    /// Of sweep.
    Sweep(Box<Sweep>),
}

/// Writes the page.
///
/// # Errors
/// When a file is no outcome, or the page cannot be written.
pub fn report(args: &ReportArgs) -> Result<()> {
    let told = args.outcomes.iter();
    let told: Vec<(String, Told)> = told
        .map(|file| {
            // It would be gone before anybody saw that it was meant as a page.
            let same = fs::canonicalize(file).ok();
            ensure!(
                same.is_none() || same != fs::canonicalize(&args.output).ok(),
                "{} is an outcome: the page would overwrite it",
                args.output.display()
            );
            let name = file.file_name().unwrap_or(file.as_os_str());
            Ok((name.to_string_lossy().into_owned(), Told::read(file)?))
        })
        .collect::<Result<_>>()?;
    fs::write(&args.output, page(&told))
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    println!("{}", args.output.display());
    Ok(())
}

impl Told {
    /// Reads a file of either kind.
    ///
    /// # Errors
    /// When it is neither, or of another schema.
    pub fn read(path: &Path) -> Result<Told> {
        let file = path.display();
        let size = fs::metadata(path).with_context(|| format!("cannot read {file}"))?;
        ensure!(
            size.len() <= FILE_BYTES_MAX,
            "{file} is no outcome of forebay-perf: over {FILE_BYTES_MAX} bytes"
        );
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        if value.is_none_or(|value| value.get("points").is_none()) {
            return Ok(Told::Outcome(Box::new(Outcome::read(path)?)));
        }
        let sweep: Sweep = serde_json::from_str(&text)
            .with_context(|| format!("{file} is no outcome of forebay-perf"))?;
        ensure!(
            sweep.schema == SCHEMA,
            "{file} has schema {}, this program reads {SCHEMA}: measure again",
            sweep.schema
        );
        Ok(Told::Sweep(Box::new(sweep)))
    }
}

/// The page of outcomes, each with the name of its file.
pub fn page(told: &[(String, Told)]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>forebay-perf</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>What forebay-perf measured</h1>\n\
         <p>Page by forebay-perf {}. Bars and lines are medians of spans, whiskers the least and the most.</p>\n",
        env!("CARGO_PKG_VERSION")
    );
    page += &outcomes::overview(told);
    for (file, told) in told {
        page += "<section>\n";
        page += &match told {
            Told::Outcome(outcome) => outcomes::section(file, outcome),
            Told::Sweep(sweep) => sweeps::section(file, sweep),
        };
        page += "</section>\n";
    }
    page + "</main>\n</body>\n</html>\n"
}

/// What must be known of how something was measured.
fn circumstances(file: &str, outcome: &Outcome) -> String {
    let mut list = String::from("<dl>\n");
    let mut row = |name: &str, value: &str, is_code: bool| {
        let value = escaped(value);
        let value = match is_code {
            true => format!("<code>{value}</code>"),
            false => value,
        };
        let _ = writeln!(list, "<dt>{name}</dt><dd>{value}</dd>");
    };
    row("file", file, true);
    row("scenario", &outcome.scenario, true);
    row("command", &outcome.command, true);
    for line in table::how(outcome).lines() {
        let (name, rest) = line.split_at_checked(10).unwrap_or((line, ""));
        row(name.trim(), rest, false);
    }
    row("began", &machine::utc(outcome.began_unix_s), false);
    row("machine", &outcome.machine.to_string(), false);
    if outcome.machine.hardware_counters != "yes" {
        row("instructions", &outcome.machine.hardware_counters, false);
    }
    list + "</dl>\n"
}

fn notes<'a>(all: impl Iterator<Item = &'a String>) -> String {
    let mut said: Vec<&String> = Vec::new();
    for note in all {
        if !said.contains(&note) {
            said.push(note);
        }
    }
    if said.is_empty() {
        return String::new();
    }
    let items = said
        .iter()
        .map(|note| format!("<li>{}</li>\n", escaped(note)));
    format!(
        "<p>Notes:</p>\n<ul class=\"notes\">\n{}</ul>\n",
        items.collect::<String>()
    )
}

/// A chart and the table beside it.
fn figure(title: &str, unit: &str, chart: &str, rows: &[Vec<String>]) -> String {
    let unit = match unit {
        "" => String::new(),
        unit => format!(" <small>{}</small>", escaped(unit)),
    };
    format!(
        "<figure>\n<figcaption>{}{unit}</figcaption>\n<div class=\"pair\">\n<div>\n{chart}</div>\n<div class=\"wide\">\n{}</div>\n</div>\n</figure>\n",
        escaped(title),
        cells(rows)
    )
}

fn drawn(bars: &Bars) -> String {
    bars.draw()
}

/// Lines, and what they are.
fn with_key(lines: &Lines) -> String {
    let mut chart = lines.draw();
    chart += "<ul class=\"key\">\n";
    for (number, line) in lines.lines.iter().enumerate() {
        let class = match line.is_ideal {
            true => "ideal".to_owned(),
            false => format!("path s{}", number % SERIES),
        };
        let _ = writeln!(
            chart,
            "<li><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\"><path class=\"{class}\" d=\"M0 5L22 5\"/></svg>{}</li>",
            escaped(&line.name)
        );
    }
    chart + "</ul>\n"
}

/// A table; its first row is the head. What is long is broken into lines.
fn cells(rows: &[Vec<String>]) -> String {
    let mut table = String::from("<table>\n");
    for (number, row) in rows.iter().enumerate() {
        table += "<tr>";
        for cell in row {
            let (tag, class) = match (number, cell.chars().count() > 28) {
                (0, _) => ("th", ""),
                (_, true) => ("td", " class=\"words\""),
                (_, false) => ("td", ""),
            };
            let _ = write!(table, "<{tag}{class}>{}</{tag}>", escaped(cell));
        }
        table += "</tr>\n";
    }
    table + "</table>\n"
}

/// By which numbers are divided, and the unit that they have then.
fn unit(most: f64, units: &[(f64, &'static str)]) -> (f64, &'static str) {
    let fits = units.iter().rev().find(|(factor, _)| most >= *factor);
    *fits.unwrap_or(&units[0])
}

const KIB: f64 = 1024.0;
const RATES: [(f64, &str); 5] = [
    (1.0, "B/s"),
    (KIB, "KiB/s"),
    (KIB * KIB, "MiB/s"),
    (KIB * KIB * KIB, "GiB/s"),
    (KIB * KIB * KIB * KIB, "TiB/s"),
];
const OPERATIONS: [(f64, &str); 3] = [
    (1.0, "operations/s"),
    (1e3, "thousand operations/s"),
    (1e6, "million operations/s"),
];
const TIMES: [(f64, &str); 4] = [(1e-3, "ns"), (1.0, "us"), (1e3, "ms"), (1e6, "s")];

/// A time on an axis: round, so short.
fn round_time(us: f64) -> String {
    let (factor, unit) = unit(us * 1.0001, &TIMES);
    format!("{} {unit}", (us / factor * 100.0).round() / 100.0)
}

fn plain(value: f64) -> String {
    let rounded = (value * 1e3).round() / 1e3;
    format!("{rounded}")
}

/// Names of percentiles in their order: p99.9 after p99.
fn percentiles<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut all: Vec<String> = names.cloned().collect();
    let number = |name: &str| name.trim_start_matches('p').parse::<f64>().unwrap_or(0.0);
    all.sort_by(|one, other| number(one).total_cmp(&number(other)));
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_in_their_order_and_times_are_short() {
        let names = ["p99.9", "p50", "p99", "p99", "p90"].map(str::to_owned);
        assert_eq!(percentiles(names.iter()), ["p50", "p90", "p99", "p99.9"]);
        let shown = [0.5, 1.0, 200.0, 1e3, 5e6].map(round_time);
        assert_eq!(shown, ["500 ns", "1 us", "200 us", "1 ms", "5 s"]);
        assert_eq!(unit(3e9, &RATES).1, "GiB/s");
        assert_eq!(unit(0.0, &RATES), (1.0, "B/s"));
    }

    #[test]
    fn what_is_no_outcome_is_told() {
        let dir = tempfile::tempdir().expect("there is a place for files");
        for (rubbish, wanted) in [
            ("", "no outcome"),
            ("{\"points\": 1}", "no outcome"),
            ("{\"points\": [], \"schema\": 1}", "no outcome"),
            (
                "{\"schema\":1,\"version\":\"\",\"scenario\":\"\",\"over\":[],\"quantity\":\"\",\"points\":[]}",
                "has schema 1, this program reads",
            ),
        ] {
            let file = dir.path().join("a.json");
            fs::write(&file, rubbish).expect("it is written");
            let refused = Told::read(&file).expect_err("rubbish");
            assert!(refused.to_string().contains(wanted), "{refused:#}");
            let args = ReportArgs {
                outcomes: vec![file.clone()],
                output: file,
            };
            let refused = report(&args).expect_err("it is the page as well");
            assert!(
                refused.to_string().contains("would overwrite"),
                "{refused:#}"
            );
        }
        assert!(Told::read(Path::new("/no/such/file")).is_err());
    }
}
