//! Figures that need a device, measured by this same program in the guest that `ci/softroce` boots.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::interrupt;
use crate::run::Run;
use crate::samples::{Part, Target};

/// What `ci/softroce` ends with where there is no guest to be had.
const NOT_TO_BE_HAD: i32 = 75;
/// The one folder into which the guest may write.
const SHARED: &str = "target/softroce";

/// What is measured in the guest.
#[derive(Debug)]
pub struct Errand<'a> {
    /// The figure.
    pub figure: &'a str,
    /// What this program is told beside its name.
    pub arguments: Vec<OsString>,
    /// Of its environment, what the guest must know.
    pub environment: Vec<(&'static str, OsString)>,
    /// How to name a device of this machine instead.
    pub instead: &'a str,
}

/// Measures a figure in the guest.
///
/// # Errors
/// When there is no guest here, or it could not measure.
pub fn measure(errand: &Errand<'_>, run: &Run) -> Result<Vec<Part>> {
    let instead = errand.instead;
    let here = env::current_dir()?;
    ensure!(
        here.join("ci/softroce").is_file(),
        "this figure boots a guest by ci/softroce: run it in the repository, or {instead}"
    );
    let parts = here.join(SHARED).join("parts.json");
    let mut command = Command::new("ci/softroce");
    command
        .arg("--run")
        .arg(env::current_exe()?)
        .args(["--no-page", "figure", errand.figure])
        .arg("--parts")
        .arg(&parts)
        .args(&errand.arguments)
        .envs(errand.environment.iter().cloned());
    if run.short {
        command.arg("--short");
    }
    println!("  booting a guest");
    let status = command.stdin(Stdio::null()).status()?;
    interrupt::check()?;
    match status.code() {
        Some(0) => {}
        Some(NOT_TO_BE_HAD) => {
            bail!("no guest is to be had here: {instead}")
        }
        _ => bail!("it was not measured in the guest ({status}); its logs are in {SHARED}"),
    }
    read(&parts)
}

/// The system where this runs: a part that was measured in the guest says so itself.
pub fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim())
}

/// Writes what was measured, for whoever booted the guest.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, parts: &[Part]) -> Result<()> {
    let parts: Vec<Value> = parts.iter().map(to_json).collect();
    fs::write(path, Value::from(parts).to_string())
        .with_context(|| format!("cannot write {}", path.display()))
}

fn read(path: &Path) -> Result<Vec<Part>> {
    let file = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("the guest wrote no {file}"))?;
    let parts: Value = serde_json::from_str(&text).with_context(|| format!("{file} is garbled"))?;
    let parts: Option<Vec<Part>> = parts
        .as_array()
        .and_then(|parts| parts.iter().map(of_json).collect());
    let parts = parts.with_context(|| format!("{file} is not as expected"))?;
    ensure!(!parts.is_empty(), "{file} holds nothing");
    Ok(parts)
}

fn to_json(part: &Part) -> Value {
    let (kind, bound) = match part.target {
        Target::AtLeast(bound) => ("at least", bound),
        Target::AtMost(bound) => ("at most", bound),
        Target::Below(bound) => ("below", bound),
        Target::None => ("none", 0.0),
    };
    json!({
        "name": part.name, "measured": part.measured, "target": kind, "bound": bound, "detail": part.detail,
    })
}

fn of_json(part: &Value) -> Option<Part> {
    let text = |name: &str| part.get(name)?.as_str().map(str::to_owned);
    let number = |name: &str| part.get(name)?.as_f64();
    let bound = number("bound")?;
    Some(Part {
        // Parts have names of the program's own; some for each run.
        name: text("name")?.leak(),
        measured: number("measured")?,
        target: match text("target")?.as_str() {
            "at least" => Target::AtLeast(bound),
            "at most" => Target::AtMost(bound),
            "below" => Target::Below(bound),
            "none" => Target::None,
            _ => return None,
        },
        detail: text("detail")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_out_of_the_guest_as_they_were() -> Result<()> {
        let targets = [
            Target::AtLeast(0.95),
            Target::AtMost(1.25),
            Target::Below(2.0),
            Target::None,
        ];
        let part = |target| Part {
            name: "p",
            measured: 0.1 + 0.2,
            target,
            detail: "a \"b\" | c".to_owned(),
        };
        let parts = targets.map(part);
        let file = tempfile::NamedTempFile::new()?;
        write(file.path(), &parts)?;
        let back = read(file.path())?;
        assert_eq!(format!("{back:?}"), format!("{parts:?}"));
        for garbled in ["", "[]", "[{}]", "{}"] {
            fs::write(file.path(), garbled)?;
            assert!(read(file.path()).is_err(), "{garbled}");
        }
        Ok(())
    }
}
