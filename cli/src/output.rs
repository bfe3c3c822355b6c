//! What commands print for people and for programs.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes `text` to standard output. A reader that went away (`forebay stats | head`) is no error.
///
/// # Errors
/// When standard output cannot be written. Returns false when its reader is gone.
pub fn print(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// `value` as one JSON text: indented, or on one line.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn json(value: &impl Serialize, indented: bool) -> Result<String> {
    let text = if indented {
        serde_json::to_string_pretty(value)
    } else {
        serde_json::to_string(value)
    };
    Ok(text.context("cannot write JSON")? + "\n")
}

/// Rows in columns as wide as their longest cell; `right` columns are set to the right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if right.contains(&column) {
                (pad.as_str(), "")
            } else {
                ("", pad.as_str())
            };
            line.push_str(before);
            line.push_str(cell);
            line.push_str(after);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `part` of `whole` in percent; a dash when there is nothing to divide.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".into(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["name", "n"]), row(["ä", "100"])], &[1]);
        assert_eq!(text, "name    n\nä     100\n");
        assert_eq!(table(&[], &[]), "");
    }

    #[test]
    fn percentages() {
        assert_eq!(percent(1, 0), "-");
        assert_eq!(percent(1, 3), "33.3 %");
    }
}
