//! A path under valgrind's callgrind: how many instructions an operation takes, and whose they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path as FilePath;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{COUNTED, Group, Path};
use crate::interrupt;

const TOOL: &str = "valgrind";

/// What was counted of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct Count {
    /// Operations that were done.
    pub operations: u64,
    /// Instructions of all of them.
    pub instructions: u64,
    /// The same by part of the path.
    pub groups: BTreeMap<Group, u64>,
    /// Functions that took most, by where they were compiled to; the most first.
    pub functions: Vec<(String, u64)>,
}

impl Count {
    /// Instructions of one operation.
    pub fn each(&self) -> f64 {
        self.instructions as f64 / self.operations as f64
    }

    /// Parts of the path and their instructions for one operation, in the order of [`Group::ALL`]; none that has nothing.
    pub fn parts(&self) -> impl Iterator<Item = (Group, f64)> {
        Group::ALL.into_iter().filter_map(|group| {
            let sum = self.groups.get(&group).filter(|sum| **sum > 0)?;
            Some((group, *sum as f64 / self.operations as f64))
        })
    }

    /// Its parts with what each takes, largest first, in a line.
    pub fn words(&self) -> String {
        let mut parts: Vec<(Group, f64)> = self.parts().collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let words = parts.into_iter().map(|(group, each)| {
            let percent = 100.0 * each / self.each();
            format!("{} {each:.1} ({percent:.1} %)", group.name())
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Whether valgrind is on the path, and which.
///
/// # Errors
/// When it is not; the message says what to do.
pub fn version() -> Result<String> {
    let told = Command::new(TOOL).arg("--version").output();
    let told = told.ok().filter(|told| told.status.success());
    let told = told.context(
        "instructions are counted by valgrind, which is not on the path: install it (package valgrind; ci/setup test does)",
    )?;
    Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
}

/// Counts a path of the program `program`: this one, or another build of it.
///
/// # Errors
/// When it cannot be run, or the path fails.
pub fn count(program: &FilePath, path: &Path, operations: u64, dir: &FilePath) -> Result<Count> {
    let out = dir.join(format!("callgrind.{}", path.name));
    let mut command = Command::new(TOOL);
    command
        .args(["--tool=callgrind", "--compress-strings=no"])
        .args(["--compress-pos=no", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["--dir".as_ref(), dir.as_os_str()])
        .args(["path", path.name, "--operations"])
        .arg(operations.to_string());
    let done = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {TOOL}"))?;
    interrupt::check()?;
    if !done.status.success() {
        let told = String::from_utf8_lossy(&done.stderr);
        let lines = told.lines().filter(|line| !line.starts_with("=="));
        let why: Vec<&str> = lines.collect();
        bail!("{} under {TOOL}: {}", path.name, why.join("\n"));
    }
    let text = fs::read_to_string(&out).with_context(|| format!("{TOOL} wrote no profile"))?;
    let _ = fs::remove_file(&out);
    let count = read(&text, operations)?;
    ensure!(
        count.instructions > operations,
        "{TOOL} counted {} instructions of {operations} operations of {}: it did not find {COUNTED} in {}",
        count.instructions,
        path.name,
        program.display()
    );
    Ok(count)
}

/// Functions that are told.
const FUNCTIONS_MAX: usize = 12;

/// Reads callgrind's profile: costs of lines, below the names of the function that they are in and of the file that they were
/// written in. Costs of calls follow a line `calls=` and are those of the called ones, which are there by themselves.
fn read(text: &str, operations: u64) -> Result<Count> {
    let (mut file, mut function) = (String::new(), String::new());
    let mut groups = BTreeMap::new();
    let mut functions: BTreeMap<String, u64> = BTreeMap::new();
    let (mut sum, mut told, mut of_call) = (0, None, false);
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=').filter(|(key, _)| is_name(key)) {
            match key {
                "fl" | "fi" | "fe" => file = value.to_owned(),
                "fn" => function = value.to_owned(),
                "calls" => of_call = true,
                _ => {}
            }
        } else if let Some(value) = line.strip_prefix("totals:") {
            told = Some(value.trim().parse::<u64>().context("garbled totals")?);
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            if std::mem::take(&mut of_call) {
                continue;
            }
            let cost = line.split_whitespace().nth(1).unwrap_or("0");
            let cost: u64 = cost
                .parse()
                .with_context(|| format!("a garbled line: {line}"))?;
            sum += cost;
            *groups.entry(Group::of(&file, &function)).or_default() += cost;
            *functions.entry(function.clone()).or_default() += cost;
        }
    }
    ensure!(
        told == Some(sum),
        "the profile's lines add up to {sum} instructions, its total is {told:?}: another version of the format?"
    );
    let mut functions: Vec<(String, u64)> = functions.into_iter().collect();
    functions.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
    functions.truncate(FUNCTIONS_MAX);
    Ok(Count {
        operations,
        instructions: sum,
        groups,
        functions,
    })
}

fn is_name(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|one| one.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
version: 1
creator: callgrind-3.19.0
cmd: program path hit-4k
desc: Trigger: Program termination
positions: line
events: Ir
summary: 130

ob=/bin/program
fl=/src/engine/src/core/read.rs
fn=forebay_engine::core::Core<P>::turn
10 40
fi=/src/engine/src/core/index.rs
20 30
fe=/src/engine/src/core/read.rs
11 10
cob=/lib/libc.so
cfi=???
cfn=memcpy
calls=3 0
12 50

ob=/lib/libc.so
fl=???
fn=memcpy
0 50

totals: 130
";

    #[test]
    fn a_profile_is_read_with_what_was_inlined_and_without_what_was_called() {
        let count = read(PROFILE, 10).expect("it is a profile");
        assert_eq!(count.instructions, 130);
        let parts: Vec<(Group, f64)> = count.parts().collect();
        assert_eq!(
            parts,
            [
                (Group::Index, 3.0),
                (Group::Copy, 5.0),
                (Group::Engine, 5.0)
            ]
        );
        assert_eq!(count.functions[0].1, 80);
        assert_eq!(
            count.words(),
            "copy 5.0 (38.5 %), engine 5.0 (38.5 %), index 3.0 (23.1 %)"
        );
    }

    #[test]
    fn a_profile_that_does_not_add_up_is_refused() {
        let other = PROFILE.replace("totals: 130", "totals: 131");
        let refused = read(&other, 10).expect_err("a line was not understood");
        assert!(refused.to_string().contains("add up to 130"), "{refused:#}");
        assert!(read("", 10).is_err());
    }
}
