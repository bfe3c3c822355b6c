//! The tables in `docs/performance.md`: one row for each part of a figure in both, the result and what is behind it;
//! replaced when it is measured again.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::samples::Part;

const RESULTS: &str = "| figure | part | measured | target | verdict | when |";
const BEHIND: &str = "| figure | part | behind it | where |";
/// Digits of a result that are shown.
const DIGITS: i32 = 4;

/// Writes the rows of `figure` into the tables of the page at `path`.
///
/// # Errors
/// When the page is not there or lacks a table.
pub fn update(path: &Path, figure: &str, parts: &[Part]) -> Result<()> {
    let page =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (when, place) = (when(), place());
    let results = |part: &Part| {
        format!(
            "{} | {} | {} | {when}",
            rounded(part.measured),
            part.target,
            part.verdict()
        )
    };
    let behind = |part: &Part| format!("{} | {place}", part.detail);
    let missing = |head| format!("{}: no table with the head {head}", path.display());
    let page =
        with_rows(&page, RESULTS, figure, parts, results).with_context(|| missing(RESULTS))?;
    let page = with_rows(&page, BEHIND, figure, parts, behind).with_context(|| missing(BEHIND))?;
    fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}

/// To [`DIGITS`] digits, or to a whole number that has more.
fn rounded(value: f64) -> String {
    let before_point = match value.abs() {
        abs if abs < 1.0 => 1,
        abs => abs.log10().floor() as i32 + 1,
    };
    let decimals = (DIGITS - before_point).max(0) as usize;
    format!("{value:.decimals$}")
}

/// The page with the rows of `figure` in the table under `head` replaced; `cells` are those after figure and part.
fn with_rows(
    page: &str,
    head: &str,
    figure: &str,
    parts: &[Part],
    cells: impl Fn(&Part) -> String,
) -> Option<String> {
    let start = page.find(head)?;
    let rows = &page[start..];
    let end = rows.find("\n\n").map_or(page.len(), |at| start + at);
    let own = format!("| {figure} |");
    let mut lines: Vec<String> = page[start..end]
        .lines()
        .filter(|line| !line.starts_with(&own))
        .map(str::to_owned)
        .collect();
    let rows = parts.iter();
    lines.extend(rows.map(|part| format!("{own} {} | {} |", part.name, cells(part))));
    Some(format!(
        "{}{}{}",
        &page[..start],
        lines.join("\n"),
        &page[end..]
    ))
}

fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .stderr(std::process::Stdio::null())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Date and revision, as far as the system tells.
fn when() -> String {
    let mut revision = first_line("git", &["rev-parse", "--short", "HEAD"]);
    // The page itself is written between figures; only other changes make a revision unsure.
    if !first_line(
        "git",
        &["status", "--porcelain", "-uno", "--", ".", ":!docs"],
    )
    .is_empty()
    {
        revision.push_str(" with changes");
    }
    format!("{} at {revision}", first_line("date", &["-u", "+%Y-%m-%d"]))
}

/// The machine, as far as the system tells.
fn place() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split(": ").nth(1))
        .unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    format!("{cores} x {model}, Linux {}", first_line("uname", &["-r"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Target;

    #[test]
    fn rows_are_replaced_not_piled_up() {
        let parts = |measured| {
            [Part {
                name: "p",
                measured,
                target: Target::AtMost(2.0),
                detail: "d".to_owned(),
            }]
        };
        let page = format!("before\n\n{RESULTS}\n|---|\n| other | p | 1 |\n\n{BEHIND}\n|---|\n");
        let file = tempfile::NamedTempFile::new().expect("a file can be made");
        fs::write(file.path(), page).expect("it can be written");
        let after = |measured| {
            update(file.path(), "f", &parts(measured)).expect("there are tables");
            fs::read_to_string(file.path()).expect("it is there")
        };
        let once = after(1.0);
        assert!(once.contains("| f | p | 1.000 | <=2 | ok | "), "{once}");
        assert!(
            once.contains(&format!("{BEHIND}\n|---|\n| f | p | d | ")),
            "{once}"
        );
        let twice = after(3.0);
        assert!(twice.contains("| f | p | 3.000 | <=2 | short | ") && !twice.contains("1.000"));
        assert!(twice.contains("| other | p | 1 |\n| f |") && twice.starts_with("before\n\n"));
        assert_eq!(twice.matches("| f | p | d |").count(), 1, "{twice}");
        fs::write(file.path(), "no table").expect("it can be written");
        assert!(update(file.path(), "f", &[]).is_err());
    }

    #[test]
    fn results_have_four_digits() {
        let shown = [1.2875, 0.64371, 14.9531, -56.0078, 1212.0515, 65536.4, 0.0].map(rounded);
        let wanted = [
            "1.288", "0.644", "14.95", "-56.01", "1212", "65536", "0.000",
        ];
        assert_eq!(shown, wanted);
    }
}
