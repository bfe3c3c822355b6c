//! `trace record`: a mount's accesses, from its daemon into a file.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_cli::control::sockets::{checked_runtime_dir, is_alive, socket_path};
use forebay_cli::mounts;
use forebay_cli::trace::follower::Follower;
use forebay_cli::trace::format::{Decoder, Encoder, Record};

/// Between looks at the signals and the clock.
const LOOK: Duration = Duration::from_millis(50);
/// What was done up to the end is told by the mount within this.
const REST: Duration = Duration::from_millis(150);

/// What is recorded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the mount is.
    pub mount_point: PathBuf,
    /// The file to be made.
    pub output: PathBuf,
    /// With the keys of files.
    pub names: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Opens, reads, closes.
    pub accesses: u64,
    /// Those that the mount could not tell in time.
    pub lost: u64,
    /// How long.
    pub elapsed: Duration,
    /// The file's length.
    pub bytes: u64,
    /// Why it ended before it was to.
    pub broken: Option<String>,
}

/// Records until `is_over`, which is told for how long already. The file is whole also when the mount ends before. `begun` is
/// called when accesses are recorded.
///
/// # Errors
/// When there is no mount, it does not record, the file exists or cannot be written.
pub fn record(
    options: &Options,
    begun: impl FnOnce(),
    mut is_over: impl FnMut(Duration) -> bool,
) -> Result<Recorded> {
    let point = &options.mount_point;
    let place = mounts::spelled(point)?;
    let socket = socket_path(&checked_runtime_dir()?, &place);
    ensure!(
        is_alive(&socket),
        "no Forebay mount of this user answers at {}: `forebay status` shows those that do",
        point.display()
    );
    let mut out = Output::new(&options.output)?;
    let following = follow(&socket, options.names, &mut out, begun, &mut is_over);
    if following.is_err() {
        // Nothing was recorded: what is left would be no trace.
        let _ = std::fs::remove_file(&options.output);
    }
    following
}

fn follow(
    socket: &Path,
    names: bool,
    out: &mut Output,
    begun: impl FnOnce(),
    is_over: &mut impl FnMut(Duration) -> bool,
) -> Result<Recorded> {
    let mut follower = Follower::start(socket, names)?;
    let start = Instant::now();
    begun();
    let mut recorded = Recorded::default();
    let mut over: Option<Instant> = None;
    loop {
        let elapsed = start.elapsed();
        if over.is_none() && is_over(elapsed) {
            recorded.elapsed = elapsed;
            over = Some(Instant::now());
        }
        if over.is_some_and(|over| over.elapsed() >= REST) {
            break;
        }
        match follower.next(LOOK) {
            Ok(Some(bytes)) => out.take(&bytes, &mut recorded)?,
            Ok(None) => {}
            Err(error) => {
                recorded.broken = Some(format!("{error:#}"));
                break;
            }
        }
    }
    if over.is_none() {
        recorded.elapsed = start.elapsed();
    }
    // Before the end is written: the mount goes on without it.
    drop(follower);
    out.end(&mut recorded)?;
    Ok(recorded)
}

/// The file, and what its trace is up to now.
struct Output {
    path: PathBuf,
    file: File,
    decoder: Decoder,
}

impl Output {
    fn new(path: &Path) -> Result<Output> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = file.with_context(|| {
            format!(
                "cannot make {}: give a name that is not there yet",
                path.display()
            )
        })?;
        Ok(Output {
            path: path.to_owned(),
            file,
            decoder: Decoder::default(),
        })
    }

    fn take(&mut self, bytes: &[u8], recorded: &mut Recorded) -> Result<()> {
        let lost = &mut recorded.lost;
        let understood = self.decoder.push(bytes, |record| {
            if let Record::Lost(count) = record {
                *lost = lost.saturating_add(count);
            }
        });
        understood
            .context("the mount tells its accesses in another way: is it of another version?")?;
        self.write(bytes, recorded)
    }

    fn write(&mut self, bytes: &[u8], recorded: &mut Recorded) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        recorded.bytes += bytes.len() as u64;
        Ok(())
    }

    fn end(&mut self, recorded: &mut Recorded) -> Result<()> {
        recorded.accesses = self.decoder.accesses();
        let mut encoder = Encoder::default();
        encoder.push(&Record::End {
            elapsed_ns: recorded.elapsed.as_nanos() as u64,
            accesses: recorded.accesses,
        });
        let end = encoder.take();
        // The mount may have ended in the midst of a frame.
        let whole = self.decoder.cut();
        let said = || format!("cannot write {}", self.path.display());
        self.file.set_len(whole).with_context(said)?;
        self.file.seek(SeekFrom::Start(whole)).with_context(said)?;
        recorded.bytes = whole;
        self.decoder.push(&end, |_| {})?;
        let finished = self.decoder.finish();
        finished.context("the mount ended before it told anything")?;
        self.write(&end, recorded)
    }
}
