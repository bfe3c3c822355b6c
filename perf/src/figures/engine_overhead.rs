//! `engine-overhead`: instructions of a hit of 4 KiB, from memory and from devices, and whose they are. Counted by valgrind: the same
//! on a quiet machine and on a busy one.

use anyhow::{Context, Result};

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

pub(super) fn measure(run: &Run) -> Result<Vec<Part>> {
    known::ensure_optimised()?;
    let toolchain = known::toolchain()?;
    println!("  {toolchain}");
    let dir = run.scratch()?;
    let program = std::env::current_exe().context("this program has no name")?;
    let mut parts = Vec::new();
    for (name, path) in ROWS {
        let Ok(path) = Path::by_name(path) else {
            println!(
                "SKIPPED: engine-overhead {name}: this program was built without SPDK (make figure does, where pkg-config finds it)"
            );
            continue;
        };
        let operations = if run.short { 640 } else { path.operations };
        let count = callgrind::count(&program, path, operations, dir.path())?;
        let of = |group: &Group| count.groups.get(group).copied().unwrap_or(0) as f64;
        let asked = ASKED.map(|group| {
            let each = of(&group) / operations as f64;
            format!("{} {each:.0}", group.name())
        });
        let rest: f64 = count.each() - ASKED.iter().map(of).sum::<f64>() / operations as f64;
        parts.push(Part {
            name,
            measured: count.each(),
            target: Target::None,
            detail: format!(
                "instructions of a read of 4 KiB: {}, the rest {rest:.0}. All: {}. {toolchain}",
                asked.join(", "),
                count.words()
            ),
        });
    }
    Ok(parts)
}
