//! Builds of revisions: in a tree of their own, with the third-party artefacts that the repository's own build has.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::interrupt;

/// Names this very program, which is not built.
pub const THIS: &str = ".";
/// What makes git take another repository than the one where it runs (hooks set them).
const ENVIRONMENT: [&str; 6] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
];
const PROGRAMS: [&str; 2] = ["forebay-perf", "forebay"];

/// A build of a revision.
#[derive(Clone, Debug)]
pub struct Build {
    /// As the user named it, and its commit.
    pub name: String,
    /// Its forebay-perf.
    pub program: PathBuf,
}

/// What a folder of builds is made from.
#[derive(Debug)]
struct Place {
    repository: PathBuf,
    /// Where builds are kept.
    ab: PathBuf,
    /// What the repository's own optimised build made.
    release: PathBuf,
}

/// Builds the revision of the repository that the working directory is in; one that was built before is taken from there.
///
/// # Errors
/// When there is no such revision, or it does not build.
pub fn build(revision: &str) -> Result<Build> {
    if revision == THIS {
        return Ok(Build {
            name: "this program".to_owned(),
            program: std::env::current_exe().context("this program has no name")?,
        });
    }
    let place = Place::here()?;
    let commit = place.commit(revision)?;
    let kept = place.ab.join("bin").join(&commit);
    let program = kept.join(PROGRAMS[0]);
    let short = &commit[..12];
    if !program.exists() {
        println!("  building {revision} ({short})");
        place.check_out(&commit)?;
        place.seed()?;
        place.compile(revision)?;
        fs::create_dir_all(&kept)?;
        // The program itself last: while it is not there, nothing is.
        for name in PROGRAMS.into_iter().rev() {
            let from = place.ab.join("target/release").join(name);
            fs::copy(&from, kept.join(name))
                .with_context(|| format!("{revision} built no {}", from.display()))?;
        }
    }
    Ok(Build {
        name: format!("{revision} ({short})"),
        program,
    })
}

/// What git says to this.
fn git(at: &Path, words: &[&OsStr]) -> Result<PathBuf> {
    let mut git = Command::new("git");
    for name in ENVIRONMENT {
        git.env_remove(name);
    }
    let said = git
        .arg("-C")
        .arg(at)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("cannot run git")?;
    if !said.status.success() {
        bail!("{}", String::from_utf8_lossy(&said.stderr).trim());
    }
    Ok(PathBuf::from(OsStr::from_bytes(
        said.stdout.trim_ascii_end(),
    )))
}

