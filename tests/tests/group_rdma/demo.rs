//! `make demo` in miniature, with members that speak RDMA.

use std::process::Command;

use super::links::device;

#[test]
fn the_demo_runs_over_verbs() {
    let Some((ip, flags)) = device() else { return };
    // As `ci/demo --small --transport rdma` does.
    let done = Command::new(env!("CARGO_BIN_EXE_forebay-demo"))
        .args(["--small", "--transport", "rdma"])
        .args(&flags)
        .env("FOREBAY_BIN", env!("CARGO_BIN_EXE_forebay-under-test"))
        .output()
        .expect("the demo starts");
    let told = String::from_utf8_lossy(&done.stdout);
    let complaints = String::from_utf8_lossy(&done.stderr);
    println!("{told}\n{complaints}");
    assert!(done.status.success(), "at {ip}");
    assert!(told.contains("bytes of those came over RDMA"));
    assert!(told.contains("demo: passed"));
}
