//! The command `trace`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::record::{self, Options};
use super::show;
use crate::{interrupt, plan};

/// What is done with traces; `replay` is a scenario's run, and its caller's.
#[derive(clap::Subcommand, Debug)]
pub enum TraceCmd<M: clap::Args> {
    /// Records who reads what of a mount, and when: no contents, and no names unless they are asked for. Ends by itself (--for) or with
    /// Ctrl-C.
    Record {
        /// The mount.
        mount_point: PathBuf,
        /// The file to be made.
        #[arg(short, long)]
        output: PathBuf,
        /// How long. Default: until a signal comes.
        #[arg(long = "for", value_parser = plan::span)]
        span: Option<Duration>,
        /// With the keys of the files that are read.
        #[arg(long)]
        names: bool,
    },
    /// Replays a trace: `trace replay FILE speed=max,tier=memory` is `run trace:file=FILE,speed=max,tier=memory`.
    Replay {
        /// What `trace record` wrote.
        file: String,
        /// Settings of the scenario `trace` (`list` shows them).
        settings: Option<String>,
        /// How much is measured.
        #[command(flatten)]
        measure: M,
    },
    /// Shows what is in a trace.
    Show {
        /// What `trace record` wrote.
        file: PathBuf,
        /// Every record as a line of JSON (docs/trace-format.md).
        #[arg(long)]
        records: bool,
    },
}

/// The scenario that a replay is.
///
/// # Errors
/// When the file's name cannot be told in a scenario.
pub fn scenario(file: &str, settings: Option<&str>) -> Result<String> {
    ensure!(
        !file.contains(','),
        "{file}: a name with a comma cannot be told in a scenario: rename it"
    );
    let more = settings.map_or(String::new(), |settings| format!(",{settings}"));
    Ok(format!("trace:file={file}{more}"))
}

/// Records, and says what came of it.
///
/// # Errors
/// As [`record::record`].
pub fn record(options: &Options, span: Option<Duration>) -> Result<()> {
    let point = options.mount_point.display();
    let begun = || match span {
        Some(span) => println!("recording accesses of {point} for {} s", span.as_secs_f64()),
        None => println!("recording accesses of {point} until Ctrl-C"),
    };
    let over = |elapsed| interrupt::came() || span.is_some_and(|span| elapsed >= span);
    let recorded = record::record(options, begun, over)?;
    println!(
        "{}: {} accesses in {:.1} s, {} bytes",
        options.output.display(),
        recorded.accesses,
        recorded.elapsed.as_secs_f64(),
        recorded.bytes
    );
    if recorded.lost > 0 {
        println!(
            "{} accesses came faster than they could be told, and are lost: the trace counts them",
            recorded.lost
        );
    }
    if let Some(why) = recorded.broken {
        println!("{why}; the trace is whole up to then");
    }
    Ok(())
}

/// Shows a trace.
///
/// # Errors
/// What is wrong with it, and where.
pub fn show(file: &Path, records: bool) -> Result<()> {
    match records {
        true => show::records(file, std::io::stdout().lock()),
        false => {
            print!("{}", show::summary(file)?);
            Ok(())
        }
    }
}
