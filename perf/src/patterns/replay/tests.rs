use std::fs::OpenOptions;
use std::process::Command;

use forebay_cli::trace::format::Record;

use super::*;
use crate::trace::tests::{of, read, timed};

/// A trace of files of 8 KiB; what `accesses` tell, with a handle on each file.
fn trace(files: u32, accesses: Vec<Record>) -> Result<Trace> {
    let mut records = Vec::new();
    for file in 0..files {
        records.push(Record::File {
            size_bytes: 8_192,
            name: None,
        });
        records.push(Record::Handle { file });
    }
    let count = accesses.len() as u64;
    records.extend(accesses);
    records.push(Record::End {
        elapsed_ns: 1 << 40,
        accesses: count,
    });
    of(&records)
}

fn file(dir: &Path, number: u64) -> Result<PathBuf> {
    let path = dir.join(files::name(number));
    std::fs::create_dir_all(path.parent().context("it lies in a directory")?)?;
    std::fs::write(&path, vec![7; 8_192])?;
    Ok(path)
}

#[test]
fn a_handle_that_was_closed_before_it_was_opened_is_closed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    file(dir.path(), 0)?;
    let open = Record::Open(timed(10, 5, 0, 0));
    let close = Record::Close(timed(20, 5, 1, 0));
    let unread = trace(1, vec![open.clone(), close.clone()])?;
    let replay = Replay::new(dir.path(), &unread)?;
    replay.close_handle(&unread.accesses[1]);
    replay.open_handle(&unread.accesses[0])?;
    assert!(lock(&replay.handles[0].file).is_none());

    // With a read to come it stays open until then.
    let get = read(timed(16, 2, 0, 0), 0, 4_096);
    let once = trace(1, vec![open, get, close])?;
    let replay = Replay::new(dir.path(), &once)?;
    replay.close_handle(&once.accesses[2]);
    replay.open_handle(&once.accesses[0])?;
    assert!(lock(&replay.handles[0].file).is_some());
    let mut buffer = AlignedBuf::new(4_096);
    replay.read(&once.accesses[1], 0, 4_096, &mut buffer)?;
    assert!(lock(&replay.handles[0].file).is_none());
    Ok(())
}

#[test]
fn a_system_without_threads_is_told_of() -> Result<()> {
    let dir = tempfile::tempdir()?;
    file(dir.path(), 0)?;
    let reads = (0..3).map(|reader| read(timed(10, 50, reader, 0), 0, 4_096));
    let trace = trace(1, reads.collect())?;
    for timed in [false, true] {
        let mut replay = Replay::new(dir.path(), &trace)?;
        replay.timed = timed;
        assert_eq!(replay.all()?.paced.operations, 3);
        let mut replay = Replay::new(dir.path(), &trace)?;
        // There is no room for such a stack.
        (replay.timed, replay.stack_bytes) = (timed, 1 << 50);
        let said = format!("{:#}", replay.all().expect_err("no thread is had"));
        assert!(said.contains("ulimit -u"), "{said}");
    }
    Ok(())
}

/// The first reader's strand is over before the second's begins, so one thread has both; and when it is replayed it stands still.
#[test]
fn a_late_reader_does_not_delay_another() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (slow, _) = (file(dir.path(), 0)?, file(dir.path(), 1)?);
    std::fs::remove_file(&slow)?;
    assert!(Command::new("mkfifo").arg(&slow).status()?.success());
    let open = Record::Open(timed(0, 5, 0, 0));
    let get = read(timed(30_000_000, 5, 1, 1), 0, 4_096);
    let trace = trace(2, vec![open, get])?;
    assert_eq!(trace.plan()?.threads.len(), 1);
    let mut replay = Replay::new(dir.path(), &trace)?;
    replay.timed = true;
    thread::scope(|scope| {
        let running = scope.spawn(|| replay.all());
        let end = Instant::now() + Duration::from_secs(60);
        while lock(&replay.readers[1].ended).1 == 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        let read = lock(&replay.readers[1].ended).1;
        // Whom the first one waits for.
        OpenOptions::new().write(true).open(&slow)?;
        let ran = running.join().expect("no panic")?;
        assert_eq!((read, ran.paced.operations), (1, 1));
        Ok(())
    })
}