impl Place {
    fn here() -> Result<Place> {
        let here = std::env::current_dir()?;
        let top = git(&here, &["rev-parse".as_ref(), "--show-toplevel".as_ref()])
            .context("revisions are built of the repository that the working directory is in")?;
        ensure!(
            top.join("perf/Cargo.toml").is_file(),
            "{} is not Forebay's repository",
            top.display()
        );
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| top.join("target"), |target| here.join(target));
        Ok(Place {
            ab: target.join("ab"),
            release: target.join("release"),
            repository: top,
        })
    }

    fn commit(&self, revision: &str) -> Result<String> {
        // A name that begins with a dash would be an option.
        let wanted = format!("{revision}^{{commit}}");
        let words = ["rev-parse", "--verify", "--quiet", "--end-of-options"];
        let mut words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        words.push(wanted.as_ref());
        let commit = git(&self.repository, &words).ok();
        let commit = commit.and_then(|commit| commit.into_os_string().into_string().ok());
        commit.filter(|commit| commit.len() >= 40).with_context(|| {
            format!(
                "no revision {revision} in {} (a shallow clone has few: git fetch --deepen 1 brings one more)",
                self.repository.display()
            )
        })
    }

    /// The same tree for all revisions: files that do not change stay as old as they are, so cargo builds only what changed.
    fn check_out(&self, commit: &str) -> Result<()> {
        let tree = self.tree();
        if !tree.join(".git").exists() {
            fs::create_dir_all(&tree)?;
            git(&tree, &["init".as_ref(), "--quiet".as_ref()])?;
        }
        // It borrows the repository's objects, and leaves nothing there.
        let objects = [
            "rev-parse",
            "--path-format=absolute",
            "--git-path",
            "objects",
        ];
        let objects: Vec<&OsStr> = objects.iter().map(AsRef::as_ref).collect();
        let mut objects = git(&self.repository, &objects)?.into_os_string();
        objects.push("\n");
        fs::write(
            tree.join(".git/objects/info/alternates"),
            objects.as_bytes(),
        )?;
        let words = ["checkout", "--quiet", "--force", "--detach", commit];
        // By name: where `.git` is none, git would take the repository around it, and its uncommitted work would be gone.
        let mut all: Vec<&OsStr> = vec!["--git-dir=.git".as_ref(), "--work-tree=.".as_ref()];
        all.extend(words.iter().map(AsRef::<OsStr>::as_ref));
        git(&tree, &all).with_context(|| format!("cannot check out {commit}"))?;
        Ok(())
    }

    fn tree(&self) -> PathBuf {
        self.ab.join("tree")
    }

    /// Third-party artefacts do not depend on where the repository lies: cargo takes what it finds and builds the rest.
    fn seed(&self) -> Result<()> {
        let to = self.ab.join("target/release");
        if to.exists() {
            return Ok(());
        }
        for folder in ["build", "deps", ".fingerprint"] {
            link(&self.release.join(folder), &to.join(folder))?;
        }
        Ok(())
    }

    fn compile(&self, revision: &str) -> Result<()> {
        let status = Command::new("cargo")
            .current_dir(self.tree())
            .env("CARGO_TARGET_DIR", self.ab.join("target"))
            .args(["build", "--release", "--locked", "--bins"])
            .args(["-p", "forebay-perf", "-p", "forebay-cli"])
            .stdin(Stdio::null())
            .status()
            .context("cannot run cargo")?;
        interrupt::check()?;
        ensure!(status.success(), "{revision} does not build ({status})");
        Ok(())
    }
}

/// Whether cargo makes it of a member of the workspace: what is made of one tree is of no use to another.
fn is_own(name: &OsStr) -> bool {
    name.as_bytes()
        .windows(b"forebay".len())
        .any(|part| part == b"forebay")
}

/// Links what is not our own from one folder into another; a folder that is not there holds nothing.
fn link(from: &Path, to: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(from) else {
        return Ok(());
    };
    fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if is_own(&name) {
            continue;
        }
        let to = to.join(name);
        if kind.is_dir() {
            link(&entry.path(), &to)?;
        } else if kind.is_file() && fs::hard_link(entry.path(), &to).is_err() {
            fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_party_artefacts_are_shared_and_our_own_are_not() {
        let dir = tempfile::tempdir().expect("there is a place for files");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("crc-fast-1")).expect("it is made");
        fs::create_dir_all(from.join("forebay-engine-1")).expect("it is made");
        for file in [
            "crc-fast-1/lib",
            "forebay-engine-1/lib",
            "libforebay_cli.rlib",
        ] {
            fs::write(from.join(file), file).expect("it is written");
        }
        link(&from, &to).expect("it is linked");
        assert!(to.join("crc-fast-1/lib").is_file());
        assert!(!to.join("forebay-engine-1").exists() && !to.join("libforebay_cli.rlib").exists());
        link(&dir.path().join("nowhere"), &to).expect("nothing is no fault");
    }

    #[test]
    fn a_revision_that_is_not_there_is_told() {
        let place = Place::here().expect("tests run in the repository");
        for wrong in ["no-such-branch", "--all", ""] {
            let refused = place.commit(wrong).expect_err("there is none");
            assert!(refused.to_string().contains("--deepen"), "{refused:#}");
        }
        assert!(place.commit("HEAD").is_ok_and(|commit| commit.len() >= 40));
    }
}
