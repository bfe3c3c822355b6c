//! `trace show`: what is in a trace.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use forebay_cli::trace::format::{Decoder, Record, Timed};

use super::Trace;
use crate::interrupt;

const MIB: f64 = (1u64 << 20) as f64;

/// For people.
///
/// # Errors
/// What is wrong with the file, and where.
pub fn summary(path: &Path) -> Result<String> {
    let trace = Trace::read(path)?;
    let mut text = format!("{trace}\n");
    let (files, all) = trace.amount();
    let all = all as f64 / MIB;
    let _ = writeln!(text, "  {files} files, {all:.1} MiB together");
    let _ = writeln!(text, "  recorded for {:.1} s", trace.elapsed.as_secs_f64());
    let mut readers: Vec<(usize, u64, usize)> = trace
        .by_reader()
        .iter()
        .enumerate()
        .map(|(number, reads)| {
            let read = reads.iter().map(|(_, _, len)| u64::from(*len)).sum();
            (reads.len(), read, number)
        })
        .filter(|(reads, _, _)| *reads > 0)
        .collect();
    readers.sort_unstable_by(|one, other| other.cmp(one));
    const SHOWN: usize = 10;
    for (reads, read, number) in readers.iter().take(SHOWN) {
        let read = *read as f64 / MIB;
        let _ = writeln!(text, "  reader {number}: {reads} reads, {read:.1} MiB");
    }
    if readers.len() > SHOWN {
        let _ = writeln!(text, "  and {} more readers", readers.len() - SHOWN);
    }
    Ok(text)
}

/// Every record as a line of JSON (docs/trace-format.md).
///
/// # Errors
/// What is wrong with the file, and where, behind the records before it; or that nobody takes them.
pub fn records(path: &Path, out: impl Write) -> Result<()> {
    let said = || format!("the trace {}", path.display());
    let mut file = File::open(path).with_context(said)?;
    let mut out = BufWriter::new(out);
    let mut decoder = Decoder::default();
    let mut piece = vec![0; 1 << 16];
    loop {
        interrupt::check()?;
        let got = file.read(&mut piece).with_context(said)?;
        if got == 0 {
            break;
        }
        let mut written = Ok(());
        let understood = decoder.push(&piece[..got], |record| {
            if written.is_ok() {
                written = writeln!(out, "{}", json(&record));
            }
        });
        written?;
        if let Err(wrong) = understood {
            out.flush()?;
            return Err(wrong).with_context(said);
        }
    }
    out.flush()?;
    decoder.finish().with_context(said)
}

fn json(record: &Record) -> serde_json::Value {
    let of = |what: &str, timed: &Timed| {
        serde_json::json!({
            "what": what, "at_ns": timed.at_ns, "took_ns": timed.took_ns,
            "reader": timed.reader, "handle": timed.handle,
        })
    };
    match record {
        Record::File { size_bytes, name } => {
            serde_json::json!({"what": "file", "size_bytes": size_bytes, "name": name})
        }
        Record::Handle { file } => serde_json::json!({"what": "handle", "file": file}),
        Record::Open(timed) => of("open", timed),
        Record::Close(timed) => of("close", timed),
        Record::Read {
            timed,
            offset,
            len_bytes,
            done,
        } => {
            let mut read = of(if *done { "read" } else { "failed-read" }, timed);
            read["offset"] = (*offset).into();
            read["len_bytes"] = (*len_bytes).into();
            read
        }
        Record::Lost(count) => serde_json::json!({"what": "lost", "accesses": count}),
        Record::End {
            elapsed_ns,
            accesses,
        } => serde_json::json!({"what": "end", "elapsed_ns": elapsed_ns, "accesses": accesses}),
    }
}
