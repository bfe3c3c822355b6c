//! `trace`: recorded accesses, once more, each strand by a thread of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::{Ran, files};
use crate::direct::{AlignedBuf, open_direct};
use crate::interrupt;
use crate::pace::Paced;
use crate::recorder::Recorder;
use crate::scenario::Scenario;
use crate::trace::order::{Plan, Strand};
use crate::trace::{Access, Deed, Trace};

mod start;

use start::{Gate, Spinners};

/// Between looks at signals, and at whether another thread failed.
const LOOK: Duration = Duration::from_millis(50);
/// Of a thread that reads.
const STACK_BYTES: usize = 512 << 10;
/// Threads are there so long before their first access.
const LEAD: Duration = Duration::from_millis(20);
/// Reads end at whole pages where the file does not end before: so the kernel asked.
const PAGE_BYTES: usize = 4_096;

/// Keys and bytes of a trace's files.
pub(super) fn objects(trace: Option<&Trace>) -> Vec<(String, u64)> {
    let sizes = trace.iter().flat_map(|trace| &trace.files);
    let sizes = sizes.enumerate();
    sizes
        .map(|(number, bytes)| (files::name(number as u64), *bytes))
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A handle of the trace.
#[derive(Debug, Default)]
struct Handle {
    file: Mutex<Option<Arc<File>>>,
    opened: Condvar,
    /// Reads that have not ended.
    left: AtomicU32,
    closing: AtomicBool,
}

/// How far a reader is.
#[derive(Debug, Default)]
struct Reader {
    /// Which of its accesses have ended, in the order in which they did when it was recorded; and how many without a gap.
    ended: Mutex<(Vec<bool>, usize)>,
    moved: Condvar,
}

struct Replay<'a> {
    dir: &'a Path,
    trace: &'a Trace,
    plan: &'a Plan,
    handles: Vec<Handle>,
    readers: Vec<Reader>,
    direct: bool,
    /// Each access at its time from here; none: when those before it have ended.
    timed: bool,
    gate: Gate,
    spinners: Spinners,
    first_ns: u64,
    stack_bytes: usize,
    failed: AtomicBool,
}

/// What one thread did.
#[derive(Default)]
struct Done {
    recorder: Recorder,
    bytes: u64,
    last: Option<Instant>,
}

impl Done {
    fn add(&mut self, other: Done) -> Result<()> {
        self.recorder.add(&other.recorder)?;
        self.bytes += other.bytes;
        self.last = self.last.max(other.last);
        Ok(())
    }
}

fn joined(thread: ScopedJoinHandle<'_, Result<Done>>) -> Result<Done> {
    let ended = thread.join();
    ended.unwrap_or_else(|_| Err(anyhow!("a reader panicked")))
}

/// A span: the whole trace below `dir`.
pub(super) fn run(dir: &Path, scenario: &Scenario, trace: Option<&Trace>) -> Result<Ran> {
    let trace = trace.context("there is no trace")?;
    room_for_files()?;
    let mut replay = Replay::new(dir, trace)?;
    replay.direct = scenario.word("reader") == "direct";
    replay.timed = scenario.word("speed") == "1";
    replay.all()
}

/// The first failure that is not the echo of another one, or all together.
fn sum(results: Vec<Result<Done>>, start: Instant) -> Result<Ran> {
    let mut paced = Paced::default();
    let (mut bytes, mut echo) = (0, None);
    for result in results {
        match result {
            Ok(done) => {
                paced.recorder.add(&done.recorder)?;
                bytes += done.bytes;
                let elapsed = done.last.map(|last| last.saturating_duration_since(start));
                paced.elapsed = paced.elapsed.max(elapsed.unwrap_or_default());
            }
            Err(error) if error.is::<Echo>() => echo = Some(error),
            Err(error) => return Err(error),
        }
    }
    if let Some(error) = echo {
        return Err(error);
    }
    paced.operations = paced.recorder.count();
    Ok(Ran {
        paced,
        bytes,
        ..Ran::default()
    })
}

/// Another thread failed.
#[derive(Debug)]
struct Echo;

impl std::fmt::Display for Echo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another reader failed")
    }
}

impl std::error::Error for Echo {}

/// As many files as the recorded ones may be open at a time.
fn room_for_files() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the number of open files")
}

