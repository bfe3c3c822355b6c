//! A mount's accesses, as they were recorded: `trace record` writes them, the scenario `trace` does them again.
//!
//! | module | holds |
//! |---|---|
//! | [`command`] | the command line |
//! | [`record`] | takes them from a mount's daemon |
//! | [`show`] | what is in a trace |
//! | [`order`] | what of a trace must come after what when it is replayed |

pub mod command;
pub mod order;
pub mod record;
pub mod show;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use forebay_cli::trace::format::{Decoder, Record, Timed};

use crate::interrupt;
use crate::scenario::{Kind, Scenario};
use order::Plan;

/// Accesses that are held in memory, 48 bytes each.
pub const ACCESSES_MAX: u64 = 20_000_000;
const PIECE_BYTES: usize = 1 << 20;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A handle was opened.
    Open,
    /// Bytes were read.
    Read {
        /// From here.
        offset: u64,
        /// So many, at least one.
        len_bytes: u32,
    },
    /// A handle was closed.
    Close,
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// When it began, from the start of the recording.
    pub at_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// By whom.
    pub reader: u32,
    /// On which handle.
    pub handle: u32,
    /// What.
    pub deed: Deed,
}

impl Access {
    /// When it ended: later than it began, so that nothing comes before itself.
    pub fn end_ns(&self) -> u64 {
        self.at_ns.saturating_add(self.took_ns.max(1))
    }

    /// Bytes that it reads.
    pub fn len_bytes(&self) -> u32 {
        match self.deed {
            Deed::Read { len_bytes, .. } => len_bytes,
            _ => 0,
        }
    }
}

/// A trace in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Sizes of the files.
    pub files: Vec<u64>,
    /// The file of each handle.
    pub handles: Vec<u32>,
    /// In the order of their beginning.
    pub accesses: Vec<Access>,
    /// Threads that asked, the kernel's own among them.
    pub readers: u32,
    /// Of those, the ones that read.
    pub reading: usize,
    /// How long was recorded.
    pub elapsed: Duration,
    /// Accesses that the mount could not tell in time.
    pub lost: u64,
    /// Reads that failed, or were of nothing: they are not done again.
    pub left_out: u64,
    touched_bytes: u64,
    plan: OnceLock<Plan>,
    /// BLAKE3 of the file.
    digest: String,
}

/// Those of scenarios, by their files.
static READ: Mutex<Option<HashMap<PathBuf, Arc<Trace>>>> = Mutex::new(None);

impl Trace {
    /// That of a `trace` scenario; read once.
    ///
    /// # Errors
    /// When no file is named, or it is no trace that can be replayed.
    pub fn of(scenario: &Scenario) -> Result<Arc<Trace>> {
        let file = scenario.file("file");
        let file = file.context("trace:file=FILE names no file: record one with `forebay-perf trace record MOUNTPOINT -o FILE`")?;
        let path = PathBuf::from(file);
        let mut read = READ.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let read = read.get_or_insert_default();
        if let Some(trace) = read.get(&path) {
            return Ok(trace.clone());
        }
        let trace = Trace::read(&path)?;
        ensure!(
            trace.reads() > 0,
            "{file}: nothing was read while it was recorded: there is nothing to measure"
        );
        trace.plan().with_context(|| format!("the trace {file}"))?;
        let trace = Arc::new(trace);
        read.insert(path, trace.clone());
        Ok(trace)
    }

