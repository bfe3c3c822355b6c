//! A process is killed at writes of a script, on a namespace of a target that lives on.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use forebay_tests::disk::crash;

use crate::bench::{open, target};

const SEED: u64 = 3;
/// Each death starts SPDK anew: only some are tried, spread over the script.
const DEATHS: u64 = 24;
/// Past this no more deaths are tried.
const TIME_MAX: Duration = Duration::from_secs(60);
/// SIGKILL.
const KILLED: i32 = 9;

fn run(transport_id: &str, write: Option<u64>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-crash-victim"));
    command.arg(transport_id).arg(SEED.to_string());
    command.args(write.map(|write| write.to_string()));
    command.output().expect("the victim runs")
}

#[test]
fn a_process_killed_at_writes_leaves_whole_entries_on_a_namespace() {
    let Some(target) = target("crash and recovery") else {
        return;
    };
    let len_bytes = crash::log_bytes().next_multiple_of(1 << 20);
    let whole = target.add("whole", len_bytes, 4096).unwrap();
    let output = run(&whole, None);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // SPDK prints its start, too.
    let last = text.lines().last().unwrap_or_default();
    let numbers: Vec<u64> = last.split_whitespace().flat_map(str::parse).collect();
    let [writes, reclaimed] = numbers[..] else {
        panic!("the victim printed {text:?}");
    };
    assert!(writes > 60 && reclaimed > 2, "{last}");
    crash::survivor(&open(&whole), SEED).expect("a whole run");
    target.remove("whole").unwrap();
    let began = Instant::now();
    let (mut deaths, mut pages) = (0, 0);
    let step = (writes / DEATHS).max(1) as usize;
    for write in (1..=writes).step_by(step) {
        let there = target.add("part", len_bytes, 4096).unwrap();
        let output = run(&there, Some(write));
        // Real time decides what is written together: some runs have fewer writes.
        match output.status.signal() {
            Some(KILLED) => deaths += 1,
            _ => assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            ),
        }
        let survivor = || crash::survivor(&open(&there), SEED);
        // What the target had begun for the dead process may still land: a second look, later, counts then.
        pages += survivor()
            .or_else(|_| {
                std::thread::sleep(Duration::from_secs(1));
                survivor()
            })
            .unwrap_or_else(|error| panic!("killed at write {write} of {writes}: {error:#}"));
        target.remove("part").unwrap();
        if began.elapsed() > TIME_MAX {
            println!("SHORT: {write} of {writes} writes after {TIME_MAX:?}");
            break;
        }
    }
    println!(
        "{deaths} deaths at {writes} writes, {pages} pages found, {:?}",
        began.elapsed()
    );
    assert!(deaths > 5 && pages > 100, "{deaths} deaths, {pages} pages");
}