impl<'a> Replay<'a> {
    fn new(dir: &'a Path, trace: &'a Trace) -> Result<Replay<'a>> {
        let plan = trace.plan()?;
        let handles = plan.reads.iter().map(|reads| Handle {
            left: AtomicU32::new(*reads),
            ..Handle::default()
        });
        let mut counts = vec![0; trace.readers as usize];
        for access in &trace.accesses {
            counts[access.reader as usize] += usize::from(access.deed != Deed::Close);
        }
        let readers = counts.iter().map(|count| Reader {
            ended: Mutex::new((vec![false; *count], 0)),
            ..Reader::default()
        });
        Ok(Replay {
            dir,
            trace,
            plan,
            handles: handles.collect(),
            readers: readers.collect(),
            direct: false,
            timed: false,
            gate: Gate::default(),
            spinners: Spinners::default(),
            first_ns: trace.accesses.first().map_or(0, |first| first.at_ns),
            stack_bytes: STACK_BYTES,
            failed: AtomicBool::new(false),
        })
    }

    /// All threads; time counts from when they are there.
    fn all(&self) -> Result<Ran> {
        let (results, start) = thread::scope(|scope| {
            let mut results = Vec::new();
            let mut running = Vec::new();
            for strands in &self.plan.threads {
                match self.spawn(scope, move || self.thread(strands)) {
                    Ok(thread) => running.push(thread),
                    Err(error) => {
                        results.push(Err(error));
                        break;
                    }
                }
            }
            let lead = if self.timed { LEAD } else { Duration::ZERO };
            let look = || self.look();
            let start = self.gate.open(self.plan.threads.len(), lead, look);
            let start = start.unwrap_or_else(|error| {
                results.push(Err(error));
                self.failed.store(true, Relaxed);
                Instant::now()
            });
            results.extend(running.into_iter().map(joined));
            (results, start)
        });
        sum(results, start)
    }

    /// A thread; all end when there is none to be had.
    fn spawn<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        work: impl FnOnce() -> Result<Done> + Send + 's,
    ) -> Result<ScopedJoinHandle<'s, Result<Done>>> {
        let fails = move || {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let done = done.unwrap_or_else(|_| Err(anyhow!("a reader panicked")));
            if done.is_err() {
                self.failed.store(true, Relaxed);
            }
            done
        };
        let builder = thread::Builder::new().stack_size(self.stack_bytes);
        builder.spawn_scoped(scope, fails).map_err(|error| {
            self.failed.store(true, Relaxed);
            anyhow!(
                "the system gives no more threads to {} readers at a time ({error}): raise the limits (ulimit -u, pids.max of the control group, kernel.threads-max), or replay a trace of fewer",
                self.plan.threads.len()
            )
        })
    }

    /// Strands one after the other. Each has a thread of its own, so that the mount can tell readers apart.
    fn thread(&self, strands: &[Strand]) -> Result<Done> {
        let mut all = Done::default();
        thread::scope(|scope| {
            let mut running = Vec::new();
            for (number, strand) in strands.iter().enumerate() {
                if number > 0 && self.timed {
                    // Whether or not the one before is over: its reader may be another.
                    self.wait(&self.trace.accesses[strand.accesses[0] as usize], LEAD)?;
                    let over = running
                        .extract_if(.., |one: &mut ScopedJoinHandle<'_, _>| one.is_finished());
                    for one in over {
                        all.add(joined(one)?)?;
                    }
                }
                running.push(self.spawn(scope, move || self.strand(strand, number == 0))?);
                if !self.timed {
                    running
                        .drain(..)
                        .try_for_each(|one| all.add(joined(one)?))?;
                }
            }
            running
                .into_iter()
                .try_for_each(|one| all.add(joined(one)?))
        })?;
        Ok(all)
    }

    fn strand(&self, strand: &Strand, first: bool) -> Result<Done> {
        let mut done = Done::default();
        let numbers = strand.accesses.iter();
        let longest = numbers.map(|number| self.trace.accesses[*number as usize].len_bytes());
        let longest = longest.max().unwrap_or(0) as usize;
        let mut buffer = AlignedBuf::new(longest.next_multiple_of(PAGE_BYTES));
        // Its pages are there before time counts.
        buffer.bytes().fill(0);
        if first {
            self.gate.ready();
            self.gate.wait(|| self.look())?;
        }
        for number in &strand.accesses {
            let access = &self.trace.accesses[*number as usize];
            let begun = self.begin(*number, access)?;
            match access.deed {
                Deed::Open => self.open_handle(access)?,
                Deed::Read { offset, len_bytes } => {
                    self.read(access, offset, len_bytes, &mut buffer)?;
                    let now = Instant::now();
                    done.recorder.record(now.saturating_duration_since(begun));
                    done.bytes += u64::from(len_bytes);
                    done.last = Some(now);
                }
                Deed::Close => {
                    self.close_handle(access);
                    continue;
                }
            }
            self.ended(*number, access);
        }
        Ok(done)
    }

    /// Until it is to begin; when it should have begun.
    fn begin(&self, number: u32, access: &Access) -> Result<Instant> {
        if self.timed {
            return self.wait(access, Duration::ZERO);
        }
        if access.deed != Deed::Close {
            self.wait_for_those_before(number, access)?;
        }
        Ok(Instant::now())
    }

    /// Until it is so long before its time; which that is.
    fn wait(&self, access: &Access, before: Duration) -> Result<Instant> {
        let start = self.gate.wait(|| self.look())?;
        let moment = start + Duration::from_nanos(access.at_ns - self.first_ns);
        loop {
            self.look()?;
            let left = moment.saturating_duration_since(Instant::now() + before);
            if left.is_zero() {
                return Ok(moment);
            }
            match before.is_zero() {
                true => self.spinners.sleep(left, LOOK),
                false => thread::sleep(left.min(LOOK)),
            }
        }
    }

    fn wait_for_those_before(&self, number: u32, access: &Access) -> Result<()> {
        let reader = &self.readers[access.reader as usize];
        let needed = self.plan.needs[number as usize].0 as usize;
        let mut ended = lock(&reader.ended);
        while ended.1 < needed {
            self.look()?;
            let waited = reader.moved.wait_timeout(ended, LOOK);
            ended = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        Ok(())
    }

    fn ended(&self, number: u32, access: &Access) {
        let reader = &self.readers[access.reader as usize];
        let place = self.plan.needs[number as usize].1 as usize;
        let mut ended = lock(&reader.ended);
        let (flags, reached) = &mut *ended;
        flags[place] = true;
        while flags.get(*reached) == Some(&true) {
            *reached += 1;
        }
        drop(ended);
        reader.moved.notify_all();
    }

    fn look(&self) -> Result<()> {
        interrupt::check()?;
        if self.failed.load(Relaxed) {
            bail!(Echo);
        }
        Ok(())
    }

    fn path(&self, handle: u32) -> PathBuf {
        let file = self.trace.handles[handle as usize];
        self.dir.join(files::name(u64::from(file)))
    }

    fn open(&self, access: &Access) -> Result<Arc<File>> {
        let path = self.path(access.handle);
        let file = match self.direct {
            true => open_direct(&path),
            false => File::open(&path),
        };
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Arc::new(file))
    }

    fn open_handle(&self, access: &Access) -> Result<()> {
        let file = self.open(access)?;
        let handle = &self.handles[access.handle as usize];
        *lock(&handle.file) = Some(file);
        handle.opened.notify_all();
        // At full speed its closing may have come before.
        if handle.closing.load(SeqCst) {
            self.close(handle);
        }
        Ok(())
    }

    fn close_handle(&self, access: &Access) {
        let handle = &self.handles[access.handle as usize];
        handle.closing.store(true, SeqCst);
        self.close(handle);
    }

    /// The handle's file: opened by whoever opened it when it was recorded, else now.
    fn file(&self, access: &Access) -> Result<Arc<File>> {
        let handle = &self.handles[access.handle as usize];
        let mut file = lock(&handle.file);
        loop {
            if let Some(file) = &*file {
                return Ok(file.clone());
            }
            if !self.plan.opened[access.handle as usize] {
                let opened = self.open(access)?;
                *file = Some(opened.clone());
                return Ok(opened);
            }
            self.look()?;
            let waited = handle.opened.wait_timeout(file, LOOK);
            file = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn read(&self, access: &Access, offset: u64, len: u32, buffer: &mut AlignedBuf) -> Result<()> {
        let file = self.file(access)?;
        let size = self.trace.files[self.trace.handles[access.handle as usize] as usize];
        let (len, last) = (len as usize, offset + u64::from(len) == size);
        let asked = if last {
            len.next_multiple_of(PAGE_BYTES)
        } else {
            len
        };
        let said = || {
            let path = self.path(access.handle);
            format!("reading {len} bytes at {offset} of {}", path.display())
        };
        let bytes = &mut buffer.bytes()[..asked];
        let mut got = 0;
        while got < len {
            let more = file.read_at(&mut bytes[got..], offset + got as u64);
            match more.with_context(said)? {
                0 => break,
                more => got += more,
            }
        }
        ensure!(got >= len, "{}: {got} bytes came", said());
        let handle = &self.handles[access.handle as usize];
        handle.left.fetch_sub(1, SeqCst);
        drop(file);
        if handle.closing.load(SeqCst) {
            self.close(handle);
        }
        Ok(())
    }

    /// A handle that is to be closed is, once nobody reads from it any more.
    fn close(&self, handle: &Handle) {
        let mut file = lock(&handle.file);
        if handle.left.load(SeqCst) == 0 {
            *file = None;
        }
    }
}

#[cfg(test)]
mod tests;