    /// What tells a scenario's trace from others, where it has one that was read.
    pub fn digest_of(scenario: &Scenario) -> Option<String> {
        let file = (scenario.kind() == Kind::Trace).then(|| scenario.file("file"))??;
        let read = READ.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let trace = read.as_ref()?.get(Path::new(file))?;
        Some(trace.digest.clone())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read(path: &Path) -> Result<Trace> {
        let said = || format!("the trace {}", path.display());
        let mut file = File::open(path).with_context(said)?;
        let (mut decoder, mut trace) = (Decoder::default(), Trace::default());
        let mut piece = vec![0; PIECE_BYTES];
        let mut digest = blake3::Hasher::new();
        loop {
            interrupt::check()?;
            let got = file.read(&mut piece).with_context(said)?;
            if got == 0 {
                break;
            }
            digest.update(&piece[..got]);
            decoder
                .push(&piece[..got], |record| trace.add(record))
                .with_context(said)?;
            if decoder.accesses() > ACCESSES_MAX {
                bail!(
                    "{}: more than {ACCESSES_MAX} accesses: record for less long (--for)",
                    said()
                );
            }
        }
        decoder.finish().with_context(said)?;
        trace.digest = digest.finalize().to_hex().to_string();
        trace.settle();
        Ok(trace)
    }

    fn add(&mut self, record: Record) {
        let access = |timed: Timed, deed| Access {
            at_ns: timed.at_ns,
            took_ns: timed.took_ns,
            reader: timed.reader,
            handle: timed.handle,
            deed,
        };
        match record {
            Record::File { size_bytes, .. } => self.files.push(size_bytes),
            Record::Handle { file } => self.handles.push(file),
            Record::Open(timed) => self.accesses.push(access(timed, Deed::Open)),
            Record::Close(timed) => self.accesses.push(access(timed, Deed::Close)),
            Record::Read {
                timed,
                offset,
                len_bytes,
                done,
            } => match done && len_bytes > 0 {
                true => {
                    let deed = Deed::Read { offset, len_bytes };
                    self.accesses.push(access(timed, deed));
                }
                false => self.left_out += 1,
            },
            Record::Lost(count) => self.lost = self.lost.saturating_add(count),
            Record::End { elapsed_ns, .. } => self.elapsed = Duration::from_nanos(elapsed_ns),
        }
    }

    /// Orders accesses, and looks at what all of them come to.
    fn settle(&mut self) {
        // Stable: what began at the same time stays as it was told.
        self.accesses.sort_by_key(|access| access.at_ns);
        let readers = self.accesses.iter().map(|access| access.reader + 1);
        self.readers = readers.max().unwrap_or(0);
        let mut ranges: Vec<(u32, u64, u64)> = Vec::new();
        let reads = self.accesses.iter();
        let reads = reads.filter(|access| matches!(access.deed, Deed::Read { .. }));
        for access in &self.accesses {
            if let Deed::Read { offset, len_bytes } = access.deed {
                let file = self.handles[access.handle as usize];
                ranges.push((file, offset, offset + u64::from(len_bytes)));
            }
        }
        ranges.sort_unstable();
        let mut reading: Vec<u32> = reads.map(|access| access.reader).collect();
        reading.sort_unstable();
        reading.dedup();
        self.reading = reading.len();
        let (mut last, mut reached) = (None, 0);
        for (file, from, to) in ranges {
            if last != Some(file) {
                (last, reached) = (Some(file), 0);
            }
            self.touched_bytes += to.saturating_sub(from.max(reached));
            reached = reached.max(to);
        }
    }

    /// Who replays what; made once.
    ///
    /// # Errors
    /// As [`Plan::of`].
    pub fn plan(&self) -> Result<&Plan> {
        if let Some(plan) = self.plan.get() {
            return Ok(plan);
        }
        let plan = Plan::of(self)?;
        Ok(self.plan.get_or_init(|| plan))
    }

    /// Memory that a replay takes beside the side that it measures: the trace, its plan, and readers' buffers.
    pub fn memory_bytes(&self) -> u64 {
        const PLANNED_BYTES: u64 = 16;
        let each = size_of::<Access>() as u64 + PLANNED_BYTES;
        let threads = self.plan.get().map_or(0, |plan| plan.threads.len() as u64);
        let longest = self.accesses.iter().map(Access::len_bytes).max();
        self.accesses.len() as u64 * each + threads * u64::from(longest.unwrap_or(0))
    }

    /// Objects, and their bytes together.
    pub fn amount(&self) -> (u128, u128) {
        let bytes = self.files.iter().map(|bytes| u128::from(*bytes)).sum();
        (self.files.len() as u128, bytes)
    }

    /// Bytes that are read at least once.
    pub fn touched_bytes(&self) -> u64 {
        self.touched_bytes
    }

    /// Reads of it.
    pub fn reads(&self) -> u64 {
        let reads = self.accesses.iter();
        let reads = reads.filter(|access| matches!(access.deed, Deed::Read { .. }));
        reads.count() as u64
    }

    /// From the first access to the end of the last.
    pub fn span(&self) -> Duration {
        let first = self.accesses.first().map_or(0, |first| first.at_ns);
        let last = self.accesses.iter().map(Access::end_ns).max();
        Duration::from_nanos(last.unwrap_or(0).saturating_sub(first))
    }

    /// Reads each second when each is done at its time, on average.
    pub fn rate(&self, scenario: &Scenario) -> Option<u64> {
        let each_s = self.reads() as f64 / self.span().as_secs_f64().max(1e-9);
        (scenario.word("speed") == "1").then(|| (each_s as u64).max(1))
    }

    /// What each reader read, in order: file, offset, length.
    pub fn by_reader(&self) -> Vec<Vec<(u32, u64, u32)>> {
        let mut readers = vec![Vec::new(); self.readers as usize];
        for access in &self.accesses {
            if let Deed::Read { offset, len_bytes } = access.deed {
                let file = self.handles[access.handle as usize];
                readers[access.reader as usize].push((file, offset, len_bytes));
            }
        }
        readers
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = self.span().as_secs_f64();
        write!(
            f,
            "the trace: {} reads of {} files by {} readers in {span:.1} s, {} bytes of them read at least once",
            self.reads(),
            self.files.len(),
            self.reading,
            self.touched_bytes
        )?;
        if self.lost > 0 {
            write!(f, "; {} accesses were lost when it was recorded", self.lost)?;
        }
        if self.left_out > 0 {
            write!(
                f,
                "; {} reads that failed or were of nothing are left out",
                self.left_out
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forebay_cli::trace::format::{Encoder, header};

    /// A trace of these records, written and read.
    pub(crate) fn of(records: &[Record]) -> Result<Trace> {
        let file = tempfile::NamedTempFile::new()?;
        let mut encoder = Encoder::default();
        records.iter().for_each(|record| encoder.push(record));
        std::fs::write(file.path(), [&header(false)[..], &encoder.take()].concat())?;
        Trace::read(file.path())
    }

    pub(crate) fn timed(at_ns: u64, took_ns: u64, reader: u32, handle: u32) -> Timed {
        Timed {
            at_ns,
            took_ns,
            reader,
            handle,
        }
    }

    pub(crate) fn read(timed: Timed, offset: u64, len_bytes: u32) -> Record {
        Record::Read {
            timed,
            offset,
            len_bytes,
            done: true,
        }
    }

    #[test]
    fn accesses_are_ordered_and_added_up() -> Result<()> {
        let mut records = vec![
            Record::File {
                size_bytes: 10_000,
                name: None,
            },
            Record::Handle { file: 0 },
            read(timed(500, 10, 0, 0), 0, 4_096),
            read(timed(100, 10, 1, 0), 4_000, 1_000),
            read(timed(200, 10, 1, 0), 9_000, 0),
            Record::Lost(2),
            Record::Open(timed(50, 10, 0, 0)),
        ];
        records.push(Record::End {
            elapsed_ns: 1_000,
            accesses: 4,
        });
        let trace = of(&records)?;
        let at: Vec<u64> = trace.accesses.iter().map(|one| one.at_ns).collect();
        assert_eq!(at, [50, 100, 500]);
        assert_eq!((trace.touched_bytes(), trace.reads()), (5_000, 2));
        assert_eq!((trace.lost, trace.left_out, trace.reading), (2, 1, 2));
        assert_eq!(trace.span(), Duration::from_nanos(460));
        assert_eq!(trace.by_reader()[1], [(0, 4_000, 1_000)]);
        records.pop();
        let said = format!("{:#}", of(&records).expect_err("it has no end"));
        assert!(
            said.contains("cut off") && said.contains("at byte"),
            "{said}"
        );
        Ok(())
    }

    #[test]
    fn a_scenario_of_too_many_readers_is_refused_before_anything_is_made() -> Result<()> {
        let mut records = vec![
            Record::File {
                size_bytes: 1,
                name: None,
            },
            Record::Handle { file: 0 },
        ];
        let all = order::STRANDS_MAX as u32 + 1;
        let reads = (0..all).map(|n| read(timed(u64::from(n), 1 << 30, n, 0), 0, 1));
        records.extend(reads);
        records.push(Record::End {
            elapsed_ns: 1 << 31,
            accesses: u64::from(all),
        });
        let file = tempfile::NamedTempFile::new()?;
        let mut encoder = Encoder::default();
        records.iter().for_each(|record| encoder.push(record));
        std::fs::write(file.path(), [&header(false)[..], &encoder.take()].concat())?;
        let scenario: Scenario = format!("trace:file={}", file.path().display()).parse()?;
        let said = format!("{:#}", Trace::of(&scenario).expect_err("too many"));
        assert!(
            said.contains("1025 readers") && said.contains("1024 can"),
            "{said}"
        );
        Ok(())
    }

    #[test]
    fn a_scenario_needs_a_trace_that_reads() {
        let refused = |text: &str| {
            let scenario: Scenario = text.parse().expect("it is one");
            format!("{:#}", Trace::of(&scenario).expect_err("it is refused"))
        };
        assert!(refused("trace").contains("names no file"));
        assert!(refused("trace:file=/no/such").contains("/no/such"));
        let own = format!("trace:file={}", file!().replace("perf/", ""));
        assert!(refused(&own).contains("no trace of Forebay's"), "{own}");
    }
}
