//! Counts of both builds, and what is said of them: an increase that the repository announced is none, and what only the build
//! before cannot do is no fault of the one after.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::builds;
use crate::paths::callgrind::Count;
use crate::paths::known::{Change, Known, MORE_MAX};
use crate::paths::{Group, Path, known};

/// Increases that a file of counts announces, by having other lines than it had in the revision before.
#[derive(Clone, Debug)]
pub(super) struct Announced {
    toolchain: String,
    now: Known,
    before: Option<Known>,
}

impl Announced {
    /// Of `file` as it is, against what it was in `revision`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(file: &FilePath, revision: &str) -> Result<Announced> {
        let before = match revision {
            // Nothing is announced against itself.
            builds::THIS => std::fs::read_to_string(file).ok(),
            revision => builds::file_of(revision, file)?,
        };
        Ok(Announced {
            toolchain: known::toolchain()?,
            now: Known::read(file)?,
            before: before.and_then(|text| serde_json::from_str(&text).ok()),
        })
    }

    /// Whether the file says that this path now takes so many.
    fn allows(&self, path: &str, before: f64, after: f64) -> bool {
        let Some(now) = self.now.paths.get(path).copied() else {
            return false;
        };
        let was = self.before.as_ref();
        let was = was.and_then(|known| Some((known, known.paths.get(path).copied()?)));
        // Written anew for another toolchain, or not at all: that announces nothing.
        if was.is_some_and(|(_, was)| was == now) {
            return false;
        }
        if self.now.toolchain == self.toolchain {
            return after <= now * (1.0 + MORE_MAX);
        }
        was.is_some_and(|(known, was)| {
            known.toolchain == self.now.toolchain && after / before <= now / was * (1.0 + MORE_MAX)
        })
    }
}

/// Counts that `forebay-perf count --json` wrote, of this program with this toolchain.
///
/// # Errors
/// When the file is none, or of another toolchain.
pub(super) fn read(file: &FilePath) -> Result<BTreeMap<String, Count>> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let toolchain = known::toolchain()?;
    ensure!(
        value["toolchain"] == toolchain.as_str(),
        "{} is no file of counts of this toolchain ({toolchain})",
        file.display()
    );
    let paths = value["paths"].as_object().into_iter().flatten();
    let counts = paths.filter_map(|(name, path)| {
        let operations = path["operations"].as_u64()?;
        let whole = |each: &Value| Some((each.as_f64()? * operations as f64).round() as u64);
        let groups = Group::ALL.into_iter().filter_map(|group| {
            let each = path["parts"].get(group.name())?;
            Some((group, whole(each)?))
        });
        let count = Count {
            operations,
            instructions: whole(&path["instructions_per_operation"])?,
            groups: groups.collect(),
            functions: Vec::new(),
        };
        Some((name.clone(), count))
    });
    Ok(counts.collect())
}

/// What was said of all paths.
#[derive(Debug, Default)]
pub(super) struct Said {
    more: Vec<String>,
    skipped: Vec<String>,
    failed: Vec<String>,
    compared: usize,
}

impl Said {
    /// Says what came of a path by both builds.
    pub fn path(
        &mut self,
        path: &Path,
        (before, after): (Result<Count>, Result<Count>),
        announced: Option<&Announced>,
    ) {
        let after = match after {
            Ok(after) => after,
            // Told only: what it depends on beside the code may be missing here.
            Err(error) if !path.is_judged() => {
                return self.skip(path, &format!("not here: {error:#}"));
            }
            Err(error) => {
                println!("  {}: FAILED: {error:#}", path.name);
                return self.failed.push(format!("{}: {error:#}", path.name));
            }
        };
        let before = match before {
            Ok(before) => before,
            Err(error) => {
                let why = match super::does_not_know(&format!("{error:#}")) {
                    true => "the build before does not have it".to_owned(),
                    false => format!("the build before cannot: {error:#}"),
                };
                println!("  {}", super::line(path, None, &after, Change::New));
                return self.skip(path, &why);
            }
        };
        self.compared += 1;
        let change = Change::of(Some(before.each()), after.each());
        let line = super::line(path, Some(&before), &after, change);
        let is_announced =
            announced.is_some_and(|known| known.allows(path.name, before.each(), after.each()));
        match change {
            Change::More(_) if is_announced => println!("  {line}; announced"),
            Change::More(_) if path.is_judged() => {
                println!("  {line}");
                self.more.push(path.name.to_owned());
            }
            _ => println!("  {line}"),
        }
    }

