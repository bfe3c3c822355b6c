//! `simulate`: the same again, as its schema says, what it must predict, and against real members.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

// Of both halves this needs one.
#[allow(dead_code)]
mod schema;

const SCHEMA: &str = include_str!("../../docs/simulate-schema.json");
const CONSTANTS: &str = r#"{"source":"imagined","delay_us":25,"link_bytes_per_s":3e9,"origin_latency_us":15000,
    "origin_bytes_per_s":1e8,"read_us":30,"read_bytes_per_s":5e9}"#;

/// Runs `simulate` with made-up constants; what it wrote, or what it said.
fn simulated(arguments: &[&str]) -> Result<Value, String> {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let (constants, json) = (dir.path().join("constants"), dir.path().join("json"));
    std::fs::write(&constants, CONSTANTS).expect("it can be written");
    let output = Command::new(env!("CARGO_BIN_EXE_forebay-perf"))
        .arg("simulate")
        .args(arguments)
        .args(["--dir", env!("CARGO_TARGET_TMPDIR"), "--constants"])
        .arg(&constants)
        .arg("--json")
        .arg(&json)
        .output()
        .expect("the program runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("constants (imagined): 25.0 us"), "{said}");
    let written = std::fs::read_to_string(&json).expect("it was written");
    let mut value: Value = serde_json::from_str(&written).expect("it is JSON");
    schema::check_by(SCHEMA, &value).unwrap_or_else(|fault| panic!("{fault}\n{written}"));
    for result in value["results"].as_array_mut().into_iter().flatten() {
        result["wall_s"] = 0.into();
    }
    Ok(value)
}

#[test]
fn a_seed_gives_the_same_again_and_counts_are_what_they_must_be() {
    let all = || simulated(&["--nodes", "8,32"]).expect("it runs");
    let value = all();
    assert_eq!(value, all());
    let other = simulated(&["--nodes", "8,32", "--seed", "2"]).expect("it runs");
    assert_ne!(value["results"], other["results"]);
    let results = value["results"].as_array().expect("a list");
    assert_eq!(results.len(), 8);
    for result in results {
        let number = |name: &str| result[name].as_f64().expect("a number");
        let members = number("members");
        assert_eq!(number("failed"), 0.0, "{result}");
        match result["situation"].as_str() {
            // Each byte once from the origin, whoever asks.
            Some("cold") => {
                assert_eq!(number("origin_bytes"), number("data_bytes"), "{result}");
                let first = result["latency"]["max_us"].as_f64();
                assert!(first.is_some_and(|us| us > 15_000.0), "{result}");
            }
            Some("steady" | "join") => {
                assert_eq!(number("origin_bytes"), 0.0, "{result}");
                assert_eq!(number("reads"), 32.0 * members, "{result}");
            }
            // What the lost one held comes again; who asked it waited for long.
            _ => {
                let longest = result["latency"]["max_us"].as_f64();
                assert!(longest.is_some_and(|us| us > 1e6), "{result}");
                assert!(
                    number("origin_bytes") < number("data_bytes") / 4.0,
                    "{result}"
                );
            }
        }
        // No link carries more than it can, and some load is on it.
        for way in ["sent", "received"] {
            let load = |name: &str| result[way][name].as_f64().expect("a number");
            assert!(load("link_share") <= 1.0 && load("hot") >= 1.0, "{result}");
        }
    }
}

#[test]
fn slower_links_take_longer() {
    let elapsed = |block: &str| {
        let more = ["--nodes", "8", "--situation", "steady", "--block", block];
        let value = simulated(&more).expect("it runs");
        value["results"][0]["elapsed_s"].as_f64().expect("a number")
    };
    // 32 reads of 1 MiB each, at 3 GB/s and 5 GB/s, and some 80 us: less is not possible.
    let (small, large) = (elapsed("4KiB"), elapsed("1MiB"));
    assert!(large > 3.0 * small, "{small} and {large}");
    let least = 32.0 * 1_048_576.0 * 7.0 / 8.0 / 5e9;
    assert!(large > least, "{large}");
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    for (arguments, wanted) in [
        (&["--nodes", "1"][..], "2..=1000"),
        (
            &["--nodes", "8", "--situation", "flood"],
            "cold, steady, join or loss",
        ),
        (&["--nodes", "8", "--block", "5000B"], "in whole 4KiB"),
        (&["--nodes", "8", "--data", "4KiB"], "--data may be"),
        (
            &["--nodes", "8", "--memory", "1MiB"],
            "--memory may be 16MiB",
        ),
        (
            &[
                "--nodes",
                "1000",
                "--situation",
                "cold",
                "--data",
                "1GiB",
                "--memory",
                "64GiB",
            ],
            "fewer --nodes, or less --data",
        ),
    ] {
        let said = simulated(arguments).expect_err("it is refused");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
}

#[test]
fn origin_bytes_of_real_members_are_as_predicted() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("SKIPPED: the simulator against real members: no /dev/fuse, or no root");
        return;
    }
    let more = ["--nodes", "2", "--situation", "steady", "--check"];
    let value = simulated(&more).expect("it runs");
    let check = value["check"].as_array().expect("it was asked for");
    assert_eq!(check.len(), 2);
    for work in check {
        assert_eq!(work["origin_agrees"], true, "{work}");
        let factor = work["throughput_factor"].as_f64();
        assert!(factor.is_some_and(|factor| factor > 0.0), "{work}");
    }
    assert_eq!(check[0]["real_origin_bytes"], 128 << 20);
}
