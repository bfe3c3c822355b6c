//! The table in `docs/performance.md`: one row for each part of a figure, replaced when it is
//! measured again.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::samples::Part;

const HEAD: &str = "| figure | part | measured | target | verdict | behind it | when and where |";

/// Writes the rows of `figure` into the table of the page at `path`.
///
/// # Errors
/// When the page is not there or has no table.
pub fn update(path: &Path, figure: &str, parts: &[Part]) -> Result<()> {
    let page =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let updated = with_rows(&page, figure, parts, &when_and_where())
        .with_context(|| format!("{}: no table with the head {HEAD}", path.display()))?;
    fs::write(path, updated).with_context(|| format!("cannot write {}", path.display()))
}

fn with_rows(page: &str, figure: &str, parts: &[Part], when: &str) -> Option<String> {
    let start = page.find(HEAD)?;
    let rows = &page[start..];
    let end = rows.find("\n\n").map_or(page.len(), |at| start + at);
    let own = format!("| {figure} |");
    let mut lines: Vec<String> = page[start..end]
        .lines()
        .filter(|line| !line.starts_with(&own))
        .map(str::to_owned)
        .collect();
    lines.extend(parts.iter().map(|part| {
        format!(
            "{own} {} | {:.4} | {} | {} | {} | {when} |",
            part.name,
            part.measured,
            part.target,
            part.verdict(),
            part.detail
        )
    }));
    Some(format!(
        "{}{}{}",
        &page[..start],
        lines.join("\n"),
        &page[end..]
    ))
}

/// Date, revision and machine, as far as the system tells.
fn when_and_where() -> String {
    let first_line = |program: &str, args: &[&str]| {
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
    };
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split(": ").nth(1))
        .unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
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
    format!(
        "{} at {}; {cores} x {model}, Linux {}",
        first_line("date", &["-u", "+%Y-%m-%d"]),
        revision,
        first_line("uname", &["-r"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Target;

    #[test]
    fn rows_are_replaced_not_piled_up() {
        let part = |measured| Part {
            name: "p",
            measured,
            target: Target::AtMost(2.0),
            detail: "d".to_owned(),
        };
        let page = format!("before\n\n{HEAD}\n|---|\n| other | p | 1 |\n\nafter\n");
        let once = with_rows(&page, "f", &[part(1.0)], "w").expect("there is a table");
        let twice = with_rows(&once, "f", &[part(3.0)], "w").expect("there is a table");
        assert!(
            once.contains("| f | p | 1.0000 | <=2 | ok | d | w |\n\nafter\n"),
            "{once}"
        );
        assert!(twice.contains("| f | p | 3.0000 | <=2 | short |") && !twice.contains("1.0000"));
        assert!(twice.contains("| other | p | 1 |") && twice.starts_with("before\n\n"));
        assert!(with_rows("no table", "f", &[], "w").is_none());
    }
}