    fn skip(&mut self, path: &Path, why: &str) {
        let why = why.lines().next().unwrap_or_default();
        self.skipped.push(format!("{} ({why})", path.name));
    }

    /// The last words. False when something takes more instructions, or failed by the build after.
    pub fn conclude(&self) -> bool {
        for one in &self.skipped {
            println!("SKIPPED: instructions are not compared: {one}");
        }
        if self.compared == 0 {
            println!("SKIPPED: not one pinned path could be compared");
        }
        for one in &self.failed {
            println!("FAILED: {one}");
        }
        if !self.more.is_empty() {
            println!(
                "MORE INSTRUCTIONS, by over {:.0} %: {}. If they are worth it, say so in the commit and write them down \
                 (forebay-perf count --write perf/instructions.json)",
                MORE_MAX * 100.0,
                self.more.join(", ")
            );
        }
        self.more.is_empty() && self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn count(each: u64) -> Result<Count> {
        Ok(Count {
            operations: 10,
            instructions: each * 10,
            groups: BTreeMap::new(),
            functions: Vec::new(),
        })
    }

    fn path(name: &str) -> &'static Path {
        Path::by_name(name).expect("it is there")
    }

    fn known(toolchain: &str, each: f64) -> Known {
        Known {
            toolchain: toolchain.to_owned(),
            paths: [("hit-4k".to_owned(), each)].into(),
        }
    }

    fn passes(path: &Path, before: Result<Count>, after: Result<Count>) -> bool {
        let mut said = Said::default();
        said.path(path, (before, after), None);
        said.conclude()
    }

    #[test]
    fn only_the_build_after_can_fail() {
        let broken = || Err(anyhow!("it does not run"));
        let (judged, told) = (path("hit-4k"), path("tcp-4k"));
        assert!(passes(judged, count(100), count(102)));
        assert!(!passes(judged, count(100), count(104)));
        assert!(passes(told, count(100), count(200)));
        assert!(passes(judged, broken(), count(100)));
        assert!(!passes(judged, count(100), broken()));
        assert!(passes(told, count(100), broken()));
    }

    #[test]
    fn one_that_fails_does_not_hide_the_next() {
        let mut said = Said::default();
        said.path(path("hit-1m"), (count(1), Err(anyhow!("torn"))), None);
        said.path(path("hit-4k"), (count(100), count(104)), None);
        assert_eq!(
            (said.failed.len(), &said.more[..]),
            (1, &["hit-4k".to_owned()][..])
        );
    }

    #[test]
    fn an_increase_passes_when_it_was_written_down_and_is_no_larger() {
        let of = |now: Known, before: Option<Known>| Announced {
            toolchain: "here".to_owned(),
            now,
            before,
        };
        let allows = |announced: &Announced| announced.allows("hit-4k", 100.0, 120.0);
        assert!(allows(&of(
            known("here", 119.0),
            Some(known("here", 100.0))
        )));
        // Not that much; not at all; not of that path.
        assert!(!allows(&of(
            known("here", 110.0),
            Some(known("here", 100.0))
        )));
        assert!(!allows(&of(
            known("here", 120.0),
            Some(known("here", 120.0))
        )));
        assert!(!of(known("here", 120.0), None).allows("hit-1m", 100.0, 120.0));
        // Of another toolchain, by its own ratio.
        assert!(allows(&of(
            known("there", 60.0),
            Some(known("there", 50.0))
        )));
        assert!(!allows(&of(
            known("there", 55.0),
            Some(known("there", 50.0))
        )));
        assert!(!allows(&of(
            known("there", 60.0),
            Some(known("elsewhere", 50.0))
        )));
        let mut said = Said::default();
        let announced = of(known("here", 119.0), None);
        said.path(path("hit-4k"), (count(100), count(120)), Some(&announced));
        assert!(said.conclude());
    }
}
