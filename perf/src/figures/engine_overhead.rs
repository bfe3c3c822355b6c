//! `engine-overhead`: instructions of a hit of 4 KiB, from memory and from devices, and whose they are. Counted by valgrind. Of what a
//! core does by itself they are the same on a quiet machine and on a busy one; of a device that others work for they are not quite.

use std::path::Path as FilePath;

use anyhow::{Context, Result, bail};

use crate::paths::{Group, Path, callgrind, known};
use crate::run::Run;
use crate::samples::{Part, Target};

/// What is counted, by the name of its row. A device in memory shows the engine's own part.
const ROWS: [(&str, &str); 4] = [
    ("memory", "hit-4k"),
    ("device-in-memory", "disk-4k"),
    ("uring", "uring-4k"),
    ("spdk", "spdk-4k"),
];
/// Told first: what the figure is about.
const ASKED: [Group; 3] = [Group::Index, Group::Checksum, Group::Device];

/// Each row for itself: one that fails does not take the others with it.
pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    known::ensure_optimised()?;
    let toolchain = known::toolchain()?;
    println!("  {toolchain}");
    let dir = run.scratch()?;
    let program = std::env::current_exe().context("this program has no name")?;
    let mut parts = Vec::new();
    for (name, path) in ROWS {
        if let Some(why) = obstacle(path) {
            println!("SKIPPED: engine-overhead {name}: {why}");
            continue;
        }
        let path = Path::by_name(path)?;
        match row(run, (name, path), &program, dir.path()) {
            Ok(mut part) => {
                part.detail += &format!(". {toolchain}");
                parts.push(part);
            }
            Err(error) => {
                crate::interrupt::check()?;
                println!("NOT MEASURED: engine-overhead {name}: {error:#}");
            }
        }
    }
    if parts.is_empty() {
        bail!("no row could be measured");
    }
    Ok(parts)
}

/// What a path lacks here; none when it can be walked.
fn obstacle(path: &str) -> Option<String> {
    if Path::by_name(path).is_err() {
        let why = "this program was built without SPDK (make figure builds with it, where pkg-config finds it)";
        return Some(why.to_owned());
    }
    (path == "spdk-4k")
        .then(forebay_tests::devices::target::obstacle)
        .flatten()
}

fn row(
    run: &Run,
    (name, path): (&'static str, &'static Path),
    program: &FilePath,
    dir: &FilePath,
) -> Result<Part> {
    let operations = if run.short { 640 } else { path.operations };
    let count = callgrind::count(program, path, operations, dir)?;
    let of = |group: &Group| count.groups.get(group).copied().unwrap_or(0) as f64;
    let asked = ASKED.map(|group| {
        let each = of(&group) / operations as f64;
        format!("{} {each:.0}", group.name())
    });
    let rest: f64 = count.each() - ASKED.iter().map(of).sum::<f64>() / operations as f64;
    let others = match path.is_judged() {
        true => "",
        false => {
            " Others work for this device: looks that find nothing are in it, so a busy machine counts more."
        }
    };
    Ok(Part {
        name,
        measured: count.each(),
        target: Target::None,
        detail: format!(
            "instructions of a read of 4 KiB: {}, the rest {rest:.0}.{others} All: {}",
            asked.join(", "),
            count.words()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_spdk_lacks_something() {
        for (_, path) in ROWS {
            let obstacle = obstacle(path);
            assert!(obstacle.is_none() || path == "spdk-4k", "{obstacle:?}");
        }
        #[cfg(not(feature = "spdk"))]
        assert!(obstacle("spdk-4k").is_some_and(|why| why.contains("without SPDK")));
    }
}
