//! `forebay doctor`, and what daemons do about a limit by themselves.

use std::process::Command;

use super::support::{Place, eventually, json};

#[test]
fn the_doctor_tells_of_this_machine_and_fails_when_there_is_a_problem() {
    let place = Place::new();
    let ended = place.run(&["doctor", "--json"]);
    let findings = json(&ended.text());
    let findings = findings.as_array().expect("a list");
    for area in ["fuse", "io_uring", "limits", "memory", "rdma"] {
        assert!(
            findings.iter().any(|finding| finding["area"] == area),
            "nothing of {area}: {findings:?}"
        );
    }
    let mut problems = 0;
    for finding in findings {
        let verdict = finding["verdict"].as_str().expect("a verdict");
        problems += u32::from(verdict == "problem");
        assert_eq!(
            matches!(verdict, "warning" | "problem"),
            finding["advice"].is_string(),
            "{finding}"
        );
    }
    assert_eq!(ended.code, Some((problems > 0).into()), "{findings:?}");
    // A device that is not there is a problem everywhere.
    let named = place.run(&["doctor", "--rdma-device", "nonsense_0"]);
    let named = named.failed(&["PROBLEM above"]);
    // So is an address that is another machine's, and the rest is told all the same.
    let elsewhere = place.run(&["doctor", "--group-ip", "192.0.2.1"]);
    let text = elsewhere.failed(&["PROBLEM above"]).text();
    for part in ["names no address of this machine", "io_uring"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(named.text().contains("nonsense_0") || named.text().contains("--rdma-device"));
}

#[test]
fn a_member_opens_as_many_files_as_it_may() {
    let place = Place::new();
    let plain = place.command(&[
        "serve",
        "--background",
        "--cache-group",
        "g",
        "--node-id",
        "limited",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "128",
        "--cores",
        "1",
    ]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -Sn 256 && exec \"$0\" \"$@\""])
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    assert!(limited.status().expect("sh").success());
    let status = json(&place.run(&["status", "serve:g", "--json"]).ok().text());
    let pid = status["pid"].as_u64().expect("a pid");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<&str> = line.expect("open files").split_whitespace().collect();
    assert_ne!(numbers[4], "256", "this test's own limit says nothing");
    assert_eq!(numbers[3], numbers[4]);
    place.run(&["stop", "g"]).ok();
    eventually("the member is gone", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    });
}
