//! The program `forebay-perf`.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use forebay_perf::figures::Figure;
use forebay_perf::{null_server, report, samples};

/// Measures Forebay's figures. A missed target is reported, and no failure; what could not be
/// measured is a failure.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Cmd,
    /// The page whose table is updated.
    #[arg(long, global = true, default_value = "docs/performance.md")]
    page: PathBuf,
    /// Leave the page alone.
    #[arg(long, global = true)]
    no_page: bool,
}

#[derive(Subcommand)]
enum Cmd {
    /// Measures one figure; the last line is `NAME measured target ok|short`.
    Figure {
        /// fuse-null, amplification, one-fetch-local or idle.
        name: String,
    },
    /// Measures all figures, and ends with all their lines.
    Figures,
    /// The yardstick of fuse-null, until it is unmounted.
    #[command(hide = true)]
    NullServer {
        /// The mount point.
        point: PathBuf,
        /// The size of its file.
        size_bytes: u64,
    },
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("forebay-perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything was measured.
fn run(args: &Args) -> Result<bool> {
    match &args.command {
        Cmd::Figure { name } => {
            println!("{}", measure(Figure::by_name(name)?, args)?);
            Ok(true)
        }
        Cmd::Figures => {
            // One figure's trouble does not hide the others.
            let lines: Vec<Result<String>> = Figure::ALL
                .into_iter()
                .map(|figure| measure(figure, args))
                .collect();
            println!();
            for (figure, line) in Figure::ALL.into_iter().zip(&lines) {
                match line {
                    Ok(line) => println!("{line}"),
                    Err(error) => println!("{} not measured: {error:#}", figure.name()),
                }
            }
            Ok(lines.iter().all(Result::is_ok))
        }
        Cmd::NullServer { point, size_bytes } => {
            null_server::serve(point, *size_bytes).map(|()| true)
        }
    }
}

fn measure(figure: Figure, args: &Args) -> Result<String> {
    println!("{}:", figure.name());
    let parts = figure.measure()?;
    for part in &parts {
        println!("  {}: {}", part.name, part.detail);
    }
    if !args.no_page {
        report::update(&args.page, figure.name(), &parts)?;
    }
    Ok(samples::closing_line(figure.name(), &parts))
}
