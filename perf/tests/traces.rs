//! Accesses of real mounts: recorded, replayed, and recorded once more.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_cli::trace::format::{Decoder, Encoder, Record, Timed, header};
use forebay_perf::bench::Bench;
use forebay_perf::direct::{AlignedBuf, open_direct};
use forebay_perf::outcome::Outcome;
use forebay_perf::patterns::{Ran, Work};
use forebay_perf::side::Turn;
use forebay_perf::trace::record::{self, Options, Recorded};
use forebay_perf::trace::{Deed, Trace};

const MIB: u64 = 1 << 20;

fn has_fuse() -> bool {
    let there = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !there {
        println!("SKIPPED: traces of mounts: no /dev/fuse, or no root to drop the page cache");
    }
    there
}

/// Records a mount while `work` is done.
fn recorded(point: &Path, output: &Path, work: impl FnOnce() -> Result<()>) -> Result<Recorded> {
    let options = Options {
        mount_point: point.to_owned(),
        output: output.to_owned(),
        names: false,
    };
    let (begun, over) = (mpsc::channel(), AtomicBool::new(false));
    thread::scope(|scope| {
        let recording = scope.spawn(|| {
            let begin = || begun.0.send(()).expect("it is waited for");
            record::record(&options, begin, |_| over.load(SeqCst))
        });
        let waited = begun.1.recv_timeout(Duration::from_secs(60));
        let worked = match waited {
            Ok(()) => work(),
            // What the recording says is why.
            Err(_) => Ok(()),
        };
        over.store(true, SeqCst);
        let recorded = recording.join().expect("it does not panic")?;
        worked?;
        Ok(recorded)
    })
}

/// What reader `n` reads: offset and length.
fn pattern(reader: u64) -> Vec<(u64, u32)> {
    let sizes = [4_096, 1 << 20, 65_536, 12_288];
    let places = 0..40u64;
    let places = places.map(|n| {
        let len = sizes[(n + reader) as usize % sizes.len()];
        let offset = (n * 37 + reader * 11) % 7 * MIB + n * 4_096;
        (offset, len)
    });
    let mut all: Vec<(u64, u32)> = places.collect();
    // The end, which is no whole page.
    all.push((8 * MIB, 1_000));
    all
}

/// Three readers at once, each past the page cache and with its own handle; twice their file is the same.
fn do_it(bench: &Bench) -> Result<()> {
    let together = Barrier::new(3);
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let running: Vec<_> = (0..3u64)
            .map(|reader| {
                let together = &together;
                scope.spawn(move || -> Result<()> {
                    let path = bench.file(if reader == 2 { "b" } else { "a" });
                    let file = open_direct(&path)?;
                    let mut buffer = AlignedBuf::new(1 << 20);
                    together.wait();
                    for (offset, len) in pattern(reader) {
                        let asked = (len as usize).next_multiple_of(4_096);
                        let got = file.read_at(&mut buffer.bytes()[..asked], offset)?;
                        ensure!(got == len as usize, "{got} of {len} at {offset}");
                    }
                    Ok(())
                })
            })
            .collect();
        let ended = running.into_iter().map(|one| one.join());
        ended.map(|one| one.expect("no panic")).collect()
    });
    results.into_iter().collect()
}

fn bench() -> Result<Bench> {
    let size = 8 * MIB + 1_000;
    let objects = [("a".to_owned(), size), ("b".to_owned(), size)];
    Bench::start(&objects, "128MiB")
}

/// Offsets and sizes of each reader that read; readers and files have other numbers in another recording.
fn readers(trace: &Trace) -> Vec<Vec<(u64, u32)>> {
    let all = trace.by_reader().into_iter();
    let all = all.filter(|reads| !reads.is_empty());
    let mut all: Vec<Vec<(u64, u32)>> = all
        .map(|reads| {
            assert!(reads.iter().all(|(file, ..)| *file == reads[0].0));
            reads.iter().map(|(_, at, len)| (*at, *len)).collect()
        })
        .collect();
    all.sort_unstable();
    all
}

fn wanted() -> Vec<Vec<(u64, u32)>> {
    let mut wanted: Vec<_> = (0..3).map(pattern).collect();
    wanted.sort_unstable();
    wanted
}

#[test]
fn a_replay_reads_what_was_recorded() -> Result<()> {
    if !has_fuse() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let first = dir.path().join("first");
    let mount = bench()?;
    let told = recorded(mount.point(), &first, || do_it(&mount))?;
    mount.end()?;
    assert_eq!((told.lost, &told.broken), (0, &None));
    let trace = Trace::read(&first)?;
    assert_eq!(readers(&trace), wanted());
    assert_eq!((trace.files.len(), trace.handles.len()), (2, 3));
    // Opens and closes, too.
    assert_eq!(trace.accesses.len() as u64, trace.reads() + 6);

    for speed in ["1", "max"] {
        let again = dir.path().join(format!("again-{speed}"));
        let ran = replayed_again(&first, speed, &again)?;
        assert_eq!(ran.paced.operations, trace.reads());
        let replayed = Trace::read(&again)?;
        assert_eq!(readers(&replayed), wanted(), "speed={speed}");
        assert_eq!(replayed.accesses.len(), trace.accesses.len());
        if speed == "1" {
            // At its times: not faster than it was.
            let (was, is) = (trace.span(), ran.paced.elapsed);
            assert!(is >= was.mul_f64(0.9), "{was:?}, and {is:?}");
        }
    }
    Ok(())
}

