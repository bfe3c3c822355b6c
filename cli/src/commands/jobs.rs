//! What `warmup`, `check` and `evict` have in common.

use anyhow::{Context, Result, bail};

use crate::args::PathArgs;
use crate::warm::places::{Sorted, read_list, sort};
use crate::warm::report::{Failure, JobReport};

/// Failures that are printed; `--json` has more.
const PRINTED_MAX: usize = 100;

/// A tokio runtime for one command.
///
/// # Errors
/// When it cannot be started.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a tokio runtime")
}

/// The paths of a command, by mount.
///
/// # Errors
/// When the list cannot be read, or there is no mount.
pub(super) fn sorted(args: &PathArgs) -> Result<Sorted> {
    let mut paths = args.paths.clone();
    if let Some(list) = &args.listfile {
        paths.extend(read_list(list)?);
    }
    if paths.is_empty() {
        bail!("the list names no paths");
    }
    sort(paths)
}

/// What failed, in all: named, and counted.
#[derive(Debug, Default)]
pub(super) struct Failed {
    pub named: Vec<Failure>,
    pub count: u64,
}

impl Failed {
    /// Paths in no mount.
    pub fn new(failures: Vec<Failure>) -> Self {
        Self {
            count: failures.len() as u64,
            named: failures,
        }
    }

    /// A job's, with whole paths.
    pub fn add(&mut self, report: &JobReport) {
        self.count += report.failed;
        let whole = report.failures.iter().map(|failure| Failure {
            path: whole_path(&report.mount_point, &failure.path),
            reason: failure.reason.clone(),
        });
        self.named.extend(whole);
    }

    /// Lists them on standard error.
    pub fn print(&self) {
        for failure in self.named.iter().take(PRINTED_MAX) {
            eprintln!("{}: {}", shown(&failure.path), failure.reason);
        }
        let more = self.count - self.named.len().min(PRINTED_MAX) as u64;
        if more > 0 {
            eprintln!("and {more} more");
        }
    }
}

/// A path below a mount point as a whole one.
pub(super) fn whole_path(mount_point: &str, path: &str) -> String {
    match path {
        "" => mount_point.to_owned(),
        _ => format!("{}/{path}", mount_point.trim_end_matches('/')),
    }
}

/// A path on one line: control characters as `\n`, `\t`, `\u{1b}`.
pub(super) fn shown(path: &str) -> String {
    path.chars().fold(String::new(), |mut text, c| {
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_whole_and_on_one_line() {
        assert_eq!(whole_path("/m", ""), "/m");
        assert_eq!(whole_path("/m", "a/b"), "/m/a/b");
        assert_eq!(whole_path("/", "a"), "/a");
        assert_eq!(shown("/m/ä b\n\u{1b}"), r"/m/ä b\n\u{1b}");
    }
}
