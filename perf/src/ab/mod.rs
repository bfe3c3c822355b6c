//! `forebay-perf ab`: two builds on one machine. Times in turns, with a verdict outside of the noise; instructions of pinned paths,
//! which are judged.

pub mod builds;
mod counted;
mod side;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use self::builds::Build;
use self::counted::{Announced, Said};
use self::side::BuildSide;
use crate::paths::callgrind::{self, Count};
use crate::paths::known::Change;
use crate::paths::{Path, known};
use crate::plan::Plan;
use crate::run::Run;
use crate::scenario::Scenario;
use crate::side::Side;
use crate::{interrupt, session, table};

/// Short, without files on disk, and each of another layer.
const SCENARIOS: [&str; 3] = [
    "engine:tier=memory,data=64MiB",
    "engine:tier=memory,block=1MiB,depth=4,data=256MiB",
    "transport:via=tcp,block=4KiB,depth=32",
];

/// Which builds, and how much of what.
#[derive(Debug, clap::Args)]
pub struct AbArgs {
    /// A revision: commit, branch, tag. `.`: this program as it is.
    before: String,
    /// The one that is compared with it.
    #[arg(default_value = builds::THIS)]
    after: String,
    /// A scenario of which times are told (may be given several times). Default: reads from memory and fetches over TCP.
    #[arg(long = "scenario")]
    scenarios: Vec<String>,
    /// How long operations begin in a span.
    #[arg(long, value_parser = crate::plan::span, default_value = "1s")]
    span: Duration,
    /// The same before it, in each span anew.
    #[arg(long, value_parser = crate::plan::span, default_value = "300ms")]
    warm_up: Duration,
    /// Spans of each side; a verdict takes four.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,
    /// Chooses places.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Count instructions only.
    #[arg(long)]
    no_times: bool,
    /// Tell times only.
    #[arg(long, conflicts_with = "no_times")]
    no_counts: bool,
    /// A pinned path of which instructions are counted (may be given several times). Default: all that are judged.
    #[arg(long = "path")]
    paths: Vec<String>,
    /// The repository's file of counts. What it says of a path, and did not in the first revision, is an increase that is meant, and
    /// no failure.
    #[arg(long)]
    known: Option<PathBuf>,
    /// Counts of the second build that `count --json` wrote, so that they are not made again.
    #[arg(long)]
    counted: Option<PathBuf>,
    /// As CI asks: whatever goes wrong on the side of the first revision alone, and with times, is told as SKIPPED, and no failure.
    #[arg(long)]
    gate: bool,
    /// Write the outcome of the last scenario here as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Compares. False when a pinned path takes over 3 % more instructions than before.
///
/// # Errors
/// When something cannot be built, run or counted.
pub fn compare(args: &AbArgs, run: &Run) -> Result<bool> {
    let usual = SCENARIOS.map(str::to_owned);
    let named = match args.scenarios.is_empty() {
        true => &usual[..],
        false => &args.scenarios,
    };
    // Builds are given what the user wrote: one from before a setting refuses what it does not know.
    let scenarios = named
        .iter()
        .map(|text| Ok((text.as_str(), text.parse::<Scenario>()?)));
    let scenarios: Vec<(&str, Scenario)> =
        scenarios.collect::<Result<_>>().context("--scenario")?;
    let paths = paths(&args.paths)?;
    match prepared(args) {
        Ok((builds, announced)) => {
            let right = match args.no_counts {
                true => true,
                false => match counts(&builds, &paths, args, announced.as_ref(), run) {
                    Err(error) if args.gate => {
                        interrupt::check()?;
                        println!("SKIPPED: instructions of two builds: {error:#}");
                        true
                    }
                    done => done?,
                },
            };
            for (text, scenario) in scenarios.iter().filter(|_| !args.no_times) {
                interrupt::check()?;
                match times((text, scenario), &builds, args, run) {
                    Err(error) if args.gate => {
                        interrupt::check()?;
                        println!("SKIPPED: times of two builds, {text}: {error:#}");
                    }
                    done => done?,
                }
            }
            Ok(right)
        }
        Err(error) if args.gate => {
            interrupt::check()?;
            println!("SKIPPED: two builds are not compared: {error:#}");
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Both builds, and what the file of counts announces.
fn prepared(args: &AbArgs) -> Result<([Build; 2], Option<Announced>)> {
    if !args.no_counts {
        // Before anything is built.
        callgrind::version()?;
        known::ensure_optimised()?;
    }
    if [&args.before, &args.after].contains(&&builds::THIS.to_owned()) {
        builds::ensure_same_compiler()?;
    }
    let announced = args.known.as_deref();
    let announced = announced
        .map(|file| Announced::read(file, &args.before))
        .transpose()?;
    let builds = [builds::build(&args.before)?, builds::build(&args.after)?];
    if builds[0].program == builds[1].program {
        bail!("{} and {} are one build", args.before, args.after);
    }
    Ok((builds, announced))
}

fn paths(names: &[String]) -> Result<Vec<&'static Path>> {
    match names.is_empty() {
        true => Ok(Path::all().filter(|path| path.is_judged()).collect()),
        false => names.iter().map(|name| Path::by_name(name)).collect(),
    }
}

fn times(
    (text, scenario): (&str, &Scenario),
    builds: &[Build; 2],
    args: &AbArgs,
    run: &Run,
) -> Result<()> {
    println!("\n{scenario}");
    let plan = Plan {
        run: run.clone(),
        repeats: args.repeats as usize,
        span: args.span,
        warm_up: args.warm_up,
        seed: args.seed,
        ceilings: false,
    };
    // Who comes second is what is asked about: verdicts are on the first against the others.
    let sides = builds.iter().rev().map(|build| {
        let side: Box<dyn Side> = Box::new(BuildSide::new(build, text, &plan));
        side
    });
    let outcome = session::run(scenario, sides.collect(), &plan)?;
    print!("{}", table::outcome(&outcome));
    match &args.json {
        Some(file) => outcome.write(file),
        None => Ok(()),
    }
}

/// Counts each path by both builds.
fn counts(
    builds: &[Build; 2],
    paths: &[&Path],
    args: &AbArgs,
    announced: Option<&Announced>,
    run: &Run,
) -> Result<bool> {
    let dir = run.scratch_anywhere()?;
    let counted = args.counted.as_deref().map(counted::read).transpose()?;
    println!(
        "instructions of an operation, {} then {}",
        builds[0].name, builds[1].name
    );
    let mut said = Said::default();
    for path in paths {
        let count =
            |build: &Build| callgrind::count(&build.program, path, path.operations, dir.path());
        let after = match &counted {
            None => count(&builds[1]),
            Some(counted) => {
                let there = counted.get(path.name).cloned();
                there.ok_or_else(|| anyhow!("--counted does not have it"))
            }
        };
        let before = count(&builds[0]);
        interrupt::check()?;
        said.path(path, (before, after), announced);
    }
    Ok(said.conclude())
}

/// Whether that is an older build's word for a path that it does not have.
fn does_not_know(error: &str) -> bool {
    error.contains("no pinned path") || error.contains("unrecognized subcommand")
}

fn line(path: &Path, before: Option<&Count>, after: &Count, change: Change) -> String {
    let Some(before) = before else {
        return format!("{}: {:.1} ({})", path.name, after.each(), change.words());
    };
    let mut text = format!(
        "{}: {:.1}, {:.1} ({})",
        path.name,
        before.each(),
        after.each(),
        change.words()
    );
    // Where it comes from, if it is worth telling.
    if !matches!(change, Change::Same(_)) {
        for group in crate::paths::Group::ALL {
            let of = |count: &Count| {
                let sum = count.groups.get(&group).copied().unwrap_or(0);
                sum as f64 / count.operations as f64
            };
            let difference = of(after) - of(before);
            if difference.abs() > 0.005 * before.each() {
                text += &format!(", {} {difference:+.1}", group.name());
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_scenarios_and_paths_are_right() {
        for scenario in SCENARIOS {
            scenario.parse::<Scenario>().expect("it is a scenario");
        }
        assert!(paths(&[]).is_ok_and(|paths| paths.iter().all(|path| path.is_judged())));
        assert!(paths(&["hit-5k".to_owned()]).is_err());
    }

    #[test]
    fn a_build_from_before_a_path_is_told_from_one_that_fails() {
        assert!(does_not_know("x: error: unrecognized subcommand 'path'"));
        assert!(does_not_know("no pinned path y; there are: x"));
        assert!(!does_not_know("hit-4k under valgrind: Killed"));
    }

    #[test]
    fn a_change_is_told_with_where_it_comes_from() {
        let count = |engine, copy| Count {
            operations: 10,
            instructions: engine + copy,
            groups: [
                (crate::paths::Group::Engine, engine),
                (crate::paths::Group::Copy, copy),
            ]
            .into(),
            functions: Vec::new(),
        };
        let (before, after) = (count(600, 400), count(650, 400));
        let path = Path::by_name("hit-4k").expect("it is there");
        let change = Change::of(Some(before.each()), after.each());
        assert_eq!(
            line(path, Some(&before), &after, change),
            "hit-4k: 100.0, 105.0 (+5.0 %, MORE), engine +5.0"
        );
    }
}