/// One reader that has four reads under way at a time, and opens and closes its file: another trace than a mount gives today.
fn overlapping(file: &Path) -> Result<()> {
    let mut encoder = Encoder::default();
    encoder.push(&Record::File {
        size_bytes: 8 * MIB + 1_000,
        name: None,
    });
    encoder.push(&Record::Handle { file: 0 });
    let timed = |at_us: u64, took_us: u64| Timed {
        at_ns: at_us * 1_000,
        took_ns: took_us * 1_000,
        reader: 0,
        handle: 0,
    };
    encoder.push(&Record::Open(timed(0, 5)));
    for n in 0..64u64 {
        // Each group of four begins when the one before has ended.
        encoder.push(&Record::Read {
            timed: timed(100 + n / 4 * 1_000 + n % 4 * 10, 800),
            offset: n * 128 * 1_024,
            len_bytes: 128 * 1_024,
            done: true,
        });
    }
    encoder.push(&Record::Close(timed(20_000, 5)));
    encoder.push(&Record::End {
        elapsed_ns: 30_000_000,
        accesses: 66,
    });
    std::fs::write(file, [&header(false)[..], &encoder.take()].concat())?;
    Ok(())
}

#[test]
fn a_replay_of_overlapping_reads_reads_each_once_and_in_groups() -> Result<()> {
    if !has_fuse() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let first = dir.path().join("first");
    overlapping(&first)?;
    let trace = Trace::read(&first)?;
    for speed in ["1", "max"] {
        let again = dir.path().join(format!("again-{speed}"));
        replayed_again(&first, speed, &again)?;
        let replayed = Trace::read(&again)?;
        let ranges = |trace: &Trace| {
            let mut all: Vec<_> = trace.by_reader().into_iter().flatten().collect();
            all.sort_unstable();
            all
        };
        assert_eq!(ranges(&replayed), ranges(&trace), "speed={speed}");
        assert_eq!(replayed.accesses.len(), trace.accesses.len());
        assert_eq!((replayed.handles.len(), replayed.reading), (1, 4));
        if speed == "max" {
            // No group begins before the one before has ended. A mount tells of an end before the reader has seen it.
            let groups: Vec<(u64, u64)> = (0..16u64)
                .map(|group| {
                    let reads = replayed.accesses.iter().filter(|access| {
                        let at = match access.deed {
                            Deed::Read { offset, .. } => offset,
                            _ => return false,
                        };
                        at / (4 * 128 * 1_024) == group
                    });
                    let (mut begins, mut ends) = (u64::MAX, 0);
                    for read in reads {
                        (begins, ends) = (begins.min(read.at_ns), ends.max(read.end_ns()));
                    }
                    (begins, ends)
                })
                .collect();
            for pair in groups.windows(2) {
                assert!(pair[0].1 <= pair[1].0, "{groups:?}");
            }
        }
    }
    Ok(())
}

/// Replays `trace` on a mount of its own, and records that.
fn replayed_again(trace: &Path, speed: &str, again: &Path) -> Result<Ran> {
    let file = trace.display();
    let scenario = format!("trace:file={file},speed={speed},tier=memory");
    let work = Work::open(&scenario.parse()?)?;
    let mount = Bench::start(&work.objects(1), "128MiB")?;
    let turn = Turn {
        number: 1,
        span: Duration::ZERO,
        seed: 1,
    };
    let mut ran = None;
    recorded(mount.point(), again, || {
        ran = Some(work.run(mount.point(), &turn)?);
        Ok(())
    })?;
    mount.end()?;
    ran.context("it ran")
}

fn perf(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-perf"));
    command.args(arguments);
    command.args(["--dir", env!("CARGO_TARGET_TMPDIR")]);
    command.stdin(Stdio::null());
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

fn said(command: &mut Command) -> Result<(bool, String)> {
    let output = command.output()?;
    let all = [&output.stdout[..], &output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(all)?))
}

/// A trace without an end, from a pipe: a signal ends its showing.
#[test]
fn a_long_trace_is_shown_until_a_signal_comes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let pipe = dir.path().join("pipe");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success());
    let mut show = perf(&["trace", "show", text(&pipe), "--records"]);
    let show = show.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = show.spawn()?;
    let mut file = std::fs::OpenOptions::new().write(true).open(&pipe)?;
    file.write_all(&header(false))?;
    let mut encoder = Encoder::default();
    let end = Instant::now() + Duration::from_secs(60);
    for round in 0.. {
        encoder.push(&Record::Lost(1));
        // It reads no more: it has ended.
        if file.write_all(&encoder.take()).is_err() {
            break;
        }
        ensure!(Instant::now() < end, "it goes on");
        if round == 1_000 {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
        }
    }
    let output = child.wait_with_output()?;
    let told = String::from_utf8(output.stderr)?;
    assert!(
        !output.status.success() && told.contains("interrupted"),
        "{told}"
    );
    Ok(())
}

