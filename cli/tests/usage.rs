//! The binary itself: exit codes and help. (Whatever needs an S3 server is in the crate
//! `forebay-tests`.)

use std::process::{Command, Output};

fn forebay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(args)
        .output()
        .expect("the binary starts")
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for args in [
        &[][..],
        &["mount"],
        &["mount", "bucket", "/mnt"],
        &["mount", "s3://b", "/mnt", "--memory", "lots"],
        &["cat", "s3://bucket"],
        &["frobnicate"],
        &["stats", "--interval", "0"],
        &["drain", ""],
        &["stop", ""],
    ] {
        let output = forebay(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_failure_ends_with_1_and_a_message() {
    let output = forebay(&["umount", "/no/such/place"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.starts_with("forebay: ") && text.contains("/no/such"),
        "{text}"
    );
}

#[test]
fn help_documents_every_command_and_the_environment() {
    let text = String::from_utf8(forebay(&["--help"]).stdout).unwrap();
    for command in ["mount", "umount", "status", "stats", "cat"] {
        assert!(text.contains(command), "{text}");
        assert!(forebay(&[command, "--help"]).status.success());
    }
    let text = String::from_utf8(forebay(&["mount", "--help"]).stdout).unwrap();
    for part in [
        "FOREBAY_IO_TIMEOUT",
        "30s",
        "SIGBUS",
        "--no-sign-request",
        "--fuse-threads",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(
        !text.contains("--daemon"),
        "that is between the command and its daemon"
    );
}
