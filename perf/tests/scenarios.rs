//! Each scenario for a moment: it runs, its outcome is as docs/perf-schema.json says, and bad input is told.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use forebay_perf::outcome::Outcome;
use forebay_perf::peers::Peer;
use forebay_perf::scenario::Kind;
use serde_json::Value;

mod schema;

/// Runs the program; its files lie on the disk of the build, not in memory.
fn perf(arguments: &[&str]) -> Output {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    Command::new(env!("CARGO_BIN_EXE_forebay-perf"))
        .args(arguments)
        .arg("--dir")
        .arg(dir)
        .env_remove("FOREBAY_RDMA_DEVICE")
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Measures a scenario for a moment; gives its outcome when all is as it should be.
fn measured(scenario: &str) -> Outcome {
    measured_by(&["run", scenario])
}

fn measured_by(command: &[&str]) -> Outcome {
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    let json = file.path().to_str().expect("its name is text");
    let moment = ["--span", "200ms", "--warm-up", "100ms", "--repeats", "3"];
    let arguments = [command, &moment, &["--json", json]].concat();
    let output = perf(&arguments);
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    let last = said
        .lines()
        .rfind(|line| line.contains(": ") && line.contains("bound by"));
    assert!(
        last.is_some(),
        "{command:?} has no line that tells what binds: {said}"
    );
    let written = std::fs::read_to_string(file.path()).expect("it was written");
    let value: Value = serde_json::from_str(&written).expect("it is JSON");
    schema::check(&value).unwrap_or_else(|fault| panic!("{command:?}: {fault}\n{written}"));
    let outcome = Outcome::read(file.path()).expect("it is an outcome");
    for side in &outcome.sides {
        assert_eq!(side.spans.len(), 3, "{said}");
        for span in &side.spans {
            assert!(span.operations > 0 && span.elapsed_s > 0.0, "{span:?}");
        }
    }
    outcome
}

/// What Forebay's side of an outcome must have.
fn check_forebay(outcome: &Outcome) {
    let side = &outcome.sides[0];
    assert_eq!(side.name, "Forebay");
    for span in &side.spans {
        let latency = span.latency.as_ref().expect("latencies are taken");
        assert_eq!(latency.count, span.operations);
        assert!(latency.min_us <= latency.mean_us && latency.mean_us <= latency.max_us);
        assert!(span.cpu_s() > 0.0, "{span:?}");
    }
    assert!(!outcome.ceilings.is_empty());
    assert!(
        outcome
            .ceilings
            .iter()
            .all(|limit| limit.share > 0.0 && limit.share.is_finite())
    );
}

/// That of one path: with the parts that it must have, twice the same.
#[test]
fn instructions_of_a_path_are_counted_and_come_out_the_same_again() {
    if forebay_perf::paths::callgrind::version().is_err() {
        println!("SKIPPED: counts of instructions: valgrind is not installed");
        return;
    }
    let count = || {
        let file = tempfile::NamedTempFile::new().expect("a file can be made");
        let json = file.path().to_str().expect("its name is text");
        let output = perf(&["count", "hit-4k", "--operations", "640", "--json", json]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let written = std::fs::read_to_string(file.path()).expect("it was written");
        let value: Value = serde_json::from_str(&written).expect("it is JSON");
        let path = &value["paths"]["hit-4k"];
        for part in ["index", "checksum", "copy", "engine"] {
            assert!(
                path["parts"][part].as_f64().is_some_and(|each| each > 10.0),
                "no {part} in {written}"
            );
        }
        let each = path["instructions_per_operation"].as_f64();
        each.expect("it is a number")
    };
    let (first, second) = (count(), count());
    assert!(
        (first / second - 1.0).abs() < 0.005,
        "{first} and {second} are not the same"
    );
    let wrong = perf(&["count", "hit-5k"]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("there are: hit-4k"));
}

fn has_fuse() -> bool {
    let there = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !there {
        println!("SKIPPED: scenarios of mounts: no /dev/fuse, or no root to drop the page cache");
    }
    there
}

#[test]
fn devices() {
    let outcome = measured("device:on=memory,data=16MiB");
    check_forebay(&outcome);
    let outcome = measured("device:data=32MiB,depth=4,order=sequential,block=64KiB");
    check_forebay(&outcome);
    assert!(outcome.ceilings.iter().any(|limit| limit.name == "device"));
    assert_eq!(outcome.settings["order"], "sequential");
}

#[test]
fn an_open_loop_keeps_its_rate_and_counts_from_arrival() {
    let outcome = measured("device:on=memory,data=16MiB,rate=2000");
    check_forebay(&outcome);
    for span in &outcome.sides[0].spans {
        assert_eq!(span.offered_per_s, Some(2000));
        // 400 on average in 200 ms; five deviations on either side.
        assert!((300..500).contains(&span.operations), "{span:?}");
        let json = serde_json::to_value(span).expect("it is JSON");
        assert_eq!(json["latency"]["from"], "arrival");
    }
}

#[test]
fn engines() {
    for scenario in [
        "engine:data=16MiB",
        "engine:data=16MiB,block=1MiB,depth=2,order=sequential,answer=dropped",
        "engine:data=16MiB,depth=4,cores=1",
        "engine:tier=disk,data=32MiB",
        "engine:tier=disk,data=32MiB,block=64KiB,verify=off",
    ] {
        check_forebay(&measured(scenario));
    }
}

#[test]
fn transports() {
    check_forebay(&measured("transport:block=64KiB"));
    check_forebay(&measured("transport:block=4KiB,depth=1,rate=500"));
    let refused = perf(&["run", "transport:via=rdma"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("give --device NAME"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn origins() {
    check_forebay(&measured("origin:data=32MiB,depth=2"));
}

#[test]
fn mounts() {
    if !has_fuse() {
        return;
    }
    for reader in ["direct", "buffered", "mmap"] {
        check_forebay(&measured(&format!(
            "fuse:reader={reader},data=32MiB,block=128KiB,depth=2"
        )));
    }
    let again = [
        "run",
        "fuse:tier=disk,data=32MiB",
        "--span",
        "500ms",
        "--repeats",
        "1",
    ];
    let refused = perf(&again);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(
        said.contains("not a measurement of the disk tier"),
        "{said}"
    );
    let outcome = measured("fuse:tier=disk,data=512MiB,block=4KiB,order=random");
    check_forebay(&outcome);
    let told = |note: &String| note.contains("were read from disk for");
    assert!(outcome.notes.iter().any(told), "{:?}", outcome.notes);
    let limits: Vec<&str> = outcome
        .ceilings
        .iter()
        .map(|limit| limit.name.as_str())
        .collect();
    assert!(
        limits.contains(&"device") && limits.contains(&"FUSE (null server)"),
        "{limits:?}"
    );
}

#[test]
fn groups() {
    if has_fuse() {
        let outcome = measured("group:data=256MiB,block=256KiB");
        check_forebay(&outcome);
        let who: Vec<&str> = outcome.sides[0].spans[0]
            .costs
            .iter()
            .map(|cost| cost.who.as_str())
            .collect();
        assert_eq!(who, ["readers", "forebay mount", "member m0", "member m1"]);
        assert!(
            outcome
                .notes
                .iter()
                .any(|note| note.contains("from other members"))
        );
        // Members that had some of it in memory would make this an error.
        // One after the other, and more than a span reads: what is read again comes from memory.
        let outcome = measured("group:tier=disk,data=1GiB,block=64KiB,order=sequential");
        check_forebay(&outcome);
        let told = |note: &String| note.contains("were read from disk for");
        assert!(outcome.notes.iter().any(told), "{:?}", outcome.notes);
    }
}

#[test]
fn patterns_of_small_files() {
    if !has_fuse() {
        return;
    }
    for state in ["warm", "cold"] {
        let outcome = measured(&format!(
            "epoch:files=50,size=20KiB,workers=4,state={state}"
        ));
        check_forebay(&outcome);
        assert!(
            outcome.sides[0]
                .spans
                .iter()
                .all(|span| span.operations == 50)
        );
        let origin = outcome
            .notes
            .iter()
            .any(|note| note.contains("from the origin"));
        assert_eq!(origin, state == "cold", "{:?}", outcome.notes);
        let outcome = measured(&format!("list:objects=100,directories=10,state={state}"));
        check_forebay(&outcome);
        assert!(
            outcome.sides[0]
                .spans
                .iter()
                .all(|span| span.operations == 11)
        );
    }
    let outcome = measured("list:objects=100,directories=10,attributes=no,state=cold");
    assert_eq!(outcome.sides[0].spans[0].operations, 11);
}

#[test]
fn patterns_of_large_files() {
    if !has_fuse() {
        return;
    }
    let whole = |scenario: &str, bytes: u64| {
        let outcome = measured(scenario);
        check_forebay(&outcome);
        assert!(
            outcome.sides[0]
                .spans
                .iter()
                .all(|span| span.bytes == bytes),
            "{scenario}"
        );
        outcome
    };
    whole("stream:size=16MiB,files=2,workers=2", 32 << 20);
    whole("stream:size=16MiB,state=cold", 16 << 20);
    whole("checkpoint-load:size=16MiB,readers=3", 48 << 20);
    let outcome = whole("safetensors:size=16MiB,tensors=40,processes=2", 32 << 20);
    assert!(
        outcome.sides[0]
            .summary
            .first_byte_us
            .is_some_and(|first| first.median > 0.0)
    );
}

#[test]
fn what_is_wrong_ends_with_words() {
    let cases = [
        (vec!["run", "disk"], 1, "there are: device"),
        (vec!["run", "fuse:blok=1"], 1, "fuse has no setting blok"),
        (vec!["run", "device", "--span", "0s"], 2, "no time"),
        (vec!["run", "device", "--span", "soon"], 2, "soon"),
        (vec!["run", "device", "--repeats", "0"], 2, "0 is not in"),
        (
            vec!["run", "device:on=memory,data=1TiB"],
            1,
            "takes 1024.0 GiB of memory, and",
        ),
        (
            vec!["run", "epoch:files=100000,size=1TiB,state=cold"],
            1,
            "GiB are free there",
        ),
        (
            vec![
                "run",
                "device:on=memory",
                "--json",
                "/no/such/dir/f",
                "--span",
                "50ms",
                "--warm-up",
                "50ms",
                "--repeats",
                "1",
            ],
            1,
            "cannot write /no/such/dir/f",
        ),
        (vec!["run"], 2, "SCENARIO"),
    ];
    for (arguments, code, wanted) in cases {
        let output = perf(&arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
    let listed = text(&perf(&["list"]).stdout);
    assert!(
        Kind::ALL
            .iter()
            .all(|kind| listed.contains(&format!("{}: ", kind.name())))
    );
}

#[test]
fn the_schema_refuses_what_is_not_as_it_says() {
    let outcome = measured("device:on=memory,data=16MiB");
    let value = serde_json::to_value(&outcome).expect("it is JSON");
    schema::check(&value).expect("it is as the schema says");
    let broken = |pointer: &str, change: Value| {
        let mut broken = value.clone();
        *broken.pointer_mut(pointer).expect("it is there") = change;
        schema::check(&broken).expect_err(pointer)
    };
    broken("/schema", Value::from("1"));
    broken("/sides", Value::from(7));
    broken("/sides/0/spans/0/latency/from", Value::from("yesterday"));
    broken("/sides/0/spans/0/costs/0/cpu_s", Value::Null);
    let mut more = value.clone();
    more["surprise"] = Value::from(1);
    assert!(schema::check(&more).is_err());
    let mut less = value;
    less.as_object_mut().expect("an object").remove("seed");
    assert!(schema::check(&less).is_err());
}

/// What a comparison must have: a verdict on each peer that is here.
fn compared(peers: &str, scenario: &str) -> Outcome {
    let outcome = measured_by(&["compare", peers, scenario]);
    check_forebay(&outcome);
    assert!(outcome.sides.len() > 1);
    for side in &outcome.sides[1..] {
        let verdicts = outcome
            .verdicts
            .iter()
            .filter(|verdict| verdict.against == side.name);
        assert_eq!(verdicts.count(), 2, "{}: {:?}", side.name, outcome.verdicts);
    }
    outcome
}

/// Those of `peers` whose programs are here; says which are not.
fn present(peers: &[Peer]) -> String {
    let (here, missing): (Vec<Peer>, Vec<Peer>) = peers.iter().partition(|peer| peer.is_here());
    for peer in missing {
        println!(
            "SKIPPED: comparison with {}: it is not installed",
            peer.name()
        );
    }
    here.iter()
        .map(|peer| peer.name())
        .collect::<Vec<_>>()
        .join(",")
}

#[test]
fn peers_of_disks_and_links() {
    for (peer, scenario) in [
        (Peer::Fio, "device:data=32MiB,depth=4"),
        (
            Peer::Fio,
            "engine:tier=disk,data=32MiB,block=64KiB,order=sequential",
        ),
        (Peer::Iperf3, "transport:block=256KiB"),
        (Peer::Ucx, "transport:block=4KiB"),
    ] {
        let peer = present(&[peer]);
        if !peer.is_empty() {
            let outcome = compared(&peer, scenario);
            assert!(
                outcome.sides[1].spans.iter().all(|span| span.cpu_s() > 0.0),
                "{peer}"
            );
        }
    }
}

#[test]
fn peers_of_mounts() {
    if !has_fuse() {
        return;
    }
    let peers = present(&[Peer::Rclone, Peer::S3fs, Peer::MountS3, Peer::Local]);
    let outcome = compared(&peers, "epoch:files=20,size=20KiB,workers=2");
    for side in &outcome.sides {
        assert!(
            side.spans.iter().all(|span| span.operations == 20),
            "{}",
            side.name
        );
    }
    // What they cached is not fetched again.
    assert!(
        !outcome
            .notes
            .iter()
            .any(|note| note.contains("from the origin")),
        "{:?}",
        outcome.notes
    );
    let peers = present(&[Peer::Rclone, Peer::S3fs]);
    if !peers.is_empty() {
        let outcome = compared(&peers, "list:objects=40,directories=4,state=cold");
        assert!(
            outcome
                .sides
                .iter()
                .all(|side| side.spans[0].operations == 5)
        );
    }
}

/// The first signal ends a comparison in order: nothing is mounted, no process and no file of it is left.
#[test]
fn an_interrupted_comparison_leaves_nothing() {
    if !has_fuse() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made");
    let mut child = Command::new(env!("CARGO_BIN_EXE_forebay-perf"))
        .args(["compare", "local", "epoch:files=20,size=20KiB"])
        .args(["--repeats", "1000", "--no-ceilings", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let stdout = child.stdout.take().expect("it is a pipe");
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let spans = |line: &String| line.contains("Forebay: ") && line.contains("/s");
    assert!(lines.any(|line| spans(&line)), "it measures nothing");
    let pid = i32::try_from(child.id()).expect("it is a process number");
    let pid = rustix::process::Pid::from_raw(pid).expect("it is one");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    // Nobody reads it otherwise.
    lines.for_each(drop);
    let output = child.wait_with_output().expect("it ends");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("it can be read");
    let ours = dir.path().to_str().expect("its name is text");
    assert!(!mounts.contains(ours), "{mounts}");
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .expect("it is there")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let cases = [
        (
            vec!["compare", "dd", "device"],
            "no peer `dd`; there are: fio",
        ),
        (vec!["compare", "fio", "device:rate=10"], "not from arrival"),
        (vec!["compare", "fio,fio", "device"], "fio is named twice"),
        (
            vec!["compare", "iperf3", "transport:block=4KiB"],
            "block=64KiB or more",
        ),
        (
            vec!["compare", "s3fs", "fuse:tier=memory"],
            "it caches on disk: tier=disk",
        ),
        (vec!["compare", "fio", "nothing"], "there are: device"),
        (
            vec!["compare", "/no/a.json", "/no/b.json"],
            "cannot read /no/a.json",
        ),
    ];
    for (arguments, wanted) in cases {
        let output = perf(&arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
    // Nobody is on an empty path: said, counted, and an error when there is nobody else.
    let output = Command::new(env!("CARGO_BIN_EXE_forebay-perf"))
        .args(["compare", "fio", "device:on=uring"])
        .env("PATH", "/nowhere")
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("MISSING: fio"),
        "{}",
        text(&output.stdout)
    );
    assert!(
        text(&output.stderr).contains("1 of 1 missing"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn outcomes_of_two_runs_are_compared_when_they_are_of_the_same() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let file = |name: &str, scenario: &str| {
        let path = dir.path().join(name);
        measured(scenario).write(&path).expect("it can be written");
        path.to_str().expect("its name is text").to_owned()
    };
    let one = file("one.json", "device:on=memory,data=16MiB");
    let two = file("two.json", "device:on=memory,data=16MiB");
    let other = file("other.json", "device:on=memory,data=16MiB,block=8KiB");
    let output = perf(&["compare", &one, &two]);
    let said = text(&output.stdout);
    assert!(
        output.status.success() && said.contains("verdict"),
        "{said}"
    );
    assert!(said.contains("measured in two runs"), "{said}");
    let refused = perf(&["compare", &one, &other]);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(
        said.contains("not comparable: block=4KiB is not block=8KiB"),
        "{said}"
    );
}
