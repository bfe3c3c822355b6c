//! Tells the program by which compiler it was built: instructions are only compared with those of the same one.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let told = Command::new(compiler).arg("--version").output();
    let version = told.map_or_else(
        |_| "unknown".to_owned(),
        |told| String::from_utf8_lossy(&told.stdout).trim().to_owned(),
    );
    println!("cargo::rustc-env=FOREBAY_PERF_RUSTC={version}");
    let target = env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=FOREBAY_PERF_TARGET={target}");
    println!("cargo::rustc-env=FOREBAY_PERF_COMMIT={}", commit());
}

/// What git says in the repository that this lies in, whatever the environment says of others.
fn git(words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    for name in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_COMMON_DIR",
    ] {
        git.env_remove(name);
    }
    let told = git.args(words).output().ok()?;
    let text = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    told.status.success().then_some(text)
}

/// The commit that is built. Only optimised builds say it: others are not measured, and would be built anew with each commit.
fn commit() -> String {
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        return "no commit told".to_owned();
    }
    // Whatever changes of these makes a new build anyway, but for the log: that says which commit it is.
    for folder in [
        "../Cargo.lock",
        "../cli/src",
        "../engine/src",
        "../fuse-frontend/src",
        "../membership/src",
    ] {
        println!("cargo::rerun-if-changed={folder}");
    }
    for folder in [
        "nvme-spdk",
        "nvme-uring",
        "origin-s3",
        "perf",
        "tests",
        "transport-rdma",
        "transport-tcp",
    ] {
        println!("cargo::rerun-if-changed=../{folder}/src");
    }
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    println!("cargo::rerun-if-changed={}", log.unwrap_or_default());
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "commit unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "-uno", "--", "..", ":!../docs"]);
    match changed.is_some_and(|files| files.is_empty()) {
        true => format!("commit {commit}"),
        false => format!("commit {commit} with changes"),
    }
}
