//! `forebay-perf ab` where the revision before cannot be had: an error, and for who asks as CI does a SKIPPED that fails nothing. The
//! repository around it is never touched, whatever the environment says.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn git(at: &Path, words: &[&str]) -> String {
    let mut git = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    let said = git
        .arg("-C")
        .arg(at)
        .args(words)
        .output()
        .expect("git runs");
    assert!(said.status.success(), "{words:?}: {said:?}");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// A repository that looks like Forebay's and does not build, with work that is not committed.
fn repository(at: &Path) {
    git(at, &["init", "--quiet", "--initial-branch=work"]);
    for (name, value) in [("user.name", "t"), ("user.email", "t@example.org")] {
        git(at, &["config", name, value]);
    }
    fs::create_dir(at.join("perf")).expect("it is made");
    for number in ["1", "2"] {
        fs::write(at.join("perf/Cargo.toml"), number).expect("it is written");
        git(at, &["add", "perf"]);
        git(at, &["commit", "--quiet", "-m", number]);
    }
    fs::write(at.join("perf/Cargo.toml"), "staged").expect("it is written");
    git(at, &["add", "perf"]);
    fs::write(at.join("perf/Cargo.toml"), "not committed").expect("it is written");
}

/// As a hook of git's would run it.
fn ab(at: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-perf"))
        .args(["ab", "--no-counts"])
        .args(arguments)
        .arg("--dir")
        .arg(at.join("files"))
        .current_dir(at)
        .env_remove("CARGO_TARGET_DIR")
        .env("GIT_DIR", at.join(".git"))
        .env("GIT_WORK_TREE", at)
        .env("GIT_INDEX_FILE", at.join(".git/index"))
        .output()
        .expect("the program runs")
}

#[test]
fn a_revision_that_cannot_be_had_is_an_error_or_skipped_and_the_repository_is_left_alone() {
    if Command::new("git").arg("--version").output().is_err() {
        println!("SKIPPED: ab in a repository: git is not installed");
        return;
    }
    // Not below this repository: cargo looks around.
    let dir = tempfile::tempdir().expect("there is a place for files");
    let at = dir.path();
    repository(at);
    let state = || {
        let file = fs::read_to_string(at.join("perf/Cargo.toml")).expect("it is there");
        let head = git(at, &["symbolic-ref", "HEAD"]);
        (file, head, git(at, &["write-tree"]))
    };
    let untouched = state();
    for (revision, wanted) in [
        ("HEAD^", "HEAD^ does not build"),
        ("HEAD~7", "a shallow clone has few"),
    ] {
        let refused = ab(at, &[revision]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted), "{said}");
        let skipped = ab(at, &[revision, "--gate"]);
        let said = String::from_utf8_lossy(&skipped.stdout).into_owned();
        assert_eq!(skipped.status.code(), Some(0), "{said}");
        let line = said.lines().find(|line| line.starts_with("SKIPPED: "));
        assert!(line.is_some_and(|line| line.contains(wanted)), "{said}");
        assert_eq!(state(), untouched);
    }
    // What was checked out is the revision, in a tree of its own.
    let tree = fs::read_to_string(at.join("target/ab/tree/perf/Cargo.toml"));
    assert_eq!(tree.ok().as_deref(), Some("1"));
}
