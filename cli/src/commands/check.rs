//! `forebay check`: what of files is cached.

use anyhow::{Result, bail};
use serde::Serialize;

use super::jobs::{Failed, runtime, shown, sorted, whole_path};
use crate::args::PathArgs;
use crate::output::{json, percent, print};
use crate::units::Bytes;
use crate::warm::report::{CheckedFile, Failure, JobReport, JobRequest, PARALLEL_DEFAULT, Work};

/// What a check came to.
#[derive(Debug, Default, Serialize)]
struct Summary {
    files: u64,
    bytes: u64,
    cached_bytes: u64,
    full: u64,
    partial: u64,
    none: u64,
    left_out: u64,
    failed: u64,
    failures: Vec<Failure>,
}

impl Summary {
    fn add(&mut self, report: &JobReport) {
        self.files += report.files;
        self.bytes += report.bytes;
        self.cached_bytes += report.cached_bytes;
        self.full += report.full;
        self.partial += report.partial;
        self.none += report.none;
        self.left_out += report.left_out;
    }

    fn text(&self) -> String {
        format!(
            "{} of {} cached ({}); {} files: {} full, {} partial, {} none; {} failed\n",
            Bytes(self.cached_bytes),
            Bytes(self.bytes),
            percent(self.cached_bytes, self.bytes),
            self.files,
            self.full,
            self.partial,
            self.none,
            self.failed
        )
    }
}

/// Prints files as they come: a check of millions keeps none of them.
struct Printer {
    json: bool,
    files: u64,
    pending: String,
}

impl Printer {
    fn file(&mut self, mount_point: &str, mut file: CheckedFile) -> Result<()> {
        file.path = whole_path(mount_point, &file.path);
        let line = match self.json {
            true => {
                let comma = if self.files == 0 { "" } else { "," };
                format!("{comma}\n{}", json(&file, false)?.trim_end())
            }
            false => format!("{} {}\n", file.state, shown(&file.path)),
        };
        self.files += 1;
        self.pending.push_str(&line);
        match self.pending.len() > 32 << 10 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match print(&std::mem::take(&mut self.pending))? {
            true => Ok(()),
            false => bail!("the reader of the check is gone"),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When not all of it is cached.
pub fn run(args: &PathArgs) -> Result<()> {
    let sorted = sorted(args)?;
    let mut failed = Failed::new(sorted.failures);
    let mut summary = Summary::default();
    let mut printer = Printer {
        json: args.json,
        files: 0,
        pending: String::new(),
    };
    if args.json {
        printer.pending.push_str("{\"files\":[");
    }
    let runtime = runtime()?;
    for place in sorted.places {
        let request = JobRequest {
            work: Work::Check,
            paths: place.paths,
            parallel: PARALLEL_DEFAULT,
            attended: false,
        };
        let mount_point = place.mount_point.display().to_string();
        let checked = place
            .daemon
            .check(&request, |file| printer.file(&mount_point, file));
        let report = runtime.block_on(checked)?;
        summary.add(&report);
        failed.add(&report);
    }
    let (missing, count) = (summary.partial + summary.none, failed.count);
    summary.failed = count;
    if args.json {
        summary.failures = std::mem::take(&mut failed.named);
        let text = json(&summary, false)?;
        printer
            .pending
            .push_str(&format!("\n],\"summary\":{}}}\n", text.trim_end()));
    } else {
        printer.pending.push_str(&summary.text());
    }
    printer.flush()?;
    if !args.json {
        failed.print();
    }
    match (missing, count) {
        (0, 0) => Ok(()),
        (missing, 0) => bail!("{missing} files are not cached, or not all of them"),
        (missing, count) => bail!("{missing} files are not all cached, {count} paths failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_printed_one_a_line_whatever_their_names() {
        let mut printer = Printer {
            json: false,
            files: 0,
            pending: String::new(),
        };
        for (path, state) in [("a b", 0), ("x\ny", 2)] {
            let file = CheckedFile {
                path: path.into(),
                state,
                bytes: 1,
                cached_bytes: 0,
            };
            printer.file("/m", file).unwrap();
        }
        assert_eq!(printer.pending, "0 /m/a b\n2 /m/x\\ny\n");
    }
}
