//! A process is killed at every write of a script on a real file. The page cache survives it: this tests
//! the process's death, the simulator tests the power's.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use forebay_tests::disk::crash;

const SEED: u64 = 3;
/// Past this no more deaths are tried: the rest of the writes are like those before.
const TIME_MAX: Duration = Duration::from_secs(40);
/// SIGKILL.
const KILLED: i32 = 9;

fn run(file: &Path, write: Option<u64>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-crash-victim"));
    command.arg(file).arg(SEED.to_string());
    command.args(write.map(|write| write.to_string()));
    command.output().expect("the victim runs")
}

fn survivor(file: &Path) -> anyhow::Result<usize> {
    crash::survivor(&crash::open(file)?, SEED)
}

#[test]
fn a_process_killed_at_every_write_leaves_whole_entries() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let whole = folder.path().join("whole");
    let output = run(&whole, None);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && errors.contains("io_uring") {
        println!("SKIPPED: no io_uring here: {errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
    let [writes, reclaimed] = numbers[..] else {
        panic!("the victim printed {text:?}");
    };
    assert!(writes > 60 && reclaimed > 2, "{text}");
    survivor(&whole).expect("a whole run");
    let began = Instant::now();
    let (mut deaths, mut pages) = (0, 0);
    for write in 1..=writes {
        let file = folder.path().join("file");
        let output = run(&file, Some(write));
        // Real time decides what is written together: some runs have fewer writes.
        if output.status.signal() == Some(KILLED) {
            deaths += 1;
        } else {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
        }
        // What the kernel had begun for the dead process may still land while the file is looked at: a
        // second look, later, counts then.
        std::thread::sleep(Duration::from_millis(10));
        pages += survivor(&file)
            .or_else(|_| {
                std::thread::sleep(Duration::from_secs(1));
                survivor(&file)
            })
            .unwrap_or_else(|error| panic!("killed at write {write} of {writes}: {error:#}"));
        std::fs::remove_file(&file).expect("the file is there");
        if began.elapsed() > TIME_MAX {
            println!("SHORT: {write} of {writes} writes after {TIME_MAX:?}");
            break;
        }
    }
    println!(
        "{deaths} deaths at {writes} writes, {pages} pages found, {:?}",
        began.elapsed()
    );
    assert!(
        deaths > 30 && pages > 1_000,
        "{deaths} deaths, {pages} pages"
    );
}