/// Waits until a trace has a header: then accesses are recorded.
fn until_recording(child: &mut Child, file: &Path) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(file).map_or(0, |meta| meta.len()) == 0 {
        ensure!(child.try_wait()?.is_none(), "the recorder ended");
        ensure!(Instant::now() < end, "nothing is recorded");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits until so many accesses are in a file: a mount that ends does not tell of its last moments.
fn until_told(file: &Path, accesses: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let mut decoder = Decoder::default();
        decoder.push(&std::fs::read(file)?, |_| {})?;
        if decoder.accesses() >= accesses {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{} of {accesses}", decoder.accesses());
        thread::sleep(Duration::from_millis(10));
    }
}

/// By the command line, as users do: killed, interrupted, refused, replayed, and the mount taken away meanwhile.
#[test]
fn recorders_come_and_go() -> Result<()> {
    if !has_fuse() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let file = |name: &str| -> PathBuf { dir.path().join(name) };
    let start = |name: &str, point: &Path| -> Result<Child> {
        let (point, output) = (text(point).to_owned(), file(name));
        let child = perf(&["trace", "record", &point, "-o", text(&output)])
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child?;
        until_recording(&mut child, &output)?;
        Ok(child)
    };
    let mount = bench()?;
    let mut killed = start("killed", mount.point())?;
    // Only one at a time; and no file is left of who was refused.
    let other = file("other");
    let record = ["trace", "record", text(mount.point()), "-o", text(&other)];
    let (fine, told) = said(&mut perf(&record))?;
    assert!(!fine && told.contains("by somebody else"), "{told}");
    assert!(!other.exists());
    killed.kill()?;
    killed.wait()?;
    let (fine, told) = said(&mut perf(&["trace", "show", text(&file("killed"))]))?;
    assert!(!fine && told.contains("cut off"), "{told}");

    // The mount, which was idle, has noticed that it is gone.
    let end = Instant::now() + Duration::from_secs(60);
    let mut second = loop {
        match start("second", mount.point()) {
            Ok(child) => break child,
            Err(error) => assert!(Instant::now() < end, "it is still on: {error:#}"),
        }
    };
    do_it(&mount)?;
    let pid = rustix::process::Pid::from_child(&second);
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    assert!(second.wait()?.success());
    let trace = Trace::read(&file("second"))?;
    assert_eq!(readers(&trace), wanted());
    // It is not overwritten.
    let there = file("second");
    let again = ["trace", "record", text(mount.point()), "-o", text(&there)];
    let (fine, told) = said(&mut perf(&again))?;
    assert!(!fine && told.contains("not there yet"), "{told}");

    // The mount ends: what was recorded is kept.
    let mut third = start("third", mount.point())?;
    do_it(&mount)?;
    until_told(&file("third"), 3 * pattern(0).len() as u64 + 6)?;
    mount.end()?;
    assert!(third.wait()?.success());
    assert_eq!(readers(&Trace::read(&file("third"))?), wanted());
    let nobody = ["trace", "record", text(dir.path()), "-o", text(&other)];
    let (fine, told) = said(&mut perf(&nobody))?;
    assert!(!fine && told.contains("no Forebay mount"), "{told}");
    replayed(&file("second"), &file("json"))
}

/// As a scenario, with its outcome.
fn replayed(trace: &Path, json: &Path) -> Result<()> {
    let settings = "speed=max,tier=memory";
    let mut replay = perf(&["trace", "replay", text(trace), settings]);
    replay.args(["--repeats", "2", "--json", text(json)]);
    let (fine, told) = said(&mut replay)?;
    assert!(fine && told.contains("trace"), "{told}");
    let outcome = Outcome::read(json)?;
    for span in &outcome.sides[0].spans {
        assert_eq!(span.operations, 3 * pattern(0).len() as u64);
        let latency = span.latency.as_ref().context("latencies are taken")?;
        assert_eq!(latency.count, span.operations);
    }
    assert!(
        outcome
            .notes
            .iter()
            .any(|note| note.contains("by 3 readers")),
        "{:?}",
        outcome.notes
    );
    let (fine, told) = said(&mut perf(&["trace", "show", text(trace), "--records"]))?;
    assert!(fine && told.lines().any(|line| line.contains("\"what\":\"end\"")));
    let (fine, told) = said(&mut perf(&["run", "trace:file=Cargo.toml"]))?;
    assert!(!fine && told.contains("no trace of Forebay's"), "{told}");
    Ok(())
}
