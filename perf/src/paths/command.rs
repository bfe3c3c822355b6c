//! `forebay-perf count`.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Path;
use super::callgrind::{self, Count};
use super::known::{self, Change, Known};
use crate::interrupt;

/// What is counted, and what it is compared with.
#[derive(Debug, clap::Args)]
pub struct CountArgs {
    /// Pinned paths; none: all.
    paths: Vec<String>,
    /// Operations of each, instead of what is usual for it.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    operations: Option<u64>,
    /// Show the functions that take most, too.
    #[arg(long)]
    functions: bool,
    /// Write what was counted here as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Compare with the counts in this file, and fail when a path takes over 3 % more. Counts of another compiler, C library or
    /// valgrind are not compared: then this says SKIPPED and is no failure.
    #[arg(long)]
    check: Option<PathBuf>,
    /// Write the counts into this file.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Counts, shows and compares. False when a path takes too many instructions, or one that is judged could not be counted.
///
/// # Errors
/// When nothing can be counted here, or a file not be read or written.
pub fn count(args: &CountArgs, dir: &FilePath) -> Result<bool> {
    let all: Vec<&Path> = match args.paths.is_empty() {
        true => Path::all().collect(),
        false => {
            let named = args.paths.iter().map(|name| Path::by_name(name));
            named.collect::<Result<_>>()?
        }
    };
    let toolchain = known::toolchain()?;
    println!("  {toolchain}");
    let before = match &args.check {
        Some(file) => {
            known::ensure_optimised()?;
            let before = Known::read(file)?;
            if before.toolchain != toolchain {
                println!(
                    "SKIPPED: instructions of pinned paths are not judged: {} is of another toolchain ({})",
                    file.display(),
                    before.toolchain
                );
            }
            Some(before).filter(|before| before.toolchain == toolchain)
        }
        None => None,
    };
    let program = std::env::current_exe().context("this program has no name")?;
    let (mut counts, mut failed) = (Vec::new(), Vec::new());
    for path in all {
        let operations = args.operations.unwrap_or(path.operations);
        let count = callgrind::count(&program, path, operations, dir);
        interrupt::check()?;
        match count {
            Ok(count) => {
                println!("{}", line(path, &count, before.as_ref()));
                if args.functions {
                    for (function, sum) in &count.functions {
                        println!("    {:>12.1}  {function}", *sum as f64 / operations as f64);
                    }
                }
                counts.push((path, count));
            }
            // The others are counted all the same.
            Err(error) => {
                println!("{}: FAILED: {error:#}", path.name);
                failed.push((path, format!("{error:#}")));
            }
        }
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&as_json(&toolchain, &counts))?;
        std::fs::write(file, text + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    // Those that are told only depend on more than the code: where one cannot be, that is no failure.
    let (bad, absent): (Vec<_>, Vec<_>) = failed.iter().partition(|(path, _)| path.is_judged());
    for (path, why) in absent {
        let why = why.lines().next().unwrap_or_default();
        println!("SKIPPED: instructions of {}: {why}", path.name);
    }
    let judged = || counts.iter().filter(|(path, _)| path.is_judged());
    if let Some(file) = args.write.as_ref().filter(|_| bad.is_empty()) {
        known::ensure_optimised()?;
        ensure!(
            args.operations.is_none(),
            "counts are written of the usual number of operations: leave --operations out"
        );
        let each = |(path, count): &(&Path, Count)| (path.name.to_owned(), count.each());
        let known = Known {
            toolchain,
            paths: judged().map(each).collect(),
        };
        // Paths that are gone go with the file when all are written.
        known.write(file, args.paths.is_empty())?;
    }
    let right = match &before {
        Some(before) => {
            let missed = args
                .paths
                .is_empty()
                .then(|| known::missed(before, &Path::judged()));
            let changes = judged().map(|(path, count)| (path.name, change(path, count, before)));
            verdict(changes, args.check.as_deref()) && gone(missed.unwrap_or_default())
        }
        None => true,
    };
    if !bad.is_empty() {
        let names: Vec<&str> = bad.iter().map(|(path, _)| path.name).collect();
        println!("FAILED: {} could not be counted", names.join(", "));
    }
    Ok(right && bad.is_empty())
}

/// Says which paths the file has and the program has not any more. False when there are any.
fn gone(names: Vec<String>) -> bool {
    if !names.is_empty() {
        println!(
            "GONE: {}: the file has counts of what is no path any more. If that is meant, write it anew (forebay-perf count --write)",
            names.join(", ")
        );
    }
    names.is_empty()
}

fn change(path: &Path, count: &Count, before: &Known) -> Change {
    Change::of(before.paths.get(path.name).copied(), count.each())
}

/// Says which paths take too many instructions, and which so few that it should be written down. False when there are any of the first.
fn verdict<'a>(changes: impl Iterator<Item = (&'a str, Change)>, file: Option<&FilePath>) -> bool {
    let (mut more, mut fewer) = (Vec::new(), Vec::new());
    for (name, change) in changes {
        match change {
            Change::More(_) => more.push(name),
            Change::Fewer(_) | Change::New => fewer.push(name),
            Change::Same(_) => {}
        }
    }
    let file = file.map_or_else(String::new, |file| file.display().to_string());
    let how = format!("forebay-perf count --write {file}");
    if !fewer.is_empty() {
        println!(
            "NEW OR FEWER: {}: write that down, so that it stays ({how})",
            fewer.join(", ")
        );
    }
    if !more.is_empty() {
        println!(
            "MORE INSTRUCTIONS THAN {file} ALLOWS: {}. Look at forebay-perf count --functions; if they are worth it, say so in the commit \
             and write them down ({how})",
            more.join(", ")
        );
    }
    more.is_empty()
}

fn line(path: &Path, count: &Count, before: Option<&Known>) -> String {
    let compared = match before {
        Some(before) if path.is_judged() => {
            format!(" [{}]", change(path, count, before).words())
        }
        _ => String::new(),
    };
    format!(
        "{}: {:.1} instructions{compared}: {}",
        path.name,
        count.each(),
        count.words()
    )
}

fn as_json(toolchain: &str, counts: &[(&Path, Count)]) -> serde_json::Value {
    let of = |(path, count): &(&Path, Count)| {
        let parts: BTreeMap<&str, f64> = count
            .parts()
            .map(|(group, each)| (group.name(), each))
            .collect();
        let each = count.each();
        let value = json!({"operations": count.operations, "instructions_per_operation": each, "parts": parts});
        (path.name.to_owned(), value)
    };
    let paths: serde_json::Map<String, serde_json::Value> = counts.iter().map(of).collect();
    json!({"toolchain": toolchain, "paths": paths})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_with_more_is_enough_to_fail() {
        let same = ("a", Change::Same(0.02));
        assert!(verdict(
            [same, ("b", Change::Fewer(-0.5))].into_iter(),
            None
        ));
        assert!(!verdict(
            [same, ("b", Change::More(0.04))].into_iter(),
            None
        ));
    }

    #[test]
    fn a_path_that_is_gone_is_missed() {
        let known = Known {
            toolchain: String::new(),
            paths: [("hit-4k".to_owned(), 1.0), ("hit-5k".to_owned(), 1.0)].into(),
        };
        let missed = known::missed(&known, &Path::judged());
        assert_eq!(missed, ["hit-5k"]);
        assert!(!gone(missed) && gone(Vec::new()));
    }
}
