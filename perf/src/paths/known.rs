//! Counts that are kept in the repository, and when a new one is more than they allow.
//!
//! Many small steps are as bad as a large one: so the counts to compare with are written down, and a commit that needs more of them says so by
//! changing the file. They hold for one compiler, C library, valgrind and kind of processor; for others nothing is judged.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path as FilePath;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::callgrind;

/// More instructions than this, as a share, are a failure.
pub const MORE_MAX: f64 = 0.03;
/// Fewer than this are worth writing down.
const FEWER_MIN: f64 = 0.03;

/// What the counts depend on beside the code.
///
/// # Errors
/// When there is no valgrind.
pub fn toolchain() -> Result<String> {
    let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let libc = libc.map_or_else(
        |_| "C library unknown".to_owned(),
        |told| String::from_utf8_lossy(&told.stdout).trim().to_owned(),
    );
    Ok(format!(
        "{}; {}; {libc}; {}; {}",
        env!("FOREBAY_PERF_RUSTC"),
        env!("FOREBAY_PERF_TARGET"),
        callgrind::version()?,
        processor()
    ))
}

/// Which copies and checksums are chosen. What valgrind shows of a processor ends with AVX2.
fn processor() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        return "without AVX2";
    }
    "with all that valgrind knows"
}

/// Counts of pinned paths, instructions for one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// What they hold for.
    pub toolchain: String,
    /// By path.
    pub paths: BTreeMap<String, f64>,
}

impl Known {
    /// Reads a file of counts.
    ///
    /// # Errors
    /// When it cannot be read, or is no such file.
    pub fn read(file: &FilePath) -> Result<Known> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no file of counts", file.display()))
    }

    /// Writes one. What it had of other paths for the same toolchain stays, unless these are all that there are.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, file: &FilePath, is_all: bool) -> Result<()> {
        let mut all = self.clone();
        if !is_all
            && let Ok(before) = Known::read(file)
            && before.toolchain == self.toolchain
        {
            all.paths = before.paths;
            all.paths.extend(self.paths.clone());
        }
        for each in all.paths.values_mut() {
            *each = (*each * 10.0).round() / 10.0;
        }
        let text = serde_json::to_string_pretty(&all)?;
        fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
    }
}

/// Paths that are known and not among `judged`.
pub fn missed(known: &Known, judged: &[&str]) -> Vec<String> {
    let names = known.paths.keys();
    names
        .filter(|name| !judged.contains(&name.as_str()))
        .cloned()
        .collect()
}

/// How a count compares with another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// There is nothing to compare with.
    New,
    /// As much as makes no difference.
    Same(f64),
    /// So much less, as a share.
    Fewer(f64),
    /// So much more than is allowed, as a share.
    More(f64),
}

impl Change {
    /// From `before` to `now`.
    pub fn of(before: Option<f64>, now: f64) -> Change {
        let Some(before) = before.filter(|before| *before > 0.0) else {
            return Change::New;
        };
        match now / before - 1.0 {
            change if change > MORE_MAX => Change::More(change),
            change if change < -FEWER_MIN => Change::Fewer(change),
            change => Change::Same(change),
        }
    }

    /// In a few words.
    pub fn words(self) -> String {
        match self {
            Change::New => "nothing to compare with".to_owned(),
            Change::Same(change) => format!("{:+.1} %", change * 100.0),
            Change::Fewer(change) => format!("{:+.1} %, FEWER", change * 100.0),
            Change::More(change) => format!("{:+.1} %, MORE", change * 100.0),
        }
    }
}

/// Fails for a build that no counts can be known of.
///
/// # Errors
/// In a build without optimisation.
pub fn ensure_optimised() -> Result<()> {
    ensure!(
        !cfg!(debug_assertions),
        "this program was built without optimisation: its counts say nothing (cargo build --release -p forebay-perf)"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_percent_are_the_most() {
        assert_eq!(Change::of(None, 1.0), Change::New);
        assert_eq!(Change::of(Some(0.0), 1.0), Change::New);
        assert!(matches!(Change::of(Some(1000.0), 1029.0), Change::Same(_)));
        assert!(matches!(Change::of(Some(1000.0), 1031.0), Change::More(_)));
        assert!(matches!(Change::of(Some(1000.0), 969.0), Change::Fewer(_)));
        assert_eq!(Change::of(Some(1000.0), 1031.0).words(), "+3.1 %, MORE");
    }

    #[test]
    fn writing_some_keeps_the_others_of_the_same_toolchain_only() {
        let dir = tempfile::tempdir().expect("there is a place for files");
        let file = dir.path().join("counts.json");
        let of = |toolchain: &str, path: &str, each: f64| Known {
            toolchain: toolchain.to_owned(),
            paths: [(path.to_owned(), each)].into(),
        };
        of("a", "x", 10.04)
            .write(&file, false)
            .expect("it is written");
        of("a", "y", 20.0)
            .write(&file, false)
            .expect("it is written");
        let read = Known::read(&file).expect("it is read");
        assert_eq!(
            read.paths,
            [("x".to_owned(), 10.0), ("y".to_owned(), 20.0)].into()
        );
        of("b", "y", 21.0)
            .write(&file, false)
            .expect("it is written");
        assert_eq!(Known::read(&file).expect("it is read"), of("b", "y", 21.0));
        of("b", "z", 1.0).write(&file, true).expect("it is written");
        assert_eq!(Known::read(&file).expect("it is read"), of("b", "z", 1.0));
        fs::write(&file, "{}").expect("it is written");
        assert!(Known::read(&file).is_err());
    }
}
