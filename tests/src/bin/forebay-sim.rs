//! Replays seeds of the deterministic simulator.

use std::process::ExitCode;

use clap::Parser;
use forebay_tests::sim::scenario::Scenario;
use forebay_tests::sim::world;

/// Runs the engine on simulated ports and virtual time. The same seed gives the same event hash.
#[derive(Debug, Parser)]
struct Options {
    /// The seed to run.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds to run: A..B, without B.
    #[arg(long, value_parser = parse_seeds)]
    seeds: Option<std::ops::Range<u64>>,
    /// Print the scenario and every event.
    #[arg(long)]
    verbose: bool,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
}

fn parse_seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("seeds look like 0..200")?;
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|error| format!("{text:?}: {error}"))
    };
    Ok(number(from)?..number(to)?)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let seeds = match (options.seed, options.seeds.clone()) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, Some(seeds)) => seeds,
        (None, None) => 0..1,
    };
    let mut failures = 0;
    for seed in seeds {
        let scenario = Scenario::from_seed(seed);
        if options.verbose {
            println!("{scenario:#?}");
        }
        match world::run(scenario, options.verbose) {
            Ok(passed) => println!(
                "seed {seed} hash {:016x} events {} ok",
                passed.hash, passed.events
            ),
            Err(failed) => {
                println!("{failed}");
                failures += 1;
                if !options.keep_going {
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
