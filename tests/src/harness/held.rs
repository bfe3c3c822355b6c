//! What a member's cache directory holds, by `forebay cache inspect`: it reads the tables on disk, so it works
//! beside a daemon that runs and after one that was killed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::program::forebay_binary;

/// What a cache on disk holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Object versions of which it holds anything.
    pub objects: u64,
    /// Bytes of objects. Those that lie there twice count once.
    pub bytes: u64,
}

/// What the cache of `GROUP/NODE` in `dir` holds.
///
/// # Errors
/// When the cache cannot be read.
pub fn held(dir: &Path, group: &str, node: &str) -> Result<Held> {
    let output = Command::new(forebay_binary()?)
        .args(["cache", "inspect", "--entries", "--json"])
        .args(["--cache-group", group, "--node-id", node])
        .arg(dir)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "forebay cache inspect {}: {}",
        dir.display(),
        output.status
    );
    let text = String::from_utf8(output.stdout)?;
    covered(text.lines()).with_context(|| format!("forebay cache inspect {}", dir.display()))
}

fn covered<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Held> {
    let mut ranges: BTreeMap<String, Vec<Range<u64>>> = BTreeMap::new();
    for line in lines {
        let line: Value = serde_json::from_str(line)?;
        if line["kind"] != "entry" {
            continue;
        }
        let object = line["object"].as_str().context("an entry of no object")?;
        let number = |key: &str| line[key].as_u64().with_context(|| format!("no {key}"));
        let start = number("offset_bytes")?;
        let range = start..start + number("len_bytes")?;
        ranges.entry(object.to_owned()).or_default().push(range);
    }
    Ok(Held {
        objects: ranges.len() as u64,
        bytes: ranges.into_values().map(union_bytes).sum(),
    })
}

fn union_bytes(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_by_key(|range| range.start);
    let (mut end, mut bytes) = (0, 0);
    for range in ranges {
        bytes += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_there_twice_counts_once() -> Result<()> {
        let entry = |object: &str, offset: u64, len: u64| {
            format!(
                r#"{{"kind":"entry","object":"{object}","offset_bytes":{offset},"len_bytes":{len}}}"#
            )
        };
        let lines = [
            entry("a", 4096, 100),
            entry("b", 0, 7),
            entry("a", 0, 4096),
            entry("a", 0, 4100),
            entry("a", 8192, 1),
            r#"{"kind":"cache","entry_bytes":5}"#.to_owned(),
        ];
        let held = covered(lines.iter().map(String::as_str))?;
        assert_eq!((held.objects, held.bytes), (2, 4196 + 1 + 7));
        assert!(covered([r#"{"kind":"entry","object":"a"}"#].into_iter()).is_err());
        Ok(())
    }
}
